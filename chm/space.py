# SPDX-License-Identifier: Apache-2.0
"""Objects of mixed sizes on one device: put, get, stream, delete.

An object is visible when whole, and its place is reused only when nobody reads it. Records live in
memory: a space starts empty. A put goes ``begun -> pieces filled -> committed or aborted``.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chm._buffers import Array, as_bytes, source
from chm._door import Door, fields_of
from chm._ffi import NULL, PAGE, ffi
from chm._lease import Lease
from chm.errors import ChmError, InvalidArgument, WaitTimeout, WouldBlock, check
from chm.options import Size
from chm.read import read_items
from chm.request import Ptr
from chm.stats import SpaceStats
from chm.stream import Stream
from chm.units import parse_size

if TYPE_CHECKING:
    from chm.device import Device

_FULL = -errno.EAGAIN
_ROOM_POLL_NS = 500_000  # a flush unit takes about as long on a fast drive


@dataclass(frozen=True)
class Object:
    """An object of a space: its id, page-aligned address, and payload bytes as given."""

    id: int
    addr: int
    length: int
    ptr: Ptr = field(compare=False, repr=False)

    @property
    def extent(self) -> tuple[int, int]:
        """Address and length in whole pages, as ``Device.prefetch`` wants them."""
        return self.addr, -(-self.length // PAGE) * PAGE


class Space:
    """An allocator over (part of) a device; one per device. A context manager.

    ``base`` and ``length`` say which part (default: all), ``objects_max`` how many objects.
    """

    __slots__ = ("__weakref__", "_device", "_door", "_holds", "_place", "_puts", "_single")

    def __init__(
        self, device: Device, *, base: Size = 0, length: Size = 0, objects_max: int = 0
    ) -> None:
        self._place = ffi.new("chm_space **")  # see Stream
        self._device = device
        self._door: Door = device._door
        self._holds: Counter[int] = Counter()
        self._puts: set[int] = set()
        self._single = device.info.write_buffer_bytes // 2
        options = ffi.new("struct chm_space_options *")
        options.base, options.len = parse_size(base), parse_size(length)
        options.objects_max = objects_max
        self._door.drain()
        check(self._door.c.space_open(self._door.dev, options, self._place), "space")
        self._door.spaces.add(self)

    @property
    def _sp(self) -> Any:
        """The handle; NULL once closed."""
        return self._place[0]

    def _handle(self) -> Any:
        if not self._sp:
            raise InvalidArgument(errno.EINVAL, "the space is closed")
        if self._door.garbage:
            self._door.drain()
        return self._sp

    def _object(self, c_object: Any) -> Object:
        ptr = Ptr(self._device, c_object.addr)
        return Object(c_object.id, c_object.addr, c_object.len, ptr)

    # -- writing -------------------------------------------------------------------------------

    def put(self, buf: Any, timeout: float | None = 10.0) -> Object:
        """Store the bytes of ``buf`` (any C-contiguous buffer, copied) as a new object.

        Waits for room in the write buffer. Raises WaitTimeout, DeviceFull, TableFull, MediaError;
        then nothing is left of it.
        """
        sp, door = self._handle(), self._door
        memory, nbytes = source(buf)
        if nbytes > self._single:
            return self._put_pieces(as_bytes(buf), timeout)
        out = ffi.new("struct chm_object *")

        def attempt(ns: int) -> int:
            rc = int(door.c.put(sp, memory, nbytes, ns, out))
            return -errno.ETIMEDOUT if rc == _FULL else rc

        check(door.sliced(attempt, timeout), "put")
        return self._object(out)

    def _put_pieces(self, data: Array, timeout: float | None) -> Object:
        with self.put_begin(data.nbytes) as put:
            at = 0
            for view in put.pieces(timeout):
                # numpy copies without the GIL, a memoryview does not.
                np.copyto(np.frombuffer(view, np.uint8), data[at : at + view.nbytes])
                at += view.nbytes
        return put.object

    def put_begin(self, length: int) -> Put:
        """Reserve an extent for an object of ``length`` bytes, to be filled without a copy."""
        out = ffi.new("struct chm_object *")
        try:
            check(self._door.c.put_begin(self._handle(), length, out), f"put of {length} bytes")
            self._puts.add(out.id)
            return Put(self, self._object(out))
        except KeyboardInterrupt:
            if out.id:
                self._door.c.put_abort(self._sp, out.id)
            raise

    # -- looking up and reading ----------------------------------------------------------------

    def get(self, object_id: int) -> Object:
        """The object with this id. NotFound if it does not exist or is not whole yet."""
        out = ffi.new("struct chm_object *")
        check(self._door.c.object_get(self._handle(), object_id, out), f"object {object_id}")
        return self._object(out)

    def read(
        self,
        obj: Object,
        offset: int = 0,
        length: int | None = None,
        out: Any = None,
        timeout: float | None = 10.0,
    ) -> Array:
        """Read ``length`` bytes (default: to the end) at ``offset`` of an object.

        Into ``out``, or a fresh array; see ``Device.read``. Holds the object meanwhile.
        """
        if length is None:
            length = obj.length - offset
        if offset < 0 or offset + length > obj.length:
            raise InvalidArgument(errno.EINVAL, f"the object has {obj.length} bytes")
        self.hold(obj)
        try:
            result = read_items(self._door, [(obj.addr + offset, out, length)], timeout)[0]
        finally:
            self.drop(obj)
        if isinstance(result, ChmError):
            raise result
        return result

    def stream(self, objs: Sequence[Object], **options: Any) -> Stream:
        """Stage whole objects in order, held until it is closed; options as ``Device.stream``.

        Pieces end with the payload: the padding of an object's last page is not shown.
        """
        sp, c = self._handle(), self._door.c
        held: list[tuple[Any, tuple[Any, int]]] = []
        try:
            for obj in objs:
                check(c.object_hold(sp, obj.id), f"object {obj.id}")
                held.append((c.object_drop, (sp, obj.id)))
            extents = [obj.extent for obj in objs]
            lengths = [obj.length for obj in objs]
            return Stream(self._door, extents, lengths=lengths, after=held, **options)
        except BaseException:
            for drop, args in held:
                drop(*args)
            raise

    # -- lifetime of objects -------------------------------------------------------------------

    def hold(self, obj: Object) -> None:
        """Keep the place of an object its own, through ``delete``, until ``drop``."""
        check(self._door.c.object_hold(self._handle(), obj.id), f"object {obj.id}")
        self._holds[obj.id] += 1

    def drop(self, obj: Object) -> None:
        """Let go of an object that was held."""
        check(self._door.c.object_drop(self._handle(), obj.id), f"object {obj.id}")
        self._holds[obj.id] -= 1

    def delete(self, obj: Object) -> None:
        """It is gone for everybody who asks from now on; its space is free when nobody holds it."""
        check(self._door.c.object_delete(self._handle(), obj.id), f"object {obj.id}")

    @property
    def stats(self) -> SpaceStats:
        """Counters; ``largest_free_bytes`` beside ``free_bytes`` shows fragmentation."""
        out = ffi.new("struct chm_space_stats *")
        check(self._door.c.space_stats(self._handle(), out), "space")
        return SpaceStats(**fields_of("struct chm_space_stats", out))

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Forget all objects. Busy while objects are held or puts are open. Twice is fine."""
        if self._sp and self._door.state == "open":
            check(self._door.c.space_close(self._handle()), "space")
        self._place[0] = NULL

    def _shutdown(self) -> None:
        """Close in any case: the device goes."""
        if not self._sp:
            return
        for object_id, count in self._holds.items():
            for _ in range(count):
                self._door.c.object_drop(self._sp, object_id)
        for object_id in self._puts:
            self._door.c.put_abort(self._sp, object_id)
        self._holds.clear()
        self._puts.clear()
        self.close()

    def __enter__(self) -> Space:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._sp and self._door.state == "open":
            for object_id, count in self._holds.items():
                for _ in range(count):
                    self._door.garbage.append(((), self._door.c.object_drop, (self._sp, object_id)))
            self._door.garbage.append(((), self._door.c.space_close, (self._sp,)))


