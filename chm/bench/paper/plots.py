# SPDX-License-Identifier: Apache-2.0
"""A figure as a PNG: its panels side by side; what was published as marks, ours as lines."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from chm.bench.paper.figure import Plot

_COLOURS = ("#1f6fb4", "#d1641d", "#2f8f46", "#a8323e", "#6f57a8", "#7a5a4a", "#3a9aa0", "#8a8a1e")
_SAID = "#222222"
_CROSS: dict[str, Any] = {"markersize": 9, "mew": 2}
_PANEL = (5.6, 4.0)  # inches


def png(title: str, plots: Sequence[Plot], note: str) -> bytes:
    """The picture. ``note`` goes below it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(plots), 2)
    rows = math.ceil(len(plots) / columns)
    size = (_PANEL[0] * columns, _PANEL[1] * rows)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(textwrap.fill(title, 62 * columns), fontsize=11)
    for number, plot in enumerate(plots, 1):
        _draw(figure.add_subplot(rows, columns, number), plot)
    figure.supxlabel(note, fontsize=7)
    out = io.BytesIO()
    # Without the name of the library the file depends on nothing but what is drawn.
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _draw(axes: Any, plot: Plot) -> None:
    if plot.labels:
        _draw_bars(axes, plot)
    else:
        _draw_curves(axes, plot)
    axes.set_title(plot.title, fontsize=10)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8, framealpha=0.6)


def _draw_bars(axes: Any, plot: Plot) -> None:
    """Lying bars, the first on top, with room for their names."""
    bars = [curve for curve in plot.curves if not curve.published]
    height = 0.8 / len(bars)
    for i, curve in enumerate(bars):
        at = [x + (i - (len(bars) - 1) / 2) * height for x in curve.x]
        axes.barh(at, _gaps(curve.y), height, color=_COLOURS[i], label=curve.name)
    for curve in plot.curves:
        if curve.published:
            axes.plot(_gaps(curve.y), curve.x, "x", color=_SAID, **_CROSS, label=curve.name)
    axes.set_yticks(range(1, len(plot.labels) + 1), plot.labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(plot.y_name)


def _draw_curves(axes: Any, plot: Plot) -> None:
    colours: dict[str, str] = {}
    for curve in plot.curves:
        base = curve.name.removesuffix(", published")
        if curve.published:
            axes.plot(
                curve.x,
                _gaps(curve.y),
                "x",
                color=colours.get(base, _SAID),
                **_CROSS,
                label=curve.name,
            )
            continue
        colours[base] = _COLOURS[len(colours) % len(_COLOURS)]
        axes.plot(
            curve.x, _gaps(curve.y), marker="o", markersize=4, color=colours[base], label=base
        )
    if plot.log_x:
        axes.set_xscale("log", base=2 if _powers_of_two(plot) else 10)
    if plot.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set(xlabel=plot.x_name, ylabel=plot.y_name)


def _gaps(y: Sequence[float | None]) -> list[float]:
    return [math.nan if v is None else v for v in y]


def _powers_of_two(plot: Plot) -> bool:
    return all(x > 0 and math.log2(x).is_integer() for c in plot.curves for x in c.x)
