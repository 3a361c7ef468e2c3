# SPDX-License-Identifier: Apache-2.0
"""The report in the terminal: a line per published value."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chm.bench.paper.claim import Verdict
from chm.bench.paper.figure import Figure
from chm.bench.paper.study import Line, Result

_STYLE = {
    Verdict.MET: "green",
    Verdict.SHAPE: "cyan",
    Verdict.REPORTED: "dim",
    Verdict.MISSED: "bold red",
}
HEAD = ("figure", "what", "published", "ours", "difference", "tolerance", "verdict")


def cells(line: Line) -> tuple[str, ...]:
    """The texts of a line, after the figure's name."""
    off = line.claim.difference(line.ours)
    return (
        line.claim.what,
        line.claim.published,
        line.claim.text(line.ours),
        "-" if off is None else f"{off:+.1%}",
        line.claim.allowed,
        line.verdict.value,
    )


def show(console: Console, results: Sequence[Result]) -> None:
    """All figures, then the misses with their reasons."""
    table = Table(*HEAD, box=SIMPLE, padding=(0, 1, 0, 0))
    for result in results:
        for i, line in enumerate(result.lines):
            *texts, verdict = cells(line)
            name = result.figure.name if i == 0 else ""
            table.add_row(name, *texts, Text(verdict, style=_STYLE[line.verdict]))
    console.print(table)
    for result in results:
        _show_misses(console, result)


def _show_misses(console: Console, result: Result) -> None:
    if result.error:
        told = f"{result.figure.name}: could not be measured: {result.error}"
        console.print(Text(told, style="bold red"), soft_wrap=True)
        return
    for line in result.lines:
        if line.verdict is Verdict.MISSED:
            why = line.reason or "no reason is known: this is a finding"
            style = "bold red" if line.unexpected else "yellow"
            told = f"{result.figure.name}, {line.claim.what}: missed: {why}"
            console.print(Text(told, style=style), soft_wrap=True)


def show_list(console: Console, figures: Sequence[Figure]) -> None:
    """What there is to measure."""
    table = Table("figure", "what it shows", "presets", "values", box=SIMPLE, padding=(0, 1, 0, 0))
    for f in figures:
        table.add_row(f.name, f.title, ", ".join(f.presets) or "-", str(len(f.claims)))
    console.print(table)
