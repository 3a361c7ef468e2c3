# SPDX-License-Identifier: Apache-2.0
"""What is asked of the cache: requests, and the two places they come from.

A request is an ordered list of block keys, the prompt of one turn. Its leading keys that the
cache has are read, in order; the rest are computed and put. A workload is a list of *rounds*, and
a round a list of requests: turn 1 of every conversation, turn 2, ...; or the slices of a trace.
Rounds are rows of the report, and the first one is the cold one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    """One prompt: `keys` in prefix order. Times are seconds from the beginning of the workload."""

    session: int
    turn: int
    keys: Sequence[int]
    arrival_s: float | None = None


@dataclass(frozen=True)
class Round:
    """Requests that make up one row of the report."""

    label: str
    requests: Sequence[Request]


@dataclass(frozen=True)
class Workload:
    """Rounds in order, and what they add up to."""

    rounds: Sequence[Round]
    block_bytes: int
    origin: dict[str, object] = field(default_factory=dict)

    def requests(self) -> Iterator[Request]:
        """All requests, in order."""
        for r in self.rounds:
            yield from r.requests

    def unique_keys(self) -> int:
        """Blocks that an unbounded cache would end up with."""
        return len({key for r in self.requests() for key in r.keys})

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all different blocks."""
        return self.unique_keys() * self.block_bytes


def turn_growth(conversations: int, turns: int, blocks_per_turn: int, block_bytes: int) -> Workload:
    """N conversations that grow by k blocks a turn; turn t reads (t - 1) k blocks, then appends k.

    Block j of conversation c has key c * turns * k + j, so that different shapes of one run never
    share a key.
    """
    length = turns * blocks_per_turn

    def request(c: int, t: int) -> Request:
        return Request(c, t, range(c * length, c * length + t * blocks_per_turn))

    rounds = [
        Round(str(t), [request(c, t) for c in range(conversations)]) for t in range(1, turns + 1)
    ]
    origin = {
        "kind": "turn growth",
        "conversations": conversations,
        "turns": turns,
        "blocks_per_turn": blocks_per_turn,
    }
    return Workload(rounds, block_bytes, origin)


def in_rounds(requests: Sequence[Request], rounds: int) -> list[Round]:
    """Cut requests into that many rounds of equal length (the first ones one longer)."""
    n, rounds = len(requests), max(1, min(rounds, len(requests)))
    cuts = [n * i // rounds for i in range(rounds + 1)]
    return [Round(f"{a + 1}-{b}", requests[a:b]) for a, b in itertools.pairwise(cuts) if b > a]


@dataclass(frozen=True)
class Reuse:
    """How much of a workload an unbounded cache would answer: the check of a loader."""

    requests: int
    lookups: int
    prefix_hits: int
    unique: int

    @property
    def hit_rate(self) -> float:
        """Leading blocks seen before over blocks asked for."""
        return self.prefix_hits / self.lookups if self.lookups else 0.0


def reuse(requests: Iterable[Request]) -> Reuse:
    """Count reuse with an infinite cache. Only *leading* known blocks count as hits."""
    seen: set[int] = set()
    n = lookups = hits = 0
    for r in requests:
        n += 1
        lookups += len(r.keys)
        for key in r.keys:
            if key not in seen:
                break
            hits += 1
        seen.update(r.keys)
    return Reuse(n, lookups, hits, len(seen))
