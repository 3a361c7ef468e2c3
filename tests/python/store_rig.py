# SPDX-License-Identifier: Apache-2.0
"""What tests of the store and of what is above it share."""

from __future__ import annotations

from typing import Any

import numpy as np

import chm

KIB = 1 << 10
MIB = 1 << 20
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def keys(first: int, n: int) -> list[bytes]:
    return [key(number) for number in range(first, first + n)]


def contents(number: int, nbytes: int) -> Bytes:
    """Bytes that no other number gives."""
    return np.random.default_rng(number).integers(0, 256, nbytes, np.uint8)


def blocks(first: int, n: int, nbytes: int) -> Bytes:
    """A row for each number."""
    return np.stack([contents(number, nbytes) for number in range(first, first + n)])


def small_sim(capacity: int = 64 * MIB, **options: Any) -> chm.Device:
    dram = {"dram_bytes": 32 * MIB, "write_buffer_bytes": 16 * MIB, "poison": True}
    return chm.sim(capacity, **{**dram, **options})


def assert_closes(stats: chm.StoreStats) -> None:
    """Counters add up."""
    s = stats
    skipped = (
        s.skipped_buffer + s.skipped_space + s.skipped_quota + s.skipped_objects + s.skipped_chain
    )
    assert s.skipped == skipped
    assert s.put_keys == s.admitted + s.skipped + s.duplicate + s.put_failed + s.put_open
    assert s.lookups == s.lookup_hits + s.lookup_misses
    assert s.gets == s.hits + s.misses + s.get_errors + s.get_open


def filled(path: Any, n: int, nbytes: int) -> int:
    """A store on a file with objects 1 to n in namespace "a"; how many reads opening it takes."""
    chm.format(path, 64 * MIB)
    with chm.open(path, dram_bytes=32 * MIB) as dev:
        chm.store.format(dev)
        with chm.Store(dev) as store:
            ns = store.namespace("a")
            store.put(ns, keys(1, n), blocks(1, n, nbytes), wait=True).result()
    with chm.open(path, dram_bytes=32 * MIB) as dev, chm.Store(dev):
        return dev.stats().read_ios
