# SPDX-License-Identifier: Apache-2.0
"""Policies side by side: runs that differ in --policy only, as one table and one chart.

Runs that differ in other options too fall into several comparisons, one for each point of those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chm.bench.charts import Chart, Line

METRICS = (
    "read_bytes_per_s",
    "durable_bytes_per_s",
    "hit_rate",
    "line_hit_rate",
    "medium_read_bytes",
    "medium_written_bytes",
    "write_amplification_ratio",
    "elapsed_s",
)


@dataclass(frozen=True)
class Versus:
    """One comparison; columns are policies, in the order in which they were given."""

    title: str
    policies: Sequence[str]
    labels: Sequence[str]  # of the rounds
    rates: Sequence[Sequence[float | None]]  # bytes per second read, a list per round
    metrics: Mapping[str, Sequence[Any]]

    def chart(self) -> Chart:
        """Read rate per turn, a line per policy."""
        lines = [Line(p, [row[i] for row in self.rates]) for i, p in enumerate(self.policies)]
        return Chart(self.title, "turn", "read_bytes_per_s", self.labels, lines)

    def to_dict(self) -> dict[str, Any]:
        """For the JSON document: per policy, the rate of every round and the metrics."""
        return {
            "title": self.title,
            "rounds": list(self.labels),
            "policies": {
                p: {
                    "read_bytes_per_s_by_round": [row[i] for row in self.rates],
                    **{name: values[i] for name, values in self.metrics.items()},
                }
                for i, p in enumerate(self.policies)
            },
        }


def comparisons(results: Sequence[Mapping[str, Any]]) -> list[Versus]:
    """All comparisons among results: sets of at least two that differ in policy only."""
    sets: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for r in results:
        if "policy" in r["axes"]:
            rest = tuple((k, v) for k, v in r["axes"].items() if k != "policy")
            sets.setdefault((r["experiment"], r["name"].partition("[")[0], rest), []).append(r)
    return [_versus(k[1], k[2], group) for k, group in sets.items() if len(group) > 1]


def _versus(
    name: str, rest: Sequence[tuple[str, str]], group: Sequence[Mapping[str, Any]]
) -> Versus:
    where = ", ".join(f"{k}={v}" for k, v in rest)
    rounds = [[row["read_bytes_per_s"] for row in r["rows"]] for r in group]
    return Versus(
        title=f"{name}: policies" + (f" at {where}" if where else ""),
        policies=[r["axes"]["policy"] or "default" for r in group],
        labels=[row["label"] for row in group[0]["rows"]],
        rates=list(zip(*rounds, strict=True)),
        metrics={m: [r["metrics"].get(m) for r in group] for m in METRICS},
    )
