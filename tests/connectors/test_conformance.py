# SPDX-License-Identifier: Apache-2.0
"""Ten rules that hold for every adapter, each tried through the adapter as its host would.

The first number in a test's name is that of the rule. Adapters come from ``conformance.HOSTS``.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import (
    HOSTS,
    KIB,
    MIB,
    ROW,
    Rig,
    add,
    answers,
    blocks,
    contents,
    damage,
    finish,
    get,
    opener,
    put,
    returns,
    told,
    wait_until,
)
from driver import Driver, Identity, fresh_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chm
from chm.connectors import TierOptions
from chm.connectors import tier as tiers

POISON = 0x5A


@pytest.fixture(params=list(HOSTS))
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rig(host: str, options: TierOptions, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(tiers, "GRACE_S", 0.1)
    made = Rig(opener(host), options)
    yield made
    made.close_all()


def drive_of(driver: Driver) -> chm.Device:
    return driver.tier.store.device


# ------------------------------------------------------------------- 1: told exactly once


def test_1_each_job_is_told_once(rig: Rig) -> None:
    driver = rig.open()
    sizes = [1, 40, 7, 32, 33, 64]
    starts = [0, *itertools.accumulate(sizes)]
    ranges = [range(at, at + n) for at, n in zip(starts, sizes, strict=False)]
    stores = {driver.store(some, blocks(some)): some for some in ranges}
    assert told(driver, list(stores)) == {job: [True] * len(some) for job, some in stores.items()}
    rows = [fresh_rows(len(some), ROW) for some in ranges]
    loads = {
        driver.load(some, out): some for some, out in zip(ranges * 2, rows + rows, strict=True)
    }
    assert len(loads) == 2 * len(ranges)
    assert told(driver, list(loads)) == {job: [True] * len(some) for job, some in loads.items()}
    assert driver.told() == []
    assert rig.close(driver) == []


def test_1_close_tells_what_runs(rig: Rig) -> None:
    rig.filled(40)
    driver = rig.open()
    rows = fresh_rows(40, ROW)
    jobs = {
        driver.load(range(40), rows): 40,
        driver.store(range(40, 80), blocks(range(40, 80))): 40,
        driver.store(range(80, 83), blocks(range(80, 83))): 3,
    }
    found: dict[int, list[bool]] = {}
    add(found, driver.told())
    add(found, rig.close(driver))
    assert found == {job: [True] * n for job, n in jobs.items()}
    assert np.array_equal(rows, blocks(range(40)))


def test_1_close_tells_what_hangs(rig: Rig) -> None:
    rig.filled(4)
    driver = rig.open_faulty("{reads}- read never", deadline_s=0.3)
    jobs = [driver.load([i], fresh_rows(1, ROW)) for i in range(4)]
    found: dict[int, list[bool]] = {}
    add(found, driver.told())
    add(found, rig.close(driver))
    assert found == {job: [False] for job in jobs}


# ------------------------------------------------------------------- 2: failed is a miss


def test_2_missing_is_a_miss_until_it_is_stored(rig: Rig) -> None:
    driver = rig.open()
    assert driver.lookup(range(3)) == [False] * 3
    assert get(driver, range(3)) == [False] * 3
    assert driver.lookup(range(3)) == [False] * 3
    assert put(driver, range(3)) == [True] * 3
    assert driver.lookup(range(3)) == [True] * 3
    assert get(driver, range(3)) == [True] * 3


@pytest.mark.parametrize("fault", ["err 5", "never", "late 1000000000"])
def test_2_failed_is_a_miss_until_it_is_stored(rig: Rig, fault: str) -> None:
    """Whether the drive reports an error, answers never, or after the deadline."""
    rig.filled(1)
    driver = rig.open_faulty(f"{{reads}} read {fault}", deadline_s=0.3)
    assert get(driver, [0]) == [False]
    short = driver.tier.options
    driver.tier.options = short.replace(deadline_s=30.0)  # what is left is no race
    assert driver.lookup([0]) == [False]
    assert driver.lookup([0]) == [False]
    assert put(driver, [0]) == [True]
    assert driver.lookup([0]) == [True]
    assert get(driver, [0]) == [True]
    driver.tier.options = short


@pytest.mark.parametrize("fault", ["err 5", "never"])
def test_2_failed_after_a_look_up_is_a_miss(rig: Rig, fault: str) -> None:
    """An adapter may have begun to read when it was asked: that fails, too, and is no hit again."""
    rig.filled(3)
    driver = rig.open_faulty(f"{{reads}}- read {fault}", deadline_s=0.3)
    driver.lookup(range(3))
    assert get(driver, range(3)) == [False] * 3
    assert driver.lookup(range(3)) == [False] * 3
    assert put(driver, range(3)) == [True] * 3
    assert driver.lookup(range(3)) == [True] * 3


def test_2_damaged_is_a_miss_until_it_is_stored(rig: Rig) -> None:
    rig.filled(2)
    damage(rig.path, 1)
    driver = rig.open()
    driver.lookup([0, 1])
    assert get(driver, [0, 1]) == [True, False]
    assert driver.lookup([0, 1]) == [True, False]
    assert get(driver, [0, 1]) == [True, False]
    assert put(driver, [0, 1]) == [True, True]
    assert driver.lookup([0, 1]) == [True, True]
    assert get(driver, [0, 1]) == [True, True]


def test_2_another_length_is_a_miss_until_it_is_stored(rig: Rig) -> None:
    """The host changed what a block is, and says nothing of it."""
    rig.filled(2)
    driver = rig.open(row=32 * KIB)
    driver.lookup([0])
    assert get(driver, [0], 32 * KIB) == [False]
    assert driver.lookup([0]) == [False]
    assert put(driver, [0], 32 * KIB) == [True]
    assert driver.lookup([0]) == [True]
    assert get(driver, [0], 32 * KIB) == [True]


@pytest.mark.slow
def test_2_a_store_that_found_no_room_in_time_is_a_miss(rig: Rig) -> None:
    """The drive takes no write: what the write buffer holds is there, the rest is told to fail."""
    rig.filled(1)
    driver = rig.open_faulty("{writes}- write never", row=MIB, deadline_s=0.5)
    if getattr(driver, "whole_stores", False):
        pytest.skip("its host is told of a store as a whole")
    ok = put(driver, range(100, 132), MIB)
    assert True in ok
    assert False in ok
    assert answers(driver.lookup(range(100, 132)), ok)
    n = ok.index(False)
    assert get(driver, range(100, 100 + n), MIB) == [True] * n
    assert get(driver, [100 + n], MIB) == [False]


# ------------------------------------------------------------------- 3: hands off the buffer


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("row", [ROW, 3 * MIB])
def test_3_nothing_writes_after_a_failure_was_told(rig: Rig, row: int, direct: bool) -> None:
    """The drive ends its read when the host has long given the memory to something else.

    The faulty medium moves the bytes at once and says so late. So bytes that are there when the
    failure is told show that the drive had the host's memory: then it has to be done with it.
    """
    rig.filled(2, row)
    fault = "{reads}- read late 1000000000"
    driver = rig.open_faulty(fault, row, deadline_s=0.3, direct=direct)
    before = drive_of(driver).stats().read_ios
    rows = fresh_rows(2, row)
    assert finish(driver, driver.load([0, 1], rows)) == [False, False]
    assert drive_of(driver).stats().read_ios > before or not rows.any()
    rows[:] = POISON
    wait_until("the late read", lambda: drive_of(driver).stats().read_ios > before)
    rig.close(driver)
    assert (rows == POISON).all()


def test_3_damaged_bytes_are_not_left_as_good(rig: Rig) -> None:
    """What was told to have failed stays so, and a neighbour in the same job is not touched."""
    rig.filled(3)
    damage(rig.path, 1)
    driver = rig.open()
    rows = fresh_rows(3, ROW)
    assert finish(driver, driver.load(range(3), rows)) == [True, False, True]
    rows[1] = POISON
    rig.close(driver)
    assert np.array_equal(rows[0], contents(0))
    assert (rows[1] == POISON).all()
    assert np.array_equal(rows[2], contents(2))


# ------------------------------------------------------------------- 4: the host never waits


def let_go(driver: Driver) -> None:
    """Closing shall not wait for the deadline of a test that never reaches it."""
    driver.tier.options = driver.tier.options.replace(deadline_s=0.2)


def skip_if_its_calls_wait(driver: Driver) -> None:
    if driver.blocking:
        let_go(driver)
        pytest.skip("its calls wait as the host wants it; rule 2 shows that the deadline ends them")


@pytest.mark.slow
def test_4_no_call_waits_for_a_drive_that_never_reads(rig: Rig) -> None:
    rig.filled(4)
    driver = rig.open_faulty("{reads}- read never", deadline_s=90.0)
    skip_if_its_calls_wait(driver)
    assert returns(lambda: driver.lookup(range(5))) == [True] * 4 + [False]
    load = returns(lambda: driver.load(range(4), fresh_rows(4, ROW)))
    store = returns(lambda: driver.store([9], blocks([9])))
    assert finish(driver, store) == [True]
    assert returns(driver.told) == []  # the load goes on: nobody waited for it
    assert returns(lambda: driver.lookup([9, 4])) == [True, False]
    let_go(driver)
    assert [(one.job, one.ok) for one in rig.close(driver)] == [(load, [False] * 4)]


@pytest.mark.slow
def test_4_no_call_waits_for_a_drive_that_never_writes(rig: Rig) -> None:
    rig.filled(4)
    driver = rig.open_faulty("{writes}- write never", row=MIB, deadline_s=90.0)
    skip_if_its_calls_wait(driver)
    store = returns(lambda: driver.store(range(100, 164), blocks(range(100, 164), MIB)))
    assert returns(driver.told) == []
    assert returns(lambda: driver.lookup([0, 999])) in ([True, False], [False, False])
    more = returns(lambda: driver.store(range(200, 264), blocks(range(200, 264), MIB)))
    assert returns(driver.told) == []
    let_go(driver)
    found: dict[int, list[bool]] = {}
    add(found, rig.close(driver))
    assert set(found) == {store, more}
    assert False in found[store]


# ------------------------------------------------------------------- 5: batches


def test_5_batches_are_at_most_32(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[int]] = {}
    for name in ("delete", "exists", "get", "lease", "prefix", "put", "sizes", "where"):
        real = getattr(chm.Store, name)

        def spy(self: Any, ns: int, some: Any, *rest: Any, real: Any = real, **more: Any) -> Any:
            seen.setdefault(real.__name__, []).append(len(some))
            return real(self, ns, some, *rest, **more)

        monkeypatch.setattr(chm.Store, name, spy)
    driver = rig.open()
    assert put(driver, range(100)) == [True] * 100
    assert driver.lookup(range(101)) == [True] * 100 + [False]
    assert get(driver, range(100)) == [True] * 100
    assert {"put", "get"} <= set(seen)
    assert sum(seen["put"]) >= 100
    assert max(map(max, seen.values())) <= 32


# ------------------------------------------------------------------- 6: identities


BASE = Identity(ranks=4)
OTHERS: dict[str, list[Any]] = {
    "model": ["model2", "Model", "a/model", "model/dtype=float16", "m" * 300, "m" * 299 + "n"],
    "dtype": ["bfloat16", "float32"],
    "layout": ["b"],
    "ranks": [2, 1],
    "rank": [1, 3],
    "salt": ["s", "salt/rank=1", "0"],
}


def test_6_each_field_alone_makes_keys_differ(rig: Rig) -> None:
    """Nobody finds what another stored, and each gets its own back, all in one open store."""
    assert list(OTHERS) == [f.name for f in fields(Identity)]
    identities = [BASE, Identity()]
    identities += [replace(BASE, **{name: v}) for name, many in OTHERS.items() for v in many]
    identities = list(dict.fromkeys(identities))
    drivers = [rig.open(identity) for identity in identities]
    for i, driver in enumerate(drivers):
        assert driver.lookup([0]) == [False], f"{identities[i]} sees what another stored"
        assert finish(driver, driver.store([0], blocks([1000 + i]))) == [True]
    for i, driver in enumerate(drivers):
        rows = fresh_rows(1, ROW)
        assert driver.lookup([0]) == [True]
        assert finish(driver, driver.load([0], rows)) == [True]
        assert np.array_equal(rows[0], contents(1000 + i)), f"{identities[i]} got another's bytes"


NAMES = st.text("ab/=#:, é'\\", max_size=6)
IDENTITIES = st.builds(
    Identity,
    model=NAMES.map("m".__add__),
    dtype=st.sampled_from(["float16", "bfloat16", "float32"]),
    layout=st.sampled_from(["a", "b"]),
    ranks=st.just(4),
    rank=st.integers(0, 3),
    salt=NAMES,
)


def test_6_two_identities_never_share_a_key(rig: Rig) -> None:
    keep = rig.open()  # keeps the store open
    numbers = itertools.count()

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(IDENTITIES, IDENTITIES)
    def check(one: Identity, other: Identity) -> None:
        number = next(numbers)
        first, second = rig.open(one), rig.open(other)
        assert put(first, [number]) == [True]
        assert first.lookup([number]) == [True]
        assert second.lookup([number]) == [one == other]
        rig.close(second)
        rig.close(first)

    check()
    rig.close(keep)


def test_6_a_restart_as_another_finds_nothing(rig: Rig) -> None:
    rig.filled(2)
    driver = rig.open(Identity(model="other"))
    assert driver.lookup([0, 1]) == [False, False]
    assert get(driver, [0, 1]) == [False, False]


# ------------------------------------------------------------------- 7: views are dropped


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "{reads}- read never", "{writes}- write never"])
def test_7_the_hosts_memory_can_be_unmapped_after_close(rig: Rig, fault: str) -> None:
    """BufferError if anything still holds a view; also when the drive hangs with jobs running."""
    rig.filled(8, MIB)
    driver = rig.open_faulty(fault, MIB, deadline_s=0.3) if fault else rig.open(row=MIB)
    memory = mmap.mmap(-1, 48 * MIB)
    rows = np.frombuffer(memory, np.uint8).reshape(48, MIB)
    driver.lookup(range(8))
    driver.load(range(8), rows[:8])
    driver.store(range(8, 48), rows[8:])
    rig.close(driver)
    del rows
    memory.close()


def test_7_the_hosts_memory_is_free_when_its_job_was_told(rig: Rig) -> None:
    driver = rig.open()
    memory = mmap.mmap(-1, 40 * ROW)
    rows = np.frombuffer(memory, np.uint8).reshape(40, ROW)
    assert finish(driver, driver.store(range(40), rows)) == [True] * 40
    assert finish(driver, driver.load(range(40), rows)) == [True] * 40
    rig.close(driver)
    del driver, rows
    gc.collect()
    memory.close()


# ------------------------------------------------------------------- 8: per key


def test_8_a_load_with_holes_brings_the_rest(rig: Rig) -> None:
    driver = rig.open()
    assert put(driver, [0, 1]) == [True] * 2
    assert put(driver, [3, 4]) == [True] * 2
    there = [True, True, False, True, True]
    assert answers(driver.lookup(range(5)), there)
    assert get(driver, range(5)) == there
    assert answers(driver.lookup(range(5)), there)


@pytest.mark.parametrize("bad", [0, 35, 69])
def test_8_a_damaged_block_fails_alone(rig: Rig, bad: int) -> None:
    """At the ends, and behind the first 32."""
    rig.filled(70)
    damage(rig.path, bad)
    driver = rig.open()
    there = [i != bad for i in range(70)]
    assert get(driver, range(70)) == there
    assert answers(driver.lookup(range(70)), there)


# ------------------------------------------------------------------- 9: overwriting


def test_9_what_is_there_stays_and_counts_as_stored(rig: Rig) -> None:
    driver = rig.open()
    assert put(driver, range(4)) == [True] * 4
    other = blocks(range(100, 106))
    assert finish(driver, driver.store(range(6), other)) == [True] * 6
    assert get(driver, range(4)) == [True] * 4  # checks the bytes: the first ones
    rows = fresh_rows(2, ROW)
    assert finish(driver, driver.load([4, 5], rows)) == [True] * 2
    assert np.array_equal(rows, other[4:])


def test_9_the_same_block_twice_at_once(rig: Rig) -> None:
    driver = rig.open()
    rows = blocks(range(40))
    jobs = [driver.store(range(40), rows) for _ in range(3)]
    assert told(driver, jobs) == {job: [True] * 40 for job in jobs}
    assert get(driver, range(40)) == [True] * 40


# ------------------------------------------------------------------- 10: restart


def test_10_a_restart_keeps_what_was_stored(rig: Rig) -> None:
    rig.filled(70)
    for _ in range(2):
        driver = rig.open()
        assert driver.lookup(range(71)) == [True] * 70 + [False]
        assert get(driver, range(70)) == [True] * 70
        rig.close(driver)


CHILD = """
import itertools, sys
sys.path.insert(0, sys.argv[1])
from conformance import opener, put
from chm.connectors import TierOptions
from chm.connectors import tier as tiers
from driver import Identity
driver = opener(sys.argv[2])(TierOptions(**eval(sys.argv[3])), Identity(), 65536)
assert put(driver, range(8)) == [True] * 8
driver.tier.store.sync().result()
print("durable", flush=True)
for first in itertools.count(8, 8):
    assert put(driver, range(first, first + 8)) == [True] * 8
    print(first + 8, flush=True)
"""


@pytest.mark.slow
def test_10_killed_it_is_whole_and_right_or_a_miss(rig: Rig, host: str) -> None:
    options = {name: value for name, value in rig.options.to_dict().items() if value is not None}
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), host, repr(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "durable\n"
        written = [int(child.stdout.readline()) for _ in range(30)][-1]
        child.send_signal(signal.SIGKILL)
    driver = rig.open()
    assert driver.lookup(range(8)) == [True] * 8
    assert get(driver, range(8)) == [True] * 8
    found = driver.lookup(range(written + 64))
    ok = get(driver, range(written + 64))  # checks the bytes of those that come
    assert answers(found, ok)
    assert put(driver, range(written)) == [True] * written
    assert get(driver, range(written)) == [True] * written
