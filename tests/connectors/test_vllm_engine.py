# SPDX-License-Identifier: Apache-2.0
"""vLLM itself on a chm tier: what it generates from KV that came from the drive.

Two checks. A hit against a full recompute gives the same tokens in float32, but not the same bits:
the batch has another shape. So the sharp one is a hit in the engine's own pool, of as many tokens
as the tier then serves: the log-probabilities are the same to the bit, unless a byte is wrong.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.serving import engine
from bench.serving.model import VOCABULARY, kv_bytes_per_token, write_model
from chm.connectors import Tier

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]
CHUNKS = 7
SERVED = CHUNKS * engine.CHUNK
LENGTH = SERVED + 100
ROW = engine.CHUNK * kv_bytes_per_token()
HANG_S = 400


def prompt(seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCABULARY), k=LENGTH)


ENGINE = f"chm-test-{os.getpid()}"


CHILD = f"chm-child-{os.getpid()}"


def connector(tier: dict[str, Any], name: str = ENGINE) -> dict[str, Any]:
    return {**engine.connector([tier]), "engine_id": name}


def regions(engine_id: str = ENGINE) -> list[str]:
    """Shared memory that vLLM made for engines of this name, and did not remove."""
    return [name for name in os.listdir("/dev/shm") if engine_id in name]


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """A request that never ends is what these tests are about: bounded, it is a failure."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"did not end within {HANG_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANG_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Threads of OpenMP that wait for each other spin, for minutes where others want the cores.
    os.environ.update(OMP_NUM_THREADS="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
    return write_model(tmp_path_factory.mktemp("model"))


def tier_at(path: Path, **more: Any) -> dict[str, Any]:
    config = {"type": "ChmTier", "module_path": "chm.connectors.vllm"}
    return {**config, "path": str(path), "capacity": "1GiB", **more}


class Running:
    """An engine in this process, with its tier."""

    def __init__(self, model: Path, path: Path) -> None:
        config = tier_at(path, type="DamagedTier", module_path="engine_tiers")
        self.llm = engine.make_llm(model, connector(config))
        self.core = self.llm.llm_engine.engine_core
        scheduler = self.core.engine_core.scheduler
        [self.manager] = scheduler.connector.connector_scheduler.manager.secondary_tiers

    @property
    def tier(self) -> Tier:
        tier: Tier = self.manager.tier
        return tier

    def ask(self, tokens: list[int]) -> engine.Answer:
        return engine.ask(self.llm, tokens)

    def ask_tier(self, tokens: list[int]) -> engine.Answer:
        engine.forget(self.llm)
        return self.ask(tokens)

    def same_split(self, tokens: list[int]) -> engine.Answer:
        """What it says when the engine's own pool has what the tier will have; once per prompt,
        since a prefix of which the tier has a part is computed in other pieces."""
        engine.forget(self.llm)
        assert self.ask(tokens[:SERVED]).cached == 0
        found = self.ask(tokens)
        assert found.cached == SERVED
        return found

    def reopen(self, **changes: Any) -> None:
        """The tier's store closed, and opened with other options."""
        engine.forget(self.llm)
        old = self.tier
        old.close()
        self.manager.tier = Tier(old.options.replace(**changes), old.namespace)

    def reads(self) -> int:
        return int(self.tier.store.device.stats().read_ios)


@pytest.fixture(scope="module")
def running(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(model, tmp_path_factory.mktemp("tier") / "kv")
    yield made
    assert regions()
    made.core.shutdown()
    assert not regions()


@pytest.fixture
def healthy(running: Running) -> Iterator[Running]:
    """As it was at first, also for the test that comes after one that broke it."""
    options = running.tier.options
    yield running
    running.manager.damage = None
    if running.tier.options != options:
        running.reopen(**options.to_dict())


# -- hits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hit_gives_the_tokens_of_a_recompute(running: Running, seed: int) -> None:
    whole = running.ask(prompt(seed))
    assert whole.cached == 0
    hit = running.ask_tier(prompt(seed))
    assert hit.cached == SERVED
    assert hit.tokens == whole.tokens
    assert len(set(hit.tokens)) > 8  # a model whose output says something


@pytest.mark.parametrize("seed", [11, 12])
def test_a_hit_gives_the_bits_of_one_in_the_engines_pool(running: Running, seed: int) -> None:
    reference = running.same_split(prompt(seed))
    hit = running.ask_tier(prompt(seed))
    assert hit.cached == SERVED
    assert (hit.tokens, hit.logprobs) == (reference.tokens, reference.logprobs)
    stats = running.tier.stats()
    assert stats.get_failed == stats.put_failed == 0
    assert stats.hints_used > 0


def rows_of(running: Running, tokens: list[int]) -> Any:
    """The bytes of a prompt's chunks, as the tier brings them."""
    seen: list[Any] = []
    running.ask(tokens)
    running.manager.damage = lambda rows, chunks: seen.append(rows[chunks].copy())
    running.ask_tier(tokens)
    running.manager.damage = None
    [found] = seen
    return found


def zero_a_page(rows: Any, chunks: list[int], alien: Any) -> None:
    rows[chunks[CHUNKS // 2], 8192:12288] = 0


def swap_two_chunks(rows: Any, chunks: list[int], alien: Any) -> None:
    rows[[chunks[2], chunks[4]]] = rows[[chunks[4], chunks[2]]]


def another_prompts_chunk(rows: Any, chunks: list[int], alien: Any) -> None:
    rows[chunks[3]] = alien[3]


@pytest.fixture(scope="module")
def alien(running: Running) -> Any:
    return rows_of(running, prompt(20))


DAMAGES = [zero_a_page, swap_two_chunks, another_prompts_chunk]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_byte_is_seen(healthy: Running, damage: Callable[..., None], alien: Any) -> None:
    """Else the test above says nothing."""
    tokens = prompt(21 + DAMAGES.index(damage))
    reference = healthy.same_split(tokens)
    healthy.manager.damage = lambda rows, chunks: damage(rows, chunks, alien)
    broken = healthy.ask_tier(tokens)
    assert broken.cached == SERVED
    assert broken.logprobs != reference.logprobs
    healthy.manager.damage = None
    assert healthy.ask_tier(tokens) == reference


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "deadline_s"), [("err 5", 10.0), ("never", 0.5)])
def test_what_cannot_be_read_is_computed(
    healthy: Running, fault: str, deadline_s: float, tmp_path: Path
) -> None:
    """The drive reports errors, or hangs: a failed load is a miss, so nothing spins. On a file of
    its own, which a process in which it hangs cannot open again."""
    tokens = prompt(31)
    healthy.reopen(path=tmp_path / "kv")
    whole = healthy.ask(tokens)
    assert whole.cached == 0
    healthy.reopen()
    script = f"{healthy.reads()}- read {fault}"
    healthy.reopen(device={"fault": {"script": script}}, deadline_s=deadline_s)
    again = healthy.ask(tokens)
    assert (again.cached, again.tokens) == (0, whole.tokens)
    stats = healthy.tier.stats()
    assert (stats.get_ok, stats.get_failed) == (0, CHUNKS)  # tried once


def flip_a_bit(path: Path, row: Any) -> None:
    """In the middle of a row, where it lies in a file that nobody has open."""
    part = row[ROW // 2 :][:4096].tobytes()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(part)
        assert at >= 0
        memory[at + 7] ^= 1


def test_a_damaged_file_costs_what_is_behind(healthy: Running) -> None:
    tokens = prompt(41)
    whole = healthy.ask(tokens)
    row = rows_of(healthy, tokens)[3]
    engine.forget(healthy.llm)
    tier = healthy.tier
    tier.close()
    flip_a_bit(Path(tier.options.path[0]), row)
    healthy.manager.tier = Tier(tier.options, tier.namespace)
    again = healthy.ask(tokens)
    assert (again.cached, again.tokens) == (3 * engine.CHUNK, whole.tokens)
    stats = healthy.tier.stats()
    assert (stats.get_ok, stats.get_failed) == (CHUNKS - 1, 1)
    assert healthy.ask_tier(tokens).cached == SERVED  # computed and stored anew


# -- lives -----------------------------------------------------------------------------------------


def live(
    out: Path,
    model: Path,
    tier: dict[str, Any] | None,
    prompts: list[list[int]],
    own_process: bool = False,
    again: bool = False,
    path: str = "",
) -> tuple[list[engine.Answer], dict[str, float]]:
    """Start an engine, ask it, and let it end."""
    transfer = None if tier is None else connector(tier, CHILD)
    job = {"model": str(model), "transfer": transfer, "own_process": own_process}
    job |= {"prompts": prompts, "again": again, "out": str(out)}
    search = os.pathsep.join([str(ROOT), path]) if path else str(ROOT)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("engine_child.py")), json.dumps(job)],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Error" not in done.stderr, done.stderr[-4000:]
    said = json.loads(out.read_text())
    answers = [engine.Answer(tuple(t), tuple(p), cached) for t, p, cached in said["answers"]]
    return answers, said["metrics"]


def installed(folder: Path) -> str:
    """A folder that makes this checkout's entry points known, as an installed chm does."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"chm_kv-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\n")
    group = "vllm.general_plugins"
    [(name, target)] = project["entry-points"][group].items()
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    return str(folder)


def test_engines_that_start_anew_find_what_others_stored(model: Path, tmp_path: Path) -> None:
    """One without a tier; one with the engine in its own process, and the tier by entry point; and
    one in another life that finds the file."""
    prompts = [prompt(51), prompt(52)]
    plain, _ = live(tmp_path / "out", model, None, prompts)
    file = tmp_path / "kv"
    known = installed(tmp_path)
    by_name = {"type": "chm", "path": str(file), "capacity": "1GiB"}
    first, metrics = live(
        tmp_path / "out", model, by_name, prompts, own_process=True, again=True, path=known
    )
    assert [a.cached for a in first] == [0, 0, SERVED, SERVED]
    assert [a.tokens for a in first] == [a.tokens for a in plain] * 2
    assert metrics["vllm:kv_offload_chm_get_bytes"] == 2 * CHUNKS * ROW
    second, metrics = live(tmp_path / "out", model, tier_at(file), prompts)
    assert [a.cached for a in second] == [SERVED, SERVED]
    assert second == first[2:]
    assert metrics["vllm:kv_offload_chm_get_ok"] == 2 * CHUNKS
    assert not regions(CHILD)
