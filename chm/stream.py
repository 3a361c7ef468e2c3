# SPDX-License-Identifier: Apache-2.0
"""Streams: an ordered list of ranges, staged a bounded number of pieces ahead of the consumer.

    for piece in dev.stream(ranges):
        use(piece.array())

Each piece is given back when the next one is taken. One that is still looked at then is given back
at the first step after its last view is gone, so the usual loop above, where ``array`` of the last
round lives on for a moment, works; it costs one piece of read-ahead.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chm._door import Door, fields_of
from chm._ffi import NULL, ffi
from chm._lease import Lease
from chm.errors import ChmError, Deadlock, InvalidArgument, check, error_of
from chm.options import Size
from chm.read import UNDECIDED
from chm.stats import StreamInfo
from chm.units import parse_size, seconds_to_ns

Range = tuple[int, int]
_LATER = -errno.ETIMEDOUT


After = Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]


class _Slot(Lease):
    """The part of a piece that the stream knows, too: where its bytes are, and who looks."""

    __slots__ = ("data", "dropped", "handle", "length")

    def __init__(self, door: Door, handle: int, data: Any, length: int) -> None:
        self._door = door
        self._seen = None
        self.handle = handle
        self.data = data
        self.length = length
        self.dropped = False  # nobody has the Piece any more


class Piece:
    """``length`` bytes at ``offset`` of range number ``object``, staged; ``last`` ends it."""

    __slots__ = ("_slot", "_stream", "last", "length", "object", "offset")

    def __init__(self, stream: Stream, slot: _Slot, c_piece: Any) -> None:
        self._stream = stream
        self._slot = slot
        self.length = slot.length
        self.object: int = c_piece.object
        self.offset: int = c_piece.offset
        self.last = bool(c_piece.last)

    def view(self) -> memoryview:
        """The bytes where they lie in the window: read-only, no copy."""
        slot = self._slot
        if not slot.handle:
            raise error_of(-errno.ESTALE, "piece")
        return slot._lend(slot.data, slot.length).toreadonly()

    def array(self, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """The same bytes as a read-only numpy array, no copy."""
        return np.frombuffer(self.view(), dtype=dtype)

    def release(self) -> None:
        """Give the space back, so that the next piece can be staged. Twice is fine.

        Raises BufferError, and releases nothing, while a view lives.
        """
        self._stream._release(self._slot)

    def __del__(self) -> None:
        self._slot.dropped = True


class Stream:
    """Made by ``Device.stream`` or ``Space.stream``. A context manager; one consumer at a time.

    ``keep`` leaves giving pieces back to the caller (``Piece.release``, or dropping the piece).
    """

    __slots__ = ("__weakref__", "_after", "_door", "_held", "_lengths", "_out", "_place", "keep")

    def __init__(
        self,
        door: Door,
        ranges: Iterable[Range],
        *,
        segment: Size | None = None,
        whole: bool = False,
        window: Size | None = None,
        deadline_s: float | None = 10.0,
        not_before_ns: int = 0,
        keep: bool = False,
        lengths: Sequence[int] | None = None,
        after: After = (),
    ) -> None:
        # Where C puts the handle: a Ctrl-C right after the call cannot lose it. NULL: closed.
        self._place = ffi.new("chm_stream **")
        self._door = door
        self._held: list[_Slot] = []
        self._lengths = lengths  # payload bytes of each range, if less than all
        self._after = after  # calls to make once the stream is closed
        self._out = ffi.new("struct chm_piece *")
        self.keep = keep
        options = ffi.new("struct chm_stream_options *")
        options.segment_bytes = parse_size(segment or 0)
        options.whole = whole
        options.window_bytes = parse_size(window or 0)
        options.deadline_ns = seconds_to_ns(deadline_s)
        options.not_before_ns = not_before_ns
        pairs = [(int(addr), int(length)) for addr, length in ranges]
        objects = ffi.new("struct chm_range[]", pairs)
        rc = door.c.stream_open(door.dev, objects, len(pairs), options, self._place)
        door.check_staged(rc, "stream")
        door.streams.add(self)

    def next(self, timeout: float | None = None) -> Piece:
        """The next piece, in order; the ones before are given back, unless the stream keeps.

        Raises WaitTimeout (``timeout`` seconds passed: ask again), Deadlock (what is held leaves
        no space for the next), Expired (the stream's deadline passed; ``info.whole_objects`` is the
        usable prefix) or the MediaError of that piece, the last two for good; StopIteration at
        the end.
        """
        self._need_open()
        self._give_back()
        c, stream, out = self._door.c, self._place[0], self._out
        rc = self._door.sliced(lambda ns: int(c.stream_next(stream, ns, out)), timeout)
        if rc == -errno.ENODATA:
            raise StopIteration
        if rc == -errno.EDEADLK and not self.keep:
            raise Deadlock(
                errno.EDEADLK,
                f"views of {len(self._held)} earlier pieces are alive, and the window of this "
                "stream has no space beside them: drop them before the next piece",
            )
        check(rc, "stream")
        return self._piece(out)

    def _piece(self, out: Any) -> Piece:
        """What C handed out."""
        slot = _Slot(self._door, out.req, out.data, self._payload(out))
        self._held.append(slot)
        return Piece(self, slot, out)

    def _outcome(self, rc: int, out: Any) -> Piece | ChmError | None:
        if rc == 0:
            return self._piece(out)
        return None if rc in UNDECIDED else error_of(rc, "stream")

    def _payload(self, piece: Any) -> int:
        if self._lengths is None:
            return int(piece.len)
        return int(min(piece.len, self._lengths[piece.object] - piece.offset))

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        return self.next()

    def _give_back(self) -> None:
        """Release what was handed out and is not looked at any more."""
        for slot in self._held[:]:
            if (slot.dropped or not self.keep) and not slot._looked_at():
                self._release(slot)

    def _release(self, slot: _Slot) -> None:
        if not slot.handle:
            return
        slot._take_back("the piece")
        handle, slot.handle = slot.handle, 0
        self._held.remove(slot)
        if self._place[0] and self._door.state == "open":
            check(self._door.c.stream_release(self._place[0], handle), "stream")

    def _taken(self) -> Any:
        """The handle; the stream does not have it any more."""
        stream, self._place[0] = self._place[0], NULL
        return stream

    def _need_open(self) -> None:
        if not self._place[0]:
            raise InvalidArgument(errno.EINVAL, "the stream is closed")

    @property
    def info(self) -> StreamInfo:
        """How far it is."""
        self._need_open()
        out = ffi.new("struct chm_stream_info *")
        check(self._door.c.stream_info(self._place[0], out), "stream")
        return StreamInfo(**fields_of("struct chm_stream_info", out))

    def close(self) -> None:
        """Cancel what is ahead and give back what is held. Twice is fine.

        Raises BufferError, and closes nothing, while a view of a piece lives.
        """
        if not self._place[0]:
            return
        for slot in self._held:
            slot._take_back("a piece of the stream")
        for slot in self._held:
            slot.handle = 0
        self._held = []
        stream = self._taken()
        if self._door.state == "open":
            check(self._door.c.stream_close(stream), "stream")
            for call, args in self._after:
                call(*args)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except BufferError:
            if kind is None:
                raise
            self._abandon()  # the traceback holds views

    def _abandon(self) -> None:
        """Leave all of it to the next call on the device, once no piece is looked at."""
        stream = self._taken()
        views = [slot._seen for slot in self._held if slot._seen is not None]
        for slot in self._held:
            slot._seen = None
            slot.handle = 0
        self._held = []
        for call, args in ((self._door.c.stream_close, (stream,)), *self._after):
            self._door.garbage.append((views, call, args))

    def __del__(self) -> None:
        if self._place[0] and self._door.state == "open":
            self._abandon()


def next_many(
    streams: Sequence[Stream], timeout: float | None = 0.0
) -> list[Piece | ChmError | None]:
    """The next piece of each of several streams of one device, at the cost of about one call.

    None: not there yet. Otherwise as ``Stream.next`` with an error returned, not raised; a stream
    at its end answers ENODATA. ``timeout`` (seconds) is how long the first one waits; the others
    are only looked at.
    """
    if not streams:
        return []
    door, n = streams[0]._door, len(streams)
    for s in streams:
        if s._held:
            s._give_back()
    places = [s._place[0] for s in streams]
    if timeout:
        rc = door.sliced(
            lambda ns: int(door.c.stream_next(places[0], ns, streams[0]._out)), timeout
        )
        first = streams[0]._outcome(rc, streams[0]._out)
        return [first, *next_many(streams[1:])]
    pieces, statuses = ffi.new("struct chm_piece[]", n), ffi.new("int32_t[]", n)
    check(door.c.stream_next_many(places, n, pieces, statuses), "stream")
    return [
        None if rc == _LATER else streams[i]._outcome(rc, pieces[i])
        for i, rc in enumerate(ffi.unpack(statuses, n))
    ]
