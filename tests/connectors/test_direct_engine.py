# SPDX-License-Identifier: Apache-2.0
"""vLLM itself on the direct connector: what it generates from KV that came from the drive.

The checks are those of test_vllm_engine.py: tokens equal to a recompute in float32, and the bits of
a hit in the engine's own pool of as many tokens. Each way of loading is a parameter.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_vllm_engine import CHUNKS, HANG_S, LENGTH, ROOT, SERVED, bounded, model, prompt

from bench.serving import engine
from chm.connectors import Tier, TierOptions
from chm.connectors.direct.mover import MoverStats

UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"  # the CPU's default has two processes

__all__ = ["bounded", "model"]  # fixtures
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

CHUNK = engine.CHUNK
PER_CHUNK = CHUNK // engine.BLOCK


def connector(path: Path, **more: Any) -> dict[str, Any]:
    options = {"path": str(path), "capacity": "1GiB", "block_size": CHUNK, **more}
    return {
        "kv_connector": "ChmConnector",
        "kv_connector_module_path": "chm.connectors.vllm_direct",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": options,
    }


class Running:
    """An engine in this process, with its connector."""

    def __init__(self, model: Path, transfer: dict[str, Any]) -> None:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        self.llm = engine.make_llm(model, transfer)
        self.core = self.llm.llm_engine.engine_core
        self.worker = get_kv_transfer_group()
        self.scheduler = self.core.engine_core.scheduler.connector

    @property
    def mover(self) -> Any:
        return self.worker._engine.mover

    def ask(self, tokens: list[int]) -> engine.Answer:
        return engine.ask(self.llm, tokens)

    def ask_store(self, tokens: list[int]) -> engine.Answer:
        """With nothing in the engine's pool, when all saves have ended."""
        assert self.mover.tier.wait(60.0)
        assert self.llm.reset_prefix_cache()
        return self.ask(tokens)

    def same_split(self, tokens: list[int]) -> engine.Answer:
        """What it says when its own pool has what the store will have; once per prompt."""
        assert self.llm.reset_prefix_cache()
        assert self.ask(tokens[:SERVED]).cached == 0
        found = self.ask(tokens)
        assert found.cached == SERVED
        return found

    def reopen(self, **changes: Any) -> None:
        """The store closed, and opened with other options."""
        mover = self.mover
        assert mover.tier.wait(60.0)
        mover.turn()
        old = mover.tier
        old.close(60.0)  # what comes late is waited for
        self.use(Tier(old.options.replace(**changes), old.namespace))

    def use(self, tier: Tier) -> None:
        """All parts of the connector take this one from now on."""
        for part in (self.mover, self.mover.saver, self.scheduler._planner):
            part.tier = tier

    def since(self, before: MoverStats) -> dict[str, int]:
        """What the counters have gained."""
        now = self.mover.stats().to_dict()
        return {name: n - getattr(before, name) for name, n in now.items()}


