# SPDX-License-Identifier: Apache-2.0
"""F17: ITME's board, a transparent cache: hits, and demand misses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chm.bench.paper.claim import most, near
from chm.bench.paper.figure import Data, Figure, Finding, Settings
from chm.bench.paper.lab import GIB, MIB, Lab
from chm.bench.paper.load import Traffic, consecutive, rate

PRESET = "itme-fpga"
LINE = 4096
CHUNK = MIB
DRAM = 4 * GIB  # no more is used
RESIDENT = GIB
DEPTH = 1024
SOURCE = "ITME: FPGA, cache hit and miss"


def measure(lab: Lab, part: str) -> Data:
    """Read what was just written, write it again, and read lines that are not there."""
    resident = RESIDENT // (4 if lab.quick else 1)
    misses = 8192 if lab.quick else 32768
    with lab.device(PRESET, 64 * GIB, dram_bytes=DRAM) as device:
        traffic = Traffic(device, DEPTH)
        hot = consecutive(resident // CHUNK, CHUNK)
        traffic.write(hot, CHUNK)
        before = device.stats()
        read = rate(resident, traffic.read(hot, CHUNK, DEPTH))
        hit = device.stats() - before
        write = rate(resident, traffic.write(hot, CHUNK))
        # Far from what was written, and in no order that a drive could make use of.
        cold = np.random.default_rng(lab.settings.seed).permutation(misses).astype(np.uint64)
        before = device.stats()
        miss = rate(
            misses * LINE, traffic.read(cold * np.uint64(LINE) + np.uint64(32 * GIB), LINE, DEPTH)
        )
        missed = device.stats() - before
    return {
        "read": read,
        "write": write,
        "miss": miss,
        "hits wrong": hit.cache_misses,
        "misses wrong": missed.cache_hits,
    }


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """As measured."""
    d = data["all"]
    return Finding({key: d[key] for key in ("read", "write", "miss")}, [d])


FIGURE = Figure(
    name="F17",
    title="ITME: cache hits and demand misses",
    presets=(PRESET,),
    claims=(
        near("read", "hits, read", "GB/s", 18, 0.05, "B", SOURCE),
        near("write", "hits, write", "GB/s", 12, 0.05, "B", SOURCE),
        most("miss", "demand misses", "GB/s", 1, 0, "B", SOURCE),
    ),
    calibrated="the rates of hits are the link's, and inputs",
    predicted="the rate of demand misses, from the misses in flight and the latency of a miss",
    measure=measure,
    combine=combine,
)
