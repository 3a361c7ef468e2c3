# SPDX-License-Identifier: Apache-2.0
"""Many who wait: asyncio, threads, and closing under way. Each job is told exactly once."""

from __future__ import annotations

import asyncio
import errno
import select
import threading

import numpy as np
import pytest
from kit import KINDS, Make
from store_rig import KIB, MIB, blocks, contents, filled, key, keys

import chm


@pytest.fixture(params=KINDS)
def store(request, make: Make):
    dev = make(request.param)
    chm.store.format(dev)
    with chm.Store(dev) as store:
        yield store


def test_awaiting_jobs(store) -> None:
    ns = store.namespace("a")
    data = blocks(1, 8, 64 * KIB)

    async def work() -> None:
        assert (await store.put(ns, keys(1, 8), data)).tolist() == [0] * 8
        outs = [np.zeros(64 * KIB, np.uint8) for _ in range(24)]
        jobs = [store.get(ns, [key(1 + i % 8)], [out]) for i, out in enumerate(outs)]
        for statuses in await asyncio.gather(*jobs):
            assert statuses.tolist() == [0]
        for i, out in enumerate(outs):
            assert np.array_equal(out, data[i % 8])
        with pytest.raises(chm.KeysFailed):
            await store.get(ns, [key(77)], [outs[0]])
        leases = await store.lease(ns, keys(1, 2))
        assert np.array_equal(leases[1].array(), data[1])
        await store.sync()

    asyncio.run(work())
    asyncio.run(work_again(store, ns, data))
    assert not store._house.loops


async def work_again(store: chm.Store, ns: int, data: np.ndarray) -> None:
    """The same store in another event loop: keys are there now."""
    assert (await store.put(ns, keys(1, 8), data)).tolist() == [chm.store.DUPLICATE] * 8


def test_the_descriptor_tells(make: Make) -> None:
    dev = make("thread")
    chm.store.format(dev)
    with chm.Store(dev) as store:
        ns = store.namespace("a")
        assert select.select([store.fileno()], [], [], 0)[0] == []
        job = store.put(ns, [key(1)], contents(1, 4096))
        assert select.select([store.fileno()], [], [], 10)[0] == [store.fileno()]
        store.poll()
        assert job.told()
        assert select.select([store.fileno()], [], [], 0)[0] == []


def test_callbacks(store) -> None:
    ns = store.namespace("a")
    told: list[str] = []
    job = store.put(ns, [key(1)], contents(1, 4096))
    job.on_end(lambda: told.append("before"))
    job.wait()
    job.on_end(lambda: told.append("after"))
    job.wait()
    assert told == ["before", "after"]


def test_threads_share_a_store(make: Make) -> None:
    """Each waits for its own jobs; whoever drains tells those of the others, too."""
    dev = make("thread")
    chm.store.format(dev)
    with chm.Store(dev) as store:
        ns = store.namespace("a")
        wrong: list[object] = []

        def work(me: int) -> None:
            try:
                for round_ in range(30):
                    number = me * 1000 + round_
                    data = contents(number, 8 * KIB)
                    if store.write(ns, key(number), data) is not True:
                        wrong.append(("put", number))
                    if not np.array_equal(store.read(ns, key(number)), data):
                        wrong.append(("get", number))
                    with store.lease(ns, [key(number)]) as leases:
                        if not np.array_equal(leases[0].array(), data):
                            wrong.append(("lease", number))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        stats = store.stats()
        assert (stats.jobs, stats.leases, stats.admitted) == (0, 0, 180)


def test_threads_take_turns_on_a_stepped_device(make: Make) -> None:
    dev = make("stepped")
    chm.store.format(dev)
    with chm.Store(dev) as store:
        ns = store.namespace("a")
        wrong: list[object] = []

        def work(me: int) -> None:
            try:
                for round_ in range(10):
                    number = me * 1000 + round_
                    store.write(ns, key(number), contents(number, 8 * KIB))
                    if not np.array_equal(store.read(ns, key(number)), contents(number, 8 * KIB)):
                        wrong.append(number)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_closing_with_work_in_flight(make: Make) -> None:
    """Jobs that can end in time end well; each is told once; then everything refuses."""
    dev = make("sim")
    chm.store.format(dev)
    store = chm.Store(dev)
    ns = store.namespace("a")
    store.put(ns, keys(1, 8), blocks(1, 8, 64 * KIB)).result()
    store.sync().result()
    outs = np.zeros((8, 64 * KIB), np.uint8)
    told: list[int] = []
    jobs = [store.get(ns, [key(1 + i)], [outs[i]]) for i in range(8)]
    for i, job in enumerate(jobs):
        job.on_end(lambda i=i: told.append(i))
    lease = store.lease(ns, [key(1)]).result()[0]
    store.close()
    assert sorted(told) == list(range(8))
    assert [job.result().tolist() for job in jobs] == [[0]] * 8
    assert np.array_equal(outs, blocks(1, 8, 64 * KIB))
    for call in (
        lambda: store.exists(ns, [key(1)]),
        lambda: store.put(ns, [key(9)], b"x"),
        lambda: store.put(ns, [], []),
        store.stats,
        store.poll,
        lambda: next(store.list()),
    ):
        with pytest.raises(chm.Closed):
            call()
    with pytest.raises(chm.StaleHandle):
        lease.view()
    lease.release()
    store.close()
    assert store.closed


