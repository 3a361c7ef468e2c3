# SPDX-License-Identifier: Apache-2.0
"""Run several requests at a time from one thread.

A request is a generator. It yields each time others may go on, and says why:

    None      it moved on (a piece was delivered, a block was put)
    WAITING   its next piece is not there yet
    BLOCKED   the write buffer is full
    Demand    it wants this one extent read now

and is sent a Turn: the answer to its demand, and how long it may wait for what it does next. That
is nothing as long as another request can move (a stream that is not admitted yet must not hold up
those whose end it waits for); when none can, the oldest one waits for all.

One turn of the loop lets every active request take one step, then reads all demands as one batch.
So "prefetch off" at concurrency c has c demand reads in flight, and nothing here depends on
timing: on a simulated medium a run repeats exactly.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from chm.bench.target import Target


PATIENCE_S = 0.01


class Signal(enum.Enum):
    """What a request can say beside None and a Demand."""

    WAITING = enum.auto()
    BLOCKED = enum.auto()


WAITING, BLOCKED = Signal.WAITING, Signal.BLOCKED


@dataclass(frozen=True)
class Demand:
    """Fill `out` from `addr`."""

    addr: int
    out: Any


@dataclass(frozen=True)
class Turn:
    """What a request is told when it may take its next step."""

    patience_s: float = 0.0
    error: Exception | None = None  # of its demand


Steps: TypeAlias = "Generator[Demand | Signal | None, Turn, None]"


@dataclass(frozen=True)
class Job:
    """A request to run: not before `due` (ns on the device's clock; None: at once), and never
    beside another job of its session. start(due) makes its generator."""

    session: int
    due: int | None
    start: Callable[[int | None], Steps]


@dataclass
class _Active:
    job: Job
    steps: Steps
    turn: Turn | None = None  # None: not begun
    said: Demand | Signal | None = None


def drive(target: Target, jobs: Iterable[Job], width: int) -> None:
    """Run jobs in order, at most `width` at a time, until all have ended."""
    waiting = _Waiting(jobs)
    active: list[_Active] = []
    try:
        while active or not waiting.empty:
            while len(active) < width and (job := waiting.take(target.now(), active)):
                active.append(_Active(job, job.start(job.due)))
            if not active:
                target.wait_until(waiting.next_due())
                continue
            active = [a for a in active if _step(a)]
            _prepare(target, active)
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

    def take(self, now: int, active: list[_Active]) -> Job | None:
        head = self._head
        if head is None or (head.due is not None and head.due > now):
            return None
        if any(a.job.session == head.session for a in active):
            return None
        self._head = next(self._jobs, None)
        return head


def _step(a: _Active) -> bool:
    try:
        a.said = next(a.steps) if a.turn is None else a.steps.send(a.turn)
    except StopIteration:
        return False
    a.turn = Turn()
    return True


def _prepare(target: Target, active: list[_Active]) -> None:
    """Answer what was demanded, and see to it that the next round moves something."""
    demands = [(a, a.said) for a in active if isinstance(a.said, Demand)]
    if demands:
        errors = target.read_many([d for _, d in demands])
        for (a, _), error in zip(demands, errors, strict=True):
            a.turn = Turn(error=error)
        return
    if not all(a.said in (WAITING, BLOCKED) for a in active) and len(active) > 1:
        return
    oldest = next((a for a in active if a.said is not BLOCKED), None)
    if oldest:
        oldest.turn = Turn(PATIENCE_S)
    elif active:
        target.push()
