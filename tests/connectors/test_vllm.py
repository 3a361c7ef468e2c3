# SPDX-License-Identifier: Apache-2.0
"""What is vLLM's own in ChmTier: when look-ups are answered, the order of a store's keys, views,
metrics, and what differs between versions. The rules of every adapter are in test_conformance.
"""

from __future__ import annotations

import itertools
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import vllm_stand_in as stand_in
from drive_vllm import HIT, MISS, RETRY, config_of, offload_key, primary, spec_of, vllm
from driver import Identity

from chm.connectors import TierOptions, key_of
from chm.connectors import vllm_plugin as plugin

KIB = 1 << 10
ROW = 64 * KIB
CHUNKS = 64
ROOT = Path(__file__).resolve().parents[2]


def keys(numbers: Sequence[int], group: int = 0) -> list[bytes]:
    return [offload_key(number, group) for number in numbers]


class Host:
    """vLLM's side of one ChmTier, whose CPU tier is ``view``; chunk n holds block n."""

    def __init__(self, options: TierOptions, view: memoryview, spec: Any = None, **more: Any):
        self.view = view
        self.rows: Any = np.asarray(view)
        config = {**config_of(options, Identity()), **more}
        self.manager = vllm.ChmTier(
            offloading_spec=spec or spec_of(Identity()),
            primary_kv_view=view,
            tier_type="ChmTier",
            **config,
        )
        self.tier = self.manager.tier
        self._jobs = itertools.count()
        self._names = itertools.count()

    def request(self, *chains: list[bytes]) -> Any:
        """A new one; vLLM notes the order of the keys of these chains, if any are given."""
        context = stand_in.ReqContext(f"r{next(self._names)}")
        for chain in chains:
            for place, key in enumerate(chain):
                context.set_offload_key_position(key, (place + 1) * 128)
        self.manager.on_new_request(context)
        return context

    def look(self, some: Sequence[bytes], context: Any) -> list[Any]:
        return [self.manager.lookup(key, context) for key in some]

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            self.manager.on_schedule_end(stand_in.ScheduleEndContext((), ()))

    def submit(self, some: Sequence[bytes], context: Any, load: bool = False) -> int:
        job = next(self._jobs)
        chunks = [int.from_bytes(key[:32], "big") for key in some]
        submit = self.manager.submit_load if load else self.manager.submit_store
        submit(stand_in.transfer(job, some, chunks, load, context))
        return job

    def finish(self) -> dict[int, Any]:
        self.manager.drain_jobs()
        return {result.job_id: result for result in self.manager.get_finished_jobs()}

    def store(self, some: Sequence[bytes], context: Any = None) -> None:
        job = self.submit(some, context or self.request(list(some)))
        assert self.finish()[job].success

    def parents(self) -> dict[bytes, bytes | None]:
        return {o.key: o.parent for o in self.tier.store.list()}


@pytest.fixture
def make(options: TierOptions) -> Iterator[Callable[..., Host]]:
    made: list[Host] = []

    def host(**more: Any) -> Host:
        view = more.pop("view", None) or primary(CHUNKS, ROW)
        made.append(Host(options, view, **more))
        made[-1].rows[:] = np.random.default_rng(1).integers(-128, 128, (CHUNKS, ROW), np.int8)
        return made[-1]

    yield host
    for one in made:
        one.manager.shutdown()


@pytest.fixture
def host(make: Callable[..., Host]) -> Host:
    return make()


# -- look-ups --------------------------------------------------------------------------------------


def test_a_look_up_is_answered_when_the_step_ends(host: Host) -> None:
    chain = keys(range(40))
    host.store(chain[:20])
    context = host.request()
    assert host.look(chain, context) == [RETRY] * 40
    assert host.look(chain, context) == [RETRY] * 40
    assert host.tier.stats().lookups == 0
    host.step()
    assert host.look(chain, context) == [HIT] * 20 + [MISS] * 20
    assert host.tier.stats().lookups == 40


def test_the_first_hits_are_hinted_before_vllm_loads(host: Host) -> None:
    chain = keys(range(5))
    host.store([*chain[:2], *chain[3:]])
    context = host.request()
    host.look(chain, context)
    host.step()
    assert host.tier.stats().hints == 1
    host.submit(chain[:2], context, load=True)
    host.finish()
    assert host.tier.stats().hints_used == 1


