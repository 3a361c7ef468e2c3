# SPDX-License-Identifier: Apache-2.0
"""The C handle of one device, and the rules by which Python may use it.

States: open -> closed, or open -> forked (in a child process). Leaving *open* shuts the gate that
every C call goes through, so that nothing can reach a handle that is gone.

- The gate lets one thread at a time into a stepped device. It is taken and left inside one call to
  C, so no code of Python runs inside; who waits for it comes back now and then to handle signals.
  Who is inside is counted, so that closing can wait until they have left.
- Waits go to C in slices, between which Python handles signals (the GIL is free inside C).
- Finalisers run at any moment, also inside a call of ours. They only append to ``garbage``; the
  next call gives it back (``drain``). An entry whose memory is still looked at stays until then.
- ``views`` knows every view that was handed out: closing is refused while one lives, since the
  memory goes away with the device.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from chm._ffi import ffi, field_names, lib, text
from chm.errors import ChmError, Unsupported, check, error_from_text, error_of
from chm.units import seconds_to_ns

if TYPE_CHECKING:
    from chm._house import House
    from chm.aio import Waiters
    from chm.space import Space
    from chm.stream import Stream

THREAD_SLICE_NS = 100_000_000  # Ctrl-C answers within this
HOUR_NS = 3_600_000_000_000
STEPPED_SLICE_NS = 20_000_000  # shorter: other threads wait for the lock meanwhile

# Views that must be gone, then the call to make with its arguments.
Leftover = tuple[Sequence["weakref.ref[Any]"], Callable[..., Any], tuple[Any, ...]]

# Calls on a store go through its own gate, too: chm/_house.py.
_OF_STORES = ("store_open", "store_format", "store_close")
_CALLS = [
    name
    for name in (full.removeprefix("gated_") for full in dir(lib) if full.startswith("gated_"))
    if not name.startswith("store_") or name in _OF_STORES
]

_TURNED_AWAY = (-errno.ESHUTDOWN, -errno.ECHILD)
BUSY = -errno.EALREADY
"""The gate: another thread is inside."""
# Some calls return unsigned numbers; there -errno is at the upper end.
_NO_ANSWER = frozenset(rc + add for rc in (BUSY, *_TURNED_AWAY) for add in (0, 1 << 64))

_not_shut: set[Any] = set()


class Gate:
    """Whether calls may go in, and who is inside (csrc/host/gate.h).

    Closing shuts it first, then waits until it is empty. One that is not shut is kept alive: of a
    cycle the collector finalises the parts in any order, and a gate freed before its door would
    dangle when that is closed later.
    """

    __slots__ = ("c",)

    def __init__(self, threaded: bool) -> None:
        gate = lib.chm_gate_new(not threaded)
        if not gate:
            raise MemoryError
        self.c = ffi.gc(gate, lib.chm_gate_free)
        _not_shut.add(self.c)

    def shut(self, error: int) -> None:
        """Turn every call away with this errno, unless there is another already."""
        lib.chm_gate_shut(self.c, error)
        _not_shut.discard(self.c)

    def wait_empty(self, seconds: float) -> bool:
        """Whether everybody left in time; a waiter does so after its slice."""
        end = time.monotonic() + seconds
        while lib.chm_gate_inside(self.c) and time.monotonic() < end:
            time.sleep(0.0005)
        return not lib.chm_gate_inside(self.c)


def _patient(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, again and again while another thread is inside. Raises Closed or Forked."""

    def patient(*args: Any) -> Any:
        while True:
            rc = call(*args)
            if rc not in _NO_ANSWER:
                return rc
            rc = rc - (1 << 64) if rc > 0 else rc
            if rc != BUSY:
                raise error_of(rc, "chm")

    return patient


class Calls:
    """The functions of chm.h without their prefix, through the gate of one device."""

    __slots__ = _CALLS

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    def __init__(self, gate: Gate) -> None:
        for name in _CALLS:
            setattr(self, name, _patient(partial(getattr(lib, "gated_" + name), gate.c)))


_QUICK = (
    "binding_issue",
    "binding_issue_many",
    "release",
    "release_many",
    "view_many",
    "wait",
    "wait_many",
)


