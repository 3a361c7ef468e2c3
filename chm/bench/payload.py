# SPDX-License-Identifier: Apache-2.0
"""What the benchmark writes, and how it knows that what comes back is the same.

Every page of every object is different, incompressible, and a pure function of (seed, object,
version, page):

    word 0   object number      \\  in clear, so that a page found in the wrong place
    word 1   version, page      /   says whose it is
    rest     a random base, XORed with a 64-bit key of this page

A drive or file system can therefore neither compress nor deduplicate it (F87), and a page of
another object, of an older version or from another place in the same object cannot pass for the
right one. Making and checking run at several GB/s: one vector operation per 256 pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 4096
_WORDS = PAGE_BYTES // 8
_BASE_PAGES = 256  # 1 MiB: stays in a core's cache while pages are made from it
_VERSION_SHIFT = np.uint64(40)

U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]


class PayloadMismatch(Exception):
    """Bytes read back are not the bytes that were written."""


@dataclass(frozen=True)
class Found:
    """Who a page says it belongs to."""

    object: int
    version: int
    page: int


def _mix(x: U64) -> U64:
    """SplitMix64's finaliser: a bijection of 64-bit words that looks random."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    out: U64 = x ^ (x >> np.uint64(31))
    return out


def _runs(first: int, n: int) -> Iterator[tuple[int, int]]:
    """Cut pages [first, first + n) where the base begins again; (start from first, length)."""
    at = 0
    while at < n:
        step = min(n - at, _BASE_PAGES - (first + at) % _BASE_PAGES)
        yield at, step
        at += step


class Payload:
    """The content generator of one run. Same seed, same bytes; another seed, other bytes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = np.random.Generator(np.random.SFC64(seed))
        self._base: U64 = rng.integers(0, 2**64, (_BASE_PAGES, _WORDS), dtype=np.uint64)
        self._salt: U64 = rng.integers(0, 2**64, 2, dtype=np.uint64)
        self._scratch: U64 = np.empty_like(self._base)

    @property
    def nbytes(self) -> int:
        """Memory held by the generator."""
        return self._base.nbytes + self._scratch.nbytes

    def fill(self, out: U8, obj: int, version: int = 0, offset: int = 0) -> None:
        """Write bytes [offset, offset + len(out)) of an object into out (uint8, contiguous).

        offset is a multiple of 4096; a last part page is cut off.
        """
        whole, tail = self._split(out, offset)
        first = offset // PAGE_BYTES
        for at, n in _runs(first, len(whole)):
            self._make(whole[at : at + n], obj, version, first + at)
        if len(tail):
            page = np.empty((1, _WORDS), np.uint64)
            self._make(page, obj, version, first + len(whole))
            tail[:] = page.view(np.uint8)[0, : len(tail)]

    def check(self, data: U8, obj: int, version: int = 0, offset: int = 0) -> int:
        """Compare data (uint8, contiguous) with what fill would write. Returns the bytes checked.

        Raises PayloadMismatch naming the first wrong page and whose bytes it seems to hold.
        """
        whole, tail = self._split(data, offset)
        first = offset // PAGE_BYTES
        for at, n in _runs(first, len(whole)):
            part = whole[at : at + n]
            bad = self._first_bad(part, obj, version, first + at)
            if bad is not None:
                raise self._mismatch(part[bad], obj, version, first + at + bad)
        if len(tail):
            want = np.empty(len(tail), np.uint8)
            self.fill(want, obj, version, offset + len(whole) * PAGE_BYTES)
            if not np.array_equal(want, tail):
                raise PayloadMismatch(
                    f"object {obj} version {version}: the last {len(tail)} bytes are wrong"
                )
        return len(data)

    def identify(self, page: U8) -> Found:
        """Whose page this claims to be; meaningful only for pages that fill made."""
        words = page[:16].view(np.uint64)
        low = int(words[1])
        return Found(int(words[0]), low >> 40, low & ((1 << 40) - 1))

    def _split(self, data: U8, offset: int) -> tuple[U64, U8]:
        if offset % PAGE_BYTES:
            raise ValueError(f"offset {offset} is not a multiple of {PAGE_BYTES}")
        whole = len(data) // PAGE_BYTES
        body = data[: whole * PAGE_BYTES].view(np.uint64).reshape(whole, _WORDS)
        return body, data[whole * PAGE_BYTES :]

    def _keys(self, obj: int, version: int, first: int, n: int) -> tuple[U64, U64]:
        """Keys of n pages from page `first`, and their second words."""
        stamp = np.arange(first, first + n, dtype=np.uint64)
        stamp |= np.uint64(version) << _VERSION_SHIFT
        who = _mix(np.array([obj], np.uint64) + self._salt[0])
        return _mix(_mix(stamp ^ who) + self._salt[1]), stamp

    def _rows(self, first: int, n: int) -> U64:
        row = first % _BASE_PAGES
        return self._base[row : row + n]

    def _make(self, pages: U64, obj: int, version: int, first: int) -> None:
        keys, stamp = self._keys(obj, version, first, len(pages))
        np.bitwise_xor(self._rows(first, len(pages)), keys[:, None], out=pages)
        pages[:, 0] = obj
        pages[:, 1] = stamp

    def _first_bad(self, pages: U64, obj: int, version: int, first: int) -> int | None:
        n = len(pages)
        keys, stamp = self._keys(obj, version, first, n)
        got = np.bitwise_xor(pages, self._rows(first, n), out=self._scratch[:n])
        good = (got[:, 2:] == keys[:, None]).all(axis=1)
        good &= (pages[:, 0] == np.uint64(obj)) & (pages[:, 1] == stamp)
        return None if good.all() else int(np.argmin(good))

    def _mismatch(self, page: U64, obj: int, version: int, number: int) -> PayloadMismatch:
        found = self.identify(page.view(np.uint8))
        holds = "zeros" if not page.any() else f"{found}"
        return PayloadMismatch(
            f"object {obj} version {version} page {number}: wrong bytes; the page holds {holds}"
        )
