# SPDX-License-Identifier: Apache-2.0
"""A job of a store, and what a lease job gives: objects to look at where they lie in the window.

A job: ``submitted -> ended``, told exactly once. Its buffers belong to the store until then: they
cannot be resized, and nothing writes to them afterwards. A job that nobody keeps goes on; leases
that it got are given back by themselves.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from chm._ffi import ffi, lib
from chm._lease import HeldLease
from chm.errors import ChmError, Closed, WaitTimeout, check, error_of, keys_failed
from chm.units import seconds_to_ns

if TYPE_CHECKING:
    from chm._house import House

_OPS = {
    "get": lib.CHM_STORE_GET,
    "put": lib.CHM_STORE_PUT,
    "delete": lib.CHM_STORE_DELETE,
    "lease": lib.CHM_STORE_LEASE,
    "sync": lib.CHM_STORE_SYNC,
}
PENDING = -errno.EINPROGRESS
"""Status of a key while the job goes on."""
DUPLICATE: int = lib.CHM_STORE_DUPLICATE
"""Status of a put key that was there, or is being put: nothing was written. Counts as success."""
ENTER_TIMEOUT_S = 10.0


class Job:
    """Keys on their way; made by ``Store.get``, ``put``, ``delete``, ``lease`` and ``sync``.

    ``statuses`` has a number for each key: 0 done, ``chm.store.DUPLICATE``, -errno, and until the
    job has ended possibly ``chm.store.PENDING``. ``lengths`` (get, lease): bytes of each object.
    ``leases`` (lease): an ObjectLease or None for each key, once it has ended.
    ``await job`` waits in an asyncio program, and raises as ``result``.
    """

    __slots__ = (
        "__weakref__",
        "_c",
        "_c_leases",
        "_callbacks",
        "_ended",
        "_handle",
        "_house",
        "_keep",
        "_result",
        "leases",
        "lengths",
        "op",
        "statuses",
    )

    def __init__(self, house: House, op: str, ns: int, keys: Any, n: int) -> None:
        self._house = house
        self._ended = False
        self._result = 0
        self._callbacks: list[Callable[[], Any]] = []
        self.op = op
        self.statuses: npt.NDArray[np.int32] = np.full(n, PENDING, np.int32)
        self.lengths: npt.NDArray[np.uint64] | None = None
        self.leases: list[ObjectLease | None] = []
        self._c_leases: Any = None
        self._handle = ffi.new("uint64_t *")
        self._c = c = ffi.new("struct chm_store_job *")
        c.op, c.ns, c.n = _OPS[op], ns, n
        self._keep: list[Any] = [keys]
        if n:
            c.keys = keys
            c.status = self._memory("int32_t[]", self.statuses)
        if op in ("get", "lease"):
            self.lengths = np.zeros(n, np.uint64)
            if n:
                c.lens = self._memory("uint64_t[]", self.lengths)
        if op == "lease" and n:
            self._c_leases = c.leases = ffi.new("struct chm_store_lease[]", n)

    def _memory(self, ctype: str, array: npt.NDArray[Any]) -> Any:
        memory = ffi.from_buffer(ctype, array)
        self._keep.append(memory)
        return memory

    def _start(self, timeout: float | None, flags: int = 0) -> Job:
        c = self._c
        c.flags = flags
        c.timeout_ns = max(seconds_to_ns(timeout), 1)
        if len(self.statuses) == 0 and self.op != "sync":
            self._house.need_open()
            self._end(0)  # nothing to do, and C has no jobs without keys
        else:
            self._house.submit(self)
        return self

    def __repr__(self) -> str:
        state = "ended" if self._ended else "going on"
        return f"<chm.Job {self.op} of {len(self.statuses)} keys, {state}>"

    # -- the end -------------------------------------------------------------------------------

    def _end(self, result: int) -> None:
        """It was drained: C has let go of all its memory."""
        if self._ended:
            return
        self._result = result
        if self._c_leases is not None:
            self.leases = [
                None if status < 0 else ObjectLease(self._house, self._c_leases[i])
                for i, status in enumerate(self.statuses.tolist())
            ]
        self._close()

    def _lost(self, status: int) -> None:
        """The store was given up while reads of this job hung: it will never be drained."""
        self._result = status
        self.statuses = np.full(len(self.statuses), status, np.int32)  # C may still write the old
        self.leases = [None] * len(self.leases)
        self._close()

    def _close(self) -> None:
        self._keep = []
        self._c = self._c_leases = None
        self._ended = True
        callbacks, self._callbacks = self._callbacks, []
        for call in callbacks:
            call()

    def on_end(self, call: Callable[[], Any]) -> None:
        """Call ``call()`` once the job has ended, from whichever thread notices; at once if it has.

        It must be quick, and may not wait for anything.
        """
        self._callbacks.append(call)
        if self._ended and call in self._callbacks:
            self._callbacks.remove(call)
            call()

    def told(self) -> bool:
        """Whether it has ended and somebody noticed; ``done`` looks."""
        return self._ended

    # -- asking --------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not; never changes back. Does not wait."""
        if not self._ended:
            self._house.poll()
        return self._ended

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until it has ended, and return it: look at ``statuses`` then.

        A job ends by its own deadline, whatever the device does (unless reads into the caller's
        memory hang). WaitTimeout after ``timeout`` seconds on the device's clock: it goes on.
        """
        if not self._ended and not self._house.wait(self, timeout):
            text = f"{self.op} of {len(self.statuses)} keys has not ended"
            raise WaitTimeout(errno.ETIMEDOUT, text)
        return self

    def result(self, timeout: float | None = None) -> Any:
        """Wait, and raise KeysFailed unless every key succeeded.

        Gives the leases of a lease job, None for a sync, and the statuses of any other.
        """
        self.wait(timeout)
        if self.op == "sync":
            check(self._result, "sync")
            return None
        if self._result < 0:
            raise keys_failed(self.op, self.statuses.tolist())
        return self.leases if self.op == "lease" else self.statuses

    @property
    def errors(self) -> dict[int, ChmError]:
        """What went wrong, by place in the keys; empty while nothing has."""
        return {
            i: error_of(status, f"{self.op} of key {i}")
            for i, status in enumerate(self.statuses.tolist())
            if status < 0 and status != PENDING
        }

    @property
    def prefix(self) -> int:
        """How many keys succeeded, counted from the front: what a chain can use."""
        bad = np.flatnonzero(self.statuses < 0)
        return int(bad[0]) if bad.size else len(self.statuses)

    def cancel(self) -> bool:
        """End it early: keys that have not ended get Cancelled. False if it had ended before.

        It still ends in the usual way: wait for it before its buffers are used again.
        """
        if self._ended or not self._handle[0]:
            return False
        try:
            return int(self._house.c.store_cancel(self._house.s, self._handle[0])) == 0
        except Closed:
            return False

    def __await__(self) -> Generator[Any, None, Any]:
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        if not self._ended:
            await self._house.until_ended(self)
        return self.result()

    # -- leases --------------------------------------------------------------------------------

    def release(self) -> None:
        """Give back all leases it got. BufferError, and nothing given back, while a view lives."""
        leases = [lease for lease in self.leases if lease is not None and lease._id]
        if looked_at := sum(lease._looked_at() for lease in leases):
            raise BufferError(f"views of {looked_at} leases are alive; drop them first")
        self._house.give_back([lease._end_here() for lease in leases])

    def __enter__(self) -> list[ObjectLease | None]:
        """Wait for a lease job (10 s) and give its leases, which end with the block."""
        try:
            self.result(ENTER_TIMEOUT_S)
        except BaseException:
            self.cancel()
            if self._ended:
                self.release()
            raise
        return self.leases

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.release()
        except BufferError:
            if kind is None:
                raise  # else the traceback holds views: given back when they are gone


class ObjectLease(HeldLease):
    """A stored object in the window: read only, no copy, its own until released.

    It is one piece unless the object is split on the device. A context manager.
    """

    __slots__ = ("__weakref__", "_house", "_id", "_pieces", "length")

    def __init__(self, house: House, c_lease: Any) -> None:
        self._house = house
        self._door = house.door
        self._seen = None
        self._id = int(c_lease.id)
        self._pieces = [
            (int(ffi.cast("uintptr_t", c_lease.piece[i].data)), int(c_lease.piece[i].len))
            for i in range(c_lease.pieces)
        ]
        self.length = int(c_lease.len)
        house.held[self._id] = None

    def views(self) -> list[memoryview]:
        """The pieces of the object, in order; together they are its bytes.

        The lease cannot be released while one of them, a slice or an array of it lives.
        """
        if not self._id or self._house.state not in ("open", "closing"):
            raise error_of(-errno.ESTALE, "lease")
        first = min(addr for addr, _ in self._pieces)
        end = max(addr + length for addr, length in self._pieces)
        # One buffer object over all pieces guards them together.
        whole = self._lend(ffi.cast("uint8_t *", first), end - first).toreadonly()
        self._house.held[self._id] = self._seen
        return [whole[addr - first : addr - first + length] for addr, length in self._pieces]

    def view(self) -> memoryview:
        """The bytes of an object of one piece. ValueError if it has more: see ``views``."""
        views = self.views()
        if len(views) != 1:
            raise ValueError(f"the object lies in {len(views)} pieces: use views() or copy_to()")
        return views[0]

    def array(self, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """``view`` as a read-only numpy array, no copy."""
        return np.frombuffer(self.view(), dtype=dtype)

    def copy_to(self, out: Any) -> None:
        """Copy the bytes into a writable, C-contiguous buffer of ``length`` bytes."""
        target = np.frombuffer(memoryview(out).cast("B"), np.uint8)
        if target.nbytes != self.length:
            raise ValueError(f"the object has {self.length} bytes, the buffer {target.nbytes}")
        at = 0
        for view in self.views():
            np.copyto(target[at : at + view.nbytes], np.frombuffer(view, np.uint8))
            at += view.nbytes

    def release(self) -> None:
        """Give the window space back. Twice is fine. BufferError while a view lives."""
        if self._id:
            self._take_back("the lease")
            self._house.give_back([self._end_here()])

    def _end_here(self) -> int:
        lease, self._id = self._id, 0
        self._forget()
        return lease

    def __enter__(self) -> ObjectLease:
        return self

    def _abandon(self) -> None:
        lease, self._id = self._id, 0
        self._leave_to_drain(self._house.give_back, [lease])

    def __del__(self) -> None:
        if getattr(self, "_id", 0) and self._house.state == "open":
            self._abandon()
