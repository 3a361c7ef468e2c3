# SPDX-License-Identifier: Apache-2.0
"""Looking at a store that another process has open.

Its owner publishes counters a few times a second; ``peek`` reads them and changes nothing.
``snapshot`` makes the same of a store that is open here, for whoever shows or exports either.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from chm._door import explained
from chm._ffi import ffi, lib
from chm.options import Path, Size
from chm.stats import (
    DeviceInfo,
    NamespaceInfo,
    Record,
    SlowJob,
    Stats,
    StoreInfo,
    StoreStats,
    info_of,
    namespace_info_of,
    slow_job_of,
    stats_of,
    store_info_of,
    store_stats_of,
)
from chm.store import Store
from chm.units import parse_size

_NAMESPACES = 256
STALE_S = 5.0
"""A page older than this is of an owner that hangs, is stopped, or steps its device seldom."""


@dataclass(frozen=True)
class Snapshot(Record):
    """A store and its device at one moment.

    ``pid`` owns them; ``age_s`` is how old this was when it was read, ``open_s`` how long the store
    had been open.
    """

    pid: int
    age_s: float
    open_s: float
    device: DeviceInfo
    info: StoreInfo
    device_stats: Stats
    stats: StoreStats
    namespaces: list[NamespaceInfo]
    slow: list[SlowJob]

    @property
    def stale(self) -> bool:
        """Whether the owner has not published for long."""
        return self.age_s > STALE_S

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        lists = {
            "namespaces": [n.to_dict() for n in self.namespaces],
            "slow": [job.to_dict() for job in self.slow],
        }
        return {**super().to_dict(), **lists}


def peek(path: Path, base: Size = 0) -> Snapshot:
    """What the owner of the store at ``base`` of a device published last.

    ``path`` is any member of the device. Raises NotOpen (no process has the device open), Busy
    (one has, and publishes nothing), NewerFormat (it uses another version of this package),
    BadHeader (no chm device), or what the system said about ``path``.
    """
    page = ffi.new("struct chm_store_page *")
    name = os.fsencode(path)
    most, start = _NAMESPACES, parse_size(base)
    while True:
        found = ffi.new("struct chm_store_namespace_info[]", most)
        call = partial(lib.chm_store_peek, name, start, page, found, most)
        explained(call, path=None)
        if page.namespaces <= most:
            break
        most = page.namespaces
    return Snapshot(
        pid=page.pid,
        age_s=max(time.monotonic_ns() - page.now_ns, 0) / 1e9,
        open_s=(page.now_ns - page.opened_ns) / 1e9,
        device=info_of(ffi.addressof(page, "device")),
        info=store_info_of(ffi.addressof(page, "info")),
        device_stats=stats_of(ffi.addressof(page, "device_stats")),
        stats=store_stats_of(ffi.addressof(page, "stats")),
        namespaces=[namespace_info_of(found[i]) for i in range(page.namespaces)],
        slow=[slow_job_of(page.slow[i]) for i in range(page.slow_count)],
    )


def snapshot(store: Store) -> Snapshot:
    """The same of a store that is open in this process."""
    info = store.info
    slow = store.slow()
    return Snapshot(
        pid=os.getpid(),
        age_s=0.0,
        open_s=store._house.open_s(),
        device=store.device.info,
        info=info,
        device_stats=store.device.stats(),
        stats=store.stats(),
        namespaces=store.namespaces(),
        slow=slow,
    )


__all__ = ["STALE_S", "Snapshot", "peek", "snapshot"]
