# SPDX-License-Identifier: Apache-2.0
"""The commands `chm-bench calibrate` and `chm-bench twin`."""

from __future__ import annotations

import os
import statistics
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from chm import preset as presets
from chm import units
from chm.bench import twin as twin_module
from chm.bench.calibrate import (
    Calibration,
    Prepared,
    calibrate,
    facts_of,
    prepare,
    preset_of,
    preset_text,
)
from chm.bench.charts import draw_png, draw_terminal
from chm.bench.options import FACTOR, SIZE, TIME, ConfigError, Kind
from chm.bench.outcome import document, dumps
from chm.bench.presets import complete_names
from chm.bench.report import RATE
from chm.bench.report import TIME as TIME_TEXT
from chm.bench.sweep import emit
from chm.bench.target import scratch_directory
from chm.bench.twin import Comparison, Real, compare, setups, within
from chm.bench.ui import progress_on
from chm.preset import Preset, PresetError

MEDIA = ("auto", "uring", "threads", "sync")


def _value(kind: Kind, text: str, flag: str) -> Any:
    try:
        return kind.parse(text)
    except (ValueError, ZeroDivisionError) as e:
        raise ConfigError(f"{flag} {text!r}: {e}") from e


_PATH = click.argument(
    "path", required=False, metavar="[DIR|FILE]", type=click.Path(path_type=Path)
)
_TIME = click.option(
    "--time", "time_", metavar="TIME", default="60s", help="how long to measure  [60s]"
)
_SIZE = click.option(
    "--size", metavar="SIZE", default="1GiB", help="bytes of the file that is measured  [1GiB]"
)
_MEDIA = click.option(
    "--media", type=click.Choice(MEDIA), default="auto", help="how it is reached  [auto]"
)
_BUFFERED = click.option("--buffered", is_flag=True, help="allow the page cache")
_SEED = click.option("--seed", default=1, metavar="N", help="of order and addresses")
_JSON = click.option(
    "--json",
    "json_",
    metavar="FILE",
    type=click.Path(),
    help="write the results as one JSON document; - is standard output",
)


@click.command("calibrate")
@_PATH
@click.option(
    "--out",
    metavar="FILE.toml",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="the preset to write",
)
@_TIME
@_SIZE
@_MEDIA
@_BUFFERED
@click.option(
    "--writes",
    type=click.Choice(("auto", "fresh", "over")),
    default="auto",
    help="to blocks that were never written, as on a new device, or over old ones; auto: fresh in "
    "a directory  [auto]",
)
@click.option("--overwrite", is_flag=True, help="FILE becomes a chm device; what is in it is lost")
@click.option("--force", is_flag=True, help="write over an --out that exists")
@_SEED
@_JSON
def calibrate_command(
    path: Path | None,
    out: Path,
    time_: str,
    size: str,
    media: str,
    buffered: bool,
    writes: str,
    overwrite: bool,
    force: bool,
    seed: int,
    json_: str | None,
) -> None:
    """Measure a file system or a drive and write a preset that behaves like it.

    In a directory (default: the temporary one) a file is made, filled, measured and removed. A FILE
    or drive that is named must be a chm device and is only read, unless --overwrite.
    """
    if out.suffix != presets.SUFFIX:
        raise ConfigError(f"--out {out}: a preset's name ends in {presets.SUFFIX}")
    if out.exists() and not force:
        raise ConfigError(f"{out} exists; say --force to overwrite it")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no directory {out.parent}")
    seconds, nbytes = _value(TIME, time_, "--time") / 1e9, _value(SIZE, size, "--size")
    with progress_on(Console(stderr=True)) as bar:
        tick = bar("calibrate")
        with prepare(path, nbytes, media, overwrite, buffered, writes, tick) as ready:
            found = calibrate(ready, seconds, seed, tick)
    emit(preset_text(found, out.stem), str(out))
    made = presets.load(out)
    tables = Console(stderr=json_ == "-")
    show_calibration(tables, found, made)
    tables.print(
        f"{out}: predict with chm-bench turns --preset {out}, compare with chm-bench twin",
        highlight=False,
        soft_wrap=True,
    )
    if json_:
        told = {**made.to_dict(), "path": None}
        doc = {**document(sys.argv[1:], [], []), "calibration": found.to_dict(), "preset": told}
        emit(dumps(doc), json_)


