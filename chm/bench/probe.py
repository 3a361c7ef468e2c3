# SPDX-License-Identifier: Apache-2.0
"""One point of a calibration: so many I/Os of one size, so many in flight, and the time they took.

A probe goes through the library, on a real medium and on a simulated one alike: what `calibrate`
measures on a drive, its fit works out by the very same calls on the simulator. Five kinds:

    read     every I/O is a staged object; the time from issuing all to having all
    write    all are in the write buffer; the time of the flush, with its barrier
    mixed    read and write side by side, each with its own depth
    demand   demand reads one after the other: what the host adds to each is in it
    barrier  one small write and a flush, again and again

No read is of an extent that was not written before, and no extent is read twice while the device is
open, so nothing is answered from the window.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import chm
from chm.batch import Batch
from chm.bench.payload import Payload
from chm.bench.target import BenchError

KIB, MIB = 1 << 10, 1 << 20
READ_KINDS = ("read", "demand")
KINDS = ("read", "write", "mixed", "demand", "barrier")
_SPARE = 16 * MIB  # of window and write buffer, beyond what a probe needs
_PATIENCE_S = 120.0
_NEVER_NS = 3600 * 10**9  # the write buffer is flushed when the probe says so


@dataclass(frozen=True)
class Point:
    """What to measure: `count` I/Os of `io_bytes`, `depth` in flight. Mixed: `count` of each."""

    kind: str
    io_bytes: int
    depth: int
    count: int

    def __str__(self) -> str:
        size = (
            f"{self.io_bytes // MIB}MiB" if self.io_bytes >= MIB else f"{self.io_bytes // KIB}KiB"
        )
        return f"{self.kind} {size} x{self.depth}"

    @property
    def nbytes(self) -> int:
        """Bytes that it moves."""
        return self.io_bytes * self.count * (2 if self.kind == "mixed" else 1)

    @property
    def region_bytes(self) -> int:
        """Bytes that a medium must have for it."""
        return self.nbytes


@dataclass(frozen=True)
class Place:
    """Where probes run: a device that exists, or one that is simulated. `size_bytes` are usable."""

    size_bytes: int
    paths: Sequence[str] = ()
    media: str = "sim"
    buffered: bool = False
    fresh: bool = False
    """Writes go to a file that is new for each probe, preallocated and never written, as the blocks
    of a new device are; else over what is there. The first write takes file systems longer."""
    sim: dict[str, Any] | None = None
    """Fields of SimOptions for media sim."""
    link: dict[str, Any] | None = None
    """Fields of Options that begin with ``link_``, likewise."""

    @property
    def simulated(self) -> bool:
        """Whether time is virtual."""
        return self.media == "sim"

    def open(self, point: Point) -> chm.Device:
        """The device as the point wants it: I/O size and depth are options of the firmware."""
        data = point.io_bytes * point.count
        staged = data + data // 8 if point.kind in ("read", "mixed") else 0
        put = data if point.kind in ("write", "mixed") else 0
        options: dict[str, Any] = {
            "dram_bytes": staged + put + 2 * _SPARE,
            "write_buffer_bytes": put + _SPARE,
            "read_unit": point.io_bytes,
            "read_depth": point.depth,
            "read_depth_pressed": point.depth,
            "flush_unit": point.io_bytes,
            "flush_depth": point.depth,
            "flush_depth_reads": point.depth,
            "flush_low_percent": 100,
            "flush_high_percent": 100,
            "flush_age_ns": _NEVER_NS,
            "flush_idle_ns": _NEVER_NS,
            "durability": "none",
        }
        if self.simulated:
            sim = {"no_contents": True, **(self.sim or {})}
            return chm.sim(self.size_bytes, **options, **(self.link or {}), prefault="no", sim=sim)
        options |= {"thread": True, "prefault": "now", "buffered": self.buffered}
        return chm.open(list(self.paths), media=self.media, **options)


def addresses(place: Place, point: Point, rng: np.random.Generator) -> list[int]:
    """Where the I/Os of a point go, none twice: reads in random order, writes in a row, as the
    device hands out space. Of mixed ones first the reads, which lie before the writes."""
    size = point.io_bytes
    slots = place.size_bytes // size
    if point.nbytes // size > slots:
        raise BenchError(f"{point} needs {point.nbytes} bytes: use a larger --size")
    reads = 0 if point.kind in ("write", "barrier") else point.count
    writes = 0 if point.kind in READ_KINDS else point.count
    first = int(rng.integers(slots - writes - reads + 1)) + reads
    chosen = rng.choice(first if writes else slots, reads, replace=False)
    return [int(i) * size for i in (*chosen, *range(first, first + writes))]


def measure(place: Place, point: Point, seed: int) -> int:
    """Run one probe; ns on the device's clock that it took. Raises ChmError, BenchError."""
    with contextlib.ExitStack() as stack:
        if place.fresh and point.kind not in READ_KINDS:
            place = stack.enter_context(_renewed(place, point))
        where = addresses(place, point, np.random.default_rng(seed))
        dev = stack.enter_context(place.open(point))
        gc.collect()
        return _RUN[point.kind](dev, point, where, seed)


