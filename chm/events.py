# SPDX-License-Identifier: Apache-2.0
"""What happened to a request on its way through lookup, master and manager, in order.

A seam for tests and for whoever looks into a slow request: each of the three takes an ``EventLog``
and notes its steps there. Without one nothing is noted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One step: ``kind`` is hint, lookup, get, reserve, put, publish, visible, abort or expire."""

    kind: str
    request: str
    keys: tuple[bytes, ...]


class EventLog:
    """The last ``most`` events."""

    def __init__(self, most: int = 4096) -> None:
        self.events: deque[Event] = deque(maxlen=most)

    def note(self, kind: str, request: str, keys: Sequence[bytes]) -> None:
        """Append one."""
        self.events.append(Event(kind, request, tuple(keys)))

    def kinds(self, request: str | None = None) -> list[str]:
        """Kinds in order, of one request or of all."""
        return [e.kind for e in self.events if request in (None, e.request)]


class _NoLog(EventLog):
    def note(self, kind: str, request: str, keys: Sequence[bytes]) -> None:
        pass


NO_LOG = _NoLog(0)
