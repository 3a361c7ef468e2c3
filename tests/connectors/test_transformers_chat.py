# SPDX-License-Identifier: Apache-2.0
"""docs/examples/transformers_chat.py, as a reader runs it; and that its comparison would notice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

TOP = Path(__file__).resolve().parents[2]
EXAMPLE = TOP / "docs" / "examples" / "transformers_chat.py"
SPOILED = """
import sys
sys.path.insert(0, sys.argv[1])
import transformers_chat as chat
load = chat.load
def spoil(tier, tokens):
    cache = load(tier, tokens)
    for layer in cache.layers:
        layer.values[:, :, 16:32] = 0
    return cache
chat.load = spoil
chat.main(sys.argv[2])
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **offline, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def found(output: str) -> list[int]:
    """Tokens that came from the device, turn by turn."""
    return list(map(int, re.findall(r"^turn \d+: (\d+) of \d+ .*same answer$", output, re.M)))


def test_a_chat_goes_on_from_the_device(tmp_path: Path) -> None:
    device = str(tmp_path / "chat.kv")
    first = run(str(EXAMPLE), device)
    assert first.returncode == 0, first.stderr
    assert found(first.stdout) == [0, 48, 112, 176, 240, 304]
    second = run(str(EXAMPLE), device)
    assert second.returncode == 0, second.stderr
    assert found(second.stdout) == [32, 96, 160, 224, 288, 352]


def test_other_kv_would_be_noticed(tmp_path: Path) -> None:
    done = run("-c", SPOILED, str(EXAMPLE.parent), str(tmp_path / "chat.kv"))
    assert done.returncode == 1
    assert "turn 1: the answer is another than without the device" in done.stderr
    assert found(done.stdout) == [0]
