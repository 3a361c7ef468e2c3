# SPDX-License-Identifier: Apache-2.0
"""`chm-bench replay`, on traces made here: what it counts, and what its progress file promises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replay_rig import Rig, make_traces

from chm.bench.replay.command import _complete_members
from chm.bench.replay.notes import Row, begin, resume
from chm.bench.replay.summary import Summary
from chm.bench.replay.work import read_work
from chm.bench.target import BenchError
from chm.bench.traces import TraceError

Invoke = Callable[..., Any]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, make_traces(tmp_path), ("--block", "4KiB"))


# ------------------------------------------------------------------ work


def test_traces_go_on_together_and_share_no_object(tmp_path: Path) -> None:
    chat, synthetic, agents = make_traces(tmp_path)
    work = read_work([str(chat), str(synthetic), str(agents)], [4096], 0, 0)
    half = work.steps[: len(work.steps) // 2]
    for trace in range(3):
        mine = [step for step in work.steps if step.trace == trace]
        assert abs(sum(step.trace == trace for step in half) - len(mine) / 2) <= 1
    objects = [{n for s in work.steps if s.trace == t for n in s.objects} for t in range(3)]
    assert sum(map(len, objects)) == len(set().union(*objects)) == work.objects
    assert len({work.key(n) for n in range(work.objects)}) == work.objects


def test_a_trace_in_two_files_is_one_trace(tmp_path: Path) -> None:
    chat, *_ = make_traces(tmp_path)
    lines = chat.read_text().splitlines(keepends=True)
    parts = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    parts[0].write_text("".join(lines[:20]))
    parts[1].write_text("".join(lines[20:]))
    whole = read_work([str(chat)], [4096], 0, 0)
    joined = read_work(["+".join(map(str, parts))], [4096], 0, 0)
    assert joined.steps == whole.steps
    assert joined.names == ("one+two",)


def test_blocks_are_joined_to_objects_of_so_many_tokens(tmp_path: Path) -> None:
    chat, _, agents = make_traces(tmp_path)
    work = read_work([str(chat), str(agents)], [4096], 512, 0)
    plain = read_work([str(chat), str(agents)], [4096], 0, 0)
    for joined, whole in zip(work.steps, plain.steps, strict=True):
        share = 8 if joined.trace == 1 else 1  # 64 tokens a block, and 512
        assert len(joined.objects) == len(whole.objects) // share
    with pytest.raises(TraceError, match="700 tokens"):
        read_work([str(chat)], [4096], 700, 0)


def test_sizes_are_a_function_of_the_key(tmp_path: Path) -> None:
    chat, *_ = make_traces(tmp_path)
    sizes = (4096, 10_000, 12_288)
    works = [read_work([str(chat)], sizes, 0, 0) for _ in range(2)]
    found = [[w.size(w.key(n)) for n in range(w.objects)] for w in works]
    assert found[0] == found[1]
    assert set(found[0]) == set(sizes)


def test_an_unbounded_cache_has_the_leading_blocks_seen_before(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [[1, 2], [1, 2, 3], [4, 1], [1, 5, 2]]
    path.write_text(
        "".join(json.dumps({"timestamp": i, "hash_ids": r}) + "\n" for i, r in enumerate(rows))
    )
    assert list(read_work([str(path)], [4096], 0, 0).possible()) == [0, 2, 0, 1]


# ------------------------------------------------------------------ the progress file


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    path, rows = tmp_path / "p", [Row(0, 3, 1, 2, 0, 0, 4096, {"0": 1}), Row(1, 2, 2, 0, 0, 0, 9)]
    with begin(path, {"seed": 1}) as notes:
        notes.add(rows)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with resume(path, {"seed": 1}) as notes:
        assert (notes.rows, notes.run) == (rows[:1], 2)
        notes.add(rows[1:])
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "another run"),
        ("no json\n", "p:1: not a progress file"),
        ('{"replay": 1, "seed": 2}\n', "seed differ"),
        ('{"replay": 1, "seed": 1}\n{"asked": 1}\n', "not a progress file"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "p").write_text(text)
    with pytest.raises(BenchError, match=message):
        resume(tmp_path / "p", {"seed": 1})
    assert (tmp_path / "p").read_text() == text


def test_windows_end_where_the_next_restart_is(tmp_path: Path) -> None:
    chat, *_ = make_traces(tmp_path)
    work = read_work([str(chat)], [4096], 0, 10)
    rows = [Row(0, 10, i, 10 - i, 0, 0, 0, run=1 + (i > 3) + (i > 5)) for i in range(10)]
    first, second = Summary(work, rows, [10] * 10, 3).restarts()
    assert (first.request, first.before.usable, first.after.usable) == (4, 1 + 2 + 3, 4 + 5)
    assert (second.request, second.before.usable, second.after.usable) == (6, 3 + 4 + 5, 6 + 7 + 8)


# ------------------------------------------------------------------ the command


def test_all_that_can_be_hit_is_hit_and_checked(rig: Rig, invoke: Invoke) -> None:
    told = rig.replay(invoke)
    total, work = told["total"], rig.work()
    assert total["usable"] == total["possible"] == sum(work.possible()) > 0
    assert total["verified_bytes"] == 4096 * total["usable"]
    assert total["stored"] == work.objects == sum(n["objects"] for n in told["nodes"])
    assert total["duplicate"] == total["skipped"] == 0
    assert total["asked"] == sum(t["asked"] for t in told["traces"])
    assert sum(n["read_blocks"] for n in told["nodes"]) == total["usable"]
    assert min(n["read_blocks"] for n in told["nodes"]) > 0
    assert told["restarts"] == []
    assert told["latency"]["request"]["service_time"]["count"] == len(work.steps)


def test_a_smaller_store_hits_less_and_says_so(rig: Rig, invoke: Invoke, tmp_path: Path) -> None:
    chart = tmp_path / "chart.png"
    small = ("--block", "256KiB", "--capacity", "48MiB", "--png", str(chart))
    total = rig.replay(invoke, *small)["total"]
    assert 0 < total["usable"] < total["possible"]
    assert total["skipped"] == 0, "puts wait until the stores have evicted"
    assert total["verified_bytes"] == total["usable"] * (256 << 10)
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_byte_ends_it(rig: Rig, invoke: Invoke) -> None:
    rig.replay(invoke)
    rig.state.unlink()
    shown = invoke(*rig.args("--seed", "2"), code=1)
    assert "wrong bytes" in shown.stderr


def test_what_is_done_is_done(rig: Rig, invoke: Invoke) -> None:
    first = rig.replay(invoke)
    refused = invoke(*rig.args(), code=1)
    assert "--resume" in refused.stderr
    again = rig.replay(invoke, "--resume")
    assert again["total"] == first["total"]
    assert again["latency"] == {}


def test_warm_members_hit_from_the_first_request_on(rig: Rig, invoke: Invoke) -> None:
    rig.replay(invoke)
    rig.state.unlink()
    total = rig.replay(invoke)["total"]
    assert total["usable"] == total["asked"] > total["possible"]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--resume",), 1, "leave out --resume"),
        (("--block", "0"), 2, "--block"),
        (("--block", "much"), 2, "--block"),
        (("--members", "a,a"), 2, "different files"),
        (("--deadline", "soon"), 2, "--deadline"),
        (("--tokens", "100"), 1, "100 tokens"),
        (("no-such-trace",), 1, "no-such-trace"),
    ],
)
def test_errors_name_the_fix(
    rig: Rig, invoke: Invoke, args: tuple[str, ...], code: int, message: str
) -> None:
    shown = invoke(*rig.args(*args), code=code)
    assert message in shown.stderr
    assert not rig.state.exists()
    assert not any(path.exists() for path in rig.members)


def test_a_file_that_is_no_member_is_not_touched(rig: Rig, invoke: Invoke) -> None:
    rig.members[1].write_text("dear diary")
    shown = invoke(*rig.args(), code=1)
    assert str(rig.members[1].name) in shown.stderr.replace("\n", "")
    assert rig.members[1].read_text() == "dear diary"
    assert not rig.state.exists()


def test_the_last_member_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("kv0.chm", "kv1.chm", "other"):
        Path(name).touch()
    assert _complete_members(None, None, "kv") == ["kv0.chm", "kv1.chm"]
    assert _complete_members(None, None, "kv0.chm,kv1") == ["kv0.chm,kv1.chm"]
