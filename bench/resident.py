# SPDX-License-Identifier: Apache-2.0
"""A resident object from Python: issue + wait + release, singly and 32 at a time.

A holder keeps the object in the window, so nothing is read. Each sample is the mean of a round of
uses back to back; quoted is the median over the rounds. The package is that of the checkout.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rows import MIB, arguments, fill, spread, use_checkout

use_checkout()

import chm  # noqa: E402

OBJECT = MIB
BATCH = 32
DATA_OFFSET = MIB  # docs/spec.md: data of a member begins here


def rounds(use: Callable[[], None], count: int, each: int) -> tuple[list[float], float]:
    """(mean us of a use, for every round; CPU us of a use, device thread included)."""
    for _ in range(each):
        use()
    means = []
    cpu = time.process_time()
    for _ in range(count):
        began = time.perf_counter_ns()
        for _ in range(each):
            use()
        means.append((time.perf_counter_ns() - began) / each / 1e3)
    return means, (time.process_time() - cpu) / (count * each) * 1e6


def single(dev: chm.Device) -> Callable[[], None]:
    """One request: prefetch, wait, release."""

    def use() -> None:
        dev.prefetch(0, OBJECT).wait().release()

    return use


def single_view(dev: chm.Device) -> Callable[[], None]:
    """The same, looking at it."""

    def use() -> None:
        request = dev.prefetch(0, OBJECT).wait()
        request.view().release()
        request.release()

    return use


def batch(dev: chm.Device, views: bool) -> Callable[[], None]:
    """A batch of 32, with or without a guarded view of each."""
    ranges = dev.batch(BATCH)
    ranges.addr[:] = 0
    ranges.length[:] = OBJECT

    def use() -> None:
        ranges.issue().wait()
        if views:
            ranges.views()
        ranges.release()

    return use


def measure(path: Path, thread: bool, only: str, quick: bool) -> None:
    """All rows of one way to drive the device."""
    where = "awake" if thread else "stepped"
    count = 21 if quick else 101
    with chm.open(
        path, thread=thread, dram_bytes=36 * MIB, write_buffer_bytes=16 * MIB, prefault="now"
    ) as dev:
        hold = dev.prefetch(0, OBJECT).wait()
        for name, use, each in (
            (f"python.resident.{where}", single(dev), 1000),
            (f"python.resident.view.{where}", single_view(dev), 1000),
            (f"python.batch32.{where}", batch(dev, False), 300),
            (f"python.batch32.views.{where}", batch(dev, True), 300),
        ):
            if only in name:
                means, cpu = rounds(use, count, each)
                spread(name, means, cpu_us=cpu, rounds=count)
        hold.release()


def main() -> None:
    """Stepped, then with a device thread."""
    args = arguments(__doc__)
    path = args.dir / "resident.chm"
    chm.format(path, 16 * MIB, force=True)
    try:
        fill(path, DATA_OFFSET, 16 * MIB, args.seed)
        measure(path, False, args.only, args.quick)
        measure(path, True, args.only, args.quick)
    finally:
        path.unlink()


if __name__ == "__main__":
    main()
