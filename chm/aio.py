# SPDX-License-Identifier: Apache-2.0
"""Waiting in an asyncio program: ``await request`` and ``await dev.wait_many_async(requests)``.

A device with a thread tells through its descriptor (``Device.fileno``) that requests ended; one
reader per event loop reaps them and wakes whoever waits. Over a host link a request has ended when
it is staged, and is delivered a little later: the rest is slept. A stepped device has nobody who
works while the loop sleeps, so its waiters step it, in virtual time right to the end.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chm._ffi import ffi
from chm.errors import check

if TYPE_CHECKING:
    from chm._door import Door
    from chm.device import Device
    from chm.request import Request

_PENDING = -errno.ETIMEDOUT
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.00005, 0.001  # between looks, where nothing tells
_LINK_LOOK_S = 0.005  # over a link, one that ended before is pending still: look again after this


class Waiters:
    """Who waits for which request of a device, in whichever event loop."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._fd = check(door.c.event_fd(door.dev), "event_fd")
        self._futures: dict[int, list[asyncio.Future[None]]] = {}
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}

    def add(self, handle: int) -> asyncio.Future[None]:
        """A future of the running loop that is done once the request has ended."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._futures.setdefault(handle, []).append(future)
        waiting = self._loops.get(loop, 0)
        self._loops[loop] = waiting + 1
        if waiting == 0:
            loop.add_reader(self._fd, self._reap)
        return future

    def remove(self, handle: int, future: asyncio.Future[None]) -> None:
        """The future is done, or nobody waits for it any more."""
        loop = future.get_loop()
        futures = self._futures.get(handle, [])
        if future in futures:
            futures.remove(future)
        if not futures:
            self._futures.pop(handle, None)
        self._loops[loop] -= 1
        if self._loops[loop] == 0:
            del self._loops[loop]
            loop.remove_reader(self._fd)

    def _reap(self) -> None:
        out = ffi.new("uint64_t[]", 256)
        n = self._door.c.reap(self._door.dev, out, 256)
        self.tell(ffi.unpack(out, n) if n > 0 else ())

    def tell(self, handles: Sequence[int]) -> None:
        """These requests have ended. Any thread."""
        for handle in handles:
            for future in self._futures.pop(handle, ()):
                future.get_loop().call_soon_threadsafe(_wake, future)

    def shut(self) -> None:
        """The device is about to close: wake everybody, and leave the descriptor alone."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop in list(self._loops):
            if loop is here:
                loop.remove_reader(self._fd)
            else:
                loop.call_soon_threadsafe(loop.remove_reader, self._fd)
        self.tell(list(self._futures))


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _ended(door: Door, handle: int) -> None:
    """Return once a request of a device with a thread has ended."""
    waiters = door.waiters
    if waiters is None:
        waiters = door.waiters = Waiters(door)
    future = waiters.add(handle)
    try:
        # It may have ended, and been told to somebody else, before the future was there.
        if door.c.wait(door.dev, handle, 0) == _PENDING:
            await asyncio.wait((future,), timeout=_LINK_LOOK_S if door.linked else None)
    finally:
        waiters.remove(handle, future)


async def _finish(door: Door, req: Request) -> int:
    """Status of a request, once there is one."""
    if door.virtual:
        await asyncio.sleep(0)
        rc = door.sliced(lambda ns: int(door.c.wait(door.dev, req._id, ns)), None)
        req._ready = rc == 0
        return rc
    rc = req._poll()
    if rc == _PENDING and door.threaded:
        await _ended(door, req._id)
        rc = req._poll()
    pause = _PAUSE_MIN_S
    while rc == _PENDING:
        await asyncio.sleep(pause)
        pause = min(2 * pause, _PAUSE_MAX_S)
        rc = req._poll()
    return rc


async def wait_for_request(req: Request) -> Request:
    """What ``await request`` does: as ``Request.wait``, without a limit of its own."""
    rc = await _finish(req._door, req)
    if rc:
        raise req._failure(rc)
    return req


async def wait_many_async(
    dev: Device, reqs: Sequence[Request], timeout: float | None = 10.0
) -> list[int]:
    """As ``Device.wait_many``: 0 or -errno for each, -ETIMEDOUT for what still goes on."""
    if dev._door.virtual:
        await asyncio.sleep(0)
        return dev.wait_many(reqs, timeout)
    tasks = [asyncio.ensure_future(_finish(req._door, req)) for req in reqs]
    if not tasks:
        return []
    _, pending = await asyncio.wait(tasks, timeout=timeout)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return [_PENDING if task in pending else task.result() for task in tasks]
