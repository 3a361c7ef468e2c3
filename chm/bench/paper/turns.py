# SPDX-License-Identifier: Apache-2.0
"""The load of the turn figures: conversations that grow by some blocks each turn.

Every turn first reads the whole prefix of every conversation, in order, and then appends ``step``
blocks to each: turn t reads (t - 1) * step blocks of a conversation and writes ``step``. All reads
of a turn come before its writes. Blocks lie in the order in which they were appended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chm.bench.paper.load import Addresses


@dataclass(frozen=True)
class Conversations:
    """How many there are, how they grow, and how large a block is."""

    count: int
    turns: int
    step: int  # blocks appended per turn
    block: int  # bytes

    @property
    def footprint(self) -> int:
        """Bytes after the last turn."""
        return self.count * self.turns * self.step * self.block

    @property
    def wave(self) -> int:
        """Bytes that all conversations append in a turn."""
        return self.count * self.step * self.block

    def reads(self, turn: int) -> Addresses:
        """Addresses of the blocks that turn ``turn`` (from 1) reads: one conversation after the
        other, each from its beginning."""
        conversation = np.arange(self.count, dtype=np.uint64)[:, None, None]
        before = np.arange(turn - 1, dtype=np.uint64)[None, :, None]
        return self._addresses(before, conversation)

    def writes(self, turn: int) -> Addresses:
        """Addresses of the blocks that it appends."""
        conversation = np.arange(self.count, dtype=np.uint64)[:, None, None]
        return self._addresses(np.uint64(turn - 1), conversation)

    def _addresses(self, turn: Addresses | np.uint64, conversation: Addresses) -> Addresses:
        within = np.arange(self.step, dtype=np.uint64)[None, None, :]
        number = (turn * np.uint64(self.count) + conversation) * np.uint64(self.step) + within
        return np.asarray(number * np.uint64(self.block)).ravel()
