# SPDX-License-Identifier: Apache-2.0
"""What all adapters are made of: tasks over one namespace of a store.

A task, a get or a put of any number of keys: submitted -> running -> ended, and reported by
``drain`` exactly once, also at close. It is one or more jobs of the store, of at most 32 keys each.
Jobs run on the store's own threads, without the interpreter; submitting and draining never wait.

    get: all jobs at once.        put: one job after the other, each hangs on the one before; the
                                  first waits for a put of the key that it hangs on.

A job for which the store has no place (it takes 256) waits for one, until the deadline.

After a task was reported nothing touches its buffers. A key whose get failed for whatever reason is
a miss from then on, until it was put again or a minute has passed, so that a host that looks up
once more computes it instead of trying for ever.

A hint stages the first of its keys into the window, before anybody asks for their bytes; a get then
takes them from there. It holds window space until a get of its keys has ended, it is cancelled, or
it expires.
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
from chm.errors import Busy, ChmError, Closed, Forked
from chm.job import Job
from chm.stats import Record
from chm.units import parse_size

BATCH = 32
MISS_S = 60.0
GRACE_S = 1.0  # that closing waits beyond the deadline of jobs
_HINT_MOST = 128 << 20
_WAIT_S = 0.05
_PAUSE_S = 0.005


@dataclass(frozen=True)
class Done:
    """A task that has ended. ``ok`` says of each key, in order, whether it succeeded (a put: that
    it is there, also if it was before); ``error`` is the first failure in words, or "".
    ``nbytes`` are those of the keys that succeeded, ``seconds`` the time since it was submitted."""

    task: int
    tag: Any
    op: str
    ok: list[bool]
    error: str
    nbytes: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether every key succeeded."""
        return all(self.ok)

    @property
    def prefix(self) -> int:
        """Keys that succeeded, counted from the front."""
        return next((i for i, ok in enumerate(self.ok) if not ok), len(self.ok))


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
    hints: int = 0
    hints_used: int = 0
    hints_expired: int = 0
    hints_cancelled: int = 0
    tasks_running: int = 0


class _Task:
    """Keys on their way: jobs that run, and parts that wait for the one before."""

    def __init__(self, number: int, tag: Any, op: str, keys: Sequence[bytes]) -> None:
        self.number, self.tag, self.op = number, tag, op
        self.keys = list(keys)
        self.ok = [False] * len(keys)
        self.sizes = [0] * len(keys)
        self.error = ""
        self.begin = time.monotonic()
        self.deadline_s = 0.0
        self.jobs: deque[tuple[int, Job]] = deque()  # first key, job; in order
        self.later: deque[Callable[[], bool]] = deque()  # parts that were not started, in order
        self.in_turn = op == "put"  # a part waits for the one before, and is given up with it
        self.hints: set[_Hint] = set()
        self.behind: _Task | None = None  # a put of what this one hangs on, until it has ended
        self.over = False
        self.other: list[bytes] = []  # keys stored with another length than they are read with

    def fail(self, error: object) -> None:
        self.error = self.error or str(error)

    def take(self, first: int, job: Job) -> None:
        """A job has ended."""
        for i, status in enumerate(job.statuses.tolist()):
            self.ok[first + i] = status >= 0
            if status == -errno.EMSGSIZE:
                self.other.append(self.keys[first + i])
        for error in job.errors.values():
            self.fail(error)
            break

    def may_start(self) -> bool:
        """Whether the next part may be submitted now."""
        return bool(self.later) and not (self.in_turn and (self.jobs or self.error))

    def left_s(self) -> float:
        return max(self.deadline_s - (time.monotonic() - self.begin), 0.0)

    def done(self) -> Done:
        nbytes = sum(size for size, ok in zip(self.sizes, self.ok, strict=True) if ok)
        span = time.monotonic() - self.begin
        return Done(self.number, self.tag, self.op, self.ok, self.error, nbytes, span)


