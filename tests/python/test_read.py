# SPDX-License-Identifier: Apache-2.0
"""Demand reads into memory of the caller, and what memory is refused (F12)."""

from __future__ import annotations

import array
import errno
import gc
import mmap
import weakref

import numpy as np
import pytest
from kit import MIB, fill, run_until

import chm


@pytest.mark.parametrize(
    ("addr", "length"),
    [(0, MIB), (4096, 4096), (1, 1), (4095, 2), (100, MIB), (4096, 5000), (3 * MIB - 1, MIB)],
)
def test_any_alignment(dev, addr: int, length: int) -> None:
    data = fill(dev, 0, 4 * MIB, seed=1)
    got = dev.read(addr, length)
    assert got.dtype == np.uint8
    assert np.array_equal(got, data[addr : addr + length])


def test_aligned_reads_go_straight_into_the_callers_memory(dev) -> None:
    data = fill(dev, 0, 2 * MIB, seed=2)
    out = chm.aligned_empty(2 * MIB)
    assert out.ctypes.data % chm.PAGE == 0
    got = dev.read(0, out=out)
    assert got.ctypes.data == out.ctypes.data
    assert np.array_equal(out, data)
    stats = dev.stats()
    assert (stats.demand_bytes, stats.demand_copied_bytes) == (2 * MIB, 0)
    dev.read(4097, 100)
    assert dev.stats().demand_copied_bytes > 0


TARGETS = {
    "bytearray": lambda: bytearray(8192),
    "array": lambda: array.array("I", bytes(8192)),
    "float32": lambda: np.empty(2048, np.float32),
    "matrix": lambda: np.empty((2, 4096), np.uint8),
    "mmap": lambda: mmap.mmap(-1, 8192),
    "memoryview": lambda: memoryview(bytearray(9000))[8:8200],
}


@pytest.mark.parametrize("name", TARGETS)
def test_anything_with_the_buffer_protocol(dev, name: str) -> None:
    data = fill(dev, 0, MIB, seed=3)
    out = TARGETS[name]()
    got = dev.read(4096, out=out)
    assert bytes(memoryview(out).cast("B")) == bytes(data[4096 : 4096 + 8192])
    assert got.nbytes == 8192
    del got


REFUSED = {
    "strided": (lambda: np.empty(8192, np.uint8)[::2], "ascontiguousarray"),
    "reversed": (lambda: np.empty(8192, np.uint8)[::-1], "ascontiguousarray"),
    "fortran": (lambda: np.empty((64, 64), np.uint8, order="F"), "ascontiguousarray"),
    "column": (lambda: np.empty((64, 64), np.uint8)[:, 0], "ascontiguousarray"),
    "empty": (lambda: np.empty(0, np.uint8), "no bytes"),
    "read-only": (lambda: bytes(4096), "read-only"),
    "frozen": (lambda: np.broadcast_to(np.uint8(1), (1,)), "read-only"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_f12_memory_that_is_refused_before_any_io(sim, name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        sim.read(0, out=build())
    with pytest.raises(ValueError, match=message):
        sim.read_many([(0, 4096), (0, build())])
    stats = sim.stats()
    assert (stats.demand_reads, stats.read_ios) == (0, 0)


def test_f12_other_mistakes(sim) -> None:
    with pytest.raises(TypeError, match="buffer protocol"):
        sim.read(0, out=[1, 2, 3])
    with pytest.raises(ValueError, match="8192"):
        sim.read(0, 4096, out=bytearray(8192))
    for length in (0, None):
        with pytest.raises(ValueError, match="at least 1"):
            sim.read(0, length)
    with pytest.raises(chm.OutOfRange):
        sim.read(sim.info.capacity_bytes - 1, 2)
    assert sim.stats().read_ios == 0


def test_f12_a_target_cannot_move_while_io_runs(make) -> None:
    dev = make("sim", fault={"script": "0 read late 50000000"})
    out = bytearray(4096)
    with pytest.raises(chm.WaitTimeout):
        dev.read(0, out=out, timeout=0.001)
    with pytest.raises(BufferError):
        out.append(1)
    dev.stats()
    with pytest.raises(BufferError):
        out.append(1)
    run_until(dev, dev.now() + 100_000_000)
    dev.stats()  # any call notices that the I/O has ended
    out.append(1)


def test_memory_of_a_read_nobody_waits_for_stays_alive(make) -> None:
    dev = make("sim", fault={"script": "0 read late 50000000"})
    out = chm.aligned_empty(4096)
    alive = weakref.ref(out)
    try:
        dev.read(0, out=out, timeout=0.001)
    except chm.WaitTimeout:
        pass  # pytest.raises would keep the traceback, and with it the array
    del out
    gc.collect()
    assert alive() is not None
    dev.quiesce()
    assert alive() is None


def test_f94_failed_reads_are_named(make) -> None:
    dev = make("sim", fault={"script": "4 read err 5"}, read_unit=MIB)
    data = fill(dev, 0, 8 * MIB, seed=4)
    outs = [chm.aligned_empty(MIB) for _ in range(8)]  # so that each is one I/O
    results = dev.read_many([(i * MIB, outs[i]) for i in range(8)])
    for i, result in enumerate(results):
        if i == 4:
            assert isinstance(result, chm.MediaError)
            assert result.errno == errno.EIO
        else:
            assert np.array_equal(result, data[i * MIB : (i + 1) * MIB])
            assert result.ctypes.data == outs[i].ctypes.data


def test_many_with_none_and_with_lengths(sim) -> None:
    assert sim.read_many([]) == []
    results = sim.read_many([(0, 10), (0, np.int64(20)), (sim.info.capacity_bytes, 4096)])
    assert [getattr(result, "nbytes", None) for result in results] == [10, 20, None]
    assert isinstance(results[2], chm.OutOfRange)


def test_unwritten_space_reads_as_zeros(dev) -> None:
    assert not dev.read(8 * MIB, MIB).any()


def test_registered_memory(dev) -> None:
    data = fill(dev, 0, MIB, seed=5)
    out = chm.aligned_empty(MIB)
    out[:] = 0
    dev.register(out)
    dev.read(0, out=out)
    assert np.array_equal(out, data)
    dev.unregister(out)
    with pytest.raises(chm.InvalidArgument):
        dev.register(np.empty(100, np.uint8))


def test_registered_memory_cannot_be_resized(dev) -> None:
    memory = mmap.mmap(-1, MIB)
    dev.register(memory)
    with pytest.raises(BufferError):
        memory.resize(2 * MIB)
    dev.unregister(memory)
    memory.resize(2 * MIB)
