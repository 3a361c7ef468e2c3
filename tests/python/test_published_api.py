# SPDX-License-Identifier: Apache-2.0
"""The published form, with its names and its arguments."""

import numpy as np
import pytest
from kit import MIB, fill

import chm
from chm import (
    chm_prefetch_object,
    chm_prefetch_progress,
    chm_prefetch_release,
    chm_prefetch_wait,
)


def test_issue_wait_release(dev) -> None:
    data = fill(dev, 0, 2 * MIB, seed=1)
    req = chm_prefetch_object(dev.ptr(MIB), 10_000)
    chm_prefetch_wait(req)
    assert chm_prefetch_progress(req) == 12288  # whole pages
    assert np.array_equal(req.array()[:10_000], data[MIB : MIB + 10_000])
    chm_prefetch_release(req)
    with pytest.raises(chm.StaleHandle):
        chm_prefetch_wait(req)


def test_pointers_of_the_allocator(dev) -> None:
    with chm.Space(dev) as space:
        obj = space.put(b"key and value" * 1000)
        req = chm_prefetch_object(obj.ptr, obj.length)
        chm_prefetch_wait(req, timeout=10.0)
        assert bytes(req.view()[: obj.length]) == b"key and value" * 1000
        chm_prefetch_release(req)


def test_a_pointer_can_be_moved(dev) -> None:
    assert (dev.ptr(0) + 4096) == dev.ptr(4096)
    with pytest.raises(chm.OutOfRange):
        chm_prefetch_object(dev.ptr(0) + dev.info.capacity_bytes, 1)


def test_the_wait_has_a_limit(sim) -> None:
    req = chm_prefetch_object(sim.ptr(0), MIB)
    with pytest.raises(chm.WaitTimeout):
        chm_prefetch_wait(req, timeout=0.0)
    late = sim.prefetch(0, MIB, not_before_ns=sim.now() + 11 * 10**9)
    with pytest.raises(chm.WaitTimeout):
        chm_prefetch_wait(late)  # 10 s by default
    chm_prefetch_wait(late)
