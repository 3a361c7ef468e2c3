# SPDX-License-Identifier: Apache-2.0
"""``chm verify``: reads everything, and checks every checksum and every sum of counters."""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

import chm
from chm.cli.common import Target, emit, json_option, name_of, target_options
from chm.stats import StoredObject
from chm.units import format_size

_BATCH = 16 << 20
_KEYS = 256
_SHOWN = 20


@dataclass
class Findings:
    """What verify found. ``problems`` are sums that do not close, in words."""

    objects: int = 0
    read_bytes: int = 0
    damaged: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    recovered: dict[str, int] = field(default_factory=dict)
    dropped: int = 0

    @property
    def good(self) -> bool:
        """Nothing was wrong."""
        lost = self.recovered.get("damaged_pages", 0) + self.recovered.get("dropped_objects", 0)
        return not (self.damaged or self.problems or lost)


def _batches(objects: Iterable[StoredObject]) -> Iterator[list[StoredObject]]:
    """Of one namespace each, and about _BATCH bytes, or one object."""
    batch: list[StoredObject] = []
    size = 0
    for o in objects:
        full = len(batch) == _KEYS or size + o.length > _BATCH
        if batch and (full or o.ns != batch[0].ns):
            yield batch
            batch, size = [], 0
        batch.append(o)
        size += o.length
    if batch:
        yield batch


