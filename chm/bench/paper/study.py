# SPDX-License-Identifier: Apache-2.0
"""Measure figures: their parts in several processes, longest first, and one document of it all.

The document is a function of the figures, the seed and the settings: no time of day, no host, no
duration is in it, so the same command gives the same bytes.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import chm
from chm.bench.outcome import dumps
from chm.bench.paper.catalog import figure
from chm.bench.paper.claim import Claim, Value, Verdict
from chm.bench.paper.figure import Data, Figure, Finding, Settings
from chm.bench.paper.lab import Lab

SCHEMA = "chm-paper/1"


@dataclass(frozen=True)
class Line:
    """One claim of a figure, judged. ``reason``: why a miss was expected."""

    claim: Claim
    ours: Value
    verdict: Verdict
    reason: str = ""

    @property
    def unexpected(self) -> bool:
        """A miss that nobody has explained."""
        return self.verdict is Verdict.MISSED and not self.reason


@dataclass(frozen=True)
class Result:
    """A figure, measured and judged; or why it could not be measured."""

    figure: Figure
    finding: Finding
    lines: Sequence[Line]
    runs: Sequence[Mapping[str, Any]]
    error: str = ""

    @property
    def verdict(self) -> Verdict:
        """Missed if one claim is; else the strongest that was concluded."""
        found = {line.verdict for line in self.lines}
        if self.error or Verdict.MISSED in found:
            return Verdict.MISSED
        strength = (Verdict.MET, Verdict.SHAPE, Verdict.REPORTED)
        return next((v for v in strength if v in found), Verdict.REPORTED)

    @property
    def failed(self) -> bool:
        """Whether the whole command has to say no."""
        return bool(self.error) or any(line.unexpected for line in self.lines)


@dataclass
class _Work:
    """The parts of one figure, as they come in."""

    left: int
    data: dict[str, Data] = field(default_factory=dict)
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


# What a part measured, its runs, and why it failed if it did.
Answer: TypeAlias = "tuple[Data, list[dict[str, Any]], str]"


def measure_part(name: str, part: str, settings: Settings) -> Answer:
    """Measure one part. Runs in any process."""
    lab = Lab(settings)
    try:
        return figure(name).measure(lab, part), lab.runs, ""
    except (chm.ChmError, ValueError, OSError) as e:
        return {}, lab.runs, f"{part}: {e}"


def conduct(
    figures: Sequence[Figure], settings: Settings, jobs: int, tell: Callable[[str], None]
) -> list[Result]:
    """Measure all of them. ``tell`` hears the name of each part that is done."""
    parts = [(f.name, part) for f in figures for part in f.parts(settings)]
    parts.sort(key=lambda item: -item[1].cost)
    work = {f.name: _Work(len(f.parts(settings))) for f in figures}
    for name, part, answer in _answers([(n, p.name) for n, p in parts], settings, jobs):
        data, runs, error = answer
        work[name].data[part] = data
        work[name].runs[part] = runs
        if error:
            work[name].errors[part] = error
        tell(f"{name} {part}")
    return [_result(f, work[f.name], settings) for f in figures]


def _answers(
    parts: Sequence[tuple[str, str]], settings: Settings, jobs: int
) -> Iterator[tuple[str, str, Answer]]:
    if jobs <= 1 or len(parts) == 1:
        for name, part in parts:
            yield name, part, measure_part(name, part, settings)
        return
    fresh = multiprocessing.get_context("spawn")  # a device does not survive a fork
    count = min(jobs, len(parts))
    with ProcessPoolExecutor(count, fresh, initializer=_leave_signals_to_the_parent) as pool:
        futures = {pool.submit(measure_part, n, p, settings): (n, p) for n, p in parts}
        try:
            for future in as_completed(futures):
                yield *futures[future], _answer(future, futures[future][1])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _leave_signals_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _answer(future: Future[Answer], part: str) -> Answer:
    try:
        return future.result()
    except BrokenProcessPool:
        return {}, [], f"{part}: its process ended; is there memory enough? Try --jobs 1"


def _result(f: Figure, work: _Work, settings: Settings) -> Result:
    order = [part.name for part in f.parts(settings)]
    runs = [{"part": name, **run} for name in order for run in work.runs[name]]
    if work.errors:
        lines = [_judge(f, claim, None) for claim in f.claims]
        told = "; ".join(work.errors[name] for name in order if name in work.errors)
        return Result(f, Finding({}), lines, runs, told)
    finding = f.combine({name: work.data[name] for name in order}, settings)
    lines = [_judge(f, c, finding.values[c.key]) for c in f.claims if c.key in finding.values]
    return Result(f, finding, lines, runs)


def _judge(f: Figure, claim: Claim, ours: Value) -> Line:
    verdict = claim.judge(ours)
    missed = verdict is Verdict.MISSED
    return Line(claim, ours, verdict, f.known.get(claim.key, "") if missed else "")


def document(results: Sequence[Result], settings: Settings) -> str:
    """Everything that was measured, as JSON."""
    return dumps(
        {
            "schema": SCHEMA,
            "tool": "chm-bench paper",
            "version": chm.__version__,
            "seed": settings.seed,
            "quick": settings.quick,
            "set": dict(settings.sets),
            "figures": [_plain(r) for r in results],
            "ok": not any(r.failed for r in results),
        }
    )


def _plain(r: Result) -> dict[str, Any]:
    return {
        "figure": r.figure.name,
        "title": r.figure.title,
        "presets": list(r.figure.presets),
        "calibrated": r.figure.calibrated,
        "predicted": r.figure.predicted,
        "verdict": r.verdict.value,
        "error": r.error or None,
        "claims": [_plain_line(line) for line in r.lines],
        "rows": [dict(row) for row in r.finding.rows],
        "notes": list(r.finding.notes),
        "runs": [dict(run) for run in r.runs],
    }


def _plain_line(line: Line) -> dict[str, Any]:
    c = line.claim
    return {
        "key": c.key,
        "what": c.what,
        "unit": c.unit,
        "published": [c.low, c.high],
        "published_text": c.published,
        "ours": line.ours,
        "difference": c.difference(line.ours),
        "tolerance": c.tolerance,
        "kind": c.kind.value,
        "grade": c.grade,
        "source": c.source,
        "verdict": line.verdict.value,
        "reason": line.reason or None,
    }