class Quick:
    """The calls made most, on the device itself, with nothing of Python around them.

    They answer BUSY where those of ``Calls`` try again: then make the same call there. Other errors
    are answers, also those for which ``Calls`` raise.
    """

    __slots__ = _QUICK

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]: ...

    def __init__(self, gate: Gate, dev: Any) -> None:
        for name in _QUICK:
            setattr(self, name, partial(getattr(lib, "gated_" + name), gate.c, dev))


class Door:
    """Shared by a Device and everything made from it."""

    __slots__ = (
        "__weakref__",
        "c",
        "closing",
        "dev",
        "garbage",
        "gate",
        "limbo",
        "linked",
        "memory_bytes",
        "name",
        "policy",
        "quick",
        "registered",
        "slice_ns",
        "spaces",
        "state",
        "stores",
        "streams",
        "threaded",
        "views",
        "virtual",
        "waiters",
    )

    def __init__(self, dev: Any, name: str) -> None:
        info = ffi.new("struct chm_info *")
        check(lib.chm_info(dev, info), "info")
        self.dev = dev
        self.name = name
        self.policy = text(info.policy)
        self.state = "open"
        self.virtual = bool(info.virtual_time)
        self.linked = info.link_rate != 0
        self.threaded = bool(info.threaded)
        self.memory_bytes = int(info.dram_bytes)
        self.gate = Gate(self.threaded)
        self.slice_ns = THREAD_SLICE_NS if info.threaded else STEPPED_SLICE_NS
        self.c = Calls(self.gate)
        self.quick = Quick(self.gate, dev)
        self.closing = threading.Lock()
        self.garbage: deque[Leftover] = deque()
        self.views: dict[int, weakref.ref[Any]] = {}
        self.limbo: list[Any] = []  # buffers of reads that nobody waits for any more
        self.registered: dict[int, Any] = {}
        self.streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self.spaces: weakref.WeakSet[Space] = weakref.WeakSet()
        self.stores: set[House] = set()  # closed with the device, also when nobody has them
        self.waiters: Waiters | None = None
        _doors.add(self)

    # -- giving back what was dropped ----------------------------------------------------------

    def check_staged(self, rc: int, what: str) -> int:
        """``check`` for calls that stage: what to do where the device has no window."""
        if rc == -errno.EOPNOTSUPP and self.policy != "window":
            fix = "use read, or policy window"
            reason = f"{what}: policy {self.policy} has no prefetch call; {fix}"
            raise Unsupported(errno.EOPNOTSUPP, reason)
        return check(rc, what)

    def drain(self) -> None:
        """Give back what finalisers left, except what somebody still looks at."""
        garbage = self.garbage
        if self.state != "open":
            return
        for _ in range(len(garbage)):
            try:
                entry = garbage.popleft()
            except IndexError:
                return  # another thread was faster
            views, call, args = entry
            if any(view() is not None for view in views) or call(*args) == -errno.EBUSY:
                garbage.append(entry)
                continue
            for view in views:
                self.views.pop(id(view), None)
        if self.limbo and self.c.quiesce(self.dev, 0) == 0:
            self.limbo.clear()

    # -- waiting -------------------------------------------------------------------------------

    def now(self) -> int:
        return int(self.c.now(self.dev))

    def sliced(
        self, wait: Callable[[int], int], timeout: float | None, slice_ns: int | None = None
    ) -> int:
        """Call ``wait(ns)`` in slices until it answers or ``timeout`` seconds passed.

        Virtual time passes in no time, and does not pass at all when nothing is left to happen: one
        call says what there is to say.
        """
        slice_ns = slice_ns or self.slice_ns
        if self.virtual:
            return wait(seconds_to_ns(timeout))
        end = None if timeout is None else self.now() + seconds_to_ns(timeout)
        while True:
            left = slice_ns if end is None else min(max(end - self.now(), 0), slice_ns)
            rc = wait(left)
            if rc not in (-errno.ETIMEDOUT, -errno.EINTR):
                return rc
            if end is not None and self.now() >= end:
                return -errno.ETIMEDOUT
            self.hand_over()

    def flush(self, timeout: float | None) -> int:
        """Flush in one piece where other threads may commit meanwhile: each call of it covers what
        was committed before, so slices might never see the end. A signal ends it with EINTR."""
        whole = HOUR_NS if self.threaded else None
        return self.sliced(lambda ns: int(self.c.flush(self.dev, ns)), timeout, whole)

    def hand_over(self) -> None:
        """Between two slices of a stepped device: locks are not fair, so let a waiter have it."""
        if not self.threaded:
            time.sleep(0.00005)

    def pause(self, ns: int) -> None:
        """Let the device work for a while: step it, or sleep if it has a thread."""
        if self.threaded:
            time.sleep(ns / 1e9)
        else:
            self.c.step(self.dev, self.now() + ns)

    # -- the end -------------------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        with self.closing:
            if self.state != "open":
                return
            if count := sum(view() is not None for view in list(self.views.values())):
                raise BufferError(f"{count} views of {self.name} are alive; drop them, then close")
            started = time.monotonic()
            self._shut_children(timeout)
            if self.waiters is not None:
                self.waiters.shut()
            # The last call cannot be interrupted, so what may take long is waited for here.
            lost = self.flush(timeout) == -errno.EIO  # told once: not again by the close
            self._end(timeout if self.virtual else timeout - (time.monotonic() - started))
            check(-errno.EIO if lost else 0, "close", self.name)

    def _shut_children(self, timeout: float) -> None:
        for store in list(self.stores):
            store.close(timeout)
        for stream in list(self.streams):
            stream.close()
        for space in list(self.spaces):
            space._shutdown()
        left = -1
        while left != len(self.garbage):
            left = len(self.garbage)
            self.drain()

    def _end(self, timeout: float) -> None:
        self.state = "closed"
        self.gate.shut(errno.ESHUTDOWN)
        if self.gate.wait_empty(max(timeout, 1.0)):
            rc = int(lib.chm_close(self.dev, seconds_to_ns(timeout)))
        else:
            rc = -errno.ETIMEDOUT  # somebody is inside for good: the handle stays, unused
        if rc == -errno.ETIMEDOUT:
            _kept_for_ever.append((self.limbo, self.registered))
        self.limbo, self.registered = [], {}
        self.garbage.clear()
        check(rc, "close", self.name)

    def __del__(self) -> None:
        if getattr(self, "state", "closed") == "open":
            _orphans.append(self)  # closed by the next open, or at exit; never from here
            warnings.warn(f"device {self.name} was not closed", ResourceWarning, stacklevel=2)


