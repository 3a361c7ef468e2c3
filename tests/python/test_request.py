# SPDX-License-Identifier: Apache-2.0
"""Requests: issue, wait, look, release, and every way of not doing it in that order."""

# ruff: noqa: PT012 - what leads to an exception is part of these tests

from __future__ import annotations

import errno
import gc
import random
import threading

import numpy as np
import pytest
from kit import MIB, fill, pattern, run_until

import chm


def test_the_bytes_are_there_without_a_copy(dev) -> None:
    data = fill(dev, 0, 2 * MIB, seed=1)
    with dev.prefetch(0, 2 * MIB) as req:
        view = req.view()
        assert view.readonly
        assert view.nbytes == 2 * MIB
        assert np.array_equal(np.frombuffer(view, np.uint8), data)
        array = req.array(np.uint32)
        assert not array.flags.writeable
        assert not array.flags.owndata
        assert np.array_equal(array, data.view(np.uint32))
        assert req.array().ctypes.data == array.ctypes.data
        del view, array
    assert dev.stats().window_pinned_bytes == 0


LOOKS = {
    "memoryview": lambda req: req.view(),
    "slice": lambda req: req.view()[10:20],
    "array": lambda req: req.array(),
    "asarray": lambda req: np.asarray(req.view()),
    "array slice": lambda req: req.array()[::2],
    "view of array": lambda req: req.array().view(np.uint16)[1:],
}


@pytest.mark.parametrize("name", LOOKS)
def test_nothing_outlives_its_lease(sim, name: str) -> None:
    fill(sim, 0, MIB, seed=1)
    req = sim.prefetch(0, MIB).wait()
    look = LOOKS[name](req)
    with pytest.raises(BufferError, match="alive"):
        req.release()
    with pytest.raises(BufferError, match="alive"):
        sim.release_many([req])
    with pytest.raises(BufferError, match="1 views"):
        sim.close()
    assert bytes(look[:1])  # still the right to look
    del look
    req.release()
    req.release()
    assert sim.stats().window_pinned_bytes == 0


def test_a_released_request_answers_stale(dev) -> None:
    req = dev.prefetch(0, MIB).wait()
    req.release()
    for call in (req.wait, req.view, req.array, lambda: req.progress):
        with pytest.raises(chm.StaleHandle):
            call()
    assert req.done
    assert req.id == 0
    assert "released" in repr(req)


def test_an_exception_is_not_hidden_by_its_views(sim) -> None:
    with pytest.raises(ZeroDivisionError), sim.prefetch(0, MIB) as req:
        held = req.view()
        _ = len(held) // 0
    assert req.id == 0
    assert sim.stats().window_pinned_bytes == MIB
    del held
    assert sim.stats().window_pinned_bytes == 0


def test_entering_waits_and_gives_back_what_failed(make) -> None:
    dev = make("sim", fault={"script": "0 read err 5"})
    with pytest.raises(chm.MediaError), dev.prefetch(0, MIB):
        pytest.fail("entered")
    stats = dev.stats()
    assert (stats.failed, stats.window_pinned_bytes, stats.open) == (1, 0, 0)


def test_a_wait_that_times_out_changes_nothing(sim) -> None:
    data = fill(sim, 0, MIB, seed=2)
    req = sim.prefetch(0, MIB)
    with pytest.raises(chm.WaitTimeout) as caught:
        req.wait(timeout=1e-6)
    assert isinstance(caught.value, TimeoutError)
    assert not req.done
    with pytest.raises(chm.WouldBlock, match="wait"):
        req.view()
    req.wait(timeout=1.0)
    assert req.done
    assert np.array_equal(req.array(), data)


def test_progress_grows_and_can_be_looked_at(make) -> None:
    dev = make("sim", read_unit=MIB, sim={"read_rate": "1GB/s"})
    data = fill(dev, 0, 8 * MIB, seed=3)
    req = dev.prefetch(0, 8 * MIB)
    assert req.view(partial=True).nbytes == 0
    seen = [0]
    while not req.done:
        dev.step(dev.now() + 500_000)
        seen.append(req.progress)
        view = req.view(partial=True)
        assert view.nbytes == seen[-1]
        assert np.array_equal(np.frombuffer(view, np.uint8), data[: view.nbytes])
        del view
    assert seen == sorted(seen)
    assert seen[-1] == 8 * MIB
    assert len(set(seen)) > 4


def test_f25_a_result_never_changes(make) -> None:
    dev = make("sim", fault={"script": "0 read err 5"})
    failed, good = dev.prefetch(0, MIB), dev.prefetch(MIB, MIB)
    for _ in range(5):
        with pytest.raises(chm.MediaError):
            failed.wait()
        assert failed.done
        good.wait()
        assert good.done
    with pytest.raises(chm.MediaError):
        failed.view()


