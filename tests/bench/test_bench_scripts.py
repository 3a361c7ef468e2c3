# SPDX-License-Identifier: Apache-2.0
"""The scripts in bench/ find the checkout's environment by themselves, or say what to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
SCRIPTS = ["run", "resident.py", "rss.py"]  # peers.py needs no packages


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The scripts alone: nothing of what they need."""
    (tmp_path / "bench").mkdir()
    for path in BENCH.iterdir():
        if path.suffix == ".py" or path.name == "run":
            shutil.copy(path, tmp_path / "bench" / path.name)
    return tmp_path


def start(checkout: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run it with an interpreter that has no packages, as outside of the environment."""
    command = [sys.executable, "-S", "-E", str(checkout / "bench" / script), "--quick"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("CHM_BENCH")}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)


def python_in(checkout: Path, text: str) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(0o755)


@pytest.mark.parametrize("script", SCRIPTS)
def test_starts_again_in_the_environment(checkout: Path, script: str) -> None:
    python_in(checkout, 'echo started "$@"')
    done = start(checkout, script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"started {checkout / 'bench' / script} --quick\n"


@pytest.mark.parametrize("script", SCRIPTS)
def test_says_what_to_run_without_one(checkout: Path, script: str) -> None:
    done = start(checkout, script)
    assert done.returncode == 1
    assert "click" in done.stderr
    assert "run tools/setup" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_environment_without_the_packages_ends(checkout: Path) -> None:
    python_in(checkout, f'exec {sys.executable} -S -E "$@"')
    done = start(checkout, "run")
    assert done.returncode == 1
    assert "run tools/setup" in done.stderr