class _Hint:
    """Leases of the first keys that a request will read."""

    def __init__(
        self, request: Any, job: Job, keys: Sequence[bytes], size: int, end: float
    ) -> None:
        self.request, self.job, self.keys, self.size, self.end = request, job, list(keys), size, end
        self.users = 0


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
        self._hint_bytes = int(window * options.hint_share) if options.hints else 0
        self._lock = threading.RLock()
        self._running: dict[int, _Task] = {}
        self._ended: deque[_Task] = deque()
        self._hints: dict[Any, _Hint] = {}
        self._hinted: dict[bytes, _Hint] = {}
        self._hint_used = 0
        self._missing: dict[bytes, float] = {}  # key -> until when it is a miss; in that order
        self._putting: dict[bytes, _Task] = {}  # key of a running put -> the put
        self._numbers = 0
        self._counts = dict.fromkeys(TierStats.__dataclass_fields__, 0)
        self.closed = False

    # -- looking up ----------------------------------------------------------------------------

    def exists(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each key is there; asks the store for 32 at a time. Counts as no use. Nothing is
        there when the tier is closed: a host that still asks shall be able to end."""
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
            hits = sum(found)
            self._count(lookups=len(found), hits=hits, misses=len(found) - hits)
        return found

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
            self._expire_hints()
            room = min(self._hint_bytes - self._hint_used, _HINT_MOST)
            if self.closed or request in self._hints or room <= 0:
                return 0
            some = [key for key in keys[:BATCH] if key not in self._hinted]
            sizes = self.store.sizes(self._ns, some).tolist() if some else []
            count = total = 0
            for size in sizes:
                if size == 0 or total + size > room:
                    break
                total, count = total + size, count + 1
            if count == 0:
                return 0
            some = some[:count]
            try:
                job = self.store.lease(self._ns, some, timeout=self.options.deadline_s)
            except ChmError:
                return 0
            hint = _Hint(request, job, some, total, time.monotonic() + self.options.hint_s)
            self._hints[request] = hint
            self._hinted.update(dict.fromkeys(some, hint))
            self._hint_used += total
            self._count(hints=1)
            return count

    def cancel(self, request: Any) -> None:
        """The request is over: its hint goes, unless a get is using it."""
        with self._lock:
            hint = self._hints.get(request)
            if hint is not None and hint.users == 0:
                self._drop(hint, "hints_cancelled")

    def _expire_hints(self) -> None:
        now = time.monotonic()
        for hint in list(self._hints.values()):
            if hint.end <= now and hint.users == 0:
                self._drop(hint, "hints_expired")

    def _drop(self, hint: _Hint, why: str) -> None:
        self._count(**{why: 1})
        del self._hints[hint.request]
        for key in hint.keys:
            self._hinted.pop(key, None)
        self._hint_used -= hint.size
        hint.job.cancel()
        hint.job.on_end(hint.job.release)

    # -- tasks ---------------------------------------------------------------------------------

    def get(self, tag: Any, keys: Sequence[bytes], buffers: Sequence[Any]) -> int:
        """Read each object into its buffer (or list of buffers), of exactly its length; the number
        of the task. The buffers are the task's until it was reported. Raises Closed."""
        buffers = list(buffers)
        task = self._new(tag, "get", keys, buffers)
        copy = not self.options.direct
        with self._lock:
            for key in keys:
                hint = self._hinted.get(key)
                if hint is not None and hint not in task.hints:
                    task.hints.add(hint)
                    hint.users += 1
            for first in range(0, len(keys), BATCH):
                part = buffers[first : first + BATCH]
                task.later.append(partial(self._get_part, task, first, part, copy))
            self._settle(task)
        return task.number

    def _get_part(self, task: _Task, first: int, buffers: list[Any], copy: bool) -> bool:
        some = task.keys[first : first + BATCH]
        copy = copy or any(key in self._hinted for key in some)  # else the drive reads it twice
        left = task.left_s()
        return self._start(
            task, first, lambda: self.store.get(self._ns, some, buffers, copy=copy, timeout=left)
        )

    def put(
        self, tag: Any, keys: Sequence[bytes], buffers: Sequence[Any], after: bytes | None = None
    ) -> int:
        """Store objects, in chain order; the number of the task.

        ``after`` is the key before the first; it is left out of account if it is not there and
        no put that goes on has it. A block that finds no room by the deadline is refused,
        and those behind it with it. Raises Closed.
        """
        buffers = list(buffers)
        task = self._new(tag, "put", keys, buffers)
        with self._lock:
            task.behind = self._putting.get(after) if after else None
            self._putting.update(dict.fromkeys(task.keys, task))
            for first in range(0, len(keys), BATCH):
                before = task.keys[first - 1] if first else after
                part = buffers[first : first + BATCH]
                task.later.append(partial(self._put_part, task, first, part, before))
            self._settle(task)
        return task.number

    def _put_part(self, task: _Task, first: int, buffers: list[Any], before: bytes | None) -> bool:
        some = task.keys[first : first + BATCH]

        def submit() -> Job:
            known = before is not None and bool(self.store.exists(self._ns, [before])[0])
            if first and not known:
                raise ValueError("the block before it was not stored")
            return self.store.put(
                self._ns,
                some,
                buffers,
                parent=before if known else None,
                wait=True,
                timeout=task.left_s(),
            )

        return self._start(task, first, submit)

    def _new(self, tag: Any, op: str, keys: Sequence[bytes], buffers: Sequence[Any]) -> _Task:
        if len(keys) != len(buffers):
            raise ValueError(f"{len(keys)} keys, but {len(buffers)} buffers")
        with self._lock:
            if self.closed:
                raise Closed(errno.ESHUTDOWN, "the tier is closed")
            self._numbers += 1
            task = _Task(self._numbers, tag, op, keys)
            task.deadline_s = self.options.deadline_s
            task.sizes = [_nbytes(buffer) for buffer in buffers]
            self._running[task.number] = task
        return task

    def _start(self, task: _Task, first: int, submit: Callable[[], Job]) -> bool:
        """Submit a job of a task; False: the store has as many as it may, so try again later. One
        that cannot be submitted at all is a failure of its keys."""
        try:
            task.jobs.append((first, submit()))
        except (ChmError, ValueError, TypeError) as error:
            if isinstance(error, Busy) and task.left_s() > 0:
                return False
            task.fail(error)
        return True

    # -- what has ended ------------------------------------------------------------------------

    def drain(self) -> list[Done]:
        """Tasks that have ended since the last time. Does not wait."""
        self._poll()
        with self._lock:
            for task in list(self._running.values()):
                self._settle(task)
            self._expire_hints()
            ended, self._ended = self._ended, deque()
        return [task.done() for task in ended]

    def _poll(self) -> None:
        try:
            self.store.poll()
        except (Closed, Forked):
            pass  # nothing goes on any more

    def _settle(self, task: _Task) -> None:
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

    def _end(self, task: _Task) -> None:
        del self._running[task.number]
        task.over = True
        if task.op == "put":
            for key in task.keys:
                if self._putting.get(key) is task:
                    del self._putting[key]
        task.later.clear()
        good = sum(task.ok)
        nbytes = sum(size for size, ok in zip(task.sizes, task.ok, strict=True) if ok)
        op = task.op
        counts = {f"{op}_ok": good, f"{op}_failed": len(task.ok) - good, f"{op}_bytes": nbytes}
        self._count(**counts)
        if op == "get":
            self.mark_missing([k for k, ok in zip(task.keys, task.ok, strict=True) if not ok])
            self._drop_others(task.other)
        else:
            for key, ok in zip(task.keys, task.ok, strict=True):
                if ok:
                    self._missing.pop(key, None)
        for hint in task.hints:
            hint.users -= 1
            if hint.users == 0:
                self._drop(hint, "hints_used")
        self._ended.append(task)

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
        store: a second tier on the same store would be told, too."""
        return self.store.fileno()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no task runs; whether that came true. They still have to be drained."""
        end = None if timeout is None else time.monotonic() + timeout
        for _ in self._waits(end):
            self._poll()
            with self._lock:
                for task in list(self._running.values()):
                    self._settle(task)
                if not self._running:
                    return True
                jobs = [job for task in self._running.values() for _, job in task.jobs]
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
            for hint in list(self._hints.values()):
                if hint.users == 0:
                    self._drop(hint, "hints_cancelled")
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


def _nbytes(buffer: Any) -> int:
    many = buffer if isinstance(buffer, (list, tuple)) else (buffer,)
    return sum(memoryview(one).nbytes for one in many)
