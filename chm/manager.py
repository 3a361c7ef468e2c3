# SPDX-License-Identifier: Apache-2.0
"""The KV manager: reads and writes of requests, within windows, deadlines and fairness.

- Every request that reads has a *share* of the window of each node that it reads from: at least two
  of its blocks (one if two do not fit), so that one can arrive while the other is used; at most
  128 MiB; between that, an equal part of what is left. Requests are admitted in order of arrival,
  when their minimum fits beside what others hold; while one waits, nobody goes beyond its minimum.
  Those admitted take turns, a piece each. All together never hold more than the window.
- A hint stages the first blocks of a request before it reads. It is a reader that nobody reads yet:
  the read adopts it. It gives way to readers that are not admitted, and expires.
- A read ends at its deadline (10 s) with a usable prefix and the exact keys to compute again.
- A put never waits unless asked to: blocks that are refused are skipped, counted by reason, and
  may be put again from the first missing one.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chm.errors import ChmError, Deadlock
from chm.events import NO_LOG, EventLog
from chm.job import DUPLICATE, Job
from chm.lookup import Found
from chm.master import GRANTED, REFUSED, Descriptor, Grant, Master
from chm.options import Size
from chm.pool import Node, Pool
from chm.reader import Outcome, Reader
from chm.stats import Record
from chm.units import parse_size

WINDOW = "128MiB"
DEADLINE_S = 10.0
HINT_S = 60.0
_SKIPS = {
    errno.EAGAIN: "skipped_buffer",
    errno.ENOSPC: "skipped_space",
    errno.EDQUOT: "skipped_quota",
    errno.EMFILE: "skipped_objects",
    errno.ENOLINK: "skipped_chain",
    errno.ETIME: "skipped_late",
}
_EVICTING = (errno.ENOSPC, errno.EMFILE)  # a store makes room, which takes it a moment
_LOOK_S = 0.02  # how often a request that waits to be admitted looks for hints to cancel


@dataclass(frozen=True)
class PutOutcome:
    """What became of a put: ``stored`` and ``duplicate`` blocks from the front are there;
    ``missing`` are the keys from the first that is not, to be put again some time. ``status`` is
    0 or why that one was refused."""

    stored: int
    duplicate: int
    missing: list[bytes] = field(default_factory=list)
    status: int = 0


@dataclass(frozen=True)
class ManagerStats(Record):
    """blocks_asked = blocks_usable + blocks_recompute (of ended reads);
    put_keys = admitted + duplicate + the skipped_... + put_failed."""

    reads: int = 0
    reads_late: int = 0
    reads_failed: int = 0
    blocks_asked: int = 0
    blocks_usable: int = 0
    blocks_recompute: int = 0
    hints: int = 0
    hints_used: int = 0
    hints_expired: int = 0
    hints_cancelled: int = 0
    put_keys: int = 0
    admitted: int = 0
    duplicate: int = 0
    put_failed: int = 0
    put_retries: int = 0
    skipped_buffer: int = 0
    skipped_space: int = 0
    skipped_quota: int = 0
    skipped_objects: int = 0
    skipped_chain: int = 0
    skipped_late: int = 0
    skipped_no_node: int = 0
    readers: int = 0
    hints_now: int = 0


class Manager:
    """One for each namespace of a pool. Any thread may call, if the devices have threads.

    ``window`` is the most that a request holds of a node's window, ``hint_s`` how long a hint
    lives. ``direct=False`` keeps drives from writing into the buffers of loads, so that a load ends
    at its deadline even if a drive hangs.
    """

    def __init__(
        self,
        pool: Pool,
        master: Master,
        namespace: str,
        *,
        window: Size = WINDOW,
        deadline_s: float = DEADLINE_S,
        hint_s: float = HINT_S,
        direct: bool = True,
        clock: Callable[[], int] | None = None,
        log: EventLog = NO_LOG,
    ) -> None:
        self.pool = pool
        self.namespace = namespace
        self.now = clock or pool.clock
        self._master = master
        self._window = parse_size(window)
        self._deadline_ns = int(deadline_s * 1e9)
        self._hint_ns = int(hint_s * 1e9)
        self._direct = direct
        self._log = log
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._readers: list[Reader] = []  # not over, in order of arrival; hints, too
        self._hints: dict[str, Reader] = {}  # in order of arrival
        self._turn = 0
        self._counts = dict.fromkeys(ManagerStats.__dataclass_fields__, 0)

    # -- reading -------------------------------------------------------------------------------

    def hint(self, request: str, keys: Sequence[bytes], descriptors: Sequence[Descriptor]) -> None:
        """Stage the first blocks that a request will read. Never waits, never fails: a hint that
        finds no room does nothing."""
        with self.lock:
            self._expire()
            if request in self._hints or not keys:
                return
            self._log.note("hint", request, keys)
            self._counts["hints"] += 1
            deadline = self.now() + self._hint_ns
            hint = Reader(self, request, keys, descriptors, None, deadline)
            hint.is_hint = True
            self._hints[request] = hint
            self._readers.append(hint)
            self.pump()

    def read(self, found: Found, deadline_s: float | None = None) -> Reader:
        """Look at the blocks of a run one after the other, in the window, without a copy."""
        return self._open(found, None, deadline_s)

    def load(self, found: Found, buffers: Sequence[Any], deadline_s: float | None = None) -> Reader:
        """Read a run into memory, a buffer of its length for each block: ``load(...).wait()``.

        Or ``poll`` it until it has ended. What a hint staged is copied from there.
        """
        return self._open(found, buffers, deadline_s)

    def _open(
        self, found: Found, buffers: Sequence[Any] | None, deadline_s: float | None
    ) -> Reader:
        span = self._deadline_ns if deadline_s is None else int(deadline_s * 1e9)
        with self.lock:
            self._expire()
            deadline = self.now() + span
            self._log.note("get", found.request, found.keys)
            hint = self._hints.pop(found.request, None)
            keys, places = found.keys, found.descriptors
            if hint is not None and hint.adopt(keys, places, buffers, deadline):
                self._counts["hints_used"] += 1
                reader = hint
            else:
                if hint is not None:
                    self._drop_hint(hint, "hints_cancelled")
                reader = Reader(self, found.request, keys, places, buffers, deadline)
                self._readers.append(reader)
            self._counts["reads"] += 1
            self._counts["blocks_asked"] += len(keys)
            self.pump()
            return reader

    def cancel(self, request: str) -> None:
        """The request is gone: its hint, its reads and its reservations go with it."""
        with self.lock:
            hint = self._hints.pop(request, None)
            if hint is not None:
                self._drop_hint(hint, "hints_cancelled")
            mine = [reader for reader in self._readers if reader.request == request]
        for reader in mine:  # without the lock: closing may wait
            reader.close()
        self._master.abort(request)

    def _drop_hint(self, hint: Reader, why: str) -> None:
        if not hint.ended:
            self._counts[why] += 1
            hint.close()

    def _expire(self) -> None:
        now = self.now()
        late = [name for name, hint in self._hints.items() if hint.deadline_ns <= now]
        for name in late:
            self._drop_hint(self._hints.pop(name), "hints_expired")

    # -- what readers ask ----------------------------------------------------------------------

    def start(self, reader: Reader, node: int, first: int, count: int) -> Job:
        """The job of a piece. It ends at the reader's deadline at the latest."""
        store = self.pool.node(node).store
        ns = self.pool.node(node).ns(self.namespace)
        keys = reader.keys[first : first + count]
        timeout = max((reader.deadline_ns - self.now()) / 1e9, 0.0)
        if reader.buffers is None:
            return store.lease(ns, keys, timeout=timeout)
        buffers = list(reader.buffers[first : first + count])
        return store.get(ns, keys, buffers, timeout=timeout, copy=not self._direct)

    def pump(self) -> None:
        """Admit who can be, then let those who may issue a piece each, in turns, until none can."""
        with self.lock:
            self._admit()
            able = [reader for reader in self._readers if reader.admitted]
            fair = self._fair(able)
            committed = self._committed(able)
            while able:
                at = self._turn % len(able)
                self._turn += 1
                able = [r for r in able[at:] + able[:at] if self._issue(r, fair, committed)]

    def _issue(self, reader: Reader, fair: dict[int, int], committed: dict[int, int]) -> bool:
        """Let a reader issue a piece, of its minimum or of what nobody else has a right to."""
        least, shares = self._minimum(reader), {}
        before = {n: max(size, reader.held.get(n, 0)) for n, size in least.items()}
        for n, size in least.items():
            free = self.pool.nodes[n].window_bytes - committed[n]
            most = min(size + fair[n], self._window, before[n] + max(free, 0))
            shares[n] = max(most, size)
        issued = reader.issue(shares)
        for n, was in before.items():
            committed[n] += max(least[n], reader.held.get(n, 0)) - was
        return issued

    def _committed(self, readers: Sequence[Reader]) -> dict[int, int]:
        """Bytes of each node's window that readers hold or have a right to."""
        taken: dict[int, int] = {}
        for reader in readers:
            for n, size in self._minimum(reader).items():
                taken[n] = taken.get(n, 0) + max(size, reader.held.get(n, 0))
        return taken

    def _fair(self, readers: Sequence[Reader]) -> dict[int, int]:
        """What each may hold beyond its minimum, by node: an equal part of the rest."""
        taken: dict[int, int] = {}
        count: dict[int, int] = {}
        for reader in readers:
            for n, size in self._minimum(reader).items():
                taken[n] = taken.get(n, 0) + size
                count[n] = count.get(n, 0) + 1
        if len(readers) < len(self._readers):
            return dict.fromkeys(taken, 0)  # somebody waits for room
        return {n: max(self.pool.nodes[n].window_bytes - taken[n], 0) // count[n] for n in taken}

    def _minimum(self, reader: Reader) -> dict[int, int]:
        """Bytes that a reader has to have of each node: two blocks, or one if two do not fit."""
        least = {}
        for number, size in reader.largest.items():
            window = self.pool.nodes[number].window_bytes
            least[number] = 2 * size if 2 * size <= window else min(size, window)
        return least

    def _admit(self) -> None:
        for reader in list(self._readers):
            if reader.admitted:
                continue
            while not self._fits(reader):
                if not self._make_way(reader):
                    return  # in order: nobody is admitted before it
            reader.admitted = True
            self._changed.notify_all()

    def _fits(self, reader: Reader) -> bool:
        taken = self._committed([r for r in self._readers if r.admitted])
        return all(
            taken.get(n, 0) + size <= self.pool.nodes[n].window_bytes
            for n, size in self._minimum(reader).items()
        )

    def _make_way(self, reader: Reader) -> bool:
        """A hint gives its window to a request that reads; whether one did."""
        if reader.is_hint:
            return False
        for name, hint in self._hints.items():
            if hint.admitted:
                self._drop_hint(self._hints.pop(name), "hints_cancelled")
                return True
        return False

    def wait_admitted(self, reader: Reader) -> int:
        """Wait until it is the reader's turn. 0, or -ETIME at its deadline. Raises Deadlock where
        only the caller itself could let others go on, since it steps the devices."""
        stepped = any(
            node.device is not None and not node.device.info.threaded for node in self.pool.nodes
        )
        with self._changed:
            while not reader.admitted:
                if stepped:
                    text = "other requests hold the window: let one of them go on first"
                    raise Deadlock(errno.EDEADLK, text)
                if self.now() >= reader.deadline_ns:
                    return -errno.ETIME
                self._changed.wait(_LOOK_S)
                self.pump()
        return 0

    def leave(self, reader: Reader) -> None:
        """A reader is over."""
        with self.lock:
            if reader in self._readers:
                self._readers.remove(reader)
            if not reader.is_hint:
                self._count_read(reader.outcome)
            elif self._hints.get(reader.request) is reader:
                del self._hints[reader.request]
            self._changed.notify_all()
            self.pump()

    def _count_read(self, outcome: Outcome) -> None:
        self._counts["blocks_usable"] += outcome.usable
        self._counts["blocks_recompute"] += len(outcome.recompute)
        self._counts["reads_late"] += outcome.status == -errno.ETIME
        self._counts["reads_failed"] += outcome.status not in (0, -errno.ETIME)

    # -- writing -------------------------------------------------------------------------------

    def put(
        self,
        request: str,
        keys: Sequence[bytes],
        buffers: Sequence[Any],
        *,
        after: bytes | None = None,
        retries: int = 0,
        retry_s: float = 1.0,
    ) -> PutOutcome:
        """Store a request's new blocks, in chain order; ``after`` is the key before the first.

        Reserve, put, publish. A block that is refused ends it there. With ``retries`` it is tried
        again from that block, waiting for room at most ``retry_s`` seconds each time; without, it
        never waits for room: put what is ``missing`` again at the turn's end, or at next sight.
        """
        if len(keys) != len(buffers):
            raise ValueError(f"{len(keys)} keys, but {len(buffers)} buffers")
        keys, buffers = list(keys), list(buffers)
        stored = duplicate = done = 0
        outcome = PutOutcome(0, 0)
        for attempt in range(retries + 1):
            before = keys[done - 1] if done else after
            timeout = None if attempt == 0 else retry_s
            final = attempt == retries
            outcome = self._put_once(request, keys[done:], buffers[done:], before, timeout, final)
            stored, duplicate = stored + outcome.stored, duplicate + outcome.duplicate
            done = stored + duplicate
            if done == len(keys):
                break
            self._counts["put_retries"] += attempt < retries
        self._count_put(len(keys), stored, duplicate, outcome)
        return PutOutcome(stored, duplicate, outcome.missing, outcome.status)

    def _put_once(
        self,
        request: str,
        keys: list[bytes],
        buffers: list[Any],
        after: bytes | None,
        timeout: float | None,
        final: bool,
    ) -> PutOutcome:
        sizes = [memoryview(b).nbytes for b in buffers]
        grants = self._master.reserve(request, keys, sizes, after)
        statuses = self._put_granted(request, keys, buffers, grants, after, timeout, final)
        good = next((i for i, status in enumerate(statuses) if status < 0), len(keys))
        put = [k for k, g in zip(keys[:good], grants, strict=False) if g.status == GRANTED]
        answers = self._master.publish(request, put) if put else []
        visible = dict(zip(put, answers, strict=True))
        lost = next((i for i, k in enumerate(keys[:good]) if not visible.get(k, True)), good)
        self._master.abort(request, keys[lost:])
        status = 0 if lost == len(keys) else -errno.EIO if lost < good else statuses[good]
        stored = sum(statuses[i] == 0 for i in range(lost))
        return PutOutcome(stored, lost - stored, keys[lost:], status)

    def _put_granted(
        self,
        request: str,
        keys: list[bytes],
        buffers: list[Any],
        grants: Sequence[Grant],
        after: bytes | None,
        timeout: float | None,
        final: bool,
    ) -> list[int]:
        """Put runs of keys that were granted on one node; a status for each key.

        The master is told what a node refused; but not a lack of space that nobody waited for and
        that the next attempt will wait for: the node evicts meanwhile.
        """
        statuses = [-errno.ENOLINK] * len(keys)
        for first, end, grant in _runs(grants):
            if grant.status == REFUSED:
                statuses[first] = -errno.EHOSTUNREACH
                break
            if grant.status != GRANTED:
                statuses[first:end] = [DUPLICATE] * (end - first)
                continue
            assert grant.node is not None
            node = self.pool.node(grant.node)
            before = keys[first - 1] if first else after
            self._log.note("put", request, keys[first:end])
            some = self._put_run(node, keys[first:end], buffers[first:end], before, timeout)
            statuses[first:end] = some
            if bad := [status for status in some if status < 0]:
                if final or timeout is not None or -bad[0] not in _EVICTING:
                    self._master.refused(node.number, bad[0])
                break
        return statuses

    def _put_run(
        self,
        node: Node,
        keys: list[bytes],
        buffers: list[Any],
        before: bytes | None,
        timeout: float | None,
    ) -> list[int]:
        try:
            ns = node.ns(self.namespace)
            # On another node than the key before, the chain begins anew.
            here = before is not None and bool(node.store.exists(ns, [before])[0])
            job = node.store.put(
                ns,
                keys,
                buffers,
                parent=before if here else None,
                wait=timeout is not None,
                timeout=DEADLINE_S if timeout is None else timeout,
            )
            statuses: list[int] = job.wait().statuses.tolist()
            return statuses
        except ChmError as error:
            node.failed(error)
            return [-(error.errno or errno.EIO)] * len(keys)

    def _count_put(self, n: int, stored: int, duplicate: int, last: PutOutcome) -> None:
        with self.lock:
            counts = self._counts
            counts["put_keys"] += n
            counts["admitted"] += stored
            counts["duplicate"] += duplicate
            if not last.missing:
                return
            skip = "skipped_no_node" if last.status == -errno.EHOSTUNREACH else None
            counts[skip or _SKIPS.get(-last.status, "put_failed")] += 1
            counts["skipped_chain"] += len(last.missing) - 1

    # -- looking at it -------------------------------------------------------------------------

    def stats(self) -> ManagerStats:
        """A copy of the counters."""
        with self.lock:
            self._expire()
            now = {"readers": len(self._readers), "hints_now": len(self._hints)}
            return ManagerStats(**{**self._counts, **now})

    def close(self) -> None:
        """Cancel everything. BufferError while a view of a block lives."""
        for reader in list(self._readers):
            reader.close()

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except BufferError:
            if kind is None:
                raise


def _runs(grants: Sequence[Grant]) -> list[tuple[int, int, Grant]]:
    """Cut into runs of one answer: first, end, answer."""
    cuts = [i for i in range(len(grants)) if i == 0 or grants[i] != grants[i - 1]]
    return [
        (first, end, grants[first])
        for first, end in zip(cuts, [*cuts[1:], len(grants)], strict=True)
    ]
