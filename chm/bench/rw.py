# SPDX-License-Identifier: Apache-2.0
"""`rw`: what reads keep while the write side is saturated, and what is left for the writes.

Four phases of equal length on one device: writes alone, reads alone, both; and, for contrast,
both again on a device whose scheduler is first come, first served. It shows something only where
reads and writes share a resource: the simulated medium, a paced one (--pace-rate), or a drive
that has interference.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chm.bench.charts import Chart, Line
from chm.bench.config import BlockConfig
from chm.bench.drive import BLOCKED, Job, Steps, drive
from chm.bench.measure import Cost, Samples
from chm.bench.options import COUNT, SIZE, SWITCH, TIME, option
from chm.bench.outcome import Outcome, phase
from chm.bench.reader import Extent, Reader, ReadResult
from chm.bench.streams import Layout
from chm.bench.target import BenchError, Target, open_target
from chm.bench.ui import Progress
from chm.stats import Stats

GIB = 1 << 30
_SHARE = 4 << 20  # bytes put between two looks at the readers


@dataclass(frozen=True, kw_only=True)
class RwConfig(BlockConfig):
    """Reads beside a saturated write side, against each of them alone."""

    footprint: int = option(GIB, SIZE, "bytes that are read")
    write_footprint: int = option(GIB // 4, SIZE, "bytes that are overwritten, over and over")
    request_blocks: int = option(8, COUNT, "objects that one stream reads")
    duration: int = option(5_000_000_000, TIME, "of each phase, on the device's clock")
    contrast: bool = option(True, SWITCH, "also without read priority (first come, first served)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.duration or not self.request_blocks:
            raise ValueError("--duration and --request-blocks must be above 0")


@dataclass
class Phase:
    """Readers and a writer for a while."""

    name: str
    reads: bool
    writes: bool


_PHASES = (
    Phase("writes", False, True),
    Phase("reads", True, False),
    Phase("both", True, True),
)


class Pair:
    """The readers and the writer on one device."""

    def __init__(self, config: RwConfig, target: Target, tick: Progress) -> None:
        self.config = config
        self.target = target
        size = config.block_bytes()
        self.read_layout = Layout.of(config.footprint, size)
        self.write_layout = Layout.of(config.write_footprint, size)
        self.rng = np.random.default_rng(config.seed)
        self.versions = np.zeros(self.write_layout.count, np.int64)
        count = self.read_layout.count + self.write_layout.count
        tick.begin("writing", count)
        target.lay_out(count, size, tick.advance)

    def run(self, phase_: Phase, name: str) -> dict[str, Any]:
        """One phase; its row of the report."""
        samples = Samples()
        reader = Reader(self.target, self.config, samples, self.config.block_bytes())
        before, put = self.target.dev.stats(), self.target.payload_written
        refused = self.target.refusals
        cost = Cost()
        end = self.target.now() + self.config.duration
        jobs = self._jobs(phase_, reader, end)
        with self.target.stopwatch(cost):
            drive(self.target, jobs, self.config.concurrency * phase_.reads + phase_.writes)
        moved = self.target.dev.stats() - before
        self.target.flush()
        cost.nbytes = reader.delivered_bytes
        admitted = Cost(cost.elapsed_ns, 0, self.target.payload_written - put)
        written = Cost(cost.elapsed_ns, 0, moved.write_bytes)
        return (
            {"label": name}
            | phase("read", cost)
            | {
                "admitted_bytes_per_s": admitted.rate,
                "medium_write_bytes_per_s": written.rate,
                "refusals": self.target.refusals - refused,
            }
            | _latencies(samples, moved)
        )

    def _jobs(self, phase_: Phase, reader: Reader, end: int) -> Iterator[Job]:
        if phase_.writes:
            yield Job(-1, None, lambda _: self._write_until(end))
        # One order, over and over: no object is asked for again while it may still be staged.
        extents = self.read_layout.extents("random", self.rng)
        per = self.config.request_blocks
        starts = itertools.cycle(range(0, len(extents), per))
        for number, at in enumerate(starts if phase_.reads else ()):
            if self.target.now() >= end:
                return
            yield self._read_job(reader, number, extents[at : at + per])

    def _read_job(self, reader: Reader, number: int, extents: Sequence[Extent]) -> Job:
        times = reader.samples.series("request_read")

        def start(_: int | None) -> Steps:
            began, result = self.target.now(), ReadResult()
            yield from reader.read(extents, result)
            if result.failed:
                raise BenchError("a read failed: see the counters of the device")
            times.add(began, self.target.now())

        return Job(number, None, start)

    def _write_until(self, end: int) -> Steps:
        """Overwrite the write region round and round, as fast as the device admits."""
        size, first = self.write_layout.size, self.read_layout.count
        done = 0
        for number in itertools.cycle(range(self.write_layout.count)):
            if self.target.now() >= end:
                return
            self.versions[number] += 1
            obj, version = first + number, int(self.versions[number])
            for _ in self.target.put(obj * size, size, obj, version):
                yield BLOCKED
                if self.target.now() >= end:
                    return
            done += size
            if done >= _SHARE:
                done = 0
                yield None


def _latencies(samples: Samples, moved: Stats) -> dict[str, Any]:
    """What a read saw: the request, one read I/O, and the flush units in its way."""
    out: dict[str, Any] = {}
    for name, series in samples.items():
        if name == "request_read":
            out["request_read"] = series.to_dict()["service_time"]
    for name in ("stage_ns", "demand_ns", "read_io_ns", "flush_at_read"):
        histogram = getattr(moved, name)
        if histogram.count:
            out[name] = {k: v for k, v in histogram.to_dict().items() if k != "buckets"}
    return out


def run(config: RwConfig, tick: Progress) -> Outcome:
    """The experiment."""
    out = Outcome()
    size = config.block_bytes()
    capacity = config.footprint // size * size + config.write_footprint // size * size
    with open_target(config, capacity) as target:
        pair = Pair(config, target, tick)
        tick.begin("phases", len(_PHASES))
        for p in _PHASES:
            out.rows.append(pair.run(p, p.name))
            tick.advance()
        out.close(target, target.dev.stats())
    if config.contrast:
        _contrast(config, capacity, out, tick)
    out.metrics = _kept(out.rows)
    out.workload = {"kind": "reads beside writes", "block_bytes": size}
    out.chart = _chart(out.rows)
    return out


def _contrast(config: RwConfig, capacity: int, out: Outcome, tick: Progress) -> None:
    """The last phase once more, on a fresh device that serves in order of arrival."""
    with open_target(dataclasses.replace(config, fcfs=True), capacity) as target:
        pair = Pair(config, target, tick)
        out.rows.append(pair.run(_PHASES[-1], "both, fcfs"))


def _kept(rows: list[dict[str, Any]]) -> dict[str, float | int | None]:
    """Shares of the figures alone that are left when both run."""
    alone_w, alone_r = rows[0]["medium_write_bytes_per_s"], rows[1]["read_bytes_per_s"]
    out: dict[str, float | int | None] = {}
    for prefix, row in zip(("", "fcfs_"), rows[2:], strict=False):
        read, write = row["read_bytes_per_s"], row["medium_write_bytes_per_s"]
        out[f"{prefix}read_kept_ratio"] = read / alone_r if read and alone_r else None
        out[f"{prefix}write_kept_ratio"] = write / alone_w if write and alone_w else None
    out["read_bytes_per_s"] = rows[2]["read_bytes_per_s"]
    out["medium_write_bytes_per_s"] = rows[2]["medium_write_bytes_per_s"]
    return out


def _chart(rows: list[dict[str, Any]]) -> Chart:
    lines = [
        Line("read", [r["read_bytes_per_s"] for r in rows]),
        Line("written by the drive", [r["medium_write_bytes_per_s"] for r in rows]),
    ]
    return Chart(
        "reads beside writes", "phase", "bytes_per_s", [str(r["label"]) for r in rows], lines
    )
