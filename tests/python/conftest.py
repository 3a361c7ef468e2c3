# SPDX-License-Identifier: Apache-2.0
"""Devices for the tests of the Python layer: simulated, stepped on a file, and with a thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import CAPACITY, KINDS, SMALL, Make

import chm

_looked_at: list[chm.Device] = []


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes devices of a kind, with options; closes what the test left open."""
    made: list[chm.Device] = []

    def make_one(kind: str, capacity: int = CAPACITY, **options: Any) -> chm.Device:
        options = {**SMALL, **options}
        if kind == "sim":
            dev = chm.sim(capacity, **options)
        else:
            path = tmp_path / f"{len(made)}.chm"
            chm.format(path, capacity)
            dev = chm.open(path, thread=kind == "thread", **options)
        made.append(dev)
        return dev

    yield make_one
    for dev in made:
        try:
            dev.close()
        except BufferError:
            _looked_at.append(dev)  # by the traceback of a test that failed


@pytest.fixture(params=KINDS)
def dev(request: pytest.FixtureRequest, make: Make) -> chm.Device:
    """One device of each kind."""
    return make(request.param)


@pytest.fixture
def sim(make: Make) -> chm.Device:
    return make("sim")
