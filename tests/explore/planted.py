# SPDX-License-Identifier: Apache-2.0
"""A copy of the tree with a planted bug in it, and how many seeds it takes to find that.

python tests/explore/planted.py            all of them, with what was found
python tests/explore/planted.py read trim  those with one of these words in their names
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tools"), str(Path(__file__).parent)]

from bugs import BUGS, Bug  # noqa: E402
from explore_engine import Case, Engine, Finding, Plan, Shrinker, build  # noqa: E402

CHUNK = 20  # seeds under one plan before it is the next one's turn
OPS, OPS_CUTS = 120, 40


class Planted:
    """A copy of the sources, built with one bug at a time."""

    def __init__(self, folder: Path) -> None:
        self.top = folder / "tree"
        for name in ("csrc", "tests/explore"):
            shutil.copytree(TOP / name, self.top / name)
        objects = TOP / "build" / "c" / "plain" / "obj"
        if objects.is_dir():  # what is not touched need not be compiled again
            shutil.copytree(objects, self.top / "build" / "c" / "plain" / "obj")

    def engine(self, bug: Bug | None) -> Engine:
        """Build with this bug; the tree itself is as it was afterwards."""
        if bug is None:
            return Engine(build(self.top), self.top)
        file = self.top / "csrc" / bug.file
        text = file.read_text(encoding="utf-8")
        assert text.count(bug.old) == 1, f"{bug.file} has no such place any more: {bug.name}"
        file.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
        try:
            return Engine(build(self.top), self.top)
        finally:
            file.write_text(text, encoding="utf-8")
            os.utime(file)


def seeds_to_find(engine: Engine, seeds: int) -> tuple[int, Finding | None]:
    """Seeds tried, under all plans in turn, up to the first finding; at most so many each."""
    tried = 0
    for first in range(1, seeds + 1, CHUNK):
        for plan in engine.plans():
            case = Case(first, plan.name, OPS_CUTS if plan.cuts else OPS)
            outcome = engine.run(case, min(CHUNK, seeds - first + 1))
            tried += outcome.seeds
            if outcome.finding:
                return tried, outcome.finding
    return tried, None


def shrunk(engine: Engine, finding: Finding) -> Finding:
    """The finding made smaller."""
    plans: dict[str, Plan] = {plan.name: plan for plan in engine.plans()}
    return Shrinker(engine, finding, plans[finding.case.plan].cuts).run()


def main(words: list[str]) -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        planted = Planted(Path(folder))
        for bug in BUGS:
            if words and not any(word in bug.name for word in words):
                continue
            engine = planted.engine(bug)
            tried, finding = seeds_to_find(engine, 1000)
            missed += finding is None
            if finding is None:
                print(f"{bug.name}: not found in {tried} seeds", flush=True)
                continue
            small = shrunk(engine, finding)
            print(
                f"{bug.name}: {tried} seeds, plan {small.case.plan}, {small.kind}, "
                f"{len(small.case.only or ())} operations",
                flush=True,
            )
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
