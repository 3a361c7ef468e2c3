# SPDX-License-Identifier: Apache-2.0
"""L2 adapter of the LMCache server, for its ``plugin`` seam: the same store, keys and chains as
``ChmL2`` (chm/connectors/lmcache.py), so that one can be exchanged for the other.

    {"type": "plugin", "module_path": "chm.connectors.lmcache_plugin", "class_name": "ChmL2Plugin",
     "adapter_params": {"path": "/data/kv", "capacity": "100GiB", "dram": "2GiB"}}

It sees more than the native form: look-ups are answered as they are asked, an unlock takes back
what was staged in vain, and usage and status are the store's own.

One thread of ours sleeps on the descriptor of the connector and sorts what has ended; the host's
threads fetch it by task, woken by three descriptors.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface

from chm.connectors.lmcache import Batch, ChmL2

if TYPE_CHECKING:
    from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
    from lmcache.v1.memory_management import MemoryObj

log = logging.getLogger("chm")

DELETE_S = 30.0


def text_of(key: ObjectKey) -> str:
    """The text that the host itself makes of a key for a native connector."""
    text = f"{key.model_name}@{key.kv_rank:08x}@{key.object_group_id:x}@{key.chunk_hash.hex()}"
    return f"{text}@{key.cache_salt}" if key.cache_salt else text


def bitmap_of(ok: Sequence[bool]) -> Bitmap:
    bitmap = Bitmap(len(ok))
    for place, good in enumerate(ok):
        if good:
            bitmap.set(place)
    return bitmap


class _Signal:
    """An event descriptor that the host polls and reads."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        os.close(self.fd)


class ChmL2Plugin(L2AdapterInterface):  # type: ignore[misc]
    """The adapter that the host loads; ``params`` are those of ``ChmL2``.

    A lock says that a load will follow. It keeps the first chunks of a look-up, which are staged,
    and the rest from nothing but deletion by the host: what the store evicts before its load is
    told as not loaded.
    """

    def __init__(self, params: dict[str, Any], l1_memory_desc: Any = None) -> None:
        super().__init__(max_capacity_bytes=0)  # no eviction by the host: it would break chains
        self._l2 = ChmL2(**params)
        self._lock = threading.Lock()
        self._store, self._lookup, self._load = _Signal(), _Signal(), _Signal()
        self._stop = _Signal()
        self._tasks: dict[int, tuple[list[ObjectKey], list[int]]] = {}
        self._stored: dict[int, L2StoreResult] = {}
        self._found: dict[int, Bitmap] = {}
        self._loaded: dict[int, Bitmap] = {}
        self._deletes: dict[int, threading.Event] = {}
        self._locks: Counter[ObjectKey] = Counter()
        self._lookups = 0
        self._closed = False
        self._sorter = threading.Thread(target=self._sort, name="chm-lmcache", daemon=True)
        self._sorter.start()

    def get_store_event_fd(self) -> int:
        return self._store.fd

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookup.fd

    def get_load_event_fd(self) -> int:
        return self._load.fd

    # -- tasks ---------------------------------------------------------------------------------

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        with self._lock:  # so that it is known before its end is sorted
            buffers = [obj.byte_array for obj in objects]
            task = self._l2.submit_batch_set(list(map(text_of, keys)), buffers)
            self._tasks[task] = (list(keys), [buffer.nbytes for buffer in buffers])
        return task

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._lock:
            stored, self._stored = self._stored, {}
        return stored

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        with self._lock:
            buffers = [obj.byte_array for obj in objects]
            task = self._l2.submit_batch_get(list(map(text_of, keys)), buffers)
            self._tasks[task] = (list(keys), [])
        return task

    def query_load_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._loaded.pop(task_id, None)

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]
    ) -> int:
        try:
            found = self._l2.look_up(list(map(text_of, keys)))
        except OSError as error:
            log.warning("look-up: %s", error)
            found = [False] * len(keys)
        with self._lock:
            self._lookups += 1
            task = self._lookups
            self._found[task] = bitmap_of(found)
            self._locks.update(key for key, there in zip(keys, found, strict=True) if there)
        self._lookup.set()
        return task

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._found.pop(task_id, None)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        free = []
        with self._lock:
            for key in keys:
                left = self._locks[key] - 1
                if left > 0:
                    self._locks[key] = left
                else:
                    del self._locks[key]
                    free.append(text_of(key))
        self._l2.unhint(free)

    def delete(self, keys: list[ObjectKey]) -> None:
        """Drop chunks, but for locked ones, and wait until they are gone (30 s at most)."""
        gone = threading.Event()
        with self._lock:
            some = [key for key in keys if key not in self._locks]
            texts = list(map(text_of, some))
            sizes = self._l2.sizes(texts)
            task = self._l2.submit_batch_delete(texts)
            self._tasks[task] = (some, sizes)
            self._deletes[task] = gone
        if not gone.wait(DELETE_S):
            log.warning("a deletion of %d chunks goes on after %.0f s", len(some), DELETE_S)

    # -- what has ended ------------------------------------------------------------------------

    def _sort(self) -> None:
        poll = select.poll()
        poll.register(self._l2.event_fd(), select.POLLIN)
        poll.register(self._stop.fd, select.POLLIN)
        while all(fd != self._stop.fd for fd, _ in poll.poll()):
            for batch in self._l2.drain():
                self._ended(batch)

    def _ended(self, batch: Batch) -> None:
        with self._lock:
            keys, sizes = self._tasks.pop(batch.number)
            if batch.op == "set":
                self._stored[batch.number] = L2StoreResult(all(batch.ok), batch.nbytes)
                self._store.set()
            elif batch.op == "get":
                self._loaded[batch.number] = bitmap_of(batch.ok)
                self._load.set()
        if batch.error and batch.op != "delete":
            log.warning("%s of %d chunks: %s", batch.op, len(batch.ok), batch.error)
        try:
            self._notify(batch, keys, sizes)
        except Exception:  # a listener of the host's: it must not end our thread
            log.exception("a listener failed")
        if batch.op == "delete":
            self._deletes.pop(batch.number).set()

    def _notify(self, batch: Batch, keys: list[ObjectKey], sizes: list[int]) -> None:
        good = [place for place, ok in enumerate(batch.ok) if ok]
        named = [keys[place] for place in good]
        if not named:
            return
        if batch.op == "get":
            self._notify_keys_accessed(named)
        elif batch.op == "set":
            self._notify_keys_stored(named, [sizes[place] for place in good])
        else:
            self._notify_keys_deleted(named, [sizes[place] for place in good])

    # -- the adapter itself --------------------------------------------------------------------

    def get_usage(self) -> AdapterUsage:
        """What the store holds, of all users of the device; by salt only since the start."""
        used, free = (0, 0) if self._closed else self._l2.tier.store.room()
        by_salt = super().get_usage().bytes_by_cache_salt
        return AdapterUsage(used, used + free, by_salt)

    def report_status(self) -> dict[str, Any]:
        return {
            "is_healthy": self._sorter.is_alive() and not self._closed,
            "type": "chm",
            "path": list(self._l2.tier.options.path),
            "namespace": self._l2.tier.namespace,
            **asdict(self._l2.tier.stats()),
        }

    def close(self) -> None:
        """Let what runs end, by its deadline, and close the store. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        self._sorter.join()
        self._l2.close()
        for batch in self._l2.drain():
            self._ended(batch)
        for signal in (self._store, self._lookup, self._load, self._stop):
            signal.close()
