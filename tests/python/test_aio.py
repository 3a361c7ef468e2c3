# SPDX-License-Identifier: Apache-2.0
"""Waiting in asyncio programs."""

from __future__ import annotations

import asyncio
import errno
import threading

import numpy as np
import pytest
from kit import MIB, fill

import chm


def test_awaiting_a_request(dev) -> None:
    data = fill(dev, 0, MIB, seed=1)

    async def main() -> None:
        req = await dev.prefetch(0, MIB)
        assert np.array_equal(req.array(), data)
        assert await req is req
        req.release()
        with pytest.raises(chm.StaleHandle):
            await req

    asyncio.run(main())


def test_hundreds_at_once_while_the_loop_goes_on(dev) -> None:
    data = fill(dev, 0, 48 * MIB, seed=2)
    ticks = 0

    async def one(index: int) -> None:
        at = index % 48 * MIB
        with await dev.prefetch(at, 65536) as req:
            assert bytes(req.view()[:64]) == bytes(data[at : at + 64])

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def main() -> None:
        ticker = asyncio.ensure_future(tick())
        await asyncio.gather(*(one(i) for i in range(300)))
        ticker.cancel()

    asyncio.run(main())
    assert ticks > 0
    assert dev.stats().open == 0


def test_failures_reach_the_waiter(make) -> None:
    dev = make("thread", fault={"script": "0 read err 5"})

    async def main() -> None:
        with pytest.raises(chm.MediaError):
            await dev.prefetch(0, MIB)

    asyncio.run(main())


def test_waiting_for_many(make) -> None:
    dev = make("thread", fault={"script": "0 read err 5\n1 read never"}, read_unit=MIB)
    reqs = [dev.prefetch(i * MIB, MIB) for i in range(4)]

    async def main() -> None:
        assert await dev.wait_many_async(reqs[2:], timeout=None) == [0, 0]
        statuses = await dev.wait_many_async(reqs, timeout=0.1)
        assert statuses == [-errno.EIO, -errno.ETIMEDOUT, 0, 0]
        assert await dev.wait_many_async([]) == []

    asyncio.run(main())
    dev.release_many(reqs)
    with pytest.raises(chm.WaitTimeout):
        dev.close(timeout=0.1)


def test_waiting_for_many_in_virtual_time(sim) -> None:
    late = sim.prefetch(0, MIB, not_before_ns=sim.now() + 10**9)

    async def main() -> None:
        assert await sim.wait_many_async([late], timeout=0.5) == [-errno.ETIMEDOUT]
        assert await sim.wait_many_async([late], timeout=1) == [0]

    asyncio.run(main())


def test_over_a_host_link(make) -> None:
    dev = make("thread", link_rate="1GB/s")
    reqs = [dev.prefetch(i * MIB, MIB) for i in range(4)]

    async def main() -> None:
        await asyncio.gather(*reqs_as_tasks(reqs))

    asyncio.run(main())
    assert all(req.done for req in reqs)
    assert dev.stats().delivered_bytes == 4 * MIB


def reqs_as_tasks(reqs: list[chm.Request]) -> list[asyncio.Future[chm.Request]]:
    async def wait(req: chm.Request) -> chm.Request:
        return await req

    return [asyncio.ensure_future(wait(req)) for req in reqs]


def test_a_cancelled_wait_leaves_the_request(make) -> None:
    dev = make("thread", fault={"script": "0 read late 1000000000"})
    req = dev.prefetch(0, MIB)

    async def wait() -> None:
        await req

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait(), timeout=0.01)
        assert not req.done
        await req

    asyncio.run(main())
    assert req.done
    assert dev._door.waiters._loops == {}


def test_somebody_else_reaps(make) -> None:
    dev = make("thread", fault={"script": "0 read late 50000000"})
    req = dev.prefetch(0, MIB)

    async def main() -> None:
        waiting = reqs_as_tasks([req])[0]
        await asyncio.sleep(0)
        while not dev.reap():
            await asyncio.sleep(0)
        await waiting

    asyncio.run(main())


def test_loops_in_several_threads(make) -> None:
    dev = make("thread")
    failures: list[BaseException] = []

    async def main() -> None:
        for i in range(50):
            with await dev.prefetch(i * MIB, MIB):
                pass

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_closing_while_a_task_waits(make) -> None:
    dev = make("thread", fault={"script": "0 read late 1000000000"})

    async def main() -> None:
        waiting = reqs_as_tasks([dev.prefetch(0, MIB)])[0]
        await asyncio.sleep(0.001)
        dev.close()
        with pytest.raises(chm.Closed):
            await waiting

    asyncio.run(main())
