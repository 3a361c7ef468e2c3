# SPDX-License-Identifier: Apache-2.0
"""The master: who has a key, who gets one, and what happens to reservations nobody keeps."""

from __future__ import annotations

import errno

import pytest
from store_rig import KIB, MIB, contents, key, keys, small_sim

from chm import pool as pools
from chm.events import EventLog
from chm.lookup import Lookup
from chm.master import (
    GRANTED,
    PENDING,
    PRESENT,
    REFUSED,
    Descriptor,
    LocalMaster,
)
from chm.policies import Place, Placement, PolicyError
from chm.pool import Member, Pool

SIZE = 64 * KIB


class Clock:
    """Virtual nanoseconds."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def __call__(self) -> int:
        return self.ns

    def pass_s(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock):
    members = [Member(name, device=small_sim()) for name in "abc"]
    for member in members:
        pools.format(member)
    with Pool(members, clock=clock) as pool:
        yield pool


def put(pool: Pool, node: int, some: list[bytes]) -> None:
    store = pool.nodes[node].store
    data = [contents(int.from_bytes(k, "little"), SIZE) for k in some]
    store.put(pool.nodes[node].ns("m"), some, data).result()


def do(master: LocalMaster, pool: Pool, request: str, some: list[bytes], after=None) -> list[int]:
    """Reserve, put, publish; the node of each."""
    grants = master.reserve(request, some, [SIZE] * len(some), after)
    for name, grant in zip(some, grants, strict=True):
        if grant.status == GRANTED:
            put(pool, grant.node, [name])
    granted = [k for k, g in zip(some, grants, strict=True) if g.status == GRANTED]
    assert master.publish(request, granted) == [True] * len(granted)
    return [grant.node for grant in grants]


def test_descriptors(pool: Pool) -> None:
    master = LocalMaster(pool, "m")
    put(pool, 1, keys(1, 2))
    put(pool, 2, keys(3, 1))
    found = master.lookup(keys(1, 4))
    assert [d and d.node for d in found] == [1, 1, 2, None]
    assert found[0] == Descriptor(1, found[0].addr, SIZE)
    pool.nodes[1].store.sync().result()
    read = pool.nodes[1].device.read(found[0].addr, SIZE)
    assert read.tobytes() == contents(1, SIZE).tobytes()
    stats = master.stats()
    assert (stats.lookups, stats.hits, stats.misses) == (4, 3, 1)
    assert LocalMaster(pool, "another model").lookup(keys(1, 4)) == [None] * 4


def test_reserved_keys_are_hidden_until_published(pool: Pool) -> None:
    log = EventLog()
    master = LocalMaster(pool, "m", log=log)
    grants = master.reserve("r", keys(1, 2), [SIZE] * 2)
    assert [g.status for g in grants] == [GRANTED] * 2
    put(pool, grants[0].node, keys(1, 2))
    assert master.lookup(keys(1, 2)) == [None, None]
    assert [g.status for g in master.reserve("s", keys(1, 3), [SIZE] * 3)] == [
        PENDING,
        PENDING,
        GRANTED,
    ]
    assert master.publish("s", keys(1, 2)) == [False, False]  # not its own
    assert master.publish("r", keys(1, 2)) == [True, True]
    assert [d.node for d in master.lookup(keys(1, 2))] == [grants[0].node] * 2
    assert [g.status for g in master.reserve("t", keys(1, 2), [SIZE] * 2)] == [PRESENT] * 2
    assert log.kinds("r") == ["reserve", "publish", "visible"]


def test_publishing_what_was_not_put(pool: Pool) -> None:
    master = LocalMaster(pool, "m")
    master.reserve("r", keys(1, 1), [SIZE])
    assert master.publish("r", keys(1, 1)) == [False]
    stats = master.stats()
    assert (stats.granted, stats.published, stats.aborted, stats.reserved) == (1, 0, 1, 0)


def test_reservations_expire(pool: Pool, clock: Clock) -> None:
    """In virtual time, to the nanosecond; what was put under them is gone, and the space is."""
    log = EventLog()
    master = LocalMaster(pool, "m", reservation_s=60.0, log=log)
    grants = master.reserve("r", keys(1, 2), [SIZE] * 2)
    put(pool, grants[0].node, keys(1, 1))
    clock.ns += 60_000_000_000 - 1
    assert master.stats().reserved == 2
    assert [g.status for g in master.reserve("s", keys(1, 2), [SIZE] * 2)] == [PENDING] * 2
    clock.ns += 1
    stats = master.stats()
    assert (stats.reserved, stats.reserved_bytes, stats.expired) == (0, 0, 2)
    assert master.publish("r", keys(1, 2)) == [False, False]
    assert pool.nodes[grants[0].node].store.stats().objects == 0
    assert [g.status for g in master.reserve("s", keys(1, 2), [SIZE] * 2)] == [GRANTED] * 2
    assert log.kinds("r") == ["reserve", "expire", "expire", "publish", "visible"]


def test_abort(pool: Pool) -> None:
    master = LocalMaster(pool, "m")
    grants = master.reserve("r", keys(1, 3), [SIZE] * 3)
    master.reserve("s", keys(9, 1), [SIZE])
    put(pool, grants[0].node, keys(1, 3))
    assert master.abort("r", keys(1, 1)) == 1
    assert master.abort("r") == 2
    assert master.abort("r") == 0
    assert pool.nodes[grants[0].node].store.stats().objects == 0
    stats = master.stats()
    assert (stats.reserved, stats.aborted) == (1, 3)
    assert stats.granted == stats.published + stats.aborted + stats.expired + stats.reserved


def test_a_request_stays_on_the_node_of_its_prefix(pool: Pool) -> None:
    master = LocalMaster(pool, "m")
    home = do(master, pool, "r1", keys(1, 4))
    assert len(set(home)) == 1
    other = do(master, pool, "r2", keys(10, 8))
    assert len(set(other)) == 1
    assert other[0] != home[0]  # the least loaded
    assert do(master, pool, "r3", keys(5, 2), after=key(4)) == home[:2]
    third = do(master, pool, "r4", keys(30, 1))
    assert {home[0], other[0], third[0]} == {0, 1, 2}
    assert (master.stats().moved_full, master.stats().moved_dead) == (0, 0)


def test_what_is_reserved_counts_as_load(pool: Pool) -> None:
    master = LocalMaster(pool, "m")
    nodes = [master.reserve(f"r{i}", [key(i)], [SIZE])[0].node for i in range(6)]
    assert sorted(nodes) == [0, 0, 1, 1, 2, 2]


def test_a_dead_node_is_replaced_and_counted(pool: Pool) -> None:
    """F15: what was there is a miss, no error; the next block of that request goes elsewhere."""
    master = LocalMaster(pool, "m")
    home = do(master, pool, "r", keys(1, 2))[0]
    master.reserve("r", [key(3)], [SIZE], key(2))  # remembered by the master
    pool.remove(home)
    assert master.lookup(keys(1, 2)) == [None, None]
    moved = master.reserve("r", [key(4)], [SIZE], key(3))
    assert moved[0].node != home
    assert master.stats().moved_dead == 1
    for number in {0, 1, 2} - {home}:
        pool.remove(number)
    assert [g.status for g in master.reserve("r", keys(7, 2), [SIZE] * 2)] == [REFUSED] * 2
    assert master.lookup(keys(1, 2)) == [None, None]


def test_a_full_node_is_replaced_and_counted(pool: Pool, clock: Clock) -> None:
    master = LocalMaster(pool, "m")
    home = do(master, pool, "r", keys(1, 2))[0]
    master.refused(home, -errno.ENOSPC)
    moved = master.reserve("r", [key(3)], [SIZE], key(2))[0].node
    assert moved != home
    assert master.stats().moved_full == 1
    clock.pass_s(1.0)
    assert master.reserve("r", [key(4)], [SIZE], key(2))[0].node == home
    data = pool.nodes[0].data_bytes
    grants = master.reserve("big", keys(50, 7), [data // 2 - MIB] * 7)
    assert [g.status for g in grants] == [GRANTED] * 6 + [REFUSED]
    assert sorted(g.node for g in grants[:6]) == [0, 0, 1, 1, 2, 2]


def test_round_robin_and_interleaved(pool: Pool) -> None:
    turn = LocalMaster(pool, "m", placement="whole-request:round-robin")
    assert do(turn, pool, "a", keys(1, 3)) == [0, 0, 0]
    assert do(turn, pool, "b", keys(11, 3)) == [1, 1, 1]
    assert do(turn, pool, "a2", keys(4, 2), after=key(3)) == [0, 0]
    spread = LocalMaster(pool, "m2", placement="interleave")
    grants = spread.reserve("c", keys(21, 6), [SIZE] * 6)
    assert [g.node for g in grants] == [0, 1, 2, 0, 1, 2]


def test_policies_of_yours_are_checked(pool: Pool) -> None:
    class Wild(Placement):
        def place(self, ask: Place) -> int | None:
            return 7

    class Last(Placement):
        def place(self, ask: Place) -> int | None:
            return len(ask.nodes) - 1

    assert LocalMaster(pool, "m", placement=Last()).reserve("r", [key(1)], [1])[0].node == 2
    with pytest.raises(PolicyError, match="node 7 of 3"):
        LocalMaster(pool, "m", placement=Wild()).reserve("r", [key(2)], [1])
    with pytest.raises(PolicyError, match="does not place whole objects"):
        LocalMaster(pool, "m", placement="stripe")


class Counting:
    """A master that counts how many keys it was asked for at once."""

    def __init__(self, there: int) -> None:
        self.there = there
        self.batches: list[int] = []

    def lookup(self, some):
        self.batches.append(len(some))
        return [
            Descriptor(0, 4096, SIZE) if int.from_bytes(k, "little") < self.there else None
            for k in some
        ]


def test_lookup_asks_in_batches_and_stops_at_the_first_miss() -> None:
    """F91: as many descriptors as keys of the run, in order, for any length."""
    for there in (0, 1, 31, 32, 33, 64, 100):
        master = Counting(there)
        found = Lookup(master).find("r", keys(0, 100))
        assert len(found.keys) == len(found.descriptors) == there
        assert found.keys == keys(0, there)
        assert max(master.batches) <= 32
        assert len(master.batches) == min(there // 32 + 1, 4)
    assert Lookup(Counting(5)).find("r", []).keys == []
    with pytest.raises(ValueError, match="between 1 and 32"):
        Lookup(Counting(5), batch=33)


def test_a_hole_ends_the_run(pool: Pool) -> None:
    put(pool, 0, keys(1, 8))
    pool.nodes[0].store.delete(pool.nodes[0].ns("m"), [key(4)]).result()
    found = Lookup(LocalMaster(pool, "m")).find("r", keys(1, 8))
    assert found.keys == keys(1, 3)
    assert found.nbytes == 3 * SIZE


def test_the_hint_goes_out_before_the_rest_is_asked_for() -> None:
    order: list[str] = []

    class Asked(Counting):
        def lookup(self, some):
            order.append("ask")
            return super().lookup(some)

    class Hints:
        def hint(self, request, some, descriptors) -> None:
            order.append(f"hint {len(some)} {len(descriptors)}")

    Lookup(Asked(70), Hints()).find("r", keys(0, 100))
    assert order == ["ask", "hint 32 32", "ask", "ask"]
    order.clear()
    Lookup(Asked(0), Hints()).find("r", keys(0, 100))
    assert order == ["ask"]
