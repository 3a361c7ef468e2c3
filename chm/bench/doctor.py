# SPDX-License-Identifier: Apache-2.0
"""`doctor`: can this machine run the device, and if not at its best, what to change.

Each finding is ok, a warning (it runs, slower or with less) or a failure (it does not run), and
each that is not ok names its fix. io_uring is asked for three times: the kernel itself, through an
independent library, and by our own medium on a real file.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import chm
from chm import units
from chm.bench import host
from chm.bench.payload import PAGE_BYTES, Payload, PayloadMismatch

MIB = 1 << 20
GIB = 1 << 30
_TRIAL = 4 * MIB
OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """One answer."""

    name: str
    status: str
    detail: str
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def examine(where: Path, dram: int) -> list[Finding]:
    """All checks, for a device with its file in `where` and a DRAM budget of `dram` bytes."""
    facts = host.facts(where)
    medium, info = check_medium(where)
    return [
        check_kernel(facts["kernel"]),
        Finding("container", OK, facts["container"] or "none seen"),
        check_cpus(facts["cpus_allowed"]),
        check_memory(facts["memory_available_bytes"], dram),
        check_ring(),
        check_operations(),
        check_direct(where),
        medium,
        check_registered(info, facts["memlock_limit_bytes"], dram),
        check_huge_pages(facts["huge_pages_free"], dram, info),
        check_space(where, host.file_system(where).free_bytes),
        check_simulator(),
    ]


def check_kernel(release: str) -> Finding:
    """5.6 has the io_uring calls that are needed, 6.1 the ring flags that make it cheapest."""
    version = tuple(int(n) for n in release.split("-")[0].split(".")[:2] if n.isdigit())
    if version >= (6, 1):
        return Finding("kernel", OK, release)
    if version >= (5, 6):
        return Finding(
            "kernel",
            WARN,
            f"{release}: io_uring without its newer ring flags",
            "use Linux 6.1 or newer",
        )
    return Finding(
        "kernel",
        WARN,
        f"{release}: no usable io_uring, a thread pool is used instead",
        "use Linux 6.1 or newer",
    )


def check_cpus(allowed: int) -> Finding:
    """The device thread wants a CPU beside the program's."""
    if allowed > 1:
        return Finding("CPUs", OK, f"{allowed} allowed")
    return Finding(
        "CPUs",
        WARN,
        "1 allowed: the device thread shares it with the program",
        "allow a second CPU (taskset, cgroup cpuset), or use --thread off",
    )


def check_memory(available: int, dram: int) -> Finding:
    """The DRAM budget has to fit."""
    detail = f"{units.format_size(available)} available, budget {units.format_size(dram)}"
    if available > dram + 256 * MIB:
        return Finding("memory", OK, detail)
    return Finding("memory", FAIL, detail, "free memory, or use a smaller --dram")


_SYS_IO_URING_SETUP = 425  # the same on every architecture
_RING_FIXES = {
    errno.EPERM: "sysctl kernel.io_uring_disabled=0; in a container a seccomp profile that allows "
    "io_uring_setup, io_uring_enter and io_uring_register",
    errno.ENOSYS: "no io_uring in this kernel, or hidden by a seccomp profile: use Linux 6.1 or "
    "newer, and a profile that allows io_uring_setup",
    errno.ENOMEM: "raise the locked-memory limit (ulimit -l): this kernel charges rings to it",
}


def check_ring(setup: Callable[[], None] | None = None) -> Finding:
    """Ask the kernel itself for a ring; what it answers names the fix."""
    try:
        (setup or _setup_ring)()
    except OSError as e:
        code = abs(e.errno or 0)
        said = f"refused: {os.strerror(code)}; media auto uses a thread pool instead"
        return Finding("io_uring", WARN, said, _RING_FIXES.get(code, "see the kernel's log"))
    return Finding("io_uring", OK, "a ring can be set up")


def _setup_ring() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(120)  # struct io_uring_params, zeroed
    fd = libc.syscall(_SYS_IO_URING_SETUP, 8, params)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    os.close(fd)


_NEEDED = ("READ", "WRITE", "READ_FIXED", "WRITE_FIXED", "FSYNC")
_PROBE = "import json, liburing; print(json.dumps([n for n, ok in liburing.probe().items() if ok]))"


def check_operations(command: Sequence[str] = (sys.executable, "-c", _PROBE)) -> Finding:
    """Ask an independent library, the `liburing` wheel, which operations the kernel has.

    In a process of its own: some of its wheels use instructions that not every CPU has.
    """
    name = "io_uring operations"
    probe = subprocess.run(command, capture_output=True, text=True, check=False)
    if probe.returncode < 0:
        how = signal.Signals(-probe.returncode).name
        return Finding(name, OK, f"not known: the liburing package does not run here ({how})")
    if probe.returncode:
        last = probe.stderr.strip().splitlines()[-1:] or ["no answer"]
        return Finding(name, OK, f"not known: {last[0]}")
    have = set(json.loads(probe.stdout))
    missing = [op for op in _NEEDED if f"IORING_OP_{op}" not in have]
    if missing:
        fix = "use Linux 6.1 or newer"
        return Finding(name, WARN, f"the kernel lacks {', '.join(missing)}", fix)
    return Finding(name, OK, f"{len(have)}, with all that are needed (asked by liburing)")


