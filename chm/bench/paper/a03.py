# SPDX-License-Identifier: Apache-2.0
"""A3: objects of 16 and 32 MiB mixed in one space, under the window, against one size alone.

Objects are put, some deleted and others put in their place, so that the space is fragmented as far
as it gets; then all are read through streams. What mixing costs shows in the bandwidth, in how full
the window was when a request had to wait, and in the free extents of the space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import chm
from chm.bench.paper.claim import least, report
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import GIB, MIB, Lab
from chm.bench.paper.load import rate, stream_all

PRESET = "hymcache-proto"
DRAM = 4 * GIB  # small enough for requests to wait
SIZES = {"16 MiB": (16,), "32 MiB": (32,), "16 + 32 MiB": (16, 32)}
STREAMS = 32
SOURCE = "HyMCache: the size travels with the request, so models share one pool"


def measure(lab: Lab, part: str) -> Data:
    """One mix."""
    total = (8 if lab.quick else 24) * GIB
    rng = np.random.default_rng(lab.settings.seed)
    with (
        lab.device(PRESET, total, part, dram_bytes=DRAM) as device,
        chm.Space(device) as space,
    ):
        objects = _fill(space, part, rng, total // 2)
        for n in sorted(rng.permutation(len(objects))[::2].tolist(), reverse=True):
            space.delete(objects.pop(n))
        objects += _fill(space, part, rng, total // 4)
        device.flush(None)
        ranges = [objects[n].extent for n in rng.permutation(len(objects)).tolist()]
        stats = space.stats
        before = device.stats()
        lists = [ranges[i::STREAMS] for i in range(STREAMS)]
        ns = stream_all(device, lists, STREAMS, whole=True)
        did = device.stats() - before
    waits = did.window_waits
    return {
        "read GB/s": rate(sum(n for _, n in ranges), ns),
        "objects": len(ranges),
        "window fill when a request waited": did.fill_at_block_percent_sum / waits / 100
        if waits
        else None,
        "waits": waits,
        "free extents": stats.free_extents,
        "largest free, share of free": stats.largest_free_bytes / stats.free_bytes,
    }


def _fill(space: chm.Space, part: str, rng: Any, nbytes: int) -> list[chm.Object]:
    """Put objects of the part's sizes until so many bytes are there; nothing is filled in."""
    made = []
    while nbytes > 0:
        length = int(rng.choice(SIZES[part])) * MIB
        with space.put_begin(length) as put:
            for _ in put.pieces(None):
                pass
            made.append(put.commit())
        nbytes -= length
    return made


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """The mix against the slower of the two sizes alone."""
    rows = [{"objects of": name, **data[name]} for name in SIZES]
    mixed = data["16 + 32 MiB"]
    alone = min(data[name]["read GB/s"] for name in ("16 MiB", "32 MiB"))
    values = {
        "rate": mixed["read GB/s"] / alone,
        "fill": mixed["window fill when a request waited"],
        "fill alone": data["16 MiB"]["window fill when a request waited"],
        "largest": mixed["largest free, share of free"],
    }
    x = list(range(1, len(rows) + 1))
    curve = Curve("read", x, [row["read GB/s"] for row in rows])
    plot = Plot("1: 16 MiB, 2: 32 MiB, 3: mixed", "", "GB/s", [curve])
    return Finding(values, rows, [plot])


FIGURE = Figure(
    name="A3",
    title="ablation: 16 and 32 MiB objects in one space",
    presets=(PRESET,),
    claims=(
        least("rate", "bandwidth of the mix over the slower size alone", "", 1, 0.05, "B", SOURCE),
        report("fill", "window fill when a request waited, mixed", "", None, "D", SOURCE),
        report("fill alone", "the same, 16 MiB alone", "", None, "D", SOURCE),
        report("largest", "largest free extent over all free space, mixed", "", None, "D", SOURCE),
    ),
    calibrated="nothing",
    predicted="all of it",
    measure=measure,
    combine=combine,
    parts=lambda _: [Part(name, 1.5) for name in SIZES],
)
