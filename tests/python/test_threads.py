# SPDX-License-Identifier: Apache-2.0
"""Devices shared by Python threads (F74), and closed under their feet."""

# ruff: noqa: PT012 - what leads to an exception is part of these tests

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import MIB, Make, fill, pattern, run_python

import chm
from chm._ffi import lib


def run(n: int, work: Callable[[int], None]) -> list[BaseException]:
    """Run work(i) in n threads that start together; what they raised."""
    barrier, raised = threading.Barrier(n), []

    def body(i: int) -> None:
        barrier.wait()
        try:
            work(i)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


FIRST_USE = """
import threading
import chm
dev = chm.open({path!r}, dram_bytes="32MiB", thread={thread})
barrier = threading.Barrier(16)
failed = []
def work(i):
    barrier.wait()
    try:
        at = i << 20
        dev.write(at, bytes([i]) * 4096)
        with dev.write_begin(at + 4096, 4096) as write:
            write.view[:] = bytes([i]) * 4096
        with dev.prefetch(at, 8192) as req:
            assert set(bytes(req.view())) == {{i}}
        assert (dev.read(at, 8192) == i).all()
        reqs = dev.prefetch_many([(at, 4096), (at + 4096, 4096)])
        assert dev.wait_many(reqs) == [0, 0]
        dev.release_many(reqs)
        assert [bytes(p.view()[:1]) for p in dev.stream([(at, 4096)])] == [bytes([i])]
        dev.flush(), dev.stats(), dev.info, dev.now(), dev.reap(), dev.trim(at, 4096)
    except BaseException as error:
        failed.append(repr(error))
threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
dev.close()
print(failed)
"""


@pytest.mark.parametrize("thread", [False, True])
def test_f74_first_use_of_everything_from_16_threads(tmp_path: Path, thread: bool) -> None:
    path = tmp_path / "d.chm"
    chm.format(path, "32MiB")
    code = FIRST_USE.format(path=str(path), thread=thread)
    done = run_python(code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_threads_share_a_device(dev) -> None:
    data = fill(dev, 0, 32 * MIB, seed=1)

    def work(i: int) -> None:
        rng = random.Random(i)
        own = (32 + 2 * i) * MIB
        for round_ in range(40):
            at = rng.randrange(32) * MIB
            with dev.prefetch(at, MIB) as req:
                assert bytes(req.view()[:128]) == bytes(data[at : at + 128])
            mine = pattern(4096, 1000 * i + round_)
            try:
                dev.write(own, mine)
            except chm.WouldBlock:
                continue
            assert np.array_equal(dev.read(own, 4096), mine)

    assert run(8, work) == []
    stats = dev.stats()
    assert (stats.open, stats.window_pinned_bytes, stats.open_writes) == (0, 0, 0)


def test_a_waiter_lets_others_in(make) -> None:
    """On a stepped device the waiter holds the lock slice by slice, not for good."""
    dev = make("stepped", fault={"script": "0 read late 20000000000"})
    stalled = dev.prefetch(0, MIB)

    def work(i: int) -> None:
        if i == 0:
            with pytest.raises(chm.Closed):
                stalled.wait()
        else:
            for at in range(1, 9):
                dev.prefetch(at * MIB, MIB).wait().release()
            with pytest.raises(chm.WaitTimeout):
                dev.close(timeout=0.05)

    assert run(2, work) == []


def test_closing_while_others_wait_and_work(make) -> None:
    dev = make("thread", fault={"script": "0 read late 1000000000"})
    stalled = dev.prefetch(0, MIB)
    started = threading.Barrier(6)

    def work(i: int) -> None:
        started.wait()
        if i == 0:
            dev.close()
        elif i == 1:
            with pytest.raises(chm.Closed):
                stalled.wait()
        else:
            with pytest.raises(chm.Closed):
                while True:
                    dev.prefetch(i * MIB, MIB).wait().release()

    assert run(6, work) == []
    assert dev.closed


def test_many_threads_close_once(make) -> None:
    dev = make("thread")
    assert run(8, lambda _: dev.close()) == []


def test_quick_calls_wait_for_the_thread_that_is_inside(make: Make) -> None:
    """Every call that has a short way takes the long one while somebody else is in the device."""
    dev = make("stepped")
    fill(dev, 0, MIB, seed=3)
    gate, waits = dev._door.gate.c, threading.Event()
    inside, leave = threading.Event(), threading.Event()

    def other_thread() -> None:
        while not waits.is_set():
            inside.wait()
            assert lib.chm_gate_enter(gate) == 0
            leave.wait(0.12)  # longer than the gate's patience
            lib.chm_gate_leave(gate)
            inside.clear()

    def met(call: Callable[[], Any]) -> Any:
        inside.set()
        while lib.chm_gate_inside(gate) == 0:
            pass
        return call()

    thread = threading.Thread(target=other_thread)
    thread.start()
    req = met(lambda: dev.prefetch(0, MIB))
    met(req.wait)
    assert met(lambda: dev.prefetch(0, MIB).wait(timeout=0)).done
    met(req.release)
    batch = dev.batch(2)
    met(lambda: batch.issue([0, 0], MIB))
    assert met(batch.wait) == 2
    assert [bytes(view[:4]) for view in met(batch.views)] == [bytes(dev.read(0, 4))] * 2
    met(batch.release)
    assert met(dev.now) > 0
    waits.set()
    inside.set()
    thread.join()
    assert dev.stats().open == 0
    assert dev.stats().window_pinned_bytes == 0
