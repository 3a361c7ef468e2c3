# SPDX-License-Identifier: Apache-2.0
"""F4, the bandwidth half: the same two drives raw, and through NVMe-oF with a file system."""

from __future__ import annotations

from collections.abc import Mapping

from chm.bench.paper.claim import near
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Plot, Settings
from chm.bench.paper.lab import MIB, Lab
from chm.bench.paper.load import Traffic, consecutive, rate

PRESET = "nvmeof-xfs"
BLOCK = 16 * MIB
SOURCE = "HyMCache figure 9 and its text"


def measure(lab: Lab, part: str) -> Data:
    """Sequential reads with and without the software in the way."""
    count = 256 if lab.quick else 1024
    addrs = consecutive(count, BLOCK)
    rows = []
    for name, without in (("raw", ("software_ns",)), ("file system", ())):
        with lab.device(PRESET, count * BLOCK, name, without=without) as device:
            ns = Traffic(device, 32).read(addrs, BLOCK, 32)
            rows.append({"path": name, "read GB/s": rate(count * BLOCK, ns)})
    return {"rows": rows}


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """Both rates and their ratio."""
    rows = data["all"]["rows"]
    raw, fs = (row["read GB/s"] for row in rows)
    values = {"raw": raw, "fs": fs, "ratio": raw / fs}
    curves = [
        Curve("ours", [1, 2], [raw, fs]),
        Curve("published", [1, 2], [23, 6.5], published=True),
    ]
    return Finding(
        values, rows, [Plot("sequential reads", "", "GB/s", curves, labels=("raw", "file system"))]
    )


FIGURE = Figure(
    name="F4",
    title="NVMe-oF and a file system in front of two Gen5 drives (bandwidth half)",
    presets=(PRESET,),
    claims=(
        near("raw", "sequential reads, raw", "GB/s", 23, 0.05, "B", SOURCE),
        near("fs", "sequential reads through the file system", "GB/s", 6.5, 0.15, "B", SOURCE),
        near("ratio", "raw over file system", "", 3.5, 0.15, "B", SOURCE),
    ),
    calibrated="the software's cost per I/O is set from the 6.5 GB/s: this figure is no prediction",
    predicted="only that the cost per I/O, one after the other, is what limits",
    measure=measure,
    combine=combine,
)
