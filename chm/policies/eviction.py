# SPDX-License-Identifier: Apache-2.0
"""Eviction: which block goes when a new one needs room and there is none.

The index tells the policy what comes, is used and goes; the policy keeps its own order and names a
victim when asked. `may_go(key)` is false for a block that is read, staged or still being written.

Invariants that the caller checks: the victim is resident and may go. A policy that names another,
or raises, ends the run with an error that names it, and the index is as it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from chm.policies.seam import Policy, registered

MayGo = Callable[[int], bool]


class Eviction(Policy):
    """Base of eviction policies. Keys are those of blocks, unique over all sessions."""

    seam: ClassVar[str] = "eviction"

    def added(self, key: int, session: int) -> None:
        """A block of this session got its place; it may not go before it is written."""

    def used(self, keys: Sequence[int]) -> None:
        """These resident blocks of one request, in prefix order, were found or put."""

    def removed(self, key: int) -> None:
        """The block is gone: evicted, or its bytes could not be read or written."""

    def victim(self, may_go: MayGo) -> int | None:
        """A resident key for which may_go is true; None: there is none."""
        raise NotImplementedError


def first_of(keys: Iterable[int], may_go: MayGo) -> int | None:
    """The first key that may go."""
    return next((key for key in keys if may_go(key)), None)


class _Ordered(Eviction):
    """Blocks in an order; the first one that may go does."""

    def __init__(self) -> None:
        self.order: OrderedDict[int, None] = OrderedDict()

    def added(self, key: int, session: int) -> None:
        self.order[key] = None

    def removed(self, key: int) -> None:
        self.order.pop(key, None)

    def victim(self, may_go: MayGo) -> int | None:
        return first_of(self.order, may_go)


@registered
class Tail(_Ordered):
    """Least recently used leaf: a block is always older than its parent, so what is left is always
    a usable prefix (default).
    """

    name = "evict-tail"

    def used(self, keys: Sequence[int]) -> None:
        move = self.order.move_to_end
        for key in reversed(keys):
            move(key)


@registered
class Lru(_Ordered):
    """Baseline: plain least recently used; the first block of a prefix goes first, and with it the
    use of the rest.
    """

    name = "evict-lru"

    def used(self, keys: Sequence[int]) -> None:
        move = self.order.move_to_end
        for key in keys:
            move(key)


@registered
class Fifo(_Ordered):
    """Baseline: the block that was put first goes first, used or not."""

    name = "evict-fifo"


@registered
class LargestConversation(Eviction):
    """The last block of the conversation that has most of them; of equals, the lowest number.

    A chain is kept, since a conversation's blocks are put in prefix order.
    """

    name = "evict-largest"

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # key -> session
        self._blocks: dict[int, list[int]] = {}  # session -> keys as they were put

    def added(self, key: int, session: int) -> None:
        self._of[key] = session
        self._blocks.setdefault(session, []).append(key)

    def removed(self, key: int) -> None:
        blocks = self._blocks[self._of.pop(key)]
        blocks.remove(key)

    def victim(self, may_go: MayGo) -> int | None:
        for session in sorted(self._blocks, key=lambda s: (-len(self._blocks[s]), s)):
            blocks = self._blocks[session]
            if blocks and may_go(blocks[-1]):
                return blocks[-1]
        return None
