# SPDX-License-Identifier: Apache-2.0
"""F2: a transparent LRU cache in front of the SSD collapses at the turn whose reads pass its size.

Every turn reads everything once, in the order in which it was written: a scan. As long as all of it
fits, each read is a hit; from the turn on where it does not, LRU throws each line away just before
it is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import chm
from chm.bench.paper.claim import Claim, most, near
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import GIB, MIB, Lab
from chm.bench.paper.load import Traffic, rate
from chm.bench.paper.turns import Conversations

PRESET = "cmmh-256g-rdma"
DRAM = 256 * GIB
TURNS = 10
STEP = 3
COUNT = 512
QUICK = 16  # quick: so many times fewer conversations and bytes of DRAM
CONCURRENCY = 64
COLLAPSE = {16: 11, 32: 7, 64: 4, 168: 3}  # MiB: first turn that is slow; 11: none
SOURCE = "HyMCache figure 5; turns by footprint"
SLOW, QUICK_SLOW = 6, 3  # turns to play from the collapse on: it stays as it is


def _turns(mib: int, quick: bool) -> int:
    return min(TURNS, COLLAPSE[mib] + (QUICK_SLOW if quick else SLOW) - 1)


def structure(quick: bool) -> dict[str, Any]:
    """The cache: 256 GiB, or a share of it with as many fewer conversations."""
    return {"policy": "lru", "dram_bytes": DRAM // (QUICK if quick else 1)}


def play(device: chm.Device, load: Conversations, turns: int) -> list[dict[str, Any]]:
    """Reads of a turn, then its writes; what each took and what the cache did."""
    traffic = Traffic(device, CONCURRENCY)
    piece = _write_piece(device, load.block)
    rows = []
    for turn in range(1, turns + 1):
        before = device.stats()
        addrs = load.reads(turn)
        ns = traffic.read(addrs, load.block, CONCURRENCY)
        read = device.stats() - before
        traffic.write(load.writes(turn), load.block, piece)
        whole = device.stats() - before
        lines = read.cache_hits + read.cache_misses
        rows.append(
            {
                "turn": turn,
                "footprint GiB": (turn - 1) * load.wave / GIB,
                "read GB/s": rate(len(addrs) * load.block, ns) if len(addrs) else None,
                "hit rate": read.cache_hits / lines if lines else None,
                "refill GiB": whole.read_bytes / GIB,
                "written back GiB": whole.write_bytes / GIB,
                "refill SSD s": whole.cache_fill_ns / 1e9,
                "write-back SSD s": whole.cache_writeback_ns / 1e9,
            }
        )
    return rows


def _write_piece(device: chm.Device, block: int) -> int:
    """Longest write that divides a block and that the landing buffer takes."""
    most_bytes = device.info.write_buffer_bytes // 2
    pieces = [block // n for n in range(1, 65) if block % n == 0 and block // n % 4096 == 0]
    return next(p for p in pieces if p <= most_bytes)


def measure(lab: Lab, part: str) -> Data:
    """One block size."""
    mib = int(part)
    load = Conversations(COUNT // (QUICK if lab.quick else 1), TURNS, STEP, mib * MIB)
    with lab.device(PRESET, load.footprint, f"{mib} MiB", **structure(lab.quick)) as device:
        return {"rows": play(device, load, _turns(mib, lab.quick))}


def collapse_turn(rows: list[dict[str, Any]]) -> int:
    """The first turn that reads at less than half of the best rate; one past the last if none."""
    best = max(row["read GB/s"] for row in rows if row["read GB/s"])
    for row in rows:
        if row["read GB/s"] and row["read GB/s"] < best / 2:
            return int(row["turn"])
    return TURNS + 1


def _values(mib: int, rows: list[dict[str, Any]]) -> dict[str, float | int]:
    turn = collapse_turn(rows)
    before = [row["read GB/s"] for row in rows if row["turn"] < turn and row["read GB/s"]]
    after = [row for row in rows if row["turn"] >= turn]
    values: dict[str, float | int] = {
        f"turn.{mib}": turn,
        f"plateau.{mib}": min(before),
    }
    if after:
        values[f"floor.{mib}"] = min(row["read GB/s"] for row in after)
        values[f"floor top.{mib}"] = max(row["read GB/s"] for row in after)
        values[f"hits.{mib}"] = max(row["hit rate"] for row in after)
    return values


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """Turns, plateaus and floors of all sizes."""
    values: dict[str, Any] = {}
    rows = []
    curves = []
    for mib in COLLAPSE:
        played = data[str(mib)]["rows"]
        values |= _values(mib, played)
        rows += [{"block MiB": mib, **row} for row in played]
        shown = [row for row in played if row["read GB/s"]]
        x = [row["turn"] for row in shown]
        curves.append(Curve(f"{mib} MiB", x, [row["read GB/s"] for row in shown]))
    return Finding(
        values,
        rows,
        [Plot("reads of a turn", "turn", "GB/s", curves), _split(data["64"]["rows"])],
        [
            "A line of the cache is 1 MiB in this preset. A turn reads first, then it writes; "
            "interleaved per conversation, the collapse comes one turn earlier.",
            f"After a collapse {SLOW} turns are played (quick: {QUICK_SLOW}), at most to turn 10.",
        ],
    )


def _split(rows: list[dict[str, Any]]) -> Plot:
    turns = [row["turn"] for row in rows]
    return Plot(
        "SSD traffic of a turn, 64 MiB blocks",
        "turn",
        "GiB",
        [
            Curve("refill (read)", turns, [row["refill GiB"] for row in rows]),
            Curve("dirty lines (written back)", turns, [row["written back GiB"] for row in rows]),
        ],
    )


def _claims() -> list[Claim]:
    out: list[Claim] = []
    for mib, turn in COLLAPSE.items():
        said = "turn of the collapse" if turn <= TURNS else "turn of the collapse (11: never)"
        grade = "D" if mib == 32 else "B"
        out.append(near(f"turn.{mib}", f"{mib} MiB: {said}", "", turn, 0, grade, SOURCE))
        out.append(
            near(
                f"plateau.{mib}",
                f"{mib} MiB: slowest turn before it",
                "GB/s",
                (23.5, 25),
                0.05,
                "B",
                SOURCE,
            )
        )
        if turn <= TURNS:
            out += _after(mib)
    return out


def _after(mib: int) -> list[Claim]:
    return [
        near(
            f"floor.{mib}",
            f"{mib} MiB: slowest turn from it on",
            "GB/s",
            (5, 6.4),
            0.15,
            "B",
            SOURCE,
        ),
        near(
            f"floor top.{mib}",
            f"{mib} MiB: fastest turn from it on",
            "GB/s",
            (5, 6.4),
            0.15,
            "B",
            SOURCE,
        ),
        most(f"hits.{mib}", f"{mib} MiB: highest hit rate from it on", "", 0.28, 0, "D", SOURCE),
    ]


_COST = {16: 3.0, 32: 5.0, 64: 8.0, 168: 17.0}

FIGURE = Figure(
    name="F2",
    title="CMM-H as a transparent LRU cache, bandwidth per turn",
    presets=(PRESET,),
    claims=_claims(),
    calibrated="the line's rate, and the number of misses in flight from the miss rate of about "
    "5 GB/s",
    predicted="the turn of the collapse of each block size, the hit rate after it, SSD traffic",
    measure=measure,
    combine=combine,
    parts=lambda _: [Part(str(mib), _COST[mib]) for mib in COLLAPSE],
)
