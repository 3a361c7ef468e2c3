# SPDX-License-Identifier: Apache-2.0
"""`chm-bench calibrate`: measure a file system or a drive, and write a preset that behaves like it.

    prepare -> sweep: every point once a round, in a new order each round -> fit -> preset

Drives drift. The points of a round are shuffled and rounds go on until the time is up, so that
slow minutes fall on all points alike; medians are fitted, and the spread of every point goes to the
file.

Nothing is read that was not written: a file of our own is filled first, and a device of somebody
else, which is only read, is refused where it has holes or pages of zeros.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import chm
from chm import units
from chm.bench import host
from chm.bench.fit import NO_LIMIT, Error, Model, Observation, errors, fit, typical_error
from chm.bench.options import RATE, TIME
from chm.bench.payload import PAGE_BYTES, Payload
from chm.bench.probe import KIB, MIB, READ_KINDS, Place, Point, measure
from chm.bench.target import BenchError, NeverWritten, scratch_directory
from chm.bench.ui import Progress
from chm.preset import Number, Preset

DATA_OFFSET = MIB  # docs/spec.md: data of a member begins here
SIZE_MIN = 32 * MIB
_POINT_MAX = 128 * MIB  # bytes that a point moves in one direction
_SAMPLE = 64  # pages looked at before somebody else's device is measured
_SPARE = 64 * MIB  # left free on the file system
_PIECE = 4 * MIB
_FILL_BYTES, _FILL_NS = 64 * MIB, 200_000_000  # how fast the host makes bytes: buffer, time
_FILL_MATTERS = 4  # the host's own rate is part of the preset below so many times the drive's

# (kind, I/O size, depths): what a sweep measures, as far as it fits into the file. Dense around
# 1 MiB, the size in which the device itself reads and writes.
_SWEEP: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    ("read", 4 * KIB, (1, 8, 32, 128)),
    ("read", 64 * KIB, (1, 4, 16, 64)),
    ("read", 256 * KIB, (1, 4, 16)),
    ("read", MIB, (1, 2, 4, 8, 16, 32, 64, 128)),
    ("read", 4 * MIB, (1, 2, 4, 16)),
    ("read", 16 * MIB, (1, 2, 4)),
    ("write", 4 * KIB, (1, 8, 32)),
    ("write", 64 * KIB, (1, 4, 16)),
    ("write", MIB, (1, 2, 4, 8, 16, 64)),
    ("write", 4 * MIB, (1, 4)),
    ("write", 16 * MIB, (1, 2)),
    ("mixed", MIB, (4, 16, 64)),
    ("mixed", 4 * MIB, (4, 16)),
    ("demand", 64 * KIB, (1,)),
    ("demand", MIB, (1,)),
    ("demand", 16 * MIB, (1,)),
    ("barrier", 4 * KIB, (1,)),
)
_COUNT_MIN = {"barrier": 8, "demand": 16}


def sweep_points(size_bytes: int, writable: bool) -> list[Point]:
    """The points that fit into so many bytes, a quarter of them in each direction."""
    most = min(_POINT_MAX, size_bytes // 4)
    out = []
    for kind, io, depths in _SWEEP:
        for depth in depths if writable or kind in READ_KINDS else ():
            room = most // io // (2 if kind == "mixed" else 1)
            count = min(max(_COUNT_MIN.get(kind, 32), 4 * depth), room)
            if kind in _COUNT_MIN:
                count = min(count, _COUNT_MIN[kind])
            if count >= depth and count > 0:
                out.append(Point(kind, io, depth, count))
    return out


# ------------------------------------------------------------------------------------ the place


@dataclass(frozen=True)
class Prepared:
    """Where probes run, and whether they may write."""

    place: Place
    writable: bool
    path: Path


@contextlib.contextmanager
def prepare(
    path: Path | None,
    size: int,
    media: str = "auto",
    overwrite: bool = False,
    buffered: bool = False,
    writes: str = "auto",
    tick: Progress | None = None,
) -> Iterator[Prepared]:
    """A device of about `size` bytes on `path`, written from front to back.

    A directory, or None: a temporary file there, removed at the end, also after an error. A file
    or drive: with `overwrite` it becomes a chm device, which it stays; else it must be one, and is
    only read. `writes`: to a new file for each probe ("fresh"), or over what is there ("over");
    "auto": fresh in a directory. Raises BenchError, ChmError.
    """
    tick = tick or Progress()
    fresh = writes == "fresh" or (writes == "auto" and (path is None or path.is_dir()))
    if fresh and not (path is None or path.is_dir()):
        raise BenchError("--writes fresh makes files of its own: name a directory")
    if size < SIZE_MIN:
        raise BenchError(f"--size: at least {units.format_size(SIZE_MIN)}")
    with contextlib.ExitStack() as stack:
        if path is None or path.is_dir():
            where = path or scratch_directory()
            _check_room(where, size + 2 * _POINT_MAX)
            made = tempfile.mkdtemp(prefix="chm-calibrate-", dir=where)
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            path, overwrite = Path(made) / "device.chm", True
        elif not path.exists():
            raise BenchError(f"{path} does not exist: name a directory, a file or a drive")
        if overwrite:
            chm.format([str(path)], size // MIB * MIB, force=True, buffered=buffered)
            place = Place(size // MIB * MIB, (str(path),), media, buffered)
            _fill(place, tick)
            place = dataclasses.replace(place, fresh=fresh)
        else:
            place = _given(path, size, media, buffered)
        yield Prepared(place, overwrite, path)


def _check_room(where: Path, size: int) -> None:
    free = host.file_system(where).free_bytes
    if size + _SPARE > free:
        raise BenchError(
            f"{where} has {units.format_size(free)} free and this needs "
            f"{units.format_size(size + _SPARE)}: use another directory or a smaller --size"
        )


def _fill(place: Place, tick: Progress) -> None:
    """Write all of a device with bytes that no drive can compress."""
    payload = Payload(1)
    tick.begin("writing", place.size_bytes // MIB)
    options = {"media": place.media, "buffered": place.buffered, "thread": True}
    with chm.open(list(place.paths), dram_bytes="64MiB", **options) as dev:
        for at in range(0, place.size_bytes, _PIECE):
            n = min(_PIECE, place.size_bytes - at)
            while True:
                try:
                    write = dev.write_begin(at, n)
                    break
                except chm.errors.WouldBlock:
                    time.sleep(0.001)
            payload.fill(np.frombuffer(write.view, np.uint8), 0, 0, at)
            write.commit()
            tick.advance(n // MIB)
        dev.flush(120.0)


def _given(path: Path, size: int, media: str, buffered: bool) -> Place:
    """A chm device that is there already, only read. Refuses one that was not written."""
    try:
        with chm.open([str(path)], media=media, buffered=buffered, dram_bytes="64MiB") as dev:
            size = min(size, dev.info.capacity_bytes) // MIB * MIB
            size = min(size, _written_bytes(path))
            place = Place(size, (str(path),), media, buffered)
            if size < SIZE_MIN:
                raise NeverWritten(
                    f"{path}: only its first {units.format_size(size)} were ever written, and "
                    f"{units.format_size(SIZE_MIN)} are needed: reading what was not written "
                    "measures nothing. Name a directory, or --overwrite"
                )
            _refuse_zeros(dev, place)
            return place
    except chm.ChmError as e:
        raise BenchError(
            f"{e}; name a directory, or say --overwrite if what is in {path} may be lost"
        ) from e


def _written_bytes(path: Path) -> int:
    """Bytes of data before the first hole; what was only preallocated counts as one."""
    if not path.is_file():
        return 1 << 62  # a drive does not tell; its pages are looked at
    with path.open("rb") as f:
        try:
            hole = os.lseek(f.fileno(), DATA_OFFSET, os.SEEK_HOLE)
        except OSError:
            return 0  # nothing behind the header
    return max(0, hole - DATA_OFFSET) // MIB * MIB


def _refuse_zeros(dev: chm.Device, place: Place) -> None:
    page = chm.aligned_empty(PAGE_BYTES)
    for at in np.linspace(0, place.size_bytes - PAGE_BYTES, _SAMPLE, dtype=np.int64):
        if not dev.read(int(at) // PAGE_BYTES * PAGE_BYTES, out=page).any():
            raise NeverWritten(
                f"{place.paths[0]} reads as zeros at {int(at):#x}: it seems never to have been "
                "written there, and such reads measure nothing. Name a directory, or --overwrite"
            )


# ------------------------------------------------------------------------------------ the sweep


@dataclass(frozen=True)
class Calibration:
    """What was measured and what was made of it."""

    seen: Sequence[Observation]
    model: Model
    found: Sequence[Error]
    fill_rate: float  # at which the host makes bytes, per second
    rounds: float
    seconds: float
    writable: bool
    fresh: bool
    facts: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "points": [e.to_dict() for e in self.found],
            "typical_error_ratio": typical_error(self.found),
            "host_fill_bytes_per_s": self.fill_rate,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "writes_measured": self.writable,
            "writes_are_fresh": self.fresh,
            "host": dict(self.facts),
        }


def sweep(
    place: Place, points: Sequence[Point], seconds: float, seed: int, tick: Progress
) -> list[Observation]:
    """Measure all points in rounds until the time is up; each at least once."""
    rng = np.random.default_rng(seed)
    times: dict[Point, list[int]] = {p: [] for p in points}
    end = time.monotonic() + seconds
    tick.begin("measuring", len(points))
    while True:
        for i in rng.permutation(len(points)):
            p = points[int(i)]
            if times[p] and time.monotonic() > end:
                return [Observation(p, tuple(t)) for p, t in times.items()]
            times[p].append(measure(place, p, int(rng.integers(1 << 31))))
            tick.advance()
        if place.simulated:
            return [Observation(p, tuple(t)) for p, t in times.items()]
        tick.begin("measuring", len(points))


def fill_rate() -> float:
    """Bytes/s at which this host makes the bytes it writes, as the benchmark does.

    Over a fraction of a second and more memory than a processor's cache holds: who shares the
    processor, and what memory takes, is part of it.
    """
    payload, out = Payload(1), np.zeros(_FILL_BYTES, np.uint8)
    done, began = 0, time.perf_counter_ns()
    while (took := time.perf_counter_ns() - began) < _FILL_NS:
        for at in range(0, _FILL_BYTES, _PIECE):
            payload.fill(out[at : at + _PIECE], done)
        done += _FILL_BYTES
    return done * 1e9 / took


def calibrate(ready: Prepared, seconds: float, seed: int, tick: Progress) -> Calibration:
    """Sweep and fit."""
    began = time.monotonic()
    points = sweep_points(ready.place.size_bytes, ready.writable)
    fills = [fill_rate()]
    seen = sweep(ready.place, points, seconds, seed, tick)
    fills.append(fill_rate())
    model = fit(seen)
    return Calibration(
        seen,
        model,
        errors(model, seen, ready.place.size_bytes),
        statistics.mean(fills),
        sum(len(o.samples) for o in seen) / len(seen),
        time.monotonic() - began,
        ready.writable,
        ready.place.fresh,
        facts_of(ready.path),
    )


def facts_of(path: Path) -> dict[str, Any]:
    """What a figure is meaningless without, and neither paths nor names of this machine."""
    known = host.facts(path)
    disk = known["file_system"]
    return {
        **{k: known[k] for k in ("cpu", "cpus_allowed", "memory_bytes", "kernel", "container")},
        "file_system": disk["type"],
        "drive": disk["drive"],
        "rotational": disk["rotational"],
        "load_average": round(os.getloadavg()[0], 2),
    }


# ------------------------------------------------------------------------------------ the preset


def preset_of(c: Calibration, name: str) -> Preset:
    """The preset: every number with how it was measured."""
    numbers: dict[str, Number] = {}
    for field, value in c.model.sim().items():
        numbers[field] = _number(field, value, _source(c, field))
    for field, (value, source) in _link(c).items():
        numbers[field] = _number(field, value, source)
    f = c.facts
    what = f["drive"] or "drive of unknown model"
    sources = (
        f"measured by chm-bench calibrate {chm.__version__}, {c.rounds:.1f} samples a point, "
        f"{c.seconds:.0f} s",
        f"{f['cpu']}, {f['cpus_allowed']} CPUs, Linux {f['kernel']}, {f['file_system']}, {what}, "
        f"load {f['load_average']}",
        f"points are fitted within {100 * typical_error(c.found):.0f} % (median)",
    )
    only = "; writes go to new blocks" if c.fresh else "; writes go over old ones"
    if not c.writable:
        only = "; writes were not measured and are the simulator's defaults"
    return Preset(name, f"Measured: {f['file_system']} on {what}{only}", numbers, sources)


def _number(field: str, value: Any, source: str) -> Number:
    """A value with four digits, which is more than was measured."""
    if isinstance(value, bool):
        return Number(value, value, source, "M")
    digits = max(0, int(math.log10(max(1, value))) - 3)
    value = round(value, -digits)
    kind = RATE if field.endswith("rate") else TIME
    return Number(value, kind.show(value), source, "M")


@dataclass(frozen=True)
class _Seen:
    """The points that say most about a parameter."""

    where: str
    kind: str
    deep: bool | None = None
    small: bool | None = None

    def holds(self, p: Point) -> bool:
        """Whether a point is one of them."""
        deep = self.deep is None or self.deep == (p.depth > 1)
        return p.kind == self.kind and deep and self.small in (None, p.io_bytes < MIB)


_SEEN_IN = {
    "read_rate": _Seen("reads at depth", "read", deep=True, small=False),
    "read_latency_ns": _Seen("reads one at a time", "read", deep=False),
    "write_rate": _Seen("writes at depth", "write", deep=True, small=False),
    "write_latency_ns": _Seen("writes one at a time", "write", deep=False),
    "software_ns": _Seen("small reads at depth", "read", deep=True, small=True),
    "duplex": _Seen("reads beside writes", "mixed"),
    "link_latency_ns": _Seen("reads that were waited for one by one", "demand"),
}
_BARRIERS = _Seen("barriers behind a small write", "barrier")


def _source(c: Calibration, field: str) -> str:
    seen = _SEEN_IN.get(field, _BARRIERS)
    points = [e for e in c.found if seen.holds(e.seen.point)]
    if not points:
        return "fitted to the sweep as a whole"
    samples = sum(len(e.seen.samples) for e in points)
    spread = statistics.median(e.seen.spread for e in points)
    worst = max(abs(e.ratio - 1) for e in points)
    return (
        f"fitted; seen in {seen.where}: {len(points)} points, {samples} samples, half of them "
        f"within {100 * spread:.0f} %; fitted within {100 * worst:.0f} %"
    )


def _link(c: Calibration) -> dict[str, tuple[int, str]]:
    """The host as a link: what it adds to a read, and the rate at which it makes bytes.

    A link's latency counts for staged objects too, where a real host hides it behind the drive. So
    it is left out where it would throttle a stream of 1 MiB objects.
    """
    out: dict[str, tuple[int, str]] = {}
    slow = c.model.write_rate and c.fill_rate < _FILL_MATTERS * c.model.write_rate
    latency = c.model.link().get("link_latency_ns", 0)
    if latency * (c.model.read_rate or 0) / 1e9 > MIB / 2:
        latency = 0
    if not slow and not latency:
        return out
    out["link_rate"] = (NO_LIMIT, "no limit: the host looks at bytes where they lie")
    if slow:
        out["link_write_rate"] = (round(c.fill_rate), "how fast this host makes what it writes")
    if latency:
        out["link_latency_ns"] = (latency, _source(c, "link_latency_ns"))
    return out


def preset_text(c: Calibration, name: str) -> str:
    """The preset as a file, with the sweep in front as a comment."""
    lines = [
        "# Measured by chm-bench calibrate. Times of whole probes: half of the samples lie within",
        "# the spread, as a share of the median; sim is what the simulator needs with the numbers",
        "# below, over the median.",
        "#",
        f"# {'point':<16} {'count':>5} {'median ms':>10} {'GB/s':>7} {'samples':>7} {'spread':>7} "
        f"{'sim':>5}",
    ]
    for e in c.found:
        p, o = e.seen.point, e.seen
        lines.append(
            f"# {p!s:<16} {p.count:>5} {o.median / 1e6:>10.3f} {p.nbytes / o.median:>7.3f} "
            f"{len(o.samples):>7} {o.spread:>7.2f} {e.ratio:>5.2f}"
        )
    facts = json.dumps(dict(c.facts), ensure_ascii=False)
    return "\n".join([*lines, f"# host: {facts}", "", preset_of(c, name).to_toml()])
