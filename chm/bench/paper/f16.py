# SPDX-License-Identifier: Apache-2.0
"""F16: the geometry of ITME's cache, from the opened device, and what one and two drives stream."""

from __future__ import annotations

from collections.abc import Mapping

from chm.bench.paper.claim import near
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Plot, Settings
from chm.bench.paper.lab import GIB, MIB, Lab
from chm.bench.paper.load import Stager, consecutive, rate

PRESET = "itme-fpga"
BLOCK = 16 * MIB
CACHE = 32 * GIB
LANDING = 16 * MIB
WAYS = 16
BITS = 15  # per line
SOURCE = "ITME tables 2 and 3"


def measure(lab: Lab, part: str) -> Data:
    """Sets of the cache as it came up; then streams through the prefetch call."""
    dram = CACHE + LANDING  # the cache is 32 GiB, and stores land beside it
    with lab.device(PRESET, GIB, "geometry", dram_bytes=dram, write_buffer_bytes=LANDING) as device:
        stats = device.stats()
        sets, lines = stats.cache_sets, stats.cache_lines
    rows = []
    count = 64 if lab.quick else 512
    for members in (1, 2):
        name = f"{members} SSD"
        with lab.device(PRESET, count * BLOCK, name, policy="window", members=members) as device:
            ns = Stager(device, 16).read(consecutive(count, BLOCK), BLOCK)
            rows.append({"SSDs": members, "read GB/s": rate(count * BLOCK, ns)})
    return {"sets": sets, "lines": lines, "rows": rows}


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """SRAM from the sets; rates as measured."""
    d = data["all"]
    one, two = (row["read GB/s"] for row in d["rows"])
    values = {
        "sets": d["sets"],
        "sram": d["sets"] * WAYS * BITS / 8 / MIB,
        "one": one,
        "two": two,
    }
    curves = [
        Curve("ours", [1, 2], [one, two]),
        Curve("published", [1, 2], [9, 18], published=True),
    ]
    notes = [
        "The cache's metadata is from the transparent mode. The streams use the prefetch call, "
        "here the window: prefetching into a transparent cache is not modelled."
    ]
    return Finding(
        values, d["rows"], [Plot("streams", "", "GB/s", curves, labels=("1 SSD", "2 SSDs"))], notes
    )


FIGURE = Figure(
    name="F16",
    title="ITME: cache metadata, and one or two drives",
    presets=(PRESET,),
    claims=(
        near("sets", "sets of 16 lines of 4 KiB in 32 GiB", "", 524_288, 0, "B", SOURCE),
        near("sram", "their metadata at 15 bits a line", "MiB", 15, 0, "B", SOURCE),
        near("one", "stream, one drive", "GB/s", 9, 0.05, "B", SOURCE),
        near("two", "stream, two drives", "GB/s", 18, 0.05, "B", SOURCE),
    ),
    calibrated="9 GB/s a drive, 18 GB/s link",
    predicted="the sets, as the device divides its DRAM; that a second drive doubles the stream",
    measure=measure,
    combine=combine,
)
