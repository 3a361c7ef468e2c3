# SPDX-License-Identifier: Apache-2.0
"""The serving benchmark itself, on the engine: two arms, the smallest conversations that load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")


@pytest.mark.engine
def test_quick_run_of_two_arms(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arms = ["--arms", "recompute,vllm-chm", "--rounds", "1", "--pace", "20"]
    where = ["--dir", str(tmp_path), "--json", str(out), "--png", str(tmp_path / "out.png")]
    line = [sys.executable, "-m", "bench.serving", "--quick", *arms, *where]
    top = Path(__file__).resolve().parents[2]
    done = subprocess.run(line, cwd=top, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [run] = json.loads(out.read_text())["runs"]
    assert run["problems"] == []
    rates = {(row["arm"], row["pace"]): row["hit_rate"] for row in run["rows"]}
    assert rates == {
        ("recompute", 0): 0.0,
        ("vllm-chm", 0): 512 / 544,
        ("vllm-chm", 20): 512 / 544,
    }
    assert "bench.serving.cpu_spec:CPUTieringSpec (test only)" in done.stdout
    assert (tmp_path / "out.png").stat().st_size > 0
    assert not list(tmp_path.glob("chm-serving-*")), "the scratch folder stayed"
