#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gets through the store beside bare reads of the very same blocks into the same memory.

    .venv/bin/python bench/store_get.py [--dir DIR] [--rounds N]

16 objects of 16 MiB on a file. A round is a bare run, a get, a bare run; the ratio is the rate of
the get over the mean of the two. Every byte of every run is checked, outside of the clock. Prints a
line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import chm

MIB = 1 << 20
OBJECTS, EACH = 16, 16
TOTAL = OBJECTS * EACH * MIB
BATCH = 128  # bare reads in flight


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Bytes per second, and CPU seconds for each GiB."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return TOTAL / wall, cpu / TOTAL * (1 << 30)


def measure(path: Path, rounds: int) -> dict[str, float]:
    """Fill a store, then rounds."""
    chm.format(path, "1GiB")
    data = np.random.default_rng(1).integers(0, 256, TOTAL, np.uint8).reshape(OBJECTS, -1)
    out = chm.aligned_empty(TOTAL).reshape(OBJECTS, -1)
    keys = [i.to_bytes(16, "little") for i in range(OBJECTS)]
    with chm.open(path, thread=True, dram_bytes="128MiB", write_buffer_bytes="64MiB") as device:
        chm.store.format(device)
        with chm.Store(device) as store:
            ns = store.namespace("bench")
            store.put(ns, keys, data, wait=True, timeout=60).result()
            store.sync().result()
            blocks = [
                (place.addr + j * MIB, out[i, j * MIB : (j + 1) * MIB])
                for i, place in enumerate(store.where(ns, keys))
                if place is not None
                for j in range(EACH)
            ]

            def bare() -> None:
                for first in range(0, len(blocks), BATCH):
                    device.read_many(blocks[first : first + BATCH])

            def get() -> None:
                store.get(ns, keys, list(out)).result()

            def checked(call: Callable[[], object]) -> tuple[float, float]:
                out[:] = 0
                figures = timed(call)
                if not np.array_equal(out, data):
                    raise SystemExit("wrong bytes")
                return figures

            return summary([(checked(bare), checked(get), checked(bare)) for _ in range(rounds)])


def summary(rounds: list[tuple[tuple[float, float], ...]]) -> dict[str, float]:
    """Medians, and the range of the ratio."""
    ratios = [get[0] / ((before[0] + after[0]) / 2) for before, get, after in rounds]
    return {
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "gb_per_s": statistics.median(get[0] for _, get, _ in rounds) / 1e9,
        "cpu_s_per_gib": statistics.median(get[1] for _, get, _ in rounds),
        "bare_cpu_s_per_gib": statistics.median(before[1] for before, _, _ in rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dir", help="where the file goes: 1 GiB; the disk that is measured")
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        print(json.dumps(measure(Path(folder) / "get.chm", args.rounds)))


if __name__ == "__main__":
    main()
