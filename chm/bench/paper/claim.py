# SPDX-License-Identifier: Apache-2.0
"""A published value, how near we have to come, and the verdict on ours.

A claim with a tolerance is *met* or *missed*. A shape (something must hold, such as an order) is
*shape only* when it holds and *missed* when not. A value without tolerance is *reported*: nothing
is concluded from it. Grades of sources: A primary artifact, B two secondary texts agree, C one
secondary text, D derived by arithmetic.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = "float | int | bool | None"


class Verdict(enum.Enum):
    """What is said about a value."""

    MET = "met"
    SHAPE = "shape only"
    REPORTED = "reported"
    MISSED = "missed"


class Kind(enum.Enum):
    """How ours is compared."""

    NEAR = "near"  # within the tolerance of the published range
    LEAST = "at least"  # the range's low end is a floor
    MOST = "at most"  # the range's high end is a ceiling
    SHAPE = "shape"  # ours is a bool: does it hold
    REPORT = "report"  # no conclusion


@dataclass(frozen=True)
class Claim:
    """One published value. ``low`` and ``high`` are its range, in ``unit``; equal for a number."""

    key: str  # names it within its figure: "after.64MiB"
    what: str
    unit: str
    low: float
    high: float
    tolerance: float  # share of the published value; 0: exact
    kind: Kind
    grade: str
    source: str

    @property
    def published(self) -> str:
        """The published value as people read it."""
        if self.kind is Kind.SHAPE:
            return "holds"
        if math.isnan(self.low):
            return "-"
        if self.kind is Kind.LEAST:
            return f">= {self.text(self.low)}"
        if self.kind is Kind.MOST:
            return f"<= {self.text(self.high)}"
        ends = dict.fromkeys((self.text(self.low), self.text(self.high)))
        return " - ".join(ends)

    @property
    def allowed(self) -> str:
        """The tolerance as people read it."""
        if self.kind in (Kind.SHAPE, Kind.REPORT):
            return "-"
        return "exact" if self.tolerance == 0 else f"{self.tolerance:.0%}"

    def text(self, value: Value) -> str:
        """A value in this claim's unit."""
        return number(value, self.unit)

    def difference(self, ours: Value) -> float | None:
        """Ours against the nearest end of the published range, as a share of it; 0 within."""
        if ours is None or isinstance(ours, bool) or math.isnan(self.low):
            return None
        low = -math.inf if self.kind is Kind.MOST else self.low
        high = math.inf if self.kind is Kind.LEAST else self.high
        end = low if ours < low else high if ours > high else ours
        return (ours - end) / abs(end) if end else (0.0 if ours == end else math.inf)

    def judge(self, ours: Value) -> Verdict:
        """The verdict. No value where one is due is a miss."""
        if self.kind is Kind.REPORT:
            return Verdict.REPORTED
        if self.kind is Kind.SHAPE:
            return Verdict.SHAPE if ours is True else Verdict.MISSED
        off = self.difference(ours)
        if off is None or math.isnan(off) or abs(off) > self.tolerance * (1 + 1e-9):
            return Verdict.MISSED
        return Verdict.MET


def number(value: Value, unit: str) -> str:
    """A value with its unit; bools are yes and no."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or float(value).is_integer():
        shown = f"{int(value):,}" if abs(value) < 1e15 else f"{value:.4g}"
    else:
        shown = f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{shown} {unit}".strip()


def near(
    key: str,
    what: str,
    unit: str,
    published: float | tuple[float, float],
    tolerance: float,
    grade: str,
    source: str,
) -> Claim:
    """A number, or a range, that ours has to be within ``tolerance`` of."""
    low, high = published if isinstance(published, tuple) else (published, published)
    return Claim(key, what, unit, low, high, tolerance, Kind.NEAR, grade, source)


def least(
    key: str, what: str, unit: str, floor: float, tolerance: float, grade: str, source: str
) -> Claim:
    """Ours has to reach the floor, less the tolerance."""
    return Claim(key, what, unit, floor, math.inf, tolerance, Kind.LEAST, grade, source)


def most(
    key: str, what: str, unit: str, ceiling: float, tolerance: float, grade: str, source: str
) -> Claim:
    """Ours has to stay below the ceiling, plus the tolerance."""
    return Claim(key, what, unit, -math.inf, ceiling, tolerance, Kind.MOST, grade, source)


def shape(key: str, what: str, grade: str, source: str) -> Claim:
    """Something that has to hold."""
    return Claim(key, what, "", math.nan, math.nan, 0.0, Kind.SHAPE, grade, source)


def report(
    key: str, what: str, unit: str, published: float | None, grade: str, source: str
) -> Claim:
    """A value that is shown beside ours without a verdict; None: nothing was published."""
    value = math.nan if published is None else published
    return Claim(key, what, unit, value, value, math.inf, Kind.REPORT, grade, source)
