# SPDX-License-Identifier: Apache-2.0
"""Placement: which node a new object goes to.

A node is a member of a striped device here, and may be a device of a pool: the policy sees numbers
and bytes only. A striped object lies on all nodes and is read at the rate of all; a whole one lies
on one node, leaves the others to other requests, and is lost only with its own.

Invariants that the caller checks: the answer is None or the number of a node. A node that is full
is allowed: the object then goes to the next one with room (counted as misplaced).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chm.policies.seam import Policy, registered


@dataclass
class Node:
    """One node, as far as a placement policy may know it."""

    number: int
    used_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Place:
    """An object that needs a place."""

    session: int
    key: int
    nbytes: int
    home: int | None  # node of the block before it in its request; None: it is the first
    nodes: Sequence[Node]


class Placement(Policy):
    """Base of placement policies; as it is, striping."""

    seam: ClassVar[str] = "placement"
    whole = True  # objects lie on one node; False: the device stripes every object

    def place(self, ask: Place) -> int | None:
        """The node's number; None: any."""
        return None


@registered
class Stripe(Placement):
    """Every object over all nodes, in address order (default, and the baseline)."""

    name = "stripe"
    whole = False


@registered
class WholeRequest(Placement):
    """A whole request on one node: the next one in turn, or with least-loaded the one that has
    least.

    whole-request:round-robin is what whole-request means; whole-request:least-loaded looks at
    bytes.
    """

    name = "whole-request"

    def __init__(self, spread: str = "round-robin") -> None:
        if spread not in ("round-robin", "least-loaded"):
            raise ValueError(f"{spread!r} is neither round-robin nor least-loaded")
        self._by_load = spread == "least-loaded"
        self._next = 0

    def place(self, ask: Place) -> int | None:
        if ask.home is not None:
            return ask.home
        if self._by_load:
            return min(ask.nodes, key=lambda n: (n.used_bytes, n.number)).number
        self._next += 1
        return (self._next - 1) % len(ask.nodes)


@registered
class Interleave(Placement):
    """Every block on the next node in turn, as pages of interleaved memory are (baseline).

    A request reads at the rate of all nodes, needs all of them, and disturbs all the others.
    """

    name = "interleave"

    def __init__(self) -> None:
        self._next = 0

    def place(self, ask: Place) -> int | None:
        self._next += 1
        return (self._next - 1) % len(ask.nodes)
