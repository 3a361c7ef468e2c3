# SPDX-License-Identifier: Apache-2.0
"""Admission: which new blocks are written at all. Flash wears, and most prompts never come back.

Asked once per request, with all blocks that it would put, in prefix order. The answer is how many
of them to write, counted from the front: a block without its parent would be useless, so the first
one that is refused refuses the rest.

Invariant that the caller checks: 0 <= answer <= len(offer.keys).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chm.policies.seam import Policy, registered


@dataclass(frozen=True)
class Offer:
    """The blocks that one request would put."""

    session: int
    keys: Sequence[int]  # not resident, in prefix order, at least one
    prefix_blocks: int  # blocks of the whole request
    block_bytes: int
    now_ns: int  # the device's clock


class Admission(Policy):
    """Base of admission policies."""

    seam: ClassVar[str] = "admission"

    def admit(self, offer: Offer) -> int:
        """How many of offer.keys to write, from the front."""
        raise NotImplementedError


@registered
class AdmitAll(Admission):
    """Write everything (default, and the baseline)."""

    name = "admit-all"

    def admit(self, offer: Offer) -> int:
        return len(offer.keys)


@registered
class SecondSight(Admission):
    """Write a block when it is offered the second time.

    second-sight:N remembers the last N keys offered once (default 65536): 100 bytes each.
    """

    name = "second-sight"

    def __init__(self, entries: str = "65536") -> None:
        self.entries = _count(entries, 1)
        self._seen: OrderedDict[int, None] = OrderedDict()  # oldest first

    def admit(self, offer: Offer) -> int:
        seen = self._seen
        run = next((i for i, key in enumerate(offer.keys) if key not in seen), len(offer.keys))
        for key in offer.keys[:run]:
            del seen[key]
        for key in offer.keys[run:]:
            seen[key] = None
            seen.move_to_end(key)
        while len(seen) > self.entries:
            seen.popitem(last=False)
        return run


@registered
class MinPrefix(Admission):
    """Write the blocks of requests that are at least N blocks long: min-prefix:N.

    A short prompt is recomputed sooner than read.
    """

    name = "min-prefix"

    def __init__(self, blocks: str = "2") -> None:
        self.blocks = _count(blocks, 1)

    def admit(self, offer: Offer) -> int:
        return len(offer.keys) if offer.prefix_blocks >= self.blocks else 0


def _count(text: str, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise ValueError(f"{text!r} is no count of at least {least}")
    return int(text)