def test_closing_ends_what_takes_too_long(make: Make) -> None:
    """With no time left, jobs are told with Closed, once, and what was not durable may be gone;
    what is found afterwards is whole."""
    dev = make("sim", write_rate=4 * MIB)
    chm.store.format(dev)
    store = chm.Store(dev)
    ns = store.namespace("a")
    jobs = [
        store.put(ns, [key(i)], contents(i, MIB), wait=True, timeout=None) for i in range(1, 100)
    ]
    with pytest.raises(chm.WaitTimeout):
        store.close(timeout=0.0)
    assert all(job.told() for job in jobs)
    statuses = [int(job.statuses[0]) for job in jobs]
    assert set(statuses) == {0, -errno.ESHUTDOWN}
    with chm.Store(dev) as store:
        ns = store.namespace("a")
        for i, status in enumerate(statuses, 1):
            if store.exists(ns, [key(i)])[0]:
                assert status == 0
                assert np.array_equal(store.read(ns, key(i)), contents(i, MIB))


def test_reads_that_hang_when_it_closes(tmp_path) -> None:
    """F96: a drive that never answers: close returns, the job is told, its memory is kept."""
    path = tmp_path / "h.chm"
    reads = filled(path, 1, 64 * KIB)
    script = f"{reads} read never"
    dev = chm.open(path, thread=True, dram_bytes=32 * MIB, fault={"script": script})
    store = chm.Store(dev)
    ns = store.namespace("a")
    out = chm.aligned_empty(64 * KIB)
    job = store.get(ns, [key(1)], [out], timeout=0.2)
    with pytest.raises(chm.WaitTimeout):
        store.close(timeout=0.5)
    assert job.told()
    assert job.statuses.tolist() == [-errno.ESHUTDOWN]
    with pytest.raises(chm.KeysFailed):
        job.result()
    with pytest.raises(chm.WaitTimeout):
        dev.close(0.2)


def test_a_copied_read_that_hangs_is_told_at_its_deadline(tmp_path) -> None:
    path = tmp_path / "h.chm"
    reads = filled(path, 1, 64 * KIB)
    script = f"{reads} read never"
    dev = chm.open(path, thread=True, dram_bytes=32 * MIB, fault={"script": script})
    store = chm.Store(dev)
    ns = store.namespace("a")
    out = np.zeros(64 * KIB, np.uint8)
    job = store.get(ns, [key(1)], [out], timeout=0.2, copy=True).wait()
    assert job.statuses.tolist() == [-errno.ETIME]
    assert not store.exists(ns, [key(1)])[0]
    store.close()
    with pytest.raises(chm.WaitTimeout):
        dev.close(0.2)


def test_the_device_closes_its_stores(make: Make) -> None:
    dev = make("stepped")
    chm.store.format(dev)
    store = chm.Store(dev)
    ns = store.namespace("a")
    store.put(ns, [key(1)], contents(1, 4096)).result()
    dev.close()
    assert store.closed
    with chm.open(dev.options.paths, dram_bytes=32 * MIB) as dev, chm.Store(dev) as store:
        assert store.info.clean
        assert store.exists(store.namespace("a"), [key(1)])[0]


def test_another_thread_waits_while_it_closes(make: Make) -> None:
    dev = make("thread")
    chm.store.format(dev)
    store = chm.Store(dev)
    ns = store.namespace("a")
    jobs = [
        store.put(ns, [key(i)], contents(i, MIB), wait=True, timeout=20.0) for i in range(1, 30)
    ]
    ended: list[object] = []

    def work() -> None:
        for job in jobs:
            try:
                ended.append(int(job.wait().statuses[0]))
            except chm.ChmError as error:
                ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    store.close()
    thread.join()
    assert ended == [0] * 29
