# SPDX-License-Identifier: Apache-2.0
"""A simulated run is a function of options and seed: however the C core is compiled."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SEEDS = ("1", "2")
UNDEFINED = "-O3 -fsanitize=undefined -fno-sanitize-recover=all"


def build(objects: Path, flags: str) -> Path:
    """tests/build/digest.c and the core with more compiler flags; its path."""
    program = objects / "tests" / "build" / "digest"
    command = ["make", "-s", "-j2", "-C", "csrc", "SAN=", "WERROR=", f"B={objects}"]
    links = [f"LDFLAGS={flags}"] if "-fsanitize" in flags else []
    done = subprocess.run(
        [*command, f"CFLAGS={flags}", *links, str(program)],
        cwd=TOP,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return program


def digests(program: Path) -> list[str]:
    """What it prints, seed by seed."""
    return [subprocess.check_output([program, seed], text=True) for seed in SEEDS]


@pytest.fixture(scope="module")
def optimised() -> Path:
    return build(TOP / "build" / "c" / "plain", "")


def test_two_runs(optimised: Path) -> None:
    first = digests(optimised)
    assert first == digests(optimised)
    assert first[0] != first[1]
    assert all(int(line.split()[0]) > 1000 for line in first)


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["-O0", UNDEFINED], ids=["O0", "O3-undefined"])
def test_two_builds(optimised: Path, flags: str, tmp_path: Path) -> None:
    assert digests(build(tmp_path, flags)) == digests(optimised)
