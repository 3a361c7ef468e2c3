# SPDX-License-Identifier: Apache-2.0
"""Hints of a tier: what is staged into the window before anybody asks for its bytes.

A hint: staging or staged -> used (a get of its keys has ended), cancelled, or expired. It holds
window space until then. One that a get uses is neither cancelled nor expires.

The tier's lock guards all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from chm.connectors.config import TierOptions
from chm.errors import ChmError
from chm.job import Job
from chm.store import Store

HINT_KEYS = 32
_HINT_MOST = 128 << 20


class Hint:
    """Leases of the first keys that a request will read."""

    def __init__(
        self, request: Any, job: Job, keys: Sequence[bytes], size: int, end: float
    ) -> None:
        self.request, self.job, self.keys, self.size, self.end = request, job, list(keys), size, end
        self.users = 0


class Hints:
    """Those of one namespace; ``count(name)`` notes what became of each."""

    def __init__(
        self,
        store: Store,
        ns: int,
        options: TierOptions,
        window_bytes: int,
        count: Callable[[str], None],
    ) -> None:
        self._store, self._ns, self._options, self._count = store, ns, options, count
        self._room = int(window_bytes * options.hint_share) if options.hints else 0
        self._used = 0
        self._of_request: dict[Any, Hint] = {}
        self._of_key: dict[bytes, Hint] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._of_key

    def begin(self, request: Any, keys: Sequence[bytes]) -> int:
        """Start staging the first of these; how many. See ``Tier.hint``."""
        self.expire()
        room = min(self._room - self._used, _HINT_MOST)
        if request in self._of_request or room <= 0:
            return 0
        some = [key for key in keys[:HINT_KEYS] if key not in self._of_key]
        some, size = self._fitting(some, room)
        if not some:
            return 0
        try:
            job = self._store.lease(self._ns, some, timeout=self._options.deadline_s)
        except ChmError:
            return 0
        hint = Hint(request, job, some, size, time.monotonic() + self._options.hint_s)
        self._of_request[request] = hint
        self._of_key.update(dict.fromkeys(some, hint))
        self._used += size
        self._count("hints")
        return len(some)

    def _fitting(self, keys: list[bytes], room: int) -> tuple[list[bytes], int]:
        """The leading keys that are there and together have at most ``room`` bytes; their bytes."""
        sizes = self._store.sizes(self._ns, keys).tolist() if keys else []
        count = total = 0
        for size in sizes:
            if size == 0 or total + size > room:
                break
            total, count = total + size, count + 1
        return keys[:count], total

    def use(self, keys: Iterable[bytes]) -> set[Hint]:
        """A get reads these: the hints that it takes them from, until ``used``."""
        hints = {hint for key in keys if (hint := self._of_key.get(key)) is not None}
        for hint in hints:
            hint.users += 1
        return hints

    def used(self, hints: Iterable[Hint]) -> None:
        """The get has ended."""
        for hint in hints:
            hint.users -= 1
            if hint.users == 0:
                self._drop(hint, "hints_used")

    def cancel(self, request: Any) -> None:
        """The request is over."""
        hint = self._of_request.get(request)
        if hint is not None and hint.users == 0:
            self._drop(hint, "hints_cancelled")

    def unhint(self, keys: Sequence[bytes]) -> None:
        """These will not be got. A hint goes when that is so for all of its keys."""
        for key in keys:
            hint = self._of_key.get(key)
            if hint is None or hint.users:
                continue
            del self._of_key[key]
            hint.keys.remove(key)
            if not hint.keys:
                self._drop(hint, "hints_cancelled")

    def expire(self) -> None:
        """Drop those whose time is over."""
        now = time.monotonic()
        for hint in list(self._of_request.values()):
            if hint.end <= now and hint.users == 0:
                self._drop(hint, "hints_expired")

    def clear(self) -> list[Job]:
        """Cancel all that can be; their jobs, which go on until what they read is let go."""
        idle = [hint for hint in self._of_request.values() if hint.users == 0]
        for hint in idle:
            self._drop(hint, "hints_cancelled")
        return [hint.job for hint in idle]

    def _drop(self, hint: Hint, why: str) -> None:
        self._count(why)
        del self._of_request[hint.request]
        for key in hint.keys:
            self._of_key.pop(key, None)
        self._used -= hint.size
        hint.job.cancel()
        hint.job.on_end(hint.job.release)
