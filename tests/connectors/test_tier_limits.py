# SPDX-License-Identifier: Apache-2.0
"""The tier at its limits: tables full, windows too small, hosts that never ask, odd memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from conformance import wait_until
from tier_rig import KIB, MIB, Make, fill, finish, keys, rows

import chm
from chm.connectors import Tier, TierOptions, config
from chm.connectors import tier as tiers


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch, tier_with: Make) -> Tier:
    """On a store that takes four jobs at once, of 64 keys together."""
    monkeypatch.setattr(config, "Store", partial(chm.Store, jobs_max=4, keys_max=64))
    return tier_with()


def test_more_jobs_than_the_store_takes_wait_for_a_place(cramped: Tier) -> None:
    data = fill(cramped, 0, 300, 4 * KIB)
    out = np.zeros_like(data)
    cramped.get("all", keys(0, 300), list(out))
    for i in range(40):
        cramped.get(i, keys(i, 1), [out[i]])
    tasks = {done.tag: done for done in finish(cramped)}
    assert len(tasks) == 41
    assert all(done.good for done in tasks.values()), [done.error for done in tasks.values()]
    assert np.array_equal(out, data)


def test_a_full_store_never_raises_and_fails_at_the_deadline(
    tier_with: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All places are taken by reads that hang for longer than these tasks may take."""
    with tier_with() as tier:
        fill(tier, 0, 8)
    with tier_with() as tier:
        reads = tier.store.device.stats().read_ios
    monkeypatch.setattr(config, "Store", partial(chm.Store, jobs_max=4))
    monkeypatch.setattr(tiers, "GRACE_S", 0.1)
    tier = tier_with(device={"fault": {"script": f"{reads}- read never"}}, deadline_s=30.0)
    for i in range(4):
        tier.get(f"hangs{i}", keys(i, 1), [np.zeros(64 * KIB, np.uint8)])
    tier.options = tier.options.replace(deadline_s=0.3)
    tier.get("get", keys(4, 2), list(np.zeros((2, 64 * KIB), np.uint8)))
    tier.put("put", keys(10, 2), list(rows(10, 2)))
    assert tier.drain() == []
    assert tier.hint("r", keys(0, 4)) == 0
    assert not tier.wait(0.5)
    done = {one.tag: one for one in tier.drain()}
    assert {tag: one.ok for tag, one in done.items()} == {"get": [False] * 2, "put": [False] * 2}
    assert all("as many jobs" in one.error for one in done.values())
    assert tier.exists(keys(4, 2)) == [False, False]
    assert len(tier.close(0.1)) == 4


def test_a_host_that_never_asks(tier: Tier) -> None:
    """Thousands of tasks that nobody drains: none is lost, and none is refused."""
    data = fill(tier, 0, 4)
    out = np.zeros_like(data)
    numbers = {tier.get(None, keys(i % 4, 1), [out[i % 4]]) for i in range(2000)}
    done = finish(tier)
    assert {one.task for one in done} == numbers
    assert len(done) == 2000
    assert all(one.good for one in done)


@pytest.mark.parametrize("direct", [False, True])
def test_more_than_the_window_holds(tier_with: Make, direct: bool) -> None:
    tier = tier_with(dram="32MiB", direct=direct)
    window = tier.store.device.info.window_bytes
    n = 2 * window // MIB + 5
    data = rows(0, n, MIB)
    tier.put(0, keys(0, n), list(data))
    assert finish(tier)[0].good
    tier.store.device.flush()
    tier.hint("r", keys(0, n))
    out = np.zeros_like(data)
    tier.get(0, keys(0, n), list(out))
    assert finish(tier)[0].good
    assert np.array_equal(out, data)


@pytest.mark.parametrize("direct", [False, True])
def test_a_block_larger_than_the_window_and_the_write_buffer(tier_with: Make, direct: bool) -> None:
    """Whole or refused; a host that tries is told in either case."""
    tier = tier_with(dram="32MiB", direct=direct, deadline_s=5.0)
    assert tier.store.device.info.window_bytes < 40 * MIB
    data = rows(0, 1, 40 * MIB)
    tier.put(0, keys(0, 1), list(data))
    [done] = finish(tier)
    assert tier.exists(keys(0, 1)) == done.ok
    assert tier.hint("r", keys(0, 1)) == 0
    out = np.zeros_like(data)
    tier.get(0, keys(0, 1), list(out))
    [got] = finish(tier)
    assert got.ok == done.ok
    assert not got.good or np.array_equal(out, data)


