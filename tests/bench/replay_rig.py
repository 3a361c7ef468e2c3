# SPDX-License-Identifier: Apache-2.0
"""What tests of `chm-bench replay` share: small traces, a run in this process or in a child."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chm.bench.replay.notes import Row
from chm.bench.replay.walk import NAMESPACE
from chm.bench.replay.work import Work, read_work
from chm.bench.workload import turn_growth
from chm.master import LocalMaster
from chm.pool import Member, Pool

SMALL = ("--dram", "32MiB", "--no-plot", "--deadline", "120s")

# The command, telling how many requests are noted whenever some are.
CHILD = """
from chm.bench.cli import main
from chm.bench.replay.notes import Notes
add = Notes.add
def tell(self, rows):
    add(self, rows)
    print("noted", len(self.rows), flush=True)
Notes.add = tell
main()
"""


def make_traces(folder: Path) -> list[Path]:
    """Two of one format and one of the other. Conversations share prompts and take turns in an
    order that a seed gives."""
    made = [folder / name for name in ("chat.jsonl", "synthetic.jsonl", "agents.jsonl")]
    _mooncake(made[0], 1, conversations=10, turns=6, per_turn=3, prompts=2)
    _mooncake(made[1], 2, conversations=6, turns=8, per_turn=2, prompts=1)
    _agentic(made[2], 3, conversations=4, turns=12)
    return made


def _mooncake(
    path: Path, seed: int, conversations: int, turns: int, per_turn: int, prompts: int
) -> None:
    dice = random.Random(seed)
    load = turn_growth(conversations, turns, per_turn, 1)
    waiting = {c: [r for r in load.requests() if r.session == c] for c in range(conversations)}
    lines = []
    while waiting:
        c = dice.choice(sorted(waiting))
        request = waiting[c].pop(0)
        prompt = [1_000_000 + 10 * (c % prompts) + i for i in range(5)]
        ids = [*prompt, *request.keys]
        row = {"timestamp": 100 * len(lines), "input_length": 512 * len(ids), "output_length": 1}
        lines.append(json.dumps({**row, "hash_ids": ids}) + "\n")
        if not waiting[c]:
            del waiting[c]
    path.write_text("".join(lines))


def _agentic(path: Path, seed: int, conversations: int, turns: int) -> None:
    dice = random.Random(seed)
    lines = []
    for c in range(conversations):
        at, length, requests = 0.0, 16, []
        for _ in range(turns):
            requests.append({"t": at, "in": 64 * length, "out": 1, "h": [[0, 8], [8, length - 8]]})
            at += dice.expovariate(1)
            length += dice.randrange(1, 20)
        lines.append(json.dumps({"id": f"c{c}", "block_size": 64, "requests": requests}) + "\n")
    path.write_text("".join(lines))


@dataclass
class Rig:
    """One run: its traces, its two members, its progress file."""

    folder: Path
    traces: Sequence[Path]
    options: tuple[str, ...]
    tokens: int = 0
    requests: int = 0
    sizes: tuple[int, ...] = (4096,)

    @property
    def members(self) -> list[Path]:
        return [self.folder / "a.chm", self.folder / "b.chm"]

    @property
    def state(self) -> Path:
        return self.folder / "a.chm.replay"

    def work(self) -> Work:
        """What the command makes of the traces."""
        return read_work([str(t) for t in self.traces], self.sizes, self.tokens, self.requests)

    def args(self, *more: str) -> list[str]:
        """The command line; what comes later counts."""
        members = ",".join(map(str, self.members))
        return [
            "replay",
            *map(str, self.traces),
            "--members",
            members,
            *SMALL,
            *self.options,
            *more,
        ]

    def replay(self, invoke: Callable[..., Any], *more: str) -> dict[str, Any]:
        """To the end, in this process; what the JSON document says."""
        told = json.loads(invoke(*self.args(*more, "--json", "-")).stdout)["replay"]
        for row in self.rows():
            assert row.asked == row.usable + row.stored + row.duplicate + row.skipped
        return dict(told)

    def kill(self, after: int, *more: str) -> int:
        """In a child that is killed once so many requests are noted; how many are in the end."""
        command = [sys.executable, "-c", CHILD, *self.args(*more)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                word, _, count = line.partition(" ")
                if word == "noted" and int(count) >= after:
                    child.send_signal(signal.SIGKILL)
                    break
            child.stdout.read()
        assert child.returncode == -signal.SIGKILL
        return len(self.rows())

    def rows(self) -> list[Row]:
        """What is noted, without a line that was cut off."""
        text = self.state.read_text()
        return [Row(**json.loads(line)) for line in text[: text.rfind("\n")].splitlines()[1:]]

    def there(self) -> set[int]:
        """Numbers of the objects that the members have; one that is missing has none."""
        work = self.work()
        members = [Member(str(p), p, options={"dram_bytes": 32 << 20}) for p in self.members]
        with Pool(members) as pool:
            found = LocalMaster(pool, NAMESPACE).lookup([work.key(n) for n in range(work.objects)])
        return {n for n, place in enumerate(found) if place is not None}


def usable_from(work: Work, there: set[int], first: int) -> Iterator[int]:
    """What each request from the first on can use, if the cache begins with these objects and
    forgets nothing."""
    for step in work.steps[first:]:
        run = next((i for i, n in enumerate(step.objects) if n not in there), len(step.objects))
        there |= set(step.objects)
        yield run
