# SPDX-License-Identifier: Apache-2.0
"""A figure as a PNG: its panels side by side; what was published as marks, ours as lines."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from chm.bench.paper.figure import Curve, Plot

_COLOURS = ("#1f6fb4", "#d1641d", "#2f8f46", "#a8323e", "#6f57a8", "#7a5a4a", "#3a9aa0", "#8a8a1e")
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
    figure.suptitle(title, fontsize=11)
    for number, plot in enumerate(plots, 1):
        _draw(figure.add_subplot(rows, columns, number), plot)
    figure.supxlabel(note, fontsize=7)
    out = io.BytesIO()
    # Without the name of the library the file depends on nothing but what is drawn.
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _draw(axes: Any, plot: Plot) -> None:
    colours: dict[str, str] = {}
    for curve in plot.curves:
        base = curve.name.removesuffix(", published")
        colours.setdefault(base, _COLOURS[len(colours) % len(_COLOURS)])
        _draw_curve(axes, curve, colours[base])
    if plot.log_x:
        axes.set_xscale("log", base=2 if _powers_of_two(plot) else 10)
    if plot.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(plot.title, fontsize=10)
    axes.set(xlabel=plot.x_name, ylabel=plot.y_name)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8)


def _draw_curve(axes: Any, curve: Curve, colour: str) -> None:
    y = [math.nan if v is None else v for v in curve.y]
    if curve.published:
        axes.plot(curve.x, y, "x", color=colour, markersize=9, mew=2, label=curve.name)
    else:
        axes.plot(curve.x, y, marker="o", markersize=4, color=colour, label=curve.name)


def _powers_of_two(plot: Plot) -> bool:
    return all(x > 0 and math.log2(x).is_integer() for c in plot.curves for x in c.x)
