# SPDX-License-Identifier: Apache-2.0
"""F71: Ctrl-C ends every wait, leaves the handle valid, and other threads go on meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kit import MIB, Make

import chm
from chm._door import Door
from chm._ffi import lib

STALL = {"script": "0 read late 20000000000"}  # far longer than the test may take
REAL = ["stepped", "thread"]


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a wait has begun, that is, when what it waits for was issued."""
    event, sliced = threading.Event(), Door.sliced

    def telling(self: Door, *args: Any) -> int:
        event.set()
        return sliced(self, *args)

    monkeypatch.setattr(Door, "sliced", telling)
    return event


def reads_begun(dev: chm.Device) -> None:
    """Return when the device thread has sent the I/O of what was issued: only that can stall."""
    while not (seen := dev.stats()).issued + seen.demand_reads:
        pass
    while dev.stats().steps < seen.steps + 2:
        pass


def interrupted(
    waiting: threading.Event, wait: Callable[[], object], threaded: chm.Device | None = None
) -> int:
    """Send SIGINT while wait() waits; how far another thread counted meanwhile."""
    count = 0

    def other_thread() -> None:
        nonlocal count
        waiting.wait()
        if threaded:
            reads_begun(threaded)
        while count < 200_000:  # cannot get there while somebody keeps the interpreter lock
            count += 1
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=other_thread)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        wait()
    thread.join()
    return count


@pytest.mark.parametrize("kind", REAL)
def test_a_stalled_request(make: Make, waiting: threading.Event, kind: str) -> None:
    dev = make(kind, fault=STALL)
    req = dev.prefetch(0, MIB)
    assert interrupted(waiting, req.wait) == 200_000
    assert not req.done
    with dev.prefetch(MIB, MIB):  # others are served
        pass
    req.release()
    assert dev.stats().open == 0
    with pytest.raises(chm.WaitTimeout):
        dev.close(timeout=0.05)  # the read is still out there; nothing waits for it for ever


WAITS: dict[str, Callable[[chm.Device], object]] = {
    "wait_many": lambda dev: dev.wait_many([dev.prefetch(0, MIB)], timeout=None),
    "batch": lambda dev: dev.batch(1).issue([0], MIB).wait(None),
    "read": lambda dev: dev.read(0, MIB, timeout=None),
    "stream": lambda dev: dev.stream([(0, MIB)], deadline_s=None).next(),
    "enter": lambda dev: dev.prefetch(0, MIB).__enter__(),
    "published": lambda dev: chm.chm_prefetch_wait(dev.prefetch(0, MIB)),
}


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("name", WAITS)
def test_every_wait(make: Make, waiting: threading.Event, kind: str, name: str) -> None:
    dev = make(kind, fault=STALL)
    interrupted(waiting, lambda: WAITS[name](dev), dev if kind == "thread" else None)
    with dev.prefetch(2 * MIB, MIB):
        pass
    with pytest.raises(chm.WaitTimeout):
        dev.close(timeout=0.05)


def test_waiting_for_another_thread(make: Make, waiting: threading.Event) -> None:
    """Ctrl-C while another thread is in the device: the lock stays with whom it belongs."""
    dev = make("stepped")
    held, let_go = threading.Event(), threading.Event()

    def other_thread() -> None:
        gate = dev._door.gate.c
        assert lib.chm_gate_enter(gate) == 0
        held.set()
        let_go.wait()
        lib.chm_gate_leave(gate)

    thread = threading.Thread(target=other_thread)
    thread.start()
    held.wait()
    interrupted(waiting, lambda: (waiting.set(), dev.now()))
    let_go.set()
    thread.join()
    assert dev.now() > 0


def test_a_handler_may_use_the_device_it_interrupts(make: Make, waiting: threading.Event) -> None:
    dev = make("stepped", fault=STALL)
    told: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: told.append(dev.prefetch(MIB, MIB).wait().length))
    with pytest.raises(chm.WaitTimeout):
        _with_signals(waiting, told, lambda: dev.prefetch(0, MIB).wait(timeout=0.3))
    assert told
    assert set(told) == {MIB}
    with pytest.raises(chm.WaitTimeout):
        dev.close(timeout=0.05)


def _with_signals(waiting: threading.Event, told: list[int], wait: Callable[[], object]) -> None:
    """Signals without end while wait() waits."""
    stop = threading.Event()

    def other_thread() -> None:
        waiting.wait()
        while not stop.is_set():
            before = len(told)
            os.kill(os.getpid(), signal.SIGINT)
            while len(told) == before and not stop.wait(0.001):
                pass

    thread = threading.Thread(target=other_thread)
    thread.start()
    try:
        wait()
    finally:
        stop.set()
        thread.join()


def test_a_step(make: Make, waiting: threading.Event) -> None:
    dev = make("stepped", fault=STALL)
    req = dev.prefetch(0, MIB)
    interrupted(waiting, lambda: (waiting.set(), dev.step(dev.now() + 10**12)))
    assert not req.done
    with pytest.raises(chm.WaitTimeout):
        dev.close(timeout=0.05)
    with pytest.raises(chm.ChmError):
        make("thread").step()  # its thread does that


@pytest.mark.parametrize("kind", REAL)
def test_a_stalled_flush(make: Make, waiting: threading.Event, kind: str) -> None:
    dev = make(kind, fault={"script": "0 write late 20000000000"})
    dev.write(0, np.ones(MIB, np.uint8))
    interrupted(waiting, lambda: dev.flush(timeout=None))
    assert dev.read(0, 1)[0] == 1
    with pytest.raises((chm.WaitTimeout, chm.MediaError)):
        dev.close(timeout=0.05)


def test_a_put_that_waits_for_room(make: Make, waiting: threading.Event) -> None:
    dev = make("thread", fault={"script": "0- write late 20000000000"})
    space = chm.Space(dev)

    def fill() -> None:
        while True:
            space.put(bytes(4 * MIB), timeout=None)

    interrupted(waiting, fill)
    assert space.stats.puts_open == 0
    with pytest.raises((chm.WaitTimeout, chm.MediaError)):
        dev.close(timeout=0.05)
