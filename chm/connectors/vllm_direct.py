# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV connector over a chm store: between the engine's KV and the device, no tier between.

    {"kv_connector": "ChmConnector", "kv_connector_module_path": "chm.connectors.vllm_direct",
     "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
     "kv_connector_extra_config": {"path": "/mnt/nvme/kv.chm", "capacity": "500GiB"}}

vLLM makes it twice, for its scheduler and for its worker; both share one ``_Engine``, since one
process has a store open at a time. So there is one worker, in the engine's process.

A load goes one of two ways. ``layerwise``: within the step that computes the rest of the prompt;
each layer waits for its own bytes only, so computing overlaps with reading. If it fails the step's
output is thrown away and computed again. ``async``: between steps, and other requests go on
meanwhile. Layerwise needs that the host has not scheduled the next step before it hears of the
failure, and that what the failed step left in its prefix cache can be evicted; ``auto`` takes it
where both hold and no graph of the device swallows the waiting, that is on the CPU.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec

from chm.connectors.config import TierOptions
from chm.connectors.direct.layout import Layout
from chm.connectors.direct.memory import Staging
from chm.connectors.direct.mover import Mover
from chm.connectors.direct.options import DirectOptions
from chm.connectors.direct.plan import Plan, Planner
from chm.connectors.naming import Naming, weights_identity
from chm.connectors.tier import Tier

log = logging.getLogger("chm")
_TIER = "use the tier (chm.connectors.vllm) instead"
_UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


@dataclass
class _Step(KVConnectorMetadata):  # type: ignore[misc]
    """What the scheduler's half tells the worker's."""

    plan: Plan


class _Engine:
    """What the two halves of a connector share."""

    _open: dict[str, _Engine] = {}  # noqa: RUF012 - the process's register

    def __init__(self, tier: Tier, layout: Layout, mover: Mover) -> None:
        self.tier, self.layout, self.mover = tier, layout, mover

    @classmethod
    def of(cls, name: str) -> _Engine:
        if name not in cls._open:
            raise RuntimeError(
                f"ChmConnector: the worker of this engine is not in its process; {_TIER}"
            )
        return cls._open[name]


class ChmConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """The connector; see the module. ``kv_connector_extra_config`` has the fields of DirectOptions
    and of TierOptions."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config, self._cache = vllm_config, kv_cache_config
        transfer = vllm_config.kv_transfer_config
        extra = dict(transfer.kv_connector_extra_config)
        own = {f.name: extra.pop(f.name) for f in fields(DirectOptions) if f.name in extra}
        self.options = DirectOptions.from_dict(own)
        self.tier_options = TierOptions.from_dict(extra)
        self._name = transfer.engine_id
        _refuse(vllm_config, kv_cache_config)
        self.layerwise = self._choose()
        self._planner_made: Planner | None = None
        self._engine: _Engine | None = None
        self._pool: Any = None
        if transfer.kv_load_failure_policy != "recompute" and role == KVConnectorRole.SCHEDULER:
            log.warning(
                "kv_load_failure_policy is %r: a load that fails will fail its request; "
                'set it to "recompute"',
                transfer.kv_load_failure_policy,
            )

    def _choose(self) -> bool:
        """Whether loads go layer by layer."""
        ahead = self._config.scheduler_config.async_scheduling
        evicts = hasattr(KVConnectorBase_V1, "bind_gpu_block_pool")
        if self.options.load == "layerwise":
            if ahead:
                raise ValueError(
                    "load: layerwise needs an engine that does not schedule ahead: give "
                    "--no-async-scheduling, or load: async"
                )
            if not evicts:
                log.warning(
                    "load: layerwise with this vLLM: a request that is aborted right after a load "
                    "of it failed may leave wrong KV in the engine's prefix cache"
                )
            return True
        on_cpu = self._config.device_config.device_type == "cpu"
        return self.options.load == "auto" and on_cpu and evicts and not ahead

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that is dropped is a miss later, no more."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return extra_config.get("load") == "layerwise"

    # -- the scheduler's half ------------------------------------------------------------------

    @property
    def _planner(self) -> Planner:
        if self._planner_made is None:
            engine = _Engine.of(self._name)
            transfer = self._config.kv_transfer_config
            self._planner_made = Planner(
                engine.layout, engine.tier, transfer.is_kv_consumer, transfer.is_kv_producer
            )
        return self._planner_made

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._pool = gpu_block_pool

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if getattr(request, "skip_reading_prefix_cache", False):
            return 0, False
        tokens = self._planner.match(request, num_computed_tokens)
        return tokens, tokens > 0 and not self.layerwise

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._planner.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return _Step(self._planner.plan(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        """Layerwise loads go into blocks that are in the engine's prefix cache already; the host
        does not take out of it what a failed one left."""
        bad = connector_output.invalid_block_ids
        if bad and self.layerwise and self._pool is not None:
            self._pool.evict_blocks(self._planner.invalid(set(bad)))

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._planner.finished(request.request_id)
        return False, None

    # -- the worker's half ---------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._close()
        self._engine = _Engine._open[self._name] = self._build(kv_caches)

    def _build(self, kv_caches: dict[str, Any]) -> _Engine:
        from chm.connectors.direct import tensors

        [group] = self._cache.kv_cache_groups
        blocks = self._cache.num_blocks
        own = {name: kv_caches[name] for name in group.layer_names if name in kv_caches}
        layers = {
            name: tensors.layer_of(tensors.planes_of(one, blocks)) for name, one in own.items()
        }
        layout = Layout.of(
            {name: layer.block_bytes for name, layer in layers.items()},
            group.kv_cache_spec.block_size,
            self.options.block_size,
            self.options.layers_per_object,
        )
        shapes = [tensors.describe(one, blocks) for one in own.values()]
        name = str(self._naming(layout, shapes))
        device = next(iter(own.values())).device
        largest = max(layout.object_bytes)
        nbytes = self.options.staging()
        staging = Staging(largest, nbytes, tensors.staging_memory(nbytes, device))
        tier = Tier(self.tier_options, name, largest)
        return _Engine(tier, layout, Mover(tier, layout, layers, staging, tensors.fence_of(device)))

    def _naming(self, layout: Layout, shapes: list[str]) -> Naming:
        model, cache = self._config.model_config, self._config.cache_config
        whole = {**model.hf_config.to_dict(), "transformers_version": None}
        described = json.dumps(whole, sort_keys=True, default=str)
        return Naming(
            "vllm-direct",
            model=model.model,
            weights=self.tier_options.identity or weights_identity(model.model, model.revision),
            config=hashlib.blake2b(described.encode(), digest_size=16).hexdigest(),
            dtype=str(model.dtype),
            cache_dtype=cache.cache_dtype,
            quantization=model.quantization,
            version=".".join(vllm.__version__.split(".")[:2]),
            chunk=layout.chunk_tokens,
            block=layout.block_tokens,
            groups=layout.groups,
            shapes=shapes,
            hash=cache.prefix_caching_hash_algo,
            ranks=1,
            rank=0,
            salt=self.tier_options.salt,
        )

    def _plan(self) -> Plan:
        step = self._get_connector_metadata()
        return step.plan if isinstance(step, _Step) else Plan()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._engine is not None:
            self._engine.mover.load(self._plan().loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self.layerwise and self._engine is not None:
            self._engine.mover.wait_layer(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """All layers are copied at once, when the step has computed them."""

    def wait_for_save(self) -> None:
        if self._engine is not None:
            if self.layerwise:
                self._engine.mover.wait_loads()
            self._engine.mover.save(self._plan().saves)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._engine is None:
            return None, None
        mover = self._engine.mover
        if self.layerwise:
            mover.wait_loads()
        mover.turn()
        mover.finished(finished_req_ids)
        loads = {ended.request for ended in mover.told() if ended.op == "load"}
        return None, None if self.layerwise else loads

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._engine.mover.invalid() if self._engine is not None else set()

    def shutdown(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._engine is not None:
            _Engine._open.pop(self._name, None)
            self._engine.mover.close()
            log.info("%s", self._engine.mover.stats())
            self._engine = None


def _refuse(config: Any, cache: Any) -> None:
    """Raise ValueError for what this connector cannot do."""
    parallel = config.parallel_config
    backend = parallel.distributed_executor_backend
    executor = str(getattr(backend, "__name__", backend)).rpartition(".")[2]
    if parallel.world_size > 1 or executor not in ("None", "uni", "UniProcExecutor"):
        raise ValueError(
            f"ChmConnector works for one worker in the engine's process, not {parallel.world_size} "
            f"under {executor!r}: with one, give --distributed-executor-backend {_UNIPROC}; "
            f"with more, {_TIER}"
        )
    groups: Iterable[Any] = cache.kv_cache_groups if cache is not None else ()
    kinds = [type(group.kv_cache_spec).__name__ for group in groups]
    if len(kinds) != 1 or not isinstance(cache.kv_cache_groups[0].kv_cache_spec, FullAttentionSpec):
        raise ValueError(
            f"ChmConnector works for one group of full attention, not for {kinds}: give "
            f"--disable-hybrid-kv-cache-manager, or {_TIER}"
        )
