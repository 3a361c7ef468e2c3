# SPDX-License-Identifier: Apache-2.0
"""The SGLang adapter without SGLang: layouts, threads, chains, names, ranks, what goes wrong."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conformance import wait_until
from sglang_pool import (
    LAYOUTS,
    ExtraInfo,
    HostPool,
    StorageConfig,
    command_of_the_manual,
    extra_config,
)

from chm.connectors import Tier, TierOptions, key_of
from chm.connectors.sglang import ChmHiCache, namespace_of, options_of, rank_of

Open = Callable[..., ChmHiCache]


def keys(first: int, n: int) -> list[str]:
    return [f"{number:064x}" for number in range(first, first + n)]


@pytest.fixture
def open_backend(options: TierOptions) -> Iterator[Open]:
    made: list[ChmHiCache] = []

    def make(pool: Any, config: dict[str, Any] | None = None, **changes: Any) -> ChmHiCache:
        extra = extra_config(options.replace(**changes))
        made.append(ChmHiCache(StorageConfig(extra_config=extra, **(config or {})), {}))
        made[-1].register_mem_pool_host(pool)
        return made[-1]

    yield make
    for one in made:
        one.close()


def tier_of(backend: ChmHiCache) -> Tier:
    assert backend.tier is not None
    return backend.tier


def stored(backend: ChmHiCache, pool: HostPool, pages: list[int]) -> list[Any]:
    """Fill pages and store them under keys 0, 1, ...; their bytes."""
    for page in pages:
        pool.fill(page, seed=page)
    assert backend.batch_set_v1(keys(0, len(pages)), pool.slots(pages)) == [True] * len(pages)
    return [pool.page(page).copy() for page in pages]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_page_comes_back_wherever_it_is_put(open_backend: Open, layout: str) -> None:
    pool = HostPool(layout, pages=80)
    backend = open_backend(pool)
    there = [5, 0, 7, *range(10, 50)]  # more than 32, in no order
    want = stored(backend, pool, there)
    pool.buffer[:] = 0
    back = [70, 3, 79, *range(20, 60)]
    assert backend.batch_exists(keys(0, 44)) == 43
    assert backend.batch_get_v1(keys(0, 43), pool.slots(back)) == [True] * 43
    for page, data in zip(back, want, strict=True):
        assert np.array_equal(pool.page(page), data)
        pool.page(page)[:] = 0
    assert not pool.buffer.any(), "something else was written"


def test_only_the_leading_hits_count(open_backend: Open) -> None:
    pool = HostPool("page_first")
    backend = open_backend(pool)
    assert backend.batch_exists([]) == 0
    assert backend.batch_get_v1([], pool.slots([0])[:0]) == []
    stored(backend, pool, [0, 1, 2])
    assert backend.batch_exists([*keys(0, 2), *keys(9, 1), *keys(2, 1)]) == 2
    assert backend.batch_get_v1([*keys(0, 1), *keys(9, 1)], pool.slots([4, 5])) == [True, False]
    assert backend.exists(keys(2, 1)[0])
    assert not backend.exists(keys(3, 1)[0])


def test_a_look_up_begins_to_read_what_sglang_will_fetch(open_backend: Open) -> None:
    pool = HostPool("page_first")
    backend = open_backend(pool)
    stored(backend, pool, list(range(8)))
    backend.batch_exists(keys(0, 3))  # 192 tokens: below the threshold
    assert tier_of(backend).stats().hints == 0
    backend.batch_exists(keys(0, 9))
    assert tier_of(backend).stats().hints == 1
    assert backend.batch_get_v1(keys(0, 8), pool.slots(list(range(8)))) == [True] * 8
    assert tier_of(backend).stats().hints_used == 1


def test_chains_follow_the_keys_before(open_backend: Open) -> None:
    pool = HostPool("page_first")
    backend = open_backend(pool)
    stored(backend, pool, [0, 1, 2])
    for before in (ExtraInfo(keys(0, 3)), ExtraInfo(None), ExtraInfo([]), ExtraInfo(keys(90, 1))):
        assert backend.batch_set_v1(keys(3, 1), pool.slots([3]), before) == [True]
    assert backend.batch_set_v1(keys(4, 1), pool.slots([4]), ExtraInfo(None)) == [True]
    parents = {o.key: o.parent for o in tier_of(backend).store.list()}
    named = [key_of(key.encode()) for key in keys(0, 5)]
    assert [parents[key] for key in named] == [None, *named[:3], None]


def test_threads_each_get_the_end_of_their_own_call(open_backend: Open) -> None:
    """As in SGLang: one thread looks up, one loads, one stores; and two more load."""
    pool = HostPool("page_first_direct", pages=40, page_size=32)
    backend = open_backend(pool)
    want = stored(backend, pool, list(range(8)))
    wrong: list[str] = []

    def load(first: int) -> None:
        pages = list(range(first, first + 8))
        some, slots = [*keys(0, 8), *keys(800, 1)], pool.slots([*pages, 39])
        for _ in range(20):
            if backend.batch_get_v1(some, slots) != [True] * 8 + [False]:
                wrong.append("load")
        if any((pool.page(p) != data).any() for p, data in zip(pages, want, strict=True)):
            wrong.append("bytes")

    def store() -> None:
        for i in range(20):
            if backend.batch_set_v1(keys(100 + 4 * i, 4), pool.slots([0, 1, 2, 3])) != [True] * 4:
                wrong.append("store")

    def look() -> None:
        for _ in range(50):
            if backend.batch_exists([*keys(0, 8), *keys(900, 1)]) != 8:
                wrong.append("look-up")

    calls = [store, look, lambda: load(8), lambda: load(16), lambda: load(24)]
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not tier_of(backend).busy


def test_closing_ends_calls_that_wait(open_backend: Open) -> None:
    """A drive that never answers: the call gives up with its deadline, and closing waits for it."""
    pool = HostPool("page_first")
    backend = open_backend(pool)
    stored(backend, pool, [0])
    backend.close()
    backend = open_backend(pool)
    reads = tier_of(backend).store.device.stats().read_ios
    backend.close()
    fault = {"fault": {"script": f"{reads}- read never"}}
    backend = open_backend(pool, deadline_s=0.5, device=fault)
    tier = tier_of(backend)
    ends: list[list[bool]] = []
    thread = threading.Thread(
        target=lambda: ends.append(backend.batch_get_v1(keys(0, 1), pool.slots([5])))
    )
    thread.start()
    wait_until("the call", lambda: tier.busy)
    backend.close()
    thread.join()
    assert ends == [[False]]
    assert not pool.page(5).any()
    assert backend.batch_exists(keys(0, 1)) == 0
    assert backend.batch_get_v1(keys(0, 1), pool.slots([5])) == [False]
    assert backend.batch_set_v1(keys(0, 1), pool.slots([5])) == [False]
    assert backend.mem_pool_host is None
    backend.close()


def test_clear_forgets_what_is_stored(open_backend: Open) -> None:
    pool = HostPool("page_first")
    backend = open_backend(pool)
    other = open_backend(pool, {"model_name": "other"})
    stored(backend, pool, list(range(8)))
    stored(other, pool, [0])
    assert backend.batch_exists(keys(0, 8)) == 8  # and a hint
    backend.clear()
    assert backend.batch_exists(keys(0, 8)) == 0
    assert other.batch_exists(keys(0, 1)) == 1
    stored(backend, pool, [0])


def test_the_pool_has_to_say_where_each_page_lies(open_backend: Open) -> None:
    pool = HostPool("page_first")
    backend = open_backend(pool)
    with pytest.raises(ValueError, match="2 pages, but 1 addresses"):
        backend._pages(2, None, _PoolOf([4096]))


class _PoolOf:
    def __init__(self, addresses: list[int]) -> None:
        self.addresses = addresses

    def get_page_buffer_meta(self, _: Any) -> tuple[list[int], list[int]]:
        return self.addresses, [64] * len(self.addresses)


def config_of(path: Any, **fields: Any) -> StorageConfig:
    extra = {"path": path, "class_name": "ChmHiCache", "prefetch_threshold": 1, "interface_v1": 1}
    return StorageConfig(extra_config={**extra, **fields.pop("extra", {})}, **fields)


def test_each_rank_has_a_device() -> None:
    ranks = {"tp_rank": 1, "tp_size": 2, "pp_rank": 0, "pp_size": 2}
    assert options_of(config_of("kv-{rank}", **ranks)).path == ("kv-tp1-pp0",)
    assert options_of(config_of(["a-{rank}", "b-{rank}"], dp_rank=3)).path == (
        "a-tp0-dp3",
        "b-tp0-dp3",
    )
    assert options_of(config_of("kv-{rank}")).path == ("kv-tp0",)
    assert options_of(config_of("kv")).path == ("kv",)
    assert rank_of(config_of("kv", attn_cp_rank=1, attn_cp_size=2)) == "tp0-cp1"
    every = r"write \{rank\} into every path, as in 'kv-\{rank\}'"
    for shared in (ranks, {"dp_rank": 1}, {"attn_cp_size": 2}, {"pp_size": 2}):
        with pytest.raises(ValueError, match=every):
            options_of(config_of("kv", **shared))
    with pytest.raises(ValueError, match=r"write \{rank\} into every path"):
        options_of(config_of(["kv-{rank}", "other"], **ranks))


def test_what_could_never_have_a_hit_is_refused(open_backend: Open) -> None:
    options_of(config_of("kv-{rank}", is_mla_model=True, dp_rank=2))
    with pytest.raises(ValueError, match="would never have a hit; use data-parallel attention"):
        options_of(config_of("kv-{rank}", is_mla_model=True, tp_size=2))
    backend = open_backend(HostPool("page_first"))
    backend.register_mem_host_pool_v2(None, "kv")
    with pytest.raises(ValueError, match="pool mamba"):
        backend.register_mem_host_pool_v2(None, "mamba")


def test_options_of_the_host_are_left_out_and_others_checked() -> None:
    with pytest.raises(ValueError, match="did you mean 'capacity'"):
        options_of(config_of("kv", extra={"capacty": 1}))
    with pytest.raises(ValueError, match="name the file"):
        options_of(StorageConfig(extra_config={"interface_v1": 1}))
    options = options_of(
        config_of("kv", extra={"dram": "64MiB", "hicache_storage_pass_prefix_keys": True})
    )
    assert options == TierOptions(path="kv", dram="64MiB")


def test_the_command_of_the_manual() -> None:
    extra = json.loads(command_of_the_manual()[-1])
    assert extra["interface_v1"] == 1
    assert extra["hicache_storage_pass_prefix_keys"] is True
    options = options_of(StorageConfig(tp_size=2, tp_rank=1, extra_config=extra))
    assert options.path == ("/mnt/nvme/kv-tp1",)
    assert options.deadline_s == extra["prefetch_timeout_base"]
    module = importlib.import_module(extra["module_path"])
    assert getattr(module, extra["class_name"]) is ChmHiCache


def test_what_the_server_was_started_with_is_part_of_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool of 8-bit floats says uint8, of whichever kind they are."""

    def name(**args: Any) -> str:
        module = SimpleNamespace(get_server_args=lambda: SimpleNamespace(**args))
        monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", module)
        config = config_of("kv")
        return namespace_of(config, HostPool("page_first", dtype="uint8"), options_of(config))

    names = {
        name(kv_cache_dtype="fp8_e5m2"),
        name(kv_cache_dtype="fp8_e4m3"),
        name(kv_cache_dtype="fp8_e4m3", quantization_param_path="scales.json"),
        name(kv_cache_dtype="fp8_e4m3", model_path="org/model"),
        name(kv_cache_dtype="fp8_e4m3", model_path="org/model", revision="2"),
    }
    assert len(names) == 5


def test_names_differ_by_all_that_makes_bytes_differ(tmp_path: Path) -> None:
    def name(pool: HostPool | None = None, extra: Any = None, **fields: Any) -> str:
        config = config_of(str(tmp_path / "{rank}"), extra=extra or {}, **fields)
        return namespace_of(config, pool or HostPool("page_first"), options_of(config))

    wide = HostPool("page_first")
    wide.head_num, wide.head_dim = wide.head_dim, wide.head_num
    names = [
        name(),
        name(HostPool("layer_first")),
        name(HostPool("page_first_direct")),
        name(HostPool("page_first", page_size=32)),
        name(HostPool("page_first", dtype="int16")),
        name(wide),
        name(extra={"salt": "s"}),
        name(extra={"identity": "weights of May"}),
        name(extra={"interface_v1": 0}),
        name(model_name="other"),
        name(model_name=None),
        name(tp_size=2),
        name(tp_size=2, tp_rank=1),
        name(pp_size=2),
        name(pp_size=2, pp_rank=1),
        name(attn_cp_size=2),
        name(attn_cp_size=2, attn_cp_rank=1),
        name(is_mla_model=True),
    ]
    assert len(set(names)) == len(names)
    assert name() == name(dp_rank=1)  # replicas: their pages are the same
