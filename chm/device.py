# SPDX-License-Identifier: Apache-2.0
"""Making, opening and using a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from chm._buffers import Array, source
from chm._door import BUSY, Door, close_orphans, explained
from chm._ffi import NULL, ffi, lib
from chm.aio import wait_many_async
from chm.batch import Batch
from chm.errors import ChmError, InvalidArgument, check, error_of
from chm.options import (
    FormatOptions,
    OptionGroup,
    Options,
    Path,
    Size,
    path_list,
    sim_options,
)
from chm.read import read_items, wait_ids
from chm.request import Ptr, Request, issue_options
from chm.stats import DeviceInfo, Stats, info_of, stats_of
from chm.stream import Range, Stream
from chm.units import FOREVER_NS, parse_size
from chm.write import Write, begin, begin_many

HANDLE_MAX = (1 << 64) - 4096  # larger numbers are -errno


def _fill(struct: Any, options: OptionGroup, keep: list[Any]) -> None:
    """Copy fields into a C struct of the same names. ``keep`` holds C memory it points to."""
    for f in fields(options):
        value = getattr(options, f.name)
        if f.name in ("paths", "members"):
            continue
        if isinstance(value, OptionGroup):
            _fill(getattr(struct, f.name), value, keep)
            continue
        words = f.metadata.get("words")
        if words is not None and f.name != "media":
            value = words.index(value)
        elif isinstance(value, str):
            keep.append(ffi.new("char[]", value.encode("utf-8", "surrogateescape")))
            value = keep[-1]
        if value and "array" in f.metadata:
            getattr(struct, f.metadata["array"])[f.metadata["at"]] = value
        elif value:
            setattr(struct, f.name, value)


def _set_paths(struct: Any, paths: Sequence[str], keep: list[Any]) -> None:
    names = [ffi.new("char[]", path.encode("utf-8", "surrogateescape")) for path in paths]
    array = ffi.new("char *[]", names)
    keep += [*names, array]
    struct.paths, struct.npaths = array, len(paths)


def _issue_one(door: Door, addr: int, length: int, options: Any) -> int:
    """Handle of a fresh request; raises why there is none."""
    item = ffi.new("struct chm_issue *", (addr, length))
    rc = door.c.issue(door.dev, item, 1, options)
    if rc != 1:
        door.check_staged(rc or item.status, f"prefetch of {length} bytes at {addr:#x}")
    return int(item.req)


def _issue_again(door: Door, handle: int, addr: int, length: int) -> int:
    """The quick way gave an error number: wait for the other thread, or raise."""
    if handle == BUSY + (1 << 64):
        handle = door.c.binding_issue(door.dev, addr, length)
    if handle > HANDLE_MAX:
        door.check_staged(handle - (1 << 64), f"prefetch of {length} bytes at {addr:#x}")
    return handle


HEADER_MAGIC = b"CHMDEV\r\n"  # what each file or drive of a device begins with


def format_device(options: FormatOptions) -> None:
    """Make a device; see ``format``, which is the same with arguments."""
    close_orphans()
    if not options.paths:
        raise InvalidArgument(22, "format: no path was given")
    keep: list[Any] = []
    struct = ffi.new("struct chm_format_options *")
    lib.chm_format_options_init(struct)
    _fill(struct, options, keep)
    _set_paths(struct, options.paths, keep)
    explained(lib.chm_format, struct, path=", ".join(options.paths))


def format(
    paths: Path | Iterable[Path],
    capacity: Size | None = None,
    *,
    stripe: Size | None = None,
    force: bool = False,
    buffered: bool = False,
) -> None:
    """Make a device on one or more files or drives.

    ``capacity`` is that of the whole device without headers, rounded down to whole stripe rows;
    ``None`` takes existing files or drives as they are. Files are created with mode 0600 and
    preallocated. With ``force`` what is in them is lost, be it a chm device or anything else;
    without, that raises Exists. Also Busy (open elsewhere), DeviceFull.
    """
    format_device(
        FormatOptions(
            paths=path_list(paths),
            capacity_bytes=capacity or 0,
            stripe_bytes=stripe or 0,
            force=force,
            buffered=buffered,
        )
    )


def grow(
    paths: Path | Iterable[Path], capacity: Size | None = None, *, buffered: bool = False
) -> None:
    """Make a closed device larger; what is on it stays, and every address with it.

    ``paths`` are all its members, in order. ``capacity`` is what it shall have, rounded down to
    whole stripe rows; ``None`` takes what the files or drives have now. A store on it is grown by
    opening it once with ``grow=True``. Raises InvalidArgument (it would become smaller),
    ForeignMember, Busy, DeviceFull.
    """
    close_orphans()
    keep: list[Any] = []
    names = path_list(paths)
    struct = ffi.new("struct chm_format_options *")
    lib.chm_format_options_init(struct)
    _set_paths(struct, names, keep)
    struct.capacity_bytes, struct.buffered = parse_size(capacity or 0), buffered
    explained(lib.chm_grow, struct, path=", ".join(names))


class Device:
    """One open device. A context manager; ``close`` it, or a ResourceWarning tells you.

    A device with ``thread=True`` may be used from any thread. Without, it is stepped by the calls
    made on it, which take turns. Addresses and lengths are in bytes and multiples of 4096.
    """

    def __init__(self, options: Options) -> None:
        """Open. Raises Busy (the text names the owner), NotFound, BadHeader, ForeignMember,
        Unsupported (the text says what to do), DeviceFull, InvalidArgument."""
        close_orphans()
        self.options = options
        keep: list[Any] = []
        struct = ffi.new("struct chm_options *")
        lib.chm_options_init(struct)
        _fill(struct, options, keep)
        if options.paths:
            _set_paths(struct, options.paths, keep)
        else:
            struct.npaths = options.members or 1
        out = ffi.new("chm_dev **")
        name = ", ".join(options.paths) or options.media
        try:
            explained(lib.chm_open, struct, out, path=name)
        except BaseException:  # Ctrl-C is raised when the call has returned: with an open device
            lib.chm_close(out[0], FOREVER_NS)
            raise
        self._door = Door(out[0], name)

    def __repr__(self) -> str:
        return f"<chm.Device {self._door.name} {self._door.state}>"

    # -- the device itself ---------------------------------------------------------------------

    def close(self, timeout: float = 30.0) -> None:
        """Let writes and I/O in flight end, make all durable, give everything back. Idempotent.

        Streams and spaces are closed with it. Raises BufferError, and closes nothing, while a view
        of device memory lives; MediaError if committed data could not be written; WaitTimeout
        if I/O did not end in time (it is closed all the same).
        """
        self._door.close(timeout)

    @property
    def closed(self) -> bool:
        """Whether it is closed, or was opened in a parent process."""
        return self._door.state != "open"

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except BufferError:
            if kind is None:
                raise  # else the traceback holds views: closed when they are gone, by the next open

    @property
    def info(self) -> DeviceInfo:
        """What it is."""
        out = ffi.new("struct chm_info *")
        check(self._door.c.info(self._door.dev, out), "info")
        return info_of(out)

    def stats(self) -> Stats:
        """A copy of all counters, of one moment; dropped requests are given back first."""
        self._door.drain()
        out = ffi.new("struct chm_stats *")
        check(self._door.c.stats(self._door.dev, out), "stats")
        return stats_of(out)

    def now(self) -> int:
        """The device's clock, ns: CLOCK_MONOTONIC, or virtual time on a simulated medium."""
        return self._door.now()

    def step(self, until_ns: int = 0) -> int:
        """Stepped devices: do what can be done, and wait for I/O until ``until_ns``.

        Returns how many requests ended. Calls that wait step by themselves; this is for
        programs with a loop of their own.
        """
        door = self._door
        if door.garbage or door.limbo:
            door.drain()
        if door.virtual:
            return check(door.c.step(door.dev, until_ns), "step")
        while True:
            stop = until_ns
            if stop:
                stop = min(stop, door.now() + door.slice_ns)
            ended = check(door.c.step(door.dev, stop), "step")
            if ended or stop == until_ns:
                return ended
            door.hand_over()

    # -- staging -------------------------------------------------------------------------------

    def prefetch(
        self,
        addr: int,
        length: int,
        *,
        nowait: bool = False,
        not_before_ns: int = 0,
        expire_s: float | None = None,
        queue_s: float | None = None,
    ) -> Request:
        """Start staging a range into the window; returns at once.

        ``nowait`` raises WouldBlock instead of queueing when the window is full. ``not_before_ns``
        (device clock) stages just in time. A request nobody waited for is dropped after
        ``expire_s`` (60 s, ``inf``: never); one without window space after ``queue_s`` (10 s).
        Raises OutOfRange, TooLarge (than the window: use ``stream``), Busy (request table full).
        """
        door = self._door
        if door.garbage:
            door.drain()
        if nowait or not_before_ns or expire_s is not None or queue_s is not None:
            options = issue_options(nowait, not_before_ns, expire_s, queue_s)
            handle = _issue_one(door, addr, length, options)
        else:
            handle = door.quick.binding_issue(addr, length)
            if handle > HANDLE_MAX:
                handle = _issue_again(door, handle, addr, length)
        return Request(door, handle, addr, length)

    def prefetch_many(
        self,
        ranges: Iterable[Range],
        *,
        nowait: bool = False,
        not_before_ns: int = 0,
        expire_s: float | None = None,
        queue_s: float | None = None,
    ) -> list[Request | ChmError]:
        """Start staging several ranges in one call; a Request or an error for each, in order.

        For the least cost per range, see ``batch``.
        """
        pairs = list(ranges)
        self._door.drain()
        if not pairs:
            return []
        door, n = self._door, len(pairs)
        items = ffi.new("struct chm_issue[]", [(addr, length) for addr, length in pairs])
        options = issue_options(nowait, not_before_ns, expire_s, queue_s)
        door.check_staged(door.c.issue(door.dev, items, n, options), "prefetch")
        return [
            error_of(item.status, f"prefetch of {length} bytes at {addr:#x}")
            if item.status
            else Request(door, item.req, addr, length)
            for item, (addr, length) in zip(items, pairs, strict=True)
        ]

    def batch(self, size: int) -> Batch:
        """Arrays for up to ``size`` ranges at a time, for use again and again."""
        return Batch(self._door, size)

    def wait_many(self, reqs: Sequence[Request], timeout: float | None = 10.0) -> list[int]:
        """Wait for all of them; 0 or -errno for each (-ETIMEDOUT: still going on)."""
        statuses = wait_ids(self._door, [req._id for req in reqs], timeout)
        for req, status in zip(reqs, statuses, strict=True):
            if status == 0:
                req._ready = True
        return statuses

    async def wait_many_async(
        self, reqs: Sequence[Request], timeout: float | None = 10.0
    ) -> list[int]:
        """``wait_many`` for asyncio programs; one request alone is ``await request``."""
        return await wait_many_async(self, reqs, timeout)

    def release_many(self, reqs: Sequence[Request]) -> None:
        """Release all of them in one call. BufferError, and nothing released, if a view lives."""
        if looked_at := sum(req._looked_at() for req in reqs):
            raise BufferError(f"views of {looked_at} requests are alive; drop them first")
        ids = [req._id for req in reqs if req._id]
        for req in reqs:
            req._forget()
            req._id = 0
        if ids and not self.closed:
            self._door.c.release_many(self._door.dev, ids, len(ids), NULL)

    def reap(self, most: int = 4096) -> list[int]:
        """Ids of up to ``most`` requests that ended since the last call, in order of ending."""
        out = ffi.new("uint64_t[]", most)
        n = check(self._door.c.reap(self._door.dev, out, most), "reap")
        ids = list(ffi.unpack(out, n)) if n else []
        if ids and self._door.waiters is not None:
            self._door.waiters.tell(ids)
        return ids

    def fileno(self) -> int:
        """A descriptor that is readable while ``reap`` has something to tell. Do not close it."""
        return check(self._door.c.event_fd(self._door.dev), "event_fd")

    def stream(
        self,
        ranges: Iterable[Range],
        *,
        segment: Size | None = None,
        whole: bool = False,
        window: Size | None = None,
        deadline_s: float | None = 10.0,
        not_before_ns: int = 0,
        keep: bool = False,
    ) -> Stream:
        """Stage ranges in order, a bounded number of pieces ahead of the consumer.

        ``segment`` is the longest piece (16 MiB), ``whole`` asks for whole ranges where two of them
        fit, ``window`` bounds what it holds (128 MiB or its share), ``deadline_s`` runs from here
        to the last piece. ``keep``: see ``Stream``. Raises Busy, OutOfRange, TooLarge.
        """
        self._door.drain()
        return Stream(
            self._door,
            ranges,
            segment=segment,
            whole=whole,
            window=window,
            deadline_s=deadline_s,
            not_before_ns=not_before_ns,
            keep=keep,
        )

    def ptr(self, addr: int) -> Ptr:
        """An address for the published form, ``chm_prefetch_object(ptr, size)``."""
        return Ptr(self, addr)

    # -- reading -------------------------------------------------------------------------------

    def read(
        self, addr: int, length: int | None = None, out: Any = None, timeout: float | None = 10.0
    ) -> Array:
        """Read without having announced it; returns a uint8 array.

        ``addr`` and ``length`` need no alignment. With ``out`` (a writable, C-contiguous buffer of
        ``length`` bytes) the array shows its memory, and the drive writes right into it if it
        begins on a page and both numbers are multiples of 4096; else the bytes are copied once.
        While the read goes on ``out`` cannot be resized. After WaitTimeout it may still be
        written to for a while; it is kept alive for that long.
        """
        result = read_items(self._door, [(addr, out, length)], timeout)[0]
        if isinstance(result, ChmError):
            raise result
        return result

    def read_many(
        self, items: Iterable[tuple[int, Any]], timeout: float | None = 10.0
    ) -> list[Array | ChmError]:
        """Read several at once: each item is ``(addr, length)`` or ``(addr, out)``.

        An array or an error for each, in order.
        """
        triples: list[tuple[int, Any, int | None]] = [
            (addr, None, int(what)) if isinstance(what, (int, np.integer)) else (addr, what, None)
            for addr, what in items
        ]
        return read_items(self._door, triples, timeout)

    def register(self, buf: Any) -> None:
        """Register page-aligned memory that reads will go to, so that each costs less.

        It cannot be resized or freed until ``unregister`` or ``close``. DeviceFull: table full.
        """
        memory, nbytes = source(buf)
        check(self._door.c.memory_register(self._door.dev, memory, nbytes), "register")
        self._door.registered[int(ffi.cast("uintptr_t", memory))] = memory

    def unregister(self, buf: Any) -> None:
        """Take back what ``register`` did."""
        memory, _ = source(buf)
        check(self._door.c.memory_unregister(self._door.dev, memory), "unregister")
        self._door.registered.pop(int(ffi.cast("uintptr_t", memory)), None)

    # -- writing -------------------------------------------------------------------------------

    def write_begin(self, addr: int, length: int) -> Write:
        """Reserve room in the write buffer for whole pages, to be filled without a copy.

        Never waits: WouldBlock if there is no room now. TooLarge above half the write buffer.
        """
        door = self._door
        if door.garbage:
            door.drain()
        return begin(door, addr, length)

    def write_begin_many(self, ranges: Iterable[Range]) -> list[Write | ChmError]:
        """The same for several, in order; a Write or an error for each."""
        self._door.drain()
        return begin_many(self._door, list(ranges))

    def write(self, addr: int, buf: Any) -> None:
        """Begin, copy from ``buf`` (C-contiguous, whole pages), commit. WouldBlock: no room."""
        if self._door.garbage:
            self._door.drain()
        memory, nbytes = source(buf)
        rc = self._door.c.write(self._door.dev, addr, memory, nbytes)
        check(rc, f"write of {nbytes} bytes at {addr:#x}")

    def flush(self, timeout: float | None = 30.0) -> None:
        """Wait until all that was committed so far is durable. MediaError if some was lost."""
        check(self._door.flush(timeout), "flush")

    def quiesce(self, timeout: float | None = 30.0) -> None:
        """Wait until no released request has I/O in flight: all window space that was given back,
        and all memory that reads which nobody waited for went to, is free then."""
        door = self._door
        door.drain()
        check(door.sliced(lambda ns: int(door.c.quiesce(door.dev, ns)), timeout), "quiesce")
        door.drain()

    def trim(self, addr: int, length: int) -> None:
        """The range reads as zeros from now on. Whole pages."""
        check(self._door.c.trim(self._door.dev, addr, length), f"trim at {addr:#x}")


def open(paths: Path | Iterable[Path], **fields: Any) -> Device:
    """Open the device on these files or drives; ``fields`` are those of ``Options``."""
    return Device(Options.from_dict({"paths": path_list(paths), **fields}))


def sim(capacity: Size = "1GiB", members: int = 1, **fields: Any) -> Device:
    """A fresh simulated device of at least ``capacity`` bytes, in virtual time.

    ``fields`` are those of ``Options`` and ``SimOptions``: ``chm.sim("64MiB", read_rate="2GB/s")``.
    """
    return Device(sim_options(parse_size(capacity), members, **fields))
