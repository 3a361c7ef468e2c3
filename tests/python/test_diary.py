# SPDX-License-Identifier: Apache-2.0
"""The log of a store: a line for each event that matters, and not many for what comes often."""

from __future__ import annotations

import errno
import logging

import pytest
from store_rig import keys, small_sim

import chm
from chm._diary import QUIET_S, Diary


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "chm.store"]


def test_a_store_tells_when_it_opens_and_closes(caplog) -> None:
    caplog.set_level(logging.INFO, "chm")
    with small_sim() as device:
        chm.store.format(device)
        with chm.Store(device) as store:
            ns = store.namespace("model")
            store.put(ns, keys(0, 3), [b"x"] * 3, wait=True).result()
        with chm.Store(device):
            pass
    told = lines(caplog)
    assert [word in line for word, line in zip(("empty", "clean", "clean"), told, strict=False)]
    assert "opened" in told[0]
    assert "empty" in told[0]
    assert "closed clean; 3 objects, 3 keys admitted" in told[1]
    assert "clean; 3 objects" in told[2]


def test_refused_writes_are_told_once_in_a_while(caplog) -> None:
    now = [0.0]
    diary = Diary("store", clock=lambda: now[0])
    for _ in range(1000):
        diary.failed("put", [b"k" * 16], [-errno.EAGAIN], False)
    assert lines(caplog) == ["store: 1 keys not written: 1 x write buffer full"]
    now[0] = QUIET_S
    diary.failed("put", [b"k" * 16], [-errno.ENOLINK], False)
    assert "1000 keys not written: 999 x write buffer full, 1 x the key" in lines(caplog)[1]


def test_dropped_objects_are_named_and_misses_are_not(caplog) -> None:
    diary = Diary("store")
    diary.failed("get", [b"a" * 16, b"b" * 16], [-errno.ENOENT, -errno.EBADMSG], False)
    (line,) = lines(caplog)
    assert (b"b" * 16).hex() in line
    assert "checksum wrong" in line
    assert (b"a" * 16).hex() not in line


def test_degraded_is_told_once(caplog) -> None:
    diary = Diary("store")
    diary.failed("put", [b"a" * 16] * 2, [-errno.EIO] * 2, False)
    diary.degraded()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
