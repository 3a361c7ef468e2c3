# SPDX-License-Identifier: Apache-2.0
"""Which blocks the cache has, and where: the benchmark's own stand-in for an object store.

All blocks of a run have one size, so the device is cut into slots of it (room.py). When no slot is
free, an eviction policy (chm/policies) names the block to go, among those that nobody reads. By
default that is the least recently used leaf, so what is left is always a usable prefix. It is a
policy at the level of the benchmark and is labelled so in every result.

States of a block:  absent -> reserved (a slot, no bytes) -> visible (committed) -> absent
A reserved block is found by nobody; a pinned block is not evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chm.bench.room import Room
from chm.policies import Eviction
from chm.policies.eviction import Tail
from chm.policies.seam import ask, refuse


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

    def __init__(self, room: Room | int, evict: bool, policy: Eviction | None = None) -> None:
        self.room = room if isinstance(room, Room) else Room(room)
        self._evict = evict
        self.policy = policy or Tail()
        self._blocks: dict[int, Block] = {}
        self._versions: dict[int, int] = {}
        self.evictions = 0

    @property
    def slots(self) -> int:
        """How many blocks fit."""
        return self.room.slots

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: int) -> bool:
        return key in self._blocks

    def known(self, key: int) -> bool:
        """Whether this key was ever put, resident or not."""
        return key in self._versions

    def resident(self) -> list[Block]:
        """All visible blocks, in the order in which they were put."""
        return [b for b in self._blocks.values() if b.visible]

    def lookup(self, keys: Sequence[int]) -> list[Block]:
        """The longest visible run from the front, pinned and touched. Unpin it when it is read."""
        run: list[Block] = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None or not block.visible:
                break
            run.append(block)
        for block in run:
            block.pins += 1
        if run:
            ask(self.policy, self.policy.used, keys[: len(run)])
        return run

    def get(self, key: int) -> Block | None:
        """The visible block of that key, neither pinned nor touched."""
        block = self._blocks.get(key)
        return block if block is not None and block.visible else None

    def unpin(self, blocks: Iterable[Block]) -> None:
        """Undo the pins of a lookup."""
        for block in blocks:
            assert block.pins > 0
            block.pins -= 1
            if block.dropped and not block.pins:
                self.room.give(block.slot)

    def reserve(self, key: int, session: int = 0, home: int | None = None) -> Block | None:
        """A slot for an absent key, evicting if need be. None: nothing is free or may go.

        home: node of the block before it in its request. Raises PolicyError.
        """
        assert key not in self._blocks
        if self.room.full and not self._evict_one():
            return None
        slot = self.room.take(self.room.choose(session, key, home))
        version = self._versions.get(key, -1) + 1
        block = self._blocks[key] = Block(key, slot, version)
        ask(self.policy, self.policy.added, key, session)
        return block

    def commit(self, block: Block) -> None:
        """All bytes are in place."""
        block.visible = True
        self._versions[block.key] = block.version

    def settle(self, keys: Sequence[int]) -> None:
        """Restore the order after a request's puts: parents are newer than their children."""
        here = [key for key in keys if key in self._blocks]
        if here:
            ask(self.policy, self.policy.used, here)

    def drop(self, block: Block) -> None:
        """Forget a block whose put failed or whose bytes could not be read back.

        Its slot is free when the last reader has unpinned it.
        """
        if self._blocks.get(block.key) is block:
            del self._blocks[block.key]
            ask(self.policy, self.policy.removed, block.key)
            block.dropped = True
            if not block.pins:
                self.room.give(block.slot)

    def _may_go(self, key: int) -> bool:
        block = self._blocks.get(key)
        return block is not None and block.visible and not block.pins

    def _evict_one(self) -> bool:
        if not self._evict:
            return False
        key = ask(self.policy, self.policy.victim, self._may_go)
        if key is None:
            return False
        if key not in self._blocks:
            raise refuse(self.policy, f"chose block {key!r}, which is not resident")
        if not self._may_go(key):
            raise refuse(self.policy, f"chose block {key!r}, which is being read or written")
        block = self._blocks.pop(key)
        ask(self.policy, self.policy.removed, key)
        self.room.give(block.slot)
        self.evictions += 1
        return True
