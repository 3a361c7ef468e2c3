# SPDX-License-Identifier: Apache-2.0
"""Counters of a store and its device as OpenMetrics.

    from prometheus_client import REGISTRY
    REGISTRY.register(chm.metrics.Collector(lambda: chm.snapshot(store)))

``chm metrics`` does the same from outside. Names follow the conventions: base units (bytes,
seconds), ``_total`` for what only grows. docs/metrics.md has each with its meaning; a test holds
this table, that page and the counters of C together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics

from chm.errors import NotOpen
from chm.peek import Snapshot
from chm.stats import GET_ERRORS, SKIPPED, Histogram, bucket_value

# Bounds of histograms in seconds. Ours have buckets 3 % wide, so each bound is right within that.
BOUNDS_S = tuple(m * 10.0**e for e in range(-6, 2) for m in (1, 2, 5))


@dataclass(frozen=True)
class Row:
    """One metric: its name without ``_total``, its kind, the counter it shows, what it means."""

    name: str
    kind: str
    source: str
    help: str
    label: tuple[str, str] | None = None
    unit: float = 1.0


def _counters(prefix: str, source: str, rows: Iterable[tuple[str, str, str]]) -> list[Row]:
    return [Row(f"chm_{prefix}_{name}", "counter", f"{source}.{f}", t) for f, name, t in rows]


def _gauges(prefix: str, source: str, rows: Iterable[tuple[str, str, str]]) -> list[Row]:
    return [Row(f"chm_{prefix}_{name}", "gauge", f"{source}.{f}", t) for f, name, t in rows]


def _seconds(prefix: str, source: str, rows: Iterable[tuple[str, str, str]]) -> list[Row]:
    return [Row(f"chm_{prefix}_{name}", "histogram", f"{source}.{f}", t) for f, name, t in rows]


def _by_reason(name: str, fields: Iterable[str], cut: str, text: str) -> list[Row]:
    return [
        Row(f"chm_store_{name}", "counter", f"stats.{f}", text, ("reason", f.removeprefix(cut)))
        for f in fields
    ]


STORE = [
    *_counters(
        "store",
        "stats",
        [
            ("put_keys", "put_keys", "Keys of put jobs."),
            ("admitted", "put_admitted_keys", "Keys written."),
            ("duplicate", "put_duplicate_keys", "Keys that were there already."),
            ("put_failed", "put_failed_keys", "Keys that failed: device, deadline, cancelled."),
            ("admitted_bytes", "put_admitted_bytes", "Payload written."),
            ("lookups", "lookup_keys", "Keys looked up."),
            ("lookup_hits", "lookup_hit_keys", "Of these there."),
            ("lookup_misses", "lookup_miss_keys", "Of these not there."),
            ("gets", "get_keys", "Keys of get and lease jobs."),
            ("hits", "get_hit_keys", "Of these read."),
            ("misses", "get_miss_keys", "Of these not there."),
            ("hit_bytes", "get_hit_bytes", "Payload read."),
            ("direct_bytes", "get_direct_bytes", "Read by the drive into the caller's memory."),
            ("copied_bytes", "get_copied_bytes", "Read through the window and copied."),
            ("leased_bytes", "leased_bytes", "Payload leased in the window."),
            ("deleted", "deleted_objects", "Objects deleted."),
            ("evicted", "evicted_objects", "Objects evicted."),
            ("evicted_bytes", "evicted_bytes", "Space of these."),
            ("dropped", "dropped_objects", "Objects lost: damaged, unreadable, late."),
            ("syncs", "syncs", "Rounds of making objects durable."),
            ("sync_errors", "sync_errors", "Of these failed."),
            ("records", "journal_records", "Records written to the journal."),
            ("journal_pages", "journal_pages", "Pages of the journal written."),
            ("checkpoints", "checkpoints", "Checkpoints of the index."),
            ("index_pages", "index_pages", "Pages of the index written."),
            (
                "metadata_bytes",
                "metadata_written_bytes",
                "Written for metadata.",
            ),
            (
                "object_bytes",
                "object_written_bytes",
                "Written for objects: payload, padding.",
            ),
        ],
    ),
    *_by_reason("put_skipped_keys", SKIPPED, "skipped_", "Keys refused, by reason."),
    *_by_reason("get_error_keys", GET_ERRORS, "errors_", "Keys of gets that failed, by reason."),
    *_gauges(
        "store",
        "stats",
        [
            ("put_open", "put_open_keys", "Keys of puts going on."),
            ("get_open", "get_open_keys", "Keys of gets going on."),
            ("objects", "objects", "Objects there."),
            ("payload_bytes", "payload_bytes", "Their payload."),
            ("used_bytes", "used_bytes", "Space in use."),
            ("free_bytes", "free_bytes", "Space free."),
            ("limbo_bytes", "limbo_bytes", "Space of removed objects until that is durable."),
            ("largest_free_bytes", "largest_free_bytes", "Largest free piece."),
            ("free_extents", "free_extents", "Free pieces."),
            ("split_objects", "split_objects", "Objects in several pieces."),
            ("leases", "leases", "Leases held."),
            ("pins", "pins", "Uses of objects by jobs and leases."),
            ("orphans", "orphan_objects", "Objects whose prefix was lost: first to go."),
            ("not_durable", "not_durable_objects", "Objects and deletions not yet durable."),
            ("jobs", "jobs", "Jobs submitted and not told."),
            ("jobs_ended", "jobs_ended", "Of these ended."),
        ],
    ),
    *_seconds(
        "store",
        "stats",
        [
            ("get_ns", "get_seconds", "Get jobs, submit to end."),
            ("put_ns", "put_seconds", "Put jobs, submit to end."),
            ("lease_ns", "lease_seconds", "Lease jobs, submit to end."),
            ("sync_ns", "sync_seconds", "Rounds of making objects durable."),
            (
                "read_wait_ns",
                "read_wait_seconds",
                "Get, lease: until its first read.",
            ),
            (
                "read_device_ns",
                "read_device_seconds",
                "Get, lease: from there to its last.",
            ),
            ("read_check_ns", "read_check_seconds", "Get, lease: making checksums, summed."),
            ("put_wait_ns", "put_wait_seconds", "Put: until the first piece finds room."),
            ("put_copy_ns", "put_copy_seconds", "Put: room, copying, checksums, summed."),
        ],
    ),
]
INFO = [
    Row("chm_store_life_written_bytes", "counter", "info.life_written_bytes",
        "Written for objects and metadata since format."),
    Row("chm_store_life_open_seconds", "counter", "info.life_open_ns",
        "Time that the store was open since format.", unit=1e-9),
    Row("chm_store_data_bytes", "gauge", "info.data_bytes", "Space for objects."),
    Row("chm_store_objects_limit", "gauge", "info.max_objects", "Most objects there can be."),
    Row("chm_store_index_bytes", "gauge", "info.memory_entries_bytes", "Memory of index entries."),
    Row("chm_store_directory_bytes", "gauge", "info.memory_directory_bytes",
        "Memory of the directory."),
    Row("chm_store_degraded", "gauge", "info.degraded", "1: it takes no new objects."),
    Row("chm_store_recovered_objects", "gauge", "info.recovered_objects", "Found at open."),
    Row("chm_store_recovered_dropped_objects", "gauge", "info.recovered_dropped",
        "Objects that did not survive the checks of open."),
    Row("chm_store_recovered_damaged_pages", "gauge", "info.recovered_damaged",
        "Pages of metadata found damaged at open."),
    Row("chm_store_open_seconds", "gauge", "info.open_ns", "How long opening took.", unit=1e-9),
]  # fmt: skip
DEVICE = [
    *_counters(
        "device",
        "device_stats",
        [
            ("read_bytes", "read_bytes", "Read from the drives."),
            ("write_bytes", "written_bytes", "Written to the drives."),
            ("read_ios", "reads", "Reads of the drives."),
            ("write_ios", "writes", "Writes to the drives."),
            ("io_errors", "io_errors", "I/O that failed."),
            ("staged_bytes", "staged_bytes", "Made ready in the window."),
            ("delivered_bytes", "delivered_bytes", "Handed to callers."),
            ("committed_bytes", "committed_bytes", "Taken into the write buffer."),
            ("flushed_bytes", "flushed_bytes", "Of these written to the drives."),
            ("superseded_bytes", "superseded_bytes", "Of these overwritten before."),
            ("lost_bytes", "lost_bytes", "Of these that could not be written."),
            ("write_refused", "refused_writes", "Writes that found no room."),
            ("barriers", "barriers", "Barriers."),
            ("barrier_errors", "barrier_errors", "Barriers that failed."),
        ],
    ),
    *_gauges(
        "device",
        "device_stats",
        [
            ("window_used_bytes", "window_used_bytes", "Window in use."),
            ("window_pinned_bytes", "window_pinned_bytes", "Window held by requests."),
            ("buffer_used_bytes", "buffer_used_bytes", "Write buffer in use."),
            ("buffer_dirty_bytes", "buffer_dirty_bytes", "Write buffer still to be written."),
        ],
    ),
    *_gauges(
        "device",
        "device",
        [
            ("capacity_bytes", "capacity_bytes", "Capacity."),
            ("dram_bytes", "dram_bytes", "Window and write buffer."),
            ("degraded", "degraded", "1: too many I/O errors, it takes no writes."),
        ],
    ),
    *_seconds(
        "device",
        "device_stats",
        [
            ("stage_ns", "stage_seconds", "Staging, issue until ready."),
            ("demand_ns", "demand_seconds", "Demand reads, call until there."),
            ("read_io_ns", "read_seconds", "Single reads of the drives."),
            ("write_io_ns", "write_seconds", "Single writes to the drives."),
            ("flush_age_ns", "flush_age_seconds", "Age of bytes when they were written."),
        ],
    ),
]
NAMESPACE = [
    Row("chm_store_namespace_objects", "gauge", "objects", "Objects of a namespace."),
    Row("chm_store_namespace_used_bytes", "gauge", "used_bytes", "Space in use by a namespace."),
    Row("chm_store_namespace_quota_bytes", "gauge", "quota_bytes", "Its quota, where it has one."),
]
OWNER = [
    Row("chm_up", "gauge", "", "1: a process has the store open and publishes."),
    Row("chm_store_age_seconds", "gauge", "age_s", "Age of these numbers when they were read."),
    Row("chm_store_uptime_seconds", "gauge", "open_s", "How long the store has been open."),
]
ROWS = [*OWNER, *STORE, *INFO, *DEVICE, *NAMESPACE]


def cumulative(h: Histogram) -> list[tuple[str, float]]:
    """Counts up to each bound, as exposition wants them."""
    buckets = sorted((bucket_value(bucket + 1) / 1e9, n) for bucket, n in h.buckets.items())
    out, count, at = [], 0, 0
    for bound in BOUNDS_S:
        while at < len(buckets) and buckets[at][0] <= bound * (1 + 1e-9):
            count += buckets[at][1]
            at += 1
        out.append((f"{bound:g}", float(count)))
    return [*out, ("+Inf", float(h.count))]


def _value(seen: Snapshot, source: str) -> Any:
    value: Any = seen
    for name in source.split("."):
        value = getattr(value, name)
    return value


def _family(row: Row, labels: list[str]) -> Any:
    kinds: dict[str, Callable[..., Any]] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    return kinds[row.kind](row.name, row.help, labels=labels)


def _add(family: Any, row: Row, labels: list[str], value: Any) -> None:
    if row.kind == "histogram":
        family.add_metric(labels, cumulative(value), sum_value=value.sum / 1e9)
    else:
        family.add_metric(labels, float(value) * row.unit)


def families(seen: Snapshot) -> Iterator[Metric]:
    """Everything about one store."""
    device = seen.device.device_id
    made: dict[str, Any] = {}
    for row in [*OWNER[1:], *STORE, *INFO, *DEVICE]:
        names = ["device", *([row.label[0]] if row.label else [])]
        family = made.setdefault(row.name, _family(row, names))
        labels = [device, *([row.label[1]] if row.label else [])]
        _add(family, row, labels, _value(seen, row.source))
    for row in NAMESPACE:
        family = made[row.name] = _family(row, ["device", "namespace"])
        for ns in seen.namespaces:
            value = getattr(ns, row.source)
            if value is not None:
                _add(family, row, [device, str(ns.to_dict()["name"])], value)
    yield from made.values()


class Collector:
    """For a prometheus_client registry; ``look`` gives a Snapshot, or raises NotOpen."""

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """The metrics of now; only ``chm_up`` 0 while no process has the store open."""
        up = GaugeMetricFamily(OWNER[0].name, OWNER[0].help)
        try:
            seen = self._look()
        except NotOpen:
            up.add_metric([], 0.0)
            yield up
            return
        up.add_metric([], 1.0)
        yield up
        yield from families(seen)


def registry(look: Callable[[], Snapshot]) -> CollectorRegistry:
    """A registry with nothing else in it."""
    made = CollectorRegistry()
    made.register(Collector(look))
    return made


def render(look: Callable[[], Snapshot]) -> str:
    """OpenMetrics text."""
    generate: Callable[..., bytes] = openmetrics.generate_latest
    return generate(registry(look)).decode()
