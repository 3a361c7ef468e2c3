# SPDX-License-Identifier: Apache-2.0
"""Writes: begin, fill, commit, abort; what is refused; flush, trim, reading one's own writes."""

# ruff: noqa: PT012 - what leads to an exception is part of these tests

from __future__ import annotations

import numpy as np
import pytest
from kit import MIB, pattern

import chm


def test_begin_fill_commit(dev) -> None:
    data = pattern(MIB, 1)
    write = dev.write_begin(0, MIB)
    assert not write.view.readonly
    write.view[:] = data
    assert not dev.read(0, MIB).any()  # not visible before commit
    write.commit()
    assert np.array_equal(dev.read(0, MIB), data)
    dev.flush()
    assert np.array_equal(dev.read(0, MIB), data)
    assert dev.stats().committed == 1


def test_a_context_commits(dev) -> None:
    data = pattern(MIB, 2)
    with dev.write_begin(MIB, MIB) as write:
        view = write.view
        view[:] = data
    assert np.array_equal(dev.read(MIB, MIB), data)
    with pytest.raises(ValueError, match="released"):
        view[0] = 1
    with pytest.raises(chm.InvalidArgument):
        _ = write.view
    with pytest.raises(chm.InvalidArgument):
        write.commit()
    write.abort()  # nothing left to do


def test_a_context_aborts_on_an_exception(dev) -> None:
    with pytest.raises(ZeroDivisionError), dev.write_begin(0, MIB) as write:
        write.view[:] = pattern(MIB, 3)
        held = np.frombuffer(write.view, np.uint8)
        _ = len(held) // 0
    assert not dev.read(0, MIB).any()
    assert dev.stats().open_writes == 1  # held is still looking
    del held
    stats = dev.stats()
    assert (stats.open_writes, stats.aborted, stats.committed) == (0, 1, 0)


def test_commit_and_abort_refuse_while_an_array_looks(dev) -> None:
    write = dev.write_begin(0, 8192)
    for look in (lambda: np.frombuffer(write.view, np.uint8), lambda: write.view[:10]):
        held = look()
        for end in (write.commit, write.abort):
            with pytest.raises(BufferError, match="alive"):
                end()
        held[0] = 7
        del held
    write.view[1:] = bytes(8191)
    write.commit()
    assert dev.read(0, 1)[0] == 7


def test_a_dropped_write_is_aborted(dev) -> None:
    dev.write_begin(0, MIB)
    stats = dev.stats()
    assert (stats.open_writes, stats.aborted, stats.buffer_used_bytes) == (0, 1, 0)


def test_a_full_buffer_says_so_at_once(make) -> None:
    dev = make("sim")
    held = []
    with pytest.raises(chm.WouldBlock) as caught:
        while True:
            held.append(dev.write_begin(len(held) * MIB, MIB))
    assert isinstance(caught.value, BlockingIOError)
    assert len(held) >= 8
    with pytest.raises(chm.WouldBlock):
        dev.write(0, bytes(MIB))
    for write in held:
        write.abort()
    dev.write(0, bytes(MIB))
    stats = dev.stats()
    assert stats.begun == stats.committed + stats.aborted + stats.open_writes
    assert stats.write_refused == 2


def test_many_at_once(dev) -> None:
    capacity = dev.info.capacity_bytes
    writes = dev.write_begin_many([(0, 4096), (capacity, 4096), (4096, 4096)])
    assert [type(w) for w in writes] == [chm.Write, chm.OutOfRange, chm.Write]
    for i in (0, 2):
        writes[i].view[:] = bytes([i + 1]) * 4096
        writes[i].commit()
    assert dev.read(0, 8192).tolist() == [1] * 4096 + [3] * 4096
    assert dev.write_begin_many([]) == []


def test_what_cannot_be(dev) -> None:
    capacity, half = dev.info.capacity_bytes, dev.info.write_buffer_bytes // 2
    for addr, length, error in [
        (0, 100, chm.InvalidArgument),
        (100, 4096, chm.InvalidArgument),
        (0, 0, chm.InvalidArgument),
        (capacity, 4096, chm.OutOfRange),
        (0, half + 4096, chm.TooLarge),
    ]:
        with pytest.raises(error):
            dev.write_begin(addr, length)
    with pytest.raises(chm.InvalidArgument):
        dev.write(0, bytes(100))


SOURCES = {
    "bytes": lambda data: data.tobytes(),
    "bytearray": lambda data: bytearray(data.tobytes()),
    "float32": lambda data: data.view(np.float32),
    "matrix": lambda data: data.reshape(2, -1),
    "frozen": lambda data: np.frombuffer(data.tobytes(), np.uint8),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sources(dev, name: str) -> None:
    data = pattern(8192, 4)
    dev.write(4096, SOURCES[name](data))
    assert np.array_equal(dev.read(4096, 8192), data)


@pytest.mark.parametrize(
    ("name", "build"),
    {
        "strided": lambda: np.zeros(8192, np.uint8)[::2],
        "reversed": lambda: np.zeros(4096, np.uint8)[::-1],
        "fortran": lambda: np.zeros((64, 64), np.uint8, order="F"),
    }.items(),
)
def test_f12_strided_sources_are_refused_before_any_io(dev, name: str, build) -> None:
    with pytest.raises(ValueError, match="ascontiguousarray"):
        dev.write(0, build())
    assert dev.stats().begun == 0


def test_f12_empty_sources_are_refused(dev) -> None:
    with pytest.raises(ValueError, match="no bytes"):
        dev.write(0, b"")


def test_trim(dev) -> None:
    dev.write(0, pattern(2 * MIB, 5))
    dev.flush()
    dev.trim(MIB, MIB)
    assert not dev.read(MIB, MIB).any()
    assert np.array_equal(dev.read(0, MIB), pattern(2 * MIB, 5)[:MIB])
    with pytest.raises(chm.InvalidArgument):
        dev.trim(1, 4096)


def test_bytes_survive_a_close(tmp_path) -> None:
    path, data = tmp_path / "d.chm", pattern(4 * MIB, 6)
    chm.format(path, "64MiB")
    with chm.open(path, dram_bytes="32MiB") as dev:
        for at in range(0, 4 * MIB, MIB):
            dev.write(at, data[at : at + MIB])
    with chm.open(path, dram_bytes="32MiB", thread=True) as dev:
        assert np.array_equal(dev.read(0, 4 * MIB), data)


def test_strict_commits_are_durable_or_fail(make) -> None:
    dev = make("sim", durability="strict")
    dev.write(0, pattern(4096, 7))
    assert dev.stats().buffer_dirty_bytes == 0
    assert dev.stats().write_ios > 0


def test_a_flush_tells_of_lost_bytes_once(make) -> None:
    dev = make("sim", fault={"script": "0- write err 5"}, durability="none")
    dev.write(0, pattern(4096, 8))
    with pytest.raises(chm.MediaError):
        dev.flush()
    assert dev.stats().lost_bytes == 4096


def test_a_close_tells_of_lost_bytes(make) -> None:
    dev = make("sim", fault={"script": "0- write err 5"}, durability="none")
    dev.write(0, pattern(4096, 8))
    with pytest.raises(chm.MediaError):
        dev.close()
    assert dev.closed
    dev.close()