_doors: weakref.WeakSet[Door] = weakref.WeakSet()
_orphans: list[Door] = []
_kept_for_ever: list[Any] = []


def close_orphans() -> None:
    """Close the devices that were dropped open."""
    for _ in range(len(_orphans)):
        door = _orphans.pop(0)
        try:
            door.close(30.0)
        except BufferError:
            _orphans.append(door)
        except ChmError as error:
            warnings.warn(f"device {door.name}: {error}", ResourceWarning, stacklevel=2)


def _at_exit() -> None:
    for door in [*_orphans, *_doors]:
        try:
            door.close(5.0)
        except BufferError:
            door.c.flush(door.dev, seconds_to_ns(5.0))
        except ChmError:
            pass


def _after_fork_in_child() -> None:
    for door in [*_orphans, *_doors]:
        if door.state == "open":
            door.state = "forked"
        door.gate.shut(errno.ECHILD)
        # A lock may be held by a thread that does not exist here.
        door.closing = threading.Lock()
        for store in door.stores:
            store.forked()
        door.garbage.clear()
    _orphans.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)


def fields_of(ctype: str, struct: Any) -> dict[str, Any]:
    """The members of a C struct by name; C strings as str."""
    out = {}
    for name in field_names(ctype):
        value = getattr(struct, name)
        is_text = not isinstance(value, (int, float)) and ffi.typeof(value).item.cname == "char"
        out[name] = text(value) if is_text else value
    return out


def explained(call: Callable[..., int], *args: Any, path: str | None) -> None:
    """Call ``call(*args, err)`` and raise with the words that C gives for a failure."""
    err = ffi.new("struct chm_error *")
    rc = call(*args, err)
    if rc < 0:
        raise error_from_text(rc, text(err.text), path)
