# SPDX-License-Identifier: Apache-2.0
"""Job files: experiments to keep.

    # What it shows and what to expect, in the opening comment.
    [global]                    options for all jobs of the file
    experiment = turns
    media = sim

    [on]                        a job: its own options, over those of [global]
    prefetch = on
    [off]
    prefetch = off

A key is an option's name as on the command line, with - or _. Values are what the flag takes,
lists and ranges included, which make a sweep of the job. Two keys are the file's own:
`experiment` and `chart` (X:Y or X:Y:BY, several separated by blanks).
"""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chm.bench.options import ConfigError
from chm.bench.runner import Run, runs_of

GLOBAL = "global"
SUFFIX = ".ini"


@dataclass(frozen=True)
class Job:
    """One job of a file."""

    name: str
    experiment: str
    options: Mapping[str, str]
    charts: tuple[str, ...]


def load(path: Path, overrides: Mapping[str, str] | None = None) -> list[Job]:
    """Read a job file; overrides (--set) win over everything in it. Raises ConfigError, OSError."""
    parser = configparser.ConfigParser(
        default_section=GLOBAL,
        interpolation=None,
        delimiters=("=",),
        comment_prefixes=("#", ";"),
        inline_comment_prefixes=("#",),
    )
    try:
        with path.open() as f:
            parser.read_file(f, str(path))
    except configparser.Error as e:
        raise ConfigError(f"{path}: {' '.join(str(e).split())}") from e
    if not parser.sections():
        raise ConfigError(f"{path}: no job; add a section such as [turns]")
    return [_job(path, name, parser[name], overrides or {}) for name in parser.sections()]


def _job(path: Path, name: str, section: Mapping[str, str], overrides: Mapping[str, str]) -> Job:
    options = {k.replace("-", "_"): v for k, v in section.items()}
    options |= {k.replace("-", "_"): v for k, v in overrides.items()}
    experiment = options.pop("experiment", "")
    charts = tuple(options.pop("chart", "").split())
    if not experiment:
        raise ConfigError(f"{path} [{name}]: say experiment = turns (or read, rw, latency)")
    return Job(name, experiment, options, charts)


def runs(jobs: Iterable[Job]) -> list[Run]:
    """All runs of all jobs. The message of a bad option names the job."""
    out: list[Run] = []
    for job in jobs:
        try:
            out += runs_of(job.experiment, job.options, job.name, job.charts)
        except ConfigError as e:
            raise ConfigError(f"[{job.name}]: {e}") from e
    return out


def directory() -> Path | None:
    """Where job files are kept: ./bench/jobs, or that of the checkout this package is in."""
    for base in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (base / "bench" / "jobs").is_dir():
            return base / "bench" / "jobs"
    return None


def find(name: str) -> Path:
    """A job file by path, or by bare name among the kept ones."""
    path = Path(name)
    kept = directory()
    for candidate in (path, *([kept / name, kept / (name + SUFFIX)] if kept else [])):
        if candidate.is_file():
            return candidate
    raise ConfigError(
        f"no job file {name!r}" + (f", and none of that name in {kept}" if kept else "")
    )


def title(path: Path) -> str:
    """The first line of a job file's opening comment."""
    for line in path.read_text().splitlines():
        text = line.strip().lstrip("#;").strip()
        if text and not text.startswith("SPDX-"):
            return text
    return ""
