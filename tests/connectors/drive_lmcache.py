# SPDX-License-Identifier: Apache-2.0
"""Calls the LMCache adapter as the LMCache server does; see driver.py.

The host sleeps on the descriptor and drains when it is readable. Its keys name model, rank, group
and salt; dtype and layout they do not name: the user does, with the option ``identity``.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

from driver import Identity, Rows, Told

from chm.connectors import TierOptions
from chm.connectors.lmcache import Answer, ChmL2

_HANG_MS = 60_000


def kv_rank(ranks: int, rank: int) -> int:
    """As ObjectKey.ComputeKVRank of LMCache packs it."""
    return ranks << 24 | rank << 16 | ranks << 8 | rank


def key_text(identity: Identity, number: int, group: int = 0) -> str:
    """The text that the host makes of an ObjectKey."""
    rank = kv_rank(identity.ranks, identity.rank)
    text = f"{identity.model}@{rank:08x}@{group:x}@{number.to_bytes(8, 'big').hex()}"
    return f"{text}@{identity.salt}" if identity.salt else text


def params_of(options: TierOptions) -> dict[str, Any]:
    """The same as adapter_params."""
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


class LmcacheDriver:
    """One open connector, and completions that were not asked for yet."""

    blocking = False

    def __init__(self, options: TierOptions, identity: Identity, row_bytes: int) -> None:
        self._identity = identity
        known = f"{options.identity}{identity.dtype}/{identity.layout}"
        self.l2 = ChmL2(**{**params_of(options), "identity": known})
        self.tier = self.l2.tier
        self._told: list[Told] = []
        self._poll = select.poll()
        self._poll.register(self.l2.event_fd(), select.POLLIN)

    def _keys(self, numbers: Sequence[int]) -> list[str]:
        return [key_text(self._identity, number) for number in numbers]

    def lookup(self, numbers: Sequence[int]) -> list[bool]:
        asked = self.l2.submit_batch_exists(self._keys(numbers))
        answer: list[bool] | None = None
        while answer is None:
            assert self._poll.poll(_HANG_MS), "nothing woke the host"
            answer = self._drain(asked)
        return answer

    def store(self, numbers: Sequence[int], rows: Rows) -> int:
        return self.l2.submit_batch_set(self._keys(numbers), list(map(memoryview, rows)))

    def load(self, numbers: Sequence[int], rows: Rows) -> int:
        return self.l2.submit_batch_get(self._keys(numbers), list(map(memoryview, rows)))

    def told(self) -> list[Told]:
        if self._poll.poll(0):
            self._drain()
        told, self._told = self._told, []
        return told

    def _drain(self, asked: int = -1) -> list[bool] | None:
        answer = None
        for completion in self.l2.drain_completions():
            if completion[0] == asked:
                answer = completion[3]
            else:
                self._told.append(_told(completion))
        return answer

    def close(self) -> list[Told]:
        self.l2.close()
        self._drain()
        told, self._told = self._told, []
        return told


def _told(completion: Answer) -> Told:
    number, _, _, ok = completion
    assert ok is not None
    return Told(number, ok)


def open_lmcache(options: TierOptions, identity: Identity, row_bytes: int) -> LmcacheDriver:
    return LmcacheDriver(options, identity, row_bytes)
