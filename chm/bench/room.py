# SPDX-License-Identifier: Apache-2.0
"""Places for blocks of one size, and on which node each lies.

Striped, block i lies at i * size and on every node. Whole, a stripe unit holds one or more blocks,
so each lies on the member that its unit belongs to (unit u on member u mod members), and there is a
free list per member for a placement policy to choose from.
"""

from __future__ import annotations

from chm.policies import Node, Place, Placement
from chm.policies.seam import ask, refuse


class Room:
    """A number of slots; a slot is free or taken, and belongs to one node (0 when striped)."""

    def __init__(
        self,
        slots: int,
        block_bytes: int = 1,
        policy: Placement | None = None,
        nodes: int = 1,
        unit_bytes: int = 0,
    ) -> None:
        self.slots = slots
        self.misplaced = 0  # blocks whose node was full
        self._size = block_bytes
        self._policy = policy
        whole = policy is not None and policy.whole
        self._unit = unit_bytes if whole else 0
        self._per_unit = unit_bytes // block_bytes if whole else 0
        count = nodes if whole else 1
        self._free: list[list[int]] = [[] for _ in range(count)]
        for slot in range(slots - 1, -1, -1):
            self._free[self.node_of(slot)].append(slot)
        self.nodes = [Node(n, 0, len(free) * block_bytes) for n, free in enumerate(self._free)]

    def node_of(self, slot: int) -> int:
        """The node that a slot belongs to."""
        return slot // self._per_unit % len(self._free) if self._unit else 0

    def address(self, slot: int) -> int:
        """Where its bytes begin on the device."""
        if not self._unit:
            return slot * self._size
        unit, within = divmod(slot, self._per_unit)
        return unit * self._unit + within * self._size

    @property
    def full(self) -> bool:
        """Whether no slot is free."""
        return not any(self._free)

    def choose(self, session: int, key: int, home: int | None) -> int | None:
        """The node that the policy wants for a block; None: any. Raises PolicyError."""
        if not self._unit or self._policy is None:
            return None
        request = Place(session, key, self._size, home, self.nodes)
        node = ask(self._policy, self._policy.place, request)
        if node is not None and (type(node) is not int or not 0 <= node < len(self.nodes)):
            raise refuse(self._policy, f"chose node {node!r} of {len(self.nodes)}")
        return node

    def take(self, node: int | None) -> int:
        """A free slot, on that node if it has one. Not when full."""
        count = len(self._free)
        first = node or 0
        got = next(n for n in range(first, first + count) if self._free[n % count]) % count
        self.misplaced += node is not None and got != node
        self._account(got, self._size)
        return self._free[got].pop()

    def give(self, slot: int) -> None:
        """The slot is free again."""
        node = self.node_of(slot)
        self._account(node, -self._size)
        self._free[node].append(slot)

    def _account(self, node: int, nbytes: int) -> None:
        self.nodes[node].used_bytes += nbytes
        self.nodes[node].free_bytes -= nbytes
