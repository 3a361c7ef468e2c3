# SPDX-License-Identifier: Apache-2.0
"""The fault explorer finds nothing in the core, and does find what is planted there.

A failure prints the command that shows it again. `python tests/explore/planted.py` tells how many
seeds each planted bug takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bugs import BUGS, Bug
from planted import (
    OPS,
    OPS_CUTS,
    TOP,
    Case,
    Engine,
    Finding,
    Planted,
    Shrinker,
    build,
    seeds_to_find,
    shrunk,
)

SANITIZER = os.environ.get("CHM_SAN", "")
PLANS = [
    "none",
    "eio",
    "short",
    "torn",
    "lost",
    "late",
    "swap",
    "never",
    "mixed",
    "cut",
    "cut-cache",
    "cut-some",
    "cut-mixed",
]
QUICK_BUGS = ["an unaligned read misses", "a short read is taken"]
SEEDS_MAX = 1500  # under each plan, for a planted bug

plain_only = pytest.mark.skipif(bool(SANITIZER), reason="says nothing more with sanitizers")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(build(TOP, SANITIZER), Path(os.environ["CHM_TEST_DIR"]))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    build(TOP)
    return Planted(tmp_path_factory.mktemp("planted"))


def length(plan: str) -> int:
    return OPS_CUTS if plan in ("cut", "cut-cache") else OPS


def expect_nothing(engine: Engine, case: Case, seeds: int) -> None:
    finding = engine.run(case, seeds).finding
    if finding is None:
        return
    small = Shrinker(engine, finding, case.plan in ("cut", "cut-cache")).run()
    log = engine.run(small.case, verbose=True).log
    pytest.fail(f"{small.kind}: {small.text}\n{log}\nreplay: {small.case.command()}")


def test_plans_are_these(engine: Engine) -> None:
    assert [plan.name for plan in engine.plans()] == PLANS
    assert [plan.name for plan in engine.plans() if plan.cuts] == ["cut", "cut-cache"]


@pytest.mark.parametrize("plan", PLANS)
def test_promises_hold(engine: Engine, plan: str) -> None:
    seeds = 10 if length(plan) == OPS_CUTS else 80
    expect_nothing(engine, Case(1, plan, length(plan)), seeds // 4 if SANITIZER else seeds)


@pytest.mark.parametrize("policy", ["lru", "fifo", "clock"])
@pytest.mark.parametrize("plan", ["none", "mixed", "never", "cut-cache", "cut-mixed"])
def test_line_caches_hold(engine: Engine, plan: str, policy: str) -> None:
    """The same promises, without what has no meaning there: nothing can be prefetched."""
    seeds = 5 if length(plan) == OPS_CUTS else 30
    case = Case(1, plan, length(plan), policy)
    expect_nothing(engine, case, seeds // 2 if SANITIZER else seeds)


@pytest.mark.sweep
@pytest.mark.parametrize("plan", PLANS)
def test_promises_hold_long(engine: Engine, plan: str) -> None:
    expect_nothing(engine, Case(100000, plan, length(plan)), 200 if length(plan) < OPS else 2000)


def test_same_seeds_do_the_same(engine: Engine) -> None:
    first, second, other = (
        engine.run(Case(seed, "cut-mixed"), 20).digest for seed in (500, 500, 501)
    )
    assert first == second
    assert first != other


def test_media_agree(engine: Engine) -> None:
    """sync, io_uring and the simulated medium read the same, byte for byte."""
    outcome = engine.run(Case(1, media="sync,uring,sim"), 6)
    assert outcome.finding is None, outcome.finding
    if outcome.skipped:
        pytest.skip(f"{outcome.skipped} runs: no io_uring, or no direct I/O in {engine.folder}")


# ------------------------------------------------------------------------------------ planted bugs


def find(planted: Planted, bug: Bug) -> tuple[Engine, Finding]:
    engine = planted.engine(bug)
    tried, finding = seeds_to_find(engine, SEEDS_MAX)
    assert finding is not None, f"{bug.name}: not found in {tried} seeds"
    print(f"{bug.name}: {tried} seeds, plan {finding.case.plan}, {finding.kind}")
    return engine, finding


@plain_only
@pytest.mark.parametrize("start", QUICK_BUGS)
def test_planted_bug_is_found(planted: Planted, engine: Engine, start: str) -> None:
    """Found, made smaller, still there in what is left, and not without the bug."""
    (bug,) = [bug for bug in BUGS if bug.name.startswith(start)]
    broken, finding = find(planted, bug)
    small = shrunk(broken, finding)
    assert small.case.only is not None
    assert len(small.case.only) <= 3
    again = broken.run(small.case).finding
    assert again is not None
    assert again.kind == finding.kind
    assert engine.run(small.case).finding is None


@plain_only
@pytest.mark.sweep
def test_planted_bugs_are_found(planted: Planted) -> None:
    """Each of them; -s shows how many seeds it took."""
    for bug in BUGS:
        find(planted, bug)


# ------------------------------------------------------------------------------------ the command


def explore(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOP / "tools" / "explore.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@plain_only
def test_command_reports(engine: Engine) -> None:
    run = explore("--seeds", "8", "--plan", "none,cut", "--jobs", "2", "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["found"] == []
    assert {name: row["seeds"] for name, row in report["counts"].items()} == {
        "none/window": 8,
        "cut/window": 8,
    }
    assert report["counts"]["cut/window"]["cuts"] > 8


@plain_only
def test_a_replay_plays_what_a_sweep_plays(engine: Engine) -> None:
    """Streams that are cut at every write are shorter; a replay need not be told so."""
    for plan, ops in (("cut", OPS_CUTS), ("none", OPS)):
        short, told = (
            explore("--replay", "3", "--plan", plan, "--json", *more)
            for more in ([], ["--ops", str(ops)])
        )
        assert short.returncode == 0, short.stderr
        assert len(json.loads(short.stdout)["stream"]) >= ops
        assert short.stdout == told.stdout


@plain_only
def test_command_replays(engine: Engine) -> None:
    run = explore("--replay", "3", "--plan", "eio", "--only", "4,5,6", "--faults", "0")
    assert run.returncode == 0, run.stdout
    assert "every promise held" in run.stdout
    assert explore("--plan", "nothing").returncode == 2
