# SPDX-License-Identifier: Apache-2.0
"""What the measuring scripts share: the arguments of the C programs, and their rows of JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
MIB = 1 << 20
GIB = 1 << 30
NEEDED = ("cffi", "click", "numpy", "psutil")
TRIED = "CHM_BENCH_RESTARTED"  # set in the environment of the second start: there is no third


def use_checkout() -> None:
    """Import chm from this checkout, whatever else is installed.

    Where the packages it needs are missing, the script starts again in the checkout's .venv; call
    this before importing any of them.
    """
    sys.path.insert(0, str(TOP))
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return
    python = TOP / ".venv" / "bin" / "python"
    if TRIED not in os.environ and python.exists():
        os.environ[TRIED] = "1"
        os.execv(python, [str(python), *sys.argv])
    sys.exit(
        f"{sys.argv[0]}: {', '.join(missing)} cannot be imported by {sys.executable}: run "
        "tools/setup, which makes .venv in the checkout, or use a Python that has them"
    )


def arguments(text: str | None, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """--dir, --only, --quick, --seed, as bench.h has them."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--dir", type=Path, default=Path(), help="folder for backing files")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--quick", action="store_true", help="a try, not for quoting")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(argv)


def row(name: str, **values: Any) -> None:
    """One result, on stdout."""
    print(json.dumps({"name": name, **values}), flush=True)


def spread(name: str, samples: Sequence[float], **values: Any) -> None:
    """Least, median, tenth and ninetieth percentile of samples in us."""
    tenths = statistics.quantiles(samples, n=10)
    values |= {"us": statistics.median(samples), "us_min": min(samples)}
    row(name, us_p10=tenths[0], us_p90=tenths[-1], **values)


def content(nbytes: int, seed: int) -> Any:
    """Random bytes as a numpy array."""
    import numpy as np

    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def fill(path: Path, offset: int, nbytes: int, seed: int) -> None:
    """Random bytes, no two 8 MiB alike, written past the page cache and synced."""
    import mmap
    import os

    import numpy as np

    step = 8 * MIB
    buf = mmap.mmap(-1, step)
    words = np.frombuffer(buf, np.uint64)
    words[:] = content(step, seed).view(np.uint64)
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    try:
        for at in range(0, nbytes, step):
            words[:: 4096 // 8] = np.arange(at, at + step, 4096, dtype=np.uint64)
            length = min(step, nbytes - at)
            with memoryview(buf)[:length] as piece:
                if os.pwrite(fd, piece, offset + at) != length:
                    raise OSError(f"{path}: short write")
        os.fdatasync(fd)
    finally:
        os.close(fd)