@pytest.mark.parametrize("nbytes", [1, 4095, 4097, MIB + 1, 3 * MIB + 5])
def test_lengths_that_fit_nothing(tier: Tier, nbytes: int) -> None:
    data = fill(tier, 0, 3, nbytes)
    tier.store.device.flush()
    out = np.zeros_like(data)
    tier.get(0, keys(0, 3), list(out))
    assert finish(tier)[0].good
    assert np.array_equal(out, data)


def test_no_keys(tier: Tier) -> None:
    numbers = [tier.get("g", [], []), tier.put("p", [], [])]
    done = tier.drain()
    assert [one.task for one in done] == numbers
    assert [(one.good, one.prefix, one.nbytes) for one in done] == [(True, 0, 0)] * 2
    assert tier.exists([]) == []
    assert tier.hint("r", []) == 0
    tier.touch([])
    tier.mark_missing([])
    tier.cancel("nobody")


def test_a_key_twice(tier: Tier) -> None:
    data = rows(0, 2)
    one, other = keys(0, 2)
    tier.put(0, [one, other, one, other], [*data, *data])
    assert finish(tier)[0].ok == [True] * 4
    out = np.zeros((4, 64 * KIB), np.uint8)
    tier.hint("r", [one, one, other])
    tier.get(0, [one, other, one, other], list(out))
    assert finish(tier)[0].good
    assert np.array_equal(out, np.concatenate([data, data]))


def read_only() -> Any:
    array = np.zeros(64 * KIB, np.uint8)
    array.flags.writeable = False
    return array


ODD: dict[str, Any] = {
    "strided": lambda: np.zeros(128 * KIB, np.uint8)[::2],
    "read-only": read_only,
    "bytes": lambda: bytes(64 * KIB),
    "empty": lambda: np.zeros(0, np.uint8),
    "no parts": list,
}


@pytest.mark.parametrize("kind", list(ODD))
def test_memory_that_cannot_be_read_into_is_a_failure(tier: Tier, kind: str) -> None:
    fill(tier, 0, 2)
    tier.get(0, keys(0, 1), [ODD[kind]()])
    [done] = finish(tier)
    assert (done.ok, bool(done.error)) == ([False], True)
    assert tier.exists(keys(0, 2)) == [False, True]
    fill(tier, 0, 1)
    assert tier.exists(keys(0, 1)) == [True]
    out = np.zeros((1, 64 * KIB), np.uint8)
    tier.get(0, keys(0, 1), list(out))
    assert finish(tier)[0].good


@pytest.mark.parametrize("kind", ["strided", "empty", "no parts"])
def test_memory_that_cannot_be_stored_is_a_failure(tier: Tier, kind: str) -> None:
    tier.put(0, keys(0, 2), [ODD[kind](), np.ones(64 * KIB, np.uint8)])
    [done] = finish(tier)
    assert done.ok[0] is False
    assert done.error
    assert tier.exists(keys(0, 2)) == done.ok


def test_what_is_no_memory_is_the_callers_mistake(tier: Tier) -> None:
    for call in (tier.get, tier.put):
        with pytest.raises(TypeError):
            call(0, keys(0, 1), [5])
        with pytest.raises(ValueError, match="1 keys, but 2 buffers"):
            call(0, keys(0, 1), [b"", b""])
    assert not tier.busy


def test_a_put_of_what_hangs_on_nonsense(tier: Tier) -> None:
    tier.put(0, keys(0, 1), [np.ones(5, np.uint8)], after=b"short")
    [done] = finish(tier)
    assert not done.good
    assert "16 bytes" in done.error


