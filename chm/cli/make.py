# SPDX-License-Identifier: Apache-2.0
"""``chm format`` and ``chm resize``: making a device with a store on it, and making it larger."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

import chm
from chm.cli.common import DRAM, SIZE, Target, emit, facts, json_option, note, paths_argument
from chm.cli.common import target_options as target_options_of
from chm.cli.foreign import Found, examine
from chm.units import format_size, parse_size

MIB, GIB = 1 << 20, 1 << 30
_INDEX_BYTES = 64 + 4 + 6  # entry, link, directory slot at its load
_FREE_SHARE = 0.8
_DRAM_SHARE, _DRAM_MOST = 0.25, 8 * GIB


@dataclass(frozen=True)
class Plan:
    """What format is going to make."""

    paths: tuple[str, ...]
    size: int
    dram: int
    stripe: int
    max_objects: int
    force: bool
    buffered: bool

    def rows(self) -> list[tuple[str, str]]:
        """For people."""
        objects = self.max_objects
        return [
            ("members", ", ".join(self.paths)),
            ("capacity", format_size(self.size)),
            ("stripe unit", format_size(self.stripe)),
            ("objects at most", f"{objects} ({format_size(self.size / objects)} on average)"),
            ("index memory when full", format_size(objects * _INDEX_BYTES)),
            ("DRAM to open it with", format_size(self.dram)),
        ]


def interactive() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty()


def _check_content(paths: tuple[str, ...], force: bool) -> list[Found]:
    found = [examine(path) for path in paths]
    for path, content in zip(paths, found, strict=True):
        if content.kind == "unusable":
            raise click.ClickException(f"{path} is {content.what}")
        if content.kind == "foreign":
            fix = "rm" if os.path.isfile(path) else "wipefs -a"
            raise click.ClickException(
                f"{path} holds {content.what} ({format_size(content.size)}). chm never formats "
                f"over what is not its own, also not with --force: take another path, or remove it "
                f"yourself ({fix} {path})"
            )
        if content.kind == "chm" and not force:
            raise click.ClickException(
                f"{path} is a chm device already ({format_size(content.size)}); chm info {path} "
                "shows what is on it; --force makes a new one, and what is on it is lost"
            )
    return found


def _free_bytes(path: str) -> int:
    where = Path(path).resolve().parent
    if not where.is_dir():
        raise click.ClickException(f"{path}: there is no directory {where}")
    return shutil.disk_usage(where).free


def _choose_size(
    size: int | None, paths: tuple[str, ...], found: list[Found], ask: bool, yes: bool
) -> int:
    if size is not None:
        return size
    if all(f.size > MIB for f in found):
        return 0  # as large as what is there
    proposal = int(_FREE_SHARE * min(map(_free_bytes, paths))) // GIB * GIB or 256 * MIB
    if ask:
        text = f"Capacity ({format_size(_free_bytes(paths[0]))} free)"
        default = format_size(proposal)
        return int(click.prompt(text, default=default, value_proc=parse_size, err=True))
    if yes:
        return proposal
    raise click.UsageError("how large? Give --size, or --yes to take most of what is free")


def _choose_dram(dram: int | None, ask: bool) -> int:
    available = psutil.virtual_memory().available
    proposal = min(int(available * _DRAM_SHARE), _DRAM_MOST)
    proposal = max(proposal // (64 * MIB) * 64 * MIB, 64 * MIB)
    if dram is None and ask:
        text = f"DRAM budget ({format_size(available)} available)"
        dram = click.prompt(text, default=format_size(proposal), value_proc=parse_size, err=True)
    dram = proposal if dram is None else dram
    if dram > available:
        note(f"note: {format_size(dram)} of DRAM are more than is free now")
    return dram


def _ask_paths() -> tuple[str, ...]:
    if not interactive():
        raise click.UsageError("what to format? Give PATH, or set CHM_PATH")
    return (str(click.prompt("File or drive", err=True)),)


def _agree(plan: Plan, yes: bool, over: list[str]) -> None:
    if yes:
        return
    if not interactive():
        raise click.UsageError("nobody is there to be asked: add --yes")
    for name, value in plan.rows():
        note(f"  {name:24} {value}")
    lost = f" What is on {', '.join(over)} is lost." if over else ""
    click.confirm(f"Format?{lost}", default=not over, abort=True, err=True)


def _made(plan: Plan) -> chm.Snapshot:
    chm.format(
        plan.paths,
        plan.size or None,
        stripe=plan.stripe,
        force=plan.force,
        buffered=plan.buffered,
    )
    target = Target(plan.paths, 0, plan.buffered, min(plan.dram, parse_size(DRAM)))
    with chm.open(target.paths, dram_bytes=target.dram, buffered=plan.buffered) as device:
        chm.store.format(device, max_objects=plan.max_objects, force=True)
    return target.look()[0]


@click.command("format")
@paths_argument(required=False)
@click.option("--size", type=SIZE, metavar="SIZE", help="Capacity of the device, all members.")
@click.option("--dram", type=SIZE, metavar="SIZE", help="DRAM that it will be opened with.")
@click.option(
    "--max-objects", type=click.IntRange(1, 1 << 24), help="Fixed for good.  [one per MiB]"
)
@click.option(
    "--stripe", type=SIZE, default="1MiB", show_default=True, metavar="SIZE", help="Stripe unit."
)
@click.option("--force", is_flag=True, help="Also over a chm device, whose contents are lost.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take what is proposed.")
@click.option("--buffered", is_flag=True, help="Go through the page cache: no direct I/O.")
@json_option
def format_command(
    paths: tuple[str, ...],
    size: int | None,
    dram: int | None,
    max_objects: int | None,
    stripe: int,
    force: bool,
    yes: bool,
    buffered: bool,
    as_json: bool,
) -> None:
    """Make a device on PATH... with an empty store on it.

    Files are made with mode 0600 and preallocated. What is not given is asked for, if somebody is
    there; --yes takes what is proposed. Existing files are taken as large as they are. A file or
    drive with anything foreign on it is never touched, a chm device only with --force.

      chm format /mnt/nvme/kv.chm --size 100GiB
    """
    paths = paths or _ask_paths()
    found = _check_content(paths, force)
    ask = interactive() and not yes
    size = _choose_size(size, paths, found, ask, yes)
    capacity = size or min(f.size for f in found) * len(paths)
    objects = max_objects or min(max(capacity // MIB, 1024), 1 << 24)
    plan = Plan(paths, capacity, _choose_dram(dram, ask), stripe, objects, force, buffered)
    _agree(plan, yes, [p for p, f in zip(paths, found, strict=True) if f.kind == "chm"])
    if size == 0:
        plan = Plan(paths, 0, plan.dram, stripe, max_objects or 0, force, buffered)
    made = _made(plan)
    if as_json:
        emit(_document("format", plan, made))
        return
    info = made.info
    click.echo(
        f"formatted {', '.join(paths)}: {format_size(made.device.capacity_bytes)}, "
        f"{format_size(info.data_bytes)} for objects, {info.max_objects} objects at most"
    )
    names = ", ".join(repr(path) for path in paths)
    click.echo(f"open it:  dev = chm.open([{names}], dram_bytes={plan.dram}, thread=True)")
    click.echo("          store = chm.Store(dev)")


def _document(command: str, plan: Plan, made: chm.Snapshot) -> dict[str, Any]:
    return {
        "command": command,
        "paths": list(plan.paths),
        "capacity_bytes": made.device.capacity_bytes,
        "dram_bytes": plan.dram,
        "stripe_bytes": made.device.stripe_bytes,
        "data_bytes": made.info.data_bytes,
        "max_objects": made.info.max_objects,
        "device_id": made.device.device_id,
        "store_id": made.info.id,
    }


@click.command()
@target_options_of()
@click.option(
    "--size", type=SIZE, metavar="SIZE", help="New capacity.  [all that the drives have now]"
)
@json_option
def resize(target: Target, size: int | None, as_json: bool) -> None:
    """Make a closed device and its store larger; what is in it stays.

    All members are given, in order. Files are lengthened, drives must have grown already. How many
    objects there can be is fixed at format and stays. Nothing becomes smaller: for that, and for
    more objects, format a new store and move to it, or put it beside this one in a pool
    (docs/cli.md says how). Cut short, it is run again.
    """
    with chm.open(target.paths, dram_bytes=target.dram, buffered=target.buffered) as device:
        before = device.info.capacity_bytes
    if size is not None and size < before:
        raise click.ClickException(
            f"{target.name} has {format_size(before)}: a store cannot become smaller. Format a new "
            "one of the size you want; engines fill it again"
        )
    chm.grow(target.paths, size, buffered=target.buffered)
    with target.open(grow=True) as store:
        after = chm.snapshot(store)
    limit = after.info.max_objects
    document = {
        "command": "resize",
        "paths": list(target.paths),
        "before_bytes": before,
        "capacity_bytes": after.device.capacity_bytes,
        "data_bytes": after.info.data_bytes,
        "max_objects": limit,
        "objects": after.stats.objects,
    }
    if as_json:
        emit(document)
        return
    facts(
        target.name,
        [
            ("capacity before", format_size(before)),
            ("capacity now", format_size(after.device.capacity_bytes)),
            ("for objects", format_size(after.info.data_bytes)),
            ("objects", f"{after.stats.objects} of {limit} at most (as before)"),
        ],
    )
    if after.device.capacity_bytes == before:
        note("nothing to grow: lengthen the drive first, or give --size")
