# SPDX-License-Identifier: Apache-2.0
"""A request: the right to look at a range of the device, from issue to release.

``issued -> ready or failed -> released``. Dropping a request without releasing it is no leak: the
next call on the device releases it, once no view of it lives.

Also the published form of the interface, ``chm_prefetch_object`` and its companions, on a ``Ptr``.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from chm._door import BUSY, Door
from chm._ffi import NULL, PAGE, ffi, lib
from chm._lease import Lease
from chm.errors import Closed, WouldBlock, check, error_of
from chm.read import UNDECIDED
from chm.units import seconds_to_ns

if TYPE_CHECKING:
    from chm.device import Device

ENTER_TIMEOUT_S = 10.0
_PENDING = -errno.ETIMEDOUT


class Request(Lease):
    """One staged range; made by ``Device.prefetch``.

    As a context manager it is the whole of issue, wait and release: entering waits (at most 10 s),
    leaving releases. ``await request`` waits in an asyncio program.
    """

    __slots__ = ("_id", "_ready", "addr", "length")

    def __init__(self, door: Door, handle: int, addr: int, length: int) -> None:
        self._door = door
        self._seen = None
        self._id = handle
        self._ready = False
        self.addr = addr
        self.length = length

    def __repr__(self) -> str:
        state = "released" if not self._id else "ready" if self._ready else "issued"
        return f"<chm.Request {self.addr:#x}+{self.length:#x} {state}>"

    @property
    def id(self) -> int:
        """The handle, as ``Device.reap`` tells it; 0 once released."""
        return self._id

    def wait(self, timeout: float | None = None) -> Request:
        """Wait until all bytes are there; returns the request itself.

        ``timeout`` is in seconds on the device's clock, ``None`` waits without limit. Raises
        WaitTimeout (it goes on, wait again or release), MediaError, Expired, or StaleHandle.
        """
        if self._ready and self._id:
            return self
        door = self._door
        rc = door.quick.wait(self._id, 0)
        if rc == 0:
            self._ready = True
            return self
        if rc == BUSY or (rc in UNDECIDED and timeout != 0):
            c, dev, handle = door.c, door.dev, self._id
            rc = door.sliced(lambda ns: int(c.wait(dev, handle, ns)), timeout)
        if rc:
            raise self._failure(rc)
        self._ready = True
        return self

    def _failure(self, rc: int) -> Exception:
        if not self._id:
            rc = -errno.ESTALE
        return error_of(rc, f"prefetch of {self.length} bytes at {self.addr:#x}")

    def _poll(self) -> int:
        """0, why it failed, or -ETIMEDOUT while it goes on."""
        if not self._id:
            return -errno.ESTALE
        if self._ready:
            return 0
        door = self._door
        rc = int(door.quick.wait(self._id, 0))
        if rc == BUSY:
            rc = int(door.c.wait(door.dev, self._id, 0))
        self._ready = rc == 0
        return _PENDING if rc == -errno.EINTR else rc

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not; never changes back."""
        return self._poll() != _PENDING

    @property
    def progress(self) -> int:
        """Bytes that are there, counted from the front. Only grows."""
        if not self._id:
            raise self._failure(-errno.ESTALE)
        return check(self._door.c.progress(self._door.dev, self._id), "progress")

    def view(self, *, partial: bool = False) -> memoryview:
        """The bytes where they lie in the window: read-only, no copy.

        The request cannot be released while this view, a slice of it or an array of it lives.
        A request that has not ended raises WouldBlock, unless ``partial``: then the view ends with
        the last byte that is there (see ``progress``), and may be empty.
        """
        length = self.length
        if not self._ready or not self._id:
            rc = self._poll()
            if rc == _PENDING and partial:
                length = self.progress
                if length == 0:
                    return memoryview(b"")
            elif rc == _PENDING:
                raise WouldBlock(errno.EAGAIN, "the request has not ended: wait() first")
            elif rc:
                raise self._failure(rc)
        out = ffi.new("struct chm_view *")
        check(self._door.c.view(self._door.dev, self._id, out), "view")
        view = self._lend(out.data, self.length)
        return view.toreadonly() if length == self.length else view[:length].toreadonly()

    def array(self, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """The same bytes as a read-only numpy array, no copy."""
        return np.frombuffer(self.view(), dtype=dtype)

    def release(self) -> None:
        """Give the window space back, or cancel what has not ended. Doing it twice is fine.

        Raises BufferError, and releases nothing, while a view lives.
        """
        handle = self._id
        if not handle:
            return
        if self._seen is not None:
            self._take_back("the request")
        self._id = 0
        if self._door.quick.release(handle):
            self._release_again(handle)

    def _release_again(self, handle: int) -> None:
        """It did not work at once: another thread is in the device, or there is an error."""
        try:
            check(self._door.c.release(self._door.dev, handle), "release")
        except Closed:
            return  # its space went with the device

    def __enter__(self) -> Request:
        try:
            return self.wait(ENTER_TIMEOUT_S)
        except BaseException:
            self.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not self._id or not self._looked_at():
            self.release()
        else:
            # The traceback of the exception may hold views; it must not be hidden by BufferError.
            handle, self._id = self._id, 0
            self._leave_to_drain(self._door.c.release, self._door.dev, handle)

    def __await__(self) -> Generator[Any, None, Request]:
        from chm.aio import wait_for_request

        return wait_for_request(self).__await__()

    def __del__(self) -> None:
        if self._id and self._door.state == "open":
            self._leave_to_drain(self._door.c.release, self._door.dev, self._id)


def issue_options(
    nowait: bool, not_before_ns: int, expire_s: float | None, queue_s: float | None
) -> Any:
    """The C options of an issue, NULL if all are the default."""
    if not (nowait or not_before_ns) and expire_s is None and queue_s is None:
        return NULL
    options = ffi.new("struct chm_issue_options *")
    options.flags = lib.CHM_ISSUE_NOWAIT if nowait else 0
    options.not_before_ns = not_before_ns
    options.expire_ns = _span(expire_s)
    options.queue_ns = _span(queue_s)
    return options


def _span(seconds: float | None) -> int:
    """0 is the default on the C side; so 0 s becomes 1 ns, and infinity no limit."""
    if seconds is None:
        return 0
    return seconds_to_ns(None) if seconds == float("inf") else max(seconds_to_ns(seconds), 1)


@dataclass(frozen=True)
class Ptr:
    """An address that knows its device, as the published two-argument form wants it."""

    device: Device
    addr: int

    def __add__(self, offset: int) -> Ptr:
        return Ptr(self.device, self.addr + offset)


def chm_prefetch_object(ptr: Ptr, size: int) -> Request:
    """Issue: start staging ``size`` bytes (rounded up to whole pages) at ``ptr``."""
    return ptr.device.prefetch(ptr.addr, -(-size // PAGE) * PAGE)


def chm_prefetch_wait(req: Request, timeout: float | None = 10.0) -> None:
    """Wait: as ``Request.wait``, by default for at most 10 s."""
    req.wait(timeout)


def chm_prefetch_progress(req: Request) -> int:
    """Bytes ready from the front."""
    return req.progress


def chm_prefetch_release(req: Request) -> None:
    """Release: as ``Request.release``."""
    req.release()


__all__ = [
    "Ptr",
    "Request",
    "chm_prefetch_object",
    "chm_prefetch_progress",
    "chm_prefetch_release",
    "chm_prefetch_wait",
]
