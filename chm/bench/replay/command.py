# SPDX-License-Identifier: Apache-2.0
"""The command `chm-bench replay`: flags, tables, JSON."""

from __future__ import annotations

import glob
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from chm import units
from chm.bench.charts import draw_png, draw_terminal
from chm.bench.options import SIZE, TIME, ConfigError, Kind
from chm.bench.outcome import document, dumps
from chm.bench.replay import notes as note_files
from chm.bench.replay.notes import Notes
from chm.bench.replay.summary import Restart, Summary, Sums
from chm.bench.replay.walk import Setting, Walk, make_members, open_members
from chm.bench.replay.work import Work, read_work
from chm.bench.report import COUNT, SHARE
from chm.bench.report import SIZE as SIZE_TEXT
from chm.bench.report import TIME as TIME_TEXT
from chm.bench.sweep import emit
from chm.bench.ui import progress_on
from chm.pool import NodeInfo, Pool

SUFFIX = ".replay"


def _value(kind: Kind, text: str, flag: str) -> Any:
    try:
        return kind.parse(text)
    except ValueError as e:
        raise ConfigError(f"{flag} {text!r}: {e}") from e


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(_value(SIZE, word, "--block")) for word in text.split(","))
    if not all(sizes):
        raise ConfigError(f"--block {text!r}: an object has at least one byte")
    return sizes


def _members(text: str) -> tuple[Path, ...]:
    paths = tuple(Path(word) for word in text.split(",") if word)
    if not paths or len(set(paths)) < len(paths):
        raise ConfigError(f"--members {text!r}: write different files or drives, such as A,B")
    return paths


def _complete_members(_ctx: object, _param: object, incomplete: str) -> list[str]:
    """The last path of a list."""
    done, comma, last = incomplete.rpartition(",")
    return [done + comma + path for path in sorted(glob.glob(glob.escape(last) + "*"))]


@click.command("replay")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...", type=click.Path())
@click.option(
    "--members",
    required=True,
    metavar="FILE,FILE",
    shell_complete=_complete_members,
    help="the devices of the pool; files that are not there are made",
)
@click.option(
    "--block",
    default="64KiB",
    metavar="SIZE",
    help="bytes of an object; of several sizes each object has one  [64KiB]",
)
@click.option(
    "--tokens",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="of an object, so many blocks of a trace are joined; 0: each block is one  [0]",
)
@click.option(
    "--requests",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="only the first of each trace; 0: all",
)
@click.option(
    "--capacity",
    default="0",
    metavar="SIZE",
    help="of each member that is made; 0: room for all objects  [0]",
)
@click.option("--dram", default="256MiB", metavar="SIZE", help="of each member  [256MiB]")
@click.option(
    "--eviction",
    type=click.Choice(("prefix-tail", "lru", "fifo")),
    default="prefix-tail",
    help="of each store  [prefix-tail]",
)
@click.option(
    "--sync",
    default=0,
    metavar="N",
    type=click.IntRange(0),
    help="make all durable after every N requests, and note them then; 0: the store decides  [0]",
)
@click.option("--deadline", default="10s", metavar="TIME", help="of each read  [10s]")
@click.option("--resume", is_flag=True, help="go on behind the last request that was noted")
@click.option(
    "--state",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"where finished requests are noted  [the first member's name + {SUFFIX}]",
)
@click.option(
    "--window",
    default=500,
    metavar="N",
    type=click.IntRange(1),
    help="requests before and behind a restart whose hit rates are shown  [500]",
)
@click.option("--media", type=click.Choice(("auto", "uring", "threads", "sync")), default="auto")
@click.option("--buffered", is_flag=True, help="allow the page cache")
@click.option("--seed", default=1, metavar="N", type=click.IntRange(0), help="of the contents  [1]")
@click.option("--png", metavar="FILE", type=click.Path(path_type=Path), help="write the chart")
@click.option("--plot/--no-plot", default=True, help="draw the chart in the terminal, too")
@click.option(
    "--json",
    "json_",
    metavar="FILE",
    type=click.Path(),
    help="write the results as one JSON document; - is standard output",
)
def replay(
    traces: tuple[str, ...],
    members: str,
    block: str,
    tokens: int,
    requests: int,
    capacity: str,
    dram: str,
    eviction: str,
    sync: int,
    deadline: str,
    resume: bool,
    state: Path | None,
    window: int,
    media: str,
    buffered: bool,
    seed: int,
    png: Path | None,
    plot: bool,
    json_: str | None,
) -> None:
    """Replay traces through look-up, manager and a pool of devices, and check every byte read.

    TRACE is a file of a format that `turns --trace` knows; "A+B" is one trace in two files. Several
    traces go on together. Finished requests are noted in a file: a run that was killed goes on with
    --resume and otherwise the same options, also if a member is missing, whose objects then miss.

    The hit rate counts leading blocks; beside it stands what a cache that forgets nothing has.

    Exit code 1 if a byte was wrong.
    """
    paths = _members(members)
    setting = Setting(
        members=paths,
        capacity=_value(SIZE, capacity, "--capacity"),
        dram=_value(SIZE, dram, "--dram"),
        eviction=eviction,
        media=media,
        buffered=buffered,
        sync=sync,
        deadline_s=_value(TIME, deadline, "--deadline") / 1e9,
        seed=seed,
    )
    work = read_work(traces, _sizes(block), tokens, requests)
    where = state or paths[0].with_name(paths[0].name + SUFFIX)
    tables = Console(stderr=json_ == "-")
    summary, told = _run(setting, work, where, resume, window, tables)
    chart = summary.chart()
    if plot:
        tables.print(draw_terminal(chart), highlight=False, markup=False)
    if png:
        draw_png(chart, png, f"{len(paths)} members, sync {sync or 'by the store'}")
    if json_:
        emit(dumps({**document(sys.argv[1:], [], []), "replay": told}), json_)


