# SPDX-License-Identifier: Apache-2.0
"""Traffic: what the figures do to a device, with as little Python per byte as can be.

Everything here is a function of its arguments and the device's virtual clock.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import chm
from chm._bulk import BulkReads, BulkWrites, nowhere, take_piece
from chm.errors import error_of

Addresses = npt.NDArray[np.uint64]

READ_MAX = 256 << 20  # longest single read of a figure
_memory: list[Any] = []


def _nowhere() -> Any:
    """The one place that all reads of this process go to."""
    if not _memory:
        _memory.append(nowhere(READ_MAX))
    return _memory[0]


def rate(nbytes: int, ns: int) -> float:
    """Bytes over nanoseconds, in GB/s; 0 when no time passed."""
    return nbytes / ns if ns else 0.0


class Traffic:
    """Bulk reads and writes on one device."""

    def __init__(self, device: chm.Device, most: int = 1024) -> None:
        self.device = device
        self.most = most
        self._reads = BulkReads(device, most, _nowhere())
        self._writes = BulkWrites(device, most)

    def read(self, addrs: Addresses, length: int, depth: int) -> int:
        """Read ranges of one length in order, ``depth`` at a time; the nanoseconds it took."""
        begin = self.device.now()
        depth = min(depth, self.most)
        for at in range(0, len(addrs), depth):
            chunk = addrs[at : at + depth]
            self._reads.addr[: len(chunk)] = chunk
            self._reads.length[: len(chunk)] = length
            self._reads.read(len(chunk))
        return self.device.now() - begin

    def write(self, addrs: Addresses, length: int, piece: int = 0) -> int:
        """Write ranges of one length in order, as soon as there is room; the nanoseconds it took.

        ``piece``: longest single write, a divisor of the length.
        """
        begin = self.device.now()
        if piece and piece < length:
            steps = np.arange(0, length, piece, dtype=np.uint64)
            addrs = (addrs[:, None] + steps[None, :]).ravel()
            length = piece
        for at in range(0, len(addrs), self.most):
            self._write_all(addrs[at : at + self.most], length)
        return self.device.now() - begin

    def offer(self, addr: int, length: int) -> bool:
        """Write one range if there is room for all of it now; else it is skipped."""
        self._writes.addr[0] = addr
        self._writes.length[0] = length
        return self._writes.write(0, 1) == 1

    def _write_all(self, addrs: Addresses, length: int) -> None:
        n = len(addrs)
        self._writes.addr[:n] = addrs
        self._writes.length[:n] = length
        done = 0
        pause = _PAUSE_NS
        while done < n:
            admitted = self._writes.write(done, n - done)
            done += admitted
            pause = _PAUSE_NS if admitted else min(2 * pause, _PAUSE_MAX_NS)
            if done < n:
                self.device.step(self.device.now() + pause)


_PAUSE_NS, _PAUSE_MAX_NS = 1_000, 100_000  # between two looks for room in the write buffer


def latencies(
    device: chm.Device, clients: Sequence[Iterator[int]], length: int
) -> npt.NDArray[np.int64]:
    """Each client reads ``length`` bytes at its next address the moment the read before has
    arrived. The nanoseconds of every read, in order of arrival."""
    reads = BulkReads(device, len(clients), _nowhere())
    reads.length[:] = length
    coming: list[tuple[int, int, int]] = []  # when, client, handle: on the host link
    reading: dict[int, int] = {}  # client: handle, not on the device yet
    since = [0] * len(clients)
    took: list[int] = []

    def look(client: int, handle: int) -> None:
        at = reads.arrival(handle)
        if at is None:
            reading[client] = handle
        else:
            reading.pop(client, None)
            heapq.heappush(coming, (at, client, handle))

    def start(client: int, now: int) -> None:
        addr = next(clients[client], None)
        if addr is not None:
            since[client] = now
            look(client, reads.issue(client, addr))

    for client in range(len(clients)):
        start(client, device.now())
    now = device.now()
    while coming or reading:
        if not coming or coming[0][0] > now:
            device.step(coming[0][0] if coming else now + _LOOK_NS)
            now = device.now()
            for client, handle in list(reading.items()):
                look(client, handle)
            continue
        at, client, handle = heapq.heappop(coming)
        reads.end(handle)
        took.append(at - since[client])
        start(client, now)
    return np.asarray(took, np.int64)


_LOOK_NS = 1_000_000  # nothing is on the link: let that much time pass at most, then look again


def consecutive(count: int, length: int) -> Addresses:
    """Addresses of ``count`` ranges of one length, one behind the other from 0."""
    addrs: Addresses = np.arange(count, dtype=np.uint64) * np.uint64(length)
    return addrs


def scattered(lines: int, among: int, seed: int) -> npt.NDArray[np.int64]:
    """``lines`` different numbers below ``among``: where pages happen to lie."""
    return np.random.default_rng(seed).choice(among, lines, replace=False)


def stream_all(device: chm.Device, lists: Iterable[Sequence[tuple[int, int]]], width: int) -> int:
    """Read lists of ranges through streams, ``width`` at a time; whichever has a piece ready is
    delivered. The nanoseconds it took."""
    begin = device.now()
    waiting = iter(lists)
    active: list[chm.Stream] = []
    while True:
        for ranges in itertools.islice(waiting, width - len(active)):
            active.append(device.stream(ranges, deadline_s=None))
        if not active:
            return device.now() - begin
        came = [take_piece(stream, 0) for stream in active]
        if not any(came) and None not in came:
            came[0] = take_piece(active[0], _PATIENCE_NS)
        for stream, what in zip(active, came, strict=True):
            if what is None:
                stream.close()
        active = [s for s, what in zip(active, came, strict=True) if what is not None]


_PATIENCE_NS = 300_000  # less than a piece of 16 MiB takes on the link


def in_order(device: chm.Device, ranges: Iterable[tuple[int, int]], ahead: int) -> int:
    """Read ranges in order: ``ahead`` of them are asked for, each is delivered as soon as it is
    there, and then the next is asked for in its place. The nanoseconds it took."""
    begin = device.now()
    todo = iter(ranges)
    held: deque[chm.Request] = deque()
    while True:
        for addr, length in itertools.islice(todo, ahead - len(held)):
            held.append(device.prefetch(addr, length, queue_s=math.inf, expire_s=math.inf))
        if not held:
            return device.now() - begin
        request = held.popleft()
        request.wait(None)
        request.release()


class Stager:
    """Reads through the window: issue, wait, release, with the next ranges on their way."""

    def __init__(self, device: chm.Device, depth: int) -> None:
        self.device = device
        self._half = max(depth // 2, 1)
        self._batches = (device.batch(self._half), device.batch(self._half))

    def read(self, addrs: Addresses, length: int) -> int:
        """Read ranges of one length in order; half of the depth is staged while the other half is
        delivered. The nanoseconds it took."""
        begin = self.device.now()
        under_way = None
        turn = itertools.cycle(self._batches)
        for at in range(0, len(addrs), self._half):
            batch = next(turn).issue(addrs[at : at + self._half], length, queue_s=math.inf)
            if under_way is not None:
                _take(under_way)
            under_way = batch
        if under_way is not None:
            _take(under_way)
        return self.device.now() - begin

    def one_by_one(self, addrs: Addresses | Sequence[int], length: int) -> int:
        """Issue, wait, deliver, release, and only then the next. The nanoseconds it took."""
        begin = self.device.now()
        batch = self._batches[0]
        for addr in addrs:
            _take(batch.issue([addr], length))
        return self.device.now() - begin


def _take(batch: chm.Batch) -> None:
    n = batch.count
    ready = batch.wait(None)
    failed = batch.status[:n].nonzero()[0]
    batch.release()
    if ready != n:
        raise error_of(int(batch.status[failed[0]]), "staging")
