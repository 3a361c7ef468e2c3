# SPDX-License-Identifier: Apache-2.0
"""A task of a tier: keys on their way, as one or more jobs of the store.

Its parts, of at most 32 keys each, are submitted side by side, or in a row where each hangs on the
one before; a task in a row stops at the first failure.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chm.connectors.hints import Hint
from chm.job import Job


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


class Task:
    """One that has not been reported. Its tier's lock guards it."""

    def __init__(
        self,
        number: int,
        tag: Any,
        op: str,
        keys: Sequence[bytes],
        buffers: Sequence[Any],
        deadline_s: float,
    ) -> None:
        self.number, self.tag, self.op = number, tag, op
        self.keys = list(keys)
        self.ok = [False] * len(keys)
        self.sizes = [_nbytes(buffer) for buffer in buffers]
        self.error = ""
        self.begin = time.monotonic()
        self.deadline_s = deadline_s
        self.in_turn = False
        self.jobs: deque[tuple[int, Job]] = deque()  # first key, job; in order
        self.later: deque[Callable[[], bool]] = deque()  # parts that were not started, in order
        self.hints: set[Hint] = set()
        self.behind: Task | None = None  # a put of what this one hangs on, until it has ended
        self.over = False
        self.other: list[bytes] = []  # keys stored with another length than they are read with

    def fail(self, error: object) -> None:
        """Note why; the first reason is told."""
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
        """Until its deadline."""
        return max(self.deadline_s - (time.monotonic() - self.begin), 0.0)

    def failed(self) -> list[bytes]:
        """Keys that did not succeed."""
        return [key for key, ok in zip(self.keys, self.ok, strict=True) if not ok]

    @property
    def nbytes(self) -> int:
        """Bytes of the keys that succeeded."""
        return sum(size for size, ok in zip(self.sizes, self.ok, strict=True) if ok)

    def done(self) -> Done:
        """The report."""
        span = time.monotonic() - self.begin
        return Done(self.number, self.tag, self.op, self.ok, self.error, self.nbytes, span)


def _nbytes(buffer: Any) -> int:
    many = buffer if isinstance(buffer, (list, tuple)) else (buffer,)
    return sum(memoryview(one).nbytes for one in many)
