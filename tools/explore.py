# SPDX-License-Identifier: Apache-2.0
"""tools/explore: seeds x fault plans over random operations, checked against a model.

Exit code 0: every promise held; 1: something was found; 2: bad usage, or it could not be run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from explore_engine import OPS_MAX, Case, Engine, EngineError, Finding, Plan, Shrinker, build
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

TOP = Path(__file__).resolve().parent.parent
CHUNK = 200  # seeds of one call of the engine; fewer where each is run once per write
CHUNK_CUTS = 25
OPS = 120
OPS_CUTS = 40  # a stream that is cut at every write is run that often, so it is shorter
OPS_DEFAULT = f"[default: {OPS}; {OPS_CUTS} where each is cut at every write]"


@dataclass
class Count:
    """What was done under one plan and policy."""

    seeds: int = 0
    runs: int = 0
    writes: int = 0
    cuts: int = 0
    skipped: int = 0
    found: int = 0


@dataclass
class Sweep:
    """Seeds from `first` on: `seeds` of them for each plan and policy, or for `seconds`."""

    engine: Engine
    cases: list[tuple[Plan, Case]]
    first: int
    seeds: int
    seconds: float
    found_max: int
    counts: dict[str, Count] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def tasks(self) -> Iterator[tuple[Case, int]]:
        """Chunks of seeds, all plans in turn."""
        end = self.first + self.seeds if not self.seconds else sys.maxsize
        at = dict.fromkeys(range(len(self.cases)), self.first)
        while at:
            for n in list(at):
                plan, case = self.cases[n]
                count = min(CHUNK_CUTS if plan.cuts else CHUNK, end - at[n])
                if count <= 0:
                    del at[n]
                    continue
                yield replace(case, seed=at[n]), count
                at[n] += count

    def call(self, case: Case, count: int) -> None:
        """One chunk; goes on behind each finding."""
        end = case.seed + count
        while case.seed < end and len(self.findings) < self.found_max:
            outcome = self.engine.run(case, end - case.seed)
            total = self.counts.setdefault(f"{case.plan}/{case.policy}", Count())
            total.seeds += outcome.seeds
            total.runs += outcome.runs
            total.writes += outcome.writes
            total.cuts += outcome.cuts
            total.skipped += outcome.skipped
            if outcome.finding:
                total.found += 1
                self.findings.append(outcome.finding)
            case = replace(case, seed=case.seed + outcome.seeds)

    def run(self, jobs: int, progress: Progress) -> None:
        total = None if self.seconds else self.seeds * len(self.cases)
        bar = progress.add_task("seeds", total=total)
        stop = time.monotonic() + (self.seconds or float("inf"))
        running: dict[Future[None], int] = {}
        tasks = self.tasks()
        with ThreadPoolExecutor(jobs) as pool:
            while True:
                while len(running) < jobs and time.monotonic() < stop:
                    task = next(tasks, None)
                    if task is None or len(self.findings) >= self.found_max:
                        break
                    running[pool.submit(self.call, *task)] = task[1]
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    progress.advance(bar, running.pop(future))
                    future.result()


# ------------------------------------------------------------------------------------ reports


def explain(engine: Engine, finding: Finding) -> dict[str, Any]:
    """All that there is to know of a finding, for people and for JSON."""
    case = finding.case
    script = engine.script(case)
    kept = range(len(script)) if case.faults is None else case.faults
    return {
        "kind": finding.kind,
        "text": finding.text,
        "seed": case.seed,
        "plan": case.plan,
        "policy": case.policy,
        "cut": case.cut,
        "doing": finding.doing,
        "faults": [script[n] for n in kept],
        "stream": engine.run(case, verbose=True).log.splitlines(),
        "command": case.command(),
    }


def print_finding(console: Console, row: dict[str, Any]) -> None:
    console.print(f"[bold red]{row['kind']}[/]: {row['text']}", highlight=False)
    if row["faults"]:
        console.print(f"faults (I/O, kind, what): {'; '.join(row['faults'])}", highlight=False)
    console.print("\n".join(row["stream"]), highlight=False, markup=False)
    console.print(f"replay: {row['command']}\n", highlight=False, soft_wrap=True)


def print_counts(console: Console, sweep: Sweep, seconds: float) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("plan/policy", "seeds", "runs", "writes", "cuts", "skipped", "found"):
        table.add_column(name, justify="left" if name == "plan/policy" else "right")
    for name, c in sorted(sweep.counts.items()):
        row = (c.seeds, c.runs, c.writes, c.cuts, c.skipped, c.found)
        table.add_row(name, *map(str, row))
    console.print(table)
    seeds = sum(c.seeds for c in sweep.counts.values())
    runs = sum(c.runs for c in sweep.counts.values())
    console.print(
        f"{seeds} seeds, {runs} runs in {seconds:.1f} s, {runs / max(seconds, 1e-9):.0f} runs/s: "
        f"{len(sweep.findings) or 'nothing'} found",
        highlight=False,
    )


# ------------------------------------------------------------------------------------ command


def numbers(text: str | None) -> tuple[int, ...] | None:
    """ "3,4,7", or "-" for none at all."""
    if text is None:
        return None
    try:
        return tuple(int(word) for word in text.split(",") if word != "-")
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers") from None


def chosen_plans(engine: Engine, names: str) -> list[Plan]:
    """The plans that are named; "all" for all of them."""
    known = {plan.name: plan for plan in engine.plans()}
    wanted = list(known) if names == "all" else names.split(",")
    if unknown := [name for name in wanted if name not in known]:
        raise click.BadParameter(f"no plan {unknown[0]!r}: {', '.join(known)}")
    return [known[name] for name in wanted]


def length(given: int | None, plan: Plan) -> int:
    """Operations of a stream: a replay without --ops is of the stream that a sweep runs."""
    return min(max(given or (OPS_CUTS if plan.cuts else OPS), 1), OPS_MAX)


def replay(engine: Engine, console: Console, case: Case, as_json: bool) -> int:
    """Run one case and show what it does."""
    outcome = engine.run(case, verbose=True)
    if outcome.finding:
        row = explain(engine, replace(outcome.finding, text=outcome.finding.text))
        print(json.dumps(row, indent=1)) if as_json else print_finding(console, row)
        return 1
    if as_json:
        print(json.dumps({"found": None, "stream": outcome.log.splitlines()}, indent=1))
    else:
        console.print(outcome.log, highlight=False, markup=False)
        console.print("every promise held")
    return 0


def sweep_all(sweep: Sweep, jobs: int, shrink: bool, as_json: bool, console: Console) -> int:
    """Run it, make what was found smaller, report."""
    begin = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        sweep.run(jobs, progress)
    seconds = time.monotonic() - begin
    cuts = {plan.name: plan.cuts for plan, _ in sweep.cases}
    rows = []
    for finding in sweep.findings:
        if shrink:
            finding = Shrinker(sweep.engine, finding, cuts[finding.case.plan]).run()
        rows.append(explain(sweep.engine, finding))
        if not as_json:
            print_finding(console, rows[-1])
    if as_json:
        counts = {name: vars(count) for name, count in sorted(sweep.counts.items())}
        print(json.dumps({"seconds": seconds, "counts": counts, "found": rows}, indent=1))
    else:
        print_counts(console, sweep, seconds)
    return 1 if rows else 0


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seeds", default=200, show_default=True, help="Seeds for each plan and policy.")
@click.option("--from", "first", default=1, show_default=True, help="The first seed.")
@click.option("--time", "seconds", default=0.0, help="Go on for so many seconds instead.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Engines at once.")
@click.option("--ops", type=int, help=f"Operations of a stream, at most {OPS_MAX}.  {OPS_DEFAULT}")
@click.option("--plan", default="all", show_default=True, help="Fault plans, comma separated.")
@click.option("--policy", default="window", show_default=True, help="Cache policies.")
@click.option("--media", default="sim", show_default=True, help="Compare media: sync,uring,sim.")
@click.option("--replay", "replayed", type=int, help="Run this one seed and show what it does.")
@click.option("--only", help="Of a replay: the operations to run, by number.")
@click.option("--faults", help="Of a replay: the lines of the fault script to keep.")
@click.option("--cut", default=0, help="Of a replay: cut the power at this write.")
@click.option("--found-max", default=5, show_default=True, help="Stop after so many findings.")
@click.option("--no-shrink", is_flag=True, help="Report findings as they are.")
@click.option("--list", "listed", is_flag=True, help="List the fault plans.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def main(**o: Any) -> None:
    console = Console(stderr=o["as_json"])
    try:
        with tempfile.TemporaryDirectory(dir=TOP / "build" if o["media"] != "sim" else None) as tmp:
            engine = Engine(build(TOP), Path(tmp))
            sys.exit(run(engine, console, o))
    except EngineError as error:
        click.echo(f"explore: {error}", err=True)
        sys.exit(2)


def run(engine: Engine, console: Console, o: dict[str, Any]) -> int:
    """What the options ask for; the exit code."""
    if o["listed"]:
        for plan in engine.plans():
            console.print(f"{plan.name:12} {plan.what}", highlight=False)
        return 0
    names = o["plan"]
    if o["media"] != "sim" or (o["replayed"] is not None and names == "all"):
        names = "none" if names == "all" else names
    plans = chosen_plans(engine, names)
    if o["replayed"] is not None:
        ops = length(o["ops"], plans[0])
        case = Case(o["replayed"], plans[0].name, ops, o["policy"], o["media"], o["cut"])
        case = replace(case, only=numbers(o["only"]), faults=numbers(o["faults"]))
        return replay(engine, console, case, o["as_json"])
    cases = [
        (plan, Case(0, plan.name, length(o["ops"], plan), policy, o["media"]))
        for policy in o["policy"].split(",")
        for plan in plans
    ]
    sweep = Sweep(engine, cases, o["first"], o["seeds"], o["seconds"], o["found_max"])
    return sweep_all(sweep, o["jobs"], not o["no_shrink"], o["as_json"], console)


if __name__ == "__main__":
    main(prog_name="tools/explore")
