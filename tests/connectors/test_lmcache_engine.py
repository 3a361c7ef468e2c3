# SPDX-License-Identifier: Apache-2.0
"""LMCache's own programs, and vLLM with its server, on the adapter; see lmcache_host.py."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import Identity, fresh_rows
from lmcache_host import FORMS, Replica, Server, adapter, counters, run

from bench.serving.model import VOCABULARY, write_model
from chm.connectors import TierOptions

pytestmark = pytest.mark.engine

ROW = 64 << 10
CHUNK = 128
PROMPT = 1000
WHOLE = PROMPT // CHUNK  # chunks of a prompt that are stored
WAIT_S = 120.0


@pytest.fixture(params=list(FORMS))
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("lmcache") / "model")


def tokens(seed: int) -> list[int]:
    numbers = np.random.default_rng(seed).integers(3, VOCABULARY, PROMPT)
    return [int(number) for number in numbers]


# ------------------------------------------------------------------- LMCache's own programs


def test_basic_check(form: str, tmp_path: Path) -> None:
    spec = json.dumps(adapter(form, tmp_path / "kv"))
    done = run(["lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--l2-adapter", spec])
    assert done.returncode == 0, done.stderr[-3000:]
    for line in ("5/5 correctly absent", "Batch store OK", "5/5 found", "(loaded): 5/5"):
        assert line in done.stdout
    assert "(content): 5/5" in done.stdout


def bench(spec: dict[str, Any], *more: str) -> str:
    command = ["lmcache.cli.main", "bench", "l2", "--l2-adapter", json.dumps(spec)]
    command += ["--data-size-kb", "256", "--num-keys", "40", "--in-flight", "3", "--rounds", "2"]
    done = run([*command, *more])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_bench_l2_verifies(form: str, tmp_path: Path) -> None:
    out = bench(adapter(form, tmp_path / "kv"), "--no-skip-verify", "--lookup-max-hit-rate", "0.5")
    assert "All 120 keys data verified OK" in out
    assert out.count("success_keys=120/120") == 3
    assert out.count("found=60/120") == 3
    assert out.count("loaded=120/120") == 3


def test_bench_l2_under_injected_faults(form: str, tmp_path: Path) -> None:
    """Loads that LMCache drops: the rest arrives, and the same keys can be asked for again."""
    inner = adapter(form, tmp_path / "kv")
    out = bench({"type": "fault_inject", "rate": 0.3, "seed": 4, "inner": inner})
    assert out.count("success_keys=120/120") == 3
    loaded = [int(n) for n in re.findall(r"loaded=(\d+)/120", out)]
    assert len(loaded) == 3
    assert all(60 < n < 110 for n in loaded)
    out = bench(inner, "--only", "load")
    assert out.count("loaded=120/120") == 3


# ------------------------------------------------------------------- the plug-in form alone


def test_plugin_locks_usage_and_status(options: TierOptions) -> None:
    from drive_lmcache_plugin import open_lmcache_plugin

    driver = open_lmcache_plugin(options, Identity(), ROW)
    adapter, keys = driver.adapter, driver.keys(range(4))
    rows = fresh_rows(4, ROW)
    driver.store(range(4), rows)
    while not driver.told():
        time.sleep(0.001)
    assert driver.lookup(range(4)) == [True] * 4
    adapter.submit_unlock(keys[:3])
    assert driver.tier.stats().hints_cancelled == 0
    adapter.submit_unlock(keys[3:])
    assert driver.tier.stats().hints_cancelled == 1

    usage = adapter.get_usage()
    assert usage.total_bytes_used >= 4 * ROW
    assert usage.bytes_by_cache_salt == {"": 4 * ROW}
    assert not adapter.supports_global_eviction

    assert driver.lookup([0]) == [True]
    adapter.delete(keys[:2])  # the first is locked
    assert driver.lookup(range(4)) == [True, False, True, True]
    assert adapter.get_usage().bytes_by_cache_salt == {"": 3 * ROW}
    status = adapter.report_status()
    assert status["is_healthy"]
    assert (status["put_ok"], status["deleted"]) == (4, 1)
    driver.close()
    assert not adapter.report_status()["is_healthy"]


# ------------------------------------------------------------------- vLLM and the server


class Site:
    """One cache file, servers on it one after the other, replicas on a port that stays."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder, self.path = model, folder, folder / "kv"
        self.open: list[Any] = []

    def server(self, spec: dict[str, Any], port: int = 0) -> Server:
        server = Server(spec, self.folder / f"server{len(self.open)}.log", CHUNK, port)
        self.open.append(server)
        return server

    def replicas(self, n: int, port: int) -> list[Replica]:
        made = []
        for _ in range(n):
            made.append(Replica(self.model, port, self.folder / f"replica{len(self.open)}.log"))
            self.open.append(made[-1])
        return [replica.ready() for replica in made]

    def wait_for(self, objects: int) -> None:
        """Until so many chunks are in the store and would outlive a crash."""
        end = time.monotonic() + WAIT_S
        while (now := counters(self.path))["objects"] < objects or now["not_durable"]:
            assert time.monotonic() < end, f"{now['objects']} chunks of {objects}"
            time.sleep(0.2)


@pytest.fixture
def site(model: Path, tmp_path: Path) -> Iterator[Site]:
    made = Site(model, tmp_path)
    yield made
    for one in reversed(made.open):
        one.end()


def test_two_replicas_share_the_cache(form: str, site: Site) -> None:
    """What one computed the other gets, all from L2; and a third, after the server was killed and
    another begun in the other form, which drops a chunk of each load. Tokens are always those of
    the replica that computed them."""
    server = site.server(adapter(form, site.path))
    one, two = site.replicas(2, server.port)
    first, second = tokens(1), tokens(2)
    computed = [one.ask(first), two.ask(second)]
    assert [answer["cached"] for answer in computed] == [0, 0]
    site.wait_for(2 * WHOLE)
    got = [two.ask(first), one.ask(second)]
    assert [answer["cached"] for answer in got] == [WHOLE * CHUNK] * 2
    assert [answer["tokens"] for answer in got] == [answer["tokens"] for answer in computed]
    assert server.served()[-2:] == [f"{WHOLE}/{WHOLE} retained keys (0 L1, {WHOLE} L2)"] * 2
    one.end()
    two.end()
    server.end(kill=True)

    [other] = set(FORMS) - {form}
    inner = adapter(other, site.path)
    server = site.server({"type": "fault_inject", "gap_indices": [4], "inner": inner})
    [three] = site.replicas(1, server.port)
    again = three.ask(first)
    assert again["cached"] in (0, 4 * CHUNK)
    assert again["tokens"] == computed[0]["tokens"]
