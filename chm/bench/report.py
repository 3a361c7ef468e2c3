# SPDX-License-Identifier: Apache-2.0
"""Results as people read them: tables with units, percentiles, DRAM, and what was checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chm import units
from chm.bench.doctor import Finding
from chm.bench.versus import Versus

Format = Callable[[Any], str]
_STATUS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def _or_dash(show: Format) -> Format:
    return lambda value: "-" if value is None else show(value)


def _short(show: Format) -> Format:
    """Three digits: tables have to fit 80 columns; the JSON has the exact numbers."""

    def shorter(value: Any) -> str:
        number, _, unit = show(value).partition(" ")
        x = float(number)
        return f"{x:.0f} {unit}" if x >= 100 else f"{x:.3g} {unit}"

    return _or_dash(shorter)


RATE = _short(units.format_rate)
SIZE = _short(units.format_size)
TIME = _short(units.format_duration)
SHARE = _or_dash(lambda v: f"{100 * v:.1f} %")
FIGURE = _or_dash(lambda v: f"{v:.3g}")
COUNT = _or_dash(lambda v: f"{v:,}")


@dataclass(frozen=True)
class Column:
    """A column of the table of rows."""

    head: str
    value: Callable[[Mapping[str, Any]], Any]
    show: Format


def _key(name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: row.get(name)


def _inside(name: str, part: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: (row.get(name) or {}).get(part)


COLUMNS: dict[str, list[Column]] = {
    "turns": [
        Column("turn", _key("label"), str),
        Column("look-ups", _key("lookups"), COUNT),
        Column("hits", _key("hits"), COUNT),
        Column("puts", _key("puts"), COUNT),
        Column("skipped", _key("skipped"), COUNT),
        Column("evicted", _key("evictions"), COUNT),
        Column("read", _key("read_bytes"), SIZE),
        Column("read rate", _key("read_bytes_per_s"), RATE),
        Column("write rate", _key("durable_bytes_per_s"), RATE),
        Column("CPU-s/GiB", _key("read_cpu_s_per_gib"), FIGURE),
    ],
    "read": [
        Column("round", _key("label"), str),
        Column("read", _key("read_bytes"), SIZE),
        Column("read rate", _key("read_bytes_per_s"), RATE),
        Column("CPU-s/GiB", _key("read_cpu_s_per_gib"), FIGURE),
    ],
    "rw": [
        Column("phase", _key("label"), str),
        Column("read", _key("read_bytes_per_s"), RATE),
        Column("written", _key("medium_write_bytes_per_s"), RATE),
        Column("read p50", _inside("request_read", "p50"), TIME),
        Column("read p99", _inside("request_read", "p99"), TIME),
        Column("I/O p99", _inside("read_io_ns", "p99"), TIME),
        Column("flushes met", _inside("flush_at_read", "max"), COUNT),
    ],
    "latency": [],
}

_METRICS: list[tuple[str, str, Format]] = [
    ("read_bytes_per_s", "read", RATE),
    ("durable_bytes_per_s", "durable write", RATE),
    ("hit_rate", "hit rate", SHARE),
    ("hit_rate_warm", "hit rate without the cold round", SHARE),
    ("read_kept_ratio", "reads keep, beside writes", SHARE),
    ("write_kept_ratio", "writes keep, beside reads", SHARE),
    ("fcfs_read_kept_ratio", "reads keep, first come first served", SHARE),
    ("fcfs_write_kept_ratio", "writes keep, first come first served", SHARE),
    ("read_cpu_s_per_gib", "CPU-s per GiB read", FIGURE),
    ("cpu_s_per_gib", "CPU-s per GiB read or written", FIGURE),
    ("footprint_over_dram_ratio", "footprint / DRAM budget", FIGURE),
    ("write_amplification_ratio", "medium writes / payload", FIGURE),
    ("medium_read_bytes", "read from the medium", SIZE),
    ("verified_bytes", "bytes checked on delivery", SIZE),
    ("rechecked_bytes", "bytes checked afterwards", SIZE),
]


_VERSUS: list[tuple[str, str, Format]] = [
    ("read_bytes_per_s", "read", RATE),
    ("durable_bytes_per_s", "durable write", RATE),
    ("hit_rate", "blocks found", SHARE),
    ("line_hit_rate", "line hits", SHARE),
    ("medium_read_bytes", "SSD read", SIZE),
    ("medium_written_bytes", "SSD written", SIZE),
]


def show_result(console: Console, result: Mapping[str, Any], chart: str) -> None:
    """One result: rows, figures, percentiles, DRAM, notes."""
    device = result["device"]
    console.rule(Text(result["name"]))
    clock = "virtual time" if device["clock"] == "virtual" else "real time"
    named = f"preset {device['preset']['name']}, " if device["preset"] else ""
    console.print(
        f"{named}media {device['media']} ({clock}), {_staging(device)} + "
        f"write buffer {units.format_size(device['write_buffer_bytes'])}, seed {result['seed']}",
        highlight=False,
    )
    _rows(console, COLUMNS[result["experiment"]], result["rows"])
    if chart:
        console.print(Text(chart))
    _metrics(console, result["metrics"])
    _percentiles(console, result["latency"])
    dram = ", ".join(f"{d['what']} {SIZE(d['bytes'])}" for d in result["dram"])
    console.print(f"DRAM: {dram}; in all {SIZE(result['dram_total_bytes'])}", highlight=False)
    for note in result["notes"]:
        console.print(f"note: {note}", style="yellow", highlight=False)


def _staging(device: Mapping[str, Any]) -> str:
    """What the DRAM that is no write buffer is used as."""
    if device["cache_bytes"]:
        return f"{device['policy']} cache {units.format_size(device['cache_bytes'])}"
    return f"window {units.format_size(device['window_bytes'])}"


def _rows(console: Console, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    if not columns or not rows:
        return
    shown = [columns[0], *(c for c in columns[1:] if any(c.value(row) for row in rows))]
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for c in shown:
        table.add_column(c.head, justify="left" if c is shown[0] else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(c.show(c.value(row)) for c in shown))
    console.print(table)


def _metrics(console: Console, metrics: Mapping[str, Any]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    for key, name, show in _METRICS:
        if metrics.get(key) is not None:
            table.add_row(name, show(metrics[key]))
    console.print(table)


def _percentiles(console: Console, latency: Mapping[str, Any]) -> None:
    names = ("p50", "p90", "p99", "p99.9", "max")
    table = Table("time of", "n", *names, box=SIMPLE, padding=(0, 1, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for name, series in latency.items():
        for kind, meaning in (("latency", "from when due"), ("service_time", "service")):
            figures = series.get(kind)
            if figures and figures["count"]:
                shown = (TIME(figures[n]) for n in names)
                title = f"{name.replace('_', ' ')}, {meaning}"
                table.add_row(title, COUNT(figures["count"]), *shown)
    if table.row_count:
        console.print(table)


def show_versus(console: Console, versus: Versus, chart: str) -> None:
    """Policies side by side: read rate of every turn, then the figures of the whole runs."""
    console.rule(Text(versus.title))
    table = Table("turn", *versus.policies, box=SIMPLE, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    for label, rates in zip(versus.labels, versus.rates, strict=True):
        table.add_row(label, *map(RATE, rates))
    table.add_section()
    for key, name, show in _VERSUS:
        values = versus.metrics[key]
        if any(v is not None for v in values):
            table.add_row(name, *map(show, values))
    console.print(table)
    if chart:
        console.print(Text(chart))


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """doctor's answers, each with its fix."""
    table = Table("", "what", "found", box=SIMPLE, padding=(0, 1, 0, 0))
    for f in findings:
        text = Text(f.detail)
        if f.fix:
            text.append(f"\nfix: {f.fix}", style="cyan")
        table.add_row(Text(f.status, style=_STATUS[f.status]), f.name, text)
    console.print(table)


def show_failures(console: Console, failures: Sequence[Mapping[str, Any]]) -> None:
    """Runs that could not be finished, and why."""
    for f in failures:
        console.print(
            Text(f"chm-bench: {f['name']}: {f['error']}", style="bold red"), soft_wrap=True
        )
