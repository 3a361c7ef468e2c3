# SPDX-License-Identifier: Apache-2.0
"""`read`: how fast objects stream from the drive through the window.

The objects are written first and made durable, so every timed read goes to the drive; the result
says how many bytes the medium moved, so that this can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chm import units
from chm.bench.charts import Chart, Line
from chm.bench.config import BlockConfig
from chm.bench.drive import Job, Steps, drive
from chm.bench.measure import Cost
from chm.bench.options import COUNT, SIZE, choice, option
from chm.bench.outcome import Outcome, phase
from chm.bench.reader import Extent, Reader, ReadResult
from chm.bench.target import BenchError, open_target
from chm.bench.ui import Progress

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class ReadConfig(BlockConfig):
    """Streaming reads of written objects: bandwidth, CPU per GiB, and the waits of the consumer."""

    footprint: int = option(2 * GIB, SIZE, "bytes of all objects together")
    request: int = option(
        0, SIZE, "bytes that one stream reads before the next begins; 0: its share of the footprint"
    )
    order: str = option("sequential", choice("sequential", "random"), "of the objects")
    rounds: int = option(3, COUNT, "how often everything is read")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rounds:
            raise ValueError("--rounds must be at least 1")


@dataclass(frozen=True)
class Layout:
    """Objects of one size, one behind the other."""

    count: int
    size: int

    @classmethod
    def of(cls, footprint: int, size: int) -> Layout:
        """As many objects as fit the footprint."""
        if footprint < size:
            raise BenchError(
                f"the footprint of {units.format_size(footprint)} holds no object of "
                f"{units.format_size(size)}"
            )
        return cls(footprint // size, size)

    @property
    def nbytes(self) -> int:
        """All of them."""
        return self.count * self.size

    def extents(self, order: str, rng: np.random.Generator) -> list[Extent]:
        """All objects, in the given order."""
        numbers = rng.permutation(self.count) if order == "random" else np.arange(self.count)
        return [Extent(int(i) * self.size, self.size, int(i)) for i in numbers]


def requests_of(extents: Sequence[Extent], config: ReadConfig, size: int) -> list[list[Extent]]:
    """Cut the objects into the lists that streams read one after the other."""
    per = config.request // size if config.request else -(-len(extents) // config.concurrency)
    per = max(per, 1)
    return [list(extents[i : i + per]) for i in range(0, len(extents), per)]


def read_jobs(
    reader: Reader, requests: Sequence[Sequence[Extent]], tick: Progress
) -> Iterator[Job]:
    """A job per request; a failed read ends the run."""
    times = reader.samples.series("request_read")
    now = reader.target.now

    def job(number: int, extents: Sequence[Extent]) -> Job:
        def start(_: int | None) -> Steps:
            began, result = now(), ReadResult()
            yield from reader.read(extents, result)
            if result.delivered < len(extents):
                raise BenchError(
                    f"a request ended {'late' if result.late else 'with an I/O error'} after "
                    f"{result.delivered} of {len(extents)} objects"
                )
            times.add(began, now())
            tick.advance(len(extents))

        return Job(number, None, start)

    return (job(i, extents) for i, extents in enumerate(requests))


def run(config: ReadConfig, tick: Progress) -> Outcome:
    """The experiment."""
    size = config.block_bytes()
    layout = Layout.of(config.footprint, size)
    out = Outcome()
    rng = np.random.default_rng(config.seed)
    with open_target(config, layout.nbytes) as target:
        tick.begin("writing", layout.count)
        fill = Cost(nbytes=layout.nbytes)
        with target.stopwatch(fill):
            target.lay_out(layout.count, size, tick.advance)
        reader = Reader(target, config, out.samples, size)
        before = target.dev.stats()
        costs = []
        tick.begin("reading", layout.count * config.rounds)
        for number in range(1, config.rounds + 1):
            extents = layout.extents(config.order, rng)
            cost = Cost(nbytes=layout.nbytes)
            with target.stopwatch(cost):
                requests = requests_of(extents, config, size)
                drive(target, read_jobs(reader, requests, tick), config.concurrency)
            costs.append(cost)
            out.rows.append({"label": str(number)} | phase("read", cost))
        moved = target.dev.stats() - before
        out.metrics = (
            phase("read", sum(costs, Cost()))
            | phase("fill", fill)
            | {
                "medium_read_bytes": moved.read_bytes,
                "from_write_buffer_bytes": moved.buffered_bytes,
                "footprint_over_dram_ratio": layout.nbytes / target.info.dram_bytes,
                "verified_bytes": reader.checked.nbytes,
                "verify_s": reader.checked.elapsed_ns / 1e9,
            }
        )
        out.workload = {"kind": "streaming reads", "objects": layout.count, "block_bytes": size}
        out.close(target, moved)
    out.chart = _chart(out.rows)
    return out


def _chart(rows: Sequence[dict[str, Any]]) -> Chart:
    line = Line("read", [r["read_bytes_per_s"] for r in rows])
    return Chart("streaming reads", "round", "bytes_per_s", [str(r["label"]) for r in rows], [line])