@pytest.fixture(scope="module", params=["layerwise", "async"])
def running(
    model: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("direct") / "kv"
    made = Running(model, connector(path, load=request.param))
    assert made.worker.layerwise == (request.param == "layerwise")
    yield made
    made.core.shutdown()


@pytest.fixture
def healthy(running: Running) -> Iterator[Running]:
    """As it was at first, also for the test that comes after one that broke it."""
    options = running.mover.tier.options
    yield running
    if running.mover.tier.options != options:
        running.reopen(device=options.device, deadline_s=options.deadline_s)


# -- hits ------------------------------------------------------------------------------------------


def test_a_hit_gives_the_tokens_of_a_recompute(running: Running) -> None:
    tokens = prompt(101)
    whole = running.ask(tokens)
    assert whole.cached == 0
    before = running.mover.stats()
    hit = running.ask_store(tokens)
    assert hit.cached == SERVED
    assert hit.tokens == whole.tokens
    assert len(set(hit.tokens)) > 8
    gained = running.since(before)
    assert (gained["loads"], gained["chunks_loaded"], gained["chunks_failed"]) == (1, CHUNKS, 0)
    assert bool(gained["layer_waits"]) == running.worker.layerwise
    assert running.mover.tier.stats().hints_used > 0


@pytest.mark.parametrize("staged", [False, True])
def test_a_hit_gives_the_bits_of_one_in_the_engines_pool(
    running: Running, monkeypatch: pytest.MonkeyPatch, staged: bool
) -> None:
    """Also through staging memory, as a device would be loaded."""
    tokens = prompt(111 + staged)
    reference = running.same_split(tokens)
    monkeypatch.setattr(running.mover, "_direct", not staged)
    hit = running.ask_store(tokens)
    assert hit.cached == SERVED
    assert (hit.tokens, hit.logprobs) == (reference.tokens, reference.logprobs)


def test_what_the_pool_has_in_part_is_loaded_in_part(running: Running) -> None:
    """The pool has a chunk and three quarters; that chunk's last block comes from the store."""
    tokens = prompt(113)
    whole = running.ask(tokens)
    assert running.mover.tier.wait(60.0)
    assert running.llm.reset_prefix_cache()
    part = 2 * CHUNK - engine.BLOCK
    writes, running.scheduler._planner.writes = running.scheduler._planner.writes, False
    reads, running.scheduler._planner.reads = running.scheduler._planner.reads, False
    running.ask(tokens[: part + 1])
    running.scheduler._planner.writes, running.scheduler._planner.reads = writes, reads
    before = running.mover.stats()
    hit = running.ask(tokens)
    assert (hit.cached, hit.tokens) == (SERVED, whole.tokens)
    assert running.since(before)["chunks_loaded"] == CHUNKS - 1


def test_what_was_generated_is_kept_too(running: Running) -> None:
    """The next turn of a conversation finds the chunk that the answer of the last one filled."""
    tokens = prompt(114)[: SERVED - 8]
    first = running.ask(tokens)
    turn = tokens + list(first.tokens) + prompt(115)[:40]
    hit = running.ask_store(turn)
    assert hit.cached == SERVED
    writes, running.scheduler._planner.reads = running.scheduler._planner.reads, False
    assert running.llm.reset_prefix_cache()
    again = running.ask(turn)
    running.scheduler._planner.reads = writes
    assert (again.cached, again.tokens) == (0, hit.tokens)


# -- negative controls -----------------------------------------------------------------------------


def zero_a_page(blocks: list[Any], alien: list[Any]) -> None:
    blocks[len(blocks) // 2].reshape(-1)[2048:3072] = 0


def swap_two_chunks(blocks: list[Any], alien: list[Any]) -> None:
    for one in range(2 * PER_CHUNK, 3 * PER_CHUNK):
        other = one + 2 * PER_CHUNK
        kept = blocks[one].copy()
        blocks[one][:] = blocks[other]
        blocks[other][:] = kept


def another_prompts_chunk(blocks: list[Any], alien: list[Any]) -> None:
    for i in range(3 * PER_CHUNK, 4 * PER_CHUNK):
        blocks[i][:] = alien[i]


DAMAGES = [zero_a_page, swap_two_chunks, another_prompts_chunk]


def damaging(running: Running, damage: Callable[..., None], alien: list[Any]) -> Callable[..., Any]:
    """``Mover._end`` that first does something to one layer of what was loaded."""
    mover, real = running.mover, running.mover._end
    [plane] = mover.layers[mover.layout.groups[3][0]].planes

    def end(reading: Any) -> None:
        ids = [block for row in reading.load.blocks for block in row]
        damage([plane[block] for block in ids], alien)
        real(reading)

    return end


@pytest.fixture(scope="module")
def alien(running: Running) -> list[Any]:
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        tokens = prompt(120)
        running.ask(tokens)
        keep = damaging(running, lambda blocks, _: seen.extend(b.copy() for b in blocks), [])
        patch.setattr(running.mover, "_end", keep)
        assert running.ask_store(tokens).cached == SERVED
    assert len(seen) == CHUNKS * PER_CHUNK
    return seen


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_byte_is_seen(
    running: Running, damage: Callable[..., None], alien: list[Any], monkeypatch: Any
) -> None:
    """Else the tests of bits say nothing. In one layer of eight."""
    tokens = prompt(121 + DAMAGES.index(damage))
    reference = running.same_split(tokens)
    # Damage comes when the load has ended; layerwise that must be before a layer looks at it.
    monkeypatch.setattr(running.mover, "wait_layer", lambda name: running.mover.wait_loads())
    with monkeypatch.context() as patch:
        patch.setattr(running.mover, "_end", damaging(running, damage, alien))
        broken = running.ask_store(tokens)
    assert broken.cached == SERVED
    assert broken.logprobs != reference.logprobs
    assert running.ask_store(tokens) == reference


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "deadline_s"), [("err 5", 10.0), ("late 2000000000", 0.5)])
def test_what_cannot_be_read_is_computed(healthy: Running, fault: str, deadline_s: float) -> None:
    """The drive reports errors, or is too late: tried once, then computed, and stored anew."""
    tokens = prompt(131 if deadline_s > 1 else 132)
    whole = healthy.ask(tokens)
    healthy.reopen()
    reads = healthy.mover.tier.store.device.stats().read_ios
    healthy.reopen(device={"fault": {"script": f"{reads}- read {fault}"}}, deadline_s=deadline_s)
    before = healthy.mover.stats()
    again = healthy.ask_store(tokens)
    assert again.tokens == whole.tokens
    gained = healthy.since(before)
    assert (gained["loads"], gained["chunks_loaded"], gained["chunks_failed"]) == (1, 0, CHUNKS)


