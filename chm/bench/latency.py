# SPDX-License-Identifier: Apache-2.0
"""`latency`: how long one object takes, in an open or a closed loop.

In an open loop operations are due at given times, whether or not earlier ones have ended; latency
counts from the time an operation was due, so that a stall shows in everything it delayed (F84). A
closed loop starts an operation when one has ended and can only tell service time; it is labelled
so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np

import chm
from chm.bench.config import BlockConfig
from chm.bench.measure import Cost, Series
from chm.bench.options import COUNT, FACTOR, SIZE, choice, option
from chm.bench.outcome import Outcome, phase
from chm.bench.reader import Extent, Reader
from chm.bench.streams import Layout
from chm.bench.target import Target, open_target
from chm.bench.ui import Progress

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LatencyConfig(BlockConfig):
    """Time of single operations: stage (issue, wait, release), demand (a read) or put (a write).

    --concurrency is the most that may be outstanding; demand and put run one at a time.
    """

    op: str = option("stage", choice("stage", "demand", "put"), "the operation")
    loop: str = option("open", choice("open", "closed"), "when the next operation is due")
    rate: Fraction = option(Fraction(100), FACTOR, "operations per second of an open loop")
    spacing: str = option("even", choice("even", "poisson"), "of an open loop")
    count: int = option(1000, COUNT, "operations")
    footprint: int = option(256 * MIB, SIZE, "bytes of all objects together")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.count:
            raise ValueError("--count must be at least 1")


def due_times(config: LatencyConfig, start: int) -> list[int | None]:
    """When each operation is due, ns on the device's clock; None in a closed loop."""
    if config.loop == "closed":
        return [None] * config.count
    gap = 1e9 / float(config.rate)
    if config.spacing == "even":
        return [start + round(i * gap) for i in range(config.count)]
    gaps = np.random.default_rng(config.seed).exponential(gap, config.count)
    return [start + int(t) for t in np.cumsum(gaps)]


class Staging:
    """Outstanding prefetches: issue, and give back those that have ended."""

    def __init__(self, target: Target, series: Series, reader: Reader) -> None:
        self._target = target
        self._series = series
        self._reader = reader
        self._open: dict[int, tuple[chm.Request, Extent, int | None, int]] = {}
        self.failed = 0

    def __len__(self) -> int:
        return len(self._open)

    def issue(self, extent: Extent, due: int | None) -> None:
        """Start one."""
        self._target.require_written(extent.addr, extent.length)
        began = self._target.now()
        request = self._target.dev.prefetch(extent.addr, extent.length)
        self._open[request.id] = (request, extent, due, began)

    def collect(self, until: int | None) -> None:
        """Take what has ended; if nothing has, let the device work, until `until` at most."""
        if not self._take():
            self._target.wait_any(until)
            self._take()

    def _take(self) -> int:
        ended = [self._open.pop(i) for i in self._target.dev.reap() if i in self._open]
        now = self._target.now()
        for request, extent, due, began in ended:
            try:
                request.wait(0)
                self._series.add(began, now, due)
                self._reader.deliver(request.array(), extent, 0)
            except chm.ChmError:
                self.failed += 1
            request.release()
        return len(ended)


def run(config: LatencyConfig, tick: Progress) -> Outcome:
    """The experiment."""
    size = config.block_bytes()
    layout = Layout.of(config.footprint, size)
    out = Outcome()
    with open_target(config, layout.nbytes) as target:
        tick.begin("writing", layout.count)
        target.lay_out(layout.count, size, tick.advance)
        tick.begin("operations", config.count)
        reader = Reader(target, config, out.samples, size)
        before = target.dev.stats()
        cost = Cost(nbytes=config.count * size)
        with target.stopwatch(cost):
            failed = _operate(config, reader, layout, out, tick)
        moved = target.dev.stats() - before
        out.check("no operation failed", not failed, f"{failed} of {config.count}")
        out.metrics = phase("moved", cost) | {
            "medium_read_bytes": moved.read_bytes,
            "verified_bytes": reader.checked.nbytes,
            "verify_s": reader.checked.elapsed_ns / 1e9,
        }
        out.workload = {"kind": f"{config.loop} loop of {config.op}", "block_bytes": size}
        target.flush()
        out.close(target, moved)
    return out


def _operate(
    config: LatencyConfig, reader: Reader, layout: Layout, out: Outcome, tick: Progress
) -> int:
    """Run all operations; returns how many failed."""
    target = reader.target
    series = out.samples.series(config.op, config.loop == "open")
    picks = np.random.default_rng(config.seed).integers(layout.count, size=config.count)
    extents = [Extent(int(i) * layout.size, layout.size, int(i)) for i in picks]
    todo = list(zip(extents, due_times(config, target.now()), strict=True))
    if config.op == "stage":
        staging = Staging(target, series, reader)
        _stage_all(config, staging, target, todo, tick)
        return staging.failed
    step = _demand(target, reader) if config.op == "demand" else _put(target)
    return _one_by_one(target, series, step, todo, tick)


Todo: TypeAlias = "list[tuple[Extent, int | None]]"


def _one_by_one(
    target: Target, series: Series, step: Callable[[Extent], None], todo: Todo, tick: Progress
) -> int:
    failed = 0
    for extent, due in todo:
        if due is not None:
            target.wait_until(due)
        began = target.now()
        try:
            step(extent)
            series.add(began, target.now(), due)
        except chm.ChmError:
            failed += 1
        tick.advance()
    return failed


def _stage_all(
    config: LatencyConfig, staging: Staging, target: Target, todo: Todo, tick: Progress
) -> None:
    for extent, due in todo:
        while len(staging) >= config.concurrency:
            staging.collect(None)
        while due is not None and target.now() < due:
            staging.collect(due)
        staging.issue(extent, due)
        tick.advance()
    while len(staging):
        staging.collect(None)


def _demand(target: Target, reader: Reader) -> Callable[[Extent], None]:
    buffer = target.buffer("demand read buffer", reader.block_bytes)

    def step(extent: Extent) -> None:
        target.require_written(extent.addr, extent.length)
        reader.deliver(target.dev.read(extent.addr, out=buffer), extent, 0)

    return step


def _put(target: Target) -> Callable[[Extent], None]:
    versions: dict[int, int] = {}

    def step(extent: Extent) -> None:
        version = versions[extent.obj] = versions.get(extent.obj, 0) + 1
        for _ in target.put(extent.addr, extent.length, extent.obj, version):
            target.push()

    return step
