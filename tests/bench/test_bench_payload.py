# SPDX-License-Identifier: Apache-2.0
"""F87: what the benchmark writes is incompressible, unique per object, and decided by the seed."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chm.bench.payload import PAGE_BYTES, Found, Payload, PayloadMismatch


def content(
    seed: int, obj: int, nbytes: int = 16 * PAGE_BYTES, version: int = 0, offset: int = 0
) -> bytes:
    out = np.empty(nbytes, np.uint8)
    Payload(seed).fill(out, obj, version, offset)
    return out.tobytes()


def test_f87_content_does_not_compress() -> None:
    data = content(1, 5, 4 << 20)
    assert len(zlib.compress(data)) > 0.99 * len(data)


def test_f87_no_two_pages_are_alike() -> None:
    """Over objects, versions and 3 MiB, which is more than the generator's base."""
    blobs = [content(1, obj, 3 << 20, version) for obj in range(3) for version in range(2)]
    pages = [b[i : i + PAGE_BYTES] for b in blobs for i in range(0, len(b), PAGE_BYTES)]
    assert len(set(pages)) == len(pages)


def test_f87_pages_share_no_words() -> None:
    """A drive that deduplicates in small chunks finds nothing either."""
    words = np.frombuffer(content(1, 5, 2 << 20), np.uint64).reshape(-1, PAGE_BYTES // 8)[:, 2:]
    assert len(np.unique(words)) == words.size


def test_f87_the_seed_decides() -> None:
    assert content(1, 5) == content(1, 5)
    assert content(1, 5) != content(2, 5)


@settings(max_examples=50)
@given(
    nbytes=st.integers(1, 5 * PAGE_BYTES),
    cut=st.integers(0, 4),
    first=st.integers(250, 260),
    obj=st.integers(0, 2**63),
    version=st.integers(0, 2**20),
)
def test_pieces_are_the_whole(nbytes: int, cut: int, first: int, obj: int, version: int) -> None:
    """Filled in pieces, also over the end of the generator's base (page 256), it is the same."""
    payload, offset = Payload(3), first * PAGE_BYTES
    whole, pieces = np.empty(nbytes, np.uint8), np.empty(nbytes, np.uint8)
    payload.fill(whole, obj, version, offset)
    at = min(cut, nbytes // PAGE_BYTES) * PAGE_BYTES
    payload.fill(pieces[:at], obj, version, offset)
    payload.fill(pieces[at:], obj, version, offset + at)
    assert np.array_equal(whole, pieces)
    assert payload.check(whole, obj, version, offset) == nbytes


@settings(max_examples=50)
@given(at=st.integers(0, 5 * PAGE_BYTES + 99), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found(at: int, bit: int) -> None:
    data = np.frombuffer(content(1, 5, 5 * PAGE_BYTES + 100), np.uint8).copy()
    data[at] ^= np.uint8(1 << bit)
    with pytest.raises(PayloadMismatch, match="object 5"):
        Payload(1).check(data, 5)


@pytest.mark.parametrize(
    ("obj", "version", "offset"), [(6, 0, 0), (5, 1, 0), (5, 0, PAGE_BYTES), (5, 0, 1 << 20)]
)
def test_a_page_from_elsewhere_is_found_and_named(obj: int, version: int, offset: int) -> None:
    data = np.frombuffer(content(1, obj, PAGE_BYTES, version, offset), np.uint8)
    found = Found(obj, version, offset // PAGE_BYTES)
    assert Payload(1).identify(data) == found
    with pytest.raises(PayloadMismatch, match="holds Found") as e:
        Payload(1).check(data, 5)
    assert str(found) in str(e.value)


def test_zeros_are_called_zeros() -> None:
    with pytest.raises(PayloadMismatch, match="holds zeros"):
        Payload(1).check(np.zeros(PAGE_BYTES, np.uint8), 5)


def test_offsets_are_whole_pages() -> None:
    with pytest.raises(ValueError, match="multiple of 4096"):
        Payload(1).fill(np.empty(8, np.uint8), 0, 0, 100)
