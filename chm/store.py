# SPDX-License-Identifier: Apache-2.0
"""The key-value store: objects by 128-bit key in namespaces, durable, on (part of) a device.

    chm.store.format(dev)
    with chm.Store(dev) as store:
        ns = store.namespace("llama-3-8b/f16/tp1")
        store.put(ns, keys, buffers).result()
        store.get(ns, keys, buffers).result()

``put``, ``get``, ``delete``, ``lease`` and ``sync`` start a ``Job`` and return at once. Over a
device with a thread any thread may call; over a stepped one the calls that wait do the work.
An object is found when whole, and by whom it is got checked: a wrong byte is an error of that key.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from chm._buffers import Array, aligned_empty
from chm._door import BUSY, explained
from chm._ffi import NULL, ffi, lib
from chm._house import House
from chm._keys import KEY_BYTES, pack, scatter
from chm.errors import NotFound, WrongSize, check, error_of
from chm.job import DUPLICATE, PENDING, Job, ObjectLease
from chm.options import Size
from chm.stats import (
    NamespaceInfo,
    SlowJob,
    StoredObject,
    StoreInfo,
    StoreStats,
    namespace_info_of,
    slow_job_of,
)
from chm.units import FOREVER_NS, parse_size, seconds_to_ns

if TYPE_CHECKING:
    from chm.device import Device

Keys = Any
"""A list of 16-byte ``bytes``, an (n, 16) uint8 array, an array of 16-byte items, or 16n bytes."""
NO_QUOTA = FOREVER_NS
_SCRATCH = 256  # keys of an exists that need no fresh memory
_LIST = 256
_SIZE_TRIES = 3


@dataclass(frozen=True)
class Place:
    """Where an object lies: device address of its first byte, its length, how many pieces."""

    addr: int
    length: int
    extents: int


def format(
    device: Device,
    *,
    base: Size = 0,
    length: Size = 0,
    max_objects: int = 0,
    max_namespaces: int = 0,
    journal: Size = 0,
    force: bool = False,
) -> None:
    """Make an empty store on (part of) a device; what was in the range is lost.

    ``base`` and ``length`` are whole pages (default: all of the device), ``max_objects`` is fixed
    for good (default: one per MiB). Raises Exists unless ``force``, DeviceFull (the text says how
    much is needed), Unsupported (a device without contents).
    """
    o = ffi.new("struct chm_store_format_options *")
    lib.chm_store_format_options_init(o)
    o.base, o.len, o.journal_bytes = parse_size(base), parse_size(length), parse_size(journal)
    o.max_objects, o.max_namespaces, o.force = max_objects, max_namespaces, force
    door = device._door
    explained(partial(door.c.store_format, door.dev), o, path=door.name)


class _Scratch:
    """Memory for one exists at a time: results as C writes them, and as numpy sees them."""

    __slots__ = ("array", "c", "c_sizes", "sizes")

    def __init__(self, n: int) -> None:
        self.c = ffi.new("uint8_t[]", n)
        self.array = np.frombuffer(ffi.buffer(self.c), np.bool_)
        self.c_sizes = ffi.new("uint64_t[]", n)
        self.sizes = np.frombuffer(ffi.buffer(self.c_sizes), np.uint64)


class Store:
    """An open store. A context manager; ``close`` it before its device, or that does.

    ``eviction``: "prefix-tail" (only ends of chains go), "lru", "fifo". ``jobs_max`` and
    ``keys_max`` bound what is submitted and not told yet, ``leases_max`` what is held. Objects are
    durable at the latest ``sync_s`` seconds or ``sync_bytes`` after they were put. Counters are
    published for other processes (``chm.peek``) every ``publish_s`` seconds, None: never.
    ``grow``: the device or range is longer than when it was formatted: use all of it from now on.
    Raises NotFound (no store here), BadHeader, NewerFormat, ForeignMember (the range is another
    one), Busy (open already), MediaError.
    """

    __slots__ = ("__weakref__", "_exists", "_house", "_scratch", "device")

    def __init__(
        self,
        device: Device,
        *,
        base: Size = 0,
        length: Size = 0,
        eviction: str = "prefix-tail",
        jobs_max: int = 256,
        keys_max: int = 16384,
        leases_max: int = 1024,
        reads_max: int = 512,
        free_percent: int = 2,
        sync_s: float = 1.0,
        sync_bytes: Size = "512MiB",
        publish_s: float | None = 0.25,
        grow: bool = False,
    ) -> None:
        o = ffi.new("struct chm_store_options *")
        lib.chm_store_options_init(o)
        name = ffi.new("char[]", eviction.encode())
        o.base, o.len, o.eviction = parse_size(base), parse_size(length), name
        o.jobs_max, o.keys_max, o.leases_max = jobs_max, keys_max, leases_max
        o.reads_max, o.free_percent = reads_max, free_percent
        o.sync_interval_ns, o.sync_bytes = seconds_to_ns(sync_s), parse_size(sync_bytes)
        o.publish_interval_ns, o.grow = seconds_to_ns(publish_s), grow
        self.device = device
        self._scratch: list[_Scratch] = []
        device._door.drain()
        self._house = House(device._door, o, f"store on {device._door.name}")
        # The call made most, with nothing of ours around it; see Quick in chm/_door.py.
        house = self._house
        self._exists = partial(lib.gated_store_exists, house.door.gate.c, house.own.c)

    def __repr__(self) -> str:
        return f"<chm.Store on {self.device._door.name} {self._house.state}>"

    # -- namespaces ----------------------------------------------------------------------------

    def namespace(self, name: str | bytes, quota: Size | None = None) -> int:
        """The number of a namespace, as all calls take it; made if it does not exist.

        Put into the name what makes blocks of two models differ: weights, dtype and scales,
        layout, tokens of a block, parallel size and rank, adapter, a user's salt. ``quota``: most
        bytes that its objects occupy (``None`` leaves it, ``NO_QUOTA`` lifts it).
        """
        house = self._house
        house.need_open()
        text = name.encode() if isinstance(name, str) else name
        bytes_max = 0 if quota is None else parse_size(quota)
        out = ffi.new("uint32_t *")
        rc = house.c.store_namespace(house.s, text, len(text), bytes_max, out)
        check(rc, f"namespace {name!r}")
        return int(out[0])

    def namespaces(self) -> list[NamespaceInfo]:
        """All of them, in order of their numbers."""
        house = self._house
        house.need_open()
        out = ffi.new("struct chm_store_namespace_info *")
        found: list[NamespaceInfo] = []
        while True:
            rc = house.c.store_namespace_info(house.s, len(found), out)
            if rc == -errno.ENOENT:
                return found
            check(rc, "namespace")
            found.append(namespace_info_of(out))

    # -- looking up ----------------------------------------------------------------------------

    def exists(self, ns: int, keys: Keys) -> npt.NDArray[np.bool_]:
        """Whether each key is there. Waits for nothing and pins nothing: a get may still miss."""
        memory, n = pack(keys)
        scratch = self._take(n)
        self._ask(ns, memory, n, 0, scratch.c, NULL)
        found: npt.NDArray[np.bool_] = scratch.array[:n].copy()
        self._scratch.append(scratch)
        return found

    def prefix(self, ns: int, keys: Keys, touch: bool = True) -> int:
        """How many keys are there, counted from the front: the longest usable run.

        ``touch``: the run counts as used now, for eviction.
        """
        memory, n = pack(keys)
        return self._ask(ns, memory, n, lib.CHM_STORE_RUN | touch, NULL, NULL)

    def sizes(self, ns: int, keys: Keys, touch: bool = False) -> npt.NDArray[np.uint64]:
        """Bytes of each object, 0 for those that are not there."""
        memory, n = pack(keys)
        scratch = self._take(n)
        self._ask(ns, memory, n, lib.CHM_STORE_TOUCH * touch, NULL, scratch.c_sizes)
        sizes: npt.NDArray[np.uint64] = scratch.sizes[:n].copy()
        self._scratch.append(scratch)
        return sizes

    def _ask(self, ns: int, keys: Any, n: int, flags: int, found: Any, sizes: Any) -> int:
        house = self._house
        if house.state != "open" or house.door.garbage:
            house.need_open()
        rc: int = self._exists(house.place[0], ns, keys, n, flags, found, sizes)
        if rc >= 0:
            return rc
        if rc == BUSY:  # another thread is inside: wait for it
            rc = house.c.store_exists(house.place[0], ns, keys, n, flags, found, sizes)
        return check(rc, f"exists in namespace {ns}")

    def _take(self, n: int) -> _Scratch:
        """Memory that no other thread uses; who is done appends it to the list again."""
        if n > _SCRATCH:
            return _Scratch(n)
        try:
            return self._scratch.pop()
        except IndexError:
            return _Scratch(_SCRATCH)

    def where(self, ns: int, keys: Keys) -> list[Place | None]:
        """Where each object lies now, None if it is not there. Nothing keeps it there."""
        house = self._house
        house.need_open()
        memory, n = pack(keys)
        out = ffi.new("struct chm_store_place[]", max(n, 1))
        check(house.c.store_where(house.s, ns, memory, n, out), "where")
        return [
            Place(p.addr, p.len, p.extents) if p.addr else None for p in (out[i] for i in range(n))
        ]

    # -- jobs ----------------------------------------------------------------------------------

    def put(
        self,
        ns: int,
        keys: Keys,
        buffers: Any,
        *,
        parent: bytes | None = None,
        wait: bool = False,
        chain: bool = True,
        timeout: float | None = 10.0,
    ) -> Job:
        """Store objects. The keys are a chain, each the parent of the next, unless ``chain`` is
        False; ``parent`` is what the first hangs on, and must be there.

        ``buffers``: one for each key (a buffer, or a list of buffers one behind the other), or one
        2-D array with a row for each. Never waits for room unless ``wait``: a full write buffer is
        WouldBlock for that key, no space DeviceFull or QuotaFull, and the keys behind it in the
        chain ChainBroken. A key that is there stays as it is: ``DUPLICATE``, a success.
        """
        memory, n = pack(keys)
        job = Job(self._house, "put", ns, memory, n)
        if parent is not None:
            if len(parent) != KEY_BYTES:
                raise ValueError("parent: a key has 16 bytes")
            hold = ffi.from_buffer("struct chm_key[]", parent)
            job._keep.append(hold)
            job._c.parent = hold
        self._scatter(job, buffers, n, writable=False)
        flags = lib.CHM_STORE_WAIT * wait | lib.CHM_STORE_ALONE * (not chain)
        return job._start(timeout, flags)

    def get(
        self,
        ns: int,
        keys: Keys,
        buffers: Any,
        *,
        copy: bool = False,
        keep: bool = False,
        timeout: float | None = 10.0,
    ) -> Job:
        """Read objects into memory of exactly their lengths; ``buffers`` as in ``put``.

        What begins on a page and is whole pages is read by the drive itself. ``copy`` never lets
        the drive write into the buffers, so that the job ends at its deadline even if the drive
        hangs. A miss is NotFound, another length WrongSize; a key that is late (Expired), damaged
        or unreadable is dropped, so that it is a miss from then on, unless ``keep``. Buffers of
        keys that failed may have been written to.
        """
        memory, n = pack(keys)
        job = Job(self._house, "get", ns, memory, n)
        self._scatter(job, buffers, n, writable=True)
        return job._start(timeout, lib.CHM_STORE_COPY * copy | lib.CHM_STORE_KEEP * keep)

    def _scatter(self, job: Job, buffers: Any, n: int, writable: bool) -> None:
        if n:
            parts, counts, keep = scatter(buffers, n, writable)
            job._keep += [keep, parts, counts]  # a pointer read back from _c would own nothing
            job._c.parts, job._c.nparts = parts, counts

    def delete(self, ns: int, keys: Keys) -> Job:
        """Drop objects; NotFound for those that are not there. Leases of them go on."""
        memory, n = pack(keys)
        return Job(self._house, "delete", ns, memory, n)._start(10.0)

    def lease(self, ns: int, keys: Keys, *, timeout: float | None = 10.0) -> Job:
        """Stage objects into the window and keep them there, to be looked at without a copy.

            with store.lease(ns, keys) as leases:
                use(leases[0].array())

        WouldBlock for a key that found no window space by its deadline, TooLarge for one that is
        larger than the window.
        """
        memory, n = pack(keys)
        return Job(self._house, "lease", ns, memory, n)._start(timeout)

    def sync(self, timeout: float | None = 30.0) -> Job:
        """A job that ends when all that was put before it is durable."""
        return Job(self._house, "sync", 0, NULL, 0)._start(timeout)

    def release(self, leases: list[ObjectLease]) -> None:
        """Give back many leases in one call; see ``ObjectLease.release``."""
        if looked_at := sum(lease._looked_at() for lease in leases):
            raise BufferError(f"views of {looked_at} leases are alive; drop them first")
        self._house.give_back([lease._end_here() for lease in leases if lease._id])

    # -- one key, waiting ----------------------------------------------------------------------

    def write(self, ns: int, key: bytes, buf: Any, timeout: float | None = 10.0) -> bool:
        """Put one object, waiting for room. True: written; False: the key was there."""
        job = self.put(ns, [key], [buf], wait=True, timeout=timeout).wait()
        return _one(job) != DUPLICATE

    def read(self, ns: int, key: bytes, out: Any = None, timeout: float | None = 10.0) -> Array:
        """Read one object into ``out``, or a fresh array. NotFound, MediaError, BadHeader, ..."""
        if out is not None:
            _one(self.get(ns, [key], [out], timeout=timeout).wait())
            return np.frombuffer(memoryview(out).cast("B"), np.uint8)
        for _ in range(_SIZE_TRIES):  # it may be replaced between asking and reading
            size = int(self.sizes(ns, [key])[0])
            if size == 0:
                break
            array = aligned_empty(size)
            try:
                _one(self.get(ns, [key], [array], timeout=timeout).wait())
            except WrongSize:
                continue
            return array
        raise NotFound(errno.ENOENT, f"no object {key.hex()} in namespace {ns}")

    def remove(self, ns: int, key: bytes) -> bool:
        """Delete one object; whether it was there."""
        return int(self.delete(ns, [key]).wait().statuses[0]) == 0

    # -- the store itself ----------------------------------------------------------------------

    def evict(self, nbytes: Size, ns: int | None = None) -> int:
        """Evict at least so many bytes by the policy, of one namespace or all; objects that went.

        Less if nothing is left that can go.
        """
        house = self._house
        house.need_open()
        number = 0xFFFFFFFF if ns is None else ns
        return check(house.c.store_evict(house.s, number, parse_size(nbytes)), "evict")

    def slow(self) -> list[SlowJob]:
        """The jobs that took longest, longest first, mostly of the last hour; at most 16."""
        house = self._house
        house.need_open()
        most = lib.CHM_STORE_SLOW_MAX
        out = ffi.new("struct chm_store_slow[]", most)
        n = check(house.c.store_slow(house.s, out, most), "slow")
        return [slow_job_of(out[i]) for i in range(n)]

    def list(self) -> Iterator[StoredObject]:
        """All objects, in no order. What is put or dropped meanwhile may or may not be told."""
        house = self._house
        cursor = ffi.new("uint64_t *")
        out = ffi.new("struct chm_store_object[]", _LIST)
        while True:
            house.need_open()
            n = check(house.c.store_list(house.s, cursor, out, _LIST), "list")
            if n == 0:
                return
            for i in range(n):
                yield _object_of(out[i])

    @property
    def info(self) -> StoreInfo:
        """What it is: sizes, memory, how it was opened, whether it is degraded."""
        self._house.need_open()
        return self._house.info()

    def stats(self) -> StoreStats:
        """A copy of all counters, of one moment; they close (see ``StoreStats``)."""
        self._house.need_open()
        return self._house.stats()

    def room(self) -> tuple[int, int]:
        """Bytes used and free for objects; the quick form of ``stats``."""
        house = self._house
        house.need_open()
        out = ffi.new("struct chm_store_stats *")
        check(house.c.store_stats(house.s, out), "stats")
        return int(out.used_bytes), int(out.free_bytes)

    def poll(self) -> None:
        """Notice jobs that have ended, without waiting. On a stepped device, let it work."""
        self._house.need_open()
        self._house.poll()

    def fileno(self) -> int:
        """A descriptor that is readable while jobs have ended that ``poll`` would notice."""
        self._house.need_open()
        return check(self._house.c.store_event_fd(self._house.s), "event_fd")

    @property
    def closed(self) -> bool:
        """Whether it is closed, or was opened in a parent process."""
        return self._house.state != "open" or self._house.door.state != "open"

    def close(self, timeout: float = 30.0) -> None:
        """Let jobs end, make all durable, mark the store clean. Idempotent.

        Every job is told: by its result, or with Closed if it did not end in time. Leases are given
        back; BufferError, and nothing closed, while a view of one lives. MediaError: it could not
        be closed clean, the next open recovers.
        """
        self._house.close(timeout)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except BufferError:
            if kind is None:
                raise  # else the traceback holds views: closed with the device

    def __del__(self) -> None:
        house = getattr(self, "_house", None)
        if house is not None and house.state == "open" and house.door.state == "open":
            house.abandon()
            warnings.warn(f"{house.name} was not closed", ResourceWarning, stacklevel=2)


def _one(job: Job) -> int:
    """Status of the only key; raises what it means."""
    status = int(job.statuses[0])
    if status < 0:
        raise error_of(status, job.op)
    return status


def _object_of(o: Any) -> StoredObject:
    return StoredObject(
        key=bytes(ffi.buffer(o.key.bytes)),
        parent=bytes(ffi.buffer(o.parent.bytes)) if o.has_parent else None,
        ns=o.ns,
        length=o.len,
        used_bytes=o.used_bytes,
        children=o.children,
        durable=bool(o.durable),
        pins=o.pins,
        extents=o.extents,
    )


__all__ = [
    "DUPLICATE",
    "NO_QUOTA",
    "PENDING",
    "Job",
    "Keys",
    "ObjectLease",
    "Place",
    "Store",
    "format",
]
