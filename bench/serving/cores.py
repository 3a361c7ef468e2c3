# SPDX-License-Identifier: Apache-2.0
"""The engine on one core, everything else of its process on another; and what each has used.

The engine is the main thread: it computes alone (one OpenMP thread) and runs the scheduler. All
other threads are those of caches and drives. A new thread starts on the core of the one that made
it, so ``separate`` is called again before every request.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def pair() -> tuple[int, int]:
    """The engine's core and the other one: the first two that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise OSError("the benchmark needs two cores: one for the engine, one for I/O")
    return allowed[0], allowed[1]


def separate(engine: int, other: int) -> None:
    """Put the main thread of this process on one core and all others on another."""
    main = os.getpid()
    for name in os.listdir("/proc/self/task"):
        thread = int(name)
        try:
            os.sched_setaffinity(thread, {engine if thread == main else other})
        except (ProcessLookupError, OSError):
            continue  # gone, or one that the kernel places


@dataclass(frozen=True)
class Used:
    """CPU time of the engine's thread and of the others, and bytes read from and written to
    drives, since some time ago. Files in memory count in neither."""

    engine_s: float
    other_s: float
    read_bytes: int
    written_bytes: int

    def since(self, before: Used) -> Used:
        return Used(
            self.engine_s - before.engine_s,
            self.other_s - before.other_s,
            self.read_bytes - before.read_bytes,
            self.written_bytes - before.written_bytes,
        )


def used_here() -> Used:
    """Of this process; call it in the main thread."""
    engine = time.thread_time()
    read, written = moved("self")
    return Used(engine, time.process_time() - engine, read, written)


def used_by(pid: int) -> Used:
    """Of another process, which has no engine. Its CPU time is good to a tick (10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    read, written = moved(pid)
    return Used(0.0, ticks / os.sysconf("SC_CLK_TCK"), read, written)


def moved(pid: int | str) -> tuple[int, int]:
    """Bytes that a process has read from drives and written to them."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    return int(counts["read_bytes"]), int(counts["write_bytes"])
