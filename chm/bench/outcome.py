# SPDX-License-Identifier: Apache-2.0
"""What an experiment hands back, and the JSON document that carries it.

    {"schema": "chm-bench/1", "tool", "version", "command", "started", "host", "units",
     "results": [one per run], "failures": [runs that could not be finished],
     "comparison": whether the runs used the same amount of DRAM}

Every result has its configuration and seed, the device as it came up, metrics, percentiles,
counters, the DRAM it used, and checks. Units are the endings of names: _bytes, _ns, _s,
_bytes_per_s, _ratio, ...
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import chm
from chm.bench import host, options
from chm.bench.charts import Chart
from chm.bench.measure import Cost, Samples, peak_rss_bytes
from chm.bench.target import Target, data_path
from chm.bench.versus import comparisons
from chm.stats import Stats

SCHEMA = "chm-bench/1"
SAME_BUDGET = 1.05  # most to least DRAM of runs that may be called equal
UNITS = {
    "_bytes": "bytes",
    "_bytes_per_s": "bytes per second (decimal)",
    "_ns": "nanoseconds on the device's clock",
    "_s": "seconds",
    "_cpu_s_per_gib": "CPU seconds of all threads per GiB (2^30 bytes)",
    "_ratio": "dimensionless",
    "_rate (hits)": "hits per look-up, 0 to 1",
    "latency": "from the intended start to the end; service_time: from the actual start",
}


@dataclass
class Outcome:
    """The result of one run, before it has a name."""

    metrics: dict[str, float | int | None] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    samples: Samples = field(default_factory=Samples)
    counters: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    device: dict[str, Any] = field(default_factory=dict)
    device_stats: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    dram: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    chart: Chart | None = None

    def close(self, target: Target, stats: Stats) -> None:
        """Take from the target what every result carries, and the device's counters so far."""
        self.device = target.describe()
        self.device_stats = stats_to_dict(stats)
        self.dram = target.dram()
        self.notes += target.notes

    def check(self, name: str, ok: bool, detail: str = "") -> None:
        """Note a check; a run with a failed one is a failed run."""
        self.checks.append({"name": name, "ok": ok, "detail": detail})

    @property
    def failed_checks(self) -> list[str]:
        """Names of the checks that failed."""
        return [f"{c['name']}: {c['detail']}" for c in self.checks if not c["ok"]]


@dataclass
class Result:
    """One finished run."""

    name: str
    experiment: str
    config: Any
    axes: dict[str, str]
    outcome: Outcome

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        out = self.outcome
        return {
            "name": self.name,
            "experiment": self.experiment,
            "axes": self.axes,
            "config": options.to_json(self.config),
            "seed": self.config.seed,
            "device": out.device,
            "workload": out.workload,
            "metrics": out.metrics,
            "latency": out.samples.to_dict(),
            "rows": out.rows,
            "counters": out.counters,
            "checks": out.checks,
            "dram": out.dram,
            "dram_total_bytes": sum(d["bytes"] or 0 for d in out.dram),
            "peak_rss_bytes": peak_rss_bytes(),
            "device_stats": out.device_stats,
            "notes": out.notes,
            "host": host.facts(data_path(self.config)),
        }


def stats_to_dict(stats: Stats) -> dict[str, Any]:
    """Counters of the device, and quantiles of its histograms (without their buckets)."""
    return {
        name: {k: v for k, v in value.items() if k != "buckets"}
        if isinstance(value, dict)
        else value
        for name, value in stats.to_dict().items()
    }


def phase(prefix: str, cost: Cost) -> dict[str, float | int | None]:
    """The figures of one timed phase; CPU time is null where it was not measured."""
    return {
        f"{prefix}_bytes": cost.nbytes,
        f"{prefix}_s": cost.elapsed_ns / 1e9,
        f"{prefix}_bytes_per_s": cost.rate,
        f"{prefix}_cpu_s_per_gib": cost.cpu_s_per_gib,
    }


def compare(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether the runs may be compared as arms of one budget (F90)."""
    totals = {r["name"]: r["dram_total_bytes"] for r in results}
    spread = max(totals.values()) / min(totals.values()) if len(totals) > 1 else 1.0
    return {"equal_dram": spread <= SAME_BUDGET, "dram_total_bytes": totals}


def document(
    command: Sequence[str], results: Sequence[dict[str, Any]], failures: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The whole JSON document."""
    versus = [v.to_dict() for v in comparisons(results)]
    return {
        "schema": SCHEMA,
        "tool": "chm-bench",
        "version": chm.__version__,
        "command": list(command),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "host": host.facts(),
        "units": UNITS,
        "results": list(results),
        "failures": list(failures),
        "comparison": compare(results) | ({"policies": versus} if versus else {}),
    }


def dumps(doc: dict[str, Any]) -> str:
    """Strict JSON: what is not a number becomes null."""
    return json.dumps(_finite(doc), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
