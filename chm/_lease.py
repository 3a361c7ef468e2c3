# SPDX-License-Identifier: Apache-2.0
"""Views of device memory that cannot outlive the right to it.

Every view is made from a buffer object over the C memory, and so keeps that object alive:
memoryviews, slices of them, numpy arrays. The lease only looks at the object through a weak
reference: still there means that somebody still looks, and then the memory is not given back.
(This leans on reference counting, that is, on CPython.)
"""

from __future__ import annotations

import weakref
from typing import Any

from chm._door import Door
from chm._ffi import ffi


class Lease:
    """Base of whatever hands out views: a weak look at the buffer object they are made from."""

    __slots__ = ("_door", "_seen")

    # Subclasses set these in their own __init__: a request is made in less than a microsecond.
    _door: Door
    _seen: weakref.ref[Any] | None

    def _lend(self, data: Any, length: int) -> memoryview:
        """A writable view of C memory."""
        guard = self._seen() if self._seen is not None else None
        if guard is None:
            self._forget()
            guard = ffi.buffer(data, length)
            self._seen = seen = weakref.ref(guard)
            self._door.views[id(seen)] = seen
        return memoryview(guard)

    def _looked_at(self) -> bool:
        """Whether any view lives."""
        return self._seen is not None and self._seen() is not None

    def _forget(self) -> None:
        if self._seen is not None:
            self._door.views.pop(id(self._seen), None)
            self._seen = None

    def _take_back(self, what: str) -> None:
        """No view may live from here on; BufferError if one does."""
        if self._looked_at():
            raise BufferError(f"a view of {what} is alive; drop it (and arrays made from it) first")
        self._forget()

    def _leave_to_drain(self, call: Any, *args: Any) -> None:
        """From a finaliser, or while an exception passes: give back when no view lives."""
        views = (self._seen,) if self._seen is not None else ()
        self._seen = None
        self._door.garbage.append((views, call, args))


class HeldLease(Lease):
    """One that a with block gives back, or leaves to be given back if an exception looks at it."""

    __slots__ = ()

    def release(self) -> None:
        """Give it back. Twice is fine. BufferError while a view lives."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """What is left of it goes when its views have gone."""
        raise NotImplementedError

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.release()
        except BufferError:
            if kind is None:
                raise
            self._abandon()  # the traceback holds views
