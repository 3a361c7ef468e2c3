# SPDX-License-Identifier: Apache-2.0
"""chm-bench: the command line.

Rules for every command: tables go to standard output and everything else (progress, notes,
errors) to standard error. With `--json -` standard output is one JSON document or empty, whatever
happens (F88). Exit codes: 0 done, 1 a run or a check failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.table import Table

import chm
from chm import units
from chm.bench import doctor as doctor_module
from chm.bench import jobs as job_files
from chm.bench import selection
from chm.bench.campaign import Output, conduct
from chm.bench.models import MODELS, TOKENS_PER_BLOCK, block_bytes
from chm.bench.options import FILE, SETTINGS, SIZE, SWITCH, ConfigError, Option, options_of
from chm.bench.outcome import document, dumps
from chm.bench.paper.command import paper
from chm.bench.presets import preset
from chm.bench.replay.command import replay
from chm.bench.report import show_findings
from chm.bench.runner import EXPECTED, EXPERIMENTS, Experiment, runs_of
from chm.bench.sweep import emit
from chm.bench.target import scratch_directory
from chm.bench.twins import calibrate_command, twin_command

INTERRUPTED = 130


class Cli(click.Group):
    """The group: turns what may go wrong into one line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click ends quietly with 1
        except ConfigError as e:
            raise click.UsageError(str(e)) from e
        except EXPECTED as e:
            raise click.ClickException(str(e)) from e
        except KeyboardInterrupt:
            click.echo("chm-bench: interrupted", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=Cli, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(chm.__version__, prog_name="chm-bench")
def cli() -> None:
    """Measure a chm device: check the host, run experiments, sweep them, keep them as job files.

    Any option of an experiment takes a list (1MiB,16MiB) or a range (1..4, 0..30:10,
    64KiB..1MiB*4), which makes a run of every combination.
    """


def main() -> NoReturn:
    """Entry point. A termination signal ends like Ctrl-C, so that temporary files are removed."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    cli()
    raise AssertionError("click exits by itself")


# ---------------------------------------------------------------------- flags from configurations


def _flag(option: Option) -> click.Option:
    """The flag of one option; its text is parsed where job files are parsed too."""

    def complete(*args: Any) -> list[CompletionItem]:
        words = option.kind.complete() if option.kind.complete else option.kind.choices
        # The last item of a list, and the last name of items that are joined by +.
        done = re.match(r".*[,+]|", args[-1])[0]  # type: ignore[index]
        return [CompletionItem(done + c) for c in words if c.startswith(args[-1][len(done) :])]

    default = option.kind.show(option.default)
    file = option.kind is FILE
    alone: dict[str, Any] = {}
    if option.kind is SWITCH:  # --fcfs alone means --fcfs on
        alone = {"is_flag": False, "flag_value": "on"}
    return click.Option(
        [option.flag],
        metavar=option.kind.name,
        help=f"{option.help}  [{default}]" if default else option.help,
        type=click.Path() if file else str,
        multiple=option.kind is SETTINGS,
        shell_complete=None if file else complete,
        **alone,
    )


def _file_option(flag: str, help: str) -> click.Option:
    return click.Option([flag, f"{flag[2:]}_"], metavar="FILE", type=click.Path(), help=help)


def _out_option(help: str, required: bool) -> click.Option:
    kind = click.Path(file_okay=False)
    return click.Option(["--out"], metavar="DIR", type=kind, required=required, help=help)


_OUTPUT = (
    _file_option("--json", "write the results as one JSON document; - is standard output"),
    _file_option("--png", "write the chart as a PNG"),
    _file_option("--samples", "write every raw latency sample as CSV"),
    click.Option(
        ["--chart"],
        metavar="X:Y[:BY]",
        multiple=True,
        help="what to draw over several runs: options, metrics, or paths into a result",
    ),
    click.Option(["--plot/--no-plot"], default=True, help="draw charts in the terminal, too"),
)
_OUT = _out_option("keep finished runs here and do not make them again; CSV and charts too", False)
_OUT_REQUIRED = _out_option(
    "where runs are kept: started again, a sweep makes only those that are missing", True
)


def _output(values: dict[str, Any]) -> Output:
    """Take the output flags out of a command's values."""

    def path(name: str) -> Path | None:
        text = values.pop(name)
        return Path(text) if text else None

    return Output(
        command=sys.argv[1:],
        json=values.pop("json_"),
        png=path("png_"),
        samples=path("samples_"),
        out=path("out"),
        charts=values.pop("chart"),
        plot=values.pop("plot"),
    )


def _experiment_command(e: Experiment, out: click.Option) -> click.Command:
    def callback(**values: Any) -> None:
        output = _output(values)
        given = {k: " ".join(v) if isinstance(v, tuple) else v for k, v in values.items() if v}
        _conduct(lambda: runs_of(e.name, given), output)

    return click.Command(
        e.name,
        callback=callback,
        params=[*map(_flag, options_of(e.config)), *_OUTPUT, out],
        help=e.config.__doc__,
    )


def _conduct(make: Callable[[], Sequence[Any]], output: Output) -> None:
    if conduct(make(), output):
        raise click.exceptions.Exit(1)


for _e in EXPERIMENTS.values():
    cli.add_command(_experiment_command(_e, _OUT))


@cli.group()
def sweep() -> None:
    """Run the cross product of all lists and ranges given; can be interrupted and taken up again.

    chm-bench sweep turns --block-size 1MiB,16MiB --concurrency 1..8 --out DIR
    --chart concurrency:read_bytes_per_s:block_size
    """


for _e in EXPERIMENTS.values():
    sweep.add_command(_experiment_command(_e, _OUT_REQUIRED))


# ---------------------------------------------------------------------- job files


@cli.command(params=[*_OUTPUT, _OUT])
@click.argument("jobfile")
@click.option("--job", multiple=True, metavar="NAME", help="only this job; may be repeated")
@click.option("--set", "set_", multiple=True, metavar="KEY=VALUE", help="override in every job")
def run(jobfile: str, job: tuple[str, ...], set_: tuple[str, ...], **values: Any) -> None:
    """Run the jobs of JOBFILE: a path, or a name that `jobs` lists."""
    overrides: dict[str, str] = {}
    for text in set_:
        key, eq, value = text.partition("=")
        if not eq:
            raise ConfigError(f"--set {text!r}: write KEY=VALUE")
        overrides[key.strip()] = value.strip()
    loaded = job_files.load(job_files.find(jobfile), overrides)
    unknown = set(job) - {j.name for j in loaded}
    if unknown:
        raise ConfigError(f"--job: no {', '.join(sorted(unknown))} in {jobfile}")
    chosen = [j for j in loaded if not job or j.name in job]
    _conduct(lambda: job_files.runs(chosen), _output(values))


@cli.command("jobs")
@click.argument(
    "directory", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
def list_jobs(directory: Path | None) -> None:
    """List the kept job files, or those in DIRECTORY."""
    where = directory or job_files.directory()
    if where is None:
        raise click.ClickException("no bench/jobs here; name a directory")
    table = Table("file", "jobs", "what it shows")
    for path in sorted(where.glob(f"*{job_files.SUFFIX}")):
        names = ", ".join(j.name for j in job_files.load(path))
        table.add_row(path.stem, names, job_files.title(path))
    Console().print(table)


cli.add_command(preset)
cli.add_command(paper)
cli.add_command(replay)
cli.add_command(calibrate_command)
cli.add_command(twin_command)


@cli.group()
def policy() -> None:
    """Who decides: the policies that --policy of turns knows."""


@policy.command("list")
@click.option(
    "--json",
    "json_",
    metavar="FILE",
    type=click.Path(),
    help="write it as JSON; - is standard output",
)
def list_policies(json_: str | None) -> None:
    """List seam, name and meaning of every policy."""
    rows = list(selection.rows())
    table = Table("decides", "name", "what it does")
    for row in rows:
        table.add_row(*row)
    Console(stderr=json_ == "-").print(table)
    if json_:
        listed = [dict(zip(("decides", "name", "summary"), row, strict=True)) for row in rows]
        emit(dumps({**document(sys.argv[1:], [], []), "policies": listed}), json_)


# ---------------------------------------------------------------------- facts


@cli.command()
def models() -> None:
    """List the models whose KV block sizes --model knows."""
    table = Table(
        "model", "layers", "KV heads", "head dim", "per token", f"{TOKENS_PER_BLOCK} tokens"
    )
    for m in MODELS.values():
        block = units.format_size(block_bytes(m.token_bytes, TOKENS_PER_BLOCK))
        shape = (str(m.layers), str(m.kv_heads), str(m.head_dim))
        table.add_row(m.name, *shape, units.format_size(m.token_bytes), block)
    Console().print(table)


@cli.command()
@click.option(
    "--path",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="where device files will be  [the temporary directory]",
)
@click.option(
    "--dram", metavar="SIZE", default="256MiB", help="the DRAM budget to check for  [256MiB]"
)
@click.option(
    "--json",
    "json_",
    metavar="FILE",
    type=click.Path(),
    help="write the findings as JSON; - is standard output",
)
def doctor(path: Path | None, dram: str, json_: str | None) -> None:
    """Can this machine run the device: io_uring, O_DIRECT, limits, huge pages, space.

    Whatever is not ok names its fix.

    Exit code 1 if something does not work at all; warnings alone leave it 0.
    """
    try:
        budget = int(SIZE.parse(dram))
    except ValueError as e:
        raise ConfigError(f"--dram {dram!r}: {e}") from e
    findings = doctor_module.examine(path or scratch_directory(), budget)
    show_findings(Console(stderr=json_ == "-"), findings)
    failed = [f.name for f in findings if f.status == doctor_module.FAIL]
    if json_:
        doc = document(sys.argv[1:], [], [])
        doc |= {"findings": [f.to_dict() for f in findings], "ok": not failed}
        emit(dumps(doc), json_)
    if failed:
        raise click.exceptions.Exit(1)
