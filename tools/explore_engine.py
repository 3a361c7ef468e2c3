# SPDX-License-Identifier: Apache-2.0
"""The engine of the fault explorer as Python sees it: build it, run it, make a finding smaller.

The engine is a C program (tests/explore). A run of it depends on its arguments alone, so a `Case`
is all that it takes to see a finding again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FOUND = 1
OPS_MAX = 250  # of one stream, as in explore.h
LIMIT_S = 600.0  # of one call of the engine; each run in it has a limit of its own


def _environment() -> dict[str, str]:
    """Without what tools/test preloads into Python."""
    kept = dict(os.environ)
    for name in ("LD_PRELOAD", "ASAN_OPTIONS"):
        kept.pop(name, None)
    return kept


class EngineError(Exception):
    """The engine could not be built or run; the text says why."""


@dataclass(frozen=True)
class Plan:
    """A fault plan: its name, what it does, and whether each stream is run once per write."""

    name: str
    what: str
    cuts: bool


@dataclass(frozen=True)
class Case:
    """What one run depends on. `only` and `faults` list what is kept; None: all of it."""

    seed: int
    plan: str = "none"
    ops: int = 120
    policy: str = "window"
    media: str = "sim"
    cut: int = 0
    only: tuple[int, ...] | None = None
    faults: tuple[int, ...] | None = None

    def command(self) -> str:
        """What to type to see it again."""
        words = [f"tools/explore --replay {self.seed} --plan {self.plan} --ops {self.ops}"]
        if self.policy != "window":
            words.append(f"--policy {self.policy}")
        if self.media != "sim":
            words.append(f"--media {self.media}")
        if self.cut:
            words.append(f"--cut {self.cut}")
        for name, kept in (("only", self.only), ("faults", self.faults)):
            if kept is not None:
                words.append(f"--{name} {','.join(map(str, kept)) or '-'}")
        return " ".join(words)


@dataclass(frozen=True)
class Finding:
    """A promise that did not hold. `kind` is one word, such as "wrong-bytes"."""

    kind: str
    text: str
    case: Case
    op: int
    doing: str


@dataclass(frozen=True)
class Outcome:
    """What one call of the engine did; `log` is what it printed for people."""

    seeds: int
    runs: int
    writes: int
    cuts: int
    skipped: int
    digest: str
    finding: Finding | None
    log: str


@dataclass(frozen=True)
class Engine:
    """A built engine. folder: where backing files go when real media are compared."""

    program: Path
    folder: Path

    def _call(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        run = subprocess.run(
            [str(self.program), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            env=_environment(),
        )
        if run.returncode not in (0, FOUND):
            raise EngineError(run.stderr.strip() or f"the engine ended with {run.returncode}")
        return run

    def plans(self) -> list[Plan]:
        """All fault plans."""
        rows = [json.loads(line) for line in self._call(["--plans"]).stdout.splitlines()]
        return [Plan(row["plan"], row["what"], row["cuts"]) for row in rows]

    def script(self, case: Case) -> list[str]:
        """The lines of the fault script of a case, all of them."""
        arguments = ["--from", str(case.seed), "--plan", case.plan, "--script"]
        return self._call(arguments).stdout.splitlines()

    def _arguments(self, case: Case, count: int) -> list[str]:
        words = {
            "--from": case.seed,
            "--count": count,
            "--plan": case.plan,
            "--ops": case.ops,
            "--policy": case.policy,
            "--media": case.media,
            "--cut": case.cut,
            "--folder": self.folder,
        }
        arguments = [str(word) for pair in words.items() for word in pair]
        if case.only is not None:
            skipped = sorted(set(range(OPS_MAX)) - set(case.only))
            arguments += ["--skip-ops", ",".join(map(str, skipped))]
        if case.faults is not None:
            skipped = sorted(set(range(len(self.script(case)))) - set(case.faults))
            arguments += ["--skip-faults", ",".join(map(str, skipped)) or "-"]
        return arguments

    def run(self, case: Case, count: int = 1, verbose: bool = False) -> Outcome:
        """Run `count` seeds from that of the case on, up to the first finding."""
        run = self._call([*self._arguments(case, count), *(["--verbose"] if verbose else [])])
        lines = run.stdout.splitlines()
        if not lines:
            raise EngineError(f"the engine said nothing: {run.stderr.strip()}")
        row = json.loads(lines[-1])
        if "found" not in row:
            return Outcome(
                row["seeds"],
                row["runs"],
                row["writes"],
                row["cuts"],
                row["skipped"],
                row["digest"],
                None,
                run.stderr,
            )
        finding = _finding(row, case, "" if verbose else run.stderr)
        done = finding.case.seed - case.seed + 1
        return Outcome(done, done, 0, 0, 0, "", finding, run.stderr)


def _finding(row: dict[str, Any], case: Case, stderr: str) -> Finding:
    text = " ".join([row["text"], *stderr.split("\n")]).strip()
    case = replace(case, seed=row["seed"], cut=row["cut"])
    return Finding(row["found"], text, case, row["op"], row["doing"])


def build(top: Path, sanitizer: str = "") -> Path:
    """Build the engine of a source tree with make; its path. sanitizer: "", address or thread."""
    command = ["make", "--silent", "-j2", "-C", str(top / "csrc"), f"SAN={sanitizer}", "explore"]
    engine = top / "build" / "c" / (sanitizer or "plain") / "tests" / "explore" / "engine"
    if not engine.exists():
        print("explore: building the engine, once", file=sys.stderr)
    run = subprocess.run(command, capture_output=True, text=True, env=_environment())
    if run.returncode != 0:
        raise EngineError(f"the engine does not build:\n{run.stdout}{run.stderr}")
    return engine


# ------------------------------------------------------------------------------------ shrinking


def without(
    kept: tuple[int, ...], still_fails: Callable[[tuple[int, ...]], bool]
) -> tuple[int, ...]:
    """Delta debugging: leave out ever smaller pieces for as long as it still fails."""
    size = max(len(kept) // 2, 1)
    while kept:
        at, before = 0, len(kept)
        while at < len(kept):
            shorter = kept[:at] + kept[at + size :]
            if still_fails(shorter):
                kept = shorter
            else:
                at += size
        if size == 1 and len(kept) == before:
            break
        size = max(size // 2, 1)
    return kept


class Shrinker:
    """Makes a finding smaller: fewer operations, fewer faults, the same kind of failure."""

    def __init__(self, engine: Engine, finding: Finding, cuts: bool, tries: int = 600) -> None:
        self.engine = engine
        self.best = finding
        self.cuts = cuts
        self.tries = tries

    def _fails(self, case: Case) -> bool:
        """Does it, and in the same way? Left-out operations move the write to cut at: try all."""
        if self.tries <= 0:
            return False
        self.tries -= 1
        finding = self.engine.run(replace(case, cut=0) if self.cuts else case).finding
        if finding is None or finding.kind != self.best.kind:
            return False
        self.best = finding
        return True

    def run(self) -> Finding:
        """The smallest finding that the tries allow."""
        case = self.best.case
        only = case.only if case.only is not None else tuple(range(case.ops))
        upto = tuple(n for n in only if n <= self.best.op)
        if self._fails(replace(case, only=upto)):
            only = upto
        only = without(only, lambda kept: self._fails(replace(self.best.case, only=kept)))
        faults = case.faults
        if faults is None:
            faults = tuple(range(len(self.engine.script(case))))
        if faults:
            without(faults, lambda kept: self._fails(replace(self.best.case, faults=kept)))
        return self.best