def test_f10_release_before_wait(make) -> None:
    """The slot of a late read is not reused before it ended: no later lease shows its bytes."""
    dev = make("sim", fault={"script": "0-7 read late 50000000"}, read_unit=MIB)
    window = dev.info.window_bytes // MIB * MIB
    data = fill(dev, 0, 2 * window, seed=4)
    late = [dev.prefetch(at, MIB) for at in range(0, 8 * MIB, MIB)]
    for req in late:
        req.release()
    for at in range(window, 2 * window, MIB):
        with dev.prefetch(at, MIB) as req:
            assert np.array_equal(req.array(), data[at : at + MIB])
    dev.quiesce()
    stats = dev.stats()
    assert (stats.window_pinned_bytes, stats.open, stats.cancelled) == (0, 0, 8)


def test_f13_abandoned_requests_are_given_back(dev) -> None:
    def in_a_thread() -> None:
        dev.prefetch(0, MIB).wait()

    dev.prefetch(0, MIB)  # never waited for
    dev.prefetch(MIB, MIB).wait()  # never released
    with pytest.raises(ZeroDivisionError):
        _ = dev.prefetch(2 * MIB, MIB).length // 0
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    dropped = [dev.prefetch(at * MIB, MIB) for at in range(4)]
    dropped.append(dropped)  # only the collector can tell that nobody has them
    del dropped
    gc.collect()
    dev.quiesce()
    stats = dev.stats()
    assert stats.open == 0
    assert stats.window_pinned_bytes == 0
    assert stats.issued == stats.ready + stats.failed + stats.expired + stats.cancelled


def test_a_view_keeps_an_abandoned_request(dev) -> None:
    data = fill(dev, 0, MIB, seed=5)
    array = dev.prefetch(0, MIB).wait().array()
    for at in range(1, 60):
        dev.prefetch(at * MIB, MIB).wait()
    assert np.array_equal(array, data)
    assert dev.stats().window_pinned_bytes == MIB
    del array
    assert dev.stats().window_pinned_bytes == 0


@pytest.mark.parametrize("kind", ["sim", "thread"])
def test_f18_issue_and_cancel_at_random_delays(make, kind: str) -> None:
    dev = make(kind, fault={"seed": 1, "late_ppm": 50_000, "late_ns": "200us"})
    rng = random.Random(18)
    held: list[chm.Request] = []
    for round_ in range(10_000):
        length = rng.choice([4096, 65536, MIB])
        try:
            held.append(dev.prefetch(rng.randrange(63) * MIB, length, nowait=True))
        except chm.WouldBlock:
            pass
        if kind == "sim" and round_ % 7 == 0:
            run_until(dev, dev.now() + rng.randrange(300_000))
        while held and (len(held) > 30 or rng.random() < 0.45):
            held.pop(rng.randrange(len(held))).release()
    for req in held:
        req.release()
    dev.quiesce()
    stats = dev.stats()
    assert (stats.open, stats.window_pinned_bytes, stats.window_waiting) == (0, 0, 0)
    assert stats.issued == stats.ready + stats.failed + stats.expired + stats.cancelled
    largest = dev.info.window_bytes // MIB * MIB
    with dev.prefetch(0, largest):  # the whole window is there again
        pass


def test_f20_a_full_window_says_so_and_recovers(make) -> None:
    dev = make("sim")
    window = dev.info.window_bytes // MIB
    pins = [dev.prefetch(i * MIB, MIB).wait() for i in range(window)]
    with pytest.raises(chm.WouldBlock):
        dev.prefetch(40 * MIB, MIB, nowait=True)
    before = dev.now()
    starved = dev.prefetch(40 * MIB, MIB, queue_s=0.5)
    with pytest.raises(chm.Expired):
        starved.wait()
    assert dev.now() - before == 500_000_000
    waiting = dev.prefetch(40 * MIB, MIB)
    pins.pop().release()
    waiting.wait(timeout=1.0)


def test_f28_ten_thousand_objects_through_a_window_of_few(make) -> None:
    size = 64 << 10
    dev = make("sim", MIB * 2, dram_bytes="1664KiB", write_buffer_bytes=MIB, requests_max=28)
    assert dev.info.window_bytes == 8 * size
    data = pattern(32 * size, 6)
    for at in range(0, len(data), size):
        dev.write(at, data[at : at + size])
        dev.flush()
    todo, waiting, seen = iter(range(10_000)), [], 0
    upcoming = next(todo, None)
    while upcoming is not None or waiting:
        while upcoming is not None:
            try:
                req = dev.prefetch(upcoming % 32 * size, size, queue_s=float("inf"))
            except chm.Busy:
                break
            waiting.append((upcoming, req))
            upcoming = next(todo, None)
        index, req = waiting.pop(0)
        assert index == seen
        with req:
            at = index % 32 * size
            assert bytes(req.view()[:64]) == bytes(data[at : at + 64])
        seen += 1
    assert seen == 10_000
    assert dev.stats().window_peak_bytes <= dev.info.window_bytes


