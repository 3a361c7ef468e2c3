# SPDX-License-Identifier: Apache-2.0
"""A1: what keeps writes from disturbing reads: buffer size, flush unit, watermark, read priority.

Reads are staged ahead without a pause while a second party offers writes at a fixed rate in virtual
time; what finds the write buffer full is skipped. Each round also reads 1 MiB that nobody
announced: how long that takes is what a flush in the way costs. One knob is turned at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chm.bench.paper.claim import report, shape
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import MIB, Lab
from chm.bench.paper.load import Traffic, consecutive, rate

PRESET = "hymcache-proto"
BLOCK = 16 * MIB
DEPTH = 8
OFFERED = 6.0  # GB/s
DEMAND = MIB
SOURCE = "ours; HyMCache skips more than 15 % of its inserts in one run"
BASE: dict[str, Any] = {"write_buffer_bytes": 512 * MIB}
ARMS: dict[str, dict[str, Any]] = {
    "no writes": {},
    "default": {},
    "buffer 64 MiB": {"write_buffer_bytes": 64 * MIB},
    "buffer 2 GiB": {"write_buffer_bytes": 2048 * MIB},
    "unit 256 KiB": {"flush_unit": 256 << 10},
    "unit 4 MiB": {"flush_unit": 4 * MIB},
    "high mark 25 %": {"flush_high_percent": 25, "flush_low_percent": 12},
    "high mark 90 %": {"flush_high_percent": 90, "flush_low_percent": 45},
    "first come, first served": {"flush_policy": "fcfs"},
}


def measure(lab: Lab, part: str) -> Data:
    """One arm."""
    rounds = 60 if lab.quick else 240
    structure = BASE | ARMS[part]
    reads = rounds * DEPTH
    capacity = (2 * reads + 8) * BLOCK
    with lab.device(PRESET, capacity, part, **structure) as device:
        return _run(device, rounds, part != "no writes", reads * BLOCK)


def _run(device: Any, rounds: int, write: bool, base: int) -> Data:
    batches = (device.batch(DEPTH), device.batch(DEPTH))
    traffic = Traffic(device)
    begin = device.now()
    offered = admitted = 0
    demand = []
    under_way = None
    for i in range(rounds):
        batch = batches[i % 2].issue(
            consecutive(DEPTH, BLOCK) + np.uint64(i * DEPTH * BLOCK), BLOCK
        )
        if under_way is not None:
            under_way.wait(None)
            under_way.release()
        under_way = batch
        due = int(OFFERED * (device.now() - begin) / BLOCK) if write else 0
        for _ in range(due - offered):
            admitted += traffic.offer(base + admitted * BLOCK, BLOCK)
        offered = max(due, offered)
        asked = device.now()
        traffic.read(consecutive(1, 0) + np.uint64(base - BLOCK), DEMAND, 1)
        demand.append(device.now() - asked)
    if under_way is not None:
        under_way.wait(None)
        under_way.release()
    took = device.now() - begin
    stats = device.stats()
    return {
        "read GB/s": rate(rounds * DEPTH * BLOCK, took),
        "demand p50 ms": float(np.quantile(demand, 0.5)) / 1e6,
        "demand p99 ms": float(np.quantile(demand, 0.99)) / 1e6,
        "offered blocks": offered,
        "skipped": (offered - admitted) / offered if offered else 0.0,
        "written GB/s": rate(stats.write_bytes, took),
        "flush units before a read, most": stats.flush_inflight_at_read_max,
    }


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """Each arm against the default."""
    rows = [{"arm": name, **data[name]} for name in ARMS]
    base, alone, fcfs = data["default"], data["no writes"], data["first come, first served"]
    values: dict[str, Any] = {
        "kept": base["read GB/s"] / alone["read GB/s"],
        "fcfs": fcfs["read GB/s"] / alone["read GB/s"],
        "skipped": base["skipped"],
        "skipped fcfs": fcfs["skipped"],
        "priority": base["read GB/s"] > fcfs["read GB/s"],
        "buffer": data["buffer 64 MiB"]["skipped"] >= data["buffer 2 GiB"]["skipped"],
        "p99": base["demand p99 ms"],
    }
    x = list(range(1, len(rows) + 1))
    named = "; ".join(f"{i}: {row['arm']}" for i, row in zip(x, rows, strict=True))
    plots = [
        Plot(
            "bandwidth of reads, and what is written",
            "arm",
            "GB/s",
            [
                Curve("read", x, [row["read GB/s"] for row in rows]),
                Curve("written", x, [row["written GB/s"] for row in rows]),
            ],
        ),
        Plot(
            "reads nobody announced",
            "arm",
            "ms, p99",
            [Curve("p99", x, [row["demand p99 ms"] for row in rows])],
        ),
    ]
    return Finding(values, rows, plots, [f"Arms: {named}. Offered: {OFFERED:g} GB/s."])


FIGURE = Figure(
    name="A1",
    title="ablation: write isolation",
    presets=(PRESET,),
    claims=(
        shape("priority", "reads first reads faster than first come, first served", "B", SOURCE),
        shape("buffer", "a larger buffer skips no more than a smaller one", "D", SOURCE),
        report("kept", "reads first: bandwidth left of reads alone", "", None, "D", SOURCE),
        report("fcfs", "first come, first served: the same", "", None, "D", SOURCE),
        report("skipped", "reads first: writes skipped", "", 0.15, "B", SOURCE),
        report("skipped fcfs", "first come, first served: writes skipped", "", None, "D", SOURCE),
        report("p99", "reads first: p99 of 1 MiB that nobody announced", "ms", None, "D", SOURCE),
    ),
    calibrated="nothing",
    predicted="all of it",
    measure=measure,
    combine=combine,
    parts=lambda _: [Part(name, 1.5) for name in ARMS],
)
