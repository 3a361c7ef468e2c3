# SPDX-License-Identifier: Apache-2.0
"""What the README shows works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
README = (TOP / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return text


def test_python_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", block("python")]
    package = find_spec("chm")  # wherever this test run has it from
    assert package is not None
    assert package.origin is not None
    env = {**os.environ, "PYTHONPATH": str(Path(package.origin).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = sum(range(256)) * (1 << 12)
    assert done.stdout.split() == [str(expected)] * 2


def test_c_example_compiles(tmp_path: Path) -> None:
    source = tmp_path / "example.c"
    body = block("c")
    source.write_text(
        f'#include "chm.h"\nvoid f(chm_dev *dev, uint64_t addr, uint64_t len)\n{{\n{body}}}\n'
    )
    command = ["cc", "-Wall", "-Werror", "-fsyntax-only", f"-I{TOP}/csrc", source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_links_and_folders_exist() -> None:
    targets = re.findall(r"\]\(([^)#:]+)[^)]*\)", README)
    folders = re.findall(r"^\| `([a-z]+/)` \|", README, re.MULTILINE)
    assert [name for name in targets + folders if not (TOP / name).exists()] == []