def test_a_chain_with_a_hole(tier: Tier) -> None:
    """Blocks 0-69 with 40 lost in the middle: a put of them all mends it."""
    data = fill(tier, 0, 70)
    tier.store.delete(tier._ns, keys(40, 1)).result()
    assert tier.exists(keys(39, 3)) == [True, False, True]
    out = np.zeros_like(data)
    tier.get(0, keys(0, 70), list(out))
    assert finish(tier)[0].ok == [i != 40 for i in range(70)]
    tier.put(0, keys(0, 70), list(data))
    assert finish(tier)[0].good
    tier.get(0, keys(0, 70), list(out))
    assert finish(tier)[0].good
    assert np.array_equal(out, data)


def test_a_hint_of_what_goes_meanwhile(tier: Tier) -> None:
    fill(tier, 0, 4)
    tier.store.device.flush()
    assert tier.hint("r", keys(0, 4)) == 4
    tier.store.delete(tier._ns, keys(1, 1)).result()
    out = np.zeros((4, 64 * KIB), np.uint8)
    tier.get(0, keys(0, 4), list(out))
    assert finish(tier)[0].ok == [True, False, True, True]
    assert tier.stats().hints_used == 1
    wait_until("leases", lambda: (tier.drain(), tier.store.stats().leases)[1] == 0)


def test_hints_that_nobody_uses_leave_room_for_gets(tier_with: Make) -> None:
    tier = tier_with(dram="32MiB")
    data = fill(tier, 0, 24, MIB)
    tier.store.device.flush()
    hinted = sum(tier.hint(i, keys(i, 1)) for i in range(24))
    assert 0 < hinted <= tier.store.device.info.window_bytes // 2 // MIB
    out = np.zeros_like(data[20:])
    tier.get(0, keys(20, 4), list(out))
    assert finish(tier)[0].good
    assert np.array_equal(out, data[20:])


def test_a_cancelled_hint_under_a_get(tier: Tier) -> None:
    data = fill(tier, 0, 8)
    tier.store.device.flush()
    assert tier.hint("r", keys(0, 8)) == 8
    out = np.zeros_like(data)
    tier.get(0, keys(0, 8), list(out))
    tier.cancel("r")
    assert finish(tier)[0].good
    assert np.array_equal(out, data)
    assert tier.hint("r", keys(0, 8)) == 8
    tier.cancel("r")
    assert tier.hint("r", keys(0, 8)) == 8
    stats = tier.stats()
    assert (stats.hints, stats.hints_used, stats.hints_cancelled) == (3, 1, 1)


def test_closed(options: TierOptions) -> None:
    """A host that ends in disorder can still ask, but not begin anything."""
    tier = Tier(options, "n")
    fill(tier, 0, 2)
    tier.close()
    assert tier.exists(keys(0, 2)) == [False, False]
    assert tier.hint("r", keys(0, 2)) == 0
    assert tier.drain() == []
    assert tier.wait(1.0)
    tier.cancel("r")
    for call in (tier.get, tier.put):
        with pytest.raises(chm.Closed, match="the tier"):
            call(0, keys(0, 1), [np.zeros(64 * KIB, np.uint8)])
    assert tier.drain() == tier.close() == []


def test_closing_twice_leaves_the_store_to_the_other(tier_with: Make) -> None:
    one, other = tier_with("one"), tier_with("other")
    assert one.close() == one.close() == []
    fill(other, 0, 2)
    assert other.exists(keys(0, 2)) == [True, True]


def test_closing_one_of_two_tiers_stops_its_jobs(
    tier_with: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store stays open for the other, so the jobs would go on and write freed memory."""
    monkeypatch.setattr(tiers, "GRACE_S", 5.0)
    with tier_with() as tier:
        fill(tier, 0, 4)
    with tier_with() as tier:
        reads = tier.store.device.stats().read_ios
    script = f"{reads}- read late 500000000"
    tier = tier_with(device={"fault": {"script": script}})
    other = tier_with("other")
    out = np.zeros((4, 64 * KIB), np.uint8)
    tier.get(0, keys(0, 4), list(out))
    [done] = tier.close(0.0)
    assert not done.good
    out[:] = 0x5A
    wait_until("the reads", lambda: other.store.device.stats().read_ios > reads)
    fill(other, 0, 4)
    assert (out == 0x5A).all()
