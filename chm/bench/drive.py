# SPDX-License-Identifier: Apache-2.0
"""Run several requests at a time from one thread.

A request is a generator. It yields each time others may go on, and says why:

    None      it moved on (a block was put)
    BLOCKED   the write buffer is full
    Demand    it wants this one extent read now; it is sent None, or the exception
    Stream    it wants the next piece; it is sent the Piece, or the exception
    Request   it wants to go on when this one has ended

One turn of the loop lets every request that can move take one step, reads all demands as one batch,
and then looks at all streams in one call. When no request can move, the oldest stream waits for its
piece (the others are looked at again after a moment at most); when all are blocked, the device is
let work. Of blocked requests only the first asks again, the next one when that got its room: they
are served in order, and a full buffer is asked once a turn, not once a request.

So "prefetch off" at concurrency c has c demand reads in flight, and nothing here depends on
timing: on a simulated medium a run repeats exactly.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from chm.errors import ChmError
from chm.request import Request
from chm.stream import Stream, next_many

if TYPE_CHECKING:
    from chm.bench.target import Target


PATIENCE_S = 0.01


class Signal(enum.Enum):
    """What a request can say beside None, a Demand and a Stream."""

    BLOCKED = enum.auto()


BLOCKED = Signal.BLOCKED


class Demand(NamedTuple):
    """Fill `out` from `addr`."""

    addr: int
    out: Any


Wish: TypeAlias = "Demand | Stream | Request | Signal | None"
Steps: TypeAlias = "Generator[Wish, Any, None]"


@dataclass(frozen=True)
class Job:
    """A request to run: not before `due` (ns on the device's clock; None: at once), and never
    beside another job of its session. start(due) makes its generator."""

    session: int
    due: int | None
    start: Callable[[int | None], Steps]


class _Active:
    """A request under way: what it said last, and what it is sent next once it can move."""

    __slots__ = ("answer", "job", "ready", "said", "steps")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.steps = job.start(job.due)
        self.said: Wish = None
        self.answer: Any = None
        self.ready = True


def drive(target: Target, jobs: Iterable[Job], width: int) -> None:
    """Run jobs in order, at most `width` at a time, until all have ended."""
    waiting = _Waiting(jobs)
    active: list[_Active] = []
    try:
        while active or not waiting.empty:
            while len(active) < width and (job := waiting.take(target.now, active)):
                active.append(_Active(job))
            if not active:
                target.wait_until(waiting.next_due())
                continue
            active = _step_all(active)
            full = len(active) == width or waiting.empty
            _answer(target, active, full)
    finally:
        for a in active:
            a.steps.close()


class _Waiting:
    """The jobs not started yet; looks one ahead."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs: Iterator[Job] = iter(jobs)
        self._head = next(self._jobs, None)

    @property
    def empty(self) -> bool:
        return self._head is None

    def next_due(self) -> int:
        assert self._head is not None
        return self._head.due or 0

    def take(self, now: Callable[[], int], active: list[_Active]) -> Job | None:
        head = self._head
        if head is None or (head.due is not None and head.due > now()):
            return None
        if any(a.job.session == head.session for a in active):
            return None
        self._head = next(self._jobs, None)
        return head


def _step_all(active: list[_Active]) -> list[_Active]:
    """Let each that can move take a step; those that have not ended."""
    left = []
    refused = False
    for a in active:
        if a.ready and not (refused and a.said is BLOCKED):
            try:
                said = a.said = a.steps.send(a.answer)
            except StopIteration:
                continue
            a.answer = None
            a.ready = said is None or said is BLOCKED
            refused = refused or said is BLOCKED
        left.append(a)
    return left


def _answer(target: Target, active: list[_Active], full: bool) -> None:
    """Answer what was asked for, and see to it that the next round moves something.

    full: no other request can begin before one of these ends.
    """
    demands: list[_Active] = []
    wishes: list[Demand] = []
    streams: list[_Active] = []
    idle = True
    for a in active:
        if a.ready:
            idle = idle and a.said is BLOCKED
        elif isinstance(a.said, Demand):
            demands.append(a)
            wishes.append(a.said)
        else:
            streams.append(a)
    if demands:
        for a, error in zip(demands, target.read_many(wishes), strict=True):
            a.answer, a.ready = error, True
        idle = False
    if streams and not _look(streams, 0.0) and idle:
        _look(streams, PATIENCE_S)
    elif idle and not streams and active and _make_room(target, active[0], full):
        del active[0]


def _make_room(target: Target, first: _Active, until_it_moves: bool) -> bool:
    """All are blocked: let the device work, once or until the first one moves. Whether it ended."""
    target.push()
    while until_it_moves:
        try:
            first.said = first.steps.send(None)
        except StopIteration:
            return True
        if first.said is not BLOCKED:
            first.ready = first.said is None
            break
        target.push()
    return False


def _look(waiting: list[_Active], patience_s: float) -> bool:
    """Take the pieces that are there; with patience the first one waits for its own. Whether any
    was there."""
    found = False
    streams = [a for a in waiting if type(a.said) is Stream]
    if len(streams) < len(waiting):
        if patience_s and isinstance(waiting[0].said, Request):
            _wait_for(waiting[0].said, patience_s)
            patience_s = 0.0
        for a in waiting:
            if isinstance(a.said, Request) and a.said.done:
                a.ready = found = True
    pieces = next_many([a.said for a in streams], patience_s)  # type: ignore[misc]
    for i, piece in enumerate(pieces):
        if piece is not None:
            streams[i].answer, streams[i].ready = piece, True
            found = True
    return found


def _wait_for(request: Request, patience_s: float) -> None:
    try:
        request.wait(patience_s)
    except ChmError:
        pass  # the reader asks again, and is told
