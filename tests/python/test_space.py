# SPDX-License-Identifier: Apache-2.0
"""Objects: put, get, read, stream, delete, hold; and that nothing is left of what failed."""

# ruff: noqa: PT012 - what leads to an exception is part of these tests

from __future__ import annotations

import random

import numpy as np
import pytest
from kit import MIB, pattern

import chm


@pytest.fixture
def space(dev):
    with chm.Space(dev) as space:
        yield space


@pytest.fixture
def simple(sim):
    return chm.Space(sim)


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, MIB, 5 * MIB + 17, 20 * MIB + 1])
def test_f08_exact_lengths_come_back(space, length: int) -> None:
    data = pattern(length, length)
    obj = space.put(data)
    assert obj.length == length
    assert obj.addr % chm.PAGE == 0
    assert space.get(obj.id) == obj
    assert np.array_equal(space.read(obj), data)
    with space.stream([obj], segment="1MiB") as stream:
        assert b"".join(bytes(p.view()) for p in stream) == data.tobytes()
    assert space.stats.payload_bytes == length


def test_a_put_without_a_copy(space) -> None:
    data = pattern(20 * MIB + 100, 1)
    with space.put_begin(len(data)) as put:
        at = 0
        for view in put.pieces():
            with pytest.raises(chm.NotFound):  # never visible before it is whole
                space.get(put.object.id)
            view[:] = data[at : at + len(view)]
            at += len(view)
    assert at == len(data)
    assert np.array_equal(space.read(put.object), data)
    with pytest.raises(ValueError, match="released"):
        view[0] = 1


def test_an_aborted_put_leaves_nothing(space) -> None:
    before = space.stats
    with pytest.raises(ZeroDivisionError), space.put_begin(20 * MIB) as put:
        for view in put.pieces():
            view[:] = bytes(len(view))
            _ = 1 // 0
    put.abort()
    with pytest.raises(chm.InvalidArgument):
        put.commit()
    with pytest.raises(chm.NotFound):
        space.get(put.object.id)
    after = space.stats
    assert (after.used_bytes, after.puts_open, after.put_aborts) == (0, 0, before.put_aborts + 1)


def test_a_put_with_missing_pieces_is_refused_and_gone(simple) -> None:
    with pytest.raises(chm.InvalidArgument), simple.put_begin(20 * MIB) as put:
        next(put.pieces())
    assert simple.stats.used_bytes == 0


def test_a_dropped_put_is_aborted(simple) -> None:
    simple.put_begin(MIB)
    view = next(simple.put_begin(MIB).pieces())
    assert simple.stats.puts_open == 1  # view is still looking
    del view
    assert (simple.stats.puts_open, simple.stats.used_bytes) == (0, 0)


def test_an_array_of_the_last_piece_blocks_the_next(simple) -> None:
    put = simple.put_begin(20 * MIB)
    pieces = put.pieces()
    array = np.frombuffer(next(pieces), np.uint8)
    with pytest.raises(BufferError):
        next(pieces)
    with pytest.raises(BufferError):
        put.abort()
    del array
    put.abort()


def test_waiting_for_room(make) -> None:
    dev = make("sim", fault={"script": "0- write late 20000000"})
    space = chm.Space(dev)
    kept = [space.put(pattern(MIB, i)) for i in range(40)]  # more than the write buffer
    for i, obj in enumerate(kept):
        assert np.array_equal(space.read(obj), pattern(MIB, i))


def test_a_put_that_finds_no_room_leaves_nothing(make) -> None:
    dev = make("sim", fault={"script": "0- write never"})
    space = chm.Space(dev)
    held = [dev.write_begin(48 * MIB + i * MIB, MIB) for i in range(12)]
    used = space.stats.used_bytes
    for length in (7 * MIB, 20 * MIB):
        with pytest.raises(chm.WaitTimeout):
            space.put(bytes(length), timeout=0.05)
    assert (space.stats.used_bytes, space.stats.puts_open) == (used, 0)
    for write in held:
        write.abort()
    space.close()
    with pytest.raises(chm.WaitTimeout):
        dev.close()


