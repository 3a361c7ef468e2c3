# SPDX-License-Identifier: Apache-2.0
"""Sweeps: many runs into one directory, which can be interrupted and taken up again.

    DIR/runs/<digest>.json    one finished run each; a run whose file exists is not made again
    DIR/results.json          all of them, in order, as one document
    DIR/results.csv           one line per run: axes, then metrics
    DIR/<y>-over-<x>.png      charts

The digest covers experiment, configuration and version, so that a changed option or another version
runs anew. A failed run leaves no file and is made again next time.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chm
from chm.bench import options
from chm.bench.charts import Chart, Line
from chm.bench.options import ConfigError
from chm.bench.runner import Run


def digest(run: Run) -> str:
    """What makes two runs the same run."""
    config = run.case.config
    what = [run.experiment.name, run.name, chm.__version__, options.to_json(config)]
    if config.preset:  # its file may have changed
        what.append(config.load_preset().digest)
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: other readers and a crash see the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def emit(text: str, where: str) -> None:
    """Write a document to a file, whole or not at all, or to standard output."""
    if where == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_text(Path(where), text)


@dataclass(frozen=True)
class Store:
    """The directory of a sweep."""

    where: Path

    def __post_init__(self) -> None:
        (self.where / "runs").mkdir(parents=True, exist_ok=True)

    def _file(self, run: Run) -> Path:
        return self.where / "runs" / f"{digest(run)}.json"

    def finished(self, run: Run) -> dict[str, Any] | None:
        """The result of an earlier run, if it is whole."""
        try:
            result = json.loads(self._file(run).read_text())
        except (OSError, ValueError):
            return None
        return result if isinstance(result, dict) else None

    def keep(self, run: Run, result: Mapping[str, Any]) -> None:
        """Write a finished run down."""
        write_text(self._file(run), json.dumps(result, indent=1))


def table(results: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Header and lines of the CSV: name, experiment, the axes of the sweep, then every metric."""
    results = list(results)
    axes = list(dict.fromkeys(a for r in results for a in r["axes"]))
    metrics = list(dict.fromkeys(m for r in results for m in r["metrics"]))
    lines = [
        [r["name"], r["experiment"]]
        + [r["axes"].get(a, "") for a in axes]
        + [r["metrics"].get(m) for m in metrics]
        for r in results
    ]
    return ["name", "experiment", *axes, *metrics], lines


def write_csv(path: Path, results: Iterable[Mapping[str, Any]]) -> None:
    """One line per run."""
    header, lines = table(results)
    with path.open("w", newline="") as f:
        out = csv.writer(f)
        out.writerow(header)
        out.writerows(lines)


def value_of(result: Mapping[str, Any], name: str) -> Any:
    """An axis or figure of a result: a metric, a configuration value, or a path such as
    latency.request_read.service_time.p99 into the result."""
    for place in (result["metrics"], result["axes"], result["config"]):
        if name in place:
            return place[name]
    at: Any = result
    rest = name
    while rest:
        if not isinstance(at, Mapping):
            raise ConfigError(f"chart: a result has no {name!r}")
        part, _, behind = rest.partition(".")
        if rest in at:  # a key with a dot of its own, such as p99.9
            part, behind = rest, ""
        if part not in at:
            raise ConfigError(f"chart: a result has no {name!r}")
        at, rest = at[part], behind
    return at


def chart(results: Sequence[Mapping[str, Any]], spec: str) -> Chart:
    """A chart of any two axes: `X:Y` or `X:Y:BY`, one line per value of BY."""
    x_name, _, rest = spec.partition(":")
    y_name, _, by = rest.partition(":")
    if not x_name or not y_name:
        raise ConfigError(
            f"chart {spec!r}: write X:Y or X:Y:BY, such as concurrency:read_bytes_per_s"
        )
    xs = list(dict.fromkeys(str(value_of(r, x_name)) for r in results))
    lines: dict[str, dict[str, float | None]] = {}
    for r in results:
        name = f"{by}={value_of(r, by)}" if by else y_name
        y = value_of(r, y_name)
        lines.setdefault(name, {})[str(value_of(r, x_name))] = None if y is None else float(y)
    drawn = [Line(name, [points.get(x) for x in xs]) for name, points in lines.items()]
    return Chart(f"{len(results)} runs", x_name, y_name, xs, drawn)
