# SPDX-License-Identifier: Apache-2.0
"""Calls ChmTier as vLLM's tiering manager does; see driver.py.

A look-up of the suite and what it stores or loads next, if of the same blocks, is one request.
vLLM's memory for chunks is one array for ever; the suite has one for each job. So the tier's rows
are those: a chunk id is a number that this driver gives to a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import vllm_stand_in as stand_in
from driver import Identity, Rows, Told

from chm.connectors import TierOptions

vllm = stand_in.adapter()

MISS, HIT, RETRY = (getattr(vllm.LookupResult, name) for name in ("MISS", "HIT", "RETRY"))


def offload_key(number: int, group: int = 0) -> bytes:
    """As vLLM packs it: a block's hash, and the index of its KV-cache group."""
    return number.to_bytes(32, "big") + group.to_bytes(4, "big")


def spec_of(identity: Identity, **changes: Any) -> Any:
    """As much of an OffloadingSpec as says what the bytes are."""
    parallel = {
        "rank": identity.rank,
        "world_size": identity.ranks,
        "tp_size": identity.ranks,
        "pp_size": 1,
        "pcp_size": 1,
        "dcp_size": 1,
    }
    group = SimpleNamespace(tokens_per_block=32, layer_names=("layer.0",))
    config = {
        "model": SimpleNamespace(name=identity.model, dtype=identity.dtype),
        "parallel": SimpleNamespace(**parallel),
        "cache": SimpleNamespace(tokens_per_hash=32, blocks_per_chunk=4),
        "groups": (group,),
        "kv_cache_layout": identity.layout,
        "replicated_layout": False,
        "canonical_layout": False,
    }
    return SimpleNamespace(config=SimpleNamespace(**{**config, **changes}))


def config_of(options: TierOptions, identity: Identity) -> dict[str, Any]:
    """The same as the tier's entry in ``secondary_tiers``."""
    return {**options.to_dict(), "salt": identity.salt}


def primary(chunks: int, row_bytes: int) -> memoryview:
    """The view of vLLM's CPU tier: signed bytes, a row for each chunk."""
    return memoryview(np.zeros((chunks, row_bytes), np.int8))


class VllmDriver:
    """One open tier, and requests and jobs numbered as vLLM does."""

    blocking = False

    def __init__(self, options: TierOptions, identity: Identity, row_bytes: int) -> None:
        self.manager = vllm.ChmTier(
            offloading_spec=spec_of(identity),
            primary_kv_view=primary(1, row_bytes),
            tier_type="ChmTier",
            **config_of(options, identity),
        )
        self.tier = self.manager.tier
        self._chunks: dict[int, Any] = {}
        self.manager._rows = self._chunks
        self._numbers = itertools.count()
        self._jobs: dict[int, list[bytes]] = {}
        self._asked: tuple[list[bytes], Any] | None = None

    def _request(self, keys: list[bytes], new: bool = False) -> Any:
        """The request that looked these up just now, else a new one."""
        if self._asked is not None:
            asked, context = self._asked
            self._asked = None
            if asked == keys and not new:
                return context
            self.manager.on_request_finished(context)
        context = stand_in.ReqContext(f"request-{next(self._numbers)}")
        for place, key in enumerate(keys):
            context.set_offload_key_position(key, (place + 1) * 128)
        self.manager.on_new_request(context)
        return context

    def step(self) -> None:
        self.manager.on_schedule_end(stand_in.ScheduleEndContext((), ()))

    def lookup(self, numbers: Sequence[int]) -> list[bool]:
        keys = list(map(offload_key, numbers))
        context = self._request(keys, new=True)
        first = [self.manager.lookup(key, context) for key in keys]
        assert first == [RETRY] * len(keys)
        self.step()
        found = [self.manager.lookup(key, context) for key in keys]
        assert set(found) <= {HIT, MISS}
        self._asked = keys, context
        return [one is HIT for one in found]

    def store(self, numbers: Sequence[int], rows: Rows) -> int:
        return self._submit(numbers, rows, load=False)

    def load(self, numbers: Sequence[int], rows: Rows) -> int:
        return self._submit(numbers, rows, load=True)

    def _submit(self, numbers: Sequence[int], rows: Rows, load: bool) -> int:
        keys = list(map(offload_key, numbers))
        context = self._request(keys)
        job = next(self._numbers)
        self._jobs[job] = keys
        chunks = [next(self._numbers) for _ in keys]
        self._chunks.update(zip(chunks, rows, strict=True))
        submit = self.manager.submit_load if load else self.manager.submit_store
        submit(stand_in.transfer(job, keys, chunks, load, context))
        for chunk in chunks:
            del self._chunks[chunk]
        self.manager.on_request_finished(context)
        return job

    def told(self) -> list[Told]:
        return [self._told(result) for result in self.manager.get_finished_jobs()]

    def _told(self, result: Any) -> Told:
        keys = self._jobs.pop(result.job_id)
        if result.success:
            good = set(keys)
        else:
            good = set(result.successful_keys or ())
        return Told(result.job_id, [key in good for key in keys])

    def close(self) -> list[Told]:
        """vLLM stops asking; what it would be told is asked for here."""
        self.manager.drain_jobs()
        told = self.told()
        self.manager.shutdown()
        return told


def open_vllm(options: TierOptions, identity: Identity, row_bytes: int) -> VllmDriver:
    return VllmDriver(options, identity, row_bytes)