def check_direct(where: Path) -> Finding:
    """Write and read one block past the page cache."""
    made = tempfile.mkdtemp(prefix="chm-doctor-", dir=where)
    try:
        fd = os.open(Path(made) / "block", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            with mmap.mmap(-1, PAGE_BYTES) as page:
                os.pwrite(fd, page, 0)
                os.preadv(fd, [page], 0)
        finally:
            os.close(fd)
    except OSError as e:
        kind = host.file_system(where).type
        return Finding(
            "O_DIRECT",
            WARN,
            f"{kind} at {where} refuses it: {e.strerror}",
            "use --path on ext4 or XFS, or --buffered on (the page cache is then counted as DRAM)",
        )
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Finding("O_DIRECT", OK, f"works on {host.file_system(where).type} at {where}")


def check_medium(where: Path) -> tuple[Finding, chm.DeviceInfo | None]:
    """Format, write, flush, read back and compare on a real file, with the medium `auto` picks."""
    made = tempfile.mkdtemp(prefix="chm-doctor-", dir=where)
    buffered = check_direct(where).status != OK
    try:
        path = str(Path(made) / "device.chm")
        chm.format(path, 4 * _TRIAL, buffered=buffered)
        with chm.open(path, dram_bytes=8 * _TRIAL, prefault="now", buffered=buffered) as dev:
            info = dev.info
            _write_and_read(dev)
    except (OSError, PayloadMismatch) as e:
        fix = "see the text; 'chm-bench doctor --path DIR' tries another file system"
        return Finding("device on a file", FAIL, str(e), fix), None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    how = f"media {info.media}, {'direct' if info.direct else 'through the page cache'}"
    if info.media == "uring":
        return Finding("device on a file", OK, f"wrote, flushed, read back: {how}"), info
    return Finding(
        "device on a file",
        WARN,
        f"works on the fallback: {how} ({info.note})",
        "make io_uring available (see its line above)",
    ), info


def _write_and_read(dev: chm.Device) -> None:
    payload = Payload(1)
    data = chm.aligned_empty(_TRIAL)
    payload.fill(data, 7)
    dev.write(0, data)
    dev.flush()
    with dev.prefetch(0, _TRIAL) as request:
        payload.check(request.array(), 7)
    payload.check(dev.read(0, out=np.zeros_like(data)), 7)


def check_registered(info: chm.DeviceInfo | None, limit: int | None, dram: int) -> Finding:
    """Registered buffers need the DRAM within the locked-memory limit (or CAP_IPC_LOCK)."""
    name = "locked memory"
    shown = "unlimited" if limit is None else units.format_size(limit)
    root = os.geteuid() == 0
    if limit is None or limit >= dram or root:
        return Finding(name, OK, f"limit {shown}" + (" (root is not bound by it)" if root else ""))
    used = "registered buffers" if info is not None and info.fixed_buffers else "plain reads"
    kib = -(-dram // 1024)
    return Finding(
        name,
        WARN,
        f"limit {shown}, budget {units.format_size(dram)}: {used}, at more CPU per GiB",
        f"ulimit -l {kib}; for good: '* - memlock {kib}' in /etc/security/limits.conf, "
        "LimitMEMLOCK= of a systemd unit, or --ulimit memlock=-1 of a container",
    )


def check_huge_pages(free: int, dram: int, info: chm.DeviceInfo | None = None) -> Finding:
    """Huge pages save most of the CPU of direct I/O; nothing needs them. They are reserved, or the
    kernel makes them of small ones for the device (6.1 and newer)."""
    need = -(-dram // (2 * MIB))
    if free >= need:
        return Finding("huge pages", OK, f"{free} of 2 MiB free, {need} needed")
    if info is not None and info.huge_bytes:
        return Finding("huge pages", OK, f"{free} of 2 MiB reserved; made of small ones as needed")
    return Finding(
        "huge pages",
        WARN,
        f"{free} of 2 MiB free, {need} needed for the budget: small pages are used",
        f"sysctl vm.nr_hugepages={need} (as root)",
    )


def check_space(where: Path, free: int) -> Finding:
    """Room for a device file that is a few times the DRAM budget."""
    detail = f"{units.format_size(free)} free at {where}"
    if free >= 8 * GIB:
        return Finding("free space", OK, detail)
    fix = "name another directory with --path, or use --scale"
    return Finding("free space", WARN if free >= GIB else FAIL, detail, fix)


def check_simulator() -> Finding:
    """The same firmware on the simulated medium, in virtual time."""
    try:
        with chm.sim(4 * _TRIAL, dram_bytes=8 * _TRIAL) as dev:
            _write_and_read(dev)
            took = dev.now()
    except (OSError, PayloadMismatch) as e:
        return Finding("simulator", FAIL, str(e), "report it: this does not depend on the machine")
    return Finding(
        "simulator", OK, f"wrote and read back in {units.format_duration(took)} of virtual time"
    )
