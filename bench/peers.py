# SPDX-License-Identifier: Apache-2.0
"""Other programs on the same disk in the same minute: fio, and a reader over python-liburing.

1 MiB requests, 128 in flight, direct, on a file that was written before. fio touches its buffers
inside the window it times, so it gets 3 GiB and several seconds. Its GB/s are of another process
and another moment than ours: they say what the disk gives, not how the device compares; for that
there is the yardstick in every other program.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rows import GIB, MIB, arguments, fill, row

FILE_BYTES = 3 * GIB
UNIT = MIB
DEPTH = 128
SECONDS = 5


def fio_row(name: str, kind: str, path: Path, seconds: int) -> None:
    """One fio job; CPU is of its threads."""
    if not shutil.which("fio"):
        row(name, skipped="fio is not installed")
        return
    line = ["fio", "--name=peer", f"--filename={path}", f"--rw={kind}", "--bs=1m"]
    line += [f"--iodepth={DEPTH}", "--ioengine=io_uring", "--direct=1", "--thread"]
    line += [f"--size={FILE_BYTES}", "--time_based", f"--runtime={seconds}"]
    line += ["--refill_buffers=0", "--scramble_buffers=1", "--output-format=json"]
    line += ["--end_fsync=1"] if kind == "write" else []
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"fio: {done.stderr.strip()}")
    job = json.loads(done.stdout)["jobs"][0]
    side = job[kind]
    busy = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
    row(
        name,
        gb_per_s=side["bw_bytes"] / 1e9,
        cpu_s_per_gib=busy / (side["io_bytes"] / GIB),
        p50_ms=side["clat_ns"]["percentile"]["50.000000"] / 1e6,
        p99_ms=side["clat_ns"]["percentile"]["99.000000"] / 1e6,
        gib=side["io_bytes"] / GIB,
        seconds=job["job_runtime"] / 1e3,
    )


def liburing_read(path: Path, nbytes: int) -> dict[str, Any]:
    """Read the front of a file through python-liburing, 1 MiB x DEPTH, in order."""
    import liburing as lib

    ring, cqe = lib.Ring(), lib.Cqe()
    lib.io_uring_queue_init(DEPTH, ring)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    memory = mmap.mmap(-1, DEPTH * UNIT)
    memory.write(bytes(DEPTH * UNIT))  # first touch
    slots = [memoryview(memory)[i * UNIT : (i + 1) * UNIT] for i in range(DEPTH)]
    free, at, flying = list(range(DEPTH)), 0, 0
    began, cpu = time.perf_counter(), time.process_time()
    while at < nbytes or flying:
        while free and at < nbytes:
            slot = free.pop()
            sqe = lib.io_uring_get_sqe(ring)
            lib.io_uring_prep_read(sqe, fd, slots[slot], UNIT, at)
            lib.io_uring_sqe_set_data64(sqe, slot)
            at, flying = at + UNIT, flying + 1
        lib.io_uring_submit_and_wait(ring, 1)
        while flying and lib.io_uring_peek_cqe(ring, cqe) == 0:
            if cqe.res != UNIT:
                raise SystemExit(f"python-liburing: a read ended with {cqe.res}")
            free.append(int(cqe.data64))
            lib.io_uring_cqe_seen(ring, cqe)
            flying -= 1
    took, used = time.perf_counter() - began, time.process_time() - cpu
    return {"gb_per_s": nbytes / took / 1e9, "cpu_s_per_gib": used / (nbytes / GIB)}


def liburing_row(name: str, path: Path, nbytes: int) -> None:
    """In a process of its own: some wheels end theirs by an illegal instruction."""
    line = [sys.executable, os.path.abspath(__file__), "--liburing", str(path), str(nbytes)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode == -4:
        row(name, skipped="ended by SIGILL: wheels of 2026.3 need a CPU with AVX-512")
    elif done.returncode:
        last = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        row(name, skipped=f"status {done.returncode}: {last}")
    else:
        row(name, **json.loads(done.stdout))


def main() -> None:
    """All rows, on one file."""
    args = arguments(__doc__)
    path = args.dir / "peers.dat"
    seconds = 2 if args.quick else SECONDS
    try:
        with path.open("wb") as f:
            os.posix_fallocate(f.fileno(), 0, FILE_BYTES)
        fill(path, 0, FILE_BYTES, args.seed)
        if args.only in "peers.fio.read":
            fio_row("peers.fio.read", "read", path, seconds)
        if args.only in "peers.fio.write":
            fio_row("peers.fio.write", "write", path, seconds)
        if args.only in "peers.liburing.read":
            liburing_row("peers.liburing.read", path, FILE_BYTES)
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--liburing"]:
        print(json.dumps(liburing_read(Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        main()
