# SPDX-License-Identifier: Apache-2.0
"""F1: what a turn reads and writes. Exact, from the device's own counters."""

from __future__ import annotations

from collections.abc import Mapping

from chm.bench.paper.claim import near
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import MIB, Lab
from chm.bench.paper.load import Stager, Traffic
from chm.bench.paper.turns import Conversations

PRESET = "hymcache-proto"
STEP = 3
TURNS = 10
BLOCK = 16 * MIB
SOURCE = "HyMCache figures 3 and 4; the workload is derived"


def _load(settings: Settings) -> Conversations:
    return Conversations(64 if settings.quick else 512, TURNS, STEP, BLOCK)


def measure(lab: Lab, part: str) -> Data:
    """Counters of the device before and after each phase of each turn."""
    load = _load(lab.settings)
    rows = []
    with lab.device(PRESET, load.footprint, read_unit=BLOCK // 2) as device:
        stager, traffic = Stager(device, 64), Traffic(device)
        for turn in range(1, TURNS + 1):
            before = device.stats()
            stager.read(load.reads(turn), BLOCK)
            read = device.stats() - before
            traffic.write(load.writes(turn), BLOCK)
            device.flush(None)
            whole = device.stats() - before
            rows.append(
                {
                    "turn": turn,
                    "blocks read": read.read_bytes / BLOCK,
                    "blocks staged": read.staged_bytes / BLOCK,
                    "ranges read again": read.shared,
                    "blocks written": whole.committed_bytes / BLOCK,
                    "blocks to SSD": whole.write_bytes / BLOCK,
                    "bytes rewritten": whole.superseded_bytes,
                }
            )
    return {"rows": rows, "conversations": load.count}


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """Compare every turn with (t - 1) k; the values are sums of what is off."""
    rows, count = data["all"]["rows"], data["all"]["conversations"]
    per_turn = STEP * count
    asked = [(row["turn"] - 1) * per_turn for row in rows]
    turns = [row["turn"] for row in rows]
    values = {
        "reads": sum(row["blocks read"] == n for row, n in zip(rows, asked, strict=True)),
        "once": sum(row["blocks staged"] == n for row, n in zip(rows, asked, strict=True)),
        "writes": sum(row["blocks to SSD"] == per_turn for row in rows),
        "rewrites": sum(row["bytes rewritten"] for row in rows),
        "last": rows[-1]["blocks read"] / per_turn,
    }
    curves = [
        Curve("read", turns, [row["blocks read"] for row in rows]),
        Curve("written", turns, [row["blocks to SSD"] for row in rows]),
        Curve("published", turns, asked, published=True),
    ]
    plot = Plot(f"{count} conversations, {STEP} blocks per turn", "turn", "blocks", curves)
    return Finding(values, rows, [plot])


FIGURE = Figure(
    name="F1",
    title="traffic per turn: reads grow with the turn, writes do not",
    presets=(PRESET,),
    claims=(
        near("reads", "turns whose SSD reads are (t-1) k blocks", "turns", TURNS, 0, "B", SOURCE),
        near("once", "turns in which each block is staged once", "turns", TURNS, 0, "B", SOURCE),
        near("writes", "turns that write k blocks to SSD", "turns", TURNS, 0, "B", SOURCE),
        near("rewrites", "bytes written a second time", "B", 0, 0, "B", SOURCE),
        near("last", "turn 10 reads, over what it writes", "", TURNS - 1, 0, "D", SOURCE),
    ),
    calibrated="nothing: these are counts",
    predicted="all of it, from the device's counters",
    measure=measure,
    combine=combine,
    parts=lambda _: (Part("all", 3.0),),
)
