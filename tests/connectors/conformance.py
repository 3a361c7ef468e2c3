# SPDX-License-Identifier: Apache-2.0
"""What the conformance suite is made of: the adapters that it knows, and a rig that plays the host.

An adapter is known by its driver, ``drive_<host>.py`` (see driver.py). One whose driver is not
there, or whose host is not installed, is skipped with that reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import mmap
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import Driver, Identity, Rows, Told, fresh_rows

from chm.connectors import TierOptions

KIB = 1 << 10
MIB = 1 << 20
ROW = 64 * KIB
HANG_S = 60.0  # bounds a wait for what never comes; nothing here is about speed
PAUSE_S = 0.001

HOSTS = {
    "tier": "driver",
    "vllm": "drive_vllm",
    "lmcache": "drive_lmcache",
    "lmcache_plugin": "drive_lmcache_plugin",
    "sglang": "drive_sglang",
    "direct": "drive_direct",
}
ENGINES = {"vllm", "lmcache", "sglang", "torch"}
Open = Callable[[TierOptions, Identity, int], Driver]


def opener(host: str) -> Open:
    """How to open the adapter for a host; skips the test if that cannot be had here."""
    module = HOSTS[host]
    try:
        opens: Open = getattr(importlib.import_module(module), f"open_{host}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ENGINES:
            raise
        pytest.skip(f"{module}.py needs {error.name}, which is not installed")
    return opens


def contents(number: int, nbytes: int = ROW) -> Rows:
    """Bytes that no other number gives."""
    return np.random.default_rng(number).integers(0, 256, nbytes, np.uint8)


def blocks(numbers: Iterable[int], nbytes: int = ROW) -> Any:
    """A row with the contents of each number, in memory as a host has it."""
    numbers = list(numbers)
    rows = fresh_rows(len(numbers), nbytes)
    for row, number in zip(rows, numbers, strict=True):
        row[:] = contents(number, nbytes)
    return rows


def wait_until(what: str, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_S
    while not ready():
        assert time.monotonic() < end, f"hangs: {what}"
        time.sleep(PAUSE_S)


def returns(call: Callable[[], Any]) -> Any:
    """What a call gives that must not wait for a drive which never answers."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(call()), daemon=True)
    thread.start()
    thread.join(HANG_S)
    assert not thread.is_alive(), "hangs with the drive"
    assert result, "raised; see the thread's traceback"
    return result[0]


def damage(path: Path, number: int, nbytes: int = ROW) -> None:
    """Flip a bit of a block where it lies on a device that is closed."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(contents(number, nbytes)[:256].tobytes())
        assert at >= 0, f"block {number} is not on the device"
        memory[at + 7] ^= 1


class Rig:
    """Opens adapters of one host on one file, and asks them as the host would."""

    def __init__(self, opens: Open, options: TierOptions) -> None:
        self.opens, self.options = opens, options
        self._open: list[Driver] = []

    @property
    def path(self) -> Path:
        return Path(self.options.path[0])

    def open(self, identity: Identity | None = None, row: int = ROW, **changes: Any) -> Driver:
        driver = self.opens(self.options.replace(**changes), identity or Identity(), row)
        self._open.append(driver)
        return driver

    def close(self, driver: Driver) -> list[Told]:
        self._open.remove(driver)
        return driver.close()

    def close_all(self) -> None:
        while self._open:
            self.close(self._open[-1])

    def open_faulty(self, fault: str, row: int = ROW, **changes: Any) -> Driver:
        """Opened on a medium that misbehaves from then on: ``fault`` is a line of the fault script
        (see chm.h) whose ``{reads}`` and ``{writes}`` become those that opening took."""
        driver = self.open(row=row)
        stats = driver.tier.store.device.stats()
        self.close(driver)
        script = fault.format(reads=stats.read_ios, writes=stats.write_ios)
        return self.open(row=row, device={"fault": {"script": script}}, **changes)

    def filled(self, n: int, row: int = ROW) -> None:
        """Blocks 0 to n-1 are on the device, and nobody has it open."""
        driver = self.open(row=row)
        assert put(driver, range(n), row) == [True] * n
        self.close(driver)


def told(driver: Driver, jobs: Sequence[int]) -> dict[int, list[bool]]:
    """Ask until the host was told of all these jobs; of each once, and of no other."""
    found: dict[int, list[bool]] = {}

    def all_told() -> bool:
        add(found, driver.told())
        assert set(found) <= set(jobs), "told of a job that nobody submitted, or told twice"
        return len(found) == len(jobs)

    wait_until(f"the end of jobs {jobs}", all_told)
    return found


def add(found: dict[int, list[bool]], more: Iterable[Told]) -> None:
    for one in more:
        assert one.job not in found, f"job {one.job} was told twice"
        found[one.job] = list(one.ok)


def finish(driver: Driver, job: int) -> list[bool]:
    return told(driver, [job])[job]


def put(driver: Driver, numbers: Sequence[int], row: int = ROW) -> list[bool]:
    """Store the blocks of these numbers; which were stored."""
    return finish(driver, driver.store(numbers, blocks(numbers, row)))


def get(driver: Driver, numbers: Sequence[int], row: int = ROW) -> list[bool]:
    """Load blocks, and check the bytes of those that are told to have come; which those are."""
    rows = fresh_rows(len(numbers), row)
    ok = finish(driver, driver.load(numbers, rows))
    assert len(ok) == len(numbers)
    for number, came, got in zip(numbers, ok, rows, strict=True):
        assert not came or np.array_equal(got, contents(number, row)), f"block {number} is wrong"
    return ok


def answers(found: Sequence[bool], there: Sequence[bool]) -> bool:
    """Whether that is how a host learns what is there: of each block, or of the leading run."""
    run = there.index(False) if False in there else len(there)
    return list(found) in (list(there), [i < run for i in range(len(there))])
