# SPDX-License-Identifier: Apache-2.0
"""Make a list of runs and put their results where the user wants them.

Every command that measures ends here: `turns` with one run, a sweep or a job file with many. A
run that fails does not stop the others; it is listed under "failures" and makes the exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

import chm
from chm import units
from chm.bench import sweep
from chm.bench.charts import Chart, draw_png, draw_terminal
from chm.bench.measure import Samples, write_samples
from chm.bench.options import ConfigError
from chm.bench.outcome import compare, document, dumps
from chm.bench.report import show_failures, show_result, show_versus
from chm.bench.runner import EXPECTED, Run, RunFailed, run_one
from chm.bench.ui import Progress, progress_on
from chm.bench.versus import comparisons


@dataclass(frozen=True)
class Output:
    """Where results go."""

    command: Sequence[str] = ()
    json: str | None = None
    png: Path | None = None
    samples: Path | None = None
    out: Path | None = None
    charts: Sequence[str] = ()
    plot: bool = True

    @property
    def tables(self) -> Console:
        """For people: standard output, unless a document goes there."""
        return Console(stderr=self.json == "-")


@dataclass
class Campaign:
    """Runs made so far."""

    results: list[dict[str, Any]] = field(default_factory=list)
    charts: dict[str, Chart] = field(default_factory=dict)
    samples: dict[str, Samples] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)


def conduct(runs: Sequence[Run], output: Output) -> list[dict[str, Any]]:
    """Make the runs and write everything out. Returns the failures."""
    done = Campaign()
    store = sweep.Store(output.out) if output.out else None
    _check_charts(runs, output)
    errors = Console(stderr=True)
    with progress_on(errors) as bar:
        for number, run in enumerate(runs, 1):
            tick = bar(f"{run.name} ({number}/{len(runs)})")
            _one(run, store, done, tick)
    if not (
        comparisons(done.results) and all(r["axes"].keys() == {"policy"} for r in done.results)
    ):
        for result in done.results:
            _show(result, done, output)
    for versus in comparisons(done.results):
        show_versus(output.tables, versus, draw_terminal(versus.chart()) if output.plot else "")
    dram = compare(done.results)
    if not dram["equal_dram"]:
        used = sorted(dram["dram_total_bytes"].values())
        spread = f"{units.format_size(used[0])} to {units.format_size(used[-1])}"
        errors.print(f"note: these runs used different amounts of DRAM: {spread}", style="yellow")
    show_failures(errors, done.failures)
    _write(runs, done, output)
    return done.failures


def _one(run: Run, store: sweep.Store | None, done: Campaign, tick: Progress) -> None:
    kept = store.finished(run) if store else None
    if kept is not None:
        done.results.append(kept)
        return
    try:
        result = run_one(run, tick)
    except (*EXPECTED, RunFailed) as e:
        if isinstance(e, BrokenPipeError):
            raise
        measured = e.result.to_dict() if isinstance(e, RunFailed) else None
        told = {"name": run.name, "error": str(e), "kind": type(e).__name__, "result": measured}
        done.failures.append(told)
        return
    plain = result.to_dict()
    done.results.append(plain)
    done.samples[run.name] = result.outcome.samples
    if result.outcome.chart:
        done.charts[run.name] = result.outcome.chart
    if store:
        store.keep(run, plain)


def _show(result: dict[str, Any], done: Campaign, output: Output) -> None:
    chart = done.charts.get(result["name"])
    single = output.plot and chart is not None and len(done.results) == 1
    show_result(output.tables, result, draw_terminal(chart) if single and chart else "")


def _check_charts(runs: Sequence[Run], output: Output) -> None:
    """A chart that cannot be drawn is better known before hours of runs than after."""
    for spec in _specs(runs, output):
        if ":" not in spec:
            raise ConfigError(f"chart {spec!r}: write X:Y or X:Y:BY")


def _asked(runs: Sequence[Run], output: Output) -> list[str]:
    return [*output.charts, *(c for run in runs for c in run.charts)]


def _specs(runs: Sequence[Run], output: Output) -> list[str]:
    """What to draw over several runs: what was asked for, or the read rate over the first axis."""
    asked = _asked(runs, output)
    if asked or len(runs) < 2:
        return list(dict.fromkeys(asked))
    axes = list(runs[0].case.axes) or ["name"]
    metric = "moved_bytes_per_s" if runs[0].experiment.name == "latency" else "read_bytes_per_s"
    return [":".join([axes[0], metric, *axes[1:2]])]


def _write(runs: Sequence[Run], done: Campaign, output: Output) -> None:
    charts = [sweep.chart(done.results, s) for s in _specs(runs, output)] if done.results else []
    versus = [] if _asked(runs, output) else [v.chart() for v in comparisons(done.results)]
    charts = versus or charts
    for chart in charts:
        if output.plot and not versus:
            output.tables.print(draw_terminal(chart), highlight=False, markup=False)
    drawn = charts or list(done.charts.values())
    if output.png and drawn:
        draw_png(drawn[0], output.png, _note(done))
    if output.samples:
        write_samples(output.samples, done.samples)
    text = dumps(document(output.command, done.results, done.failures))
    if output.out:
        _write_directory(output.out, text, drawn, done)
    if output.json == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    elif output.json:
        sweep.write_text(Path(output.json), text)


def _write_directory(where: Path, text: str, charts: Sequence[Chart], done: Campaign) -> None:
    sweep.write_text(where / "results.json", text)
    sweep.write_csv(where / "results.csv", done.results)
    for chart in charts:
        name = f"{chart.y_name}-over-{chart.x_name}.png".replace(" ", "-").replace("/", "-")
        draw_png(chart, where / name, _note(done))


def _note(done: Campaign) -> str:
    """What a chart says below itself: the medium, the CPU, the seed."""
    first = done.results[0]
    device, host = first["device"], first["host"]
    clock = "virtual time" if device["clock"] == "virtual" else host["cpu"]
    return f"media {device['media']}, {clock}, seed {first['seed']}, chm {chm.__version__}"
