# SPDX-License-Identifier: Apache-2.0
"""F23: RDMA reads of resident data by size, over one rail and two.

The data is staged and held; every read of it then shares the window's slot and crosses the host
link, one read at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chm.bench.paper.claim import Claim, near
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Plot, Settings
from chm.bench.paper.lab import MIB, Lab
from chm.bench.paper.load import Stager, rate

PRESET = "nvmeof-xfs"
SIZES = tuple((256 << 10) << n for n in range(9))
PUBLISHED = {  # rails: MiB: GB/s
    1: {1: (10.9, 11.0), 16: (12.16, 12.16), 64: (12.23, 12.23)},
    2: {1: (19.1, 19.1), 16: (24.1, 24.1), 64: (24.4, 24.4)},
}
FIT_NS, FIT_RATE = 13_000, 24.5  # two rails: t = t0 + n / B
SOURCE = "LMCache pull request 4161"


def measure(lab: Lab, part: str) -> Data:
    """Both numbers of rails, all sizes."""
    rows = []
    repeats = 8 if lab.quick else 64
    for rails in PUBLISHED:
        name = f"{rails} rail{'s' * (rails > 1)}"
        with lab.device(PRESET, 256 * MIB, name, link_rails=rails) as device:
            stager = Stager(device, 1)
            for size in SIZES:
                with device.prefetch(0, size):  # it stays in the window meanwhile
                    ns = stager.one_by_one([0] * repeats, size)
                rows.append({"rails": rails, "bytes": size, "GB/s": rate(repeats * size, ns)})
    return {"rows": rows}


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """Rows of the table, and every size against the fit."""
    rows = data["all"]["rows"]
    values: dict[str, Any] = {}
    curves = []
    for rails, points in PUBLISHED.items():
        mine = {row["bytes"]: row["GB/s"] for row in rows if row["rails"] == rails}
        values |= {f"{rails}.{mib}": mine[mib * MIB] for mib in points}
        name = "one rail" if rails == 1 else "two rails"
        curves.append(Curve(name, [b / MIB for b in mine], list(mine.values())))
        said = [sum(ends) / 2 for ends in points.values()]
        curves.append(Curve(f"{name}, published", list(points), said, published=True))
        values[f"{rails}.fit"] = max((_off(rails, b, v) for b, v in mine.items()), key=abs) + 1
    plot = Plot("resident data over the host link", "MiB", "GB/s", curves, log_x=True)
    return Finding(values, rows, [plot])


def _off(rails: int, size: int, gb_per_s: float) -> float:
    """Share by which a rate is off the fit t = t0 + n / B."""
    fit = size / (FIT_NS + size / (FIT_RATE * rails / 2))
    return gb_per_s / fit - 1


def _claims() -> list[Claim]:
    out = []
    for rails, points in PUBLISHED.items():
        for mib, said in points.items():
            what = f"{mib} MiB over {rails} rail{'s' * (rails > 1)}"
            out.append(near(f"{rails}.{mib}", what, "GB/s", said, 0.07, "A", SOURCE))
        what = f"{rails} rail{'s' * (rails > 1)}, 256 KiB to 64 MiB: worst size over the fit"
        out.append(near(f"{rails}.fit", what, "", 1, 0.07, "D", "t = 13 us + n / 24.5 GB/s"))
    return out


FIGURE = Figure(
    name="F23",
    title="RDMA reads by size, one rail and two",
    presets=(PRESET,),
    claims=_claims(),
    calibrated="rate of a rail, base latency",
    predicted="the sizes in between, and what the second rail adds",
    measure=measure,
    combine=combine,
)
