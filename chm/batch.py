# SPDX-License-Identifier: Apache-2.0
"""Many ranges staged, waited for and given back together: arrays in, arrays out.

A Batch owns C arrays of a fixed length, shown as numpy arrays, and uses them again and again.
One round is ``issue -> wait -> (views) -> release``; a call costs the same few microseconds for 1
range or for 32.

    batch = dev.batch(32)
    with batch.issue(addrs, lengths):
        batch.wait()
        for view in batch.views(): ...
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chm._door import BUSY, Door
from chm._ffi import NULL, ffi
from chm._lease import HeldLease
from chm.errors import Busy, WouldBlock, check
from chm.read import UNDECIDED
from chm.request import issue_options

_ISSUE = np.dtype(
    {
        "names": ["addr", "len", "req", "status"],
        "formats": [np.uint64, np.uint64, np.uint64, np.int32],
        "offsets": [0, 8, 16, 24],
        "itemsize": ffi.sizeof("struct chm_issue"),
    }
)
_VIEW = np.dtype([("data", np.uint64), ("len", np.uint64), ("offset", np.uint64)])
_PENDING = -errno.ETIMEDOUT


class Batch(HeldLease):
    """Made by ``Device.batch``. ``addr``, ``length``, ``req`` are uint64 arrays, ``status`` int32.

    The arrays are the batch's own memory: look at them, fill ``addr`` and ``length`` in place if
    that is handy, and copy what must outlive the next ``issue``. Used by one thread at a time.
    """

    __slots__ = (
        "_all",
        "_c_items",
        "_c_reqs",
        "_c_seen",
        "_c_status",
        "_c_views",
        "_first",
        "_memory",
        "_n",
        "_reqs",
        "_view_data",
        "_view_len",
        "_view_offset",
        "_whole",
        "addr",
        "length",
        "req",
        "size",
        "status",
    )

    def __init__(self, door: Door, size: int) -> None:
        if size < 1:
            raise ValueError(f"a batch of {size}")
        self._door = door
        self._seen = None
        self._n = 0  # ranges issued and not released
        self.size = size
        self._c_items = ffi.new("struct chm_issue[]", size)
        self._c_reqs = ffi.new("uint64_t[]", size)
        self._c_status = ffi.new("int32_t[]", size)
        self._c_seen = ffi.new("int32_t[]", size)  # what view_many says
        self._c_views = ffi.new("struct chm_view[]", size)
        items = np.frombuffer(ffi.buffer(self._c_items), _ISSUE)
        self.addr: npt.NDArray[np.uint64] = items["addr"]
        self.length: npt.NDArray[np.uint64] = items["len"]
        self.req: npt.NDArray[np.uint64] = items["req"]
        self._first: npt.NDArray[np.int32] = items["status"]
        self._reqs = np.frombuffer(ffi.buffer(self._c_reqs), np.uint64)
        self.status: npt.NDArray[np.int32] = np.frombuffer(ffi.buffer(self._c_status), np.int32)
        views = np.frombuffer(ffi.buffer(self._c_views), _VIEW)
        self._view_data, self._view_len = views["data"], views["len"]
        self._view_offset = views["offset"]
        self._all = True  # all were issued
        self._whole = False  # all are ready
        self._memory: Any = None  # where the device's memory begins; the first views tell

    def issue(
        self,
        addr: npt.ArrayLike | None = None,
        length: npt.ArrayLike | None = None,
        *,
        count: int | None = None,
        nowait: bool = False,
        not_before_ns: int = 0,
        expire_s: float | None = None,
        queue_s: float | None = None,
    ) -> Batch:
        """Start staging ``count`` ranges (default: as many as ``addr`` has, or the whole batch).

        ``addr`` and ``length`` (one number serves all) are copied into the arrays of those names;
        without them what is there is used. Look at ``status``: 0, or -errno for a range that was
        not issued. Options as ``Device.prefetch``. Busy if the round before was not released.
        """
        if self._n:
            raise Busy(errno.EBUSY, "the batch holds ranges: release() first")
        door = self._door
        if door.garbage:
            door.drain()
        if addr is not None:
            addr = np.asarray(addr, np.uint64)
            count = addr.size
            self.addr[:count] = addr
        n = self.size if count is None else count
        if not 0 <= n <= self.size:
            raise ValueError(f"{n} ranges in a batch of {self.size}")
        if length is not None:
            self.length[:n] = length
        self._whole = False
        options = NULL
        if nowait or not_before_ns or expire_s is not None or queue_s is not None:
            options = issue_options(nowait, not_before_ns, expire_s, queue_s)
        args = (self._c_items, n, options, self._c_reqs, self._c_status)
        issued = door.quick.binding_issue_many(*args)
        if issued < 0:
            if issued == BUSY:
                issued = door.c.binding_issue_many(door.dev, *args)
            door.check_staged(issued, "issue")
        self._all = issued == n
        self._n = n
        return self

    def wait(self, timeout: float | None = 10.0) -> int:
        """Wait until all have ended or ``timeout`` seconds passed. How many are ready.

        ``status`` of each: 0 ready, -ETIMEDOUT going on, else why it failed or was not issued.
        """
        n = self._n
        if self._door.quick.wait_many(self._c_reqs, n, 0, self._c_status) == n:
            self._whole = True
            return n
        rc = self._wait(0)
        if rc < 0 and timeout != 0:
            rc = self._door.sliced(self._wait, timeout)
        return rc if rc >= 0 else int(np.count_nonzero(self.status[: self._n] == 0))

    def _wait(self, ns: int) -> int:
        """How many are ready once all have ended, else -ETIMEDOUT."""
        n, door = self._n, self._door
        ready = check(door.c.wait_many(door.dev, self._c_reqs, n, ns, self._c_status), "wait_many")
        if ready == n:
            self._whole = True
            return ready
        if not self._all:
            refused = self._first[:n].nonzero()[0]
            self.status[refused] = self._first[refused]
        return ready if UNDECIDED.isdisjoint(self.status[:n].tolist()) else _PENDING

    def views(self) -> Sequence[memoryview | None]:
        """A read-only view of each range, no copy; None where ``status`` is not 0.

        They are guarded together: while one of them, a slice of it or an array made from it lives,
        the batch cannot be released.
        """
        n, door = self._n, self._door
        if not self._whole:
            return self._views_of_some()
        if n == 0:
            return []
        if door.quick.view_many(self._c_reqs, n, self._c_views, self._c_seen) != n:
            self._look(self._c_reqs, n)
        return self._slices(n)

    def _look(self, reqs: Any, n: int) -> None:
        """Fill the C views of n handles, waiting for other threads."""
        door = self._door
        seen = check(door.c.view_many(door.dev, reqs, n, self._c_views, self._c_seen), "view")
        if seen < n:
            raise WouldBlock(errno.EAGAIN, "a range is not ready: wait() first")

    def _slices(self, n: int) -> list[memoryview]:
        """What the first n C views show."""
        starts, lengths = self._view_offset[:n], self._view_len[:n]
        if self._memory is None:
            self._memory = ffi.cast("uint8_t *", int(self._view_data[0]) - int(starts[0]))
        # One buffer object over all of the device's memory guards every view that is a slice of it.
        whole = self._lend(self._memory, self._door.memory_bytes).toreadonly()
        ends = (starts + lengths).tolist()
        return list(map(whole.__getitem__, map(slice, starts.tolist(), ends)))

    def _views_of_some(self) -> list[memoryview | None]:
        """The same where not all are known to be ready."""
        statuses, handles = self.status[: self._n].tolist(), self._reqs[: self._n].tolist()
        ready = [i for i, status in enumerate(statuses) if status == 0]
        spread: list[memoryview | None] = [None] * self._n
        if ready:
            self._look(ffi.new("uint64_t[]", [handles[i] for i in ready]), len(ready))
            for i, view in zip(ready, self._slices(len(ready)), strict=True):
                spread[i] = view
        return spread

    def release(self) -> None:
        """Give back, or cancel, all of it. Twice is fine. BufferError while a view lives."""
        n = self._n
        if n == 0:
            return
        if self._seen is not None:
            self._take_back("the batch")
        self._n = 0
        door = self._door
        if door.state == "open" and door.quick.release_many(self._c_reqs, n, NULL) == BUSY:
            door.c.release_many(door.dev, self._c_reqs, n, NULL)

    @property
    def count(self) -> int:
        """Ranges issued and not released."""
        return self._n

    def __enter__(self) -> Batch:
        return self

    def _abandon(self) -> None:
        n, self._n = self._n, 0
        ids = [handle for handle in self._reqs[:n].tolist() if handle]
        self._leave_to_drain(self._door.c.release_many, self._door.dev, ids, len(ids), NULL)

    def __del__(self) -> None:
        if getattr(self, "_n", 0) and self._door.state == "open":
            self._abandon()
