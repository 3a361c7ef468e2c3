# SPDX-License-Identifier: Apache-2.0
"""F88: whatever happens, standard output is one valid document or empty, and the exit code says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import pytest

import chm
from chm.bench import campaign
from chm.bench.cli import cli
from chm.bench.runner import EXPERIMENTS

Invoke = Callable[..., Any]
TINY = ["turns", "--media", "sim", "--dram", "8MiB", "--block-size", "64KiB", "--turns", "2"]
MAIN = [sys.executable, "-c", "from chm.bench.cli import main; main()"]


def test_f88_a_run_gives_one_document_and_nothing_else(invoke: Invoke) -> None:
    shown = invoke(*TINY, "--json", "-")
    document = json.loads(shown.stdout)
    assert document["schema"] == "chm-bench/1"
    assert "media sim (virtual time)" in shown.stderr, "tables move to standard error"


def test_f88_a_warning_does_not_get_into_the_document(invoke: Invoke) -> None:
    shown = invoke(*TINY, "--sim-contents", "off", "--json", "-")
    assert "nothing can be verified" in shown.stderr
    assert json.loads(shown.stdout)["results"][0]["notes"]


def test_f88_an_io_error_is_in_the_document_and_the_exit_code(invoke: Invoke) -> None:
    shown = invoke(*TINY, "--fault", "0- read err 5", "--json", "-", code=1)
    (failure,) = json.loads(shown.stdout)["failures"]
    assert failure["name"] == "turns"
    assert failure["error"] in shown.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["turns", "--no-such-option", "--json", "-"], "No such option"),
        (["turns", "--turns", "many", "--json", "-"], "--turns 'many'"),
        (["nothing"], "No such command"),
        (["turns", "--chart", "x", "--seed", "1,2", "--json", "-"], "write X:Y"),
        (["run", "no-such-file", "--json", "-"], "no job file"),
    ],
)
def test_f88_wrong_usage(invoke: Invoke, args: list[str], message: str) -> None:
    shown = invoke(*args, code=2)
    assert shown.stdout == ""
    assert message in shown.stderr


def test_f88_ctrl_c(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "run_one", interrupted)
    path = tmp_path / "x.json"
    path.write_text("an older result")
    for where in ("-", str(path)):
        shown = invoke(*TINY, "--json", where, code=130)
        assert shown.stdout == ""
        assert "interrupted" in shown.stderr
    assert path.read_text() == "an older result"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_f88_a_signal_at_a_real_process(tmp_path: Path, number: signal.Signals) -> None:
    """It waits for its trace in a pipe when the signal comes, so nothing here depends on time."""
    pipe = tmp_path / "trace"
    os.mkfifo(pipe)
    run = subprocess.Popen(
        [*MAIN, "turns", "--trace", str(pipe), "--path", str(tmp_path), "--json", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with pipe.open("w"):
        run.send_signal(number)
        out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (130, "")
    assert err.strip() == "chm-bench: interrupted"
    assert list(tmp_path.iterdir()) == [pipe]


def test_f88_a_closed_pipe(tmp_path: Path) -> None:
    """The reader is gone before the document comes: no traceback, and not exit code 0."""
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [*MAIN, *TINY, "--json", "-"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert run.returncode == 1
    assert "Traceback" not in run.stderr


def test_f88_a_full_disk_is_an_error(invoke: Invoke) -> None:
    shown = invoke(*TINY, "--json", "/dev/full/x.json", code=1)
    assert "/dev/full" in shown.stderr


def test_every_result_carries_what_it_needs(invoke: Invoke) -> None:
    document = json.loads(invoke(*TINY, "--seed", "7", "--json", "-").stdout)
    assert document["version"] == chm.__version__
    assert document["units"]["_ns"].startswith("nanoseconds")
    (result,) = document["results"]
    assert result["seed"] == result["config"]["seed"] == 7
    assert result["config"]["block_size"] == 65536
    assert result["device"]["media"] == "sim"
    assert "note" in result["device"]
    host = result["host"]
    assert {"cpu", "cpus", "kernel", "memory_bytes", "memlock_limit_bytes", "python"} <= host.keys()
    for series in result["latency"].values():
        figures = series["service_time"]
        assert {"count", "p50", "p90", "p99", "p99.9", "max"} <= figures.keys()
        assert series["unit"] == "ns"
    assert result["peak_rss_bytes"] > 0


def test_a_run_on_a_file_tells_file_system_and_device(invoke: Invoke, tmp_path: Path) -> None:
    args = ["turns", "--block-size", "64KiB", "--turns", "2", "--dram", "16MiB"]
    shown = invoke(*args, "--path", str(tmp_path), "--json", "-")
    (result,) = json.loads(shown.stdout)["results"]
    system = result["host"]["file_system"]
    assert system["type"]  # "unknown" where mounts cannot be seen, as in a chroot
    assert system["free_bytes"] > 0
    assert result["device"]["clock"] == "monotonic"
    assert result["metrics"]["read_cpu_s_per_gib"] > 0


def test_f90_a_page_cache_counts_and_unequal_arms_are_not_called_equal(
    invoke: Invoke, tmp_path: Path
) -> None:
    """The same budget twice, once with the page cache behind it: 8 MiB of blocks in it."""
    args = ["read", "--block-size", "256KiB", "--footprint", "8MiB", "--dram", "16MiB"]
    args += ["--rounds", "1", "--path", str(tmp_path), "--buffered", "on,off", "--json", "-"]
    shown = invoke(*args)
    document = json.loads(shown.stdout)
    assert document["comparison"]["equal_dram"] is False
    assert "different amounts of DRAM" in shown.stderr
    buffered, direct = ({d["what"]: d["bytes"] for d in r["dram"]} for r in document["results"])
    assert buffered["page cache"] >= 8 << 20
    assert "page cache" not in direct


def test_f90_arms_of_one_budget_are_equal(invoke: Invoke) -> None:
    document = json.loads(invoke(*TINY, "--fcfs", "on,off", "--json", "-").stdout)
    assert document["comparison"]["equal_dram"] is True
    assert len(document["comparison"]["dram_total_bytes"]) == 2


def test_golden_keys(invoke: Invoke) -> None:
    """The document is an interface: a key that goes or is renamed breaks somebody's script."""
    document = json.loads(invoke(*TINY, "--json", "-").stdout)
    assert list(document) == [
        "schema", "tool", "version", "command", "started", "host", "units", "results", "failures",
        "comparison",
    ]  # fmt: skip
    assert list(document["results"][0]) == [
        "name", "experiment", "axes", "config", "seed", "device", "workload", "metrics",
        "latency", "rows", "counters", "checks", "dram", "dram_total_bytes", "peak_rss_bytes",
        "device_stats", "notes", "host",
    ]  # fmt: skip


