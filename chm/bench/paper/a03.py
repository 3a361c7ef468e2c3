# SPDX-License-Identifier: Apache-2.0
"""A3: objects of 16 and 32 MiB mixed in one space, under the window, against one size alone.

Objects are put until the space refuses one, half of them are deleted at random, and others are put
in their place until one is refused again. Then all are read, with more requests than the window has
room for. What mixing costs shows in the bandwidth, in how full the window was when a request had to
wait, and in how full the space was when it refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import chm
from chm.bench.paper.claim import least, report
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import GIB, MIB, Lab
from chm.bench.paper.load import in_order, rate

PRESET = "hymcache-proto"
DRAM = GIB  # small enough for requests to wait
SIZES = {"16 MiB": (16,), "32 MiB": (32,), "16 + 32 MiB": (16, 32)}
AHEAD = 128  # requests: more than the window has room for
SOURCE = "HyMCache: the size travels with the request, so models share one pool"


def measure(lab: Lab, part: str) -> Data:
    """One mix."""
    total = (4 if lab.quick else 16) * GIB
    rng = np.random.default_rng(lab.settings.seed)
    with (
        lab.device(PRESET, total, part, dram_bytes=DRAM, write_buffer_bytes=DRAM // 8) as device,
        chm.Space(device) as space,
    ):
        objects = _fill(space, part, rng)
        for n in sorted(rng.permutation(len(objects))[::2].tolist(), reverse=True):
            space.delete(objects.pop(n))
        objects += _fill(space, part, rng)
        device.flush(None)
        extents = [objects[n].extent for n in rng.permutation(len(objects)).tolist()]
        stats = space.stats
        before = device.stats()
        ns = in_order(device, extents, AHEAD)
        did = device.stats() - before
    waits = did.window_waits
    return {
        "read GB/s": rate(sum(n for _, n in extents), ns),
        "objects": len(extents),
        "window fill when a request waited": did.fill_at_block_percent_sum / waits / 100
        if waits
        else None,
        "requests that waited": waits,
        "space used when a put was refused": stats.used_bytes / stats.total_bytes,
        "free extents": stats.free_extents,
        "largest free, of all free": stats.largest_free_bytes / max(stats.free_bytes, 1),
    }


def _fill(space: chm.Space, part: str, rng: np.random.Generator) -> list[chm.Object]:
    """Put objects of the part's sizes, drawn, until one is refused; nothing is filled in."""
    made: list[chm.Object] = []
    while True:
        try:
            put = space.put_begin(int(rng.choice(SIZES[part])) * MIB)
        except chm.DeviceFull:
            return made
        for _ in put.pieces(None):
            pass
        made.append(put.commit())


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """The mix against the slower of the two sizes alone."""
    rows = [{"objects of": name, **data[name]} for name in SIZES]
    mixed = data["16 + 32 MiB"]
    alone = min(data[name]["read GB/s"] for name in ("16 MiB", "32 MiB"))
    values = {
        "rate": mixed["read GB/s"] / alone,
        "fill": mixed["window fill when a request waited"],
        "fill alone": data["16 MiB"]["window fill when a request waited"],
        "used": mixed["space used when a put was refused"],
        "used alone": data["32 MiB"]["space used when a put was refused"],
    }
    x = list(range(1, len(rows) + 1))
    curve = Curve("read", x, [row["read GB/s"] for row in rows])
    plot = Plot("all objects, in random order", "", "GB/s", [curve], labels=tuple(SIZES))
    return Finding(values, rows, [plot])


FIGURE = Figure(
    name="A3",
    title="ablation: 16 and 32 MiB objects in one space",
    presets=(PRESET,),
    claims=(
        least("rate", "bandwidth of the mix over the slower size alone", "", 1, 0.05, "B", SOURCE),
        report("fill", "window fill when a request waited, mixed", "", None, "D", SOURCE),
        report("fill alone", "the same, 16 MiB alone", "", None, "D", SOURCE),
        report("used", "space used when a put was refused, mixed", "", None, "D", SOURCE),
        report("used alone", "the same, 32 MiB alone", "", None, "D", SOURCE),
    ),
    calibrated="nothing",
    predicted="all of it",
    measure=measure,
    combine=combine,
    parts=lambda _: [Part(name, 1.5) for name in SIZES],
)
