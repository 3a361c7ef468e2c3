# SPDX-License-Identifier: Apache-2.0
"""Charts: a PNG through matplotlib, and the same lines in the terminal.

The terminal plot draws into braille cells (2 x 4 dots a character), so a line of a few points is
readable in 60 columns. Why it is our own: docs/decisions/0003-chm-bench.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chm import units

# Bit of the dot at (column, row) of a braille character, from U+2800.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_MARKS = "●◆▲■○◇△□"


@dataclass(frozen=True)
class Line:
    """One line of a chart. y values may be None: no point there."""

    name: str
    y: Sequence[float | None]


@dataclass(frozen=True)
class Chart:
    """What to draw: x labels in order, equally spaced, and lines over them."""

    title: str
    x_name: str
    y_name: str
    x: Sequence[str]
    lines: Sequence[Line]

    @property
    def top(self) -> float:
        """The largest value drawn."""
        return max((v for line in self.lines for v in line.y if v is not None), default=0.0)


def y_text(value: float, y_name: str) -> str:
    """A value of the y axis as people read it; the unit follows from the name's ending."""
    if y_name.endswith("bytes_per_s"):
        return units.format_rate(value)
    if y_name.endswith("_bytes"):
        return units.format_size(value)
    if y_name.endswith("_ns"):
        return units.format_duration(value)
    return f"{value:.4g}"


def draw_terminal(chart: Chart, width: int = 64, height: int = 12) -> str:
    """The chart as text, at most about width columns and height + 4 lines."""
    top = chart.top or 1.0
    left = max(len(y_text(v, chart.y_name)) for v in (0.0, top / 2, top))
    columns = max(10, width - left - 3)
    canvas = _Canvas(columns, height)
    for number, line in enumerate(chart.lines):
        _draw_line(canvas, line, len(chart.x), top, _MARKS[number % len(_MARKS)])
    out = [f"{chart.title}  ({chart.y_name} over {chart.x_name})"]
    for row, text in enumerate(canvas.rows()):
        mark = {0: top, height // 2: top / 2, height - 1: 0.0}.get(row)
        label = "" if mark is None else y_text(mark, chart.y_name)
        out.append(f"{label:>{left}} ┤{text}")
    out.append(" " * left + " └" + "─" * columns)
    out.append(" " * (left + 2) + _x_labels(chart.x, columns))
    out.append("   ".join(f"{_MARKS[i % len(_MARKS)]} {n.name}" for i, n in enumerate(chart.lines)))
    return "\n".join(out)


class _Canvas:
    """Dots and marks on a grid of characters; (0, 0) is the lower left dot."""

    def __init__(self, columns: int, height: int) -> None:
        self.width, self.height = columns * 2, height * 4
        self._bits = [[0] * columns for _ in range(height)]
        self._marks: dict[tuple[int, int], str] = {}

    def dot(self, x: int, y: int) -> None:
        y = self.height - 1 - y
        self._bits[y // 4][x // 2] |= _DOTS[x % 2][y % 4]

    def mark(self, x: int, y: int, sign: str) -> None:
        self._marks[(self.height - 1 - y) // 4, x // 2] = sign

    def rows(self) -> list[str]:
        return [
            "".join(
                self._marks.get((r, c)) or (chr(0x2800 + bits) if bits else " ")
                for c, bits in enumerate(row)
            ).rstrip()
            for r, row in enumerate(self._bits)
        ]


def _draw_line(canvas: _Canvas, line: Line, points: int, top: float, sign: str) -> None:
    def place(i: int, value: float) -> tuple[int, int]:
        x = round(i * (canvas.width - 1) / max(points - 1, 1))
        return x, round(value / top * (canvas.height - 1))

    spots = [place(i, v) for i, v in enumerate(line.y) if v is not None]
    for (x0, y0), (x1, y1) in itertools.pairwise(spots):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for s in range(steps + 1):
            canvas.dot(x0 + round((x1 - x0) * s / steps), y0 + round((y1 - y0) * s / steps))
    for x, y in spots:
        canvas.mark(x, y, sign)


def _x_labels(labels: Sequence[str], columns: int) -> str:
    """As many labels as fit, each under its point."""
    every = max(1, math.ceil(sum(len(t) + 1 for t in labels) / columns))
    text = [" "] * columns
    for i in range(0, len(labels), every):
        label = labels[i][:columns]
        at = round(i * (columns - 1) / max(len(labels) - 1, 1))
        at = min(at, columns - len(label))
        text[at : at + len(label)] = label
    return "".join(text).rstrip()


def draw_png(chart: Chart, path: Path, note: str = "") -> None:
    """Write the chart as a PNG; `note` goes below it (what ran, on what)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scale, unit = _axis(chart)
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for line in chart.lines:
        y = [math.nan if v is None else v / scale for v in line.y]
        axes.plot(range(len(chart.x)), y, marker="o", label=line.name)
    axes.set_xticks(range(len(chart.x)), chart.x)
    axes.tick_params(axis="x", rotation=0 if sum(map(len, chart.x)) < 80 else 45)
    axes.set_ylim(bottom=0)
    axes.set(title=chart.title, xlabel=chart.x_name, ylabel=f"{chart.y_name}{unit}")
    axes.grid(True, alpha=0.3)
    axes.legend()
    if note:
        figure.supxlabel(note, fontsize=7)
    figure.savefig(path)


def _axis(chart: Chart) -> tuple[float, str]:
    """Divisor and unit of the y axis."""
    if chart.y_name.endswith("bytes_per_s"):
        return 1e9, " [GB/s]"
    if chart.y_name.endswith("_bytes"):
        return float(1 << 30), " [GiB]"
    if chart.y_name.endswith("_ns"):
        return 1e6, " [ms]"
    return 1.0, ""
