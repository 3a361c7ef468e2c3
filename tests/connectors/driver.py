# SPDX-License-Identifier: Apache-2.0
"""How the conformance suite sees an adapter: a driver calls it as its host would.

Each adapter has one, in ``tests/connectors/drive_<host>.py``, which needs no engine: what the host
would pass is made by hand. Keys are the engine's (any bytes), numbered blocks of one chain; rows
are (n, row_bytes) arrays of uint8, page-aligned, which stand for the host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chm.connectors import Done, Naming, Tier, TierOptions, key_of

Rows = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Identity:
    """What a host's configuration says about the bytes; each field alone makes keys differ."""

    model: str = "model"
    dtype: str = "float16"
    layout: str = "a"
    ranks: int = 1
    rank: int = 0
    salt: str = ""


@dataclass(frozen=True)
class Told:
    """A job that the host was told of: its number, and per key whether it succeeded."""

    job: int
    ok: list[bool]


class Driver(Protocol):
    """One open adapter; made by ``open_<host>(options, identity, row_bytes)``."""

    tier: Tier
    """Where the adapter's tier is: for looking inside, and for breaking things."""
    blocking = False
    """Whether ``store`` and ``load`` return when they are done, as SGLang wants it."""

    def lookup(self, numbers: Sequence[int]) -> list[bool]:
        """Ask as the host does, for blocks of these numbers in this order, until answered. A host
        that only learns of a leading run gives False for everything behind it."""

    def store(self, numbers: Sequence[int], rows: Rows) -> int:
        """Submit a store of these blocks; the job's number."""

    def load(self, numbers: Sequence[int], rows: Rows) -> int:
        """Submit a load of these blocks into rows."""

    def told(self) -> list[Told]:
        """What the host is told has ended since the last time; does not wait."""

    def close(self) -> list[Told]:
        """Shut down as the host does; what it is told on the way."""


class TierDriver:
    """The bare tier: what holds here should hold for every adapter on it."""

    blocking = False

    def __init__(self, options: TierOptions, identity: Identity, row_bytes: int) -> None:
        self.tier = Tier(options, str(Naming("tier", **asdict(identity))), row_bytes)

    def lookup(self, numbers: Sequence[int]) -> list[bool]:
        return self.tier.exists(_keys(numbers))

    def store(self, numbers: Sequence[int], rows: Rows) -> int:
        return self.tier.put(None, _keys(numbers), list(rows))

    def load(self, numbers: Sequence[int], rows: Rows) -> int:
        return self.tier.get(None, _keys(numbers), list(rows))

    def told(self) -> list[Told]:
        return list(map(_told, self.tier.drain()))

    def close(self) -> list[Told]:
        return list(map(_told, self.tier.close()))


def open_tier(options: TierOptions, identity: Identity, row_bytes: int) -> TierDriver:
    return TierDriver(options, identity, row_bytes)


def _keys(numbers: Sequence[int]) -> list[bytes]:
    return [key_of(number.to_bytes(8, "big")) for number in numbers]


def _told(done: Done) -> Told:
    return Told(done.task, done.ok)


def fresh_rows(n: int, row_bytes: int) -> Any:
    """Page-aligned memory of zeros."""
    import chm

    array = chm.aligned_empty(n * row_bytes).reshape(n, row_bytes)
    array[:] = 0
    return array
