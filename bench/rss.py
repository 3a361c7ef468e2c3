# SPDX-License-Identifier: Apache-2.0
"""Memory of a process that uses a device, and what touching the DRAM first costs.

Each row comes from a process of its own, since peak memory never falls. Peak RSS is after opening,
writing and reading four times the budget; the figure is what lies above import + budget. Shared
memory counts, so the window and the write buffer are in it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rows import GIB, MIB, arguments, content, row, use_checkout

BUDGET = 256 * MIB
OBJECT = 16 * MIB
PREFAULT = [
    (f"rss.prefault.{how}.{'huge' if pages == 'auto' else 'small'}", how, pages)
    for pages in ("auto", "never")
    for how in ("now", "background")
]


def cpu_s() -> float:
    """CPU of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_mib() -> float:
    """Peak RSS so far, of this program only.

    ru_maxrss is inherited through exec; VmHWM starts anew.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("no VmHWM in /proc/self/status")


def use_device(path: Path, seed: int) -> dict[str, Any]:
    """Open a device of BUDGET, write four times that, read it back, look at it."""
    import numpy as np

    import chm

    imported = peak_mib()
    data = content(OBJECT, seed)
    with chm.open(path, dram_bytes=BUDGET, thread=True, prefault="now") as dev:
        for at in range(0, 4 * BUDGET, OBJECT):
            write_all(dev, at, data)
        dev.flush()
        for at in range(0, 4 * BUDGET, OBJECT):
            with dev.prefetch(at, OBJECT) as request:
                if not np.array_equal(request.array(), data):
                    raise SystemExit(f"device address {at}: other bytes than were written")
        metadata = dev.info.metadata_bytes / MIB
    peak, budget, own = peak_mib(), BUDGET / MIB, OBJECT / MIB
    return {
        "above_mib": peak - imported - budget - own,
        "peak_mib": peak,
        "import_mib": imported,
        "budget_mib": budget,
        "own_buffer_mib": own,
        "metadata_mib": metadata,
    }


def write_all(dev: Any, at: int, data: Any) -> None:
    """Write one object; while the write buffer is full, wait for the drive."""
    import chm

    while True:
        try:
            dev.write(at, data)
            return
        except chm.WouldBlock:
            dev.flush()


def open_device(path: Path, how: str, pages: str) -> dict[str, Any]:
    """Open a device with a budget of 1 GiB; how long until open returns, and until all is there."""
    import chm

    began, cpu = time.perf_counter(), cpu_s()
    with chm.open(path, dram_bytes=GIB, thread=True, prefault=how, huge_pages=pages) as dev:
        opened, opened_cpu = time.perf_counter() - began, cpu_s() - cpu
        while dev.info.prefaulted_bytes < GIB:
            time.sleep(0.002)
        return {
            "open_s": opened,
            "open_cpu_s": opened_cpu,
            "all_there_s": time.perf_counter() - began,
            "cpu_s": cpu_s() - cpu,
            "huge_pages_reserved": dev.info.huge_pages,
            "huge_mib": huge_mib(),
        }


def huge_mib() -> float:
    """Shared memory of this process that is mapped by huge pages."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("ShmemPmdMapped:"):
            return int(line.split()[1]) / 1024
    return 0.0


def apart(path: Path, seed: int, *what: str) -> dict[str, Any]:
    """Run this file in a fresh process for one row."""
    line = [sys.executable, os.path.abspath(__file__), "--row", str(path), str(seed), *what]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(what)}: {done.stderr.strip()}")
    return dict(json.loads(done.stdout))


def one_row(path: str, seed: str, what: str, *more: str) -> None:
    """In the fresh process."""
    use_checkout()
    if what == "peak":
        print(json.dumps(use_device(Path(path), int(seed))))
    else:
        print(json.dumps(open_device(Path(path), *more)))


def main() -> None:
    """All rows."""
    args = arguments(__doc__)
    use_checkout()
    import chm

    path = args.dir / "rss.chm"
    chm.format(path, 4 * BUDGET, force=True)
    try:
        if args.only in "rss.peak":
            row("rss.peak", **apart(path, args.seed, "peak"))
        for name, how, pages in PREFAULT:
            if args.only in name and not (args.quick and pages == "never"):
                row(name, **apart(path, args.seed, "open", how, pages))
    finally:
        path.unlink()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        one_row(*sys.argv[2:])
    else:
        main()