def _round_up(n: int) -> int:
    return -(-n // chm.PAGE) * chm.PAGE


def _read(store: chm.Store, batch: list[StoredObject]) -> list[int]:
    """The status of each; damaged ones stay as they are."""
    memory = chm.aligned_empty(sum(_round_up(o.length) for o in batch))
    buffers, at = [], 0
    for o in batch:
        buffers.append(memory[at : at + o.length])
        at += _round_up(o.length)
    keys = [o.key for o in batch]
    job = store.get(batch[0].ns, keys, buffers, keep=True, timeout=None).wait()
    return [int(status) for status in job.statuses]


def _check_counts(store: chm.Store, objects: list[StoredObject]) -> list[str]:
    """Counters against a recount of the objects."""
    stats = store.stats()
    found = [f"counters: {text}" for text in stats.unbalanced(store.info.data_bytes)]
    recount = {
        "objects": len(objects),
        "payload_bytes": sum(o.length for o in objects),
        "used_bytes": sum(o.used_bytes for o in objects),
    }
    for name, counted in recount.items():
        if getattr(stats, name) != counted:
            found.append(f"{name} is {getattr(stats, name)}, counted {counted}")
    counted_objects = Counter(o.ns for o in objects)
    used: Counter[int] = Counter()
    for o in objects:
        used[o.ns] += o.used_bytes
    for number, ns in enumerate(store.namespaces()):
        if (ns.objects, ns.used_bytes) != (counted_objects[number], used[number]):
            found.append(f"namespace {name_of(ns)}: its sums are not those of its objects")
    return found + _check_chains(objects)


def _check_chains(objects: list[StoredObject]) -> list[str]:
    """Every key once, every parent there, every count of children right, no cycle."""
    by_key = {(o.ns, o.key): o for o in objects}
    children = Counter((o.ns, o.parent) for o in objects if o.parent is not None)
    found = []
    if len(by_key) != len(objects):
        found.append(f"{len(objects) - len(by_key)} keys are there twice")
    for (ns, parent), n in children.items():
        there = by_key.get((ns, parent or b""))
        if there is None or there.children != n:
            found.append(f"key {(parent or b'').hex()}: {n} objects hang on it, not as it says")
    done: set[tuple[int, bytes]] = set()
    for o in objects:
        path: set[tuple[int, bytes]] = set()
        at: StoredObject | None = o
        while at is not None and (at.ns, at.key) not in done:
            if (at.ns, at.key) in path:
                found.append(f"key {at.key.hex()}: its chain is a circle")
                break
            path.add((at.ns, at.key))
            at = by_key.get((at.ns, at.parent)) if at.parent is not None else None
        done |= path
    return found


def _check_places(store: chm.Store, objects: list[StoredObject]) -> list[str]:
    """No two objects lie in one place. Of a split object its first piece is looked at."""
    spans = []
    info = store.info
    for batch in _batches(objects):
        for o, place in zip(batch, store.where(batch[0].ns, [o.key for o in batch]), strict=True):
            if place is None:
                return [f"key {o.key.hex()}: has no place"]
            whole = o.used_bytes if place.extents == 1 else 1
            spans.append((place.addr, place.addr + whole, o.key))
    spans.sort()
    end = info.data_base + info.data_bytes
    found = [f"key {key.hex()}: beyond the store" for _, stop, key in spans if stop > end]
    for (_, stop, key), (start, _, other) in itertools.pairwise(spans):
        if start < stop:
            found.append(f"keys {key.hex()} and {other.hex()} lie in one place")
    return found


def _why(status: int) -> str:
    if status == -errno.EBADMSG:
        return "checksum is wrong"
    return os.strerror(-status)


def examine(store: chm.Store, progress: Progress, repair: bool) -> Findings:
    """Check all of it; with ``repair`` drop what cannot be read."""
    objects = sorted(store.list(), key=lambda o: o.ns)
    info = store.info
    found = Findings(
        problems=_check_counts(store, objects) + _check_places(store, objects),
        recovered={
            "damaged_pages": info.recovered_damaged,
            "dropped_objects": info.recovered_dropped,
            "records": 0 if info.clean else info.recovered_records,
        },
    )
    names = [name_of(ns) for ns in store.namespaces()]
    task = progress.add_task("verify", total=sum(o.length for o in objects))
    for batch in _batches(objects):
        for o, status in zip(batch, _read(store, batch), strict=True):
            found.objects += 1
            found.read_bytes += o.length
            if status < 0:
                found.damaged.append(
                    {
                        "key": o.key.hex(),
                        "namespace": names[o.ns],
                        "ns": o.ns,
                        "bytes": o.length,
                        "why": _why(status),
                    }
                )
        progress.advance(task, sum(o.length for o in batch))
    if repair:
        for damaged in found.damaged:
            found.dropped += store.remove(damaged["ns"], bytes.fromhex(damaged["key"]))
        store.sync().result()
    return found


def _tell(found: Findings, repair: bool) -> None:
    click.echo(f"{found.objects} objects, {format_size(found.read_bytes)} read and checked")
    lost = found.recovered
    if lost["damaged_pages"] or lost["dropped_objects"]:
        click.echo(
            f"opening it found {lost['damaged_pages']} damaged pages of metadata and dropped "
            f"{lost['dropped_objects']} objects"
        )
    for text in found.problems[:_SHOWN]:
        click.echo(f"wrong: {text}")
    for damaged in found.damaged[:_SHOWN]:
        click.echo(
            f"damaged: key {damaged['key']} of {damaged['namespace']}, {damaged['bytes']} bytes: "
            f"{damaged['why']}"
        )
    if len(found.damaged) > _SHOWN:
        click.echo(f"... and {len(found.damaged) - _SHOWN} more; --json lists all")
    if found.good:
        click.echo("no damage")
    elif repair:
        click.echo(f"{found.dropped} objects dropped: they are misses, and a new put heals them")
    elif found.damaged:
        click.echo("nothing was changed: --repair drops what is damaged")


@click.command()
@target_options(dram="256MiB")
@click.option("--repair", is_flag=True, help="Drop objects that are damaged.")
@json_option
def verify(target: Target, repair: bool, as_json: bool) -> None:
    """Check a store that no process has open: every checksum, every sum, all chains.

    Reads all objects. Opening it recovers what a crash left, as any open does; beyond that nothing
    is changed without --repair, which drops what is damaged. Exit code 1 if damage was found, also
    if it was repaired.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with target.open() as store, Progress(*columns, console=console, transient=True,
                                          disable=not console.is_terminal) as bar:  # fmt: skip
        found = examine(store, bar, repair)
    if as_json:
        document = {"command": "verify", "good": found.good, **asdict(found), "repair": repair}
        emit(document)
    else:
        _tell(found, repair)
    if not found.good:
        raise click.exceptions.Exit(1)
