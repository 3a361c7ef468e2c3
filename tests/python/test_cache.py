# SPDX-License-Identifier: Apache-2.0
"""The transparent line cache from Python: what changes for a caller, and what does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import KINDS, MIB, pattern

import chm

LINES = ["lru", "fifo", "clock"]
SMALL = {
    "dram_bytes": 2 * MIB,
    "write_buffer_bytes": MIB,
    "line_bytes": "16KiB",
    "durability": "none",
}
SPAN = 2 * MIB
PAGE = chm.PAGE


def test_names_are_listed_and_checked() -> None:
    assert chm.cache_policies() == ("window", *LINES)
    assert chm.flush_policies() == ("read-first", "fcfs", "idle-only")
    assert chm.Options() == chm.Options(policy="window", flush_policy="read-first")
    with pytest.raises(ValueError, match=r"none of window, lru.*did you mean 'lru'"):
        chm.Options(policy="lruu")
    with pytest.raises(ValueError, match=r"idle-only"):
        chm.Options(flush_policy="idle")
    options = chm.Options(policy="lru", line_bytes="1MiB", ways=16, effective_percent=50)
    assert chm.Options.from_dict(options.to_dict()) == options


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(chm.InvalidArgument, match="usable lines"):
        chm.sim("64MiB", policy="lru", line_bytes="1MiB", ways=64, dram_bytes="32MiB")
    with pytest.raises(chm.InvalidArgument, match="power of two"):
        chm.sim("64MiB", policy="lru", line_bytes=5000)


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_no_prefetch_call(make, kind: str) -> None:
    dev = make(kind, policy="clock", **SMALL)
    fix = "policy clock has no prefetch call; use read, or policy window"
    with pytest.raises(chm.Unsupported, match=fix):
        dev.prefetch(0, MIB)
    with pytest.raises(chm.Unsupported, match=fix):
        dev.prefetch_many([(0, MIB)])
    with pytest.raises(chm.Unsupported, match=fix):
        dev.stream([(0, MIB)])
    with pytest.raises(chm.Unsupported, match=fix):
        dev.batch(4).issue([0], PAGE)
    with pytest.raises(chm.Unsupported, match=fix):
        chm.chm_prefetch_object(dev.ptr(0), MIB)
    assert (dev.read(0, MIB) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_what_it_is(make, kind: str) -> None:
    dev = make(kind, policy="lru", ways=4, effective_percent=50, flush_policy="idle-only", **SMALL)
    info, stats = dev.info, dev.stats()
    assert (info.policy, info.flush_policy) == ("lru", "idle-only")
    assert info.window_bytes == 0
    assert info.cache_bytes == 512 << 10
    assert (stats.cache_lines, stats.cache_sets) == (32, 8)
    window = make(kind)
    assert (window.info.policy, window.info.cache_bytes) == ("window", 0)
    assert window.stats().cache_lines == 0


@pytest.mark.parametrize("kind", KINDS)
def test_objects_work_over_it(make, kind: str) -> None:
    dev = make(kind, policy="lru", **SMALL)
    space = chm.Space(dev)
    data = [pattern(size, size) for size in (1, 5000, 300_000, 3 * MIB)]
    objects = [space.put(d) for d in data]
    for obj, d in zip(objects, data, strict=True):
        assert (space.read(obj) == d).all()
    dev.flush()
    assert dev.stats().cache_dirty_lines == 0
    space.close()


def _write(dev: chm.Device, addr: int, data: np.ndarray) -> None:
    while True:
        try:
            dev.write(addr, data)
            return
        except chm.WouldBlock:
            dev.read(addr, 1)  # answered when all commits before it are in lines


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "write", "write", "trim", "flush"]),
        st.integers(0, SPAN // PAGE - 1),
        st.integers(1, 40),
        st.integers(0, PAGE - 1),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(
    steps=STEPS,
    policy=st.sampled_from(LINES),
    ways=st.sampled_from([0, 1, 4]),
    fill=st.booleans(),
    members=st.integers(1, 3),
)
def test_bytes_are_those_of_an_array(
    steps: list[tuple[str, int, int, int]], policy: str, ways: int, fill: bool, members: int
) -> None:
    model = np.zeros(SPAN + 64 * PAGE, np.uint8)
    options = {**SMALL, "policy": policy, "ways": ways, "fill_on_write": fill}
    with chm.sim("16MiB", members=members, **options) as dev:
        for i, (what, page, pages, odd) in enumerate(steps):
            addr, size = page * PAGE, pages * PAGE
            if what == "write":
                data = pattern(size, i)
                _write(dev, addr, data)
                model[addr : addr + size] = data
            elif what == "trim":
                dev.trim(addr, size)
                model[addr : addr + size] = 0
            elif what == "flush":
                dev.flush()
                assert dev.stats().cache_dirty_lines == 0
            else:
                assert (dev.read(addr + odd, size - odd) == model[addr + odd : addr + size]).all()
        stats = dev.stats()
        known = stats.cache_fills + stats.cache_shared + stats.cache_unfetched
        assert stats.cache_misses == known
