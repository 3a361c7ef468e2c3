# SPDX-License-Identifier: Apache-2.0
"""A program: pages go from SGLang's own host pool to a device and back, called by SGLang's own
controller code, in all layouts. Run by test_sglang_engine.py; needs the overlay of tools/engines.

    python sglang_host.py DEVICE

The controller is not started (it wants a scheduler and process groups); its three functions that
call a backend are. Hashes come from here, since SGLang compiles its own at first use.
"""

from __future__ import annotations

import argparse
import hashlib
import queue
import sys
from typing import Any

import torch

# The CPU build of torchvision is not everywhere: with these declared, one without its operators can
# be imported too, which is all that SGLang's host pool needs of it.
_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.managers import cache_controller  # noqa: E402
from sglang.srt.mem_cache.device_pool_info import (  # noqa: E402
    KVBufferLayout,
    KVBuffers,
    MHABufferInfo,
)
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import (  # noqa: E402
    HybridCacheController,
)
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402
from sglang_pool import (  # noqa: E402
    LAYOUTS,
    command_of_the_manual,
    created_by_sglang,
)

from chm.connectors.sglang import _SERVER, _server_args  # noqa: E402

LAYERS, HEADS, DIM, PAGE, PAGES = 3, 2, 64, 16, 400
USED = 150  # pages of the request: more than SGLang's batch of 128


def chain(tokens: Any, last_hash: str | None, page_size: int) -> list[str]:
    hashes = []
    for first in range(0, len(tokens), page_size):
        text = f"{last_hash}{tokens[first : first + page_size]}"
        last_hash = hashlib.sha256(text.encode()).hexdigest()
        hashes.append(last_hash)
    return hashes


def host_pool(layout: str) -> Any:
    def tables() -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros(PAGE, HEADS, DIM, dtype=torch.bfloat16) for _ in range(LAYERS))

    k, v = tables(), tables()

    def pointers(many: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.tensor([one.data_ptr() for one in many], dtype=torch.int64)

    info = MHABufferInfo(
        buffers=KVBuffers(
            k=k,
            v=v,
            k_data_ptrs=pointers(k),
            v_data_ptrs=pointers(v),
            layout=KVBufferLayout.NHD,
        ),
        page_size=PAGE,
        head_num=HEADS,
        head_dim=DIM,
        v_head_dim=DIM,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    return MHATokenToKVPoolHost(
        info,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=PAGE * 4,
        start_layer=0,
        end_layer=LAYERS - 1,
        host_token_capacity=PAGE * PAGES,
    )


def backend_of(pool: Any, path: str) -> Any:
    command_line = (
        '{"backend_name": "chm", "module_path": "chm.connectors.sglang",'
        ' "class_name": "ChmHiCache", "interface_v1": 1, "prefetch_timeout_base": 10,'
        ' "hicache_storage_pass_prefix_keys": true,'
        f' "path": "{path}", "capacity": "128MiB", "dram": "64MiB", "block_bytes": "12KiB"}}'
    )
    extra = HybridCacheController.parse_storage_backend_extra_config(command_line)[0]
    backend = created_by_sglang(pool, extra, metrics=True)
    backend.register_mem_pool_host(pool)
    backend.on_host_pools_registered()
    return backend


def controller_of(pool: Any, backend: Any) -> Any:
    controller = object.__new__(cache_controller.HiCacheController)
    controller.page_size = PAGE
    controller.mem_pool_host = controller.storage_host_pool = pool
    controller.storage_backend, controller.storage_config = backend, backend.storage_config
    controller.page_get_func = controller._page_get_zero_copy
    controller.page_set_func = controller._page_set_zero_copy
    controller.prefetch_sync_queue = queue.Queue()
    return controller


def slots(pages: list[int]) -> torch.Tensor:
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def page_of(pool: Any, page: int) -> torch.Tensor:
    return pool.get_data_page(page * PAGE, flat=True).clone()


def there_and_back(layout: str, path: str) -> None:
    pool = host_pool(layout)
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape))
    backend = backend_of(pool, path)
    controller = controller_of(pool, backend)
    tokens = list(range(USED * PAGE))
    source, target = list(range(USED)), list(range(390, 390 - USED, -1))
    want = [page_of(pool, page) for page in source]

    hashes = chain(tokens, None, PAGE)
    stores = cache_controller.StorageOperation(
        slots(source), tokens, hash_value=hashes, prefix_keys=[]
    )
    controller._page_backup(stores)
    assert stores.completed_tokens == USED * PAGE
    parents = {o.key: o.parent for o in backend.tier.store.list()}
    assert sum(parent is None for parent in parents.values()) == 1, "one chain"

    pool.kv_buffer.zero_()
    loads = cache_controller.PrefetchOperation("r", [*tokens, *range(PAGE)], prefix_keys=[])
    loads.hash_value, hits = controller._storage_hit_query(loads)
    assert hits == USED * PAGE
    loads.host_indices = slots(target)
    assert controller._page_transfer(loads) == USED
    for page, data in zip(target, want, strict=True):
        assert torch.equal(page_of(pool, page), data), f"{layout}: page {page}"
    assert int((pool.kv_buffer != 0).sum()) <= sum(int((d != 0).sum()) for d in want)

    stats = backend.get_stats()
    assert stats.backup_pgs == stats.prefetch_pgs == [128, USED - 128]
    assert backend.get_stats().prefetch_pgs == []
    backend.clear()
    assert controller._storage_hit_query(loads)[1] == 0
    backend.close()
    print(f"{layout}: good")


def main() -> None:
    args = ServerArgs(model_path="org/model", kv_cache_dtype="fp8_e5m2")
    runtime_context._CONTEXT._server_args = args
    assert _server_args()["kv_cache_dtype"] == "fp8_e5m2"
    assert set(_server_args()) == set(_SERVER)
    assert all(hasattr(args, name) for name in _SERVER)
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    given = parser.parse_args(command_of_the_manual())
    assert given.hicache_storage_backend == "dynamic"
    cache_controller.get_storage_hash_str = chain
    for layout in LAYOUTS:
        with host_memory_budget_scope(1 << 30):  # else SGLang wants 10 GB to be free
            there_and_back(layout, sys.argv[1])


main()
