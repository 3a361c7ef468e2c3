# SPDX-License-Identifier: Apache-2.0
"""What a user should know of a store, one line per event, under the logger ``chm.store``.

Opened and closed are INFO, dropped objects and refused writes WARNING, degraded ERROR. Nothing is
printed unless the program sets logging up. What can come often is told at most once in ten seconds,
with the number of times. Jobs that succeed cost nothing: only failures come here.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from chm.stats import StoreInfo, StoreStats
from chm.units import format_duration, format_size

log = logging.getLogger("chm.store")

QUIET_S = 10.0
_REFUSED = {
    -errno.EAGAIN: "write buffer full",
    -errno.ENOSPC: "no space",
    -errno.EDQUOT: "quota",
    -errno.EMFILE: "as many objects as it was made for",
    -errno.ENOLINK: "the key before was refused",
}
_KEPT = {-errno.EAGAIN, -errno.ECANCELED, -errno.ESHUTDOWN, -errno.E2BIG, -errno.EMFILE}
_NOT_THERE = {-errno.ENOENT, -errno.EMSGSIZE}
_WHY = {-errno.EBADMSG: "checksum wrong", -errno.ETIME: "not read in time"}


class Often:
    """Something that may happen often: counted, and told when the quiet time is over."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told_s: float | None = None
        self._counts: Counter[str] = Counter()

    def add(self, what: str, times: int = 1) -> None:
        """It happened."""
        self._counts[what] += times

    def due(self, always: bool = False) -> Counter[str] | None:
        """What to tell now, if it is time or ``always``; begins the next quiet time."""
        now = self._clock()
        quiet = self._told_s is not None and now - self._told_s < QUIET_S
        if not self._counts or (quiet and not always):
            return None
        counts, self._counts = self._counts, Counter()
        self._told_s = now
        return counts


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{n} x {what}" for what, n in counts.most_common())


class Diary:
    """The lines of one store."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._refused = Often(clock)
        self._dropped = Often(clock)
        self._degraded = False

    def opened(self, info: StoreInfo, stats: StoreStats) -> None:
        """It is open."""
        how = "clean"
        fresh = not (info.recovered_objects or info.recovered_records or info.recovered_damaged)
        if not info.clean and fresh:
            how = "empty"
        elif not info.clean:
            how = (
                f"recovered {info.recovered_objects} objects, {info.recovered_records} records "
                f"replayed, {info.recovered_dropped} objects dropped, "
                f"{info.recovered_damaged} damaged pages"
            )
        level = logging.INFO if info.clean or fresh else logging.WARNING
        took = format_duration(info.open_ns)
        room = f"{format_size(stats.used_bytes)} of {format_size(info.data_bytes)}"
        text = "%s: opened in %s, %s; %d objects, %s used"
        log.log(level, text, self.name, took, how, stats.objects, room)

    def failed(self, op: str, keys: list[bytes], statuses: list[int], kept: bool) -> None:
        """A job has ended with failures."""
        for key, status in zip(keys, statuses, strict=True):
            if op == "put" and status in _REFUSED:
                self._refused.add(_REFUSED[status])
            elif op == "put" and status == -errno.EIO:
                self.degraded()
            elif op in ("get", "lease") and status < 0 and status not in _KEPT | _NOT_THERE:
                why = _WHY.get(status, errno.errorcode.get(-status, str(status)))
                self._dropped.add(f"{why}{' (kept)' if kept else ''}, key {key.hex()}")
        self._tell(False)

    def _tell(self, always: bool) -> None:
        if counts := self._refused.due(always):
            times = sum(counts.values())
            log.warning("%s: %d keys not written: %s", self.name, times, _words(counts))
        if counts := self._dropped.due(always):
            shown = Counter(dict(counts.most_common(8)))
            more = f", and {len(counts) - 8} others" if len(counts) > 8 else ""
            log.warning("%s: objects dropped: %s%s", self.name, _words(shown), more)

    def degraded(self) -> None:
        """It takes no more objects. Told once."""
        if not self._degraded:
            self._degraded = True
            log.error(
                "%s: degraded: metadata could not be written; it reads on and takes no new "
                "objects. Look at the drive, then open the store again",
                self.name,
            )

    def closed(self, rc: int, stats: StoreStats | None) -> None:
        """It is closed: ``rc`` is 0 or why it is not clean."""
        self._tell(True)
        if rc < 0:
            code = errno.errorcode.get(-rc, str(rc))
            log.warning("%s: closed, not clean (%s): the next open recovers", self.name, code)
        elif stats is not None:
            log.info(
                "%s: closed clean; %d objects, %d keys admitted, %d skipped, %d of %d gets hit, "
                "%d dropped, %s written",
                self.name,
                stats.objects,
                stats.admitted,
                stats.skipped,
                stats.hits,
                stats.gets,
                stats.dropped,
                format_size(stats.object_bytes + stats.metadata_bytes),
            )


def keys_of(job: Any, ffi: Any) -> list[bytes]:
    """The keys of a job that was not told yet, from the memory it holds."""
    return [bytes(ffi.buffer(job._c.keys[i].bytes)) for i in range(job._c.n)]


__all__ = ["Diary", "Often", "keys_of", "log"]