def test_what_cannot_be(dev) -> None:
    capacity, window = dev.info.capacity_bytes, dev.info.window_bytes
    for addr, length, error in [
        (0, 100, chm.InvalidArgument),
        (100, 4096, chm.InvalidArgument),
        (0, 0, chm.InvalidArgument),
        (capacity, 4096, chm.OutOfRange),
        (capacity - 4096, 8192, chm.OutOfRange),
        (0, window + MIB, chm.TooLarge),
    ]:
        with pytest.raises(error):
            dev.prefetch(addr, length)
    with pytest.raises(OverflowError):
        dev.prefetch(-4096, 4096)
    assert dev.stats().open == 0


def test_expiry_and_its_options(make) -> None:
    dev = make("sim")
    short, forever = (
        dev.prefetch(0, MIB, expire_s=1.0),
        dev.prefetch(MIB, MIB, expire_s=float("inf")),
    )
    run_until(dev, dev.now() + 200 * 10**9)
    with pytest.raises(chm.Expired):
        short.wait()
    forever.wait()


def test_not_before(sim) -> None:
    at = sim.now() + 10_000_000
    req = sim.prefetch(0, MIB, not_before_ns=at)
    with pytest.raises(chm.WaitTimeout):
        req.wait(timeout=0.009)
    assert sim.stats().read_ios == 0
    req.wait()
    assert sim.now() > at


def test_two_requests_for_one_range_share_it(dev) -> None:
    fill(dev, 0, MIB, seed=7)
    first, second = dev.prefetch(0, MIB), dev.prefetch(0, MIB)
    assert dev.wait_many([first, second]) == [0, 0]
    assert first.array().ctypes.data == second.array().ctypes.data
    assert dev.stats().shared == 1


def test_overwriting_under_a_held_view(dev) -> None:
    old, new = fill(dev, 0, MIB, seed=8), pattern(MIB, 9)
    with dev.prefetch(0, MIB) as held:
        dev.write(0, new)
        with dev.prefetch(0, MIB) as fresh:
            assert np.array_equal(held.array(), old)
            assert np.array_equal(fresh.array(), new)
        dev.trim(0, MIB)
        with dev.prefetch(0, MIB) as gone:
            assert not gone.array().any()
        assert np.array_equal(held.array(), old)


# -- many at a time ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 8])
def test_f91_one_result_for_each_item_in_order(dev, n: int) -> None:
    data = fill(dev, 0, 8 * MIB, seed=10)
    reqs = dev.prefetch_many((i * MIB, MIB) for i in range(n))
    assert dev.wait_many(reqs) == [0] * n
    for i, req in enumerate(reqs):
        assert req.addr == i * MIB
        assert np.array_equal(req.array(), data[i * MIB : (i + 1) * MIB])
    dev.release_many(reqs)
    assert dev.stats().open == 0


def test_f94_the_fifth_of_eight_fails(make) -> None:
    dev = make("sim", fault={"script": "4 read err 5"}, read_unit=MIB)
    data = fill(dev, 0, 8 * MIB, seed=11)
    reqs = dev.prefetch_many([(i * MIB, MIB) for i in range(8)])
    statuses = dev.wait_many(reqs)
    assert statuses == [0, 0, 0, 0, -errno.EIO, 0, 0, 0]
    for i, req in enumerate(reqs):
        if i == 4:
            with pytest.raises(chm.MediaError):
                req.view()
        else:
            assert np.array_equal(req.array(), data[i * MIB : (i + 1) * MIB])
    dev.release_many(reqs)


def test_items_that_cannot_be_issued(sim) -> None:
    capacity = sim.info.capacity_bytes
    good, beyond, odd = sim.prefetch_many([(0, 4096), (capacity, 4096), (0, 5)])
    assert isinstance(good, chm.Request)
    assert isinstance(beyond, chm.OutOfRange)
    assert isinstance(odd, chm.InvalidArgument)
    assert hex(capacity) in str(beyond)


