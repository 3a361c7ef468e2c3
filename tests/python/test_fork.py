# SPDX-License-Identifier: Apache-2.0
"""F70: a forked child cannot touch the device, and cannot hurt its parent."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from kit import MIB, fill, pattern, run_python

import chm

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def in_child(work: Callable[[], object]) -> object:
    """Run work in a forked child that leaves through the interpreter's exit; what it returned."""
    r, w = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "fork in a process with threads"
        pid = os.fork()
    if pid == 0:
        try:
            result: object = work()
        except BaseException as error:
            result = error
        os.write(w, pickle.dumps(result))
        os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    result = pickle.loads(data)
    if isinstance(result, BaseException):
        raise result
    return result


def calls(
    dev: chm.Device, req: chm.Request, write: chm.Write, stream: chm.Stream, space: chm.Space
):
    return [
        lambda: dev.prefetch(0, 4096),
        lambda: dev.prefetch_many([(0, 4096)]),
        lambda: dev.read(0, 4096),
        lambda: dev.write(0, bytes(4096)),
        lambda: dev.write_begin(0, 4096),
        lambda: dev.flush(),
        lambda: dev.trim(0, 4096),
        lambda: dev.stats(),
        lambda: dev.info,
        lambda: dev.now(),
        lambda: dev.step(),
        lambda: dev.reap(),
        lambda: dev.fileno(),
        lambda: req.wait(),
        lambda: req.progress,
        lambda: write.commit(),
        lambda: stream.next(),
        lambda: stream.info,
        lambda: space.put(b"x"),
        lambda: space.stats,
    ]


def test_every_call_in_the_child_says_forked(dev) -> None:
    data = fill(dev, 0, MIB, seed=1)
    req, write = dev.prefetch(0, MIB), dev.write_begin(MIB, MIB)
    stream, space = dev.stream([(0, MIB)]), chm.Space(dev, base="32MiB")

    def child() -> list[str]:
        answers = []
        for call in calls(dev, req, write, stream, space):
            try:
                call()
                answers.append("no error")
            except chm.ChmError as error:
                answers.append(type(error).__name__)
        return answers

    answers = in_child(child)
    assert answers == ["Forked"] * len(answers)
    req.wait()
    assert np.array_equal(req.array(), data)
    req.release()
    write.view[:] = data
    write.commit()
    stream.close()
    space.close()
    assert np.array_equal(dev.read(MIB, MIB), data)


def test_finalisers_and_close_in_the_child_do_nothing(dev) -> None:
    fill(dev, 0, 4 * MIB, seed=2)
    held = {
        "device": dev,
        "request": dev.prefetch(0, MIB),
        "write": dev.write_begin(MIB, MIB),
        "stream": dev.stream([(2 * MIB, MIB)]),
        "batch": dev.batch(2).issue([3 * MIB], MIB),
    }

    def child() -> int:
        device = held["device"]
        held.clear()
        gc.collect()
        device.close()
        return 1

    assert in_child(child) == 1
    stats = dev.stats()
    assert stats.open_writes == 1
    assert stats.aborted == 0
    held["request"].wait()
    held["batch"].wait()
    held["batch"].release()
    held["stream"].close()
    held["write"].abort()


def test_bytes_are_flushed_once(dev) -> None:
    dev.write(0, pattern(MIB, 3))
    in_child(lambda: dev.close())
    dev.flush()
    assert dev.stats().write_bytes == MIB


def test_a_lock_held_at_the_fork_does_not_hang_the_child(make) -> None:
    dev = make("stepped")
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            dev.now()

    thread = threading.Thread(target=hammer)
    thread.start()
    try:
        for _ in range(20):
            with pytest.raises(chm.Forked):
                in_child(dev.now)
    finally:
        stop.set()
        thread.join()


def test_the_child_may_open_its_own(dev) -> None:
    def child() -> bool:
        with chm.sim("8MiB", dram_bytes="32MiB") as own:
            own.write(0, bytes(4096))
            return not own.read(0, 4096).any()

    assert in_child(child) is True
    dev.prefetch(0, MIB).wait()


def test_spawn_works(tmp_path) -> None:
    path = tmp_path / "d.chm"
    chm.format(path, "16MiB")
    with chm.open(path, dram_bytes="32MiB") as dev:
        dev.write(0, pattern(4096, 4))
    code = f"import chm; print(chm.open({str(path)!r}, dram_bytes='32MiB').read(0, 4096).sum())"
    done = run_python(code)
    assert int(done.stdout) == int(pattern(4096, 4).sum())
