# SPDX-License-Identifier: Apache-2.0
"""Every figure, in its quick form: measured, judged, and the same again from the same seed."""

from __future__ import annotations

import json
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest

from chm.bench.paper import study
from chm.bench.paper.catalog import FIGURES, pick
from chm.bench.paper.claim import Verdict
from chm.bench.paper.figure import Finding, Settings
from chm.bench.paper.lab import STRUCTURE, SWITCHES, Lab, options_for
from chm.bench.paper.study import Result, conduct, document

QUICK = Settings(quick=True)
ARITHMETIC = {"F15"}


def measured(name: str, settings: Settings = QUICK) -> Result:
    (result,) = conduct(pick([name]), settings, 1, lambda _: None)
    assert result.error == ""
    return result


@pytest.mark.parametrize("name", FIGURES)
def test_figure(name: str) -> None:
    result = measured(name)
    wrong = {line.claim.key: line.ours for line in result.lines if line.unexpected}
    assert wrong == {}
    assert [line.claim.key for line in result.lines] == [c.key for c in result.figure.claims]
    assert not result.failed
    if name not in ARITHMETIC:
        assert result.runs
        assert all(run["preset"] in result.figure.presets for run in result.runs)
        assert any(int(run["sim_digest"], 16) for run in result.runs)
    assert set(result.figure.known) <= {c.key for c in result.figure.claims}


@pytest.mark.parametrize("name", ["F5", "F17", "F20", "F23", "A3"])
def test_the_same_seed_gives_the_same_document(name: str) -> None:
    first, second = (document([measured(name)], QUICK) for _ in range(2))
    assert first == second
    assert json.loads(first)["ok"]


@pytest.mark.parametrize("name", ["F17", "F19"])
def test_another_seed_is_another_run(name: str) -> None:
    one, two = (measured(name, Settings(seed=s, quick=True)) for s in (1, 2))
    assert [run["sim_digest"] for run in one.runs] != [run["sim_digest"] for run in two.runs]
    assert not two.failed, "and comes to the same verdict"


def test_a_slower_drive_misses() -> None:
    """Break the device: the figures that stand on its rate say so."""
    result = measured("F5", Settings(quick=True, sets=(("read_rate", "8GB/s"),)))
    verdicts = {line.claim.key: line.verdict for line in result.lines}
    assert verdicts["off"] is Verdict.MISSED
    assert verdicts["on"] is Verdict.MISSED
    assert result.failed


def test_a_smaller_cache_collapses_earlier() -> None:
    result = measured("F2", Settings(quick=True, sets=(("dram_bytes", "8GiB"),)))
    verdicts = {line.claim.key: line.verdict for line in result.lines}
    assert verdicts["turn.32"] is Verdict.MISSED


@pytest.mark.parametrize("field", ["read_rate", "link_rate", "line_fills", "command_ns"])
def test_a_figure_may_not_set_a_time_or_a_rate(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is the preset's"):
        options_for("hymcache-proto", 1 << 30, QUICK, {field: 1})
    if field not in SWITCHES:
        with pytest.raises(ValueError, match=f"{field} is the preset's"):
            options_for("hymcache-proto", 1 << 30, QUICK, {}, (field,))


def test_no_time_and_no_rate_is_structure() -> None:
    assert [f for f in STRUCTURE if f.endswith(("_ns", "_rate")) or "percent" in f[:9]] == []
    assert "line_fills" not in STRUCTURE
    assert "effective_percent" not in STRUCTURE


def test_a_figure_that_fails_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(lab: Lab, part: str) -> dict[str, object]:
        raise ValueError("no such device")

    f15 = FIGURES["F15"]
    object.__setattr__(f15, "measure", broken)
    try:
        results = conduct(pick(["F15", "F23"]), QUICK, 1, lambda _: None)
    finally:
        from chm.bench.paper import f15 as module

        object.__setattr__(f15, "measure", module.measure)
    assert results[0].error == "all: no such device"
    assert results[0].failed
    assert results[0].verdict is Verdict.MISSED
    assert not results[1].failed


def test_a_process_that_dies_is_told() -> None:
    """What the kernel does to a process when memory is short."""
    future: Future[study.Answer] = Future()
    future.set_exception(BrokenProcessPool("gone"))
    assert "its process ended" in study._answer(future, "all")[2]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({"entries": 655_360, "bytes": 40}, Verdict.MET),
        ({"entries": 655_360, "bytes": 41}, Verdict.MISSED),
        ({}, Verdict.REPORTED),
    ],
)
def test_one_miss_makes_a_figure_missed(values: dict[str, int], verdict: Verdict) -> None:
    f = FIGURES["F15"]
    lines = [study._judge(f, claim, values[claim.key]) for claim in f.claims if values]
    assert Result(f, Finding(values), lines, []).verdict is verdict


def test_further_ratios_of_f18() -> None:
    settings = Settings(quick=True, ratios=(0.05,))
    names = [part.name for part in FIGURES["F18"].parts(settings)]
    assert "0.05" in names
    assert study.measure_part("F18", "0.05", settings)[0]["hit rate"] == 1