def test_waiting_for_many_with_a_limit(sim) -> None:
    late = sim.prefetch(0, MIB, not_before_ns=sim.now() + 10**9)
    soon = sim.prefetch(MIB, MIB)
    assert sim.wait_many([late, soon], timeout=0.1) == [-errno.ETIMEDOUT, 0]
    assert sim.wait_many([late, soon], timeout=10) == [0, 0]


def test_a_batch_goes_round(dev) -> None:
    data = fill(dev, 0, 16 * MIB, seed=12)
    batch = dev.batch(8)
    for first in (0, 8):
        addrs = np.arange(first, first + 8, dtype=np.uint64) * MIB
        with batch.issue(addrs, MIB):
            assert batch.count == 8
            assert batch.wait() == 8
            assert batch.status.tolist() == [0] * 8
            for at, view in zip(addrs.tolist(), batch.views(), strict=True):
                assert view.readonly
                assert np.array_equal(np.frombuffer(view, np.uint8), data[at : at + MIB])
            del view
        assert batch.count == 0
    assert dev.stats().open == 0


def test_a_batch_tells_each_item(make) -> None:
    dev = make("sim", fault={"script": "1 read err 5"}, read_unit=MIB)
    data = fill(dev, 0, 4 * MIB, seed=13)
    batch = dev.batch(8)
    batch.issue([0, MIB, dev.info.capacity_bytes, 3 * MIB], MIB)
    assert batch.wait() == 2
    assert batch.status[:4].tolist() == [0, -errno.EIO, -errno.ERANGE, 0]
    views = batch.views()
    assert [view is None for view in views] == [False, True, True, False]
    assert np.array_equal(np.frombuffer(views[3], np.uint8), data[3 * MIB :])
    with pytest.raises(chm.Busy):
        batch.issue([0], MIB)
    with pytest.raises(BufferError):
        batch.release()
    del views
    batch.release()
    batch.release()
    assert dev.stats().open == 0


def test_a_batch_filled_in_place_and_waited_for_in_parts(sim) -> None:
    batch = sim.batch(2)
    batch.addr[:] = 0, MIB
    batch.length[:] = 4096
    batch.issue()
    assert batch.wait(timeout=0) == 0
    assert batch.status.tolist() == [-errno.ETIMEDOUT] * 2
    assert batch.wait(timeout=1) == 2
    batch.release()


def test_views_of_a_batch_that_is_ready_by_and_by(make) -> None:
    """Views asked for again, while the first live and more is ready, show their own bytes."""
    dev = make("sim", fault={"script": "0 read late 5000000"}, read_unit=MIB)
    data = fill(dev, 0, 4 * MIB, seed=14)
    batch = dev.batch(4).issue([0, MIB, 2 * MIB, 3 * MIB], MIB)
    assert batch.wait(timeout=0.003) == 3
    some = batch.views()
    assert some[0] is None
    assert batch.wait() == 4
    for i, view in enumerate(batch.views()):
        assert np.array_equal(np.frombuffer(view, np.uint8), data[i * MIB : (i + 1) * MIB])
    del some, view
    batch.release()


def test_a_batch_has_its_size_and_options(sim) -> None:
    batch = sim.batch(2)
    for wrong in (lambda: batch.issue([0, 1, 2], MIB), lambda: batch.issue(count=3)):
        with pytest.raises(ValueError, match="2"):
            wrong()
    with pytest.raises(ValueError, match="0"):
        sim.batch(0)
    at = sim.now() + 10_000_000
    with batch.issue([0], MIB, not_before_ns=at):
        assert batch.wait() == 1
    assert sim.now() > at


def test_a_dropped_batch_is_given_back(sim) -> None:
    batch = sim.batch(4)
    batch.issue(np.arange(4) * MIB, MIB)
    batch.wait()
    view = batch.views()[2]
    del batch
    assert sim.stats().window_pinned_bytes == 4 * MIB
    del view
    assert sim.stats().window_pinned_bytes == 0


def test_reap_tells_once_in_order_of_ending(make) -> None:
    dev = make("sim", fault={"script": "0 read late 5000000\n1 read err 5"}, read_unit=MIB)
    dev.reap()
    slow, bad, good = (dev.prefetch(i * MIB, MIB) for i in range(3))
    dev.wait_many([slow, bad, good])
    assert dev.reap() == [bad.id, good.id, slow.id]
    assert dev.reap() == []


def test_f26_f29_the_descriptor_wakes_a_lone_client(make) -> None:
    import select

    dev = make("thread", fault={"script": "0 read err 5"})
    poll = select.poll()
    poll.register(dev.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    req = dev.prefetch(0, MIB)
    assert poll.poll(10_000)
    assert dev.reap() == [req.id]
    assert poll.poll(0) == []
    with pytest.raises(chm.MediaError):
        req.wait(timeout=0)
