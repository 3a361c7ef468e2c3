# SPDX-License-Identifier: Apache-2.0
"""The experiments by name, and how a list of runs becomes results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import chm
from chm.bench import latency, rw, streams, turns
from chm.bench.config import DeviceConfig
from chm.bench.options import Case, ConfigError, cases
from chm.bench.outcome import Outcome, Result
from chm.bench.payload import PayloadMismatch
from chm.bench.target import BenchError
from chm.bench.traces import TraceError
from chm.bench.ui import Progress
from chm.policies import PolicyError


@dataclass(frozen=True)
class Experiment:
    """A configuration class and what runs it."""

    name: str
    config: type[DeviceConfig]
    run: Callable[[Any, Progress], Outcome]


EXPERIMENTS: dict[str, Experiment] = {
    e.name: e
    for e in (
        Experiment("turns", turns.TurnsConfig, turns.run),
        Experiment("read", streams.ReadConfig, streams.run),
        Experiment("rw", rw.RwConfig, rw.run),
        Experiment("latency", latency.LatencyConfig, latency.run),
    )
}

# What a run may end with: shown as one line. Anything else is a bug and shows its traceback.
EXPECTED = (
    BenchError,
    ConfigError,
    PolicyError,
    TraceError,
    PayloadMismatch,
    chm.ChmError,
    OSError,
)


class RunFailed(Exception):
    """A run ended, but one of its checks did not hold. `result` is what it measured."""

    def __init__(self, result: Result) -> None:
        super().__init__("; ".join(result.outcome.failed_checks))
        self.result = result


@dataclass(frozen=True)
class Run:
    """One run to make."""

    experiment: Experiment
    case: Case[Any]
    charts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Unique within one invocation."""
        return self.case.name


def runs_of(
    experiment: str, given: Mapping[str, str], name: str = "", charts: Iterable[str] = ()
) -> list[Run]:
    """The runs that the given options (lists and ranges included) describe."""
    if experiment not in EXPERIMENTS:
        raise ConfigError(f"no experiment {experiment!r}; there are {', '.join(EXPERIMENTS)}")
    e = EXPERIMENTS[experiment]
    return [Run(e, case, tuple(charts)) for case in cases(e.config, given, name or experiment)]


def run_one(run: Run, tick: Progress) -> Result:
    """Make one run. Raises one of EXPECTED, or RunFailed for a check that did not hold."""
    outcome = run.experiment.run(run.case.config, tick)
    result = Result(run.name, run.experiment.name, run.case.config, run.case.axes, outcome)
    if outcome.failed_checks:
        raise RunFailed(result)
    return result
