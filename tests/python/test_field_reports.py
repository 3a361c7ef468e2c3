# SPDX-License-Identifier: Apache-2.0
"""What went wrong for others, tried here: rows of the field reports that cut across parts.

Rows that belong to one part are tested with it. Of a row that is about keys, an index or a restart
of a store, what the device and its spaces promise for it is tested here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import MIB, Make, fill, pattern

import chm

PAGE = chm.PAGE


# ------------------------------------------------------------------ F57: the page cache


def cached_bytes(path: Path) -> int:
    """Bytes of the file that are in the page cache."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        pages = len(memory) // mmap.PAGESIZE
        vector = (ctypes.c_ubyte * pages)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        assert libc.mincore(start, len(memory), vector) == 0, os.strerror(ctypes.get_errno())
        return sum(byte & 1 for byte in vector) * mmap.PAGESIZE


def write_and_read(dev: chm.Device, nbytes: int) -> None:
    """Through the window, straight into aligned memory, and into memory that is not."""
    data = fill(dev, 0, nbytes, seed=57)
    for at in range(0, nbytes, 4 * MIB):
        with dev.prefetch(at, 4 * MIB) as req:
            assert np.array_equal(req.array(), data[at : at + 4 * MIB])
        assert np.array_equal(dev.read(at, MIB), data[at : at + MIB])
        beside = np.empty(MIB + 1, np.uint8)[1:]
        assert np.array_equal(dev.read(at + 5, out=beside), data[at + 5 : at + 5 + MIB])


@pytest.mark.parametrize("media", ["auto", "threads", "sync"])
def test_f57_direct_means_no_page_cache(tmp_path: Path, media: str) -> None:
    path = tmp_path / "d.chm"
    chm.format(path, 64 * MIB)
    with chm.open(path, media=media, dram_bytes="32MiB", thread=media == "auto") as dev:
        assert dev.info.direct
        write_and_read(dev, 48 * MIB)
    # Nothing but what looking at the file brings in: the header and the file's first pages.
    assert cached_bytes(path) <= MIB


def test_f57_buffered_is_asked_for_and_told(tmp_path: Path) -> None:
    path = tmp_path / "d.chm"
    chm.format(path, 64 * MIB)
    with chm.open(path, buffered=True, dram_bytes="32MiB") as dev:
        assert not dev.info.direct
        write_and_read(dev, 48 * MIB)
        assert cached_bytes(path) > 32 * MIB  # so this looks at the right thing


# ------------------------------------------------------------------ F15: between look-up and use


def test_f15_deleted_between_look_up_and_use_is_a_miss(make: Make) -> None:
    dev = make("thread")
    with chm.Space(dev) as space:
        data = pattern(MIB, 15)
        obj = space.put(data)
        found = space.get(obj.id)
        space.delete(obj)
        uses = (
            lambda: space.get(found.id),
            lambda: space.read(found),
            lambda: space.hold(found),
            lambda: space.stream([found]),
        )
        for reused in (False, True):
            if reused:
                other = space.put(pattern(MIB, 16))
                assert other.addr == found.addr
            for use in uses:
                with pytest.raises(chm.NotFound):
                    use()
        assert space.stats.held == 0


def test_f15_what_was_issued_stays_whole(make: Make) -> None:
    """Delete and reuse of the place, between issue and wait, and between wait and look."""
    dev = make("thread")
    dice = random.Random(15)
    with chm.Space(dev, length=4 * MIB) as space:
        for turn in range(20):
            data = pattern(2 * MIB, turn)
            obj = space.put(data)
            if turn % 2:
                dev.flush()
            stream = space.stream([obj])
            piece = stream.next() if dice.random() < 0.5 else None
            space.delete(obj)
            with pytest.raises(chm.NotFound):
                space.get(obj.id)
            other = space.put(pattern(2 * MIB, 1000 + turn))
            piece = piece or stream.next()
            assert np.array_equal(piece.array(), data)
            del piece
            stream.close()
            space.delete(other)
        assert space.stats.free_bytes == space.stats.total_bytes


# ------------------------------------------------------------------ F33, F47: what is full says so


