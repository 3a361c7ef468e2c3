# SPDX-License-Identifier: Apache-2.0
"""Facts about the machine that a figure is meaningless without. No names, no addresses."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import platform
import resource
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil


@dataclass(frozen=True)
class FileSystem:
    """Where a path lives."""

    type: str
    options: str
    device: str
    drive: str  # model of the drive, or ""
    rotational: bool | None
    free_bytes: int


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def cpu_model() -> str:
    """The processor's name for itself."""
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def existing_parent(path: Path) -> Path:
    """The path itself, or the nearest directory above it that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _mount_of(device_number: int) -> tuple[str, str, str]:
    """(type, options, source) of the mount with this st_dev."""
    want = f"{os.major(device_number)}:{os.minor(device_number)}"
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == want:
            kind, source = right.split()[:2]
            return kind, left.split()[5], source
    return "unknown", "", ""


def _drive_of(device_number: int) -> tuple[str, bool | None]:
    """(model, rotational) of the block device, looking through a partition to its drive."""
    base = Path(f"/sys/dev/block/{os.major(device_number)}:{os.minor(device_number)}")
    for where in (base, base / ".."):
        turns = _read(where / "queue/rotational")
        if turns:
            return _read(where / "device/model"), turns == "1"
    return "", None


def file_system(path: Path) -> FileSystem:
    """Facts about the file system (or the block device) that a path is on."""
    at = existing_parent(path)
    st = at.stat()
    if at.is_block_device():
        drive, turns = _drive_of(st.st_rdev)
        with at.open("rb") as f:
            return FileSystem("block device", "", str(at), drive, turns, f.seek(0, os.SEEK_END))
    kind, options, source = _mount_of(st.st_dev)
    drive, turns = _drive_of(st.st_dev)
    vfs = os.statvfs(at)
    return FileSystem(kind, options, source, drive, turns, vfs.f_bavail * vfs.f_frsize)


def container() -> str:
    """What kind of container this seems to be, or ""."""
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    words = _read("/proc/1/cgroup") + _read("/proc/1/environ").replace("\0", " ")
    for sign in ("kubepods", "docker", "lxc", "containerd"):
        if sign in words:
            return sign
    return ""


def memlock_bytes() -> int | None:
    """The locked-memory limit; None is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def facts(path: Path | None = None) -> dict[str, Any]:
    """CPU, memory, kernel, limits, versions, and the file system of `path` if given."""
    out: dict[str, Any] = {
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": psutil.virtual_memory().available,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "os": _os_name(),
        "container": container(),
        "memlock_limit_bytes": memlock_bytes(),
        "huge_pages_free": int(
            _read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") or 0
        ),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    if path is not None:
        out["file_system"] = asdict(file_system(path))
    return out


def _os_name() -> str:
    for line in _read("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return platform.system()


def page_cache_bytes(paths: Iterable[Path]) -> int | None:
    """Bytes of these files in the page cache, or None where the system does not say.

    DRAM that a buffered run uses beside its budget (F90).
    """
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    total = 0
    for path in paths:
        size = path.stat().st_size
        if not path.is_file() or not size:
            continue
        with path.open("rb") as f, mmap.mmap(f.fileno(), size, prot=mmap.PROT_READ) as view:
            pages = -(-size // mmap.PAGESIZE)
            seen = np.zeros(pages, np.uint8)
            at = np.frombuffer(view, np.uint8)
            ok = libc.mincore(
                ctypes.c_void_p(at.ctypes.data),
                ctypes.c_size_t(size),
                ctypes.c_void_p(seen.ctypes.data),
            )
            del at
            if ok != 0:
                return None
            total += int((seen & 1).sum()) * mmap.PAGESIZE
    return total
