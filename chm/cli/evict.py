# SPDX-License-Identifier: Apache-2.0
"""``chm evict``: making room by hand, by the store's policy."""

from __future__ import annotations

import click

from chm.cli.common import (
    SIZE,
    Target,
    emit,
    find_namespace,
    json_option,
    namespace_option,
    target_options,
)
from chm.units import format_size

_ALL = (1 << 63) - 1


@click.command()
@target_options()
@namespace_option
@click.option("--bytes", "nbytes", type=SIZE, metavar="SIZE", help="Evict at least so much.")
@click.option("--all", "everything", is_flag=True, help="Evict everything.")
@click.option(
    "--policy",
    type=click.Choice(["prefix-tail", "lru", "fifo"]),
    default="prefix-tail",
    show_default=True,
    help="What goes first.",
)
@json_option
def evict(
    target: Target,
    namespace: str | None,
    nbytes: int | None,
    everything: bool,
    policy: str,
    as_json: bool,
) -> None:
    """Drop objects of a store that no process has open, the least useful first.

    How much has to be said: --bytes or --all, of the whole store or of one --namespace. The
    namespace itself stays, with its quota.
    """
    if (nbytes is None) != everything:
        raise click.UsageError("say how much: either --bytes SIZE or --all")
    with target.open(eviction=policy) as store:
        number = None if namespace is None else find_namespace(store.namespaces(), namespace)
        before = store.stats()
        gone = store.evict(_ALL if nbytes is None else nbytes, number)
        store.sync().result()
        after = store.stats()
    freed = before.used_bytes - after.used_bytes
    if as_json:
        document = {
            "command": "evict",
            "namespace": namespace,
            "objects": gone,
            "freed_bytes": freed,
            "objects_left": after.objects,
            "free_bytes": after.free_bytes,
        }
        emit(document)
        return
    click.echo(
        f"{gone} objects evicted, {format_size(freed)} freed; {after.objects} objects are left, "
        f"{format_size(after.free_bytes)} free"
    )
    if nbytes is not None and freed < nbytes:
        click.echo("less than asked for: there was no more that could go", err=True)
