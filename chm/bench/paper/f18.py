# SPDX-License-Identifier: Apache-2.0
"""F18: CMM-H's bandwidth as the working set outgrows its cache.

Lines of 4 KiB are read whole, in random order, over a working set whose pages lie scattered over
the device as an allocator leaves them. So the sets of the cache do not get equally many lines, and
the early drop at 0.67 comes from the sets that got too many.

There are as many readers as the device has misses in flight, each with one line at a time: fewer
could not use the device, more would only queue. The closed form beside it is of that case:
1 / rate = h / 22.3 + (1 - h) / m, m being what these misses give when there is nothing else.

The cache is scaled down, and the working set with it. Nothing in the model knows the number of
sets, so the rate is the same; that is checked at two scales.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from chm.bench.paper.claim import near, shape
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import GIB, MIB, Lab
from chm.bench.paper.load import Traffic, latencies, rate, scattered

PRESET = "samsung-cmmh"
LINE = 4096
WAYS = 16
CACHE = 48 * GIB
SCALE = 128
SMALLER = 4  # the other scale is so many times smaller
WARM = 2  # passes before measuring
BATCH = 1024  # of the warming passes
MEASURED, QUICK_MEASURED = 50_000, 20_000  # lines
PUBLISHED = {0.04: 22.3, 0.33: 21.5, 0.67: 2.63, 2.67: 0.84}
BETWEEN = (0.15, 0.45, 0.55, 0.8, 1.0, 1.33, 2.0)
CHECKED = 0.67  # the ratio at which two scales are compared
SPREAD = 8  # the device is so many times larger than the working set
SOURCE = "Cylon's data files; MLC random loads over the working set"


def _ratios(settings: Settings) -> list[float]:
    more = () if settings.quick else BETWEEN
    return sorted({*PUBLISHED, *more, *settings.ratios})


def _parts(settings: Settings) -> list[Part]:
    return [Part(f"{r:g}", 0.5 + r) for r in _ratios(settings)] + [Part("scale", 2.0)]


def measure(lab: Lab, part: str) -> Data:
    """One ratio; or two scales compared."""
    if part == "scale":
        return _two_scales(lab)
    ratio = float(part)
    with _Warm(lab, ratio, SCALE, 0) as warm:
        device = warm.device
        fills = device.options.line_fills
        before = device.stats()
        measured = _rate(warm, QUICK_MEASURED if lab.quick else MEASURED)
        did = device.stats() - before
        effective = (device.options.effective_percent or 100) / 100
    miss_ns = did.cache_fill_ns / did.cache_fills if did.cache_fills else 0.0
    m = fills * LINE / miss_ns if miss_ns else math.inf
    return {
        "ratio": ratio,
        "scale": SCALE,
        "lines": len(warm.addrs),
        "GB/s": measured,
        "hit rate": did.cache_hits / (did.cache_hits + did.cache_misses),
        "miss us": miss_ns / 1e3,
        **_closed_form(ratio, effective, m),
    }


def _rate(warm: _Warm, count: int) -> float:
    """GB/s of `count` lines in random order, with a reader for each miss in flight."""
    device, todo = warm.device, warm.order.choice(warm.addrs, count).tolist()
    readers = device.options.line_fills
    begin = device.now()
    latencies(device, [iter(todo[i::readers]) for i in range(readers)], LINE)
    return rate(count * LINE, device.now() - begin)


class _Warm:
    """A device of 1/scale, and a working set that was read some times."""

    def __init__(self, lab: Lab, ratio: float, scale: int, variant: int) -> None:
        budget = CACHE // scale
        landing = min(16 * MIB, budget // 8)
        lines = max(round(ratio * budget / LINE), 1)
        capacity = max(lines * LINE * SPREAD, 64 * MIB)
        seed = 2 * (lab.settings.seed + variant)
        self._opened = lab.device(
            PRESET,
            capacity,
            f"ratio {ratio:g}, 1/{scale}",
            dram_bytes=budget + landing,
            write_buffer_bytes=landing,
        )
        pages = scattered(lines, capacity // LINE, seed)
        self.addrs = pages.astype(np.uint64) * np.uint64(LINE)
        self.order = np.random.default_rng(seed + 1)

    def __enter__(self) -> _Warm:
        self.device = self._opened.__enter__()
        self._traffic = Traffic(self.device)
        for _ in range(WARM):
            self._traffic.read(self.order.permutation(self.addrs), LINE, BATCH)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._opened.__exit__(*raised)


def _two_scales(lab: Lab) -> Data:
    """As many lines from one cache, and from several that are as many times smaller."""
    count = QUICK_MEASURED if lab.quick else MEASURED
    with _Warm(lab, CHECKED, SCALE, 0) as warm:
        large = _rate(warm, count)
    small = []
    for i in range(SMALLER):
        with _Warm(lab, CHECKED, SCALE * SMALLER, i) as warm:
            small.append(_rate(warm, count // SMALLER))
    return {
        "ratio": CHECKED,
        "scale": SCALE * SMALLER,
        "GB/s": sum(small) / SMALLER,
        "GB/s at the scale used": large,
    }


def _closed_form(ratio: float, effective: float, m: float) -> dict[str, float]:
    """Lines of a set are Poisson; a set of n lines hits min(1, WAYS / n) of the time. The rate with
    hits and misses in turn, and its bound with hits beside misses."""
    mean = WAYS * ratio / effective
    over = 0.0
    p = math.exp(-mean)
    for n in range(1, int(mean + 12 * math.sqrt(mean) + 40)):
        p *= mean / n
        over += max(n - WAYS, 0) * p
    h = 1 - over / mean
    top = PUBLISHED[0.04]
    apart = 1 / (h / top + (1 - h) / m)
    beside = min(top, m / (1 - h)) if h < 1 else top
    return {"closed form: hit rate": h, "closed form": apart, "bound": beside}


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """The curve, and whether the scale matters."""
    rows = [data[f"{r:g}"] for r in _ratios(settings)]
    by_ratio = {row["ratio"]: row["GB/s"] for row in rows}
    rates = [row["GB/s"] for row in rows]
    values: dict[str, Any] = {f"{r:g}": by_ratio[r] for r in PUBLISHED}
    falls = all(a >= b * 0.995 for a, b in itertools.pairwise(rates))
    values["monotone"] = falls
    two = data["scale"]
    values["scale"] = two["GB/s"] / two["GB/s at the scale used"]
    x = list(by_ratio)
    curves = [
        Curve("ours", x, rates),
        Curve("published", list(PUBLISHED), list(PUBLISHED.values()), published=True),
        Curve("closed form", x, [r["closed form"] for r in rows]),
        Curve("bound", x, [r["bound"] for r in rows]),
    ]
    plot = Plot("random lines", "working set / cache", "GB/s", curves, log_x=True, log_y=True)
    return Finding(values, [*rows, data["scale"]], [plot])


FIGURE = Figure(
    name="F18",
    title="Samsung CMM-H: bandwidth against the working set",
    presets=(PRESET,),
    claims=(
        *(
            near(f"{r:g}", f"working set of {r:g} caches", "GB/s", v, 0.15, "A", SOURCE)
            for r, v in PUBLISHED.items()
        ),
        shape("monotone", "never rises from one ratio to the next", "A", SOURCE),
        near(
            "scale",
            "a quarter of the scale, over the scale used, at 0.67",
            "",
            1,
            0.05,
            "D",
            "sets are independent; how lines scatter leaves 2 %",
        ),
    ),
    calibrated="22.3 GB/s (the link), the misses in flight and the share of usable lines",
    predicted="the curve between and beyond; hit rates from how lines fall into sets",
    measure=measure,
    combine=combine,
    parts=_parts,
)
