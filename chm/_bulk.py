# SPDX-License-Identifier: Apache-2.0
"""Demand reads and writes in bulk, for measuring: arrays of addresses in, one call into C.

Nothing here looks at bytes. Reads go to memory that the caller names once, all of them to the same
place; writes are admitted and committed without being filled. So it fits simulated devices that
keep no contents, and would be of no use elsewhere.
"""

from __future__ import annotations

import errno
import mmap
from typing import Any

import numpy as np

from chm._ffi import ffi
from chm.device import Device
from chm.errors import check, error_of
from chm.stream import Stream
from chm.units import FOREVER_NS

_READ = np.dtype(
    {
        "names": ["addr", "len", "buf", "req", "status"],
        "formats": [np.uint64, np.uint64, np.uint64, np.uint64, np.int32],
        "offsets": [
            ffi.offsetof("struct chm_read", f) for f in ("addr", "len", "buf", "req", "status")
        ],
        "itemsize": ffi.sizeof("struct chm_read"),
    }
)
_WRITE = np.dtype(
    {
        "names": ["addr", "len", "id", "status"],
        "formats": [np.uint64, np.uint64, np.uint64, np.int32],
        "offsets": [ffi.offsetof("struct chm_write", f) for f in ("addr", "len", "id", "status")],
        "itemsize": ffi.sizeof("struct chm_write"),
    }
)
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def nowhere(length: int) -> mmap.mmap:
    """Memory that costs nothing as long as nobody touches it, to point reads at."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return mmap.mmap(-1, length, flags=flags)


class BulkReads:
    """Up to ``size`` demand reads at a time. ``addr`` and ``length`` are uint64 arrays to fill."""

    def __init__(self, device: Device, size: int, memory: mmap.mmap) -> None:
        self._door = device._door
        self._items = ffi.new("struct chm_read[]", size)
        self._memory = ffi.from_buffer(memory)
        array = np.frombuffer(ffi.buffer(self._items), _READ)
        array["buf"] = int(ffi.cast("uintptr_t", self._memory))
        self.addr = array["addr"]
        self.length = array["len"]
        self._status = array["status"]

    def read(self, n: int) -> None:
        """Read the first ``n``: all issued at once, then waited for. Raises what the first failed
        one met with."""
        door = self._door
        if check(door.c.read(door.dev, self._items, n, FOREVER_NS), "read") == n:
            return
        (failed,) = self._status[:n].nonzero()
        i = int(failed[0])
        what = f"read of {self.length[i]} bytes at {int(self.addr[i]):#x}"
        raise error_of(int(self._status[i]), what)

    def issue(self, i: int, addr: int) -> int:
        """Start read ``i`` alone, at ``addr``; its handle, which ``arrival`` and ``end`` take."""
        item, door = self._items + i, self._door
        item.addr = addr
        if check(door.c.read_issue(door.dev, item, 1), "read") != 1:
            raise error_of(item.status, f"read at {addr:#x}")
        return int(item.req)

    def arrival(self, handle: int) -> int | None:
        """When a read arrives, or has arrived, over the host link, ns on the device's clock; None
        while its bytes are not on the device."""
        rc = int(self._door.c.arrival(self._door.dev, handle))
        return None if rc == -errno.EAGAIN else check(rc, "read")

    def end(self, handle: int) -> None:
        """Forget a read that has arrived."""
        check(self._door.c.release(self._door.dev, handle), "read")


def take_piece(stream: Stream, wait_ns: int) -> bool | None:
    """Take the next piece of a stream and give it back at once. True: it came; False: not within
    ``wait_ns``; None: that was all."""
    c, place, out = stream._door.c, stream._place[0], stream._out
    rc = int(c.stream_next(place, wait_ns, out))
    if rc == -errno.ENODATA:
        return None
    if rc == -errno.ETIMEDOUT:
        return False
    check(rc, "stream")
    check(c.stream_release(place, out.req), "stream")
    return True


class BulkWrites:
    """Up to ``size`` writes at a time. ``addr`` and ``length`` are uint64 arrays to fill."""

    def __init__(self, device: Device, size: int) -> None:
        self._door = device._door
        self._items = ffi.new("struct chm_write[]", size)
        self._committed = ffi.new("int32_t[]", size)
        array = np.frombuffer(ffi.buffer(self._items), _WRITE)
        self.addr = array["addr"]
        self.length = array["len"]
        self._id = array["id"]
        self._status = array["status"]

    def write(self, first: int, n: int) -> int:
        """Admit and commit as many as fit of ``n`` writes from ``first`` on; how many did."""
        door = self._door
        done = check(door.c.write_begin(door.dev, self._items + first, n), "write")
        if done:
            ids = ffi.cast("uint64_t *", ffi.from_buffer(self._ids(first, done)))
            check(door.c.write_commit(door.dev, ids, done, self._committed), "write")
        if done < n and self._status[first + done] != -errno.EAGAIN:
            raise error_of(int(self._status[first + done]), "write")
        return done

    def _ids(self, first: int, n: int) -> Any:
        return np.ascontiguousarray(self._id[first : first + n])
