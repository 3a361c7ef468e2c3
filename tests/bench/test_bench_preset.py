# SPDX-License-Identifier: Apache-2.0
"""`chm-bench preset`, and --preset and --set on the experiments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from chm import preset as presets
from chm.bench.cli import cli

Invoke = Callable[..., Any]
MIB = 1 << 20

TINY = """
[sim]
capacity_bytes = { value = "64MiB", source = "this test", grade = "D" }
read_rate = "1GB/s"
read_latency_ns = "10us"
stripe_bytes = "256KiB"

[device]
members = 2
dram_bytes = "8MiB"
write_buffer_bytes = "4MiB"
flush_depth = 3

[link]
link_rate = "2GB/s"
link_rails = 2
"""
READ = ["read", "--block-size", "64KiB", "--footprint", "1MiB", "--json", "-"]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A preset file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


def result_of(invoke: Invoke, *args: str) -> dict[str, Any]:
    (result,) = json.loads(invoke(*READ, *args).stdout)["results"]
    return dict(result)


# ------------------------------------------------------------------------------------ the group


def test_list(invoke: Invoke, tiny: str) -> None:
    shown = invoke("preset", "list")
    for name in presets.available():
        assert name in shown.stdout
    documents = json.loads(invoke("preset", "list", "--json", "-").stdout)["presets"]
    assert [p["name"] for p in documents] == list(presets.available())
    assert all(v["grade"] for p in documents for t in presets.TABLES for v in p[t].values())


def test_list_says_what_it_leaves_out(invoke: Invoke, tiny: str, tmp_path: Path) -> None:
    own = tmp_path / "config" / "chm" / "presets"
    own.mkdir(parents=True)
    (own / "good.toml").write_text(TINY)
    (own / "bad.toml").write_text("[sim]\nx = 1\n")
    shown = invoke("preset", "list")
    assert "good (yours)" in shown.stdout
    assert "no field 'sim.x'" in shown.stderr


def test_show_then_check(invoke: Invoke, tmp_path: Path, tiny: str) -> None:
    for name in (*presets.available(), tiny):
        shown = invoke("preset", "show", name)
        assert "nothing can be verified" in shown.stderr
        again = tmp_path / "again.toml"
        again.write_text(shown.stdout)
        digest = presets.load(name).digest
        assert digest in invoke("preset", "check", str(again)).stdout


def test_show_as_json(invoke: Invoke, tiny: str) -> None:
    told = json.loads(
        invoke("preset", "show", tiny, "--set", "read_rate=3GB/s", "--json", "-").stdout
    )["preset"]
    assert told["sim"]["read_rate"]["value"] == 3 * 10**9
    assert told["sim"]["read_rate"]["source"] == presets.SET
    assert told["set"] == ["read_rate=3GB/s"]


def test_check_warns_and_refuses(invoke: Invoke, tiny: str) -> None:
    assert "warning: no source: " in invoke("preset", "check", tiny).stderr
    document = json.loads(invoke("preset", "check", tiny, "--json", "-").stdout)
    assert document["ok"]
    assert document["warnings"]
    Path(tiny).write_text(TINY.replace("read_rate", "raed_rate"))
    shown = invoke("preset", "check", tiny, code=2)
    assert "did you mean 'read_rate'" in shown.stderr
    assert shown.stdout == ""


def test_check_names_values_without_effect(invoke: Invoke) -> None:
    two = ("--set", "read_latency_ns=9us", "--set", "duplex=true")
    told = invoke("preset", "check", "gen5-tlc", *two).stderr
    assert "without effect: read_latency_ns (only without dies), duplex (only" in told
    told = invoke("preset", "check", "samsung-cmmh", "--set", "policy=window").stderr
    assert "ways (only with a cache of lines)" in told
    for name in presets.available():
        assert "without effect" not in invoke("preset", "check", name).stderr


def test_new(invoke: Invoke, tiny: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    invoke("preset", "new", str(mine), "--from", tiny, "--set", "flush_depth=5")
    made = presets.load(mine)
    assert (made.name, made.get("flush_depth"), made.get("read_rate")) == ("mine", 5, 10**9)
    assert "--force" in invoke("preset", "new", str(mine), "--from", tiny, code=2).stderr
    invoke("preset", "new", str(mine), "--from", tiny, "--force")
    assert presets.load(mine).digest == presets.load(tiny).digest
    wrong = str(tmp_path / "mine.ini")
    assert ".toml" in invoke("preset", "new", wrong, "--from", tiny, code=2).stderr


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        (["preset", "show"], "hym", {"hymcache-proto"}),
        (["turns", "--preset"], "cmmh", {"cmmh-256g-rdma"}),
        (["read", "--set"], "link_ra", {"link_rate=", "link_rails="}),
        (["preset", "show", "x", "--set"], "link_ra", {"link_rate=", "link_rails="}),
    ],
)
def test_tab_completion(words: list[str], incomplete: str, expected: set[str]) -> None:
    complete = ShellComplete(cli, {}, "chm-bench", "_CHM_BENCH_COMPLETE")
    assert {c.value for c in complete.get_completions(words, incomplete)} == expected


# ------------------------------------------------------------------------------------ experiments


def test_a_preset_makes_the_device(invoke: Invoke, tiny: str) -> None:
    result = result_of(invoke, "--preset", tiny)
    device, loaded = result["device"], presets.load(tiny)
    assert (device["media"], device["members"]) == ("sim", 2)
    assert device["capacity_bytes"] == loaded.capacity_bytes
    assert device["link_rate"] == 4 * 10**9
    assert device["stripe_bytes"] == 256 << 10
    assert device["options"]["flush_depth"] == 3
    assert device["options"]["sim"]["read_latency_ns"] == 10_000
    assert device["preset"]["name"] == "tiny"
    assert device["preset"]["digest"] == loaded.digest
    assert device["preset"]["sim"]["read_rate"]["value"] == 10**9
    assert any("nothing can be verified" in note for note in result["notes"])


def test_flags_win_over_the_preset_and_set_over_both(invoke: Invoke, tiny: str) -> None:
    options = result_of(
        invoke,
        *("--preset", tiny, "--dram", "16MiB", "--sim-read-rate", "3GB/s", "--members", "1"),
        *("--set", "read_rate=5GB/s", "--set", "flush_depth=7"),
    )["device"]["options"]
    assert options["dram_bytes"] == 16 * MIB
    assert options["write_buffer_bytes"] == 4 * MIB
    assert options["members"] == 1
    assert options["sim"]["read_rate"] == 5 * 10**9
    assert options["flush_depth"] == 7


def test_the_same_flag_as_the_default_still_wins(invoke: Invoke, tiny: str) -> None:
    options = result_of(invoke, "--preset", tiny, "--link-rate", "0")["device"]["options"]
    assert options["link_rate"] == 0


def test_contents_can_be_kept(invoke: Invoke, tiny: str) -> None:
    result = result_of(invoke, "--preset", tiny, "--sim-contents", "on", "--verify", "all")
    assert result["device"]["options"]["sim"]["no_contents"] is False
    assert not any("nothing can be verified" in note for note in result["notes"])


def test_set_needs_no_preset(invoke: Invoke, tiny: str) -> None:
    result = result_of(invoke, "--media", "sim", "--dram", "8MiB", "--set", "flush_unit=64KiB")
    assert result["device"]["options"]["flush_unit"] == 64 << 10
    assert result["device"]["preset"] is None


def test_set_takes_lists(invoke: Invoke, tiny: str) -> None:
    shown = invoke(*READ, "--preset", tiny, "--set", "read_rate=1GB/s,2GB/s", "--set", "fcfs=on")
    results = json.loads(shown.stdout)["results"]
    assert [r["axes"]["set"] for r in results] == [
        "read_rate=1GB/s fcfs=on",
        "read_rate=2GB/s fcfs=on",
    ]
    slow, fast = (r["metrics"]["read_bytes_per_s"] for r in results)
    assert fast > slow


def test_a_job_file_can_say_it(invoke: Invoke, tiny: str, tmp_path: Path) -> None:
    job = tmp_path / "x.ini"
    job.write_text(
        f"[one]\nexperiment = read\nblock_size = 64KiB\nfootprint = 1MiB\npreset = {tiny}\n"
        "set = read_rate=5GB/s link_rails=1\n"
    )
    (result,) = json.loads(invoke("run", str(job), "--json", "-").stdout)["results"]
    assert result["device"]["options"]["sim"]["read_rate"] == 5 * 10**9
    assert result["device"]["link_rate"] == 2 * 10**9


def test_on_a_real_medium_device_and_link_apply(invoke: Invoke, tiny: str, tmp_path: Path) -> None:
    args = ("--preset", tiny, "--media", "sync", "--path", str(tmp_path), "--buffered")
    result = result_of(invoke, *args)
    assert result["device"]["options"]["flush_depth"] == 3
    assert result["device"]["link_rate"] == 4 * 10**9
    assert result["device"]["members"] == 1
    assert any("its [sim] does not" in note for note in result["notes"])
    shown = invoke(*READ, *args, "--set", "read_rate=1GB/s", code=2)
    assert "of [sim], and --media sync" in shown.stderr


def test_a_run_that_does_not_fit_says_what_would(invoke: Invoke, tiny: str) -> None:
    shown = invoke(*READ, "--preset", tiny, "--footprint", "256MiB", code=1)
    assert "--set capacity_bytes=" in shown.stderr


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--preset", "hymcache-prot"], "did you mean 'hymcache-proto'"),
        (["--preset", "no/such.toml"], "no preset file"),
        (["--media", "sim", "--set", "read_rat=1GB/s"], "did you mean 'read_rate'"),
        (["--media", "sim", "--set", "read_rate=1us"], "cannot read"),
    ],
)
def test_what_cannot_work_is_wrong_usage(invoke: Invoke, args: list[str], reason: str) -> None:
    shown = invoke(*READ, *args, code=2)
    assert reason in shown.stderr
    assert shown.stdout == ""


def test_a_changed_preset_makes_a_sweep_run_again(
    invoke: Invoke, tiny: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    command = [*READ, "--preset", tiny, "--out", out]
    runs = tmp_path / "out" / "runs"
    invoke(*command)
    invoke(*command)
    assert len(list(runs.iterdir())) == 1
    Path(tiny).write_text(TINY.replace("flush_depth = 3", "flush_depth = 4"))
    invoke(*command)
    assert len(list(runs.iterdir())) == 2
