# SPDX-License-Identifier: Apache-2.0
"""Percentiles against their definition, and what open and closed loops may claim."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chm.bench.measure import Cost, Samples, Series, Stopwatch, nearest_rank, summary, write_samples


@given(values=st.lists(st.integers(0, 50), min_size=1, max_size=300), cent=st.integers(1, 1000))
def test_nearest_rank_is_its_definition(values: list[int], cent: int) -> None:
    """The smallest value that at least that share of all values do not exceed."""
    got = nearest_rank(np.sort(np.array(values)), cent / 1000)
    good = [
        v for v in sorted(set(values)) if 1000 * sum(x <= v for x in values) >= cent * len(values)
    ]
    assert got == good[0]


def test_summary() -> None:
    got = summary(np.arange(1000, 0, -1))
    assert got == {
        "count": 1000, "mean": 500.5, "min": 1,
        "p50": 500, "p90": 900, "p99": 990, "p99.9": 999, "max": 1000,
    }  # fmt: skip
    assert summary([]) == {"count": 0}


def test_f84_open_loop_counts_from_the_intended_start() -> None:
    s = Series(open_loop=True)
    s.add(start=100, end=130, intended=40)
    got = s.to_dict()
    assert got["latency"]["max"] == 90  # type: ignore[index]
    assert got["service_time"]["max"] == 30  # type: ignore[index]
    assert got["start_delay"]["max"] == 60  # type: ignore[index]


def test_f84_closed_loop_is_labelled_service_time() -> None:
    s = Series()
    s.add(start=100, end=130)
    assert s.to_dict().keys() == {"loop", "unit", "service_time"}


def test_raw_samples_can_be_written(tmp_path: Path) -> None:
    samples = Samples()
    samples.series("x", open_loop=True).add(5, 9, 1)
    samples.series("empty")
    write_samples(tmp_path / "s.csv", {"run": samples})
    with (tmp_path / "s.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert rows == [
        {"run": "run", "series": "x", "intended_ns": "1", "start_ns": "5", "end_ns": "9"}
    ]


def test_costs_add_up_and_rates_follow() -> None:
    total = Cost(10**9, 5 * 10**8, 2**30) + Cost(10**9, 0, 2**30)
    assert total.rate == pytest.approx(2**30)
    assert total.cpu_s_per_gib == pytest.approx(0.25)
    assert Cost().rate is None
    assert Cost(nbytes=5).cpu_s_per_gib is None


def test_a_stopwatch_without_cpu_keeps_none() -> None:
    clock = iter((5, 12))
    cost = Cost()
    with Stopwatch(lambda: next(clock), cost, cpu=False):
        sum(range(10000))
    assert (cost.elapsed_ns, cost.cpu_ns) == (7, 0)
