# SPDX-License-Identifier: Apache-2.0
"""``chm-bench paper``: what it takes, where results go, and what the exit code says."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from chm import preset as presets
from chm.bench.options import ConfigError
from chm.bench.paper import table
from chm.bench.paper.catalog import FIGURES, pick
from chm.bench.paper.figure import Settings
from chm.bench.paper.page import page
from chm.bench.paper.plots import png
from chm.bench.paper.study import Result, conduct, document
from chm.bench.presets import complete_fields
from chm.bench.sweep import write_text
from chm.bench.ui import progress_on

DEFAULT_OUT = "chm-paper"
FILE_COLUMNS = 150


def _jobs(given: int | None) -> int:
    return given or len(os.sched_getaffinity(0))


def _sets(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    out = []
    for text in texts:
        field, eq, value = text.partition("=")
        if not eq:
            raise ConfigError(f"--set {text!r}: write FIELD=VALUE")
        out.append((field.strip(), value.strip()))
    try:
        presets.parse_settings(f"{field}={value}" for field, value in out)
    except presets.PresetError as e:
        raise ConfigError(f"--set: {e}") from None
    return tuple(out)


def _ratios(text: str) -> tuple[float, ...]:
    try:
        ratios = tuple(float(word) for word in text.split(",") if word)
    except ValueError:
        raise ConfigError(f"--ratios {text!r}: write numbers, such as 0.5,1,1.5") from None
    if any(not 0 < r <= 64 for r in ratios):
        raise ConfigError(f"--ratios {text!r}: each is more than 0 and at most 64 cache sizes")
    return ratios


def _complete_figures(_ctx: object, _param: object, incomplete: str) -> list[str]:
    return [name for name in FIGURES if name.startswith(incomplete.upper())]


@click.command("paper")
@click.argument("names", nargs=-1, metavar="[FIGURE]...", shell_complete=_complete_figures)
@click.option("--list", "list_", is_flag=True, help="list the figures and end")
@click.option(
    "--out",
    metavar="DIR",
    default=DEFAULT_OUT,
    show_default=True,
    type=click.Path(file_okay=False),
    help="where the report and the pictures go",
)
@click.option(
    "--json",
    "json_",
    metavar="FILE",
    type=click.Path(),
    help="write everything as one JSON document; - is standard output",
)
@click.option("--jobs", metavar="N", type=click.IntRange(1), help="processes  [all cores]")
@click.option("--quick", is_flag=True, help="smaller runs of the same kind")
@click.option(
    "--set",
    "set_",
    multiple=True,
    metavar="FIELD=VALUE",
    shell_complete=complete_fields,
    help="change a field of every preset, to see what it does; may be repeated",
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="of every run")
@click.option(
    "--ratios", default="", metavar="R,R", help="F18: further working sets, in sizes of the cache"
)
def paper(
    names: tuple[str, ...],
    list_: bool,
    out: str,
    json_: str | None,
    jobs: int | None,
    quick: bool,
    set_: tuple[str, ...],
    seed: int,
    ratios: str,
) -> None:
    """Measure published figures in virtual time, and say how near we come.

    FIGURE is F1, F2, ..., A3; all of them without one. The report goes to DIR/report.html, with a
    picture of each figure beside it.

    Exit code 1 if a value is missed and no reason for it is known.
    """
    if list_:
        table.show_list(Console(), list(FIGURES.values()))
        return
    settings = Settings(seed=seed, quick=quick, sets=_sets(set_), ratios=_ratios(ratios))
    figures = pick(names)
    with progress_on(Console(stderr=True)) as bar:
        progress = bar("paper")
        progress.begin("figures", sum(len(f.parts(settings)) for f in figures))
        results = conduct(figures, settings, _jobs(jobs), lambda _: progress.advance())
    table.show(_console(json_ == "-"), results)
    _write(Path(out), json_, results, settings)
    if any(r.failed for r in results):
        raise click.exceptions.Exit(1)


def _console(stderr: bool) -> Console:
    """For the table: as wide as it needs where nobody says how wide it may be."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_COLUMNS
    return console


def _write(out: Path, json_: str | None, results: Sequence[Result], settings: Settings) -> None:
    text = document(results, settings)
    pictures = {r.figure.name: _picture(r, settings) for r in results if r.finding.plots}
    out.mkdir(parents=True, exist_ok=True)
    for name, data in pictures.items():
        (out / f"{name}.png").write_bytes(data)
    write_text(out / "report.html", page(results, pictures, settings))
    click.echo(f"report: {out / 'report.html'}", err=True)
    if json_ == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    elif json_:
        write_text(Path(json_), text)


def _picture(r: Result, settings: Settings) -> bytes:
    digests = dict.fromkeys(str(run["sim_digest"]) for run in r.runs)
    note = f"{', '.join(r.figure.presets) or 'no device'}; seed {settings.seed}"
    if digests:
        note += f"; {len(digests)} runs, first digest {next(iter(digests))}"
    return png(f"{r.figure.name}: {r.figure.title}", r.finding.plots, note)
