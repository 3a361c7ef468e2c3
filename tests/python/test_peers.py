# SPDX-License-Identifier: Apache-2.0
"""An independent peer reads and writes the same members, and sees the bytes where docs/spec.md
section 1 says they are; we see what it wrote. The peers: python-liburing, which shares no code with
us, and plain system calls, which run everywhere."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import MIB, pattern

import chm

DATA_OFFSET = MIB
STRIPE = 256 * 1024


def liburing_runs() -> bool:
    """Is there a wheel, and does it run? That of 2026.3 uses AVX-512 without asking the CPU."""
    code = "import liburing; liburing.Ring()"
    tried = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return tried.returncode == 0


class PosixPeer:
    """Whole transfers on one file, continued when short."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR)

    def close(self) -> None:
        os.close(self.fd)

    def read(self, offset: int, nbytes: int) -> bytes:
        out = b""
        while len(out) < nbytes:
            piece = bytearray(nbytes - len(out))
            out += piece[: self._read(piece, offset + len(out))]
        return out

    def write(self, offset: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += self._write(data[done:], offset + done)

    def _read(self, piece: bytearray, offset: int) -> int:
        return os.preadv(self.fd, [piece], offset)

    def _write(self, piece: bytes, offset: int) -> int:
        return os.pwrite(self.fd, piece, offset)


class LiburingPeer(PosixPeer):
    """The same through a ring of python-liburing."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lib: Any = importlib.import_module("liburing")
        self.ring, self.cqe = self.lib.Ring(), self.lib.Cqe()
        self.lib.io_uring_queue_init(8, self.ring)

    def close(self) -> None:
        self.lib.io_uring_queue_exit(self.ring)
        super().close()

    def _read(self, piece: bytearray, offset: int) -> int:
        sqe = self.lib.io_uring_get_sqe(self.ring)
        self.lib.io_uring_prep_read(sqe, self.fd, piece, offset=offset)
        return self._finish()

    def _write(self, piece: bytes, offset: int) -> int:
        sqe = self.lib.io_uring_get_sqe(self.ring)
        self.lib.io_uring_prep_write(sqe, self.fd, piece, offset=offset)
        return self._finish()

    def _finish(self) -> int:
        self.lib.io_uring_submit(self.ring)
        self.lib.io_uring_wait_cqe(self.ring, self.cqe)
        entry = self.cqe[0]
        moved = int(entry.res)  # raises the errno of a failed one
        self.lib.io_uring_cqe_seen(self.ring, entry)
        if moved <= 0:
            raise OSError(errno.EIO, "nothing moved")
        return moved


@pytest.fixture(params=["posix", "liburing"])
def peer(request: pytest.FixtureRequest) -> type[PosixPeer]:
    if request.param == "posix":
        return PosixPeer
    if not liburing_runs():
        pytest.skip("no liburing wheel that runs on this CPU (the one of 2026.3 needs AVX-512)")
    return LiburingPeer


def spots(members: int, addr: int, nbytes: int) -> Iterator[tuple[int, int, int, int]]:
    """(member, offset, start, length) of the pieces of a range, by the specification."""
    at = addr
    while at < addr + nbytes:
        unit, within = divmod(at, STRIPE)
        length = min(STRIPE - within, addr + nbytes - at)
        yield unit % members, DATA_OFFSET + unit // members * STRIPE + within, at - addr, length
        at += length


@pytest.fixture(params=[1, 3])
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"m{i}.chm" for i in range(request.param)]
    chm.format([str(p) for p in made], 12 * MIB, stripe=STRIPE)
    return made


def ranges(seed: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    pages = rng.integers(0, 2900, 24)
    return [(int(p) * chm.PAGE, int(rng.integers(1, 150)) * chm.PAGE) for p in pages]


@pytest.mark.parametrize("media", ["uring", "threads", "sync"])
def test_peer_reads_what_the_device_wrote(
    paths: list[Path], media: str, peer: type[PosixPeer]
) -> None:
    data = pattern(12 * MIB, seed=1)
    names = [str(p) for p in paths]
    with chm.open(names, media=media, dram_bytes="32MiB", write_buffer_bytes="16MiB") as dev:
        for addr in range(0, len(data), MIB):
            dev.write(addr, data[addr : addr + MIB])
            dev.flush()
        for seed, (addr, nbytes) in enumerate(ranges(2)):
            data[addr : addr + nbytes] = pattern(nbytes, seed=100 + seed)
            dev.write(addr, data[addr : addr + nbytes])
            dev.flush()
    peers = [peer(p) for p in paths]
    try:
        for member, offset, start, length in spots(len(paths), 0, len(data)):
            assert peers[member].read(offset, length) == data[start : start + length].tobytes()
    finally:
        for p in peers:
            p.close()


@pytest.mark.parametrize("media", ["uring", "threads", "sync"])
def test_device_reads_what_the_peer_wrote(
    paths: list[Path], media: str, peer: type[PosixPeer]
) -> None:
    data = pattern(12 * MIB, seed=3)
    peers = [peer(p) for p in paths]
    try:
        for member, offset, start, length in spots(len(paths), 0, len(data)):
            peers[member].write(offset, data[start : start + length].tobytes())
        for p in peers:
            os.fsync(p.fd)
    finally:
        for p in peers:
            p.close()
    names = [str(p) for p in paths]
    with chm.open(names, media=media, dram_bytes="32MiB", write_buffer_bytes="16MiB") as dev:
        for addr, nbytes in ranges(4):
            with dev.prefetch(addr, nbytes) as lease:
                lease.wait(timeout=60)
                assert np.array_equal(lease.array(), data[addr : addr + nbytes])
            assert np.array_equal(dev.read(addr, nbytes), data[addr : addr + nbytes])
