# SPDX-License-Identifier: Apache-2.0
"""The command chm in tests: a made store, and a second process that has it open."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import chm
from chm.cli.main import cli

OWNER = Path(__file__).with_name("owner.py")
TOP = Path(chm.__file__).parent.parent


class Chm:
    """Runs the command on one path."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self, command: str, *args: str, code: int = 0, **extra: Any) -> Result:
        result = CliRunner().invoke(cli, [command, self.path, *args], **extra)
        assert result.exit_code == code, result.output
        return result

    def fill(self, n: int = 8, nbytes: int = 65536, namespace: str = "model") -> list[bytes]:
        """Puts objects; their keys."""
        keys = [bytes([number]) * 16 for number in range(n)]
        with chm.open(self.path, dram_bytes="32MiB") as device, chm.Store(device) as store:
            ns = store.namespace(namespace)
            data = [np.full(nbytes, number, np.uint8) for number in range(n)]
            store.put(ns, keys, data, wait=True).result()
        return keys


@pytest.fixture
def run(tmp_path: Path) -> Chm:
    """On a path where nothing is."""
    return Chm(tmp_path / "kv.chm")


@pytest.fixture
def made(run: Chm) -> Chm:
    """On a store of 64 MiB."""
    run("format", "--size", "64MiB", "--yes")
    return run


@pytest.fixture
def owned(made: Chm) -> Iterator[tuple[Chm, subprocess.Popen[str]]]:
    """On a store that another process has open, and that process."""
    env = {**os.environ, "PYTHONPATH": str(TOP)}
    with subprocess.Popen(
        [sys.executable, str(OWNER), made.path], stdout=subprocess.PIPE, text=True, env=env
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "ready\n"
            while chm.peek(made.path).stats.gets == 0:  # until that is in the page
                time.sleep(0.01)
            device = chm.peek(made.path).device.device_id
            yield made, owner
        finally:
            owner.kill()
    for where in ("/dev/shm", f"/run/user/{os.geteuid()}"):
        Path(where, f"chm-{device}-0").unlink(missing_ok=True)