def test_parts_of_objects(space) -> None:
    data = pattern(2 * MIB + 5, 2)
    obj = space.put(data)
    out = np.empty(1000, np.uint8)
    assert np.array_equal(space.read(obj, 999, 1000, out=out), data[999:1999])
    assert np.array_equal(out, data[999:1999])
    assert np.array_equal(space.read(obj, 2 * MIB), data[2 * MIB :])
    for offset, length in [(-1, 10), (0, len(data) + 1), (len(data), 1)]:
        with pytest.raises(chm.InvalidArgument):
            space.read(obj, offset, length)


def test_delete_and_hold(space) -> None:
    data = pattern(MIB, 3)
    obj = space.put(data)
    space.hold(obj)
    space.delete(obj)
    with pytest.raises(chm.NotFound):
        space.get(obj.id)
    assert space.stats.used_bytes == MIB
    with pytest.raises(chm.Busy):
        space.close()
    with space._device.prefetch(*obj.extent) as req:
        assert np.array_equal(req.array(), data)
    space.drop(obj)
    assert space.stats.used_bytes == 0


def test_a_stream_holds_its_objects(space) -> None:
    objs = [space.put(pattern(MIB, i)) for i in range(3)]
    with space.stream(objs) as stream:
        for obj in objs:
            space.delete(obj)
        space.put(bytes(MIB))  # not into a place that is still read
        assert [bytes(p.view()) for p in stream] == [pattern(MIB, i).tobytes() for i in range(3)]
    assert space.stats.used_bytes == MIB
    with pytest.raises(chm.NotFound):
        space.stream(objs)
    assert space.stats.held == 0


def test_f93_an_empty_object_is_refused(space) -> None:
    with pytest.raises(ValueError, match="no bytes"):
        space.put(b"")
    with pytest.raises(chm.InvalidArgument):
        space.put_begin(0)


def test_f37_everything_deleted_is_one_extent_again(simple) -> None:
    rng = random.Random(37)
    objs: list[chm.Object] = []
    for _ in range(400):
        try:
            objs.append(simple.put(bytes(rng.choice([1, 5000, 70_000, MIB, 3 * MIB]))))
        except chm.DeviceFull:
            stats = simple.stats
            assert stats.largest_free_bytes < 3 * MIB
            simple.delete(objs.pop(rng.randrange(len(objs))))
        stats = simple.stats
        assert stats.used_bytes + stats.free_bytes == stats.total_bytes
        assert stats.payload_bytes == sum(obj.length for obj in objs)
    for obj in objs:
        simple.delete(obj)
    stats = simple.stats
    assert (stats.used_bytes, stats.objects, stats.free_extents) == (0, 0, 1)
    assert stats.largest_free_bytes == stats.total_bytes


def test_a_space_dropped_before_its_stream(sim) -> None:
    space = chm.Space(sim)
    stream = space.stream([space.put(pattern(MIB, 1))])
    del space
    sim.stats()  # cannot be given back yet
    assert bytes(next(stream).view()) == pattern(MIB, 1).tobytes()
    del stream
    sim.close()


def test_bounds(sim) -> None:
    with chm.Space(sim, base="8MiB", length="4MiB", objects_max=2) as space:
        objs = [space.put(b"x"), space.put(b"y")]
        assert all(8 * MIB <= obj.addr < 12 * MIB for obj in objs)
        with pytest.raises(chm.TableFull):
            space.put(b"z")
        space.delete(objs[0])
        with pytest.raises(chm.DeviceFull):
            space.put(bytes(4 * MIB))
    with pytest.raises(chm.InvalidArgument):
        space.put(b"closed")


def test_closing_the_device_closes_the_space(make) -> None:
    dev = make("sim")
    space = chm.Space(dev)
    obj = space.put(b"x")
    space.hold(obj)
    put = space.put_begin(MIB)
    dev.close()
    put.abort()
    space.close()
    with pytest.raises(chm.InvalidArgument):
        space.get(obj.id)