@pytest.mark.parametrize("kind", ["stepped", "thread"])
def test_f33_three_times_the_capacity(make: Make, kind: str, tmp_path: Path) -> None:
    dev = make(kind)
    path = tmp_path / "0.chm"
    before = path.stat()
    kept: list[tuple[chm.Object, int]] = []
    refused = offered = 0
    with chm.Space(dev) as space:
        while offered < 3 * dev.info.capacity_bytes:
            offered += 4 * MIB
            try:
                kept.append((space.put(pattern(4 * MIB, offered)), offered))
            except chm.DeviceFull:
                refused += 1
            assert space.stats.used_bytes <= dev.info.capacity_bytes
        dev.flush()
        after = path.stat()
        assert (after.st_size, after.st_blocks) == (before.st_size, before.st_blocks)
        assert refused == space.stats.put_refused > 0
        assert len(kept) * 4 * MIB == dev.info.capacity_bytes
        for obj, seed in kept:
            assert np.array_equal(space.read(obj), pattern(4 * MIB, seed))


def test_f47_a_full_table_is_an_answer(make: Make) -> None:
    dev = make("sim")
    with chm.Space(dev, objects_max=100) as space:
        objects = [space.put(bytes([i]) * 100) for i in range(100)]
        for _ in range(3):
            with pytest.raises(chm.TableFull):
                space.put(b"one more")
        assert space.stats.put_refused == 3
        for i, obj in enumerate(objects):
            assert bytes(space.read(obj)) == bytes([i]) * 100
        space.delete(objects[7])
        assert bytes(space.read(space.put(b"one more"))) == b"one more"


# ------------------------------------------------------------------ F39: a scan beside hot objects


def test_f39_a_scan_displaces_nothing_that_is_held(make: Make) -> None:
    dev = make("sim")
    window, object_bytes = dev.info.window_bytes, MIB
    data = fill(dev, 0, 48 * MIB, seed=39)
    hot = [dev.prefetch(i * MIB, object_bytes).wait() for i in range(4)]
    views = [req.array() for req in hot]
    read_before = dev.stats().read_bytes
    scanned = 0
    while scanned < 3 * window:
        at = (4 + scanned // MIB % 44) * MIB
        with dev.prefetch(at, object_bytes) as req:
            assert np.array_equal(req.array(), data[at : at + MIB])
            stats = dev.stats()
            # Occupancy is what is prefetched and not released: the held ones and this one.
            assert stats.window_used_bytes == stats.window_pinned_bytes == 5 * object_bytes
        scanned += MIB
        again = dev.prefetch(0, object_bytes).wait()
        again.release()
    assert dev.stats().read_bytes - read_before == scanned  # no hot object was read again
    for i, view in enumerate(views):
        assert np.array_equal(view, data[i * MIB : (i + 1) * MIB])
    del views, view
    for req in hot:
        req.release()
    assert dev.stats().window_used_bytes == 0


# ------------------------------------------------------------------ F42: a restart


WRITER = """
import os, sys
import chm
path, thread, kill = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "kill"
dev = chm.open(path, thread=thread, dram_bytes="32MiB")
for i in range(8):
    dev.write(i << 20, bytes([i + 1]) * (1 << 20))
dev.flush()
dev.write(0, b"x" * 4096)
print("flushed", flush=True)
if kill:
    sys.stdin.read()
dev.close()
"""


def run_writer(path: Path, thread: bool, how: str) -> None:
    top = str(Path(chm.__file__).parent.parent)
    env: dict[str, Any] = {**os.environ, "PYTHONPATH": top}
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(thread), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        cwd="/",
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"flushed\n"
        if how == "kill":
            child.send_signal(signal.SIGKILL)
    assert child.returncode == (-signal.SIGKILL if how == "kill" else 0)


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("how", ["close", "kill"])
def test_f42_what_was_flushed_is_there_after_a_restart(
    tmp_path: Path, thread: bool, how: str
) -> None:
    path = tmp_path / "d.chm"
    chm.format(path, 16 * MIB)
    run_writer(path, thread, how)
    with chm.open(path, dram_bytes="32MiB") as dev:
        first = dev.read(0, PAGE).tobytes()
        # Written after the flush: the one or the other after a kill, never a mixture.
        assert first in ((b"x" * PAGE,) if how == "close" else (b"x" * PAGE, b"\1" * PAGE))
        for i in range(8):
            at, end = i * MIB + (PAGE if i == 0 else 0), (i + 1) * MIB
            assert (dev.read(at, end - at) == i + 1).all()
