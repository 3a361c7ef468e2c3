# SPDX-License-Identifier: Apache-2.0
"""A2: where the SSD time of the LRU device goes, turn by turn: refills, and dirty lines written
back, be it to make room or while nothing else is to do.

The load of F2 with 64 MiB blocks, with 1/8 of its conversations and of its cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from chm.bench.paper import f02
from chm.bench.paper.claim import report, shape
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import MIB, Lab
from chm.bench.paper.turns import Conversations

SHARE = 8
BLOCK = 64 * MIB
TURNS = 7
BEFORE, AFTER = 3, 5  # a turn of each kind


def measure(lab: Lab, part: str) -> Data:
    """A few turns before and after the collapse."""
    share = SHARE * (2 if lab.quick else 1)
    load = Conversations(f02.COUNT // share, TURNS, f02.STEP, BLOCK)
    structure = f02.structure(False) | {"dram_bytes": f02.DRAM // share}
    with lab.device(f02.PRESET, load.footprint, **structure) as device:
        return {"rows": f02.play(device, load, TURNS)}


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """Shares of the SSD time of a turn after the collapse."""
    rows = data["all"]["rows"]
    by_turn = {row["turn"]: row for row in rows}
    after = by_turn[AFTER]
    refill, evict = after["refill SSD s"], after["write-back SSD s"]
    read_back = after["refill GiB"]
    wave = by_turn[2]["footprint GiB"]
    values = {
        "refills": refill / (refill + evict),
        "evictions": evict / (refill + evict),
        "refill per write": read_back / wave,
        "none before": by_turn[BEFORE]["refill GiB"] == 0,
        "both after": refill > 0 and evict > 0,
    }
    turns = [row["turn"] for row in rows]
    curves = [
        Curve("refills", turns, [row["refill SSD s"] for row in rows]),
        Curve("dirty lines written back", turns, [row["write-back SSD s"] for row in rows]),
    ]
    notes = [
        "Time is summed over fills and write-backs, so what runs side by side counts twice.",
    ]
    return Finding(values, rows, [Plot("SSD time of a turn", "turn", "s", curves)], notes)


FIGURE = Figure(
    name="A2",
    title="ablation: what the LRU device's SSD does after the collapse",
    presets=(f02.PRESET,),
    claims=(
        shape("none before", "no refill before the collapse", "D", "LRU that fits"),
        shape(
            "both after",
            "refills and dirty lines written back after it",
            "D",
            "LRU that does not fit",
        ),
        report("refills", "share of refills in the SSD time, turn 5", "", None, "D", "ours"),
        report("evictions", "share of dirty lines written back", "", None, "D", "ours"),
        report(
            "refill per write", "bytes refilled for a byte appended, turn 5", "", None, "D", "ours"
        ),
    ),
    calibrated="nothing beyond F2",
    predicted="all of it",
    measure=measure,
    combine=combine,
    parts=lambda _: [Part("all", 3.0)],
)
