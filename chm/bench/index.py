# SPDX-License-Identifier: Apache-2.0
"""Which blocks the cache has, and where: the benchmark's own stand-in for an object store.

All blocks of a run have one size, so the device is cut into slots of it. When no slot is free,
the least recently used block that nobody reads is evicted. A touch renews a request's blocks from
the last to the first, so a block is always older than its parent: the oldest one is a leaf, and
what is left is always a usable prefix. It is LRU at the level of the benchmark and is labelled so
in every result.

States of a block:  absent -> reserved (a slot, no bytes) -> visible (committed) -> absent
A reserved block is found by nobody; a pinned block is not evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass
class Block:
    """One resident block. `version` counts how often this key has been put."""

    key: int
    slot: int
    version: int
    visible: bool = False
    pins: int = 0
    dropped: bool = False


class BlockIndex:
    """Blocks by key over a fixed number of slots."""

    def __init__(self, slots: int, evict: bool) -> None:
        self.slots = slots
        self._evict = evict
        self._blocks: OrderedDict[int, Block] = OrderedDict()  # least recently used first
        self._free = list(range(slots - 1, -1, -1))
        self._versions: dict[int, int] = {}
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: int) -> bool:
        return key in self._blocks

    def known(self, key: int) -> bool:
        """Whether this key was ever put, resident or not."""
        return key in self._versions

    def resident(self) -> list[Block]:
        """All visible blocks, least recently used first."""
        return [b for b in self._blocks.values() if b.visible]

    def lookup(self, keys: Sequence[int]) -> list[Block]:
        """The longest visible run from the front, pinned and touched. Unpin it when it is read."""
        run: list[Block] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None or not block.visible:
                break
            run.append(block)
        for block in reversed(run):
            block.pins += 1
            self._blocks.move_to_end(block.key)
        return run

    def unpin(self, blocks: Iterable[Block]) -> None:
        """Undo the pins of a lookup."""
        for block in blocks:
            assert block.pins > 0
            block.pins -= 1
            if block.dropped and not block.pins:
                self._free.append(block.slot)

    def reserve(self, key: int) -> Block | None:
        """A slot for an absent key, evicting if need be. None: nothing is free or may go."""
        assert key not in self._blocks
        slot = self._free.pop() if self._free else self._evict_one()
        if slot is None:
            return None
        version = self._versions.get(key, -1) + 1
        block = self._blocks[key] = Block(key, slot, version)
        return block

    def commit(self, block: Block) -> None:
        """All bytes are in place."""
        block.visible = True
        self._versions[block.key] = block.version

    def settle(self, keys: Sequence[int]) -> None:
        """Restore the order after a request's puts: parents are newer than their children."""
        for key in reversed(keys):
            if key in self._blocks:
                self._blocks.move_to_end(key)

    def drop(self, block: Block) -> None:
        """Forget a block whose put failed or whose bytes could not be read back.

        Its slot is free when the last reader has unpinned it.
        """
        if self._blocks.get(block.key) is block:
            del self._blocks[block.key]
            block.dropped = True
            if not block.pins:
                self._free.append(block.slot)

    def _evict_one(self) -> int | None:
        if not self._evict:
            return None
        for block in self._blocks.values():
            if block.visible and not block.pins:
                del self._blocks[block.key]
                self.evictions += 1
                return block.slot
        return None
