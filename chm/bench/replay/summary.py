# SPDX-License-Identifier: Apache-2.0
"""What a replay found, and what it is held against: an unbounded cache that forgets nothing.

Hit rates are leading blocks that were read and checked over blocks asked for. `possible` is the
same for the unbounded cache, which is known from the traces alone: the difference was evicted,
skipped, or lost in a kill. A restart is seen by the rates over the requests before and behind it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chm.bench.charts import Chart, Line
from chm.bench.replay.notes import Row
from chm.bench.replay.walk import Setting, Walk
from chm.bench.replay.work import Work

POINTS = 24  # of the chart


@dataclass(frozen=True)
class Sums:
    """Some requests together."""

    requests: int
    asked: int
    usable: int
    possible: int
    stored: int
    duplicate: int
    skipped: int
    verified_bytes: int

    @classmethod
    def of(cls, rows: Sequence[Row], possible: Sequence[int]) -> Sums:
        """Add up; `possible` belongs to the rows."""
        return cls(
            len(rows),
            sum(r.asked for r in rows),
            sum(r.usable for r in rows),
            sum(possible),
            sum(r.stored for r in rows),
            sum(r.duplicate for r in rows),
            sum(r.skipped for r in rows),
            sum(r.verified_bytes for r in rows),
        )

    @property
    def hit_rate(self) -> float | None:
        """None where nothing was asked for."""
        return self.usable / self.asked if self.asked else None

    @property
    def possible_rate(self) -> float | None:
        """Of the unbounded cache."""
        return self.possible / self.asked if self.asked else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        rates = {"hit_rate": self.hit_rate, "possible_rate": self.possible_rate}
        return {**asdict(self), **rates}


@dataclass(frozen=True)
class Restart:
    """Rates around a restart; `after` is shorter than the window if the run is."""

    request: int  # the first of the new process
    before: Sums
    after: Sums

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "request": self.request,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
        }


@dataclass(frozen=True)
class Summary:
    """Everything, over all processes that made the run."""

    work: Work
    rows: Sequence[Row]
    possible: Sequence[int]
    window: int

    def sums(self, first: int = 0, end: int | None = None) -> Sums:
        """Of requests [first, end)."""
        end = len(self.rows) if end is None else end
        return Sums.of(self.rows[first:end], self.possible[first:end])

    def of_trace(self, number: int) -> Sums:
        """Of one trace."""
        mine = [i for i, row in enumerate(self.rows) if row.trace == number]
        return Sums.of([self.rows[i] for i in mine], [self.possible[i] for i in mine])

    def restarts(self) -> list[Restart]:
        """Where another process went on."""
        at = [i for i in range(1, len(self.rows)) if self.rows[i].run != self.rows[i - 1].run]
        ends = [*at[1:], len(self.rows)]
        return [
            Restart(
                i, self.sums(max(0, i - self.window), i), self.sums(i, min(i + self.window, end))
            )
            for i, end in zip(at, ends, strict=False)  # the last end is there without restarts, too
        ]

    def nodes(self) -> Counter[str]:
        """Blocks read, by number of node."""
        total: Counter[str] = Counter()
        for row in self.rows:
            total.update(row.nodes)
        return total

    def chart(self) -> Chart:
        """Hit rates over the run."""
        n = len(self.rows)
        cuts = [n * i // POINTS for i in range(POINTS + 1)] if n >= POINTS else [*range(n + 1)]
        parts = [self.sums(a, b) for a, b in itertools.pairwise(cuts)]
        lines = [
            Line("read and checked", [p.hit_rate for p in parts]),
            Line("unbounded cache", [p.possible_rate for p in parts]),
        ]
        title = f"replay of {len(self.work.names)} traces, {len(self.restarts())} restarts"
        return Chart(title, "requests", "hit rate", [str(b) for b in cuts[1:]], lines)

    def to_dict(self, setting: Setting, walk: Walk) -> dict[str, Any]:
        """Plain JSON values."""
        read = self.nodes()
        return {
            "work": self.work.identity() | {"objects": self.work.objects},
            "total": self.sums().to_dict(),
            "traces": [
                {"name": name, **self.of_trace(i).to_dict()}
                for i, name in enumerate(self.work.names)
            ],
            "restarts": [r.to_dict() for r in self.restarts()],
            "nodes": [
                {**node.to_dict(), "read_blocks": read[str(node.number)]}
                for node in walk.pool.info()
            ],
            "latency": walk.samples.to_dict(),
            "setting": {
                **asdict(setting),
                "members": [str(path) for path in setting.members],
            },
        }
