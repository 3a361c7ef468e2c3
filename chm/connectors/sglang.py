# SPDX-License-Identifier: Apache-2.0
"""A storage backend of SGLang's HiCache, for its ``dynamic`` loader; docs/sglang.md has the usage.

SGLang asks from threads of its own, and its calls wait: ``batch_exists`` on one, ``batch_get_v1``
on another, ``batch_set_v1`` on a third. Each call is one task of the tier, and ends by the tier's
deadline. Pages go between the host pool and the store without a copy here: the pool says at which
addresses the parts of a page lie (2 of them, or 2 for each layer).

    made -> open (the host pool was registered) -> closed

What is not open has no hits. One process opens a device at a time, so each rank has its own.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from chm.connectors.config import TierOptions
from chm.connectors.naming import Naming, key_of, weights_identity
from chm.connectors.tier import BATCH, Done, Tier
from chm.errors import ChmError

if TYPE_CHECKING:
    Base = Any
else:
    try:
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorage as Base
    except ModuleNotFoundError as error:  # without SGLang there is nobody who needs its class
        if error.name is None or error.name.split(".")[0] != "sglang":
            raise
        Base = object

_HOST_KEYS = {
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "hicache_storage_pass_prefix_keys",
    "tp_lcm_size",
}
_HINT_TOKENS = 256  # SGLang does not fetch hits below this (prefetch_threshold, by default)
_GB = 1e9


def rank_of(config: Any) -> str:
    """What ``{rank}`` in a path stands for: ``tp0``, and the other ranks if there are any."""
    rank = f"tp{config.tp_rank}"
    if config.pp_size > 1:
        rank += f"-pp{config.pp_rank}"
    if config.attn_cp_size > 1:
        rank += f"-cp{config.attn_cp_rank}"
    return rank + (f"-dp{config.dp_rank}" if config.dp_rank else "")


def options_of(config: Any) -> TierOptions:
    """The tier's options from the backend's extra configuration, without the keys of SGLang.

    ValueError if this rank would share a device with another, or could never have a hit.
    """
    extra = {
        name: value
        for name, value in (config.extra_config or {}).items()
        if name not in _HOST_KEYS and not name.startswith("prefetch_")
    }
    options = TierOptions.from_dict(extra)
    ranks = config.tp_size * config.pp_size * config.attn_cp_size
    if (ranks > 1 or config.dp_rank) and not all("{rank}" in path for path in options.path):
        raise ValueError(
            "several ranks, but one path: a device belongs to one process, so write {rank} into "
            f"every path, as in {options.path[0] + '-{rank}'!r}"
        )
    if config.is_mla_model and config.tp_size > 1:
        raise ValueError(
            f"an MLA model on {config.tp_size} tensor-parallel ranks: SGLang stores its pages by "
            "one rank only, and a device belongs to one process, so the others would never have a "
            "hit; use data-parallel attention with an attention group of one rank"
        )
    return options.replace(path=[path.replace("{rank}", rank_of(config)) for path in options.path])


def namespace_of(config: Any, pool: Any, options: TierOptions) -> str:
    """All that the hash of a page does not say about its bytes. (It covers tokens, adapter and
    SGLang's own salt.)"""
    model = config.model_name or ""
    server = _server_args()
    path, revision = server.pop("model_path", None), server.pop("revision", None)
    return str(
        Naming(
            "sglang",
            model=model,
            layout=pool.layout,
            dtype=pool.dtype,
            page=pool.page_size,
            tp=f"{config.tp_rank}/{config.tp_size}",
            pp=f"{config.pp_rank}/{config.pp_size}",
            cp=f"{config.attn_cp_rank}/{config.attn_cp_size}",
            mla=config.is_mla_model,
            flat=not (config.extra_config or {}).get("interface_v1"),  # orders parts in its own way
            weights=options.identity or weights_identity(path or model, revision),
            salt=options.salt,
            token_bytes=pool.size_per_token,
            **{name: getattr(pool, name, None) for name in _SHAPE},
            server=server,
        )
    )


_SHAPE = ("layer_num", "head_num", "head_dim", "v_head_dim", "start_layer", "end_layer")
_SERVER = (
    "model_path",
    "revision",
    "kv_cache_dtype",  # the pool of either 8-bit float says uint8
    "dtype",
    "quantization",
    "quantization_param_path",
    "json_model_override_args",
    "load_format",
)


def _server_args() -> dict[str, Any]:
    """What the server of this process was started with, as far as it makes bytes differ."""
    context = sys.modules.get("sglang.srt.runtime_context")
    try:
        args = context.get_server_args() if context is not None else None
    except ValueError:  # there is no server
        return {}
    return {name: getattr(args, name, None) for name in _SERVER} if args is not None else {}


class ChmHiCache(Base):  # type: ignore[misc]
    """``tier`` is None until the host pool is known, and after ``close``.

    Raises ValueError for options that do not exist or do not fit; opening the device, when the pool
    is registered, raises what ``Tier`` does. What goes wrong later is a miss, and raises nothing.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        self.storage_config = storage_config
        self.options = options_of(storage_config)
        self.tier: Tier | None = None
        self.mem_pool_host: Any = None
        self._page_size = 1
        self._lock = threading.Lock()
        self._ended: list[Done] = []  # for get_stats

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.close()
        pool = self.mem_pool_host = mem_pool_host
        self._page_size = pool.page_size
        name = namespace_of(self.storage_config, pool, self.options)
        self.tier = Tier(self.options, name, pool.size_per_token * pool.page_size)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """SGLang names the pool of the KV pages once more here, and pools beside it."""
        if str(host_pool_name) != "kv":
            raise ValueError(
                f"the model keeps state beside its KV pages (pool {host_pool_name!s}), which "
                "chm.connectors.sglang does not store; use another storage backend for it"
            )

    # -- pages, without a copy -----------------------------------------------------------------

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """How many are there, counted from the front. The device starts to read the first."""
        tier = self.tier
        if tier is None:
            return 0
        hits = 0
        try:
            for first in range(0, len(keys), BATCH):
                found = tier.exists(_named(keys[first : first + BATCH]))
                hits += (*found, False).index(False)
                if not all(found):
                    break
            if hits * self._page_size >= _HINT_TOKENS:
                tier.hint(keys[0], _named(keys[: min(hits, BATCH)]))
        except ChmError:
            return 0
        return hits

    def batch_get_v1(
        self, keys: Sequence[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Read pages into the host pool; of each, whether it is there now."""
        return self._move("get", keys, partial(self._pages, len(keys), host_indices))

    def batch_set_v1(
        self, keys: Sequence[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Store pages of the host pool; of each, whether it is stored."""
        before = getattr(extra_info, "prefix_keys", None)
        after = key_of(before[-1].encode()) if before else None
        return self._move("put", keys, partial(self._pages, len(keys), host_indices), after)

    def _pages(self, n: int, host_indices: Any, pool: Any) -> list[list[Any]]:
        """For each page the pieces of memory that it is made of."""
        addresses, sizes = pool.get_page_buffer_meta(host_indices)
        each, rest = divmod(len(addresses), n)
        if rest or not each:
            raise ValueError(f"{n} pages, but {len(addresses)} addresses from the host pool")
        parts = list(map(_memory, addresses, sizes))
        return [parts[i : i + each] for i in range(0, len(parts), each)]

    def _move(
        self,
        op: str,
        keys: Sequence[str],
        buffers: Callable[[Any], list[Any]],
        after: bytes | None = None,
    ) -> list[bool]:
        """Get or put, and wait for it. ``buffers`` gives the memory of the pages."""
        tier, pool = self.tier, self.mem_pool_host
        if tier is None or pool is None or not keys:
            return [False] * len(keys)
        try:
            if op == "get":
                number = tier.get(None, _named(keys), buffers(pool))
            else:
                number = tier.put(None, _named(keys), buffers(pool), after)
            done = tier.result(number)
        except (ChmError, KeyError):  # it was closed meanwhile
            return [False] * len(keys)
        if self.storage_config.enable_storage_metrics:
            with self._lock:
                self._ended.append(done)
        return done.ok

    # -- the old interface: tensors ------------------------------------------------------------

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """The tensor, filled; None if there is none."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        tensors = list(target_locations or [])
        ok = self._move("get", keys, lambda _: list(map(_tensor_memory, tensors)))
        return [one if good else None for one, good in zip(tensors, ok, strict=True)]

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Store tensors, in the order of the tokens; whether all are there."""
        whole = [one.contiguous() for one in values]
        return all(self._move("put", keys, lambda _: list(map(_tensor_memory, whole))))

    # -- the rest ------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget the pages of this model on this rank, but for those that are in use."""
        if self.tier is not None:
            self.tier.clear()

    def get_stats(self) -> Any:
        """Pages and GB/s of the calls since the last time, as SGLang's metrics take them."""
        if not self.storage_config.enable_storage_metrics:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            ended, self._ended = self._ended, []
        stats = StorageMetrics()
        for done in ended:
            pages, rates = (
                (stats.prefetch_pgs, stats.prefetch_bandwidth)
                if done.op == "get"
                else (stats.backup_pgs, stats.backup_bandwidth)
            )
            pages.append(len(done.ok))
            rates.append(done.nbytes / max(done.seconds, 1e-9) / _GB)
        return stats

    def close(self) -> None:
        """Let calls end, close the device, let go of the host pool. Twice is fine."""
        tier, self.tier = self.tier, None
        if tier is not None:
            tier.close()
        self.mem_pool_host = None


def _named(keys: Sequence[str]) -> list[bytes]:
    return [key_of(key.encode()) for key in keys]


def _memory(address: int, nbytes: int) -> Any:
    return (ctypes.c_uint8 * nbytes).from_address(address)


def _tensor_memory(tensor: Any) -> Any:
    if not tensor.is_contiguous():
        raise ValueError("the tensor to read into is not contiguous")
    return _memory(tensor.data_ptr(), tensor.numel() * tensor.element_size())
