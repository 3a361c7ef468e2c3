# SPDX-License-Identifier: Apache-2.0
"""Streams: order, bytes, pieces that are looked at for longer, and the ways they end."""

# ruff: noqa: PT012 - what leads to an exception is part of these tests

from __future__ import annotations

import errno

import numpy as np
import pytest
from kit import MIB, fill

import chm
from chm.stream import next_many

RANGES = [(i * 2 * MIB, 2 * MIB) for i in range(16)]


def collect(stream: chm.Stream) -> bytes:
    return b"".join(bytes(piece.view()) for piece in stream)


def test_pieces_in_order(dev) -> None:
    data = fill(dev, 0, 32 * MIB, seed=1)
    pieces = []
    with dev.stream(RANGES, segment="1MiB") as stream:
        for piece in stream:
            assert piece.view().readonly
            at = RANGES[piece.object][0] + piece.offset
            assert np.array_equal(piece.array(), data[at : at + piece.length])
            pieces.append((piece.object, piece.offset, piece.last))
        info = stream.info
        assert info.whole_objects == 16
        assert info.delivered_bytes == info.ready_bytes == 32 * MIB
    assert pieces == [(i, at, at > 0) for i in range(16) for at in (0, MIB)]
    assert dev.stats().window_pinned_bytes == 0
    assert dev.stats().window_reserved_bytes == 0


def test_an_array_of_the_last_round_is_no_obstacle(dev) -> None:
    """`array` lives until the loop binds it anew: its piece is given back one step later."""
    data = fill(dev, 0, 32 * MIB, seed=2)
    at = 0
    for piece in dev.stream(RANGES, segment="1MiB"):
        array = piece.array()
        assert np.array_equal(array, data[at : at + len(array)])
        at += len(array)
    assert at == 32 * MIB
    del array, piece
    assert dev.stats().window_pinned_bytes == 0


def test_views_kept_for_longer_end_in_deadlock_at_once(sim) -> None:
    data = fill(sim, 0, 32 * MIB, seed=3)
    stream = sim.stream(RANGES, segment="1MiB", window="4MiB")
    kept = []
    with pytest.raises(chm.Deadlock, match="views of 4 earlier pieces"):
        for piece in stream:
            kept.append(piece.array())
    assert len(kept) == 4
    with pytest.raises(BufferError):
        stream.close()
    assert all(np.array_equal(kept[i], data[i * MIB : (i + 1) * MIB]) for i in range(4))
    del kept[0]
    del piece
    assert np.array_equal(next(stream).array(), data[4 * MIB : 5 * MIB])
    kept.clear()
    stream.close()


def test_keep_leaves_release_to_the_caller(sim) -> None:
    fill(sim, 0, 32 * MIB, seed=4)
    stream = sim.stream(RANGES, segment="1MiB", window="4MiB", keep=True)
    held = [next(stream) for _ in range(4)]
    with pytest.raises(chm.Deadlock):
        next(stream)
    held.pop(1).release()  # in any order
    held.append(next(stream))
    del held[0]  # dropped is as good as released
    held.append(next(stream))
    assert stream.info.held == 4
    stream.close()
    for piece in held:
        piece.release()
        with pytest.raises(chm.StaleHandle):
            piece.view()


def test_the_deadline_leaves_a_usable_prefix(make) -> None:
    dev = make("sim", sim={"read_rate": "1GB/s"})
    fill(dev, 0, 32 * MIB, seed=5)
    stream = dev.stream(RANGES, segment="1MiB", deadline_s=0.012)
    got = 0
    with pytest.raises(chm.Expired):
        for piece in stream:
            got += piece.length
    assert 0 < got < 32 * MIB
    info = stream.info
    assert info.whole_objects == got // (2 * MIB)
    assert info.status == -errno.ETIME
    with pytest.raises(chm.Expired):  # final
        stream.next()


def test_a_wait_that_times_out_can_be_repeated(sim) -> None:
    data = fill(sim, 0, 32 * MIB, seed=6)
    stream = sim.stream(RANGES, not_before_ns=sim.now() + 5_000_000)
    with pytest.raises(chm.WaitTimeout):
        stream.next(timeout=0.001)
    assert collect(stream) == data.tobytes()


