# SPDX-License-Identifier: Apache-2.0
"""From single requests to rows: medians with quartiles, and ratios to the same host's oracle.

A ratio is that of two requests for the same prompt, asked one after the other, and a row has the
median of them. So a disk or a machine that changes its speed meets both sides alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .arms import ARMS
from .workload import Workload


@dataclass(frozen=True)
class Sample:
    """One request. ``pace`` is the drive's rate over the recompute rate, 0: not paced."""

    arm: str
    pace: int
    turn: int
    conversation: int
    variant: int
    prompt: int
    cached: int
    token: int
    ttft_s: float
    engine_s: float
    other_s: float
    read_bytes: int
    written_bytes: int

    @property
    def prompt_key(self) -> tuple[int, int, int]:
        """Which prompt it was."""
        return self.turn, self.conversation, self.variant


@dataclass(frozen=True)
class Spread:
    """Median, quartiles, least and largest of ``n`` values."""

    median: float
    low: float
    high: float
    least: float
    most: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            raise ValueError("a spread of no values")
        low, median, high = (
            statistics.quantiles(values, n=4, method="inclusive")
            if len(values) > 1
            else [values[0]] * 3
        )
        return cls(median, low, high, min(values), max(values), len(values))


@dataclass(frozen=True)
class Row:
    """An arm at the last turn. CPU and bytes are medians of a request's."""

    arm: str
    pace: int
    ttft_s: Spread
    hit_rate: float
    over_oracle: Spread | None
    over_recompute: float | None
    engine_cpu_s: float
    other_cpu_s: float
    cached_bytes: int
    read_bytes: int
    failures: list[str] = field(default_factory=list)


def rows(samples: Sequence[Sample], w: Workload) -> list[Row]:
    """One for each arm and pace, in the order of ARMS."""
    last = [s for s in samples if s.turn == w.turns - 1]
    recomputed = [s.ttft_s for s in last if s.arm == "recompute"]
    out = []
    for pace in sorted({s.pace for s in last}):
        for arm in ARMS:
            mine = [s for s in last if s.arm == arm.name and s.pace == pace]
            if not mine:
                continue
            floor = [s for s in last if s.arm == arm.oracle and s.pace == pace]
            out.append(_row(mine, floor, recomputed, w))
    return out


def _row(
    mine: Sequence[Sample], floor: Sequence[Sample], recomputed: Sequence[float], w: Workload
) -> Row:
    ttft = Spread.of([s.ttft_s for s in mine])
    ratios = _ratios(mine, floor)
    return Row(
        mine[0].arm,
        mine[0].pace,
        ttft,
        hit_rate(mine),
        Spread.of(ratios) if ratios else None,
        ttft.median / statistics.median(recomputed) if recomputed else None,
        statistics.median(s.engine_s for s in mine),
        statistics.median(s.other_s for s in mine),
        int(statistics.median(s.cached for s in mine)) * w.token_bytes,
        int(statistics.median(s.read_bytes for s in mine)),
        failures(mine, w),
    )


def _ratios(mine: Iterable[Sample], floor: Iterable[Sample]) -> list[float]:
    least = {s.prompt_key: s.ttft_s for s in floor}
    return [s.ttft_s / least[s.prompt_key] for s in mine if s.prompt_key in least]


def hit_rate(samples: Iterable[Sample]) -> float:
    """Prompt tokens served over prompt tokens asked for."""
    some = list(samples)
    return sum(s.cached for s in some) / sum(s.prompt for s in some)


def failures(samples: Iterable[Sample], w: Workload) -> list[str]:
    """Requests that were served less than all that had been stored, or anything without a cache."""
    out = []
    for s in samples:
        want = expected(s, w)
        if want is not None and s.cached != want:
            out.append(
                f"turn {s.turn + 1}, conversation {s.conversation}: {s.cached} tokens cached, "
                f"expected {want}"
            )
    return out


def expected(s: Sample, w: Workload) -> int | None:
    """Tokens that must come from a cache; None where that is what the run shows."""
    store = next(arm.store for arm in ARMS if arm.name == s.arm)
    if store == "none":
        return 0
    return None if store == "pool" else w.reusable(s.turn)


def wrong_tokens(samples: Iterable[Sample]) -> list[str]:
    """Requests whose answer is not that of the first arm which was asked the same; for float32,
    where a hit changes no token."""
    first: dict[tuple[int, int, int], Sample] = {}
    out = []
    for s in samples:
        other = first.setdefault(s.prompt_key, s)
        if s.token != other.token:
            out.append(
                f"{s.arm}, turn {s.turn + 1}, conversation {s.conversation}: token {s.token}, "
                f"but {other.arm} has {other.token}"
            )
    return out


@dataclass(frozen=True)
class TurnRow:
    """An arm at one turn, not paced."""

    arm: str
    turn: int
    prompt: int
    ttft_s: float
    hit_rate: float


def turn_rows(samples: Sequence[Sample], w: Workload) -> list[TurnRow]:
    out = []
    for arm in ARMS:
        for turn, length in enumerate(w.lengths):
            mine = [s for s in samples if (s.arm, s.turn, s.pace) == (arm.name, turn, 0)]
            if mine:
                ttft = statistics.median(s.ttft_s for s in mine)
                out.append(TurnRow(arm.name, turn + 1, length, ttft, hit_rate(mine)))
    return out


def recompute_rate(samples: Iterable[Sample], w: Workload) -> float:
    """KV bytes a second that computing the last prompt makes; 0 if nobody recomputed."""
    spans = [s.ttft_s for s in samples if s.arm == "recompute" and s.turn == w.turns - 1]
    if not spans:
        return 0.0
    return w.lengths[-1] * w.token_bytes / statistics.median(spans)


def table(found: Iterable[Row]) -> str:
    """Markdown."""
    lines = [
        "| arm | drive | TTFT ms, median (quartiles) | over oracle | over recompute | hit rate "
        "| CPU ms, engine + other | read MiB | n |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in found:
        ms = 1e3
        t, o = r.ttft_s, r.over_oracle
        floor = "-" if o is None else f"{o.median:.2f} ({o.low:.2f}-{o.high:.2f})"
        computed = "-" if r.over_recompute is None else f"{r.over_recompute:.3f}"
        lines.append(
            f"| {r.arm} | {f'{r.pace}x' if r.pace else 'as it is'} "
            f"| {t.median * ms:.1f} ({t.low * ms:.1f}-{t.high * ms:.1f}) | {floor} | {computed} "
            f"| {r.hit_rate:.3f} | {r.engine_cpu_s * ms:.0f} + {r.other_cpu_s * ms:.0f} "
            f"| {r.read_bytes / 2**20:.0f} | {t.n} |"
        )
    return "\n".join(lines)
