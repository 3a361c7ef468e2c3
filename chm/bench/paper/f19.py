# SPDX-License-Identifier: Apache-2.0
"""F19: how long loads of a pointer chase take on CMM-H.

Four threads chase 64-byte loads through pages in random order, each page's 64 lines one after the
other and no page twice. So the first load of a page misses and 63 hit: the misses are the slowest
1.6 % of all loads, which is where p99 and p99.9 are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from chm.bench.paper.claim import near
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import GIB, Lab
from chm.bench.paper.load import latencies

PRESET = "samsung-cmmh"
DRAM = GIB  # no page is read twice, so the size of the cache does not matter
PAGE = 4096
LOAD = 64
THREADS = 4
QUANTILES = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
SHARES = tuple(10 ** (-i / 8) for i in range(1, 26))  # 0.75 to 0.00075
SOURCE = "Cylon's data files (MIO, 4 threads, 16 and 64 GB)"


def _chase(pages: npt.NDArray[np.int64], thread: int) -> Iterator[int]:
    for page in pages[thread::THREADS].tolist():
        for line in range(PAGE // LOAD):
            yield page * PAGE + line * LOAD


def measure(lab: Lab, part: str) -> Data:
    """Every load's latency, and its quantiles."""
    pages = 1024 if lab.quick else 4096
    capacity = 16 * GIB
    rng = np.random.default_rng(lab.settings.seed)
    chosen = rng.choice(capacity // PAGE, pages, replace=False)
    with lab.device(PRESET, capacity, dram_bytes=DRAM) as device:
        took = latencies(device, [_chase(chosen, t) for t in range(THREADS)], LOAD)
        stats = device.stats()
    ordered = np.sort(took) / 1e3
    return {
        "loads": len(ordered),
        "miss share": stats.cache_misses / (stats.cache_hits + stats.cache_misses),
        **{name: _quantile(ordered, q) for name, q in QUANTILES.items()},
        "slower": [[_quantile(ordered, 1 - share), share] for share in SHARES],
    }


def _quantile(ordered: npt.NDArray[np.float64], q: float) -> float:
    return float(ordered[min(int(q * len(ordered)), len(ordered) - 1)])


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """Quantiles in us."""
    d = dict(data["all"])
    slower = d.pop("slower")
    values = {name: d[name] for name in QUANTILES}
    curve = Curve("ours", [x for x, _ in slower], [y for _, y in slower])
    said = Curve(
        "published",
        [0.77, 0.88, 0.92, 0.98, 28, 37, 57, 63],
        [0.5, 0.25, 0.1, 0.05, 0.01, 0.01, 0.001, 0.001],
        published=True,
    )
    plot = Plot(
        "loads that take longer", "us", "share of loads", [curve, said], log_x=True, log_y=True
    )
    notes = ["The quantiles of hits are inputs of the preset; the tail comes out of the model."]
    return Finding(values, [d], [plot], notes)


FIGURE = Figure(
    name="F19",
    title="Samsung CMM-H: latency of loads in a pointer chase",
    presets=(PRESET,),
    claims=(
        near("p50", "p50 (hits: an input)", "us", 0.77, 0.25, "A", SOURCE),
        near("p75", "p75 (hits: an input)", "us", 0.88, 0.25, "A", SOURCE),
        near("p90", "p90 (hits: an input)", "us", 0.92, 0.25, "A", SOURCE),
        near("p95", "p95 (hits: an input)", "us", 0.98, 0.25, "A", SOURCE),
        near("p99", "p99 (misses)", "us", (28, 37), 0.25, "A", SOURCE),
        near("p99.9", "p99.9 (misses)", "us", (57, 63), 0.25, "A", SOURCE),
    ),
    calibrated="quantiles of hits; the page read times of lower, middle and upper pages",
    predicted="which loads miss, and so at which quantiles the flash shows",
    measure=measure,
    combine=combine,
    parts=lambda _: [Part("all", 4.0)],
)
