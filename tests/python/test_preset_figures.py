# SPDX-License-Identifier: Apache-2.0
"""What the shipped presets were made for: each published figure, on a device in virtual time.

Caches are scaled down where their size has no part in the figure. Nothing is fitted here: the
numbers are the presets' own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

import chm
from chm import preset as presets

MIB = 1 << 20
SMALL = ("dram_bytes=96MiB", "write_buffer_bytes=32MiB", "capacity_bytes=1GiB")


def opened(name: str, *settings: str) -> chm.Device:
    return chm.Device(presets.load(name, (*SMALL, *settings)).options())


def demand(dev: chm.Device, addr: int, size: int) -> float:
    """GB/s of one demand read of its own."""
    buf = chm.aligned_empty(size)
    began = dev.now()
    dev.read_many([(addr, memoryview(buf))])
    return size / (dev.now() - began)


def staged(dev: chm.Device, size: int, count: int, ahead: int) -> float:
    """GB/s of objects staged `ahead` of the one that is waited for."""
    began = dev.now()
    objects = [(i * size, size) for i in range(count)]
    window: list[chm.Request] = []
    for addr, length in objects:
        window.append(dev.prefetch(addr, length))
        if len(window) > ahead:
            first = window.pop(0)
            first.wait()
            first.release()
    for left in window:
        left.wait()
        left.release()
    return count * size / (dev.now() - began)


def within(got: float, published: float, percent: float) -> bool:
    return abs(got / published - 1) <= percent / 100


def test_hymcache_without_prefetch() -> None:
    """1 / (1/23 + 1/25) = 11.98 GB/s for 16 MiB objects one at a time."""
    with opened("hymcache-proto", "dram_bytes=256MiB") as dev:
        assert within(demand(dev, 0, 16 * MIB), 11.98, 5)


def test_hymcache_with_prefetch() -> None:
    """23 to 25 GB/s."""
    with opened("hymcache-proto", "dram_bytes=256MiB") as dev:
        assert 23 * 0.92 <= staged(dev, 16 * MIB, 60, 6) <= 25 * 1.08


def test_itme_hits_and_misses() -> None:
    """Hits 18 GB/s read and 12 written; demand misses below 1."""
    with opened("itme-fpga") as dev:
        assert demand(dev, 0, 4 * MIB) < 1
        assert within(demand(dev, 0, 4 * MIB), 18, 5)
        data = bytes(4 * MIB)
        began = dev.now()
        dev.write(0, data)
        assert within(4 * MIB / (dev.now() - began), 12, 5)


@pytest.mark.parametrize(("members", "rate"), [(1, 9), (2, 18)])
def test_itme_back_end(members: int, rate: float) -> None:
    """9 GB/s a drive, asked as its prefetch asks."""
    settings = (f"members={members}", "policy=window", "dram_bytes=256MiB", "link_rate=100GB/s")
    with opened("itme-fpga", *settings) as dev:
        assert within(staged(dev, 16 * MIB, 60, 6), rate, 5)


def chase(dev: chm.Device, misses: int) -> Iterator[tuple[int, bool]]:
    """Latency, and whether it missed, of 64-byte loads one after the other, 64 to a line."""
    out = memoryview(chm.aligned_empty(4096))[:64]
    rng = np.random.default_rng(2)
    for line in rng.permutation(1 << 17)[:misses].tolist():
        for load in range(64):
            began = dev.now()
            dev.read_many([(line * 4096 + load * 64, out)])
            yield dev.now() - began, load == 0


def test_samsung_latency() -> None:
    """p50 0.77, p75 0.88, p90 0.92, p95 0.98 us; p99 28 to 37, p99.9 57 to 63."""
    with opened("samsung-cmmh") as dev:
        ns = np.array([ns for ns, _ in chase(dev, 600)])
    seen = {q: float(np.quantile(ns, q / 100)) / 1000 for q in (50, 75, 90, 95, 99, 99.9)}
    for q, us in ((50, 0.77), (75, 0.88), (90, 0.92), (95, 0.98)):
        assert within(seen[q], us, 5), seen
    assert 28 * 0.75 <= seen[99] <= 37 * 1.25
    assert 57 * 0.75 <= seen[99.9] <= 63 * 1.25


def hit_share(ratio: float, effective: float, ways: int) -> float:
    """LRU, random lines over hashed sets: see samsung-cmmh.toml."""
    mean = ways * ratio / effective
    p, excess = math.exp(-mean), 0.0
    for n in range(1000):
        excess += max(n - ways, 0) * p
        p *= mean / (n + 1)
    return 1 - excess / mean


@pytest.mark.parametrize(
    ("ratio", "published"), [(0.04, 22.3), (0.33, 21.5), (0.67, 2.63), (2.67, 0.84)]
)
def test_samsung_bandwidth_in_closed_form(ratio: float, published: float) -> None:
    """With the miss latency that the chase sees, less the way over the link."""
    preset = presets.load("samsung-cmmh")
    with opened("samsung-cmmh") as dev:
        missed = [ns for ns, miss in chase(dev, 200) if miss]
    link_ns = 800
    rate = preset.get("line_fills") * preset.get("line_bytes") / (np.mean(missed) - link_ns)
    share = hit_share(ratio, preset.get("effective_percent") / 100, preset.get("ways"))
    got = 1 / (share / (preset.get("link_rate") / 1e9) + (1 - share) / rate)
    assert within(float(got), published, 15), got


def test_samsung_bandwidth_beyond_the_cache() -> None:
    """The same on a cache of 16 MiB, at 2.67 times its size: 0.84 GB/s."""
    lines, batch = int(2.67 * 4096), 1024
    out = memoryview(chm.aligned_empty(batch * 4096))
    rng = np.random.default_rng(1)
    with opened("samsung-cmmh", "dram_bytes=20MiB", "write_buffer_bytes=4MiB") as dev:
        for timed in (False, True):
            began = dev.now()
            for _ in range(16):
                at = rng.integers(0, lines, batch).tolist()
                dev.read_many([(x * 4096, out[i * 4096 :][:4096]) for i, x in enumerate(at)])
            rate = 16 * batch * 4096 / (dev.now() - began)
            assert not timed or within(rate, 0.84, 15), rate


def test_cmmh_256g_misses() -> None:
    """About 5 GB/s, 5 to 6.4, in lines of 1 MiB; the way of the last over the link is in it."""
    out = memoryview(chm.aligned_empty(16 * MIB))
    with opened("cmmh-256g-rdma") as dev:
        began = dev.now()
        dev.read_many([(i * MIB, out[i * MIB :][:MIB]) for i in range(16)])
        assert 5 * 0.95 <= 16 * MIB / (dev.now() - began) <= 6.4


def fetch(dev: chm.Device, req: chm.Request) -> float:
    """GB/s over the link of a staged object."""
    until = dev.now() + 10_000_000
    while dev.now() < until:
        dev.step(until)
    began = dev.now()
    req.wait()
    return req.length / (dev.now() - began)


def test_xcena() -> None:
    """A fill of 16 MiB in 1.5 ms (11 GB/s); what is resident crosses at 23.8 GB/s."""
    with opened("xcena-im", "dram_bytes=256MiB") as dev:
        began = dev.now()
        first = dev.prefetch(0, 16 * MIB)
        first.wait()
        assert within(dev.now() - began - 16 * MIB / 23.8, 1.5e6, 8)
        began = dev.now()
        again = dev.prefetch(0, 16 * MIB)  # resident
        assert again.progress == 16 * MIB
        assert dev.now() - began < 100_000
        assert within(fetch(dev, again), 23.8, 2)
        first.release()
        again.release()


def test_nvmeof_xfs() -> None:
    """6.5 GB/s through the software, 23 without it."""
    with opened("nvmeof-xfs", "dram_bytes=256MiB") as dev:
        assert within(staged(dev, 16 * MIB, 60, 6), 6.5, 5)
    with opened("nvmeof-xfs", "dram_bytes=256MiB", "software_ns=0ns") as dev:
        assert within(staged(dev, 16 * MIB, 60, 6), 23, 5)


def test_dram_pool() -> None:
    """24.1 GB/s for 16 MiB reads over two ports, and 24.5 ahead."""
    with opened("dram-pool", "dram_bytes=256MiB") as dev:
        one = dev.prefetch(0, 16 * MIB)
        assert within(fetch(dev, one), 24.1, 7)
        one.release()
        assert within(staged(dev, 16 * MIB, 60, 6), 24.5, 5)


def test_gen5_tlc() -> None:
    """1 MiB alone in 250 us; 12 GB/s with depth."""
    with opened("gen5-tlc", "dram_bytes=256MiB") as dev:
        assert within(MIB / demand(dev, 0, MIB) / 1000, 250, 5)
        assert within(staged(dev, 16 * MIB, 60, 6), 12, 5)


def test_cxl_switch() -> None:
    """A load of 64 bytes: the switch's 750 ns and the expander's 250."""
    with opened("cxl-switch") as dev:
        assert within(64 / demand(dev, 0, 64), 1000, 5)
