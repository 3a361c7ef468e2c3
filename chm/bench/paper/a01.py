# SPDX-License-Identifier: Apache-2.0
"""A1: what keeps writes from disturbing reads: buffer size, flush unit, watermark, read priority.

Two loads, each with writes offered at a fixed rate of virtual time, of which those that find the
write buffer full are skipped: reads staged ahead without a pause, and reads of 64 KiB that nobody
announced, one after the other. One knob is turned at a time. The link is off, since this is about
the SSD, and so is the suspending of programs, except in the arms that say so: a drive that suspends
programs for reads isolates them by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import chm
from chm.bench.paper.claim import report, shape
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import MIB, Lab
from chm.bench.paper.load import Traffic, consecutive, rate

PRESET = "hymcache-proto"
BLOCK = 16 * MIB
DEPTH = 8
OFFERED = 10.0  # GB/s
OFFERED_QUIETLY = 3.0  # GB/s, beside single reads
DEMAND = 64 << 10
SOURCE = "ours; HyMCache skips more than 15 % of its inserts in one run"
NO_LINK = ("link_rate", "link_write_rate")
BUFFER: dict[str, Any] = {"write_buffer_bytes": 512 * MIB}
FCFS: dict[str, Any] = {"flush_policy": "fcfs"}
ARMS: dict[str, dict[str, Any]] = {
    "no writes": {},
    "reads first": {},
    "first come, first served": FCFS,
    "buffer 64 MiB": {"write_buffer_bytes": 64 * MIB},
    "buffer 2 GiB": {"write_buffer_bytes": 2048 * MIB},
    "unit 256 KiB": {"flush_unit": 256 << 10},
    "unit 64 KiB": {"flush_unit": 64 << 10},
    "high mark 25 %": {"flush_high_percent": 25, "flush_low_percent": 12},
    "high mark 90 %": {"flush_high_percent": 90, "flush_low_percent": 45},
    "reads first, drive suspends": {},
    "first come, drive suspends": FCFS,
}


def measure(lab: Lab, part: str) -> Data:
    """One arm."""
    rounds = 40 if lab.quick else 160
    structure = BUFFER | ARMS[part]
    without = NO_LINK if part.endswith("suspends") else (*NO_LINK, "suspend_ns")
    capacity = (3 * rounds * DEPTH + 64) * BLOCK
    with lab.device(PRESET, capacity, part, without=without, **structure) as device:
        writer = _Writer(device, rounds * DEPTH * BLOCK, part != "no writes")
        streams = _stream(device, writer, rounds)
        device.flush(None)
        singles = _single(device, writer, rounds * 25)
    return {**streams, **singles}


class _Writer:
    """Offers blocks at a rate of virtual time, from an address on."""

    def __init__(self, device: chm.Device, base: int, on: bool) -> None:
        self.device, self.on = device, on
        self.next = base
        self.traffic = Traffic(device)
        self.begin_at(0)

    def begin_at(self, gb_per_s: float) -> None:
        """From now on offer so much."""
        self.rate = gb_per_s if self.on else 0.0
        self.since = self.device.now()
        self.offered = self.admitted = 0

    def offer(self) -> None:
        """Offer what is due by now."""
        due = int(self.rate * (self.device.now() - self.since) / BLOCK)
        while self.offered < due:
            self.offered += 1
            for at in range(self.next, self.next + BLOCK, PIECE):
                if not self.traffic.offer(at, PIECE):
                    break
            else:
                self.admitted += 1
                self.next += BLOCK

    @property
    def skipped(self) -> float:
        """Share of the blocks that were not admitted."""
        return 1 - self.admitted / self.offered if self.offered else 0.0


PIECE = 4 * MIB


def _stream(device: chm.Device, writer: _Writer, rounds: int) -> Data:
    """Stage without a pause."""
    batches = (device.batch(DEPTH), device.batch(DEPTH))
    before, begin = device.stats(), device.now()
    writer.begin_at(OFFERED)
    for i in range(rounds + 1):
        if i < rounds:
            first = np.uint64(i * DEPTH * BLOCK)
            batches[i % 2].issue(consecutive(DEPTH, BLOCK) + first, BLOCK)
        if i > 0:
            batches[(i - 1) % 2].wait(None)
            batches[(i - 1) % 2].release()
        writer.offer()
    took = device.now() - begin
    did = device.stats() - before
    return {
        "read GB/s": rate(rounds * DEPTH * BLOCK, took),
        "written GB/s": rate(did.write_bytes, took),
        "skipped": writer.skipped,
    }


def _single(device: chm.Device, writer: _Writer, reads: int) -> Data:
    """Read what nobody announced, one after the other."""
    writer.begin_at(OFFERED_QUIETLY)
    took = []
    for i in range(reads):
        writer.offer()
        at = consecutive(1, 0) + np.uint64((i * 37 % reads) * DEMAND)
        took.append(writer.traffic.read(at, DEMAND, 1))
    return {
        "single p50 us": float(np.quantile(took, 0.5)) / 1e3,
        "single p99 us": float(np.quantile(took, 0.99)) / 1e3,
        "skipped beside singles": writer.skipped,
    }


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """Each arm against reads first."""
    rows = [{"arm": name, **data[name]} for name in ARMS]
    alone, first, fcfs = (data[name] for name in tuple(ARMS)[:3])
    values: dict[str, Any] = {
        "sooner": first["single p99 us"] < fcfs["single p99 us"],
        "suspending": data["first come, drive suspends"]["single p99 us"] < fcfs["single p99 us"],
        "buffer": data["buffer 64 MiB"]["skipped"] >= data["buffer 2 GiB"]["skipped"],
        "kept": first["read GB/s"] / alone["read GB/s"],
        "kept fcfs": fcfs["read GB/s"] / alone["read GB/s"],
        "skipped": first["skipped"],
        "skipped fcfs": fcfs["skipped"],
        "p99": first["single p99 us"],
        "p99 fcfs": fcfs["single p99 us"],
    }
    x = list(range(1, len(rows) + 1))
    names = tuple(ARMS)
    plots = [
        Plot(
            "bandwidth of reads, and what is written",
            "",
            "GB/s",
            [
                Curve("read", x, [row["read GB/s"] for row in rows]),
                Curve("written", x, [row["written GB/s"] for row in rows]),
            ],
            labels=names,
        ),
        Plot(
            "single reads of 64 KiB, p99",
            "",
            "us",
            [Curve("p99", x, [row["single p99 us"] for row in rows])],
            labels=names,
        ),
    ]
    notes = [
        f"Writes offered: {OFFERED:g} GB/s beside staging, {OFFERED_QUIETLY:g} GB/s beside "
        "single reads.",
        "Staged reads lose nothing to writes here: the drives read and write at once, and their "
        "flash could program more than is offered. That a drive gives less when it does both is "
        "not modelled. What is left of interference is a read that meets a program.",
    ]
    return Finding(values, rows, plots, notes)


FIGURE = Figure(
    name="A1",
    title="ablation: write isolation",
    presets=(PRESET,),
    claims=(
        shape("sooner", "reads first: p99 of single reads is earlier", "B", SOURCE),
        shape(
            "suspending", "first come on a drive that suspends programs: earlier, too", "D", SOURCE
        ),
        shape("buffer", "a larger buffer skips no more than a smaller one", "D", SOURCE),
        report("kept", "reads first: bandwidth left of reads alone", "", None, "D", SOURCE),
        report("kept fcfs", "first come, first served: the same", "", None, "D", SOURCE),
        report("skipped", "reads first: writes skipped", "", 0.15, "B", SOURCE),
        report("skipped fcfs", "first come, first served: writes skipped", "", None, "D", SOURCE),
        report("p99", "reads first: single reads of 64 KiB, p99", "us", None, "D", SOURCE),
        report("p99 fcfs", "first come, first served: the same", "us", None, "D", SOURCE),
    ),
    calibrated="nothing",
    predicted="all of it",
    measure=measure,
    combine=combine,
    parts=lambda _: [Part(name, 1.5) for name in ARMS],
)
