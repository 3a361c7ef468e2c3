# SPDX-License-Identifier: Apache-2.0
"""What the commands share: their options, opening a store, telling as JSON or as tables."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.table import Table

import chm
from chm.stats import NamespaceInfo, Record
from chm.units import parse_size

DRAM = "64MiB"
_PIPE_COLUMNS = 160
F = TypeVar("F", bound=Callable[..., Any])


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """Bytes, as people write them: 4096, 256MiB, 1.5G."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """The number of bytes; a wrong usage if it is none."""
        try:
            return parse_size(value)
        except ValueError as e:
            self.fail(str(e), param, ctx)


SIZE = SizeType()


@dataclass(frozen=True)
class Target:
    """The device and the place on it that a command works on."""

    paths: tuple[str, ...]
    base: int = 0
    buffered: bool = False
    dram: int = parse_size(DRAM)

    @property
    def name(self) -> str:
        """For people."""
        return ", ".join(self.paths)

    def peek(self) -> chm.Snapshot:
        """What the owner publishes. NotOpen: nobody has it open."""
        return chm.peek(self.paths[0], self.base)

    @contextlib.contextmanager
    def open(self, **options: Any) -> Iterator[chm.Store]:
        """The store, opened here and closed clean. Evicts nothing by itself.

        Raises Busy with the owner's pid if another process has it open.
        """
        with chm.open(
            self.paths, dram_bytes=self.dram, buffered=self.buffered, thread=True
        ) as device:
            options = {"base": self.base, "free_percent": 0, **options}
            with chm.Store(device, **options) as store:
                yield store

    def look(self) -> tuple[chm.Snapshot, bool]:
        """What is published, or else what it says when opened; whether another process has it."""
        try:
            return self.peek(), True
        except chm.NotOpen:
            with self.open() as store:
                return chm.snapshot(store), False


def paths_argument(required: bool = True) -> Callable[[F], F]:
    """PATH..., or $CHM_PATH."""
    return click.argument(
        "paths",
        metavar="[PATH]...",
        nargs=-1,
        required=required,
        envvar="CHM_PATH",
        type=click.Path(),
    )


def target_options(dram: str | None = DRAM) -> Callable[[F], F]:
    """PATH... and how to open what lies there; the command gets ``target``."""
    options = [
        paths_argument(),
        click.option(
            "--base",
            type=SIZE,
            default=0,
            metavar="SIZE",
            help="Where the store begins on the device, behind raw space.",
        ),
        click.option(
            "--buffered",
            is_flag=True,
            help="Go through the page cache: for file systems without direct I/O.",
        ),
    ]
    if dram is not None:
        options.append(
            click.option(
                "--dram",
                type=SIZE,
                default=dram,
                show_default=True,
                metavar="SIZE",
                help="DRAM to open the device with.",
            )
        )

    def decorate(command: F) -> F:
        def with_target(
            paths: tuple[str, ...],
            base: int,
            buffered: bool,
            dram: int = parse_size(DRAM),
            **rest: Any,
        ) -> Any:
            return command(target=Target(paths, base, buffered, dram), **rest)

        with_target.__doc__ = command.__doc__
        with_target.__name__ = command.__name__
        wrapped: Any = with_target
        for name in ("__click_params__",):
            if hasattr(command, name):
                setattr(wrapped, name, getattr(command, name))
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[no-any-return]

    return decorate


json_option = click.option("--json", "as_json", is_flag=True, help="Tell it as JSON.")


def complete_namespace(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of namespaces, as far as an owner publishes them: completing opens nothing."""
    paths = ctx.params.get("paths") or os.environ.get("CHM_PATH", "").split(os.pathsep)
    try:
        found = chm.peek(paths[0], ctx.params.get("base") or 0).namespaces
    except (OSError, IndexError):
        return []
    names = [name_of(ns) for ns in found]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


namespace_option = click.option(
    "--namespace",
    metavar="NAME",
    shell_complete=complete_namespace,
    help="Only this namespace.",
)


def name_of(ns: NamespaceInfo) -> str:
    """Its name as text."""
    return str(ns.to_dict()["name"])


def find_namespace(namespaces: Sequence[NamespaceInfo], name: str) -> int:
    """The number of a namespace. A wrong usage that lists what there is."""
    names = [name_of(ns) for ns in namespaces]
    if name in names:
        return names.index(name)
    there = ", ".join(names[:10]) or "it has none"
    raise click.UsageError(f"no namespace {name!r}; there is: {there}")


def emit(value: Any, line: bool = False) -> None:
    """Write JSON to standard output, on one line or for people too."""
    click.echo(json.dumps(value, indent=None if line else 2, sort_keys=False))


def plain(record: Record) -> dict[str, Any]:
    """A record for JSON, its histograms without their buckets."""
    return {
        name: {k: v for k, v in value.items() if k != "buckets"}
        if isinstance(value, dict)
        else value
        for name, value in record.to_dict().items()
    }


def note(text: str) -> None:
    """A line for people, on standard error."""
    click.echo(text, err=True)


def console() -> Console:
    """Standard output; wide where it is no terminal, so that nothing is cut in a pipe."""
    made = Console(highlight=False, markup=False)
    if not made.is_terminal:
        made.width = _PIPE_COLUMNS
    return made


def facts(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Name and value, one below the other."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def tell(table: Table) -> None:
    """Print a table on standard output."""
    console().print(table)