def test_hits_behind_a_miss_are_not_hinted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(host.tier, "hint", lambda name, some: seen.extend(some))
    one, other = keys(range(3)), keys(range(3, 5), group=1)
    host.store([one[0], one[2], *other], host.request(one, other))
    host.look([*one, *other], host.request())
    host.step()
    assert seen == list(map(key_of, [one[0], *other]))


def test_the_hint_goes_with_its_request(host: Host) -> None:
    host.store(keys(range(3)))
    context = host.request()
    host.look(keys(range(3)), context)
    host.step()
    host.manager.on_request_finished(context)
    stats = host.tier.stats()
    assert (stats.hints, stats.hints_cancelled) == (1, 1)


def test_an_answer_does_not_hold_for_ever(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "ANSWER_STEPS", 2)
    [key] = keys([0])
    context = host.request()
    host.look([key], context)
    host.step()
    host.store([key])
    assert host.look([key], context) == [MISS]
    host.step(3)
    assert host.look([key], context) == [RETRY]
    host.step()
    assert host.look([key], context) == [HIT]


def test_a_failed_load_is_a_miss_for_all_who_were_told_otherwise(host: Host) -> None:
    chain = keys(range(4))
    host.store(chain)
    contexts = [host.request() for _ in range(2)]
    for context in contexts:
        host.look(chain, context)
    host.step()
    host.tier.store.delete(host.tier._ns, [key_of(chain[1])]).result()
    job = host.submit(chain, contexts[0], load=True)
    result = host.finish()[job]
    assert not result.success
    good = [chain[0], *chain[2:]]  # deleting one leaves what hangs on it, first to go
    assert list(result.successful_keys) == good
    for context in contexts:
        assert host.look(chain, context) == [MISS if key not in good else HIT for key in chain]


def test_a_finished_request_asks_nothing_more(host: Host) -> None:
    context = host.request()
    host.look(keys(range(3)), context)
    host.manager.on_request_finished(context)
    host.step()
    assert host.tier.stats().lookups == 0


# -- chains ----------------------------------------------------------------------------------------


def test_a_stores_keys_come_in_no_order(host: Host) -> None:
    chain, other = keys(range(6)), keys(range(6, 9), group=1)
    shuffled = [other[2], chain[3], chain[0], other[0], chain[5], chain[1], chain[4], chain[2]]
    host.store([*shuffled, other[1]], host.request(chain, other))
    want = dict(zip(chain, [None, *chain], strict=False))
    want |= dict(zip(other, [None, *other], strict=False))
    assert host.parents() == {key_of(k): p and key_of(p) for k, p in want.items()}


def test_a_store_hangs_on_the_one_before_though_that_goes_on(host: Host) -> None:
    chain = keys(range(60))
    context = host.request(chain)
    host.submit(chain[:40], context)
    host.submit(chain[40:], context)
    assert [result.success for _, result in sorted(host.finish().items())] == [True, True]
    assert host.parents()[key_of(chain[40])] == key_of(chain[39])


def test_a_store_with_a_hole_hangs_on_what_is_there(host: Host) -> None:
    """vLLM stores what its CPU tier did not have; the tier has the rest from before."""
    chain = keys(range(5))
    host.store([chain[2]], host.request())
    host.store([*chain[3:], *chain[:2]], host.request(chain))
    assert host.parents()[key_of(chain[3])] == key_of(chain[2])


def test_without_vllms_note_the_order_is_that_of_look_ups(host: Host) -> None:
    chain = keys(range(4))
    context = host.request()
    host.look(chain, context)
    host.step()
    host.store([chain[2], chain[0], chain[3], chain[1]], context)
    assert host.parents()[key_of(chain[3])] == key_of(chain[2])
    assert host.parents()[key_of(chain[0])] is None


def test_touch_goes_group_by_group(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[bytes]] = []
    monkeypatch.setattr(host.tier, "touch", lambda some: seen.append(list(some)))
    one, other = keys(range(2)), keys(range(2), group=1)
    host.manager.touch([other[0], one[0], other[1], one[1]], host.request(one, other))
    assert seen == [list(map(key_of, one)), list(map(key_of, other))]


# -- jobs and memory -------------------------------------------------------------------------------


def test_rows_go_and_come_back(host: Host) -> None:
    chain = keys(range(50))
    before = host.rows.copy()
    host.store(chain)
    host.rows[:] = 0
    job = host.submit(chain, host.request(), load=True)
    assert host.manager.has_pending_work()
    result = host.finish()[job]
    assert (result.success, result.transfer_bytes) == (True, 50 * ROW)
    assert result.transfer_time > 0
    assert not host.manager.has_pending_work()
    assert np.array_equal(host.rows[:50], before[:50])
    assert not host.rows[50:].any()


