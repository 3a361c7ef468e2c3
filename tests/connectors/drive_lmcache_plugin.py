# SPDX-License-Identifier: Apache-2.0
"""Calls the plug-in form of the LMCache adapter as the server's controllers do; see driver.py.

It needs LMCache: its keys and memory objects are the real ones. A store is told as one answer for
all of its keys.
"""

from __future__ import annotations

import select
import warnings
from collections.abc import Sequence

from drive_lmcache import allowed, kv_rank, params_of
from driver import Identity, Rows, Told

from chm.connectors import TierOptions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that LMCache loads
    import torch
    from lmcache.v1.distributed.api import ObjectKey
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
    from lmcache.v1.platform import consume_fd

    from chm.connectors.lmcache_plugin import ChmL2Plugin

_HANG_MS = 60_000


def object_of(row: Rows) -> TensorMemoryObj:
    raw = torch.from_numpy(row)
    meta = MemoryObjMetadata(
        shape=torch.Size([row.nbytes]),
        dtype=torch.uint8,
        address=raw.data_ptr(),
        phy_size=row.nbytes,
        fmt=MemoryFormat.KV_2LTD,
        ref_count=1,
    )
    return TensorMemoryObj(raw, meta, parent_allocator=None)


def readable(fd: int, timeout_ms: int) -> bool:
    """As the controllers wait: polled, then read."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if not poll.poll(timeout_ms):
        return False
    consume_fd(fd)
    return True


class PluginDriver:
    """One open adapter, and what it was asked for. Jobs are numbered by the adapter."""

    blocking = False
    whole_stores = True
    """A store is told as a whole: it failed if one of its blocks did."""

    def __init__(self, options: TierOptions, identity: Identity, row_bytes: int) -> None:
        self._identity = identity
        known = f"{options.identity}{identity.dtype}/{identity.layout}"
        self.adapter = ChmL2Plugin({**params_of(options), "identity": known})
        self.tier = self.adapter._l2.tier
        self._stores: dict[int, Rows] = {}  # memory objects own nothing: it is kept here
        self._loads: dict[int, tuple[list[ObjectKey], Rows]] = {}

    def keys(self, numbers: Sequence[int]) -> list[ObjectKey]:
        rank = kv_rank(self._identity.ranks, self._identity.rank)
        name, salt = allowed(self._identity.model), allowed(self._identity.salt)
        return [ObjectKey(i.to_bytes(8, "big"), name, rank, 0, salt) for i in numbers]

    def lookup(self, numbers: Sequence[int]) -> list[bool]:
        keys = self.keys(numbers)
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        assert readable(self.adapter.get_lookup_and_lock_event_fd(), _HANG_MS)
        bitmap = self.adapter.query_lookup_and_lock_result(task)
        assert bitmap is not None
        assert self.adapter.query_lookup_and_lock_result(task) is None
        return [bool(bitmap.test(i)) for i in range(len(keys))]

    def store(self, numbers: Sequence[int], rows: Rows) -> int:
        task = self.adapter.submit_store_task(self.keys(numbers), list(map(object_of, rows)))
        self._stores[task] = rows
        return int(task)

    def load(self, numbers: Sequence[int], rows: Rows) -> int:
        keys = self.keys(numbers)
        task = self.adapter.submit_load_task(keys, list(map(object_of, rows)))
        self._loads[task] = (keys, rows)
        return int(task)

    def told(self) -> list[Told]:
        told = []
        if readable(self.adapter.get_store_event_fd(), 0):
            told += self._stored()
        if readable(self.adapter.get_load_event_fd(), 0):
            told += self._loaded()
        return told

    def _stored(self) -> list[Told]:
        done = self.adapter.pop_completed_store_tasks()
        return [
            Told(task, [result.is_successful()] * len(self._stores.pop(task)))
            for task, result in done.items()
        ]

    def _loaded(self) -> list[Told]:
        told = []
        for task, (keys, _) in list(self._loads.items()):
            bitmap = self.adapter.query_load_result(task)
            if bitmap is not None:
                del self._loads[task]
                self.adapter.submit_unlock(keys)
                told.append(Told(task, [bool(bitmap.test(i)) for i in range(len(keys))]))
        return told

    def close(self) -> list[Told]:
        self.adapter.close()
        return self._stored() + self._loaded()


def open_lmcache_plugin(options: TierOptions, identity: Identity, row_bytes: int) -> PluginDriver:
    return PluginDriver(options, identity, row_bytes)
