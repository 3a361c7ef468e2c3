# SPDX-License-Identifier: Apache-2.0
"""What the device tells about itself: plain frozen dataclasses, each with ``to_dict``.

Fields are those of the C structs of the same name, where chm.h explains each. A test compares the
names, so that a counter added in C cannot be forgotten here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chm._door import fields_of
from chm._ffi import ffi, field_names, lib, text
from chm.units import FOREVER_NS

SUB: int = lib.CHM_HIST_SUB


@dataclass(frozen=True)
class Record:
    """A result that can be written down."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            f.name: value.to_dict() if isinstance(value, Record) else value
            for f in dataclasses.fields(self)
            for value in (getattr(self, f.name),)
        }


def bucket_value(bucket: int) -> int:
    """The smallest value that falls into a bucket of a histogram."""
    if bucket < 2 * SUB:
        return bucket
    shift = bucket // SUB - 1
    return (bucket % SUB + SUB) << shift


@dataclass(frozen=True)
class Histogram(Record):
    """Log-scale, buckets 3 % wide: ``buckets`` maps a bucket to its count (no zeros)."""

    count: int = 0
    sum: int = 0
    max: int = 0
    buckets: Mapping[int, int] = dataclasses.field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Exact mean of all values; 0 when empty."""
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> int:
        """Smallest recorded value that ``share`` (0..1) of all do not exceed, within 1/32."""
        return int(lib.chm_hist_quantile(self._to_c(), share))

    def _to_c(self) -> Any:
        struct = ffi.new("struct chm_hist *", {"count": self.count, "sum": self.sum})
        struct.max = self.max
        for bucket, count in self.buckets.items():
            struct.bucket[bucket] = count
        return struct

    def __sub__(self, earlier: Histogram) -> Histogram:
        """What was recorded since ``earlier``. ``max`` is the upper end of the top bucket."""
        buckets = {b: n - earlier.buckets.get(b, 0) for b, n in self.buckets.items()}
        buckets = {b: n for b, n in buckets.items() if n}
        top = bucket_value(max(buckets) + 1) - 1 if buckets else 0
        return Histogram(
            self.count - earlier.count, self.sum - earlier.sum, min(top, self.max), buckets
        )

    def to_dict(self) -> dict[str, Any]:
        """With the quantiles people ask for, and the buckets (keys as text, for JSON)."""
        named = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
        return {
            "count": self.count,
            "sum": self.sum,
            "max": self.max,
            "mean": self.mean,
            **{name: self.quantile(share) for name, share in named.items()},
            "buckets": {str(b): n for b, n in self.buckets.items()},
        }


def _histogram(struct: Any) -> Histogram:
    counts = np.frombuffer(ffi.buffer(struct.bucket), np.uint64)
    used = np.flatnonzero(counts)
    buckets = dict(zip(used.tolist(), counts[used].tolist(), strict=True))
    return Histogram(struct.count, struct.sum, struct.max, buckets)


@dataclass(frozen=True)
class DeviceInfo(Record):
    """What a device is: sizes, what it lies on, and why it is not what was asked for (``note``)."""

    capacity_bytes: int
    dram_bytes: int
    window_bytes: int
    write_buffer_bytes: int
    cache_bytes: int
    metadata_bytes: int
    frame_bytes: int
    prefaulted_bytes: int
    prefault_ns: int
    huge_bytes: int
    link_rate: int
    link_write_rate: int
    members: int
    stripe_bytes: int
    block_bytes: int
    align_bytes: int
    transfer_max: int
    threaded: bool
    direct: bool
    fixed_buffers: bool
    huge_pages: bool
    virtual_time: bool
    contents: bool
    locked: bool
    degraded: bool
    memory_fd: int
    policy: str
    flush_policy: str
    media: str
    note: str
    device_id: str


@dataclass(frozen=True)
class SpaceStats(Record):
    """A space of objects: used + free = total, always."""

    total_bytes: int
    free_bytes: int
    used_bytes: int
    payload_bytes: int
    largest_free_bytes: int
    free_extents: int
    objects: int
    puts_open: int
    held: int
    deleting: int
    puts: int
    put_aborts: int
    put_refused: int
    deletes: int
    metadata_bytes: int


@dataclass(frozen=True)
class StreamInfo(Record):
    """How far a stream is; ``whole_objects`` is the usable prefix. ``status`` is 0 or -errno."""

    ready_bytes: int
    delivered_bytes: int
    whole_objects: int
    held: int
    ahead: int
    window_bytes: int
    piece_bytes: int
    status: int


@dataclass(frozen=True)
class Stats(Record):
    """All counters of a device, of one moment."""

    issued: int
    ready: int
    failed: int
    expired: int
    cancelled: int
    open: int
    refused: int
    shared: int
    staged_bytes: int
    buffered_bytes: int
    delivered_bytes: int
    demand_reads: int
    demand_failed: int
    demand_bytes: int
    demand_copied_bytes: int
    window_used_bytes: int
    window_pinned_bytes: int
    window_reserved_bytes: int
    window_largest_free: int
    window_peak_bytes: int
    window_waits: int
    window_waiting: int
    fill_at_block_percent_sum: int
    overtakes: int
    begun: int
    committed: int
    aborted: int
    open_writes: int
    write_refused: int
    committed_bytes: int
    flushed_bytes: int
    superseded_bytes: int
    lost_bytes: int
    buffer_used_bytes: int
    buffer_peak_bytes: int
    buffer_dirty_bytes: int
    trims: int
    trimmed_bytes: int
    flush_units: int
    flush_errors: int
    flush_retries: int
    barriers: int
    barrier_errors: int
    flush_inflight_at_read_max: int
    cache_hits: int
    cache_misses: int
    cache_fills: int
    cache_shared: int
    cache_unfetched: int
    cache_evictions: int
    cache_writebacks: int
    cache_fill_ns: int
    cache_writeback_ns: int
    cache_dirty_lines: int
    cache_lines: int
    cache_sets: int
    read_ios: int
    read_bytes: int
    write_ios: int
    write_bytes: int
    trim_ios: int
    io_errors: int
    short_ios: int
    resubmits: int
    steps: int
    sleeps: int
    sim_ios: int
    sim_digest: int
    stage_ns: Histogram
    demand_ns: Histogram
    read_io_ns: Histogram
    write_io_ns: Histogram
    flush_age_ns: Histogram
    flush_at_read: Histogram

    def __sub__(self, earlier: Stats) -> Stats:
        """What happened since ``earlier``; levels (``open``, ``*_used_bytes``) as their change.

        ``sim_digest`` stays that of all the I/O so far.
        """
        pairs = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        change = {name: value - getattr(earlier, name) for name, value in pairs}
        return Stats(**{**change, "sim_digest": self.sim_digest})


def info_of(struct: Any) -> DeviceInfo:
    values = fields_of("struct chm_info", struct)
    flags = [f.name for f in dataclasses.fields(DeviceInfo) if f.type == "bool"]
    return DeviceInfo(**{**values, **{name: bool(values[name]) for name in flags}})


def stats_of(struct: Any) -> Stats:
    values: dict[str, Any] = {}
    for name in field_names("struct chm_stats"):
        value = getattr(struct, name)
        values[name] = value if isinstance(value, int) else _histogram(value)
    return Stats(**values)


@dataclass(frozen=True)
class StoreInfo(Record):
    """What a store is. ``id`` is random, one for each format, in hex.

    ``life_written_bytes`` and ``life_open_ns`` count since format, across openings.
    """

    id: str
    base: int
    len: int
    data_base: int
    data_bytes: int
    journal_bytes: int
    version: int
    max_objects: int
    max_namespaces: int
    namespaces: int
    memory_entries_bytes: int
    memory_directory_bytes: int
    memory_other_bytes: int
    open_ns: int
    recovered_objects: int
    recovered_records: int
    recovered_damaged: int
    recovered_dropped: int
    life_written_bytes: int
    life_open_ns: int
    clean: bool
    degraded: bool
    published: bool
    eviction: str


@dataclass(frozen=True)
class StoreStats(Record):
    """Counters of a store, of one moment, since it was opened. They close:

    put_keys = admitted + skipped + duplicate + put_failed + put_open, skipped = the skipped_...;
    lookups = lookup_hits + lookup_misses; gets = hits + misses + get_errors + get_open;
    used_bytes + free_bytes + limbo_bytes = the data space.
    """

    put_keys: int
    admitted: int
    skipped: int
    duplicate: int
    put_failed: int
    put_open: int
    skipped_buffer: int
    skipped_space: int
    skipped_quota: int
    skipped_objects: int
    skipped_chain: int
    admitted_bytes: int
    lookups: int
    lookup_hits: int
    lookup_misses: int
    gets: int
    hits: int
    misses: int
    get_errors: int
    get_open: int
    hit_bytes: int
    direct_bytes: int
    copied_bytes: int
    leased_bytes: int
    errors_io: int
    errors_checksum: int
    errors_late: int
    errors_size: int
    errors_cancelled: int
    errors_room: int
    deleted: int
    evicted: int
    evicted_bytes: int
    dropped: int
    objects: int
    payload_bytes: int
    used_bytes: int
    free_bytes: int
    limbo_bytes: int
    largest_free_bytes: int
    free_extents: int
    split_objects: int
    leases: int
    pins: int
    orphans: int
    not_durable: int
    jobs: int
    jobs_ended: int
    syncs: int
    sync_errors: int
    records: int
    journal_pages: int
    checkpoints: int
    index_pages: int
    metadata_bytes: int
    object_bytes: int
    get_ns: Histogram
    put_ns: Histogram
    lease_ns: Histogram
    sync_ns: Histogram
    read_wait_ns: Histogram
    read_device_ns: Histogram
    read_check_ns: Histogram
    put_wait_ns: Histogram
    put_copy_ns: Histogram

    def unbalanced(self, data_bytes: int | None = None) -> list[str]:
        """The sums that do not close, in words; empty when all is well.

        ``data_bytes`` is that of the store's info. A copy of one moment always closes.
        """
        skipped = sum(getattr(self, name) for name in SKIPPED)
        errors = sum(getattr(self, name) for name in GET_ERRORS)
        puts = self.admitted + self.skipped + self.duplicate + self.put_failed + self.put_open
        sums = {
            "put_keys": (self.put_keys, puts),
            "skipped": (self.skipped, skipped),
            "lookups": (self.lookups, self.lookup_hits + self.lookup_misses),
            "gets": (self.gets, self.hits + self.misses + self.get_errors + self.get_open),
            "get_errors": (self.get_errors, errors),
        }
        if data_bytes is not None:
            room = self.used_bytes + self.free_bytes + self.limbo_bytes
            sums["data_bytes"] = (data_bytes, room)
        return [
            f"{name} is {told}, its parts are {found} together"
            for name, (told, found) in sums.items()
            if told != found
        ]


SKIPPED = (
    "skipped_buffer",
    "skipped_space",
    "skipped_quota",
    "skipped_objects",
    "skipped_chain",
)
GET_ERRORS = (
    "errors_io",
    "errors_checksum",
    "errors_late",
    "errors_size",
    "errors_cancelled",
    "errors_room",
)


@dataclass(frozen=True)
class SlowJob(Record):
    """A job that took long; ns, stages 0 where it did not come so far.

    ``wait_ns`` until its first device work, ``device_ns`` from there to the end of the last,
    ``work_ns`` of checksums or copying; ``begin_ns`` on the device's clock.
    """

    begin_ns: int
    total_ns: int
    wait_ns: int
    device_ns: int
    work_ns: int
    bytes: int
    cookie: int
    op: str
    n: int
    ok: int
    result: int


@dataclass(frozen=True)
class NamespaceInfo(Record):
    """A namespace: ``id`` is the hash of its name, ``quota_bytes`` None without a quota."""

    id: int
    quota_bytes: int | None
    used_bytes: int
    payload_bytes: int
    objects: int
    name: bytes

    def to_dict(self) -> dict[str, Any]:
        """The name as text; bytes that are no UTF-8 as escapes."""
        return {**super().to_dict(), "name": self.name.decode("utf-8", "backslashreplace")}


@dataclass(frozen=True)
class StoredObject(Record):
    """An object of a store: sizes in bytes; ``pins`` counts leases and jobs that use it now."""

    key: bytes
    parent: bytes | None
    ns: int
    length: int
    used_bytes: int
    children: int
    durable: bool
    pins: int
    extents: int

    def to_dict(self) -> dict[str, Any]:
        """Keys in hex."""
        parent = None if self.parent is None else self.parent.hex()
        return {**super().to_dict(), "key": self.key.hex(), "parent": parent}


def store_info_of(struct: Any) -> StoreInfo:
    values: dict[str, Any] = {}
    for name in field_names("struct chm_store_info"):
        value = getattr(struct, name)
        values[name] = value if isinstance(value, int) else None
    values["id"] = bytes(ffi.buffer(struct.id)).hex()
    values["eviction"] = text(struct.eviction)
    for name in ("clean", "degraded", "published"):
        values[name] = bool(values[name])
    return StoreInfo(**values)


def store_stats_of(struct: Any) -> StoreStats:
    values: dict[str, Any] = {}
    for name in field_names("struct chm_store_stats"):
        value = getattr(struct, name)
        values[name] = value if isinstance(value, int) else _histogram(value)
    return StoreStats(**values)


_OPS = {
    lib.CHM_STORE_GET: "get",
    lib.CHM_STORE_PUT: "put",
    lib.CHM_STORE_DELETE: "delete",
    lib.CHM_STORE_LEASE: "lease",
    lib.CHM_STORE_SYNC: "sync",
}


def slow_job_of(struct: Any) -> SlowJob:
    values = {name: getattr(struct, name) for name in field_names("struct chm_store_slow")}
    return SlowJob(**{**values, "op": _OPS[values["op"]]})


def namespace_info_of(struct: Any) -> NamespaceInfo:
    quota = struct.quota_bytes
    return NamespaceInfo(
        id=struct.id,
        quota_bytes=None if quota == FOREVER_NS else quota,
        used_bytes=struct.used_bytes,
        payload_bytes=struct.payload_bytes,
        objects=struct.objects,
        name=bytes(ffi.buffer(struct.name, struct.name_len)),
    )
