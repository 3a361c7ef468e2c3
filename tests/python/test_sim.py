# SPDX-License-Identifier: Apache-2.0
"""The simulated drive from Python: options arrive, and a run is a function of options and seed."""

from __future__ import annotations

import numpy as np
import pytest
from kit import MIB

import chm

DRIVE = {
    "dies": 16,
    "channels": 4,
    "planes": 2,
    "page_read_lower_ns": "40us",
    "page_read_middle_ns": "60us",
    "page_read_upper_ns": "110us",
    "program_ns": "600us",
    "erase_ns": "3ms",
    "block_pages": 64,
    "cache_bytes": "8MiB",
    "command_ns": "15us",
    "dram_rate": "20GB/s",
    "read_rate": "12GB/s",
    "write_rate": "9GB/s",
}


def run(**changes: object) -> chm.Stats:
    """Some of everything, chosen by a seed of its own."""
    rng = np.random.default_rng(11)
    with chm.sim("256MiB", members=2, dram_bytes="32MiB", **{**DRIVE, **changes}) as dev:
        for at in rng.integers(0, 200, 60).tolist():
            dev.write(at * MIB, bytes(64 << 10))
            dev.flush()  # it is in the drive's cache then, and being programmed
            with dev.prefetch(at * MIB, MIB) as lease:
                lease.wait()
            dev.read(at * MIB + 4096, 4096)
        return dev.stats()


def test_same_seed_same_digest() -> None:
    stats = run(seed=5)
    assert stats.sim_ios == stats.read_ios + stats.write_ios + stats.trim_ios + 2 * stats.barriers
    assert stats.sim_digest != 0
    assert (run(seed=5).sim_ios, run(seed=5).sim_digest) == (stats.sim_ios, stats.sim_digest)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 6},
        {"page_read_upper_ns": 110_001},
        {"page_read_middle_ns": 60_001},
        {"dram_rate": "11GB/s"},
        {"software_ns": 1},
        {"command_ns": 15_001},
        {"suspend_ns": 5_000},
        {"program_ns": 600_001},
        {"channel_rate": "1GB/s"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_differs_shows_in_the_digest(changes: dict[str, object]) -> None:
    assert run(**{"seed": 5, **changes}).sim_digest != run(seed=5).sim_digest


def test_through_wrappers() -> None:
    plain, paced = run(), run(pace={"latency_ns": 1000})
    assert paced.sim_ios == plain.sim_ios
    assert paced.sim_digest != plain.sim_digest


def test_difference_keeps_the_digest() -> None:
    stats = run()
    assert (stats - stats).sim_ios == 0
    assert (stats - stats).sim_digest == stats.sim_digest


def test_real_media_have_no_digest(make) -> None:
    dev = make("sync")
    dev.write(0, bytes(4096))
    dev.flush()
    assert (dev.stats().sim_ios, dev.stats().sim_digest) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dies": 10}, "multiple of channels"),
        ({"page_bytes": 5000}, "power of two"),
        ({"cache_bytes": 4096}, "planes x page_bytes = 32768"),
        ({"dies": 4096}, "at most 1024"),
    ],
)
def test_refused_with_the_reason(changes: dict[str, object], words: str) -> None:
    with pytest.raises(chm.ChmError, match=words):
        chm.sim("64MiB", **{**DRIVE, **changes})


def test_an_idle_read_to_the_nanosecond() -> None:
    """command + page + 4 KiB over a channel of 1.6 GB/s and a link of 2 GB/s."""
    with chm.sim("64MiB", dies=8, command_ns=10_000, page_read_lower_ns=50_000) as dev:
        began = dev.now()
        dev.read(0, 4096)
        assert dev.now() - began == 10_000 + 50_000 + 2_560 + 2_048
