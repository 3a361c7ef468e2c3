# SPDX-License-Identifier: Apache-2.0
"""chm-bench paper: what it writes, what it refuses, and what its exit code says."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import pytest

from chm.bench.cli import cli
from chm.bench.paper.catalog import FIGURES

Invoke = Callable[..., Any]
CHEAP = ["F15", "F23"]


def test_list(invoke: Invoke) -> None:
    shown = invoke("paper", "--list").stdout
    assert all(name in shown for name in FIGURES)


def test_figures_and_fields_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(("chm-bench", "paper", *words)))
        monkeypatch.setenv("COMP_CWORD", str(1 + len(words)))
        monkeypatch.setenv("_CHM_BENCH_COMPLETE", "bash_complete")
        result = click.testing.CliRunner().invoke(cli, prog_name="chm-bench", color=False)
        return [line.partition(",")[2] for line in result.stdout.splitlines()]

    assert complete("f2") == ["F2", "F20", "F23"]
    assert complete("--set", "line_f") == ["line_fills="]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["paper", "F55"], "did you mean 'F5'?"),
        (["paper", "--set", "read_rate"], "write FIELD=VALUE"),
        (["paper", "F5", "--set", "read_rat=1GB/s"], "did you mean 'read_rate'?"),
        (["paper", "F18", "--ratios", "half"], "write numbers"),
        (["paper", "F18", "--ratios", "0"], "more than 0"),
        (["paper", "--jobs", "0"], "--jobs"),
    ],
)
def test_wrong_usage(invoke: Invoke, args: list[str], message: str) -> None:
    shown = invoke(*args, code=2)
    assert shown.stdout == ""
    assert message in shown.stderr.replace("\n", " ")


def test_report_pictures_and_document(invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "report"
    shown = invoke("paper", *CHEAP, "--quick", "--jobs", "1", "--out", str(out), "--json", "-")
    document = json.loads(shown.stdout)
    assert [f["figure"] for f in document["figures"]] == CHEAP
    assert document["ok"]
    assert "655,360" in shown.stderr, "tables move to standard error"
    assert (out / "F23.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text()
    for name in CHEAP:
        assert f'id="{name}"' in page
    digest = next(f for f in document["figures"] if f["figure"] == "F23")["runs"][0]["sim_digest"]
    assert digest in page


def test_the_page_fetches_nothing(invoke: Invoke, tmp_path: Path) -> None:
    invoke("paper", "F23", "--quick", "--jobs", "1", "--out", str(tmp_path))
    page = (tmp_path / "report.html").read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert any(s.startswith("data:image/png;base64,") for s in sources)
    assert [s for s in sources if not s.startswith(("data:", "#"))] == []
    assert not re.search(r"https?://|@import|url\(|<script|<link", page)
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page


def test_processes_do_not_change_the_document(invoke: Invoke, tmp_path: Path) -> None:
    texts = []
    for jobs in ("1", "2"):
        where = tmp_path / f"{jobs}.json"
        args = ["paper", "F5", "F23", "--quick", "--seed", "7", "--json", str(where)]
        invoke(*args, "--jobs", jobs, "--out", str(tmp_path))
        texts.append(where.read_text())
    assert texts[0] == texts[1]
    assert '"seed": 7' in texts[0]


def test_a_miss_ends_with_1_unless_its_reason_is_known(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f15 = FIGURES["F15"]
    wrong = dataclasses.replace(f15.claims[0], low=1.0, high=1.0)
    claims = (wrong, *f15.claims[1:])
    monkeypatch.setitem(FIGURES, "F15", dataclasses.replace(f15, claims=claims))
    args = ["paper", "F15", "--jobs", "1", "--out", str(tmp_path), "--json", "-"]
    shown = invoke(*args, code=1)
    assert not json.loads(shown.stdout)["ok"]
    known = dataclasses.replace(f15, claims=claims, known={"entries": "the table is wrong"})
    monkeypatch.setitem(FIGURES, "F15", known)
    shown = invoke(*args)
    document = json.loads(shown.stdout)
    assert document["ok"]
    assert document["figures"][0]["claims"][0]["reason"] == "the table is wrong"
    assert "the table is wrong" in shown.stderr
    assert "the table is wrong" in (tmp_path / "report.html").read_text()
