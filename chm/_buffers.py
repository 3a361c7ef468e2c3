# SPDX-License-Identifier: Apache-2.0
"""What callers hand in as memory: checked before any I/O, and held while the device uses it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from chm._ffi import PAGE, ffi

Array = npt.NDArray[np.uint8]


def aligned_empty(nbytes: int) -> Array:
    """A fresh uint8 array of ``nbytes`` that begins on a page, as the drive likes it."""
    raw = np.empty(nbytes + PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + nbytes]


def _checked(buf: Any, what: str) -> memoryview:
    try:
        view = memoryview(buf)
    except TypeError:
        raise TypeError(f"{what}: {type(buf).__name__} has no buffer protocol") from None
    if view.nbytes == 0:
        raise ValueError(f"{what}: has no bytes")
    if not view.c_contiguous:
        raise ValueError(
            f"{what}: must be C-contiguous (not strided, reversed or Fortran-ordered); "
            "numpy.ascontiguousarray makes a copy that is"
        )
    return view


def target(buf: Any, what: str = "out") -> tuple[Any, int]:
    """C memory to read into, and its length. While the first lives, the exporter cannot resize."""
    view = _checked(buf, what)
    if view.readonly:
        raise ValueError(f"{what}: is read-only")
    return ffi.from_buffer("uint8_t[]", buf, require_writable=True), view.nbytes


def source(buf: Any, what: str = "buf") -> tuple[Any, int]:
    """C memory to write from, and its length."""
    view = _checked(buf, what)
    return ffi.from_buffer("uint8_t[]", buf), view.nbytes


def as_bytes(buf: Any, what: str = "buf") -> Array:
    """The bytes of a buffer as a flat uint8 array, no copy."""
    return np.frombuffer(_checked(buf, what).cast("B"), np.uint8)
