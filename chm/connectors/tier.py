# SPDX-License-Identifier: Apache-2.0
"""What all adapters are made of: tasks over one namespace of a store.

A task, a get, put or delete of any number of keys: submitted -> running -> ended, and reported
exactly once, by ``drain``, ``result`` or ``close``. It is one or more jobs of the store, of at most
32 keys each. Jobs run on the store's own threads, without the interpreter; submitting and draining
never wait.

    get: all jobs at once.        put: one job after the other, each hangs on the one before; the
                                  first waits for a put of the key that it hangs on.

A job for which the store has no place (it takes 256) waits for one, until the deadline.

After a task was reported nothing touches its buffers. A key whose get failed for whatever reason is
a miss from then on, until it was put again or a minute has passed, so that a host that looks up
once more computes it instead of trying for ever.

A hint stages the first of its keys into the window, before anybody asks for their bytes; a get then
takes them from there (chm/connectors/hints.py).
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chm.connectors.config import SharedStore, TierOptions
from chm.connectors.hints import Hints
from chm.connectors.task import Done, Task
from chm.errors import Busy, ChmError, Closed, Forked
from chm.job import Job
from chm.stats import Record
from chm.units import parse_size

BATCH = 32
MISS_S = 60.0
GRACE_S = 1.0  # that closing waits beyond the deadline of jobs
_ALL = 1 << 62  # bytes; more than any device has
_WAIT_S = 0.05
_PAUSE_S = 0.005


@dataclass(frozen=True)
class TierStats(Record):
    """lookups = hits + misses; keys of ended gets = get_ok + get_failed; of ended puts = put_ok +
    put_failed. Bytes are those of keys that succeeded."""

    lookups: int = 0
    hits: int = 0
    misses: int = 0
    get_ok: int = 0
    get_failed: int = 0
    get_bytes: int = 0
    put_ok: int = 0
    put_failed: int = 0
    put_bytes: int = 0
    deleted: int = 0
    hints: int = 0
    hints_used: int = 0
    hints_expired: int = 0
    hints_cancelled: int = 0
    tasks_running: int = 0


class Tier:
    """One namespace of the store that ``options`` name. Any thread may call; a context manager.

    ``block_bytes`` is the usual size of an object, if the engine knows it: for the index of a store
    that has to be made. Raises what ``SharedStore.take`` does.
    """

    def __init__(self, options: TierOptions, namespace: str, block_bytes: int = 0) -> None:
        self.options = options
        self.namespace = namespace
        self._shared = SharedStore.take(options, block_bytes)
        self.store = self._shared.store
        try:
            self._ns = self.store.namespace(namespace, parse_size(options.quota) or None)
        except BaseException:
            self._shared.give_back(options.deadline_s)
            raise
        window = self._shared.device.info.window_bytes
        self._lock = threading.RLock()
        self._running: dict[int, Task] = {}
        self._ended: deque[Task] = deque()
        self._hints = Hints(self.store, self._ns, options, window, self._count_one)
        self._missing: dict[bytes, float] = {}  # key -> until when it is a miss; in that order
        self._putting: dict[bytes, Task] = {}  # key of a running put -> the put
        self._numbers = 0
        self._counts = dict.fromkeys(TierStats.__dataclass_fields__, 0)
        self.on_progress: Callable[[], object] = _nothing
        """Called, from whichever thread notices, when a task may have got on: for a host that
        sleeps until then. It must be quick and take no lock."""
        self.closed = False

    # -- looking up ----------------------------------------------------------------------------

    def exists(self, keys: Sequence[bytes], count: bool = True) -> list[bool]:
        """Whether each key is there; asks the store for 32 at a time. Counts as no use. Nothing is
        there when the tier is closed: a host that still asks shall be able to end.

        Nothing is there when the tier is closed: a host that still asks shall be able to end.
        ``count`` is for questions that are no look-up of a request: False leaves the counters.
        """
        if self.closed:
            return [False] * len(keys)
        found: list[bool] = []
        for first in range(0, len(keys), BATCH):
            found += self.store.exists(self._ns, list(keys[first : first + BATCH])).tolist()
        with self._lock:
            if self._missing:
                self._forget_misses()
                found = [
                    ok and key not in self._missing for key, ok in zip(keys, found, strict=True)
                ]
            if count:
                hits = sum(found)
                self._count(lookups=len(found), hits=hits, misses=len(found) - hits)
        return found

    def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """Bytes of each object, 0 for those that are not there. Counts as no look-up."""
        parts = [list(keys[first : first + BATCH]) for first in range(0, len(keys), BATCH)]
        return [n for part in parts for n in self.store.sizes(self._ns, part).tolist()]

    def touch(self, keys: Sequence[bytes]) -> None:
        """These, from the front as far as they are there, were used now: for eviction."""
        for first in range(0, len(keys), BATCH):
            some = list(keys[first : first + BATCH])
            if self.store.prefix(self._ns, some) < len(some):
                return

    def mark_missing(self, keys: Sequence[bytes]) -> None:
        """Answer "not there" for these until they are put, or a minute has passed."""
        with self._lock:
            self._forget_misses()
            until = time.monotonic() + MISS_S
            for key in keys:
                self._missing.pop(key, None)
                self._missing[key] = until

    def _forget_misses(self) -> None:
        now = time.monotonic()
        while self._missing:
            key, until = next(iter(self._missing.items()))
            if until > now:
                return
            del self._missing[key]

    # -- hints ---------------------------------------------------------------------------------

    def hint(self, request: Any, keys: Sequence[bytes]) -> int:
        """Start reading the first of these, which are there and will be got soon; how many.

        As many as fit into what hints may take of the window, and 32 at most. Never waits; without
        room, or for a request that has a hint, it does nothing.
        """
        with self._lock:
            return 0 if self.closed else self._hints.begin(request, keys)

    def cancel(self, request: Any) -> None:
        """The request is over: its hint goes, unless a get is using it."""
        with self._lock:
            self._hints.cancel(request)

    def unhint(self, keys: Sequence[bytes]) -> None:
        """These will not be got after all. A hint goes when that is so for all of its keys."""
        with self._lock:
            self._hints.unhint(keys)

    def clear(self) -> int:
        """Drop the objects of this namespace, but for those that are in use; how many."""
        with self._lock:
            jobs = self._hints.clear()
        for job in jobs:
            _wait_a_little([job])
        return self.store.evict(_ALL, self._ns)

    # -- tasks ---------------------------------------------------------------------------------

    def get(self, tag: Any, keys: Sequence[bytes], buffers: Sequence[Any]) -> int:
        """Read each object into its buffer (or list of buffers), of exactly its length; the number
        of the task. The buffers are the task's until it was reported. Raises Closed."""
        buffers = list(buffers)
        copy = not self.options.direct
        with self._lock:
            task = self._new(tag, "get", keys, buffers)
            task.hints = self._hints.use(keys)
            for first in range(0, len(keys), BATCH):
                part = buffers[first : first + BATCH]
                task.later.append(partial(self._get_part, task, first, part, copy))
            self._begun(task)
        return task.number

    def _get_part(self, task: Task, first: int, buffers: list[Any], copy: bool) -> bool:
        some = task.keys[first : first + BATCH]
        copy = copy or any(key in self._hints for key in some)  # else the drive reads it twice
        left = task.left_s()
        return self._start(
            task, first, lambda: self.store.get(self._ns, some, buffers, copy=copy, timeout=left)
        )

    def put(
        self,
        tag: Any,
        keys: Sequence[bytes],
        buffers: Sequence[Any],
        after: bytes | None = None,
        chain: bool = True,
    ) -> int:
        """Store objects, in chain order; the number of the task.

        ``after`` is the key before the first; it is left out of account if it is not there and
        no put that goes on has it. A block that finds no room by the deadline is refused,
        and those behind it with it. Without ``chain`` none depends on another. Raises Closed.
        """
        buffers = list(buffers)
        with self._lock:
            task = self._new(tag, "put", keys, buffers)
            task.in_turn = chain
            task.behind = self._putting.get(after) if after else None
            self._putting.update(dict.fromkeys(task.keys, task))
            for first in range(0, len(keys), BATCH):
                before = task.keys[first - 1] if first else after
                part = buffers[first : first + BATCH]
                task.later.append(partial(self._put_part, task, first, part, before))
            self._begun(task)
        return task.number

    def _put_part(self, task: Task, first: int, buffers: list[Any], before: bytes | None) -> bool:
        some = task.keys[first : first + BATCH]

        def submit() -> Job:
            put = partial(self.store.put, self._ns, some, buffers, wait=True, timeout=task.left_s())
            if not task.in_turn:
                return put(chain=False)
            known = before is not None and bool(self.store.exists(self._ns, [before])[0])
            if first and not known:
                raise ValueError("the block before it was not stored")
            return put(parent=before if known else None)

        return self._start(task, first, submit)

    def delete(self, tag: Any, keys: Sequence[bytes]) -> int:
        """Drop objects, a task like the others. What was not there counts as a failure."""
        with self._lock:
            task = self._new(tag, "delete", keys, [b""] * len(keys))
            for first in range(0, len(keys), BATCH):
                some = task.keys[first : first + BATCH]
                submit = partial(self.store.delete, self._ns, some)
                task.later.append(partial(self._start, task, first, submit))
            self._begun(task)
        return task.number

    def _new(self, tag: Any, op: str, keys: Sequence[bytes], buffers: Sequence[Any]) -> Task:
        """A task without parts: with the lock held until it has some, or it would end at once."""
        if len(keys) != len(buffers):
            raise ValueError(f"{len(keys)} keys, but {len(buffers)} buffers")
        if self.closed:
            raise Closed(errno.ESHUTDOWN, "the tier is closed")
        task = Task(self._numbers + 1, tag, op, keys, buffers, self.options.deadline_s)
        self._numbers += 1
        self._running[task.number] = task
        return task

    def _start(self, task: Task, first: int, submit: Callable[[], Job]) -> bool:
        """Submit a job of a task; False: the store has as many as it may, so try again later. One
        that cannot be submitted at all is a failure of its keys."""
        try:
            job = submit()
        except (ChmError, ValueError, TypeError) as error:
            if isinstance(error, Busy) and task.left_s() > 0:
                return False
            task.fail(error)
            return True
        task.jobs.append((first, job))
        job.on_end(self.on_progress)
        return True

    def _begun(self, task: Task) -> None:
        self._settle(task)
        if task.over:
            self.on_progress()  # it ended here: the store wakes nobody

    # -- what has ended ------------------------------------------------------------------------

    def drain(self) -> list[Done]:
        """Tasks that have ended since the last time. Does not wait."""
        self._poll()
        with self._lock:
            self._settle_all()
            self._hints.expire()
            ended, self._ended = self._ended, deque()
        return [task.done() for task in ended]

    def result(self, number: int) -> Done:
        """Wait for one task and report it here, and not by ``drain``: for hosts whose calls wait.

        Any number of threads may, each for its own; a tier is either drained or asked like this. It
        returns by the task's deadline. KeyError if the task was reported before, also by ``close``.
        """
        self.wait(task=number)
        with self._lock:
            self._hints.expire()
            for task in self._ended:
                if task.number == number:
                    self._ended.remove(task)
                    return task.done()
        raise KeyError(f"task {number} was reported before")

    def _poll(self) -> None:
        try:
            self.store.poll()
        except (Closed, Forked):
            pass  # nothing goes on any more

    def _settle_all(self) -> None:
        for task in list(self._running.values()):
            self._settle(task)

    def _settle(self, task: Task) -> None:
        """Take what has ended; start what is next; end it if nothing is left."""
        if task.behind is not None and not task.behind.over:
            return
        task.behind = None
        while not task.over:
            while task.jobs and task.jobs[0][1].told():
                task.take(*task.jobs.popleft())
            if task.may_start():
                if not task.later[0]():
                    return
                task.later.popleft()
            elif task.jobs:
                return
            else:
                self._end(task)

    def _end(self, task: Task) -> None:
        del self._running[task.number]
        task.over = True
        task.later.clear()
        failed = task.failed()
        good = len(task.keys) - len(failed)
        if task.op == "delete":
            self._count(deleted=good)
        else:
            names = (f"{task.op}_ok", f"{task.op}_failed", f"{task.op}_bytes")
            counts = (good, len(failed), task.nbytes)
            self._count(**dict(zip(names, counts, strict=True)))
        if task.op == "get":
            self.mark_missing(failed)
            self._drop_others(task.other)
        elif task.op == "put":
            self._forget_put(task)
        self._hints.used(task.hints)
        self._ended.append(task)

    def _forget_put(self, task: Task) -> None:
        for key, ok in zip(task.keys, task.ok, strict=True):
            if self._putting.get(key) is task:
                del self._putting[key]
            if ok:
                self._missing.pop(key, None)

    def _drop_others(self, keys: list[bytes]) -> None:
        """What has another length can never be got: it would keep out what is put in its place."""
        try:
            for first in range(0, len(keys), BATCH):
                self.store.delete(self._ns, keys[first : first + BATCH])
        except ChmError:
            pass  # it stays a miss, and the next get of it comes here again

    @property
    def busy(self) -> bool:
        """Whether tasks run, or have ended and were not drained."""
        return bool(self._running or self._ended)

    def fileno(self) -> int:
        """A descriptor that is readable when ``drain`` has something to do. It belongs to the
        store: a second tier on the same store is told, too, and may drain first; who must not miss
        that uses ``on_progress`` beside it."""
        return self.store.fileno()

    def wait(self, timeout: float | None = None, task: int | None = None) -> bool:
        """Wait until no task runs, or not this one; whether that came true. What has ended still
        has to be drained."""
        end = None if timeout is None else time.monotonic() + timeout
        for _ in self._waits(end):
            self._poll()
            with self._lock:
                self._settle_all()
                awaited = [t for t in self._running.values() if task in (None, t.number)]
                if not awaited:
                    return True
                jobs = [job for each in awaited for _, job in each.jobs]
            if self.store.closed:
                return False
            _wait_a_little(jobs)
        return False

    def _waits(self, end: float | None) -> Iterator[None]:
        yield
        while end is None or time.monotonic() < end:
            yield

    # -- the end -------------------------------------------------------------------------------

    def _count(self, **changes: int) -> None:
        for name, change in changes.items():
            self._counts[name] += change

    def _count_one(self, name: str) -> None:
        self._counts[name] += 1

    def stats(self) -> TierStats:
        """A copy of the counters."""
        with self._lock:
            return TierStats(**{**self._counts, "tasks_running": len(self._running)})

    def close(self, timeout: float | None = None) -> list[Done]:
        """Let tasks end, all of which are reported here if they were not before; close the store.

        Idempotent; views of the caller's memory are let go. ``timeout``: for the tasks, and again
        for the store; by default the deadline of jobs and a little. Where a drive hangs while it
        writes into the caller's memory, that memory is never freed.
        """
        with self._lock:
            if self.closed:
                return []
            self.closed = True
            self._hints.clear()
        timeout = self.options.deadline_s + GRACE_S if timeout is None else timeout
        if not self.wait(timeout) and not self.store.closed:
            self._cancel_running()
        done = self.drain()
        with self._lock:
            for task in list(self._running.values()):
                task.fail(os.strerror(errno.ESHUTDOWN))
                task.jobs.clear()
                self._end(task)
            done += [task.done() for task in self._ended]
            self._ended.clear()
        self._shared.give_back(timeout)
        return done

    def _cancel_running(self) -> None:
        """What did not end in time ends early: once it was reported nothing may write its memory,
        though the store stays open if another tier uses it."""
        with self._lock:
            for task in self._running.values():
                task.later.clear()
                task.fail(os.strerror(errno.ESHUTDOWN))
                for _, job in task.jobs:
                    job.cancel()
        self.wait(GRACE_S)

    def __enter__(self) -> Tier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait_a_little(jobs: Sequence[Job]) -> None:
    """For the first of these; without any, for whatever else fills the store."""
    if not jobs:
        time.sleep(_PAUSE_S)
        return
    try:
        jobs[0].wait(_WAIT_S)
    except ChmError as error:
        if error.errno != errno.ETIMEDOUT and not isinstance(error, (Closed, Forked)):
            raise


def _nothing() -> None:
    pass


__all__ = ["BATCH", "Done", "Tier", "TierStats"]
