# SPDX-License-Identifier: Apache-2.0
"""`latency`: open and closed loops on the simulated medium."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Measure = Callable[..., dict[str, Any]]
BASE = ["latency", "--block-size", "64KiB", "--footprint", "4MiB", "--count", "400"]
SECOND = 10**9


@pytest.mark.parametrize("op", ["stage", "demand"])
def test_f84_a_stall_shows_in_all_that_it_delayed(measure: Measure, op: str) -> None:
    """100 operations a second, one at a time; one read stalls for 1 s and 100 queue behind it."""
    result = measure(
        *BASE,
        "--op",
        op,
        "--rate",
        "100",
        "--concurrency",
        "1",
        "--fault",
        "50 read late 1000000000",
    )
    series = result["latency"][op]
    assert series["loop"] == "open"
    latency, service = series["latency"], series["service_time"]
    assert latency["count"] == service["count"] == 400
    assert latency["p99"] > 0.95 * SECOND
    assert latency["p90"] > 0.5 * SECOND
    assert latency["p50"] < 0.001 * SECOND
    assert service["p99"] < 0.001 * SECOND, "the service time alone would hide the stall"
    assert series["start_delay"]["max"] > 0.95 * SECOND


def test_f84_both_start_times_are_kept(invoke: Callable[..., Any], tmp_path: Path) -> None:
    raw = tmp_path / "s.csv"
    invoke(*BASE, "--media", "sim", "--dram", "8MiB", "--rate", "1000", "--samples", str(raw))
    with raw.open() as f:
        rows = [r for r in csv.DictReader(f) if r["series"] == "stage"]
    due = np.array([int(r["intended_ns"]) for r in rows])
    assert sorted(np.diff(np.sort(due))) == [10**6] * 399
    assert all(int(r["start_ns"]) >= int(r["intended_ns"]) for r in rows)


@pytest.mark.parametrize("op", ["stage", "demand", "put"])
def test_a_closed_loop_is_labelled_service_time(measure: Measure, op: str) -> None:
    series = measure(*BASE, "--op", op, "--loop", "closed")["latency"][op]
    assert series["loop"] == "closed"
    assert "latency" not in series
    assert series["service_time"]["count"] == 400


def test_an_idle_device_answers_in_its_own_time(measure: Measure) -> None:
    """80 us + 64 KiB at 2 GB/s = 112.8 us, each: an open loop far below the device's rate."""
    series = measure(*BASE, "--rate", "10")["latency"]["stage"]
    want = 80_000 + round(65536 / 2e9 * 1e9)
    assert series["latency"]["p50"] == pytest.approx(want, rel=0.01)
    assert series["latency"]["max"] == pytest.approx(want, rel=0.01)


def test_poisson_arrivals_follow_the_seed(measure: Measure) -> None:
    def run(seed: str) -> Any:
        return measure(*BASE, "--spacing", "poisson", "--rate", "8000", "--seed", seed)["latency"]

    assert run("1") == run("1")
    assert run("1") != run("2")


def test_failed_operations_fail_the_run(invoke: Callable[..., Any]) -> None:
    shown = invoke(*BASE, "--media", "sim", "--dram", "8MiB", "--fault", "5 read err 5", code=1)
    assert "no operation failed: 1 of 400" in shown.stderr


def test_bytes_are_checked(measure: Measure) -> None:
    metrics = measure(*BASE, "--verify", "all")["metrics"]
    assert metrics["verified_bytes"] == 400 * 65536
