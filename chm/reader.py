# SPDX-License-Identifier: Apache-2.0
"""A request's reading of its run: pieces of it are on their way ahead of the consumer.

States: open -> ended (complete, failed at a block, late, or closed).

The run is cut into pieces, each one job of at most 32 keys on one node. A piece is *staged* (by
leases: the consumer looks at the blocks in the window, one after the other) or *loaded* (got into
the consumer's memory). What a reader holds of a node, issued and not consumed, is bounded by its
share of that node's window; the manager (chm/manager.py) says how much that is, and whose turn it
is. Whoever issues does so under the manager's lock, and so does whoever changes what was issued.

Blocks count from the front: the first that fails ends the reader, and what is behind is cancelled.
So the outcome is always a usable prefix, and the exact keys to compute again. A reader that loads
has ended only when nothing writes to the consumer's memory any more.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chm.errors import ChmError, Deadlock, InvalidArgument, error_of
from chm.job import Job, ObjectLease
from chm.master import Descriptor

if TYPE_CHECKING:
    from chm.manager import Manager

PIECE_KEYS = 32
PIECES_AHEAD = 4  # a share is at least so many pieces, if blocks are small enough


@dataclass(frozen=True)
class Outcome:
    """How a read ended: blocks ``[0, usable)`` were read and checked, ``recompute`` are the keys
    of all others, in order. ``status`` is 0, or -errno of the first that failed; -ETIME: late."""

    usable: int
    recompute: list[bytes]
    status: int

    @property
    def complete(self) -> bool:
        """Whether all of it was read."""
        return not self.recompute


@dataclass
class _Piece:
    node: int
    first: int
    count: int
    staged: bool
    job: Job | None = None  # None: it could not be started, and status says why
    status: int = 0

    def good(self) -> int:
        """Blocks that succeeded, from the front."""
        return 0 if self.job is None else self.job.prefix

    def failure(self) -> int:
        """Why the first that did not succeed did not."""
        return self.status if self.job is None else int(self.job.statuses[self.good()])

    def told(self) -> bool:
        """Whether it has ended."""
        return self.job is None or self.job.done

    def found_no_room(self) -> bool:
        """A hint that the window had no space for."""
        return self.told() and self.good() < self.count and self.failure() == -errno.EAGAIN


class Reader:
    """Made by ``Manager.read`` and ``Manager.load``. A context manager.

        with manager.read(found) as reader:
            for lease in reader:
                use(lease.array())
        reader.outcome

    Iterating gives each block's lease, which is given back when the next is taken, or once its
    last view is gone. One thread at a time.
    """

    def __init__(
        self,
        manager: Manager,
        request: str,
        keys: Sequence[bytes],
        places: Sequence[Descriptor],
        buffers: Sequence[Any] | None,
        deadline_ns: int,
    ) -> None:
        if len(places) < len(keys) or (buffers is not None and len(buffers) != len(keys)):
            raise ValueError("each key needs its descriptor, and its buffer")
        self._manager = manager
        self.request = request
        self.keys = list(keys)
        self.places = list(places[: len(keys)])
        self.buffers = buffers
        self.deadline_ns = deadline_ns
        self.is_hint = False
        """Nobody reads it yet."""
        self.usable = 0
        """Blocks handed out as leases, or loaded, counted from the front."""
        self.admitted = False
        self._status = 0
        self._over = False
        self._issued = 0  # keys in pieces that were issued
        self._pieces: deque[_Piece] = deque()
        self._ready: deque[tuple[ObjectLease, int]] = deque()  # of the front piece, and their node
        self._out: list[tuple[ObjectLease, int]] = []  # handed out
        self._dying: list[Job] = []  # cancelled, and may still write to buffers
        self.held: dict[int, int] = {}
        """Bytes issued and not consumed, by node."""
        self.largest = _largest(self.places)
        """The largest block on each node that it reads from."""

    # -- issuing, when the manager says so -----------------------------------------------------

    def adopt(
        self,
        keys: Sequence[bytes],
        places: Sequence[Descriptor],
        buffers: Sequence[Any] | None,
        deadline_ns: int,
    ) -> bool:
        """Turn a hint into the read that it announced; False if that reads something else."""
        if self._over or self.keys != list(keys[: len(self.keys)]):
            return False
        good = next((i for i, p in enumerate(self._pieces) if p.found_no_room()), None)
        if good is not None:  # those are issued once more
            behind = [self._pieces.pop() for _ in range(len(self._pieces) - good)]
            self._issued = behind[-1].first
            for piece in behind:
                self._forget(piece)
        self.keys, self.places, self.buffers = list(keys), list(places), buffers
        self.largest = _largest(self.places)
        self.deadline_ns = deadline_ns
        self.is_hint = False
        return True

    def issue(self, shares: dict[int, int]) -> bool:
        """Issue one more piece if the share of its node allows; whether it did."""
        if self._over or self._issued == len(self.keys):
            return False
        first, node = self._issued, self.places[self._issued].node
        count = self._fit(first, node, shares.get(node, 0))
        if count == 0:
            return False
        self._hold(first, count, 1)
        self._issued += count
        piece = _Piece(node, first, count, self.buffers is None)
        try:
            piece.job = self._manager.start(self, node, first, count)
        except ChmError as error:
            piece.status = -(error.errno or errno.EIO)
        self._pieces.append(piece)
        return True

    def _fit(self, first: int, node: int, share: int) -> int:
        """How many blocks from first on make the next piece; 0: none now."""
        held = self.held.get(node, 0)
        room = min(share - held, max(share // PIECES_AHEAD, self.places[first].size))
        count = 0
        for place in self.places[first : first + PIECE_KEYS]:
            if place.node != node or place.size > room:
                break
            room -= place.size
            count += 1
        return 1 if count == 0 and held == 0 else count  # one that is larger goes alone

    def _hold(self, first: int, count: int, sign: int) -> None:
        with self._manager.lock:
            for place in self.places[first : first + count]:
                self.held[place.node] = self.held.get(place.node, 0) + sign * place.size

    # -- going on ------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether nothing more will come, nor be written to the caller's memory."""
        self._dying = [job for job in self._dying if not job.done]
        return self._over and not self._dying

    def poll(self) -> int:
        """Issue, and notice what has ended, without waiting; blocks usable so far.

        For a load: those in the caller's memory. Else: those handed out or ready to be.
        """
        self._tidy()
        self._manager.pump()
        if self.buffers is not None:
            while not self._over and self._pieces and self._pieces[0].told():
                self._load_front()
        elif not self._ready and self._pieces and self._pieces[0].told():
            self._open_front()
        if not self._over and self.usable == len(self.keys):
            self._end(0)
        if not self._over and self._manager.now() >= self.deadline_ns:
            self._end(-errno.ETIME)
        return self.usable + len(self._ready)

    def wait(self) -> Outcome:
        """Load all of it, until the deadline at the latest (longer only if the drive hangs while it
        writes into the buffers themselves)."""
        if self.buffers is None:
            raise InvalidArgument(errno.EINVAL, "this reader stages: iterate over it")
        while self._wait_front():
            self._load_front()
        for job in self._dying:
            job.wait()
        return self.outcome

    def _wait_front(self) -> bool:
        """Wait until the front piece has ended. False: it will not, and the reader is over."""
        if not self._over and self.usable == len(self.keys):
            self._end(0)
        if self._over:
            return False
        self._manager.pump()
        if not self._pieces:
            if self.admitted:
                text = "the consumer holds as many blocks as it may: drop views, then go on"
                raise Deadlock(errno.EDEADLK, text)
            if status := self._manager.wait_admitted(self):
                self._end(status)
                return False
            return self._wait_front()
        job = self._pieces[0].job
        left_s = (self.deadline_ns - self._manager.now()) / 1e9
        try:
            if job is not None:
                job.wait(max(left_s, 0.0))
        except ChmError as error:
            late = error.errno == errno.ETIMEDOUT
            self._end(-errno.ETIME if late else -(error.errno or errno.EIO))
            return False
        return True

    def _load_front(self) -> None:
        """The front piece has ended: its blocks go to, or are in, the consumer's memory."""
        assert self.buffers is not None
        with self._manager.lock:
            piece = self._pieces.popleft()
        good = piece.good()
        if piece.staged and piece.job is not None:  # by a hint
            for i, lease in enumerate(piece.job.leases[:good]):
                assert lease is not None
                lease.copy_to(self.buffers[piece.first + i])
            piece.job.release()
        self.usable += good
        self._hold(piece.first, piece.count, -1)
        if good < piece.count:
            self._end(piece.failure())
        elif self.usable == len(self.keys):
            self._end(0)

    # -- staging -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ObjectLease]:
        while (lease := self.take()) is not None:
            yield lease
            del lease  # or this frame would keep it beside the consumer

    def take(self) -> ObjectLease | None:
        """The next block, in the window; None when nothing more comes: see ``outcome``.

        Raises Deadlock while the consumer looks at so many blocks, of this or other requests, that
        the next has no space: it goes on when some are given back.
        """
        if self.buffers is not None:
            raise InvalidArgument(errno.EINVAL, "this reader loads: wait for it")
        self._tidy()
        while not self._ready:
            if not self._wait_front():
                return None
            self._open_front()
        self._out.append(self._ready.popleft())
        self.usable += 1
        return self._out[-1][0]

    def _open_front(self) -> None:
        """The front piece has ended: its leases are next. One that failed ends the run there."""
        with self._manager.lock:
            piece = self._pieces.popleft()
            good = piece.good()
            leases = [] if piece.job is None else piece.job.leases
            self._ready.extend((lease, piece.node) for lease in leases[:good] if lease is not None)
            if good == piece.count:
                return
            for lease in leases[good:]:
                if lease is not None:
                    lease.release()
            if good == 0:
                self._hold(piece.first, piece.count, -1)
                self._end(piece.failure())
                return
            self._cancel()
            self._issued = len(self.keys)
            rest = _Piece(piece.node, piece.first + good, piece.count - good, True)
            rest.status = piece.failure()
            self._pieces.append(rest)  # its turn comes when the good ones are consumed

    def _tidy(self) -> None:
        """Give back blocks that were handed out and that nobody looks at any more."""
        still = []
        for lease, node in self._out:
            if lease._looked_at():
                still.append((lease, node))
            else:
                self._return(lease, node)
        if len(still) < len(self._out):
            self._out = still
            self._manager.pump()  # what was given back is somebody's next piece

    def _return(self, lease: ObjectLease, node: int) -> None:
        lease.release()
        with self._manager.lock:
            self.held[node] -= lease.length

    # -- the end -------------------------------------------------------------------------------

    def _end(self, status: int) -> None:
        with self._manager.lock:
            if self._over:
                return
            self._over = True
            self._status = status
            self._cancel()
            while self._ready:
                self._return(*self._ready.popleft())
        self._manager.leave(self)

    def _cancel(self) -> None:
        """What is on its way is of no use."""
        while self._pieces:
            self._forget(self._pieces.popleft())

    def _forget(self, piece: _Piece) -> None:
        self._hold(piece.first, piece.count, -1)
        if piece.job is None:
            return
        piece.job.cancel()
        if piece.staged:
            piece.job.on_end(piece.job.release)
        else:
            self._dying.append(piece.job)

    @property
    def outcome(self) -> Outcome:
        """What came of it; while it goes on: so far."""
        return Outcome(self.usable, self.keys[self.usable :], self._status)

    def error(self) -> ChmError | None:
        """What ended it early, as an exception; None if nothing did."""
        return error_of(self._status, f"request {self.request}") if self._status else None

    def close(self) -> None:
        """Cancel what is on its way, and give all back. BufferError while a view lives."""
        if looked_at := sum(lease._looked_at() for lease, _ in self._out):
            raise BufferError(f"views of {looked_at} blocks are alive; drop them first")
        self._tidy()
        if not self._over:
            self._end(0 if self.usable == len(self.keys) else -errno.ECANCELED)
        for job in self._dying:
            job.wait()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except BufferError:
            if not self._over:
                self._end(-errno.ECANCELED)  # the leases go when their views are gone
            if kind is None:
                raise


def _largest(places: Sequence[Descriptor]) -> dict[int, int]:
    most: dict[int, int] = {}
    for place in places:
        most[place.node] = max(most.get(place.node, 0), place.size)
    return most
