# SPDX-License-Identifier: Apache-2.0
"""The conversations that the serving benchmark asks for, and how much memory each part gets.

Turn by turn every conversation is asked once, in order, so that a cache which holds little more
than one of them has lost it when its next turn comes. Prompts grow in whole chunks to ``tokens``;
the last turn adds ``last`` tokens. It can be asked again with another tail (``variant``): what is
reused is the same, nothing new is stored.
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass

from .model import VOCABULARY, kv_bytes_per_token

BLOCK = 32  # tokens of an engine block
CHUNK = 128  # tokens of a chunk below the engine
SHARE = 1 / 8  # of the footprint, that the engine's pool, the CPU tier and our budget get
_SLACK = 1.25  # a share must hold one conversation and what is on its way
_SPECIAL = 3  # token ids below are special


@dataclass(frozen=True)
class Workload:
    """``tokens`` is the length before the last turn. Raises ValueError for what cannot be."""

    tokens: int
    conversations: int = 8
    turns: int = 8
    last: int = 32
    chunk: int = CHUNK
    dtype: str = "float32"
    seed: int = 1

    def __post_init__(self) -> None:
        if self.conversations < 2:
            raise ValueError("conversations: 2 at least, else nothing is ever evicted")
        if self.turns < 2:
            raise ValueError("turns: 2 at least, since the last one reads what others stored")
        if self.tokens % self.chunk or self.tokens < self.chunk * (self.turns - 1):
            raise ValueError(
                f"tokens: {self.tokens} is not a multiple of {self.chunk} (a chunk) that gives "
                f"each of {self.turns - 1} turns a chunk"
            )
        if not 0 < self.last < self.chunk:
            raise ValueError(f"last: {self.last} is not within (0, {self.chunk})")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of the prompt at each turn."""
        grow = self.turns - 1
        chunks = self.tokens // self.chunk
        whole = (math.ceil(chunks * (turn + 1) / grow) * self.chunk for turn in range(grow))
        return (*whole, self.tokens + self.last)

    def reusable(self, turn: int) -> int:
        """Tokens of the prompt that a cache which forgets nothing serves."""
        return self.lengths[turn - 1] if turn else 0

    def prompt(self, conversation: int, turn: int, variant: int = 0) -> list[int]:
        """Token ids. Prompts of one conversation begin alike; ``variant`` changes the last turn's
        tail."""
        body = _tokens(f"{self.seed}/{conversation}", self.tokens)
        length = self.lengths[turn]
        if length <= self.tokens:
            return list(body[:length])
        return list(body + _tokens(f"{self.seed}/{conversation}/{variant}", self.last))

    # -- sizes -----------------------------------------------------------------------------------

    @property
    def token_bytes(self) -> int:
        return kv_bytes_per_token(4 if self.dtype == "float32" else 2)

    @property
    def row_bytes(self) -> int:
        """Bytes of a chunk."""
        return self.chunk * self.token_bytes

    @property
    def footprint_bytes(self) -> int:
        """All KV that can be reused."""
        return self.conversations * self.tokens * self.token_bytes

    @property
    def share_bytes(self) -> int:
        """What the CPU tier and our DRAM budget get: an eighth of the footprint, or, if that is
        more, one conversation; and a quarter on top."""
        least = (self.tokens + self.last) * self.token_bytes
        wanted = _SLACK * max(SHARE * self.footprint_bytes, least)
        return math.ceil(wanted / self.row_bytes) * self.row_bytes

    @property
    def engine_blocks(self) -> int:
        """The engine's pool, as large as a share; one block more is the engine's own."""
        return math.ceil(self.share_bytes / (BLOCK * self.token_bytes)) + 1


@functools.lru_cache(maxsize=1024)
def _tokens(name: str, count: int) -> tuple[int, ...]:
    return tuple(random.Random(name).choices(range(_SPECIAL, VOCABULARY), k=count))