def test_a_failed_load_leaves_nothing_in_the_engines_pool(healthy: Running) -> None:
    """The request that loaded is given up in the very step in which the load fails, so it never
    computes what it lacks; who comes next must not find it."""
    tokens = prompt(133)
    whole = healthy.ask(tokens)
    healthy.reopen()
    reads = healthy.mover.tier.store.device.stats().read_ios
    healthy.reopen(device={"fault": {"script": f"{reads}- read err 5"}})
    assert healthy.llm.reset_prefix_cache()
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=4, detokenize=False)
    engine_ = healthy.llm.llm_engine
    engine_.add_request("given up", {"prompt_token_ids": tokens}, sampling)
    failed = healthy.mover.stats().chunks_failed
    while healthy.mover.stats().chunks_failed == failed:
        engine_.step()
    engine_.abort_request(["given up"])
    while engine_.has_unfinished_requests():
        engine_.step()
    again = healthy.ask(tokens)
    assert (again.cached, again.tokens) == (0, whole.tokens)


def test_a_damaged_file_costs_what_is_behind(healthy: Running) -> None:
    tokens = prompt(141)
    whole = healthy.ask(tokens)
    tier = healthy.mover.tier
    assert tier.wait(60.0)
    healthy.mover.turn()
    third = third_chunk(healthy, tokens)
    tier.close()
    with open(tier.options.path[0], "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(third[4096:8192].tobytes())
        assert at >= 0
        memory[at + 7] ^= 1
    healthy.use(Tier(tier.options, tier.namespace))
    before = healthy.mover.stats()
    again = healthy.ask_store(tokens)
    assert again.tokens == whole.tokens
    gained = healthy.since(before)
    assert (gained["chunks_loaded"], gained["chunks_failed"]) == (CHUNKS - 1, 1)
    assert healthy.ask_store(tokens).cached == SERVED  # computed and stored anew


def third_chunk(running: Running, tokens: list[int]) -> Any:
    """The object of a layer in the middle, as it is in the store."""
    tier, layout = running.mover.tier, running.mover.layout
    seen: list[list[bytes]] = []
    real = layout.read_order
    with pytest.MonkeyPatch.context() as patch:
        spy = lambda chunks, most: seen.append(list(chunks)) or real(chunks, most)  # noqa: E731
        patch.setattr(type(layout), "read_order", lambda self, chunks, most: spy(chunks, most))
        running.ask_store(tokens)
    return np.asarray(tier.store.read(tier._ns, layout.key(seen[0][3], 5)))


# -- lives -----------------------------------------------------------------------------------------


def live(
    out: Path,
    model: Path,
    transfer: dict[str, Any] | None,
    prompts: list[list[int]],
    own_process: bool,
) -> list[engine.Answer]:
    """Start an engine, ask it, and let it end."""
    job = {"model": str(model), "transfer": transfer, "own_process": own_process}
    job |= {"prompts": prompts, "again": transfer is not None, "out": str(out)}
    if transfer is not None:
        job["settings"] = {"distributed_executor_backend": UNIPROC}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("engine_child.py")), json.dumps(job)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = json.loads(out.read_text())["answers"]
    return [engine.Answer(tuple(t), tuple(p), cached) for t, p, cached in answers]