@pytest.mark.parametrize("load", [False, True])
def test_a_job_of_nothing_is_told_too(host: Host, load: bool) -> None:
    job = host.submit([], host.request(), load)
    assert host.finish()[job].success


def test_shutdown_lets_go_of_the_view(options: TierOptions) -> None:
    memory = mmap.mmap(-1, CHUNKS * ROW)
    view = memoryview(np.frombuffer(memory, np.int8).reshape(CHUNKS, ROW))
    host = Host(options, view)
    host.submit(keys(range(40)), host.request())
    host.manager.shutdown()
    host.manager.shutdown()
    del host.rows
    view.release()
    memory.close()


def test_a_tier_that_cannot_open_lets_go_of_the_view(tmp_path: Path) -> None:
    view = primary(2, ROW)
    with pytest.raises(OSError, match="give a capacity"):
        Host(TierOptions(path=tmp_path / "none"), view)
    view.release()


# -- configuration ---------------------------------------------------------------------------------


def test_what_vllm_adds_to_the_configuration(make: Callable[..., Host]) -> None:
    detector = object()
    host = make(locality="LOCAL", backpressure_detector=detector)
    assert host.manager.locality.value == "LOCAL"
    assert host.manager.bp_detector is detector
    assert host.manager.medium.value == "STORAGE"


def test_an_unknown_key_is_refused_with_the_nearest(make: Callable[..., Host]) -> None:
    with pytest.raises(ValueError, match="did you mean 'capacity'"):
        make(capacty="1GiB")


def test_the_namespace_holds_what_changes_the_bytes(options: TierOptions) -> None:
    def name(spec: Any = None, row: int = ROW, **more: Any) -> str:
        return str(vllm.namespace(spec or spec_of(Identity()), row, options.replace(**more)))

    def of(**changes: Any) -> Any:
        return spec_of(Identity(), **changes)

    group = SimpleNamespace(tokens_per_block=64, layer_names=("layer.0",))
    base = name()
    assert name() == base
    names = [
        base,
        name(row=2 * ROW),
        name(salt="s"),
        name(identity="mine"),
        name(of(canonical_layout=True)),
        name(of(replicated_layout=True)),
        name(of(groups=(group,))),
        name(of(cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=4))),
        name(of(cache=SimpleNamespace(tokens_per_hash=32, blocks_per_chunk=2))),
    ]
    assert len(set(names)) == len(names)


def test_a_name_from_a_hub_is_warned_of(
    options: TierOptions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for model, identity in [("org/model", "commit"), (str(tmp_path), ""), ("org/model", "")]:
        assert not caplog.records
        vllm.namespace(spec_of(Identity(model)), ROW, options.replace(identity=identity))
    assert "identity=" in caplog.text


# -- metrics ---------------------------------------------------------------------------------------


def test_metrics_are_what_was_not_told_before(host: Host) -> None:
    defined = vllm.ChmTier.build_metric_definitions({})
    assert all(one.labelnames == ("tier",) for one in defined.values())
    host.store(keys(range(3)))
    first = host.manager.get_stats().data["data"]
    assert set(first) <= set(defined)
    name = "vllm:kv_offload_chm_put_bytes"
    assert first[name] == {("ChmTier",): 3 * ROW}
    assert host.manager.get_stats() is None
    host.store(keys(range(3, 5)))
    assert host.manager.get_stats().data["data"][name] == {("ChmTier",): 2 * ROW}


# -- versions --------------------------------------------------------------------------------------


def test_vllm_0_28_says_block_ids_and_takes_no_bytes(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "_RESULT", vllm._RESULT - {"transfer_bytes"})
    told = SimpleNamespace(
        job_id=7, keys=set(keys([3])), block_ids=np.array([3]), req_context=host.request()
    )
    host.manager.submit_store(told)
    assert host.finish()[7].success
    assert host.manager.lookup(keys([3])[0], SimpleNamespace(req_id="plain")) is RETRY


def test_the_entry_point_registers_once() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert (
        '[project.entry-points."vllm.general_plugins"]\nchm = "chm.connectors.vllm_plugin:register"'
        in text
    )
    with stand_in.stand_in():
        plugin.register()
        plugin.register()
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

        module, name = SecondaryTierFactory.registry["chm"]
    assert getattr(sys.modules[module], name) is vllm.ChmTier


def test_the_entry_point_does_nothing_where_vllm_has_no_tiers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    plugin.register()
