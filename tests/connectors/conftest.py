# SPDX-License-Identifier: Apache-2.0
"""A tier on a small file, and one that misbehaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chm.connectors import Tier, TierOptions


@pytest.fixture
def options(tmp_path: Path) -> TierOptions:
    return TierOptions(
        path=tmp_path / "kv", capacity="128MiB", dram="64MiB", deadline_s=10.0, block_bytes="64KiB"
    )


@pytest.fixture
def tier(options: TierOptions) -> Iterator[Tier]:
    with Tier(options, "test") as made:
        yield made


@pytest.fixture
def tier_with(options: TierOptions) -> Iterator[Any]:
    """Makes tiers with some options changed; the file is made by the first."""
    made: list[Tier] = []

    def make(namespace: str = "test", **changes: Any) -> Tier:
        made.append(Tier(options.replace(**changes), namespace))
        return made[-1]

    yield make
    for one in made:
        one.close()
