# SPDX-License-Identifier: Apache-2.0
"""The figures to reach: which number of which row, and what it should be at least or at most.

A row is a dict that a measuring program printed; "name" says which. Some figures compare two rows:
``derive`` makes rows for those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Rows = dict[str, Row]


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``low`` and ``high`` are the keys of the spread, if there is one."""

    what: str
    row: str
    key: str
    sense: str  # ">=" or "<="
    target: float
    unit: str = ""
    low: str = ""
    high: str = ""

    def met(self, value: float) -> bool:
        """Judged as printed: to three significant digits, as targets are given."""
        shown = float(f"{value:.3g}")
        return shown >= self.target if self.sense == ">=" else shown <= self.target


def ratio(what: str, row: str, target: float) -> Figure:
    """Rate against the raw reader or writer on the same blocks and buffers."""
    return Figure(what, row, "ratio", ">=", target, "x ref", "ratio_min", "ratio_max")


def cpu(what: str, row: str, target: float) -> Figure:
    """CPU of the whole process for what it moved."""
    return Figure(what, row, "cpu_s_per_gib", "<=", target, "CPU-s/GiB")


def pair(what: str, row: str, least: float, most: float) -> tuple[Figure, Figure]:
    """A rate and its cost."""
    return ratio(what, row, least), cpu(what, row, most)


def _streaming() -> Iterator[Figure]:
    ways = {"staged": "prefetch", "stream": "chm_stream", "stepped": "prefetch, stepped"}
    for way, words in ways.items():
        for streams in (1, 8):
            for size, least, most in (("16m", 0.98, 0.03), ("1m", 0.95, 0.05)):
                row = f"stream.{way}.{size}.s{streams}"
                yield from pair(f"{words}, {size}, {streams} stream(s)", row, least, most)
    for size, least, most in (("16m", 0.98, 0.03), ("1m", 0.95, 0.05)):
        yield from pair(f"into caller buffers, {size}", f"stream.direct.{size}.s1", least, most)
    for size in ("16m", "1m"):
        what = f"copied, {size}: above direct"
        yield Figure(what, f"stream.copied.{size}", "added", "<=", 0.12, "CPU-s/GiB")
    for size, most in (("16m", 0.06), ("1m", 0.09)):
        yield cpu(f"registration refused, {size}", f"stream.plain.{size}.s1", most)
    yield Figure("footprint 32x against 2x", "stream.footprint", "change", ">=", 0.95, "x")


def _writing() -> Iterator[Figure]:
    yield from pair("durable, in place, 16m", "writes.in-place.16m", 0.95, 0.04)
    yield from pair("durable, in place, 1m", "writes.in-place.1m", 0.90, 0.06)


def _priority() -> Iterator[Figure]:
    for medium, words in (("sim", "simulated drive"), ("paced", "paced file")):
        row = f"priority.{medium}.bandwidth"
        yield Figure(f"reads kept, {words}", row, "read_share", ">=", 0.90, "of alone")
        yield Figure(f"writes get, {words}", row, "write_share", ">=", 0.03, "of alone")
        row = f"priority.{medium}.demand"
        what = f"demand p99 over its bound, {words}"
        yield Figure(what, row, "over_bound_units", "<=", 0, "flush units")
        field = "no_barriers_over_bound_units"
        yield Figure(f"{what}, without barriers", row, field, "<=", 0, "flush units")


def _link() -> Iterator[Figure]:
    for medium in ("sim", "paced", "bare"):
        row = f"link.{medium}"
        what = f"prefetch on / off, {medium}"
        yield Figure(what, row, "gain", ">=", 1.8, "x", "gain_min", "gain_max")


def _resident() -> Iterator[Figure]:
    for where, row, most in (
        ("C, stepped", "resident.stepped", 1.0),
        ("C, device thread awake", "resident.awake", 1.0),
        ("Python, stepped", "python.resident.stepped", 4.0),
        ("Python, device thread awake", "python.resident.awake", 4.0),
        ("Python, batch of 32, stepped", "python.batch32.stepped", 8.0),
        ("Python, batch of 32, awake", "python.batch32.awake", 8.0),
        ("Python, batch of 32 + views, stepped", "python.batch32.views.stepped", 25.0),
        ("Python, batch of 32 + views, awake", "python.batch32.views.awake", 25.0),
    ):
        yield Figure(f"resident: {where}", row, "us", "<=", most, "us", "us_min", "us_p90")


def _store() -> Iterator[Figure]:
    yield Figure("store: look-ups, hits", "store.lookup.hits", "million_per_cpu_s", ">=", 10, "M/s")
    yield Figure(
        "store: look-ups, misses", "store.lookup.misses", "million_per_cpu_s", ">=", 10, "M/s"
    )
    yield Figure("store: memory, 655,360 objects", "store.memory", "total_mib", "<=", 64, "MiB")
    yield Figure("store: reopen, clean", "store.reopen.clean", "cpu_s", "<=", 1, "s")
    yield Figure("store: reopen, crashed", "store.reopen.crash", "cpu_s", "<=", 5, "s")
    yield Figure(
        "store: checksums, warm", "store.sum", "warm_cpu_s_per_gib", "<=", 0.05, "CPU-s/GiB"
    )
    yield Figure("store: put, 16m, full, simulated", "store.put.sim", "ratio", ">=", 0.97, "x")
    for way in ("put", "get"):
        row = f"store.{way}.16m"
        yield Figure(f"store: {way}, 16m", row, "ratio", ">=", 0.97, "x", "ratio_min", "ratio_max")


FIGURES: tuple[Figure, ...] = (
    *_store(),
    *_streaming(),
    *_writing(),
    *_link(),
    *_priority(),
    *_resident(),
    Figure("bookkeeping, 16m objects", "ram.16m", "gb_per_s", ">=", 25, "GB/s"),
    Figure("bookkeeping, 1m objects", "ram.1m", "gb_per_s", ">=", 25, "GB/s"),
    Figure("simulated 4 KiB reads, 64 in flight", "sim.4k.d64", "mios_per_s", ">=", 3, "M/s"),
    Figure("simulated 4 KiB reads, 256 in flight", "sim.4k.d256", "mios_per_s", ">=", 3, "M/s"),
    Figure("simulated 1 MiB reads, 64 dies", "sim.1m.d64", "ns_per_io", "<=", 300, "CPU-ns"),
    Figure("peak RSS above import + budget", "rss.peak", "above_mib", "<=", 64, "MiB"),
)


def derive(rows: Rows) -> Rows:
    """Rows that compare two others, where both are there."""
    out: Rows = {}
    few, many = rows.get("stream.footprint.2x"), rows.get("stream.footprint.32x")
    if few and many:
        out["stream.footprint"] = {"change": many["ratio"] / few["ratio"]}
    for size in ("16m", "1m"):
        copied = rows.get(f"stream.copied.{size}.s1")
        direct = rows.get(f"stream.direct.{size}.s1")
        if copied and direct:
            added = copied["cpu_s_per_gib"] - direct["cpu_s_per_gib"]
            out[f"stream.copied.{size}"] = {"added": added}
    return out
