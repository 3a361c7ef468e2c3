# SPDX-License-Identifier: Apache-2.0
"""A zero-copy write: room in the write buffer, filled by the caller.

``begun -> committed or aborted``. After either, the room is the device's: the view is dead, and
neither happens while something made from the view lives.
"""

from __future__ import annotations

import errno
from typing import Any

from chm._door import Door
from chm._ffi import NULL, ffi
from chm._lease import Lease
from chm.errors import ChmError, Closed, InvalidArgument, error_of

_ITEM = ffi.typeof("struct chm_write *")


class Write(Lease):
    """Made by ``Device.write_begin``. A context manager: commits, or aborts on an exception."""

    __slots__ = ("_data", "_id", "_view", "addr", "length")

    def __init__(self, door: Door, handle: int, addr: int, length: int, data: Any) -> None:
        self._door = door
        self._seen = None
        self._id = handle
        self._data = data
        self._view: memoryview | None = None
        self.addr = addr
        self.length = length

    @property
    def view(self) -> memoryview:
        """The ``length`` bytes to fill, writable, in the write buffer; contents undefined so far.

        It is released by commit and abort (using it then is a ValueError). Slices of it and arrays
        made from it are the caller's to drop first: BufferError otherwise.
        """
        if self._view is None:
            self._need_open()
            self._view = self._lend(self._data, self.length)
        return self._view

    def _need_open(self) -> None:
        if not self._id:
            raise InvalidArgument(errno.EINVAL, "the write was committed or aborted")

    def _end(self, call: Any, what: str) -> None:
        self._take_back_view()
        handle, self._id = self._id, 0
        status = ffi.new("int32_t[1]")
        rc = call(self._door.dev, [handle], 1, status)
        if rc < 0 or status[0]:
            raise error_of(rc if rc < 0 else status[0], f"{what} at {self.addr:#x}")

    def _take_back_view(self) -> None:
        """No pointer into the room may be left; a refusal leaves the write as it was."""
        if self._seen is None:
            return
        view, self._view = self._view, None
        if view is not None:
            try:
                view.release()
            except BufferError:
                self._view = view
                raise
        del view
        self._take_back("the write")

    def commit(self) -> None:
        """Make the bytes what the address reads as. With strict durability: once they are durable.

        Raises MediaError (strict only), BufferError while a view lives.
        """
        self._need_open()
        self._end(self._door.c.write_commit, "commit")

    def abort(self) -> None:
        """Forget it; the address reads as before. After commit or abort it does nothing."""
        if not self._id:
            return
        try:
            self._end(self._door.c.write_abort, "abort")
        except Closed:
            self._id = 0

    def __enter__(self) -> Write:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._id:
            return
        if kind is None:
            self.commit()
            return
        try:
            self.abort()
        except BufferError:  # the traceback holds views
            self._abandon()

    def _abandon(self) -> None:
        handle, self._id = self._id, 0
        self._view = None
        self._leave_to_drain(self._door.c.write_abort, self._door.dev, [handle], 1, NULL)

    def __del__(self) -> None:
        if self._id and self._door.state == "open":
            self._abandon()


def begin(door: Door, addr: int, length: int) -> Write:
    """Reserve room for one write, or raise WouldBlock, TooLarge, OutOfRange, MediaError."""
    item = ffi.new(_ITEM)
    item.addr, item.len = addr, length
    try:
        rc = door.c.write_begin(door.dev, item, 1)
    except KeyboardInterrupt:  # raised after the call: nobody would ever end what it began
        if item.id and item.status == 0:
            door.c.write_abort(door.dev, [item.id], 1, NULL)
        raise
    status = rc if rc < 0 else item.status
    if status:
        raise error_of(status, f"write of {length} bytes at {addr:#x}")
    return Write(door, item.id, addr, length, item.data)


def begin_many(door: Door, ranges: list[tuple[int, int]]) -> list[Write | ChmError]:
    """Reserve room for several, in order; a Write or an error for each."""
    n = len(ranges)
    if n == 0:
        return []
    items = ffi.new("struct chm_write[]", n)
    for item, (addr, length) in zip(items, ranges, strict=True):
        item.addr, item.len = addr, length
    try:
        rc = door.c.write_begin(door.dev, items, n)
    except KeyboardInterrupt:  # raised after the call: nobody would ever end what it began
        ids = [item.id for item in items if item.id and item.status == 0]
        door.c.write_abort(door.dev, ids, len(ids), NULL)
        raise
    if rc < 0:
        raise error_of(rc, "write")
    return [
        error_of(item.status, f"write of {item.len} bytes at {item.addr:#x}")
        if item.status
        else Write(door, item.id, item.addr, item.len, item.data)
        for item in items
    ]
