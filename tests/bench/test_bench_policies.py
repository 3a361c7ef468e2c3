# SPDX-License-Identifier: Apache-2.0
"""`turns --policy`: the comparison in virtual time, where every figure is exact."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import pytest

Invoke = Callable[..., click.testing.Result]
KIB, MIB = 1 << 10, 1 << 20
SMALL = [
    "turns", "--media", "sim", "--dram", "8MiB", "--write-buffer", "4MiB", "--block-size", "256KiB",
    "--conversations", "3", "--turns", "4", "--sim-read-latency", "1ns", "--verify", "all",
]  # fmt: skip


@pytest.fixture
def compared(invoke: Invoke) -> Callable[..., dict[str, Any]]:
    """Run `turns` and return its document."""

    def run(*args: str) -> dict[str, Any]:
        return dict(json.loads(invoke(*SMALL, *args, "--json", "-").stdout))

    return run


Compared = Callable[..., dict[str, Any]]


def by_policy(document: dict[str, Any]) -> dict[str, Any]:
    return {r["axes"]["policy"]: r for r in document["results"]}


def digest(document: dict[str, Any]) -> str:
    """Of all that is not the host's, the process's or the hour's."""
    kept = []
    for r in document["results"]:
        metrics = {k: v for k, v in r["metrics"].items() if k != "verify_s"}
        kept.append([r["name"], metrics, r["rows"], r["latency"], r["workload"], r["counters"]])
    text = json.dumps([kept, document["comparison"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def test_one_comparison_of_device_caches(compared: Compared) -> None:
    document = compared("--policy", "lru,fifo,window")
    (versus,) = document["comparison"]["policies"]
    assert list(versus["policies"]) == ["lru", "fifo", "window"]
    assert versus["rounds"] == ["1", "2", "3", "4"]
    results = by_policy(document)
    assert {r["metrics"]["hit_rate"] for r in results.values()} == {54 / 90}
    assert {r["metrics"]["read_bytes"] for r in results.values()} == {54 * 256 * KIB}
    assert results["lru"]["workload"]["policy"]["prefetch"] == "none"
    assert results["lru"]["device"]["media"] == results["window"]["device"]["media"]
    assert results["lru"]["metrics"]["line_hits"] > 0
    assert results["window"]["metrics"]["line_hit_rate"] is None
    for name, result in results.items():
        used, device = {d["what"]: d["bytes"] for d in result["dram"]}, result["device"]
        staging = "window" if name == "window" else "cache lines"
        assert used[staging] == max(device["window_bytes"], device["cache_bytes"])
        own = used[staging] + used["write buffer"] + used.get("demand reserve", 0)
        assert own == device["dram_bytes"]
    for name, figures in versus["policies"].items():
        assert figures["medium_read_bytes"] == results[name]["metrics"]["medium_read_bytes"]
        rates = [row["read_bytes_per_s"] for row in results[name]["rows"]]
        assert figures["read_bytes_per_s_by_round"] == rates


def test_the_comparison_repeats_exactly(compared: Compared) -> None:
    args = ("--policy", "lru,evict-fifo+second-sight,think-time", "--capacity", "6MiB")
    assert digest(compared(*args)) == digest(compared(*args))


def test_the_table_has_a_column_per_policy(invoke: Invoke) -> None:
    out = invoke(*SMALL, "--policy", "window,none").stdout
    header = next(line for line in out.splitlines() if line.split() == ["turn", "window", "none"])
    assert header
    assert "SSD written" in out
    assert "◆ none" in out  # the chart


# ---- prefetch


def test_think_time_hides_all_of_a_long_pause_and_part_of_a_short_one(compared: Compared) -> None:
    """One conversation of up to 9 blocks of 256 KiB at 100 MB/s: 2.6 ms each. The window holds
    them all. A pause of 100 ms stages them; one of 5 ms stages some."""
    args = ("--conversations", "1", "--policy", "think-time", "--dram", "16MiB")
    args += ("--sim-read-rate", "100MB/s")

    def waits(think: str) -> dict[str, Any]:
        (result,) = compared(*args, "--think", think)["results"]
        assert result["metrics"]["staged_early_used_blocks"] == 18
        return dict(result["latency"]["piece_wait"]["service_time"])

    long, short, none = waits("100ms"), waits("5ms"), waits("0")
    assert long["count"] == short["count"] == 18
    assert long["max"] == 0
    assert 0 < short["mean"] < none["mean"]
    assert short["min"] == 0


def test_staged_blocks_stay_within_the_window(compared: Compared) -> None:
    """Twelve conversations do not fit at once: those whose turn ended first are served first, and
    the rest follows into the room that reading gives back: the window less a tenth, and less two
    blocks for the stream."""
    (result,) = compared("--conversations", "12", "--policy", "think-time", "--think", "10ms")[
        "results"
    ]
    total = result["counters"]["total"]
    assert total["delivered"] == total["hits"] == 12 * 18
    assert total["read_failed"] == 0
    room = result["device"]["window_bytes"] * 9 // 10 - 2 * 256 * KIB
    assert result["metrics"]["staged_early_peak_blocks"] == room // (256 * KIB)
    assert result["metrics"]["staged_early_used_blocks"] == 12 * 18
    waits = result["latency"]["piece_wait"]["service_time"]
    assert waits["p50"] > 0 == waits["min"]


def test_none_is_prefetch_off(compared: Compared) -> None:
    (off,) = compared("--prefetch", "off")["results"]
    (none,) = compared("--policy", "none")["results"]
    assert off["rows"] == none["rows"]


# ---- admission


def test_a_refused_block_refuses_the_rest(compared: Compared) -> None:
    """Prefixes of 3, 6, 9, 12 blocks; nothing below 9 is written."""
    (result,) = compared("--policy", "min-prefix:9")["results"]
    rows = result["rows"]
    assert [r["admitted"] for r in rows] == [0, 0, 27, 9]
    assert [r["skipped_policy"] for r in rows] == [3, 3, 0, 0]
    assert [r["skipped_chain"] for r in rows] == [6, 15, 0, 0]
    assert [r["hits"] for r in rows] == [0, 0, 0, 27]


def test_second_sight_writes_one_turn_late(compared: Compared) -> None:
    (result,) = compared("--policy", "second-sight")["results"]
    assert [r["admitted"] for r in result["rows"]] == [0, 9, 9, 9]
    assert [r["hits"] for r in result["rows"]] == [0, 0, 9, 18]
    assert result["metrics"]["payload_written_bytes"] == 27 * 256 * KIB


# ---- placement


def test_whole_requests_lie_on_one_member(compared: Compared) -> None:
    """Four conversations of 12 blocks over 4 members: 12 on each. Alone, a request is read at the
    rate of one drive, striped at that of all; four at a time need no stripes."""
    args = ("--conversations", "4", "--members", "4", "--stripe", "64KiB", "--dram", "32MiB")
    policies = "stripe,whole-request,whole-request:least-loaded"
    alone = by_policy(compared(*args, "--policy", policies))
    assert alone["whole-request"]["workload"]["node_bytes"] == [12 * 256 * KIB] * 4
    least = alone["whole-request:least-loaded"]
    assert least["workload"]["node_bytes"] == [12 * 256 * KIB] * 4
    assert least["metrics"]["misplaced_blocks"] == 0
    rate = {p: r["metrics"]["read_bytes_per_s"] for p, r in alone.items()}
    assert rate["whole-request"] == pytest.approx(2e9, rel=0.01)
    assert rate["stripe"] == pytest.approx(8e9, rel=0.05)
    four = compared(*args, "--policy", "whole-request", "--concurrency", "4")["results"][0]
    assert four["metrics"]["read_bytes_per_s"] == pytest.approx(8e9, rel=0.05)


# ---- a class of one's own, and errors


def test_a_class_of_ones_own(
    compared: Compared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_policy_b.py").write_text(
        "from chm.policies.eviction import Tail\n"
        "class Newest(Tail):\n"
        "    def victim(self, may_go):\n"
        "        return next((k for k in reversed(self.order) if may_go(k)), None)\n"
        "class Broken(Tail):\n"
        "    def victim(self, may_go):\n"
        "        return -1\n"
    )
    monkeypatch.chdir(tmp_path)
    document = compared("--policy", "evict-tail,own_policy_b:Newest", "--capacity", "4MiB")
    results = by_policy(document)
    tail, own = results["evict-tail"], results["own_policy_b:Newest"]
    assert own["workload"]["policy"]["eviction"] == "own_policy_b:Newest"
    assert own["counters"]["total"]["evictions"] > 0
    assert own["metrics"]["hit_rate"] != tail["metrics"]["hit_rate"]


def test_the_examples_of_the_manual_run_as_they_are(
    compared: Compared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manual = Path(__file__).parents[2] / "docs" / "policies.md"
    blocks = re.findall(r"```python\n(.*?)```", manual.read_text(), re.S)
    examples = [b for b in blocks if "from chm.policies import" in b]
    names = [n for b in examples for n in re.findall(r"^class (\w+)", b, re.M)]
    assert len(names) == 4
    (tmp_path / "own_policy_d.py").write_text("\n".join(examples))
    monkeypatch.chdir(tmp_path)
    chosen = "+".join(f"own_policy_d:{n}" for n in names)
    (result,) = compared("--policy", chosen, "--capacity", "4MiB", "--members", "2")["results"]
    seams = ("prefetch", "eviction", "admission", "placement")
    assert sorted(f"own_policy_d:{n}" for n in names) == sorted(
        result["workload"]["policy"][seam] for seam in seams
    )
    assert result["counters"]["total"]["hits"] > 0


def test_a_policy_that_breaks_its_seam_fails_its_run_only(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_policy_c.py").write_text(
        "from chm.policies import Admission\n"
        "class TooMany(Admission):\n"
        "    def admit(self, offer):\n"
        "        return 99\n"
    )
    monkeypatch.chdir(tmp_path)
    out = invoke(*SMALL, "--policy", "own_policy_c:TooMany,window", "--json", "-", code=1)
    document = json.loads(out.stdout)
    (failure,) = document["failures"]
    assert failure["error"] == "admission policy own_policy_c:TooMany admitted 99 of 3 blocks"
    assert len(document["results"]) == 1


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("evict-lur", "did you mean 'evict-lru'"),
        ("lru+think-time", "has no prefetch call"),
    ],
)
def test_wrong_usage(invoke: Invoke, policy: str, told: str) -> None:
    assert told in " ".join(invoke(*SMALL, "--policy", policy, code=2).stderr.split())


def test_the_list_has_every_seam(invoke: Invoke) -> None:
    out = invoke("policy", "list").stdout
    for word in ("device cache", "flush", "prefetch", "eviction", "admission", "placement"):
        assert word in out


def test_the_list_as_json(invoke: Invoke) -> None:
    rows = json.loads(invoke("policy", "list", "--json", "-").stdout)["policies"]
    assert ("admission", "admit-all") in {(row["decides"], row["name"]) for row in rows}
    assert all(row["summary"] for row in rows)


def test_a_policy_without_a_line_says_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    from chm.bench import selection

    monkeypatch.delitem(selection._LINES, "clock")
    assert dict(row[1:] for row in selection.rows())["clock"] == selection._NO_LINE


def test_the_report_names_cache_and_preset(invoke: Invoke) -> None:
    small = [a for a in SMALL if a not in ("--media", "sim")]
    lines = invoke(*small, "--preset", "samsung-cmmh", "--sim-contents", "on").stdout
    assert "preset samsung-cmmh, media sim (virtual time), lru cache" in " ".join(lines.split())


def test_completion_goes_on_after_a_comma_and_a_plus(monkeypatch: pytest.MonkeyPatch) -> None:
    from chm.bench.cli import cli

    def complete(text: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", f"chm-bench turns --policy {text}")
        monkeypatch.setenv("COMP_CWORD", "3")
        monkeypatch.setenv("_CHM_BENCH_COMPLETE", "bash_complete")
        result = click.testing.CliRunner().invoke(cli, prog_name="chm-bench", color=False)
        return [line.partition(",")[2] for line in result.stdout.splitlines()]

    assert complete("think") == ["think-time"]
    assert complete("lru,evict-l") == ["lru,evict-lru", "lru,evict-largest"]
    assert complete("lru,none+second") == ["lru,none+second-sight"]