def test_png_and_terminal_chart(invoke: Invoke, tmp_path: Path) -> None:
    shown = invoke(*TINY, "--png", str(tmp_path / "c.png"))
    assert "bandwidth per turn" in shown.stdout
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert "bandwidth per turn" not in invoke(*TINY, "--no-plot").stdout


@pytest.mark.parametrize("name", [None, *EXPERIMENTS, "doctor", "sweep", "run", "jobs", "models"])
def test_help_exists_and_fits(invoke: Invoke, name: str | None) -> None:
    shown = invoke(*([name] if name else []), "--help")
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_a_switch_alone_means_on(invoke: Invoke) -> None:
    document = json.loads(invoke(*TINY, "--fcfs", "--json", "-").stdout)
    assert document["results"][0]["config"]["fcfs"] is True


def test_models_and_jobs_lists(invoke: Invoke) -> None:
    assert re.search(r"opt-30b .*168 MiB", invoke("models").stdout)
    listed = invoke("jobs").stdout
    assert "turn-growth" in listed
    assert "Bandwidth per turn" in listed


def test_run_a_kept_job_file_smaller(invoke: Invoke) -> None:
    """What a flag says wins in every job of the file."""
    small = [f"--set={k}" for k in ("block-size=64KiB", "turns=2", "dram=8MiB")]
    document = json.loads(invoke("run", "prefetch", *small, "--json", "-").stdout)
    assert [r["axes"]["prefetch"] for r in document["results"]] == ["on", "off"]
    assert {r["config"]["turns"] for r in document["results"]} == {2}
    shown = invoke("run", "prefetch", "--job", "nobody", code=2)
    assert "no nobody in prefetch" in shown.stderr


def test_completion_offers_the_words_of_a_choice() -> None:
    env = {"_CHM_BENCH_COMPLETE": "bash_complete", "COMP_WORDS": "chm-bench turns --media s",
           "COMP_CWORD": "3"}  # fmt: skip
    shown = click.testing.CliRunner().invoke(cli, prog_name="chm-bench", env=env)
    assert [line.partition(",")[2] for line in shown.stdout.split()] == ["sync", "sim"]


DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarking.md"


def test_the_manual_names_only_flags_that_exist() -> None:
    known = {flag for command in cli.commands.values() for p in command.params for flag in p.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", DOCS.read_text()))
    assert len(named) > 30
    assert named - known - {"--no-prefetch"} == set()


def test_the_manuals_job_file_runs(invoke: Invoke, tmp_path: Path) -> None:
    text = DOCS.read_text()
    example = text[text.index("    # What it shows") : text.index("`chm-bench run FILE`")]
    path = tmp_path / "example.ini"
    path.write_text("\n".join(line[4:] for line in example.splitlines()))
    small = [f"--set={k}" for k in ("conversations=1", "turns=2", "dram=16MiB")]
    shown = invoke("run", str(path), *small, "--json", "-")
    document = json.loads(shown.stdout)
    assert [r["config"]["block_size"] >> 10 for r in document["results"]] == [1024, 64, 256, 1024]
