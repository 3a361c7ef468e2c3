# SPDX-License-Identifier: Apache-2.0
"""The SGLang adapter as the conformance suite sees it: calls wait, and hits are a leading run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from driver import Identity, Rows, Told
from sglang_pool import ExtraInfo, RowPool, StorageConfig, extra_config

from chm.connectors import Tier, TierOptions
from chm.connectors.sglang import ChmHiCache


class SglangDriver:
    """Several ranks have a file each, as they must."""

    blocking = True

    def __init__(self, options: TierOptions, identity: Identity, row_bytes: int) -> None:
        options = options.replace(salt=identity.salt)
        if identity.ranks > 1:
            options = options.replace(path=[path + "-{rank}" for path in options.path])
        config = StorageConfig(
            tp_rank=identity.rank,
            tp_size=identity.ranks,
            model_name=identity.model,
            extra_config=extra_config(options),
        )
        self._pool = RowPool(identity.layout, identity.dtype, row_bytes)
        self.backend = ChmHiCache(config, {})
        self.backend.register_mem_pool_host(self._pool)
        self._jobs = 0
        self._told: list[Told] = []
        assert self.backend.tier is not None
        self.tier: Tier = self.backend.tier

    def lookup(self, numbers: Sequence[int]) -> list[bool]:
        hits = self.backend.batch_exists(_keys(numbers))
        return [i < hits for i in range(len(numbers))]

    def store(self, numbers: Sequence[int], rows: Rows) -> int:
        before = ExtraInfo(prefix_keys=_keys(range(numbers[0])) if numbers else None)
        self._pool.rows = rows
        return self._tell(
            self.backend.batch_set_v1(_keys(numbers), np.arange(len(numbers)), before)
        )

    def load(self, numbers: Sequence[int], rows: Rows) -> int:
        self._pool.rows = rows
        return self._tell(self.backend.batch_get_v1(_keys(numbers), np.arange(len(numbers))))

    def _tell(self, ok: list[bool]) -> int:
        self._jobs += 1
        self._told.append(Told(self._jobs, ok))
        return self._jobs

    def told(self) -> list[Told]:
        told, self._told = self._told, []
        return told

    def close(self) -> list[Told]:
        self._pool.rows = None
        self.backend.close()
        return self.told()


def open_sglang(options: TierOptions, identity: Identity, row_bytes: int) -> SglangDriver:
    return SglangDriver(options, identity, row_bytes)


def _keys(numbers: Sequence[int]) -> list[str]:
    """SGLang's keys are hashes in hexadecimal."""
    return [f"{number:064x}" for number in numbers]
