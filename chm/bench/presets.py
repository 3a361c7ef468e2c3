# SPDX-License-Identifier: Apache-2.0
"""`chm-bench preset`: look at presets, check one, start one of your own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.table import Table

import chm
from chm import preset as presets
from chm import units
from chm.bench.options import ConfigError
from chm.bench.outcome import document, dumps
from chm.bench.sweep import emit
from chm.preset import Preset, PresetError

NO_BYTES = "keeps no bytes; nothing can be verified"


def complete_names(_ctx: Any, _param: Any, incomplete: str) -> list[CompletionItem]:
    """Tab completion: names of presets, or files."""
    names = [CompletionItem(n) for n in presets.available() if n.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


def complete_fields(_ctx: Any, _param: Any, incomplete: str) -> list[CompletionItem]:
    """Tab completion: FIELD= of a --set."""
    return [CompletionItem(f"{n}=") for n in presets.known_fields() if n.startswith(incomplete)]


_NAME = click.argument("name", metavar="NAME|FILE", shell_complete=complete_names)
_SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    shell_complete=complete_fields,
    help="a value over that of the preset; may be repeated",
)
_JSON = click.option(
    "--json",
    "json_",
    metavar="FILE",
    type=click.Path(),
    help="write it as JSON; - is standard output",
)


def _load(name: str, settings: tuple[str, ...] = ()) -> Preset:
    try:
        return presets.load(name, settings)
    except PresetError as e:
        raise ConfigError(str(e)) from e


def _document(json_: str, **values: Any) -> None:
    emit(dumps({**document(sys.argv[1:], [], []), **values}), json_)


@click.group()
def preset() -> None:
    """Devices as data: list, show, check and make presets.

    Every number of a shipped preset has its source and grade: A primary artifact, B two secondary
    texts, C one, D derived or chosen, M measured.
    """


@preset.command("list")
@_JSON
def list_(json_: str | None) -> None:
    """List the presets of the package and your own."""
    loaded: list[tuple[Path, Preset]] = []
    for path in presets.available().values():
        try:
            loaded.append((path, _load(str(path))))
        except ConfigError as e:
            click.echo(f"warning: left out: {e}", err=True)
    table = Table("name", "capacity", "DRAM", "policy", "what it is")
    for path, p in loaded:
        own = "" if path.parent == presets.shipped_directory() else " (yours)"
        table.add_row(
            path.stem + own,
            units.format_size(p.capacity_bytes),
            units.format_size(p.get("dram_bytes", 0)),
            str(p.get("policy", "window")),
            p.summary,
        )
    console = Console(stderr=json_ == "-")
    console.print(table)
    console.print(f"your own go to {presets.user_directory()}", highlight=False)
    if json_:
        _document(json_, presets=[p.to_dict() for _, p in loaded])


@preset.command()
@_NAME
@_SET
@_JSON
def show(name: str, settings: tuple[str, ...], json_: str | None) -> None:
    """Print a preset as a file, `extends` resolved: what `check` accepts."""
    p = _load(name, settings)
    if json_ != "-":
        click.echo(p.to_toml(), nl=False)
    click.echo(f"{p.name} ({p.digest}) {NO_BYTES}", err=True)
    if json_:
        _document(json_, preset=p.to_dict())


@preset.command()
@_NAME
@_SET
@_JSON
def check(name: str, settings: tuple[str, ...], json_: str | None) -> None:
    """Check a preset: every field and value, and that a device opens with it.

    What cannot work is refused with the reason, exit code 2; what may surprise is a warning.
    """
    p = _load(name, settings)
    told = presets.warnings(p)
    with _open(p) as dev:
        capacity = dev.info.capacity_bytes
    for text in told:
        click.echo(f"warning: {text}", err=True)
    size = units.format_size(capacity)
    click.echo(
        f"{p.name}: ok, {size}, {len(p.numbers)} values, {p.digest}; {NO_BYTES}", err=json_ == "-"
    )
    if json_:
        _document(json_, preset=p.to_dict(), warnings=told, ok=True)


def _open(p: Preset) -> chm.Device:
    try:
        return chm.Device(p.options())
    except chm.ChmError as e:
        raise ConfigError(f"preset {p.name}: {e}") from e


@preset.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--from",
    "base",
    metavar="NAME|FILE",
    required=True,
    shell_complete=complete_names,
    help="the preset to start from",
)
@_SET
@click.option("--force", is_flag=True, help="overwrite FILE")
def new(file: Path, base: str, settings: tuple[str, ...], force: bool) -> None:
    """Write a preset of your own to FILE: all values of another one, to edit."""
    if file.suffix != presets.SUFFIX:
        raise ConfigError(f"{file}: a preset's name ends in {presets.SUFFIX}")
    if file.exists() and not force:
        raise ConfigError(f"{file} exists; say --force to overwrite it")
    p = _load(base, settings)
    emit(p.renamed(file.stem, f"Begun from {p.name}").to_toml(), str(file))
    click.echo(f"{file}: edit it, then run chm-bench preset check {file}", err=True)
