# SPDX-License-Identifier: Apache-2.0
"""F73: finalisers only enqueue; and what happens to things nobody closed."""

# ruff: noqa: PT012 - what leads to an exception is part of these tests

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest
from kit import MIB, SMALL, fill, pattern, run_python

import chm


class Cycle:
    """Something only the collector can free."""

    def __init__(self, *things: object) -> None:
        self.things = things
        self.me = self


def test_f73_collection_at_any_moment(make) -> None:
    """Abandoned handles are finalised inside allocations of the very calls that hold locks."""
    dev = make("stepped", fault={"seed": 73, "eio_ppm": 300_000})
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for i in range(300):
            Cycle(dev.prefetch(i % 60 * MIB, MIB), dev.batch(1).issue([0], 4096))
            try:
                Cycle(dev.write_begin(i % 60 * MIB, 4096), dev.stream([(0, MIB)]))
                dev.write(i % 60 * MIB, bytes(4096))
            except (chm.WouldBlock, chm.Busy, chm.MediaError):
                pass
            dev.reap()
        gc.collect()
    finally:
        gc.set_threshold(*before)
    stats = dev.stats()
    assert (stats.open, stats.open_writes, stats.window_reserved_bytes) == (0, 0, 0)
    try:
        dev.close()
    except chm.MediaError:
        pass  # half of the flushes failed, and it says so


def test_a_forgotten_device_warns_and_is_closed_by_the_next_open(tmp_path) -> None:
    path, data = tmp_path / "d.chm", pattern(MIB, 1)
    chm.format(path, "16MiB")
    dev = chm.open(path, **SMALL)
    dev.write(0, data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del dev
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning]
    assert "d.chm was not closed" in str(caught[0].message)
    with chm.open(path, **SMALL) as again:  # not "open elsewhere"
        assert np.array_equal(again.read(0, MIB), data)


def test_a_device_lives_while_its_requests_do(make) -> None:
    dev = chm.sim("8MiB", **SMALL)
    data = fill(dev, 0, MIB, seed=2)
    req = dev.prefetch(0, MIB)
    closing = dev._door
    del dev
    gc.collect()
    assert np.array_equal(req.wait().array(), data)
    del req
    closing.close(1.0)


def test_views_alive_when_an_exception_leaves_the_block(tmp_path) -> None:
    path = tmp_path / "d.chm"
    chm.format(path, "16MiB")
    with pytest.raises(ZeroDivisionError), chm.open(path, **SMALL) as dev:
        array = dev.prefetch(0, MIB).wait().array()
        _ = 1 // int(array[0])
    assert not array.any()  # the memory is still there
    assert not dev.closed
    del array
    dev.close()


def test_at_exit_bytes_are_not_lost(tmp_path) -> None:
    """A script that neither closes nor drops its device, and even keeps a view of it."""
    path = tmp_path / "d.chm"
    chm.format(path, "16MiB")
    code = (
        "import chm\n"
        "lazy = {'flush_age_ns': '1h', 'flush_idle_ns': '1h'}\n"
        f"dev = chm.open({str(path)!r}, dram_bytes='32MiB', thread=True, **lazy)\n"
        "dev.write(0, b'\\x07' * 4096)\n"
        "view = dev.prefetch(0, 4096).wait().view()\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    with chm.open(path, **SMALL) as dev:
        assert (dev.read(0, 4096) == 7).all()
