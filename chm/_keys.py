# SPDX-License-Identifier: Apache-2.0
"""What callers hand to a store, as C sees it: keys, and scatter lists of memory.

Nothing is copied but the keys of a list. Whoever gets C memory from here keeps the second value
alive until C is done with it: it holds the exporters, so that none can be resized or freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chm._ffi import NULL, ffi

KEY_BYTES = 16
_KEYS = ffi.typeof("struct chm_key[]")
_PARTS = ffi.typeof("struct chm_part[]")
_SIXTEEN = {KEY_BYTES}


def pack(keys: Any) -> tuple[Any, int]:
    """The C array of keys, which keeps its memory alive, and how many there are.

    ``keys``: a sequence of 16-byte ``bytes`` (copied); or, without a copy, an (n, 16) array of
    uint8, an array of 16-byte items, or a bytes-like object of n times 16 bytes.
    """
    if isinstance(keys, (list, tuple)):
        joined = b"".join(keys)
        if keys and set(map(len, keys)) != _SIXTEEN:
            raise ValueError("keys: each has 16 bytes")
        return ffi.from_buffer(_KEYS, joined), len(keys)
    if isinstance(keys, np.ndarray):
        if keys.dtype.itemsize != KEY_BYTES and not (
            keys.dtype == np.uint8 and keys.ndim == 2 and keys.shape[1] == KEY_BYTES
        ):
            raise ValueError("keys: expected an (n, 16) array of uint8, or one of 16-byte items")
        if not keys.flags.c_contiguous:
            raise ValueError("keys: must be C-contiguous; numpy.ascontiguousarray makes a copy")
        return ffi.from_buffer(_KEYS, keys), keys.nbytes // KEY_BYTES
    view = memoryview(keys)
    if view.nbytes % KEY_BYTES:
        raise ValueError("keys: each has 16 bytes")
    return ffi.from_buffer(_KEYS, keys), view.nbytes // KEY_BYTES


def _check(view: memoryview, writable: bool) -> None:
    if not view.c_contiguous:
        raise ValueError(
            "buffer: must be C-contiguous (not strided, reversed or Fortran-ordered); "
            "numpy.ascontiguousarray makes a copy that is"
        )
    if writable and view.readonly:
        raise ValueError("buffer: is read-only")


def _memory(buf: Any, writable: bool) -> tuple[Any, int]:
    try:
        view = memoryview(buf)
    except TypeError:
        raise TypeError(f"buffer: {type(buf).__name__} has no buffer protocol") from None
    _check(view, writable)
    return ffi.from_buffer("uint8_t[]", buf, require_writable=writable), view.nbytes


def _rows(array: np.ndarray[Any, Any], n: int, writable: bool) -> tuple[Any, Any, Any]:
    """A row of the array for each key."""
    memory, nbytes = _memory(array, writable)
    each = nbytes // n
    start = ffi.cast("uint8_t *", memory)
    parts = ffi.new(_PARTS, [(start + i * each, each) for i in range(n)])
    return parts, NULL, [memory]


def scatter(bufs: Any, n: int, writable: bool) -> tuple[Any, Any, Any]:
    """Parts, parts of each key (or NULL: one), and what must stay alive.

    ``bufs``: an item for each of the n keys, each a buffer or a list or tuple of buffers; or an
    array of at least two dimensions with a row for each key; or one buffer, for one key.
    """
    if isinstance(bufs, np.ndarray) and bufs.ndim >= 2 and bufs.shape[0] == n:
        return _rows(bufs, n, writable)
    if n == 1 and not isinstance(bufs, (list, tuple)):
        bufs = [bufs]
    if not isinstance(bufs, Sequence) and not isinstance(bufs, np.ndarray):
        raise TypeError("buffers: expected a sequence with one for each key")
    if len(bufs) != n:
        raise ValueError(f"{n} keys, but {len(bufs)} buffers")
    lists = [buf if isinstance(buf, (list, tuple)) else (buf,) for buf in bufs]
    keep = [_memory(buf, writable) for many in lists for buf in many]
    parts = ffi.new(_PARTS, keep)
    counts = [len(many) for many in lists]
    uneven = NULL if counts.count(1) == n else ffi.new("uint32_t[]", counts)
    return parts, uneven, keep
