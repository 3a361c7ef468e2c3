# SPDX-License-Identifier: Apache-2.0
"""The direct connector as the conformance suite sees it: its two halves, without vLLM and torch.

A block of the suite is a chunk of one engine block and four layers, each of which is one object. A
job is a request: its rows are the engine's memory for as long as it takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
from driver import Identity, Rows, Told

from chm.connectors import Naming, Tier, TierOptions
from chm.connectors.direct.layout import Layout
from chm.connectors.direct.memory import Staging
from chm.connectors.direct.mover import Mover
from chm.connectors.direct.plan import Load, Planner, Save

LAYERS = ("0", "1", "2", "3")
TOKENS = 32
STAGING = 256 << 20


class RowsLayer:
    """One layer of blocks, each of which is a quarter of a row of somebody's."""

    def __init__(self, rows: dict[int, Any], at: int, nbytes: int) -> None:
        self.rows, self.block_bytes = rows, nbytes
        self._part = slice(at * nbytes, (at + 1) * nbytes)

    def parts(self, blocks: Sequence[int | None]) -> list[Rows]:
        return [
            np.empty(self.block_bytes, np.uint8) if block is None else self.rows[block][self._part]
            for block in blocks
        ]

    def gather(self, blocks: Sequence[int], out: Rows) -> None:
        out[:] = np.concatenate(self.parts(blocks))

    def scatter(self, blocks: Sequence[int | None], source: Rows) -> None:
        for block, piece in zip(blocks, source.reshape(len(blocks), -1), strict=True):
            if block is not None:
                self.rows[block][self._part] = piece


def hashes(numbers: Sequence[int]) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in numbers]


def request(name: str, numbers: Sequence[int], more: int = 1) -> Any:
    """As vLLM's Request, of these blocks and some tokens more."""
    return SimpleNamespace(
        request_id=name, num_tokens=len(numbers) * TOKENS + more, block_hashes=hashes(numbers)
    )


class DirectDriver:
    blocking = False

    def __init__(
        self, options: TierOptions, identity: Identity, row_bytes: int, direct: bool = True
    ) -> None:
        self.tier = Tier(options, str(Naming("direct", **asdict(identity))), row_bytes)
        each = row_bytes // len(LAYERS)
        self.layout = Layout.of(dict.fromkeys(LAYERS, each), TOKENS, TOKENS, 1)
        self.rows: dict[int, Any] = {}
        layers = {name: RowsLayer(self.rows, i, each) for i, name in enumerate(LAYERS)}
        self.mover = Mover(self.tier, self.layout, layers, Staging(each, STAGING), direct=direct)
        self.planner = Planner(self.layout, self.tier)
        self._blocks: dict[int, list[int]] = {}
        self._asked = ""
        self._numbers = itertools.count(1)
        self._names = itertools.count(1)

    def lookup(self, numbers: Sequence[int]) -> list[bool]:
        self.planner.finished(self._asked)  # its hint has held until here, also for a load
        self._asked = f"look {next(self._numbers)}"
        found = self.planner.match(request(self._asked, numbers), 0) // TOKENS
        return [i < found for i in range(len(numbers))]

    def _hold(self, rows: Rows) -> tuple[int, list[list[int]]]:
        job = next(self._numbers)
        blocks = [next(self._names) for _ in rows]
        self.rows.update(zip(blocks, rows, strict=True))
        self._blocks[job] = blocks
        return job, [[block] for block in blocks]

    def store(self, numbers: Sequence[int], rows: Rows) -> int:
        job, blocks = self._hold(rows)
        self.mover.save([Save(str(job), hashes(numbers), blocks, None, [])])
        return job

    def load(self, numbers: Sequence[int], rows: Rows) -> int:
        job, blocks = self._hold(rows)
        self.mover.load([Load(str(job), hashes(numbers), [list(row) for row in blocks])])
        return job

    def told(self) -> list[Told]:
        self.mover.turn()
        return self._told(self.mover.told())

    def close(self) -> list[Told]:
        return self._told(self.mover.close())

    def _told(self, ended: Sequence[Any]) -> list[Told]:
        for one in ended:
            for block in self._blocks.pop(int(one.request)):
                del self.rows[block]
        return [Told(int(one.request), one.ok) for one in ended]


def open_direct(options: TierOptions, identity: Identity, row_bytes: int) -> DirectDriver:
    """Without hints: a drive that fails one read may fail that of the hint, and the load that comes
    a moment later reads again and is right, which the suite does not expect. With hints: see
    test_direct.py."""
    return DirectDriver(options.replace(hints=False), identity, row_bytes)
