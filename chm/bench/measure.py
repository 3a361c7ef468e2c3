# SPDX-License-Identifier: Apache-2.0
"""Samples, percentiles, and what a phase cost.

Every sample keeps three times: when the operation was *meant* to start, when it did, and when it
ended. Latency counts from the first, service time from the second (F84): a tool that only knows the
second hides the queue that a stall builds up. In a closed loop, where the next operation starts
because the last one ended, both are the same, and the figure is called service time.

Percentiles are nearest-rank over the raw samples: the smallest sample that at least that share of
all samples do not exceed. Nothing is interpolated and nothing averaged away.
"""

from __future__ import annotations

import csv
import math
import resource
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

QUANTILES: dict[str, float] = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p99.9": 0.999}
I64 = npt.NDArray[np.int64]


def nearest_rank(ordered: I64, share: float) -> int:
    """The nearest-rank percentile of sorted samples; share in (0, 1]."""
    # The product is rounded first: 0.07 * 100 is a hair above 7 in binary.
    rank = math.ceil(round(share * len(ordered), 9))
    return int(ordered[max(rank, 1) - 1])


def summary(values: Iterable[int] | I64) -> dict[str, int | float]:
    """count, mean, min, p50, p90, p99, p99.9 and max of values, in their own unit."""
    ordered = np.sort(np.asarray(values, np.int64))
    if not len(ordered):
        return {"count": 0}
    out: dict[str, int | float] = {
        "count": len(ordered),
        "mean": float(ordered.mean()),
        "min": int(ordered[0]),
    }
    out.update({name: nearest_rank(ordered, q) for name, q in QUANTILES.items()})
    out["max"] = int(ordered[-1])
    return out


class Series:
    """The raw samples of one kind of operation, times in ns on the device's clock."""

    def __init__(self, open_loop: bool = False) -> None:
        self.open_loop = open_loop
        self._intended = array("q")
        self._start = array("q")
        self._end = array("q")

    def __len__(self) -> int:
        return len(self._end)

    def add(self, start: int, end: int, intended: int | None = None) -> None:
        """One operation; without an intended start it started when it was meant to."""
        self._intended.append(start if intended is None else intended)
        self._start.append(start)
        self._end.append(end)

    def columns(self) -> tuple[I64, I64, I64]:
        """(intended, start, end)."""
        return np.array(self._intended), np.array(self._start), np.array(self._end)

    def to_dict(self) -> dict[str, object]:
        """Percentiles; with both latency and service time for an open loop."""
        intended, start, end = self.columns()
        service = summary(end - start)
        if not self.open_loop:
            return {"loop": "closed", "unit": "ns", "service_time": service}
        return {
            "loop": "open",
            "unit": "ns",
            "latency": summary(end - intended),
            "service_time": service,
            "start_delay": summary(start - intended),
        }


class Samples:
    """All series of a run, by name."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def series(self, name: str, open_loop: bool = False) -> Series:
        """The series of that name, made on first use."""
        if name not in self._series:
            self._series[name] = Series(open_loop)
        return self._series[name]

    def items(self) -> Iterable[tuple[str, Series]]:
        """(name, series) of every series that has samples."""
        return [(name, s) for name, s in self._series.items() if len(s)]

    def to_dict(self) -> dict[str, object]:
        """Percentiles of every series."""
        return {name: s.to_dict() for name, s in self.items()}


def write_samples(path: Path, runs: Mapping[str, Samples]) -> None:
    """Write raw samples as CSV: run, series, intended_ns, start_ns, end_ns."""
    with path.open("w", newline="") as f:
        rows = csv.writer(f)
        rows.writerow(("run", "series", "intended_ns", "start_ns", "end_ns"))
        for run, samples in runs.items():
            for name, s in samples.items():
                for times in zip(*s.columns(), strict=True):
                    rows.writerow((run, name, *(int(t) for t in times)))


@dataclass
class Cost:
    """What a phase took: time on the device's clock, CPU time of this process, bytes moved."""

    elapsed_ns: int = 0
    cpu_ns: int = 0
    nbytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.elapsed_ns + other.elapsed_ns,
            self.cpu_ns + other.cpu_ns,
            self.nbytes + other.nbytes,
        )

    @property
    def rate(self) -> float | None:
        """Bytes per second, or None when nothing was timed."""
        return self.nbytes * 1e9 / self.elapsed_ns if self.elapsed_ns and self.nbytes else None

    @property
    def cpu_s_per_gib(self) -> float | None:
        """CPU seconds of all threads per GiB moved, or None if not measured."""
        return self.cpu_ns / 1e9 / (self.nbytes / 2**30) if self.nbytes and self.cpu_ns else None


@dataclass
class Stopwatch:
    """Times a phase on a given clock: `with watch:` adds to `cost`.

    Without `cpu` no CPU time is kept: on a virtual clock it would be the simulator's.
    """

    now: Callable[[], int]
    cost: Cost = field(default_factory=Cost)
    cpu: bool = True
    _began: tuple[int, int] = (0, 0)

    def __enter__(self) -> Cost:
        self._began = (self.now(), time.process_time_ns())
        return self.cost

    def __exit__(self, *exc: object) -> None:
        began, cpu = self._began
        self.cost.elapsed_ns += self.now() - began
        if self.cpu:
            self.cost.cpu_ns += time.process_time_ns() - cpu


def peak_rss_bytes() -> int:
    """The largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