def show_calibration(console: Console, c: Calibration, preset: Preset) -> None:
    """The sweep with its errors, and what became of it."""
    table = Table("point", "n", "median", "rate", "spread", "sim / real", box=SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    for e in c.found:
        p, o = e.seen.point, e.seen
        rate = RATE(p.nbytes / o.median * 1e9)
        spread, ratio = f"{100 * o.spread:.0f} %", f"{e.ratio:.2f}"
        table.add_row(str(p), str(len(o.samples)), TIME_TEXT(o.median), rate, spread, ratio)
    console.print(table)
    for name, number in preset.numbers.items():
        console.print(f"{name} = {number.text}  ({number.source})", highlight=False)
    for source in preset.sources:
        console.print(source, highlight=False, style="dim")


@click.command("twin")
@_PATH
@click.option(
    "--preset",
    "preset_name",
    metavar="NAME|FILE",
    shell_complete=complete_names,
    help="what predicts; without it the place is calibrated first, which is the better way",
)
@click.option("--repeats", default=3, metavar="N", help="real runs of each configuration  [3]")
@click.option("--only", multiple=True, metavar="TEXT", help="configurations with TEXT in the name")
@click.option("--scale", default="1", metavar="X", help="shrink all blocks: 1/16")
@_TIME
@_SIZE
@_MEDIA
@_BUFFERED
@_SEED
@click.option("--out", metavar="FILE.toml", type=click.Path(path_type=Path), help="keep the preset")
@click.option("--png", metavar="FILE", type=click.Path(path_type=Path), help="write the chart")
@click.option("--plot/--no-plot", default=True, help="draw the chart in the terminal, too")
@_JSON
def twin_command(
    path: Path | None,
    preset_name: str | None,
    repeats: int,
    only: tuple[str, ...],
    scale: str,
    time_: str,
    size: str,
    media: str,
    buffered: bool,
    seed: int,
    out: Path | None,
    png: Path | None,
    plot: bool,
    json_: str | None,
) -> None:
    """Predict `turns` runs from a calibration, make them, and show both beside each other.

    In DIR (default: the temporary directory). Two predictions: as calibrated, and with the drive's
    drift removed by reference probes around every real run.
    """
    if path is not None and not path.is_dir():
        raise ConfigError(f"{path} is no directory: the runs make files of their own")
    if repeats < 1:
        raise ConfigError("--repeats must be at least 1")
    if out and out.exists():
        raise ConfigError(f"--out {out} exists")
    factor: Fraction = _value(FACTOR, scale, "--scale")
    seconds, nbytes = _value(TIME, time_, "--time") / 1e9, _value(SIZE, size, "--size")
    chosen, where = setups(only), path or scratch_directory()
    tables, found, began = Console(stderr=json_ == "-"), None, os.getloadavg()[0]
    with progress_on(Console(stderr=True)) as bar:
        tick = bar("twin")
        with prepare(where, nbytes, media, buffered=buffered, tick=tick) as ready:
            if preset_name:
                preset = _load(preset_name)
            else:
                found = calibrate(ready, seconds, seed, tick)
                preset = preset_of(found, out.stem if out else "twin")
            real = _real(ready, where, media, buffered)
            result = compare(preset, real, chosen, repeats, factor, tick)
    if found:
        show_calibration(tables, found, preset)
        if out:
            emit(preset_text(found, out.stem), str(out))
    show_comparison(tables, result)
    tables.print(f"load average {began:.1f} to {os.getloadavg()[0]:.1f}", highlight=False)
    chart = result.chart()
    if plot:
        tables.print(draw_terminal(chart), highlight=False, markup=False)
    if png:
        draw_png(chart, png, "real runs, and the simulator with a calibrated preset")
    if json_:
        doc = {**document(sys.argv[1:], [], []), "twin": result.to_dict()}
        doc |= {"place": facts_of(where)}
        doc |= {"calibration": found.to_dict()} if found else {}
        emit(dumps(doc), json_)


def _load(name: str) -> Preset:
    try:
        return presets.load(name)
    except PresetError as e:
        raise ConfigError(str(e)) from e


def _real(ready: Prepared, where: Path, media: str, buffered: bool) -> Real:
    options = {"media": media, "path": str(where), "buffered": buffered}
    return Real(ready.place, options)


def show_comparison(console: Console, c: Comparison) -> None:
    """Prediction beside measurement, and how the drive drifted meanwhile."""
    first = ("turns, GB/s", "", "real", "+-")
    names = (*first, "as\ncal.", "\nratio", "", "no\ndrift", "\nratio", "")
    table = Table(*names, box=SIMPLE, padding=(0, 1, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    for f in c.figures:
        table.add_row(
            f.setup.name,
            f.what,
            f"{statistics.median(f.measured) / 1e9:.2f}",
            f"{100 * f.range:.0f} %",
            f"{f.predicted / 1e9:.2f}",
            f"{f.ratio:.2f}",
            _mark(f.ratio),
            f"{statistics.median(f.scaled) / 1e9:.2f}",
            f"{f.scaled_ratio:.2f}",
            _mark(f.scaled_ratio),
        )
    console.print(table)
    console.print(
        "+-: half the range of the real runs; as cal.: the preset as it is; no drift: its rates "
        "scaled to what reference probes just before and after each real run gave",
        style="dim",
    )
    n = len(c.figures)
    plain = sum(within(f.ratio) for f in c.figures)
    scaled = sum(within(f.scaled_ratio) for f in c.figures)
    console.print(
        f"within {100 * twin_module.WITHIN:.0f} %: as calibrated {plain} of {n}, drift removed "
        f"{scaled} of {n}",
        highlight=False,
    )
    for what, rates in c.references.items():
        low, high = min(rates), max(rates)
        console.print(
            f"reference {what}: {units.format_rate(low)} to {units.format_rate(high)}, median "
            f"{units.format_rate(statistics.median(rates))}, over {len(rates)} looks",
            highlight=False,
        )


def _mark(ratio: float) -> str:
    return "[green]yes[/]" if within(ratio) else "[red]no[/]"
