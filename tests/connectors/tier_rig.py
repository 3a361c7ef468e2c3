# SPDX-License-Identifier: Apache-2.0
"""What the tests of the tier share: numbered blocks, and a host that waits for its tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chm.connectors import Done, Tier, key_of

KIB = 1 << 10
MIB = 1 << 20
Make = Callable[..., Tier]


def keys(first: int, n: int) -> list[bytes]:
    return [key_of(b"%d" % number) for number in range(first, first + n)]


def rows(first: int, n: int, nbytes: int = 64 * KIB) -> Any:
    return np.stack(
        [
            np.random.default_rng(i).integers(0, 256, nbytes, np.uint8)
            for i in range(first, first + n)
        ]
    )


def finish(tier: Tier) -> list[Done]:
    assert tier.wait(30.0)
    return tier.drain()


def fill(tier: Tier, first: int, n: int, nbytes: int = 64 * KIB) -> Any:
    data = rows(first, n, nbytes)
    tier.put("fill", keys(first, n), list(data))
    [done] = finish(tier)
    assert done.good, done.error
    return data
