# SPDX-License-Identifier: Apache-2.0
"""Sweeps: the cross product, taken up again where it ended, as JSON, CSV and charts."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chm.bench import campaign, sweep
from chm.bench.options import ConfigError
from chm.bench.runner import Run, runs_of
from chm.bench.target import BenchError

Invoke = Callable[..., Any]
TURNS = ["--media", "sim", "--dram", "8MiB", "--conversations", "2", "--turns", "2",
         "--blocks-per-turn", "1"]  # fmt: skip
AXES = ["--block-size", "64KiB,256KiB", "--concurrency", "1,2"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs that were really made."""
    names: list[str] = []
    run_one = campaign.run_one

    def spy(run: Run, tick: Any) -> Any:
        names.append(run.name)
        return run_one(run, tick)

    monkeypatch.setattr(campaign, "run_one", spy)
    return names


def test_cross_product_resumes(invoke: Invoke, tmp_path: Path, made: list[str]) -> None:
    args = ["sweep", "turns", *TURNS, *AXES, "--out", str(tmp_path), "--no-plot"]
    invoke(*args)
    assert len(made) == 4
    first = json.loads((tmp_path / "results.json").read_text())
    made.clear()
    invoke(*args)
    assert made == [], "all were kept"
    assert json.loads((tmp_path / "results.json").read_text())["results"] == first["results"]
    gone = sorted((tmp_path / "runs").iterdir())[1]
    gone.write_text('{"half')
    invoke(*args)
    assert len(made) == 1, "a torn file counts as missing"
    made.clear()
    invoke(*args, "--seed", "2")
    assert len(made) == 4, "another configuration is another run"


def test_a_failed_run_is_told_and_made_again(
    invoke: Invoke, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = campaign.run_one

    def fail(run: Run, tick: Any) -> Any:
        if run.case.config.concurrency == 2:
            raise BenchError("no luck")
        return good(run, tick)

    args = ["sweep", "turns", *TURNS, *AXES, "--out", str(tmp_path), "--json", "-"]
    with monkeypatch.context() as m:
        m.setattr(campaign, "run_one", fail)
        shown = invoke(*args, code=1)
    document = json.loads(shown.stdout)
    assert len(document["results"]) == 2
    assert [f["error"] for f in document["failures"]] == ["no luck"] * 2
    assert shown.stderr.count("no luck") == 2
    made.clear()
    assert json.loads(invoke(*args).stdout)["failures"] == []
    assert len(made) == 2


def test_csv_has_axes_and_metrics(invoke: Invoke, tmp_path: Path) -> None:
    invoke("sweep", "turns", *TURNS, *AXES, "--out", str(tmp_path), "--no-plot")
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    with (tmp_path / "results.csv").open() as f:
        rows = list(csv.DictReader(f))
    assert [(r["block_size"], r["concurrency"]) for r in rows] == [
        ("64KiB", "1"), ("64KiB", "2"), ("256KiB", "1"), ("256KiB", "2"),
    ]  # fmt: skip
    for row, result in zip(rows, results, strict=True):
        assert row["name"] == result["name"]
        assert float(row["read_bytes_per_s"]) == result["metrics"]["read_bytes_per_s"]
        assert row["read_cpu_s_per_gib"] == "", "not measured on a virtual clock"


def test_any_two_axes_can_be_drawn(invoke: Invoke, tmp_path: Path) -> None:
    charts = ["concurrency:read_bytes_per_s:block_size",
              "block_size:latency.request_read.service_time.p99.9"]  # fmt: skip
    flags = [word for spec in charts for word in ("--chart", spec)]
    shown = invoke("sweep", "turns", *TURNS, *AXES, "--out", str(tmp_path), *flags)
    assert "● block_size=64KiB   ◆ block_size=256KiB" in shown.stdout
    made = {p.name for p in tmp_path.glob("*.png")}
    assert made == {
        "read_bytes_per_s-over-concurrency.png",
        "latency.request_read.service_time.p99.9-over-block_size.png",
    }


def test_without_a_wish_the_axes_of_the_sweep_are_drawn(invoke: Invoke, tmp_path: Path) -> None:
    invoke("sweep", "turns", *TURNS, *AXES, "--out", str(tmp_path))
    assert [p.name for p in tmp_path.glob("*.png")] == ["read_bytes_per_s-over-block_size.png"]


def test_an_axis_that_is_not_there_is_refused() -> None:
    result = {"metrics": {"a": 1}, "axes": {}, "config": {"b": 2}, "latency": {"x": {"p99.9": 3}}}
    assert sweep.value_of(result, "a") == 1
    assert sweep.value_of(result, "b") == 2
    assert sweep.value_of(result, "latency.x.p99.9") == 3
    for name in ("c", "latency.y", "latency.x.p99.9.z", "a.b"):
        with pytest.raises(ConfigError, match=name):
            sweep.value_of(result, name)


def test_plain_commands_take_lists_too(invoke: Invoke) -> None:
    document = json.loads(
        invoke("turns", *TURNS, "--block-size", "64KiB", "--seed", "1..3", "--json", "-").stdout
    )
    assert [r["seed"] for r in document["results"]] == [1, 2, 3]
    assert [r["axes"] for r in document["results"]] == [{"seed": "1"}, {"seed": "2"}, {"seed": "3"}]


def test_a_sweep_needs_a_directory(invoke: Invoke) -> None:
    assert "--out" in invoke("sweep", "turns", *TURNS, code=2).stderr


def test_the_digest_covers_name_and_configuration() -> None:
    runs = [*runs_of("turns", {"seed": "1,2"}), *runs_of("turns", {"seed": "1"})]
    assert len({sweep.digest(r) for r in runs}) == 3


def test_whole_files_or_nothing(tmp_path: Path) -> None:
    path, reader = tmp_path / "x", tmp_path / "reader"
    path.write_text("old")
    reader.hardlink_to(path)
    sweep.write_text(path, "new")
    assert (path.read_text(), reader.read_text()) == ("new", "old"), "replaced, not rewritten"
    with pytest.raises(UnicodeEncodeError):
        sweep.write_text(path, "new \ud800")
    assert path.read_text() == "new"
    assert sorted(tmp_path.iterdir()) == [reader, path]