def test_engines_that_start_anew_find_what_others_stored(model: Path, tmp_path: Path) -> None:
    """One without a connector; one with the engine in its own process; and a later one."""
    prompts = [prompt(151)]
    [plain] = live(tmp_path / "out", model, None, prompts, False)
    transfer = connector(tmp_path / "kv")
    first, hit = live(tmp_path / "out", model, transfer, prompts, True)
    assert (first.cached, hit.cached) == (0, SERVED)
    assert first.tokens == hit.tokens == plain.tokens
    later = live(tmp_path / "out", model, transfer, prompts, False)
    assert [dataclasses.astuple(a) for a in later] == [dataclasses.astuple(hit)] * 2


# -- what it refuses -------------------------------------------------------------------------------


def test_what_it_cannot_do_is_refused_with_the_way_out(running: Running) -> None:
    import copy

    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    from chm.connectors.vllm_direct import ChmConnector

    def made(change: Callable[[Any], None], cache: Any = None) -> Any:
        config = copy.deepcopy(running.worker._config)
        change(config)
        return ChmConnector(config, KVConnectorRole.SCHEDULER, cache or running.worker._cache)

    def set_(part: str, name: str, value: Any) -> Callable[[Any], None]:
        return lambda config: setattr(getattr(config, part), name, value)

    with pytest.raises(ValueError, match=r"one worker .* not 2 .*, use the tier"):
        made(set_("parallel_config", "world_size", 2))
    with pytest.raises(ValueError, match=r"under 'mp': with one, give .*UniProcExecutor"):
        made(set_("parallel_config", "distributed_executor_backend", "mp"))
    cache = copy.deepcopy(running.worker._cache)
    cache.kv_cache_groups *= 2
    with pytest.raises(ValueError, match=r"one group .*--disable-hybrid-kv-cache-manager"):
        made(lambda config: None, cache)
    alone = made(set_("kv_transfer_config", "engine_id", "another"))
    with pytest.raises(RuntimeError, match=r"not in its process; use the tier"):
        alone.get_num_new_matched_tokens(None, 0)
    with pytest.raises(ValueError, match="did you mean 'capacity'"):
        made(lambda c: c.kv_transfer_config.kv_connector_extra_config.update(capacty=1))


def test_ways_to_load(running: Running) -> None:
    import copy

    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    from chm.connectors.vllm_direct import ChmConnector

    def layerwise(load: str, ahead: bool, device: str) -> bool:
        config = copy.deepcopy(running.worker._config)
        config.kv_transfer_config.kv_connector_extra_config["load"] = load
        config.scheduler_config.async_scheduling = ahead
        config.device_config.device_type = device
        made = ChmConnector(config, KVConnectorRole.WORKER, running.worker._cache)
        return bool(made.layerwise)

    assert layerwise("auto", False, "cpu")
    assert not layerwise("auto", True, "cpu")
    assert not layerwise("auto", False, "cuda")
    assert layerwise("layerwise", False, "cuda")
    assert not layerwise("async", False, "cpu")
    with pytest.raises(ValueError, match="no-async-scheduling"):
        layerwise("layerwise", True, "cpu")
    assert ChmConnector.requires_piecewise_for_cudagraph({"load": "layerwise"})
    assert not ChmConnector.requires_piecewise_for_cudagraph({})
    assert TierOptions(path="x").deadline_s == 10.0
    assert LENGTH > SERVED
