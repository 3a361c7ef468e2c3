# SPDX-License-Identifier: Apache-2.0
"""The halves of the direct connector without vLLM: layouts, plans of steps, loads, saves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drive_direct import LAYERS, TOKENS, DirectDriver, hashes, request
from driver import Identity, fresh_rows

from chm.connectors import TierOptions
from chm.connectors.direct import mover as movers
from chm.connectors.direct.layout import Layout
from chm.connectors.direct.memory import HostLayer, Staging
from chm.connectors.direct.mover import Ended
from chm.connectors.direct.options import DirectOptions
from chm.connectors.direct.plan import Load, Plan, Planner, Save

KIB = 1 << 10
ROW = 64 * KIB
Open = Callable[..., DirectDriver]


@pytest.fixture
def open_driver(options: TierOptions) -> Iterator[Open]:
    made: list[DirectDriver] = []

    def open_(direct: bool = True, **changes: Any) -> DirectDriver:
        made.append(DirectDriver(options.replace(**changes), Identity(), ROW, direct))
        return made[-1]

    yield open_
    for one in made:
        one.tier.options = one.tier.options.replace(deadline_s=1.0)  # closing waits that long
        one.mover.close()


@pytest.fixture
def driver(open_driver: Open) -> DirectDriver:
    return open_driver()


def rows_of(n: int) -> Any:
    rows = fresh_rows(n, ROW)
    rows[:] = np.random.default_rng(n).integers(0, 256, rows.shape, np.uint8)
    return rows


def until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 20.0
    while not ready():
        assert time.monotonic() < end, "hangs"
        time.sleep(0.001)


def ends(driver: DirectDriver, n: int = 1) -> list[list[bool]]:
    """How the next jobs end."""
    found: list[Any] = []

    def all_there() -> bool:
        found.extend(driver.told())
        return len(found) >= n

    until(all_there)
    return [one.ok for one in sorted(found, key=lambda one: int(one.job))]


def fill(driver: DirectDriver, n: int) -> Any:
    rows = rows_of(n)
    driver.store(range(n), rows)
    assert ends(driver) == [[True] * n]
    return rows


# -- layout ------------------------------------------------------------------------------------


def test_groups_make_objects_of_a_mebibyte() -> None:
    layout = Layout.of(dict.fromkeys("abcdefg", 96 * KIB), 32, 128)
    assert layout.groups == (("a", "b", "c"), ("d", "e", "f"), ("g",))
    assert layout.object_bytes == [1152 * KIB, 1152 * KIB, 384 * KIB]
    assert layout.group_of["f"] == 1
    one_each = Layout.of(dict.fromkeys("abc", 1), 16, 0, 1)
    assert one_each.groups == (("a",), ("b",), ("c",))
    assert one_each.chunk_tokens == 256
    assert Layout.of({"a": 1}, 512).chunk_tokens == 512
    with pytest.raises(ValueError, match="no multiple of the engine's 32"):
        Layout.of({"a": 1}, 32, 48)


def test_reading_goes_layer_by_layer() -> None:
    layout = Layout.of(dict.fromkeys(LAYERS, 1), TOKENS, TOKENS, 1)
    [one, two] = hashes([1, 2])
    order = layout.read_order([one, two], 5)
    assert order == [
        layout.key(c, g) for g, c in [(0, one), (0, two), (1, one), (1, two), (2, one)]
    ]
    assert len({*layout.keys(one), *layout.keys(two)}) == 8
    assert layout.asked(one) == [layout.keys(one)[0], layout.keys(one)[-1]]
    assert Layout.of({"a": 1}, 1, 1).asked(one) == layout.keys(one)[:1]


def test_options_name_what_they_lack() -> None:
    assert DirectOptions().staging() <= 5 * 10**9
    assert DirectOptions(staging_bytes="1MiB").staging() == 1 << 20
    with pytest.raises(ValueError, match="layerwise"):
        DirectOptions(load="layered")


# -- plans -------------------------------------------------------------------------------------


def step(
    new: dict[str, tuple[list[int], int, int]] | None = None,
    cached: dict[str, tuple[list[int], int, int]] | None = None,
    resumed: tuple[str, ...] = (),
) -> Any:
    """vLLM's SchedulerOutput: per request its blocks (cached: new ones), tokens computed before
    this step, and tokens that it computes."""
    new, cached = new or {}, cached or {}
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, block_ids=(blocks,), num_computed_tokens=had)
            for name, (blocks, had, _) in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached),
            resumed_req_ids=set(resumed),
            new_block_ids=[(blocks,) if blocks else None for blocks, _, _ in cached.values()],
            num_computed_tokens=[had for _, had, _ in cached.values()],
        ),
        num_scheduled_tokens={name: n for name, (_, _, n) in {**new, **cached}.items()},
    )


def two_blocks_a_chunk(driver: DirectDriver) -> Planner:
    layout = Layout.of(dict.fromkeys(LAYERS, ROW // 4), TOKENS // 2, TOKENS, 1)
    return Planner(layout, driver.tier)


def halves(numbers: Any) -> Any:
    """A request whose engine blocks are half as long as a chunk."""
    made = request("r", numbers)
    made.block_hashes = [h for number in numbers for h in (b"half %d" % number, *hashes([number]))]
    return made


def test_a_match_is_whole_chunks_and_never_the_last_token(driver: DirectDriver) -> None:
    fill(driver, 5)
    planner = driver.planner
    assert planner.match(request("a", range(8)), 0) == 5 * TOKENS
    assert planner.match(request("b", range(4), more=0), 0) == 3 * TOKENS
    assert planner.match(request("c", range(4), more=0), 3 * TOKENS) == 0
    assert planner.match(request("d", [7, *range(5)]), 0) == 0
    assert planner.match(request("e", [0, 1, 7, 2, 3]), TOKENS) == TOKENS
    short = request("f", range(5))
    del short.block_hashes[3:]  # what the engine did not hash it does not know
    assert planner.match(short, 0) == 3 * TOKENS
    assert driver.tier.stats().hints >= 1
    assert Planner(planner.layout, driver.tier, reads=False).match(request("g", range(5)), 0) == 0


def test_blocks_that_the_engine_has_are_not_touched(driver: DirectDriver) -> None:
    fill(driver, 4)
    planner = two_blocks_a_chunk(driver)
    wanted = halves(range(4))
    had = 3 * TOKENS // 2  # one and a half chunks
    tokens = planner.match(wanted, had)
    assert tokens == 4 * TOKENS - had
    planner.allocated(wanted, list(range(10, 20)), tokens)
    [load] = planner.plan(step()).loads
    assert load.chunks == hashes([1, 2, 3])
    assert load.blocks == [[None, 13], [14, 15], [16, 17]]
    assert planner.plan(step()).loads == []
    planner.match(wanted, had)
    planner.allocated(wanted, list(range(10, 20)), 0)  # the engine loads nothing after all
    assert planner.plan(step()).loads == []


def test_a_chunk_is_saved_in_the_step_that_completes_it(driver: DirectDriver) -> None:
    planner, r = driver.planner, request("r", range(5))
    planner.allocated(r, [], 0)
    plan = planner.plan(step(new={"r": ([10, 11, 12], 0, 2 * TOKENS + 3)}))
    assert plan == Plan([], [Save("r", hashes([0, 1]), [[10], [11]], None, [10, 11])])
    plan = planner.plan(step(cached={"r": ([13, 14], 2 * TOKENS + 3, TOKENS)}))
    assert plan == Plan([], [Save("r", hashes([2]), [[12]], hashes([1])[0], [10, 11, 12])])
    assert planner.plan(step(cached={"r": ([], 3 * TOKENS + 3, 1)})) == Plan()
    planner.finished("r")
    assert planner.plan(step(cached={"r": ([], 3 * TOKENS + 4, TOKENS)})) == Plan()


def test_guessed_tokens_are_not_saved(driver: DirectDriver) -> None:
    planner, r = driver.planner, request("r", range(2), more=-2)
    planner.allocated(r, [], 0)
    plan = planner.plan(step(new={"r": ([10, 11], 0, 2 * TOKENS)}))
    assert [save.chunks for save in plan.saves] == [hashes([0])]


def test_what_is_there_is_not_saved_and_what_was_lost_is(driver: DirectDriver) -> None:
    fill(driver, 3)
    planner, r = driver.planner, request("r", range(5))
    planner.allocated(r, [], 0)
    plan = planner.plan(step(new={"r": ([10, 11, 12, 13], 0, 4 * TOKENS)}))
    assert plan == Plan([], [Save("r", hashes([3]), [[13]], hashes([2])[0], [10, 11, 12, 13])])
    driver.tier.mark_missing(planner.layout.asked(hashes([1])[0]))
    plan = planner.plan(step(cached={"r": ([], TOKENS, 3 * TOKENS)}))  # the host took back 3
    assert [save.chunks for save in plan.saves] == [hashes([1, 2, 3])]
    plan = planner.plan(step(cached={"r": ([20, 21, 22], 0, 3 * TOKENS)}, resumed=("r",)))
    assert [save.blocks for save in plan.saves] == [[[21], [22]]]


def test_all_that_was_computed_from_a_lost_block_is_invalid(driver: DirectDriver) -> None:
    planner = driver.planner
    for name, blocks in {"a": [1, 2, 3], "b": [1, 2, 7, 8], "c": [9]}.items():
        planner.allocated(request(name, range(4)), blocks, 0)
    assert planner.invalid({2, 30}) == {2, 3, 7, 8}


# -- loads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False])
def test_loads_come_whole(open_driver: Open, direct: bool) -> None:
    """Through staging memory, too, as with a device."""
    driver = open_driver(direct)
    rows = fill(driver, 70)
    out = fresh_rows(70, ROW)
    driver.load(range(70), out)
    assert ends(driver) == [[True] * 70]
    assert np.array_equal(out, rows)
    driver.mover.turn()
    assert driver.mover.staging.free == driver.mover.staging.slots
    stats = driver.mover.stats()
    assert (stats.loads, stats.chunks_loaded, stats.chunks_saved) == (1, 70, 70)


@pytest.mark.parametrize("direct", [True, False])
def test_a_block_that_is_none_stays(open_driver: Open, direct: bool) -> None:
    driver = open_driver(direct)
    rows = fill(driver, 2)
    out = fresh_rows(2, ROW)
    driver.rows.update({1: out[0], 2: out[1]})
    driver.mover.load([Load("x", hashes([0, 1]), [[None], [2]])])
    driver.mover.wait_loads()
    assert driver.mover.told() == [Ended("x", "load", [True, True])]
    assert not out[0].any()
    assert np.array_equal(out[1], rows[1])


def test_blocks_that_are_none_share_no_memory(driver: DirectDriver) -> None:
    """What is read is checked where it was read to: three quarters of an object go nowhere."""
    layout = Layout.of({"a": 16 * KIB, "b": 16 * KIB}, 8, 32, 1)
    memory = np.zeros((2, 8, 16 * KIB), np.uint8)
    memory[:, :4] = rows_of(2).reshape(2, 4, -1)
    layers = {"a": HostLayer([memory[0]]), "b": HostLayer([memory[1]])}
    mover = movers.Mover(driver.tier, layout, layers, Staging(64 * KIB, 1 << 20))
    mover.save([Save("s", hashes([9]), [[0, 1, 2, 3]], None, [0, 1, 2, 3])])
    until(lambda: mover.turn() is None and mover.staging.free == 16)
    mover.load([Load("l", hashes([9]), [[None, None, None, 7]])])
    mover.wait_loads()
    assert mover.told() == [Ended("s", "save", [True]), Ended("l", "load", [True])]
    assert np.array_equal(memory[:, 7], memory[:, 3])
    assert not memory[:, 4:7].any()
    mover.close()


def reads_to_open(open_driver: Open) -> int:
    driver = open_driver()
    reads = driver.tier.store.device.stats().read_ios
    driver.close()
    return reads


def test_a_layer_waits_for_its_own_bytes_only(open_driver: Open) -> None:
    """With 32 chunks a step is one layer: the first two come, the others hang."""
    filled = open_driver()
    rows = fill(filled, 32)
    filled.close()
    after = reads_to_open(open_driver) + 64
    never = {"fault": {"script": f"{after}- read never"}}
    driver = open_driver(device=never, hints=False, deadline_s=600.0)
    out = fresh_rows(32, ROW)
    driver.load(range(32), out)
    for layer in range(2):
        driver.mover.wait_layer(LAYERS[layer])
        part = slice(layer * ROW // 4, (layer + 1) * ROW // 4)
        assert np.array_equal(out[:, part], rows[:, part])
    assert driver.mover.told() == []
    waits = threading.Thread(target=driver.mover.wait_layer, args=(LAYERS[2],), daemon=True)
    waits.start()
    waits.join(0.3)
    assert waits.is_alive()
    for _, job in [job for task in list(driver.tier._running.values()) for job in list(task.jobs)]:
        job.cancel()
    waits.join(20.0)
    assert not waits.is_alive()
    driver.mover.wait_loads()
    assert driver.told()[0].ok == [False] * 32


def test_a_lost_chunk_is_invalid_and_what_it_led_to_is_not_saved(open_driver: Open) -> None:
    filled = open_driver()
    rows = fill(filled, 3)
    filled.tier.store.remove(filled.tier._ns, filled.layout.keys(hashes([1])[0])[2])
    filled.close()
    driver = open_driver()
    planner, mover, r = driver.planner, driver.mover, request("r", range(5))
    assert planner.match(r, 0) == 3 * TOKENS  # first and last of each are there
    driver.rows.update(zip(range(10, 15), fresh_rows(5, ROW), strict=True))
    planner.allocated(r, [10, 11, 12, 13, 14], 3 * TOKENS)
    plan = planner.plan(step(new={"r": ([10, 11, 12, 13, 14], 3 * TOKENS, 2 * TOKENS)}))
    assert [save.chunks for save in plan.saves] == [hashes([3, 4])]
    mover.load(plan.loads)
    mover.wait_loads()
    mover.save(plan.saves)
    assert mover.told() == [Ended("r", "load", [True, False, True])]
    assert mover.invalid() == {11}
    assert mover.invalid() == set()
    assert driver.lookup(range(5)) == [True, False, False, False, False]
    plan = planner.plan(step(cached={"r": ([], TOKENS, 4 * TOKENS)}))  # computed again
    assert [save.chunks for save in plan.saves] == [hashes([1, 2, 3, 4])]
    driver.rows.update({11: rows[1]})
    mover.load(plan.loads)
    mover.save(plan.saves)
    until(lambda: mover.turn() is None and bool(mover._told))
    assert driver.lookup(range(5)) == [True] * 5


def test_the_tier_waits_for_one_task_among_others(open_driver: Open) -> None:
    filled = open_driver()
    fill(filled, 2)
    filled.close()
    never = {"fault": {"script": f"{reads_to_open(open_driver)}- read never"}}
    driver = open_driver(device=never, hints=False, deadline_s=600.0)
    tier, keys = driver.tier, driver.layout.keys(hashes([0])[0])
    driver.load([0], fresh_rows(1, ROW))
    [hangs] = tier._running
    misses = tier.get("misses", [bytes(16)], [np.zeros(1, np.uint8)])
    assert tier.wait(20.0, misses)
    assert not tier.wait(0.1, hangs)
    assert not tier.wait(0.1)
    assert [done.task for done in tier.drain()] == [misses]
    assert tier.exists(keys, count=False) == [True] * 4
    assert tier.stats().lookups == 0


def test_few_keys_are_out_at_a_time(open_driver: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movers, "KEYS_OUT", 50)
    driver = open_driver()
    rows = fill(driver, 70)
    most: list[int] = []
    real = driver.tier.get

    def spy(*args: Any) -> int:
        most.append(driver.mover._keys_out)
        return real(*args)

    monkeypatch.setattr(driver.tier, "get", spy)
    outs = [fresh_rows(20, ROW) for _ in range(3)]
    for i, out in enumerate(outs):
        driver.load(range(i, i + 20), out)
    assert ends(driver, 3) == [[True] * 20] * 3
    assert max(most) <= 50
    assert all(np.array_equal(out, rows[i : i + 20]) for i, out in enumerate(outs))


def test_what_was_not_read_by_the_deadline_is_lost(
    open_driver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was not even submitted."""
    monkeypatch.setattr(movers, "KEYS_OUT", 40)
    filled = open_driver()
    fill(filled, 40)
    filled.close()
    reads = reads_to_open(open_driver)
    driver = open_driver(device={"fault": {"script": f"{reads}- read never"}}, deadline_s=0.3)
    driver.load(range(40), fresh_rows(40, ROW))
    driver.mover.wait_loads()
    assert ends(driver) == [[False] * 40]
    assert driver.lookup(range(40)) == [False] * 40


