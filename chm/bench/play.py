# SPDX-License-Identifier: Apache-2.0
"""Playing a workload against a device, round by round, and what each round took.

Three ways of time: *grouped* rounds read first and write then, each with a time of its own;
*together*, requests read and write side by side and share the round's time; in an *open loop*
requests start when a trace says so, and rounds are only rows of the report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chm.bench.drive import Job, Steps, drive
from chm.bench.index import BlockIndex
from chm.bench.measure import Cost, Samples
from chm.bench.outcome import phase
from chm.bench.reader import Reader, ReadResult
from chm.bench.room import Room
from chm.bench.serve import Cache, Tally
from chm.bench.stage import Stager
from chm.bench.target import BenchError, Target
from chm.bench.ui import Progress
from chm.bench.workload import Request, Round, Workload
from chm.policies import Prefetch

if TYPE_CHECKING:
    from chm.bench.turns import TurnsConfig

_RECHECK = 64  # blocks read back after the run by --verify sample


@dataclass
class Row:
    """One round: what it did and what it took. A CPU time of 0 was not measured."""

    label: str
    tally: Tally = field(default_factory=Tally)
    read: Cost = field(default_factory=Cost)
    put: Cost = field(default_factory=Cost)
    flush_ns: int = 0
    began: int = 0

    def to_dict(self) -> dict[str, Any]:
        """One line of the report."""
        return (
            {"label": self.label}
            | phase("read", self.read)
            | phase("put", self.put)
            | {"flush_s": self.flush_ns / 1e9, "durable_bytes_per_s": self.durable.rate}
            | self.tally.to_dict()
        )

    @property
    def durable(self) -> Cost:
        """Puts and the flush behind them."""
        return Cost(self.put.elapsed_ns + self.flush_ns, self.put.cpu_ns, self.put.nbytes)


class Play:
    """One run: plays the workload round by round and keeps a row for each."""

    def __init__(
        self, config: TurnsConfig, workload: Workload, target: Target, blocks_max: int
    ) -> None:
        self.config = config
        self.workload = workload
        self.target = target
        self.samples = Samples()
        chosen = config.selection()
        self._chosen = chosen
        size, info = workload.block_bytes, target.info
        self._windowed = info.policy == "window"
        staging = config.prefetch and self._windowed
        prefetch = chosen.prefetch() if staging else None
        reading = config if staging else dataclasses.replace(config, prefetch=False, policy="")
        self.reader = Reader(target, reading, self.samples, size, prefetch)
        placement = chosen.placement()
        slots = min(info.capacity_bytes // size, blocks_max)
        room = Room(slots, size, placement, info.members, info.stripe_bytes)
        self.index = BlockIndex(room, config.on_overflow == "evict", chosen.eviction())
        self.stager = self._make_stager(prefetch) if prefetch else None
        self.cache = Cache(
            target,
            self.index,
            self.reader,
            self.samples,
            config.on_full == "skip",
            chosen.admission(),
            self.stager,
        )
        self.rows: list[Row] = []
        self.total = Cost()

    def _make_stager(self, prefetch: Prefetch) -> Stager | None:
        """None for policies that do nothing at the end of a turn. Streams keep two pieces each."""
        if type(prefetch).turn_ended is Prefetch.turn_ended:
            return None
        size, window = self.workload.block_bytes, self.target.info.window_bytes
        room = max(0, window * 9 // 10 - 2 * self.config.concurrency * size)
        if room < size:
            self.target.notes.append(
                f"policy {prefetch}: the window has no room for a block beside the streams, so "
                "nothing is staged early: use a larger --dram or a smaller --concurrency"
            )
        c = self.config
        after_flush = c.flush == "turn" and c.arrivals == "closed"
        return Stager(self.target, self.index, prefetch, size, room, c.think, after_flush)

    def policies(self) -> dict[str, str]:
        """Who decided what in this run."""
        info = self.target.info
        own = self._chosen.to_dict()
        if self.reader.prefetch is None:
            own["prefetch"] = "none"
        return {"device cache": info.policy, "flush": info.flush_policy, **own}

    def node_bytes(self) -> list[int]:
        """Bytes of blocks on each node at the end; of one node where every block is striped."""
        return [node.used_bytes for node in self.index.room.nodes]

    @property
    def shares_time(self) -> bool:
        """Whether reads and writes of a row run side by side, so that each has the whole time."""
        return bool(self.config.trace) or self.config.order == "interleaved"

    def run(self, tick: Progress) -> None:
        """All rounds, in order, then a last flush, which counts for the last row."""
        tick.begin("requests", sum(len(r.requests) for r in self.workload.rounds))
        with self.target.stopwatch(self.total):
            if self.config.arrivals == "closed":
                self._closed_loop(tick)
            else:
                self._open_loop(tick)
            if self.stager:
                self.stager.close()
            self.rows[-1].flush_ns += self.target.flush()
        self.total.nbytes = sum(row.read.nbytes + row.put.nbytes for row in self.rows)

    def _closed_loop(self, tick: Progress) -> None:
        for r in self.workload.rounds:
            row = Row(r.label)
            self.rows.append(row)
            if self.shares_time:
                self._together(r, row, tick)
            else:
                self._grouped(r, row, tick)
            self._count(row)
            if self.config.flush == "turn":
                row.flush_ns = self.target.flush()
                if self.stager:
                    self.stager.flushed()
            if self.config.think:
                self.target.wait_until(self.target.now() + self.config.think)

    def _grouped(self, r: Round, row: Row, tick: Progress) -> None:
        with self.target.stopwatch(row.read):
            self._drive(self._job(q, row, self.cache.read) for q in r.requests)
        with self.target.stopwatch(row.put):
            self._drive(self._job(q, row, self._put, tick) for q in r.requests)

    def _together(self, r: Round, row: Row, tick: Progress) -> None:
        """Reads and writes of a round share its time, and its CPU time cannot be told apart."""
        both = Cost()
        with self.target.stopwatch(both):
            self._drive(self._job(q, row, self.cache.serve, tick) for q in r.requests)
        row.read, row.put = Cost(both.elapsed_ns), Cost(both.elapsed_ns)

    def _open_loop(self, tick: Progress) -> None:
        """Requests start when the trace says and run on across rounds: rows may overlap in time."""
        self.rows = [Row(r.label) for r in self.workload.rounds]
        epoch = self.target.now()

        def jobs() -> Iterator[Job]:
            for r, row in zip(self.workload.rounds, self.rows, strict=True):
                for q in r.requests:
                    due = epoch + int((q.arrival_s or 0.0) * 1e9)
                    yield self._job(q, row, self._spanning, tick, due, row)

        self._drive(jobs())
        for row in self.rows:
            self._count(row)

    def _spanning(self, q: Request, tally: Tally, intended: int | None, row: Row) -> Steps:
        """Serve, and stretch the row's time from its first start to its last end."""
        row.began = row.began or self.target.now()
        yield from self.cache.serve(q, tally, intended)
        row.read.elapsed_ns = row.put.elapsed_ns = self.target.now() - row.began

    def _count(self, row: Row) -> None:
        row.read.nbytes = row.tally.delivered * self.workload.block_bytes
        row.put.nbytes = row.tally.admitted * self.workload.block_bytes

    def _put(self, q: Request, tally: Tally, intended: int | None) -> Steps:
        return self.cache.put(q, tally)

    def _job(
        self,
        q: Request,
        row: Row,
        serve: Callable[..., Steps],
        tick: Progress | None = None,
        due: int | None = None,
        *more: Any,
    ) -> Job:
        def start(intended: int | None) -> Steps:
            yield from serve(q, row.tally, intended, *more)
            if tick:
                tick.advance()

        return Job(q.session, due, start)

    def _drive(self, jobs: Iterable[Job]) -> None:
        drive(self.target, jobs, self.config.concurrency)

    def recheck(self) -> tuple[int, int]:
        """Read resident blocks back and check every byte of them, untimed. Returns (blocks, bytes).

        All of them, or with --verify sample a few, chosen by the seed.
        """
        blocks = self.index.resident()
        if self.config.verify == "sample" and len(blocks) > _RECHECK:
            rng = np.random.default_rng(self.config.seed)
            blocks = [blocks[i] for i in sorted(rng.choice(len(blocks), _RECHECK, replace=False))]
        config = dataclasses.replace(
            self.config, verify="all", deadline=0, prefetch=self._windowed, policy=""
        )
        reader = Reader(self.target, config, Samples(), self.workload.block_bytes)
        if not reader.verifies:
            return 0, 0
        result = ReadResult()
        read = reader.read(self.cache.extents(blocks), result)
        drive(self.target, [Job(0, None, lambda _: read)], 1)
        if result.delivered != len(blocks):
            raise BenchError(f"only {result.delivered} of {len(blocks)} blocks could be read back")
        return len(blocks), reader.checked.nbytes