@contextlib.contextmanager
def _renewed(place: Place, point: Point) -> Iterator[Place]:
    """A device beside that of `place`, of which only what a mixed probe reads was ever written."""
    path = f"{place.paths[0]}.fresh"
    size = -(-point.nbytes // MIB) * MIB
    new = dataclasses.replace(place, size_bytes=size, paths=(path,), fresh=False)
    try:
        chm.format([path], size, buffered=place.buffered)
        if point.kind == "mixed":
            with new.open(point) as dev:
                _commit(dev, [i * point.io_bytes for i in range(point.count)], point.io_bytes, 0)
                dev.flush(_PATIENCE_S)
        yield dataclasses.replace(new, size_bytes=point.nbytes)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _commit(dev: chm.Device, where: Sequence[int], size: int, seed: int) -> None:
    """Put incompressible bytes into the write buffer. Nothing goes to the drive yet."""
    payload = Payload(seed) if dev.info.contents else None
    for at in where:
        write = dev.write_begin(at, size)
        if payload:
            payload.fill(np.frombuffer(write.view, np.uint8), at, 0)
        write.commit()


def _check(batch: Batch, point: Point) -> None:
    bad = batch.status[batch.status != 0]
    if len(bad):
        raise BenchError(f"{point}: {len(bad)} reads failed: {os.strerror(-int(bad[0]))}")


def _read(dev: chm.Device, point: Point, where: Sequence[int], seed: int) -> int:
    batch = dev.batch(point.count)
    batch.addr[:], batch.length[:] = where, point.io_bytes
    began = dev.now()
    batch.issue()
    batch.wait(_PATIENCE_S)
    took = dev.now() - began
    _check(batch, point)
    batch.release()
    return took


def _write(dev: chm.Device, point: Point, where: Sequence[int], seed: int) -> int:
    _commit(dev, where, point.io_bytes, seed)
    began = dev.now()
    dev.flush(_PATIENCE_S)
    return dev.now() - began


def _mixed(dev: chm.Device, point: Point, where: Sequence[int], seed: int) -> int:
    _commit(dev, where[point.count :], point.io_bytes, seed)
    batch = dev.batch(point.count)
    batch.addr[:], batch.length[:] = where[: point.count], point.io_bytes
    began = dev.now()
    batch.issue()
    dev.flush(_PATIENCE_S)
    batch.wait(_PATIENCE_S)
    took = dev.now() - began
    _check(batch, point)
    batch.release()
    return took


def _demand(dev: chm.Device, point: Point, where: Sequence[int], seed: int) -> int:
    out = chm.aligned_empty(point.io_bytes)
    out[:] = 0
    dev.register(out)
    began = dev.now()
    for at in where:
        dev.read(at, out=out)
    took = dev.now() - began
    dev.unregister(out)
    return took


def _barrier(dev: chm.Device, point: Point, where: Sequence[int], seed: int) -> int:
    took = 0
    for at in where:
        _commit(dev, [at], point.io_bytes, seed)
        began = dev.now()
        dev.flush(_PATIENCE_S)
        took += dev.now() - began
    return took


_RUN = {"read": _read, "write": _write, "mixed": _mixed, "demand": _demand, "barrier": _barrier}