# -- saves -------------------------------------------------------------------------------------


def test_without_staging_memory_a_save_is_skipped(driver: DirectDriver) -> None:
    driver.mover.saver.staging = Staging(ROW // 4, 10 * ROW // 4)  # two chunks and a half
    driver.store(range(3), rows_of(3))
    assert ends(driver) == [[True, True, False]]
    assert driver.mover.stats().chunks_skipped == 1
    assert driver.lookup(range(3)) == [True, True, False]
    driver.store(range(3), rows_of(3))  # another request: it is tried again
    assert ends(driver) == [[True, True, False]]


def test_behind_a_gap_nothing_is_saved(driver: DirectDriver) -> None:
    mover = driver.mover
    mover.saver.staging = staging = Staging(ROW // 4, ROW)
    driver.rows.update(zip(range(4), rows_of(4), strict=True))
    mover.save([Save("r", hashes([0, 1]), [[0], [1]], None, [0, 1])])
    until(lambda: mover.turn() is None and staging.free == 4)
    mover.save([Save("r", hashes([2]), [[2]], hashes([1])[0], [0, 1, 2])])
    assert mover.told() == [Ended("r", "save", [True, False]), Ended("r", "save", [False])]
    mover.finished(["r"])
    mover.save([Save("r", hashes([2]), [[2]], hashes([1])[0], [0, 1, 2])])
    until(lambda: mover.turn() is None and staging.free == 4)
    assert mover.told() == [Ended("r", "save", [True])]


def test_saving_goes_on_while_the_engine_rests(driver: DirectDriver) -> None:
    """40 chunks are 160 objects: five batches, one behind the other."""
    driver.store(range(40), rows_of(40))
    last = driver.layout.ends(hashes([39])[0])
    until(lambda: driver.tier.exists([last])[0])
    objects = {o.key: o.parent for o in driver.tier.store.list()}
    chain = [key for chunk in hashes(range(40)) for key in driver.layout.keys(chunk)]
    assert [objects[key] for key in chain] == [None, *chain[:-1]]


def test_nothing_is_put_before_its_copy_is_over(driver: DirectDriver) -> None:
    over = threading.Event()
    driver.mover.saver.fence = lambda: over.is_set
    rows = rows_of(2)
    driver.store(range(2), rows)
    until(lambda: driver.mover.saver._thread is not None)
    assert driver.told() == []
    assert driver.lookup(range(2)) == [False, False]
    over.set()
    assert ends(driver) == [[True, True]]


def test_host_layers_copy_by_plane_and_block() -> None:
    memory = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    layer = HostLayer([memory[0], memory[1]])
    assert layer.block_bytes == 6
    out = np.zeros(12, np.uint8)
    layer.gather([2, 0], out)
    assert out.tolist() == [6, 7, 8, 0, 1, 2, 18, 19, 20, 12, 13, 14]
    layer.scatter([1, None], np.full(12, 99, np.uint8))
    assert (memory[:, 1] == 99).all()
    assert memory[0, 0].tolist() == [0, 1, 2]
    parts = layer.parts([3, None])
    assert [np.shares_memory(part, memory) for part in parts] == [True, False, True, False]
    assert b"".join(bytes(part) for part in parts[::2]) == bytes([9, 10, 11, 21, 22, 23])
