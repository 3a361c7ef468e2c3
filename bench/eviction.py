# SPDX-License-Identifier: Apache-2.0
"""How much of its prefixes a store that is too small keeps, under each eviction policy.

    bench/eviction.py TRACE... [--capacity 1/8,1/4,1/2] [--policy ...] [--json FILE] [--chart DIR]

Every request of a trace asks for its blocks in order, uses the leading run of hits and puts the
rest. What counts is the usable share: blocks in leading runs over blocks asked for; the resident
share counts hits behind a gap too, which nobody can use. Capacities are parts of the footprint,
the number of different blocks. Several files in one argument, joined by "+", are one trace.

Runs the C store on a simulated device (bench/eviction.c), so policies are the real ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from array import array
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

from rows import TOP, use_checkout

use_checkout()

from chm.bench.charts import Chart, Line, draw_png, draw_terminal  # noqa: E402
from chm.bench.traces import load_joined, parts_of  # noqa: E402

POLICIES = ("prefix-tail", "lru", "fifo")
TURNS = ("1", "2-4", "5-16", "17-64", "65+")
TENTHS = tuple(f"{i * 10}-{i * 10 + 10} %" for i in range(10))


@dataclass(frozen=True)
class Workload:
    """A trace as the C program reads it. buckets: turns, or tenths of a trace without turns."""

    name: str
    footprint: int
    requests: int
    blocks: int
    buckets: tuple[str, ...]
    data: bytes


@dataclass(frozen=True)
class Result:
    """One policy at one capacity; shares by bucket, None where nothing was asked for."""

    trace: str
    policy: str
    capacity: str
    objects: int
    usable: float
    resident: float
    by_bucket: tuple[float | None, ...]


def turn_bucket(turn: int) -> int:
    return sum(turn > last for last in (1, 4, 16, 64))


def read(argument: str) -> Workload:
    """Load one trace, of one file or of several in a row."""
    requests = load_joined(argument).requests
    turns = any(r.turn > 1 for r in requests)
    different: set[int] = set()
    data = bytearray()
    blocks = 0
    for i, r in enumerate(requests):
        bucket = turn_bucket(r.turn) if turns else i * 10 // len(requests)
        data += array("I", (bucket, len(r.keys))).tobytes() + array("Q", r.keys).tobytes()
        different.update(r.keys)
        blocks += len(r.keys)
    name = "+".join(path.stem for path in parts_of(argument))
    buckets = TURNS if turns else TENTHS
    return Workload(name, len(different), len(requests), blocks, buckets, bytes(data))


def run(program: Path, w: Workload, policy: str, capacity: str) -> Result:
    """One run of the C program."""
    objects = int(w.footprint * Fraction(capacity))
    command = [str(program), policy, str(objects)]
    out = subprocess.run(command, input=w.data, stdout=subprocess.PIPE, check=True).stdout
    rows = {row["bucket"]: row for row in map(json.loads, out.splitlines())}
    if sum(row["blocks"] for row in rows.values()) != w.blocks:
        raise SystemExit(f"{w.name}: the program saw other requests than it was given")
    shares = (
        rows[i]["usable"] / rows[i]["blocks"] if i in rows else None for i in range(len(w.buckets))
    )
    return Result(
        w.name,
        policy,
        capacity,
        objects,
        sum(row["usable"] for row in rows.values()) / w.blocks,
        sum(row["resident"] for row in rows.values()) / w.blocks,
        tuple(shares),
    )


def table(results: list[Result]) -> str:
    """Markdown: a row per trace, capacity and policy."""
    lines = [
        "| trace | capacity | policy | usable | resident |",
        "| --- | ---: | --- | ---: | ---: |",
    ]
    lines += [
        f"| {r.trace} | {r.capacity} = {r.objects} | {r.policy} "
        f"| {r.usable:.1%} | {r.resident:.1%} |"
        for r in results
    ]
    return "\n".join(lines)


def chart(w: Workload, capacity: str, results: list[Result]) -> Chart:
    lines = [Line(r.policy, r.by_bucket) for r in results]
    x_name = "turn" if w.buckets == TURNS else "part of the trace"
    title = f"{w.name}, capacity {capacity} of the footprint"
    return Chart(title, x_name, "usable share", w.buckets, lines)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "trace", nargs="+", help='a file of a format of chm-bench; "a+b": one trace'
    )
    parser.add_argument("--capacity", default="1/8,1/4,1/2", help="parts of the footprint")
    parser.add_argument("--policy", default=",".join(POLICIES))
    parser.add_argument("--json", type=Path, help="all results, to a file")
    parser.add_argument("--chart", type=Path, help="a PNG per trace and capacity, to a folder")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = parse(argv)
    program = TOP / "build" / "bench" / "eviction"
    subprocess.run(["make", "-s", "-C", str(TOP / "bench"), str(program)], check=True)
    results: list[Result] = []
    for argument in args.trace:
        w = read(argument)
        print(f"{w.name}: {w.requests} requests, {w.blocks} blocks, {w.footprint} different")
        for capacity in args.capacity.split(","):
            some = [run(program, w, policy, capacity) for policy in args.policy.split(",")]
            results += some
            print(draw_terminal(chart(w, capacity, some)))
            if args.chart:
                args.chart.mkdir(parents=True, exist_ok=True)
                name = f"{w.name}-{capacity.replace('/', '_')}.png"
                draw_png(chart(w, capacity, some), args.chart / name)
    print(table(results))
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
