# SPDX-License-Identifier: Apache-2.0
"""Job files: their grammar, and that every kept one can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from chm.bench import jobs
from chm.bench.options import ConfigError

KEPT = Path(__file__).resolve().parents[2] / "bench" / "jobs"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.ini"
    path.write_text(text)
    return path


def test_jobs_override_global_and_set_overrides_both(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "# Title\n[global]\nexperiment = turns\nturns = 4\nseed = 1\n\n[a]\n"
        "[b]\nturns = 5,6  # a sweep\nexperiment = turns\nchart = turns:hit_rate seed:hit_rate\n",
    )
    runs = jobs.runs(jobs.load(path, {"seed": "9"}))
    assert [r.name for r in runs] == ["a", "b[turns=5]", "b[turns=6]"]
    assert [r.case.config.turns for r in runs] == [4, 5, 6]
    assert {r.case.config.seed for r in runs} == {9}
    assert runs[1].charts == ("turns:hit_rate", "seed:hit_rate")
    assert runs[0].charts == ()
    assert jobs.title(path) == "Title"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[global]\nturns = 1\n", "no job"),
        ("[a]\nturns = 1\n", r"\[a\]: say experiment"),
        ("[a]\nexperiment = turn\n", "no experiment 'turn'"),
        ("[a]\nexperiment = turns\ntunrs = 1\n", r"\[a\]: unknown option 'tunrs'; did you mean"),
        ("[a]\nexperiment = turns\nturns = x\n", r"\[a\]: --turns 'x'"),
        ("turns = 1\n", "no section headers"),
        ("[a]\n[a]\n", "already exists"),
        ("[a]\nturns = 1\nturns = 2\n", "already exists"),
    ],
)
def test_mistakes_name_their_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        jobs.runs(jobs.load(write(tmp_path, text)))


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.ini")), ids=lambda p: p.stem)
def test_kept_job_files_are_sound(path: Path) -> None:
    runs = jobs.runs(jobs.load(path))
    assert runs
    assert len({r.name for r in runs}) == len(runs)
    assert jobs.title(path), "the opening comment says what it shows"


def test_a_bare_name_finds_a_kept_file() -> None:
    assert KEPT.is_dir()
    first = sorted(KEPT.glob("*.ini"))[0]
    assert jobs.find(first.stem).samefile(first)
    with pytest.raises(ConfigError, match="no job file 'nothing'"):
        jobs.find("nothing")