def _run(
    setting: Setting, work: Work, where: Path, resume: bool, window: int, tables: Console
) -> tuple[Summary, dict[str, Any]]:
    identity = {**work.identity(), "seed": setting.seed}
    with note_files.resume(where, identity) if resume else note_files.begin(where, identity) as log:
        try:
            if not log.rows:
                make_members(setting, work)
            with open_members(setting, some_missing=bool(log.rows)) as pool:
                return _walk(setting, work, pool, log, window, tables)
        except BaseException:
            if not log.rows:
                where.unlink()  # nothing was done: the same command begins anew
            raise


def _walk(
    setting: Setting, work: Work, pool: Pool, log: Notes, window: int, tables: Console
) -> tuple[Summary, dict[str, Any]]:
    for node in pool.nodes:
        if not node.readable:
            click.echo(f"{node.name} is missing, its objects miss: {node.reason}", err=True)
    walk = Walk(setting, work, pool)
    with progress_on(Console(stderr=True)) as bar:
        walk.run(log, bar("replay"))
    summary = Summary(work, log.rows, list(work.possible()), window)
    _show(tables, summary, pool.info(), walk)
    return summary, summary.to_dict(setting, walk)


# ------------------------------------------------------------------------------------ tables


def _table(*names: str, left: int = 1) -> Table:
    table = Table(*names, box=SIMPLE)
    for column in table.columns[left:]:
        column.justify = "right"
    return table


def _rates(sums: Sums) -> tuple[str, str, str, str]:
    return (
        COUNT(sums.requests),
        COUNT(sums.asked),
        SHARE(sums.hit_rate),
        SHARE(sums.possible_rate),
    )


def _show(console: Console, summary: Summary, nodes: Sequence[NodeInfo], walk: Walk) -> None:
    total = summary.sums()
    table = _table("trace", "requests", "blocks", "hit rate", "possible", "verified")
    for i, name in enumerate(summary.work.names):
        sums = summary.of_trace(i)
        table.add_row(name, *_rates(sums), SIZE_TEXT(sums.verified_bytes))
    table.add_row("all", *_rates(total), SIZE_TEXT(total.verified_bytes))
    console.print(table)
    console.print(
        f"every byte of {total.usable:,} blocks was right; {total.stored:,} blocks put, "
        f"{total.duplicate:,} were there already, {total.skipped:,} skipped",
        highlight=False,
    )
    if restarts := summary.restarts():
        console.print(_restart_table(restarts))
    console.print(_node_table(summary, nodes))
    console.print(_latency_table(walk))


def _restart_table(restarts: Sequence[Restart]) -> Table:
    table = _table("restart", "requests", "blocks", "hit rate", "possible")
    for r in restarts:
        table.add_row(f"before request {r.request + 1}", *_rates(r.before))
        table.add_row("behind it", *_rates(r.after))
    return table


def _node_table(summary: Summary, nodes: Sequence[NodeInfo]) -> Table:
    read = summary.nodes()
    table = _table("member", "state", "objects", "used", "blocks read", left=2)
    for n in nodes:
        used = f"{units.format_size(n.used_bytes)} of {units.format_size(n.data_bytes)}"
        table.add_row(n.name, n.state, COUNT(n.objects), used, COUNT(read[str(n.number)]))
    return table


def _latency_table(walk: Walk) -> Table:
    table = _table("this process", "count", "p50", "p90", "p99", "max")
    for name, series in walk.samples.to_dict().items():
        assert isinstance(series, dict)
        times = series["service_time"]
        quantiles = (TIME_TEXT(times[q]) for q in ("p50", "p90", "p99", "max"))
        table.add_row(name, COUNT(times["count"]), *quantiles)
    return table
