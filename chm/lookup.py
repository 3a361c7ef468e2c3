# SPDX-License-Identifier: Apache-2.0
"""Lookup: how much of a request's prefix is there, and where.

Asks the master in batches, in prefix order, and stops at the first miss. As soon as the first batch
has hits they are sent to the manager as a hint, before the rest is asked for: so the device works
while the answer is still being put together, and a request's first bytes are on their way before
anybody has its descriptors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chm.events import NO_LOG, EventLog
from chm.master import Descriptor, Master

BATCH = 32


class Hints(Protocol):
    """Who stages early: the manager."""

    def hint(self, request: str, keys: Sequence[bytes], descriptors: Sequence[Descriptor]) -> None:
        """These are the first keys that the request will read."""


@dataclass(frozen=True)
class Found:
    """The longest usable run: ``keys`` from the front of those asked for, with their places."""

    request: str
    keys: list[bytes] = field(default_factory=list)
    descriptors: list[Descriptor] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of the run."""
        return sum(d.size for d in self.descriptors)


class Lookup:
    """``batch`` is at most 32 keys: a look-up never holds the master up for long."""

    def __init__(
        self,
        master: Master,
        hints: Hints | None = None,
        *,
        batch: int = BATCH,
        log: EventLog = NO_LOG,
    ) -> None:
        if not 1 <= batch <= BATCH:
            raise ValueError(f"batch: {batch} is not between 1 and {BATCH}")
        self._master = master
        self._hints = hints
        self._batch = batch
        self._log = log

    def find(self, request: str, keys: Sequence[bytes]) -> Found:
        """The longest run of keys, from the front, that are there."""
        found = Found(request)
        for first in range(0, len(keys), self._batch):
            some = keys[first : first + self._batch]
            run = _leading(self._master.lookup(some))
            found.keys.extend(some[: len(run)])
            found.descriptors.extend(run)
            if first == 0 and run and self._hints is not None:
                self._hints.hint(request, found.keys[:], run)
            if len(run) < len(some):
                break
        self._log.note("lookup", request, found.keys)
        return found


def _leading(answers: Sequence[Descriptor | None]) -> list[Descriptor]:
    run: list[Descriptor] = []
    for answer in answers:
        if answer is None:
            break
        run.append(answer)
    return run
