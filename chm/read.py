# SPDX-License-Identifier: Apache-2.0
"""Demand reads: bytes that nobody announced, into memory of the caller.

They do not use the window. ``issued -> ended -> released``; a caller that stops waiting (timeout,
Ctrl-C) does not free the memory: it goes to the door's ``limbo`` until the I/O has ended.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import numpy as np

from chm._buffers import Array, aligned_empty, target
from chm._door import Door
from chm._ffi import NULL, ffi
from chm.errors import ChmError, check, error_of

_PENDING = -errno.ETIMEDOUT
UNDECIDED = frozenset((_PENDING, -errno.EINTR))


def _destination(out: Any, length: int | None, what: str) -> tuple[Array, Any, int]:
    """The array to return, the C memory in it, and how many bytes to read."""
    if out is None:
        if not length:
            raise ValueError(f"{what}: length must be at least 1")
        out = aligned_empty(length)
    memory, nbytes = target(out, what)
    if length is not None and length != nbytes:
        raise ValueError(f"{what}: has {nbytes} bytes, the read {length}")
    array = np.frombuffer(memoryview(out).cast("B"), np.uint8)
    return array, memory, nbytes


def read_items(
    door: Door, items: Sequence[tuple[int, Any, int | None]], timeout: float | None
) -> list[Array | ChmError]:
    """Read each ``(addr, out or None, length or None)``; a result or an error for each."""
    places = [_destination(out, length, f"read {i}") for i, (_, out, length) in enumerate(items)]
    if not places:
        return []
    n = len(items)
    reads = ffi.new("struct chm_read[]", n)
    for read, (addr, _, _), (_, memory, nbytes) in zip(reads, items, places, strict=True):
        read.addr, read.len, read.buf = addr, nbytes, memory
    statuses = [_PENDING]
    try:
        check(door.c.read_issue(door.dev, reads, n), "read")
        statuses = _wait(door, reads, timeout)
    finally:
        ids = [read.req for read in reads if read.req]
        if ids:
            door.c.release_many(door.dev, ids, len(ids), NULL)
        if _PENDING in statuses:
            door.limbo.append(places)  # may still be written to
    return [
        error_of(status, f"read of {nbytes} bytes at {addr:#x}") if status else array
        for status, (addr, _, _), (array, _, nbytes) in zip(statuses, items, places, strict=True)
    ]


def _wait(door: Door, reads: Any, timeout: float | None) -> list[int]:
    """Status of each read, once all have ended or the time is up."""
    statuses = [read.status for read in reads]
    issued = [i for i, status in enumerate(statuses) if status == 0]
    waited = wait_ids(door, [reads[i].req for i in issued], timeout)
    for i, status in zip(issued, waited, strict=True):
        statuses[i] = status
    return statuses


def wait_ids(door: Door, ids: Sequence[int], timeout: float | None) -> list[int]:
    """Wait for requests by handle; 0 or -errno for each (-ETIMEDOUT: still going on)."""
    n = len(ids)
    if n == 0:
        return []
    reqs = ffi.new("uint64_t[]", ids)
    statuses = ffi.new("int32_t[]", n)

    def wait(ns: int) -> int:
        ready = check(door.c.wait_many(door.dev, reqs, n, ns, statuses), "wait_many")
        pending = ready < n and not UNDECIDED.isdisjoint(ffi.unpack(statuses, n))
        return _PENDING if pending else 0

    door.sliced(wait, timeout)
    return [_PENDING if status in UNDECIDED else status for status in ffi.unpack(statuses, n)]
