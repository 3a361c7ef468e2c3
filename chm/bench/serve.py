# SPDX-License-Identifier: Apache-2.0
"""The cache that a workload is played against: look up, read what is there, put the rest.

Every look-up ends as a hit or a miss, every hit is delivered, late or failed, and every put is
admitted, skipped, a duplicate or failed. `Tally.unbalanced` recounts that (F35, F86).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import chm
from chm.bench.drive import BLOCKED, Steps, Wish
from chm.bench.index import Block, BlockIndex
from chm.bench.measure import Samples
from chm.bench.reader import Extent, Reader, ReadResult
from chm.bench.stage import Stager
from chm.bench.target import Target
from chm.bench.workload import Request
from chm.policies import Admission, Offer
from chm.policies.seam import ask, refuse


@dataclass
class Tally:
    """Counts of blocks.

    misses_new were never seen before; misses_lost were, but are not there (any more). A put is
    skipped_policy when the admission policy refused it, and skipped_chain when an earlier block of
    its request was not kept: it would be useless.
    """

    requests: int = 0
    lookups: int = 0
    hits: int = 0
    misses_new: int = 0
    misses_lost: int = 0
    delivered: int = 0
    late: int = 0
    read_failed: int = 0
    puts: int = 0
    admitted: int = 0
    duplicate: int = 0
    skipped_full: int = 0
    skipped_no_space: int = 0
    skipped_chain: int = 0
    skipped_policy: int = 0
    put_failed: int = 0
    refusals: int = 0
    evictions: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def skipped(self) -> int:
        """Puts not made, for any reason."""
        return self.skipped_full + self.skipped_no_space + self.skipped_chain + self.skipped_policy

    @property
    def hit_rate(self) -> float | None:
        """hits / look-ups."""
        return self.hits / self.lookups if self.lookups else None

    def unbalanced(self) -> list[str]:
        """The sums that do not close; empty when the accounts are right."""
        sums = {
            "lookups = hits + misses": self.lookups
            - (self.hits + self.misses_new + self.misses_lost),
            "hits = delivered + late + failed": self.hits
            - (self.delivered + self.late + self.read_failed),
            "puts = admitted + skipped + duplicate + failed": self.puts
            - (self.admitted + self.skipped + self.duplicate + self.put_failed),
        }
        return [name for name, rest in sums.items() if rest]

    def to_dict(self) -> dict[str, int | float | None]:
        """All counts, with the sums people look for."""
        return asdict(self) | {"skipped": self.skipped, "hit_rate": self.hit_rate}


class Cache:
    """Plays requests against a device. Each call says which tally it counts in."""

    def __init__(
        self,
        target: Target,
        index: BlockIndex,
        reader: Reader,
        samples: Samples,
        skip_when_full: bool,
        admission: Admission,
        stager: Stager | None = None,
    ) -> None:
        self.target = target
        self.index = index
        self._reader = reader
        self._samples = samples
        self._block_bytes = reader.block_bytes
        self._skip_when_full = skip_when_full
        self._admission = admission
        self._stager = stager

    def extents(self, blocks: Sequence[Block]) -> list[Extent]:
        """Where blocks lie and what they must hold."""
        size = self._block_bytes
        address = self.index.room.address
        return [Extent(address(b.slot), size, b.key, b.version) for b in blocks]

    def read(self, request: Request, tally: Tally, intended: int | None = None) -> Steps:
        """Look the request up and read its leading run."""
        blocks = self._look_up(request, tally)
        result = ReadResult()
        start = self.target.now()
        stager = self._stager
        staged = stager.take(request.session, blocks) if stager else []
        window = self._reader.window_for(request, blocks)
        try:
            yield from self._reader.read(self.extents(blocks), result, staged, window)
        finally:
            self.index.unpin(blocks)
            if stager:
                stager.give_back(staged)
        if blocks:
            series = self._samples.series("request_read", intended is not None)
            series.add(start, self.target.now(), intended)
        self._settle_reads(blocks, result, tally)

    def put(self, request: Request, tally: Tally) -> Steps:
        """Put every block of the request that is not there, in prefix order."""
        keys = request.keys
        held = self.index.lookup(keys)
        broken = False
        before = self.index.evictions
        new = keys[len(held) :]
        admitted = self._admitted(request, new) if new else 0
        try:
            for place, key in enumerate(new):
                tally.puts += 1
                if broken:
                    tally.skipped_chain += 1
                elif key in self.index:
                    tally.duplicate += 1
                elif place >= admitted:
                    tally.skipped_policy += 1
                    broken = True
                else:
                    broken = not (yield from self._put_one(request, key, held, tally))
        finally:
            self.index.settle(keys)
            self.index.unpin(held)
            tally.evictions += self.index.evictions - before
        if self._stager:
            self._stager.turn_ended(request.session, keys)

    def _admitted(self, request: Request, new: Sequence[int]) -> int:
        """How many of the new blocks the policy lets in."""
        policy = self._admission
        offer = Offer(request.session, new, len(request.keys), self._block_bytes, self.target.now())
        count = ask(policy, policy.admit, offer)
        if type(count) is not int or not 0 <= count <= len(new):
            raise refuse(policy, f"admitted {count!r} of {len(new)} blocks")
        return count

    def serve(self, request: Request, tally: Tally, intended: int | None = None) -> Steps:
        """Read, then put: one request as an engine would."""
        yield from self.read(request, tally, intended)
        yield from self.put(request, tally)

    def _look_up(self, request: Request, tally: Tally) -> list[Block]:
        keys = request.keys
        blocks = self.index.lookup(keys)
        lost = sum(self.index.known(key) for key in keys[len(blocks) :])
        tally.requests += 1
        tally.lookups += len(keys)
        tally.hits += len(blocks)
        tally.misses_lost += lost
        tally.misses_new += len(keys) - len(blocks) - lost
        return blocks

    def _settle_reads(self, blocks: Sequence[Block], result: ReadResult, tally: Tally) -> None:
        rest = len(blocks) - result.delivered
        tally.delivered += result.delivered
        if result.failed:
            tally.read_failed += rest
            self.index.drop(blocks[result.delivered])
        else:
            tally.late += rest

    def _put_one(
        self, request: Request, key: int, held: list[Block], tally: Tally
    ) -> Generator[Wish, Any, bool]:
        """Put one block; False when the request's chain ends here."""
        home = self.index.room.node_of(held[-1].slot) if held else None
        block = self.index.reserve(key, request.session, home)
        if block is None:
            tally.skipped_no_space += 1
            return False
        start = self.target.now()
        kept = False
        try:
            kept = yield from self._write(block, tally)
        except chm.errors.MediaError:
            tally.put_failed += 1
        finally:
            if not kept:
                self.index.drop(block)
        if kept:
            tally.admitted += 1
            self.index.commit(block)
            block.pins += 1
            held.append(block)
            self._samples.series("put").add(start, self.target.now())
        return kept

    def _write(self, block: Block, tally: Tally) -> Generator[Wish, Any, bool]:
        size, at = self._block_bytes, self.index.room.address(block.slot)
        for _ in self.target.put(at, size, block.key, block.version):
            tally.refusals += 1
            if self._skip_when_full:
                tally.skipped_full += 1
                return False
            yield BLOCKED
        yield None
        return True
