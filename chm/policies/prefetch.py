# SPDX-License-Identifier: Apache-2.0
"""Prefetch: what of a request is staged into the device's window, and when.

Asked twice a turn. When a request is about to read: how far ahead of its consumer. When a session's
turn has ended and its blocks are put: what to stage now, for the turn to come. What is staged early
is held until that turn reads it, or for `hold_ns`; the caller issues it in the order in which turns
ended, as far as the window has room beside the streams, and goes on as room comes back.

Invariants that the caller checks: a window is a count of bytes; only keys of the session's own
prefix are staged; none twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chm.policies.seam import Policy, registered


@dataclass(frozen=True)
class Known:
    """What a prefetch policy may know of a session at one moment."""

    session: int
    keys: Sequence[int]  # its resident prefix, in order
    block_bytes: int
    now_ns: int  # the device's clock
    think_ns: int = 0  # until its next turn, as far as known; 0: unknown
    room_bytes: int = 0  # of the window, for staging between turns, over all sessions


class Prefetch(Policy):
    """Base of prefetch policies; as it is, the default."""

    seam: ClassVar[str] = "prefetch"
    hold_ns: int = 60_000_000_000  # for what is staged early and never read

    def ahead_bytes(self, known: Known) -> int | None:
        """Window of the request's stream; None: the run's own; 0: no staging, demand reads."""
        return None

    def turn_ended(self, known: Known) -> Sequence[int]:
        """Keys to stage for the next turn, first one first. What has no room waits its turn."""
        return ()


@registered
class AheadWindow(Prefetch):
    """Stage a bounded window ahead of the consumer, from the start of its read (default)."""

    name = "ahead"


@registered
class NoPrefetch(Prefetch):
    """Baseline: one demand read after the other."""

    name = "none"

    def ahead_bytes(self, known: Known) -> int | None:
        return 0


@registered
class ThinkTime(Prefetch):
    """Stage a session's known prefix when its turn ends, while its user thinks."""

    name = "think-time"

    def turn_ended(self, known: Known) -> Sequence[int]:
        return known.keys[: known.room_bytes // known.block_bytes]
