# SPDX-License-Identifier: Apache-2.0
"""The SGLang adapter under SGLang: its abstract class, its loader, its fault injector; and, where
the overlay of tools/engines is installed, its host pool and the controller that calls a backend.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglang_pool import LAYOUTS, HostPool, created_by_sglang, extra_config

from chm.connectors import TierOptions

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
OVERLAY = Path(sys.prefix) / "sglang-host"


def keys(first: int, n: int) -> list[str]:
    return [f"{number:064x}" for number in range(first, first + n)]


@pytest.fixture
def load(options: TierOptions) -> Iterator[Any]:
    """Makes backends as SGLang does."""
    made: list[Any] = []

    def make(pool: Any, extra: dict[str, Any] | None = None) -> Any:
        backend = created_by_sglang(pool, {**extra_config(options), **(extra or {})})
        made.append(backend)
        backend.register_mem_pool_host(pool)
        backend.register_mem_host_pool_v2(pool, "kv")
        backend.on_host_pools_registered()
        return backend

    yield make
    for one in made:
        one.close()


def slots(pool: HostPool, pages: list[int]) -> Any:
    import torch

    return torch.from_numpy(pool.slots(pages))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_loader_of_sglang_takes_it(load: Any, layout: str) -> None:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageExtraInfo

    pool = HostPool(layout)
    backend = load(pool)
    assert isinstance(backend, HiCacheStorage)
    for page in range(8):
        pool.fill(page, page)
    want = pool.buffer.copy()
    before = HiCacheStorageExtraInfo(prefix_keys=[])
    assert backend.batch_set_v1(keys(0, 8), slots(pool, list(range(8))), before) == [True] * 8
    pool.buffer[:] = 0
    assert backend.batch_exists(keys(0, 9), before) == 8
    assert backend.batch_get_v1(keys(0, 8), slots(pool, list(range(8))), before) == [True] * 8
    assert np.array_equal(pool.buffer, want)
    assert backend.get_stats() is None


def test_the_old_interface_moves_tensors(load: Any) -> None:
    import torch

    backend = load(HostPool("page_first"), {"interface_v1": 0})
    pages = [torch.randn(64, 3, 128).to(torch.bfloat16) for _ in range(40)]
    assert backend.batch_set(keys(0, 40), pages)
    assert backend.set(keys(40, 1)[0], pages[0].transpose(0, 1))
    assert backend.exists(keys(40, 1)[0])
    targets = [torch.zeros_like(page) for page in pages]
    found = backend.batch_get([*keys(0, 39), *keys(99, 1)], targets)
    assert found[39] is None
    assert all(torch.equal(a, b) for a, b in zip(found[:39], pages, strict=False))
    assert backend.get(keys(99, 1)[0], targets[0]) is None
    with pytest.raises(ValueError, match="not contiguous"):
        backend.get(keys(0, 1)[0], torch.zeros(3, 64, 128).to(torch.bfloat16).transpose(0, 1))


def test_faults_that_sglang_injects_lose_nothing(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", "0.4")
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.002")
    pool = HostPool("layer_first")
    backend = load(pool)
    assert type(backend).__name__ == "HiCacheStorageFailureInjector"
    for page in range(16):
        pool.fill(page, page)
    want = pool.buffer.copy()
    every = list(range(16))
    tries = range(200)
    assert any(all(backend.batch_set_v1(keys(0, 16), slots(pool, every))) for _ in tries)
    seen = {backend.batch_exists(keys(0, 17)) for _ in range(40)}
    assert seen == {0, 16}
    for _ in range(20):
        pool.buffer[:] = 0
        if all(backend.batch_get_v1(keys(0, 16), slots(pool, every))):
            assert np.array_equal(pool.buffer, want)
        else:
            assert not pool.buffer.any()


def test_with_the_host_pool_and_the_controller_of_sglang(tmp_path: Path) -> None:
    """In a process of its own: what it imports would change what other engines import."""
    if not OVERLAY.is_dir():
        pytest.skip(f"{OVERLAY} is not there: tools/engines makes it")
    path = os.pathsep.join([str(OVERLAY), str(HERE), str(HERE.parents[1])])
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "sglang_host.py"), str(tmp_path / "kv")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-3:] == [f"{layout}: good" for layout in LAYOUTS]
