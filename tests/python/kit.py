# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python layer share beside fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import chm

MIB = 1 << 20
CAPACITY = 64 * MIB
SMALL = {"dram_bytes": 32 * MIB, "write_buffer_bytes": 16 * MIB, "poison": True}
KINDS = ["sim", "stepped", "thread"]

Make = Callable[..., chm.Device]


def pattern(nbytes: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that no other seed gives."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def run_until(dev: chm.Device, at_ns: int) -> None:
    """Let a simulated device live until then."""
    while dev.now() < at_ns:
        dev.step(at_ns)


def run_python(
    code: str, *first_on_path: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that imports the same chm."""
    path = [*map(str, first_on_path), str(Path(chm.__file__).parent.parent)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **variables}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd="/"
    )


def fill(dev: chm.Device, addr: int, nbytes: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Write a pattern at addr, make it durable, and return it."""
    data = pattern(nbytes, seed)
    for at in range(0, nbytes, MIB):
        dev.write(addr + at, data[at : at + MIB])
        if at % (8 * MIB) == 7 * MIB:
            dev.flush()
    dev.flush()
    return data