def test_an_error_is_final_and_where_it_was(make) -> None:
    dev = make("sim", fault={"script": "5 read err 5"}, read_unit=MIB)
    data = fill(dev, 0, 32 * MIB, seed=7)
    stream = dev.stream(RANGES, segment="1MiB")
    got = b""
    with pytest.raises(chm.MediaError):
        for piece in stream:
            got += bytes(piece.view())
    assert got == data[: 5 * MIB].tobytes()
    assert stream.info.whole_objects == 2
    with pytest.raises(chm.MediaError):
        stream.next()


def test_whole_objects(sim) -> None:
    fill(sim, 0, 8 * MIB, seed=8)
    pieces = [
        (p.object, p.length, p.last) for p in sim.stream(RANGES[:4], whole=True, segment="1MiB")
    ]
    assert pieces == [(i, 2 * MIB, True) for i in range(4)]


@pytest.mark.parametrize("kind", ["sim", "thread"])
def test_many_streams_at_once(make, kind: str) -> None:
    dev = make(kind)
    data = fill(dev, 0, 32 * MIB, seed=9)
    streams = [dev.stream(RANGES, segment="1MiB", window="2MiB") for _ in range(6)]
    for at in range(0, 32 * MIB, MIB):
        for stream in streams:
            assert bytes(next(stream).view()[:64]) == data[at : at + 64].tobytes()
    for stream in streams:
        with pytest.raises(StopIteration):
            stream.next()
        stream.close()


def test_dropping_and_leaving_by_exception(dev) -> None:
    fill(dev, 0, 32 * MIB, seed=10)
    next(dev.stream(RANGES))
    with pytest.raises(ZeroDivisionError), dev.stream(RANGES) as stream:
        held = next(stream).array()
        _ = len(held) // 0
    first = bytes(held[:64])
    assert dev.stats().window_pinned_bytes > 0
    assert bytes(held[:64]) == first
    del held
    dev.quiesce()
    stats = dev.stats()
    assert (stats.open, stats.window_pinned_bytes, stats.window_reserved_bytes) == (0, 0, 0)


def test_an_array_outlives_its_dropped_stream(sim) -> None:
    data = fill(sim, 0, 32 * MIB, seed=11)
    array = next(sim.stream(RANGES, segment="1MiB", window="2MiB")).array()
    for at in range(16, 32):
        with sim.prefetch(at * MIB, MIB):
            pass
    assert np.array_equal(array, data[:MIB])


def test_closing_the_device_closes_its_streams(make) -> None:
    dev = make("sim")
    stream = dev.stream(RANGES)
    piece = next(stream)
    dev.close()
    piece.release()
    stream.close()
    with pytest.raises(chm.InvalidArgument):
        next(stream)


def test_what_cannot_be(sim) -> None:
    with pytest.raises(chm.OutOfRange):
        sim.stream([(0, sim.info.capacity_bytes + 4096)])
    with pytest.raises(chm.InvalidArgument):
        sim.stream([(0, 100)])
    with pytest.raises(chm.InvalidArgument):
        sim.stream([])
    with pytest.raises(ValueError, match="size"):
        sim.stream(RANGES, segment="1 furlong")


def test_next_many_looks_at_each_once() -> None:
    """One piece of each as it comes; a look that waits waits for the first stream only."""
    with chm.sim("64MiB", dram_bytes="64MiB") as dev:
        for i in range(4):
            dev.write(i * MIB, np.full(MIB, i, np.uint8))
        dev.flush()
        streams = [dev.stream([(i * MIB, MIB)]) for i in range(4)]
        assert next_many(streams) == [None] * 4  # nothing was read yet
        pieces = next_many(streams[::-1], 1.0)  # the last one waits, the others went on meanwhile
        assert [p.array()[0] for p in pieces if isinstance(p, chm.Piece)] == [3, 2, 1, 0]
        (end,) = next_many(streams[:1])
        assert isinstance(end, chm.ChmError)
        assert end.errno == errno.ENODATA
        del pieces
        for stream in streams:
            stream.close()
        with pytest.raises(chm.InvalidArgument):
            next_many(streams)
    assert next_many([]) == []
