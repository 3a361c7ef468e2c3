# SPDX-License-Identifier: Apache-2.0
"""``chm info`` and ``chm ls``: what a store is, and what is in it."""

from __future__ import annotations

import itertools
from typing import Any

import click
from rich.table import Table

import chm
from chm.cli.common import (
    Target,
    emit,
    facts,
    find_namespace,
    json_option,
    name_of,
    namespace_option,
    note,
    plain,
    target_options,
    tell,
)
from chm.stats import NamespaceInfo, StoredObject
from chm.units import format_duration, format_size

_DAY_NS = 86400 * 10**9


def written_per_day(info: chm.StoreInfo) -> float:
    """Bytes written for each day that the store was open, since format."""
    return info.life_written_bytes * _DAY_NS / max(info.life_open_ns, 1)


def _state(seen: chm.Snapshot, elsewhere: bool) -> str:
    if not elsewhere:
        return "closed" if seen.info.clean else "closed; it had not been closed clean: recovered"
    age = f", silent for {seen.age_s:.0f} s: it hangs or is stopped" if seen.stale else ""
    return f"open in process {seen.pid} for {format_duration(seen.open_s * 1e9)}{age}"


def _store_rows(seen: chm.Snapshot) -> list[tuple[str, str]]:
    info, stats = seen.info, seen.stats
    index = info.memory_entries_bytes + info.memory_directory_bytes + info.memory_other_bytes
    used, total = format_size(stats.used_bytes), format_size(info.data_bytes)
    rows = [
        ("id", info.id),
        ("format version", str(info.version)),
        ("objects", f"{stats.objects} of {info.max_objects}"),
        ("used", f"{used} of {total}, largest free piece {format_size(stats.largest_free_bytes)}"),
        ("namespaces", f"{info.namespaces} of {info.max_namespaces}"),
        ("memory of the index", format_size(index)),
        ("eviction", info.eviction),
        (
            "written since format",
            f"{format_size(info.life_written_bytes)} in {format_duration(info.life_open_ns)} open",
        ),
    ]
    if info.life_open_ns > _DAY_NS // 24:
        rows.append(("written per day open", format_size(written_per_day(info))))
    if not info.clean and (info.recovered_objects or info.recovered_damaged):
        text = (
            f"{info.recovered_objects} objects, {info.recovered_records} records replayed, "
            f"{info.recovered_dropped} dropped, {info.recovered_damaged} damaged pages"
        )
        rows.append(("recovered at open", text))
    if info.degraded:
        rows.append(("DEGRADED", "takes no new objects: look at the drive, then open it again"))
    return rows


@click.command()
@target_options()
@json_option
def info(target: Target, as_json: bool) -> None:
    """Tell what a store and its device are, and who has it open.

    Works while another process has the store open, from what that one publishes. Else the store is
    opened for a moment, which also recovers it after a crash.
    """
    seen, elsewhere = target.look()
    state = _state(seen, elsewhere)
    if as_json:
        document = {
            "command": "info",
            "paths": list(target.paths),
            "open_elsewhere": elsewhere,
            "pid": seen.pid if elsewhere else None,
            "age_s": seen.age_s if elsewhere else None,
            "stale": seen.stale,
            "device": plain(seen.device),
            "store": plain(seen.info),
            "objects": seen.stats.objects,
            "used_bytes": seen.stats.used_bytes,
            "free_bytes": seen.stats.free_bytes,
            "written_per_day_bytes": written_per_day(seen.info),
        }
        emit(document)
        return
    device = seen.device
    members = "1 member" if device.members == 1 else f"{device.members} members"
    size, stripe = format_size(device.capacity_bytes), format_size(device.stripe_bytes)
    rows = [
        ("state", state),
        ("device", f"{device.device_id}, {members}, {device.media}"),
        ("capacity", f"{size}, stripe unit {stripe}"),
    ]
    if elsewhere:
        rows.append(("DRAM", f"{format_size(device.dram_bytes)}, policy {device.policy}"))
    facts(target.name, [*rows, *_store_rows(seen)])
    if device.note:
        note(f"note: {device.note}")


def _namespace_table(namespaces: list[NamespaceInfo]) -> Table:
    table = Table("namespace", "objects", "payload", "on device", "quota")
    for ns in sorted(namespaces, key=lambda n: -n.used_bytes):
        quota = "none" if ns.quota_bytes is None else format_size(ns.quota_bytes)
        sizes = (format_size(ns.payload_bytes), format_size(ns.used_bytes))
        table.add_row(name_of(ns), str(ns.objects), *sizes, quota)
    return table


def _object_table(objects: list[StoredObject], names: list[str]) -> Table:
    table = Table("key", "namespace", "bytes", "parent", "children", "durable", "pins")
    for o in objects:
        parent = "" if o.parent is None else o.parent.hex()
        durable = "yes" if o.durable else "no"
        counts = (str(o.children), durable, str(o.pins))
        table.add_row(o.key.hex(), names[o.ns], str(o.length), parent, *counts)
    return table


@click.command()
@target_options()
@click.option("--namespaces", is_flag=True, help="List namespaces with their bytes instead.")
@namespace_option
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="Most objects to list; 0: all.",
)
@json_option
def ls(target: Target, namespaces: bool, namespace: str | None, limit: int, as_json: bool) -> None:
    """List the objects of a store, in no order, or its namespaces.

    --namespaces works while another process has the store open; the objects do not.
    """
    if namespaces:
        found = target.look()[0].namespaces
        if as_json:
            rows = [{"number": i, **ns.to_dict()} for i, ns in enumerate(found)]
            emit({"command": "ls", "namespaces": rows})
        else:
            tell(_namespace_table(found))
        return
    with target.open() as store:
        there = store.namespaces()
        number = None if namespace is None else find_namespace(there, namespace)
        every = (o for o in store.list() if number in (None, o.ns))
        objects = list(itertools.islice(every, limit or None))
        total = store.stats().objects if number is None else there[number].objects
    names = [name_of(ns) for ns in there]
    if as_json:
        listed: list[dict[str, Any]] = [{**o.to_dict(), "namespace": names[o.ns]} for o in objects]
        emit({"command": "ls", "total": total, "listed": len(listed), "objects": listed})
        return
    tell(_object_table(objects, names))
    if len(objects) < total:
        note(f"{len(objects)} of {total} objects; --limit 0 lists all")
