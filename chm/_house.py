# SPDX-License-Identifier: Apache-2.0
"""The C handle of one store: who may call it, and how each job is told exactly once.

States: open -> closing -> closed; or forked (in a child process, for good).

- Calls go through two gates: the store's own, which closing shuts and waits to be empty, and the
  device's (chm/_door.py). So no thread can reach a store that is gone.
- A job stands in ``running`` from before it is submitted until it was told, and holds its buffers
  that long, whatever happens to whoever submitted it.
- Jobs end in C; *draining* fetches those that ended and tells each to its Job. One thread drains at
  a time, for all: it has taken the only token. Who waits for a job and finds no token sleeps until
  the job is told or the token is back. The token is taken, and the ended jobs are noted in ``out``,
  inside single calls of C, so Ctrl-C between two bytecodes loses neither: what was noted and not
  told yet is told by the next who drains.
- Finalisers of leases only leave a note (see ``Lease``); a store that is gone needs nothing back.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from chm._diary import Diary, keys_of, log
from chm._door import Door, Gate, _kept_for_ever, _patient, explained
from chm._ffi import NULL, ffi, lib
from chm.errors import Busy, Closed, Forked, check, error_of
from chm.stats import StoreInfo, StoreStats, store_info_of, store_stats_of
from chm.units import seconds_to_ns

if TYPE_CHECKING:
    from chm.job import Job

_CALLS = (
    "store_cancel",
    "store_drain",
    "store_event_fd",
    "store_evict",
    "store_exists",
    "store_info",
    "store_list",
    "store_namespace",
    "store_namespace_info",
    "store_release",
    "store_slow",
    "store_stats",
    "store_step",
    "store_stop",
    "store_submit",
    "store_sync",
    "store_where",
)
_MOST = 64  # jobs told at once
_FOLLOW_S = 0.05  # who waits for another thread's draining looks again after this


class StoreCalls:
    """The functions of chm.h that take a store, without ``chm_``, through both gates."""

    __slots__ = _CALLS

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    def __init__(self, gate: Gate, own: Gate) -> None:
        for name in _CALLS:
            call = getattr(lib, "gated_" + name)
            setattr(self, name, _patient(partial(call, gate.c, own.c)))


class House:
    """Shared by a Store, its jobs and its leases."""

    orphan: bool
    """Nobody has the Store any more."""

    def __init__(self, door: Door, options: Any, what: str) -> None:
        for other in list(door.stores):
            if other.orphan:
                other.close(30.0)
        self.place = ffi.new("chm_store **")
        self.door = door
        self.name = what
        self.state = "open"
        self.orphan = False
        self.own = Gate(threaded=True)
        self.c = StoreCalls(door.gate, self.own)
        self.closing = threading.RLock()
        self.running: dict[int, Job] = {}
        self.held: dict[int, Any] = {}  # lease -> weak look at the buffer its views are made from
        self.loops: dict[asyncio.AbstractEventLoop, int] = {}
        self._cookies = itertools.count(1)
        self._tokens: deque[int] = deque([1])
        self._followers: deque[threading.Event] = deque()
        self._out = ffi.new("struct chm_store_done[]", _MOST)
        self._noted = False  # out may hold jobs that were not told
        self.diary = Diary(what)
        self._opened_ns = door.now()
        door.stores.add(self)
        try:
            explained(partial(door.c.store_open, door.dev), options, self.place, path=what)
        except BaseException:  # also Ctrl-C, which is raised when the call has returned
            if self.place[0]:
                door.c.store_close(self.place[0], seconds_to_ns(30.0))
            self.state = "closed"
            self.own.shut(errno.ESHUTDOWN)
            door.stores.discard(self)
            raise
        if log.isEnabledFor(logging.WARNING):
            self.diary.opened(self.info(), self.stats())

    @property
    def s(self) -> Any:
        """The handle; goes only through ``c``, whose gate is shut before it dangles."""
        return self.place[0]

    def need_open(self) -> None:
        if self.state != "open" or self.door.state != "open":
            if self.state == "forked" or self.door.state == "forked":
                raise error_of(-errno.ECHILD, "store")
            raise Closed(errno.ESHUTDOWN, "the store is closed")
        if self.door.garbage:
            self.door.drain()

    def info(self) -> StoreInfo:
        """What it is."""
        out = ffi.new("struct chm_store_info *")
        check(self.c.store_info(self.s, out), "info")
        return store_info_of(out)

    def stats(self) -> StoreStats:
        """Its counters."""
        out = ffi.new("struct chm_store_stats *")
        check(self.c.store_stats(self.s, out), "stats")
        return store_stats_of(out)

    def open_s(self) -> float:
        """How long it has been open, on the device's clock."""
        return (self.door.now() - self._opened_ns) / 1e9

    # -- jobs ----------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Start it. Busy when as many jobs as there may be are going on."""
        self.need_open()
        cookie = next(self._cookies)
        job._c.cookie = cookie
        self.running[cookie] = job
        rc = self.c.store_submit(self.s, job._c, job._handle)
        if rc == -errno.EBUSY:  # ended ones that nobody asked for may fill the table
            self.poll()
            rc = self.c.store_submit(self.s, job._c, job._handle)
        if rc < 0:
            del self.running[cookie]
            if rc == -errno.EBUSY:
                raise Busy(errno.EBUSY, "the store has as many jobs or keys in flight as it may")
            check(rc, job.op)

    def poll(self) -> None:
        """Tell the jobs that have ended; does not wait, unless another thread is at it."""
        if not self.door.threaded:
            self.c.store_step(self.s, 1)
        while self._drain(0) == _MOST:
            pass

    def _drain(self, ns: int) -> int:
        """Wait at most ns for jobs to end, tell them; how many. -1: another thread is at it."""
        token: list[int] = []
        try:
            token.extend(map(deque.pop, (self._tokens,)))
        except IndexError:
            return -1
        try:
            if self._noted:
                self._tell()
            self._noted = True
            n = self.c.store_drain(self.s, self._out, _MOST, ns)
            self._tell(max(n, 0))
            return n if n >= 0 else 0
        finally:
            self._tokens.extend(token)
            for event in list(self._followers):
                event.set()

    def _tell(self, n: int = _MOST) -> None:
        out = self._out
        for i in range(n):
            done = out[i]
            if done.id:
                job = self.running.get(done.cookie)
                if job is not None:
                    if done.result < 0 and not job._ended:
                        self._note_failure(job)
                    job._end(done.result)
                    self.running.pop(done.cookie, None)
                done.id = 0
        self._noted = False

    def _note_failure(self, job: Job) -> None:
        if job.op == "sync":
            if self.info().degraded:
                self.diary.degraded()
            return
        kept = bool(job._c.flags & lib.CHM_STORE_KEEP)
        self.diary.failed(job.op, keys_of(job, ffi), job.statuses.tolist(), kept)

    def wait(self, job: Job, timeout: float | None) -> bool:
        """Whether the job was told in time. Virtual time passes as far as it has to."""
        door = self.door
        end = None if timeout is None else door.now() + seconds_to_ns(timeout)
        while not job.told():
            slice_ns = seconds_to_ns(None) if door.virtual else door.slice_ns
            left = slice_ns if end is None else min(max(end - door.now(), 0), slice_ns)
            try:
                told = self._drain(left)
            except (Closed, Forked):
                if job.told():
                    break
                raise
            if told < 0:
                self._follow(job, left)
            if job.told():
                break
            if told == 0 and door.virtual:
                return False  # nothing is left to happen in this time
            if end is not None and door.now() >= end:
                return False
            door.hand_over()
        return True

    def _follow(self, job: Job, ns: int) -> None:
        """Sleep while another thread drains."""
        event = threading.Event()
        self._followers.append(event)
        try:
            if not job._ended and not self._tokens:
                event.wait(min(ns / 1e9, _FOLLOW_S))
        finally:
            self._followers.remove(event)

    # -- leases --------------------------------------------------------------------------------

    def give_back(self, ids: list[int]) -> int:
        """Release leases; 0. Those of a store that is gone went with it."""
        for lease in ids:
            self.held.pop(lease, None)
        try:
            if ids and self.state in ("open", "closing"):
                self.c.store_release(self.s, ids, len(ids))
        except (Closed, Forked):
            pass
        return 0

    # -- asyncio -------------------------------------------------------------------------------

    async def until_ended(self, job: Job) -> None:
        """Return once the job was told."""
        if not self.door.threaded:
            pause = 0.0 if self.door.virtual else 0.00005
            while not job._ended:
                await asyncio.sleep(pause)
                if self.door.virtual:
                    self.wait(job, None)
                else:
                    self.poll()
                    pause = min(pause * 2, 0.001)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._watch(loop)
        try:
            job.on_end(partial(_wake_from_anywhere, loop, future))
            self.poll()
            await future
        finally:
            self._unwatch(loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.loops.get(loop, 0) == 0:
            loop.add_reader(check(self.c.store_event_fd(self.s), "event_fd"), self._readable)
        self.loops[loop] = self.loops.get(loop, 0) + 1

    def _unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        left = self.loops.get(loop, 0) - 1
        if left > 0:
            self.loops[loop] = left
        elif self.loops.pop(loop, None) is not None:
            loop.remove_reader(self.c.store_event_fd(self.s))

    def _readable(self) -> None:
        try:
            self.poll()
        except (Closed, Forked):
            pass

    def _leave_loops(self) -> None:
        """The descriptor is about to be closed."""
        fd = int(self.c.store_event_fd(self.s))
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop in list(self.loops):
            self.loops.pop(loop, None)
            if loop is here:
                loop.remove_reader(fd)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(loop.remove_reader, fd)

    # -- the end -------------------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        with self.closing:
            if self.state not in ("open", "closing"):
                return
            if self.door.state != "open":
                self.state = self.door.state
                return
            looked_at = sum(seen is not None and seen() is not None for seen in self.held.values())
            if looked_at:
                raise BufferError(f"views of {looked_at} leases are alive; drop them, then close")
            self.state = "closing"
            self._finish(timeout)

    def _finish(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        self._let_end(self.door.now() + seconds_to_ns(timeout))
        rc = int(self.c.store_stop(self.s, 0))
        while self._drain(0) > 0 or self._noted:
            pass
        self.give_back(list(self.held))
        if rc == 0:  # the last call cannot be interrupted: wait here for what may take long
            left = timeout if self.door.virtual else end - time.monotonic()
            self.door.sliced(lambda ns: int(self.c.store_sync(self.s, ns)), max(left, 0.0))
        counters = self.stats() if log.isEnabledFor(logging.INFO) else None
        if self.info().degraded:
            self.diary.degraded()
        self._leave_loops()
        self.own.shut(errno.ESHUTDOWN)
        rc = -errno.ETIMEDOUT
        if self.own.wait_empty(max(end - time.monotonic(), 1.0)):
            left = timeout if self.door.virtual else max(end - time.monotonic(), 1.0)
            rc = int(self.door.c.store_close(self.s, seconds_to_ns(left)))
        self.state = "closed"
        self.place[0] = NULL
        self.door.stores.discard(self)
        self._lose_the_rest()
        self.diary.closed(rc, counters)
        check(rc, "close of the store", self.name)

    def _let_end(self, end_ns: int) -> None:
        """Let running jobs end, in slices between which signals are handled."""
        while self.running and (left := end_ns - self.door.now()) > 0:
            told = self._drain(left if self.door.virtual else min(left, self.door.slice_ns))
            if told < 0:
                time.sleep(0.001)
            elif told == 0 and self.door.virtual:
                return

    def _lose_the_rest(self) -> None:
        """Reads of these jobs hang: their memory must never be used for anything else."""
        for job in list(self.running.values()):
            _kept_for_ever.append(job._keep)
            job._lost(-errno.ESHUTDOWN)
        self.running.clear()

    def forked(self) -> None:
        """In a child process, with all other threads gone."""
        self.state = "forked"
        self.closing = threading.RLock()
        self._tokens = deque([1])
        self._followers = deque()

    def abandon(self) -> None:
        """Its Store was dropped open: closed by the next store of the device, or with it."""
        self.orphan = True


def _wake_from_anywhere(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_wake, future)
    except RuntimeError:
        pass  # that loop is closed: nobody waits


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
