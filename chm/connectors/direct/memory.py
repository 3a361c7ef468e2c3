# SPDX-License-Identifier: Apache-2.0
"""Memory that the host can reach: KV of an engine on the CPU, and staging memory.

The bytes of some blocks of a layer are, in this order: for each plane, for each block. Both kinds
of layers (here, and on a device in tensors.py) keep to it, so that either can read what the other
wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chm._buffers import aligned_empty

Bytes = npt.NDArray[np.uint8]
Fence = Callable[[], bool]
"""Whether the copies begun before it are over."""


class Layer(Protocol):
    """KV of one layer, as the engine has it."""

    block_bytes: int

    def parts(self, blocks: Sequence[int | None]) -> list[Bytes] | None:
        """Where the bytes of these blocks lie, or None if the host cannot write there. A block
        that is None is memory of its own: what is read is checked where it was read to."""

    def gather(self, blocks: Sequence[int], out: Bytes) -> None:
        """Begin to copy blocks out."""

    def scatter(self, blocks: Sequence[int | None], source: Bytes) -> None:
        """Begin to copy into blocks, but not into those that are None."""


class HostLayer:
    """Planes of (blocks, bytes) in host memory; copies are over when they return."""

    def __init__(self, planes: Sequence[Bytes]) -> None:
        self.planes = list(planes)
        self.block_bytes = sum(plane.shape[1] for plane in planes)

    def parts(self, blocks: Sequence[int | None]) -> list[Bytes]:
        return [
            plane[block] if block is not None else np.empty(plane.shape[1], np.uint8)
            for plane in self.planes
            for block in blocks
        ]

    def gather(self, blocks: Sequence[int], out: Bytes) -> None:
        for (plane, block), piece in self._pieces(blocks, out):
            np.copyto(piece, plane[block])

    def scatter(self, blocks: Sequence[int | None], source: Bytes) -> None:
        for (plane, block), piece in self._pieces(blocks, source):
            if block is not None:
                np.copyto(plane[block], piece)

    def _pieces(self, blocks: Sequence[int | None], memory: Bytes) -> Any:
        at = 0
        for plane in self.planes:
            for block in blocks:
                yield (plane, block), memory[at : at + plane.shape[1]]
                at += plane.shape[1]


class Staging:
    """Slots of one size in host memory. What was not used yet takes no memory."""

    def __init__(self, slot_bytes: int, nbytes: int, memory: Bytes | None = None) -> None:
        self.slot_bytes = slot_bytes
        self.slots = nbytes // slot_bytes
        self._memory = aligned_empty(max(self.slots, 1) * slot_bytes) if memory is None else memory
        self._free = list(range(self.slots - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def take(self) -> int:
        """The slot used last, which is likely to be in some cache."""
        return self._free.pop()

    def give_back(self, slots: Sequence[int]) -> None:
        self._free.extend(slots)

    def of(self, slot: int, nbytes: int) -> Bytes:
        """The first bytes of a slot."""
        return self._memory[slot * self.slot_bytes : slot * self.slot_bytes + nbytes]

    def drop(self) -> None:
        """Let the memory go."""
        self.slots = 0
        self._free = []
        self._memory = np.empty(0, np.uint8)
