# SPDX-License-Identifier: Apache-2.0
"""F3: the window does not care how large the footprint is, nor how large the window is.

It keeps nothing between reads, so a turn of fewer conversations is the same steady state as one of
512; that it keeps nothing is checked (no byte of the window is in use after a turn), and a smaller
and a larger run are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chm.bench.paper.claim import least, near
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import GIB, MIB, Lab
from chm.bench.paper.load import Traffic, rate, stream_all
from chm.bench.paper.turns import Conversations

PRESET = "hymcache-proto"
DRAM_GIB = (64, 16, 4)
BLOCKS = (16, 32, 64, 168)
STEP = 3
TURNS = 10
CONCURRENCY = 8  # requests at a time
WAVE = 1536 * MIB  # what a turn appends, about
CEILING = 23.0  # GB/s: min(SSD 23, link 25)
SOURCE = "HyMCache; ITME keeps 92 % with 4 GB"


def _count(mib: int, quick: bool) -> int:
    return max(WAVE // (STEP * mib * MIB) // (2 if quick else 1), 3)


def _turns(quick: bool) -> tuple[int, ...]:
    return (2, 5, TURNS) if quick else tuple(range(2, TURNS + 1))


def measure(lab: Lab, part: str) -> Data:
    """One size of the DRAM: all block sizes."""
    gib = int(part)
    rows = []
    for mib in BLOCKS:
        rows += _size(lab, gib, mib, _count(mib, lab.quick))
    twice = _size(lab, gib, 16, 2 * _count(16, lab.quick))
    return {"rows": rows, "twice": twice}


def _size(lab: Lab, gib: int, mib: int, count: int) -> list[dict[str, Any]]:
    load = Conversations(count, TURNS, STEP, mib * MIB)
    rows = []
    name = f"{gib} GiB DRAM, {mib} MiB blocks, {count} conversations"
    with lab.device(PRESET, load.footprint, name, dram_bytes=gib * GIB) as device:
        traffic = Traffic(device, STEP * count)
        for turn in range(1, TURNS + 1):
            if turn in _turns(lab.quick):
                addrs = load.reads(turn)
                each = [[(a, load.block) for a in one] for one in addrs.reshape(count, -1).tolist()]
                ns = stream_all(device, each, CONCURRENCY)
                rows.append(
                    {
                        "DRAM GiB": gib,
                        "block MiB": mib,
                        "conversations": count,
                        "turn": turn,
                        "read GB/s": rate(len(addrs) * load.block, ns),
                        "window in use after": device.stats().window_used_bytes,
                    }
                )
            traffic.write(load.writes(turn), load.block, 8 * MIB)
            device.flush(None)
    return rows


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """The slowest turn of each size of the DRAM."""
    values: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    curves = []
    for gib in DRAM_GIB:
        mine = data[str(gib)]["rows"]
        rows += mine
        values[f"worst.{gib}"] = min(row["read GB/s"] for row in mine) / CEILING
        x = sorted({row["turn"] for row in mine})
        slowest = [min(row["read GB/s"] for row in mine if row["turn"] == t) for t in x]
        curves.append(Curve(f"{gib} GiB, slowest block size", x, slowest))
    values["kept"] = sum(row["window in use after"] for row in rows)
    values["steady"] = 1 + max(_apart(data[str(gib)]) for gib in DRAM_GIB)
    notes = [
        "Fewer conversations than 512, which changes nothing: it is empty after every turn, "
        "and twice the conversations give the same rate (last line)."
    ]
    return Finding(values, rows, [Plot("window policy", "turn", "GB/s", curves)], notes)


def _apart(part: Data) -> float:
    """How far twice the conversations are from the same rate, at the last turn."""
    one = next(r for r in reversed(part["rows"]) if r["block MiB"] == 16)
    change = part["twice"][-1]["read GB/s"] / one["read GB/s"] - 1
    return float(abs(change))


FIGURE = Figure(
    name="F3",
    title="window policy: bandwidth does not depend on the footprint, 64 to 4 GiB of DRAM",
    presets=(PRESET,),
    claims=(
        *(
            least(
                f"worst.{gib}",
                f"{gib} GiB: slowest turn of all block sizes, over min(SSD, link)",
                "",
                0.9,
                0.05,
                "B" if gib == 64 else "C",
                SOURCE,
            )
            for gib in DRAM_GIB
        ),
        near("kept", "bytes that the window keeps between turns", "B", 0, 0, "D", "definition"),
        near(
            "steady",
            "change of the rate with twice the conversations, plus 1",
            "",
            1,
            0.02,
            "D",
            "steady state",
        ),
    ),
    calibrated="SSD 23 GB/s, link",
    predicted="that every turn, block size and window size reaches it",
    measure=measure,
    combine=combine,
    parts=lambda _: [Part(str(gib), 6.0) for gib in DRAM_GIB],
)
