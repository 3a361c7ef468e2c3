# SPDX-License-Identifier: Apache-2.0
"""The benchmark's own cache index: whatever is evicted, what is left is a usable prefix."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from chm.bench.index import Block, BlockIndex


def put(index: BlockIndex, keys: list[int]) -> list[Block]:
    """What a request does: hold what is there, add the rest, in order."""
    held = index.lookup(keys)
    for key in keys[len(held) :]:
        block = None if key in index else index.reserve(key)
        if block is None:
            break
        index.commit(block)
        block.pins += 1
        held.append(block)
    index.settle(keys)
    index.unpin(held)
    return held


@settings(max_examples=200)
@given(
    slots=st.integers(1, 12),
    paths=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.booleans()), max_size=30),
)
def test_left_over_blocks_form_prefixes(slots: int, paths: list[tuple[int, int, bool]]) -> None:
    """Conversations 0..3, each request reads or puts a prefix of one: no block is resident without
    its parent."""
    index = BlockIndex(slots, evict=True)
    for conversation, length, only_read in paths:
        keys = [100 * conversation + i for i in range(length)]
        if only_read:
            index.unpin(index.lookup(keys))
        else:
            put(index, keys)
        resident = {b.key for b in index.resident()}
        assert len(resident) == len(index) <= slots
        assert len({b.slot for b in index.resident()}) == len(resident)
        assert all(key % 100 == 0 or key - 1 in resident for key in resident)


def test_least_recently_used_goes_first() -> None:
    index = BlockIndex(4, evict=True)
    put(index, [1, 2])
    put(index, [11, 12])
    index.unpin(index.lookup([1, 2]))
    put(index, [21])
    assert {b.key for b in index.resident()} == {1, 2, 11, 21}
    assert index.evictions == 1


def test_a_pinned_block_stays_and_nothing_is_promised() -> None:
    index = BlockIndex(2, evict=True)
    put(index, [1, 2])
    held = index.lookup([1, 2])
    assert index.reserve(3) is None
    index.unpin(held)
    assert index.reserve(3) is not None


def test_without_eviction_a_full_index_refuses() -> None:
    index = BlockIndex(1, evict=False)
    put(index, [1])
    assert index.reserve(2) is None
    assert index.evictions == 0


def test_a_reserved_block_is_found_by_nobody() -> None:
    index = BlockIndex(2, evict=True)
    block = index.reserve(1)
    assert block is not None
    assert index.lookup([1]) == []
    assert not index.known(1)
    index.drop(block)
    assert len(index) == 0


def test_a_dropped_block_keeps_its_slot_until_its_readers_end() -> None:
    index = BlockIndex(1, evict=True)
    put(index, [1])
    held = index.lookup([1])
    index.drop(held[0])
    assert index.lookup([1]) == []
    assert index.reserve(2) is None
    index.unpin(held)
    assert index.reserve(2) is not None


def test_versions_count_the_puts_of_a_key() -> None:
    index = BlockIndex(1, evict=True)
    versions = [put(index, [key])[0].version for key in (1, 2, 1, 2, 1)]
    assert versions == [0, 0, 1, 1, 2]
