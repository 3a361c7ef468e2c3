# SPDX-License-Identifier: Apache-2.0
"""All figures by name, in order. A new figure is a module with FIGURE, and a line here."""

from __future__ import annotations

from collections.abc import Sequence

from chm.bench.options import ConfigError
from chm.bench.paper import (
    a01,
    a02,
    a03,
    f01,
    f02,
    f03,
    f04,
    f05,
    f15,
    f16,
    f17,
    f18,
    f19,
    f20,
    f23,
)
from chm.bench.paper.figure import Figure
from chm.options import nearest

FIGURES: dict[str, Figure] = {
    f.name: f
    for f in (
        f01.FIGURE,
        f02.FIGURE,
        f03.FIGURE,
        f04.FIGURE,
        f05.FIGURE,
        f15.FIGURE,
        f16.FIGURE,
        f17.FIGURE,
        f18.FIGURE,
        f19.FIGURE,
        f20.FIGURE,
        f23.FIGURE,
        a01.FIGURE,
        a02.FIGURE,
        a03.FIGURE,
    )
}


def figure(name: str) -> Figure:
    """The figure of this name, in any case."""
    known = FIGURES.get(name.upper())
    if known is None:
        raise ConfigError(
            f"there is no figure {name!r}{nearest(name.upper(), FIGURES)}; --list shows all"
        )
    return known


def pick(names: Sequence[str]) -> list[Figure]:
    """The figures named, each once; all without names."""
    wanted = {figure(name).name for name in names}
    return [f for f in FIGURES.values() if not names or f.name in wanted]
