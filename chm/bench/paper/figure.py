# SPDX-License-Identifier: Apache-2.0
"""What a figure is: what was published, and how ours is made.

A figure is measured in *parts*, each a function of (settings, part) that may run in a process of
its own and answers plain JSON values. ``combine`` makes one finding of them. Nothing in a figure
may set a timing field: it names presets, and chooses only the structure of its experiment (lab.py
refuses the rest).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from chm.bench.paper.claim import Claim, Value

if TYPE_CHECKING:
    from chm.bench.paper.lab import Lab

Data: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Settings:
    """What the user asked for; the same for all figures."""

    seed: int = 1
    quick: bool = False
    sets: tuple[tuple[str, str], ...] = ()  # --set FIELD=VALUE
    ratios: tuple[float, ...] = ()  # further working sets of F18, in cache sizes


@dataclass(frozen=True)
class Part:
    """A piece of a figure; ``cost`` is about how many seconds it takes, for the order of work."""

    name: str
    cost: float = 0.1


@dataclass(frozen=True)
class Curve:
    """One line of a plot. ``published``: drawn as marks, not as a line."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    published: bool = False


@dataclass(frozen=True)
class Plot:
    """One panel."""

    title: str
    x_name: str
    y_name: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    labels: Sequence[str] = ()  # names of x = 1, 2, ...: bars instead of lines


@dataclass(frozen=True)
class Finding:
    """What a figure came to: a value per claim, a table of what was measured, and what to draw."""

    values: Mapping[str, Value]
    rows: Sequence[Mapping[str, Any]] = ()
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """One figure of the catalog."""

    name: str  # "F2"
    title: str
    claims: Sequence[Claim]
    calibrated: str  # which published values went into the presets
    predicted: str  # which come out of the model
    measure: Callable[[Lab, str], Data]
    combine: Callable[[Mapping[str, Data], Settings], Finding]
    parts: Callable[[Settings], Sequence[Part]] = lambda _: (Part("all"),)
    presets: Sequence[str] = ()
    known: Mapping[str, str] = field(default_factory=dict)  # claims missed, each with its cause