class Put(Lease):
    """An object being written; made by ``Space.put_begin``.

    As a context manager it commits, or aborts on an exception. ``object`` is what it will be.
    """

    __slots__ = ("_id", "_space", "_view", "object")

    def __init__(self, space: Space, obj: Object) -> None:
        self._space = space
        self._door = space._door
        self._seen = None
        self._view: memoryview | None = None
        self._id = obj.id
        self.object = obj

    def pieces(self, timeout: float | None = 10.0) -> Iterator[memoryview]:
        """Iterate over writable views that together are the object; fill each before the next.

        Waits up to ``timeout`` seconds for room for each piece (WaitTimeout; 0: WouldBlock). The
        view before is released, and committed, when the next is taken: BufferError if a slice of
        it or an array made from it lives then.
        """
        out = ffi.new("struct chm_piece_put *")
        while True:
            self._end_piece()
            rc = self._next_piece(out, timeout)
            if rc == -errno.ENODATA:
                return
            check(rc, "put")
            self._view = self._lend(out.data, out.len)
            yield self._view

    def _next_piece(self, out: Any, timeout: float | None) -> int:
        door, sp = self._door, self._space._handle()
        end = None if timeout is None else door.now() + int(timeout * 1e9)
        while True:
            rc = int(door.c.put_piece(sp, self._id, out))
            if rc != _FULL:
                return rc
            if timeout == 0:
                raise WouldBlock(errno.EAGAIN, "put: the write buffer is full")
            if end is not None and door.now() >= end:
                raise WaitTimeout(errno.ETIMEDOUT, f"put: no room in {timeout} s")
            door.pause(_ROOM_POLL_NS)

    def _end_piece(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            try:
                view.release()
            except BufferError:
                self._view = view
                raise
        del view
        self._take_back("the put")

    def commit(self) -> Object:
        """The object is visible from here on. All pieces must have been taken."""
        if not self._id:
            raise InvalidArgument(errno.EINVAL, "the put was committed or aborted")
        self._end_piece()
        check(self._door.c.put_commit(self._space._handle(), self._id), "put")
        self._finish()
        return self.object

    def abort(self) -> None:
        """Forget it and free all of it. After commit or abort it does nothing."""
        if not self._id:
            return
        self._end_piece()
        handle = self._finish()
        if self._door.state == "open" and self._space._sp:
            check(self._door.c.put_abort(self._space._sp, handle), "put")

    def _finish(self) -> int:
        handle, self._id = self._id, 0
        self._space._puts.discard(handle)
        return handle

    def __enter__(self) -> Put:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._id:
            return
        if kind is None:
            try:
                self.commit()
            except ChmError:
                self.abort()
                raise
            return
        try:
            self.abort()
        except BufferError:  # the traceback holds views
            self._abandon()

    def _abandon(self) -> None:
        self._view = None
        handle = self._finish()
        self._leave_to_drain(self._door.c.put_abort, self._space._sp, handle)

    def __del__(self) -> None:
        if self._id and self._door.state == "open" and self._space._sp:
            self._abandon()
