# SPDX-License-Identifier: Apache-2.0
"""Staging between turns: what a prefetch policy wants in the window before anybody asks.

States of a block:  queued -> staged (a request of the device; the block is pinned) -> taken (by the
request that reads it) -> given back

Sessions are served in the order in which their turns ended. Staged and taken blocks together never
exceed `room_bytes`; whenever some are given back, the queue goes on. A session that reads takes the
staged beginning of its prefix; the rest of what was staged or queued for it is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import chm
from chm.bench.index import Block, BlockIndex
from chm.bench.target import Target
from chm.policies import Known, Prefetch
from chm.policies.seam import ask, refuse


@dataclass
class _Staged:
    session: int
    block: Block
    request: chm.Request
    since_ns: int


class Stager:
    """Carries out what a prefetch policy says at the end of turns."""

    def __init__(
        self,
        target: Target,
        index: BlockIndex,
        policy: Prefetch,
        block_bytes: int,
        room_bytes: int,
        think_ns: int,
        after_flush: bool,
    ) -> None:
        self._target = target
        self._index = index
        self._policy = policy
        self._block_bytes = block_bytes
        self._room_bytes = room_bytes
        self._think_ns = think_ns
        self._after_flush = after_flush
        self._ended: list[tuple[int, Sequence[int]]] = []  # turns that wait for the flush
        self._queue: deque[tuple[int, int]] = deque()  # session, key
        self._staged: dict[int, _Staged] = {}  # by key, oldest first
        self._taken = 0
        self.staged_blocks = 0
        self.used_blocks = 0
        self.peak_blocks = 0  # staged or taken at one time

    def turn_ended(self, session: int, keys: Sequence[int]) -> None:
        """A session has put its blocks. Raises PolicyError.

        Where every turn waits for durable writes, it has ended only then: reads go first, and what
        was staged before would be paid by the flush.
        """
        if self._after_flush:
            self._ended.append((session, keys))
        else:
            self._ask(session, keys)

    def flushed(self) -> None:
        """The turns that were put are durable."""
        ended, self._ended = self._ended, []
        for session, keys in ended:
            self._ask(session, keys)

    def _ask(self, session: int, keys: Sequence[int]) -> None:
        """Ask the policy, and stage what has room."""
        known = Known(
            session,
            self._prefix(keys),
            self._block_bytes,
            self._target.now(),
            self._think_ns,
            self._room_bytes,
        )
        wanted = list(ask(self._policy, self._policy.turn_ended, known))
        if len(set(wanted)) != len(wanted) or not set(wanted) <= set(known.keys):
            raise refuse(self._policy, f"staged a block twice, or one that session {session} lacks")
        self._queue.extend((session, key) for key in wanted)
        self._pump()

    def take(self, session: int, blocks: Sequence[Block]) -> list[chm.Request]:
        """The requests of the staged beginning of a hit list; give them back when it is read."""
        self._queue = deque(entry for entry in self._queue if entry[0] != session)
        run: list[chm.Request] = []
        for block in blocks:
            staged = self._staged.get(block.key)
            if staged is None or staged.block is not block:
                break
            del self._staged[block.key]
            self._index.unpin([block])
            run.append(staged.request)
        self._taken += len(run)
        self.used_blocks += len(run)
        for staged in [s for s in self._staged.values() if s.session == session]:
            self._drop(staged)
        return run

    def give_back(self, requests: Sequence[chm.Request]) -> None:
        """End what was taken, read or not, and stage on."""
        for request in requests:
            request.release()
        self._taken -= len(requests)
        self._pump()

    def close(self) -> None:
        """Drop everything."""
        self._queue.clear()
        self._ended.clear()
        for staged in list(self._staged.values()):
            self._drop(staged)

    def _prefix(self, keys: Sequence[int]) -> Sequence[int]:
        missing = (i for i, key in enumerate(keys) if self._index.get(key) is None)
        return keys[: next(missing, len(keys))]

    def _drop(self, staged: _Staged) -> None:
        del self._staged[staged.block.key]
        staged.request.release()
        self._index.unpin([staged.block])

    def _pump(self) -> None:
        if not self._queue:
            return
        now = self._target.now()
        for old in list(self._staged.values()):
            if now - old.since_ns <= self._policy.hold_ns:
                break
            self._drop(old)
        while self._queue:
            used = (len(self._staged) + self._taken + 1) * self._block_bytes
            if used > self._room_bytes:
                return
            self._stage(*self._queue.popleft(), now)

    def _stage(self, session: int, key: int, now: int) -> None:
        block = self._index.get(key)
        if block is None or key in self._staged:
            return
        address = self._index.room.address(block.slot)
        forever = float("inf")
        request = self._target.dev.prefetch(
            address, self._block_bytes, expire_s=forever, queue_s=forever
        )
        block.pins += 1
        self._staged[key] = _Staged(session, block, request, now)
        self.staged_blocks += 1
        self.peak_blocks = max(self.peak_blocks, len(self._staged) + self._taken)
