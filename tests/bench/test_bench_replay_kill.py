# SPDX-License-Identifier: Apache-2.0
"""A replay that is killed with kill -9 goes on with the hit rate it had (F42).

What a request can use follows from what the members have when it begins: so after a kill the
members are looked at, and every number of the rest of the run has to be as computed from that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replay_rig import Rig, make_traces, usable_from

Invoke = Callable[..., Any]
MIXED = (4096, 9000, 20_480)
MIXED_OPTION = ("--block", "4KiB,9000,20KiB")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, make_traces(tmp_path), MIXED_OPTION, sizes=MIXED)


def check_rest(rig: Rig, told: dict[str, Any], noted: int, there: set[int]) -> None:
    """The rest went on from what was there, and nothing was wrong or refused."""
    rows, work = rig.rows(), rig.work()
    assert len(rows) == len(work.steps)
    assert [row.usable for row in rows[noted:]] == list(usable_from(work, there, noted))
    for row, step in zip(rows, work.steps, strict=True):
        keys = [work.key(n) for n in step.objects[: row.usable]]
        assert row.verified_bytes == sum(map(work.size, keys))
        assert row.skipped == 0
    assert told["restarts"][-1]["request"] == noted


def check_exact(rig: Rig, invoke: Invoke, share: float, sync: int) -> None:
    """Noted requests were made durable: beyond those on their way, every number is that of a run
    that was not killed."""
    work, option = rig.work(), ("--sync", str(sync))
    want = list(work.possible())  # test_bench_replay: an uninterrupted run has exactly these
    noted = rig.kill(int(share * len(work.steps)), *option)
    assert 0 < noted < len(work.steps)
    there = rig.there()
    assert there >= {n for step in work.steps[:noted] for n in step.objects}
    told = rig.replay(invoke, "--resume", *option)
    check_rest(rig, told, noted, there)
    usable = [row.usable for row in rig.rows()]
    assert usable[:noted] == want[:noted]
    again = noted + sync  # these may have been made before the kill, too
    assert all(a >= b for a, b in zip(usable[noted:again], want[noted:again], strict=True))
    assert usable[again:] == want[again:]
    assert told["total"]["hit_rate"] >= told["total"]["possible_rate"]


@pytest.mark.parametrize(("share", "sync"), [(0.5, 1), (0.3, 8)])
def test_what_was_noted_as_durable_is_hit_again(
    rig: Rig, invoke: Invoke, share: float, sync: int
) -> None:
    check_exact(rig, invoke, share, sync)


def test_left_to_the_store_only_what_was_not_durable_is_lost(rig: Rig, invoke: Invoke) -> None:
    """Noted at once: a kill costs what was put within the store's sync interval, and no more than
    these objects miss, once."""
    work = rig.work()
    noted = rig.kill(len(work.steps) // 2)
    there = rig.there()
    lost = {n for step in work.steps[:noted] for n in step.objects} - there
    told = rig.replay(invoke, "--resume")
    check_rest(rig, told, noted, there)
    put = sum(row.stored for row in rig.rows())
    assert work.objects <= put <= work.objects + len(lost)


@pytest.mark.slow
def test_killed_again_and_again_with_a_member_missing_in_between(rig: Rig, invoke: Invoke) -> None:
    """The middle part runs without the second member: its objects miss, and are put again on the
    first. When it is back, what either has is hit."""
    n, away = len(rig.work().steps), rig.folder / "away"
    first = rig.kill(n // 3, "--sync", "1")
    whole = rig.there()
    rig.members[1].rename(away)
    some = rig.there()
    assert set() < some < whole
    second = rig.kill(2 * n // 3, "--sync", "1", "--resume")
    assert first < second < n
    rows = [row.usable for row in rig.rows()[first:second]]
    assert rows == list(usable_from(rig.work(), some, first))[: second - first]
    away.rename(rig.members[1])
    there = rig.there()
    assert there >= whole
    told = rig.replay(invoke, "--resume", "--sync", "1")
    check_rest(rig, told, second, there)
    assert [r["request"] for r in told["restarts"]] == [first, second]


@pytest.mark.slow
def test_a_member_that_stays_away(rig: Rig, invoke: Invoke) -> None:
    noted = rig.kill(len(rig.work().steps) // 2, "--sync", "1")
    whole = rig.there()  # opens both, and so removes what the killed owner published
    rig.members[1].unlink()
    there = rig.there()
    assert set() < there < whole
    shown = invoke(*rig.args("--resume"))
    assert "b.chm is missing" in shown.stderr.replace("\n", "")
    assert not rig.members[1].exists(), "no empty member takes its place"
    told = rig.replay(invoke, "--resume")
    check_rest(rig, told, noted, there)
    assert [n["state"] for n in told["nodes"]] == ["up", "missing"]


@pytest.mark.slow
def test_traces_of_others(tmp_path: Path, invoke: Invoke) -> None:
    """The beginning of each trace in the folder that CHM_TRACES names."""
    folder = os.environ.get("CHM_TRACES")
    if not folder:
        pytest.skip("CHM_TRACES names no folder with traces (docs/testing.md)")
    traces = sorted(Path(folder).glob("*.jsonl"))
    options = ("--tokens", "512", "--requests", "150", *MIXED_OPTION)
    rig = Rig(tmp_path, traces, options, tokens=512, requests=150, sizes=MIXED)
    check_exact(rig, invoke, 0.5, 16)
