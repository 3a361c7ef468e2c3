# SPDX-License-Identifier: Apache-2.0
"""Object-level policies: the rule of each on small exact cases, and what their seams refuse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from chm.bench.index import BlockIndex
from chm.bench.room import Room
from chm.bench.selection import select
from chm.policies import (
    Eviction,
    Known,
    Node,
    Offer,
    Place,
    Placement,
    PolicyError,
    Prefetch,
    available,
    find,
)
from chm.policies.admission import AdmitAll, MinPrefix, SecondSight
from chm.policies.eviction import Fifo, LargestConversation, Lru, MayGo, Tail
from chm.policies.placement import WholeRequest
from chm.policies.prefetch import ThinkTime

Put = tuple[int, Sequence[int]]


def play(policy: Eviction, slots: int, puts: Sequence[Put]) -> tuple[BlockIndex, set[int]]:
    """Requests as (session, keys): hold what is there, add the rest, in order."""
    index = BlockIndex(slots, evict=True, policy=policy)
    for session, keys in puts:
        held = index.lookup(keys)
        for key in keys[len(held) :]:
            block = None if key in index else index.reserve(key, session)
            if block is None:
                break
            index.commit(block)
            block.pins += 1
            held.append(block)
        index.settle(keys)
        index.unpin(held)
    return index, {b.key for b in index.resident()}


# ---- eviction

TWO = [(0, [1, 2]), (1, [11, 12]), (0, [1, 2])]  # the second conversation was used less recently


def test_tail_drops_the_oldest_leaf() -> None:
    assert play(Tail(), 4, [*TWO, (2, [21])])[1] == {1, 2, 11, 21}


def test_lru_drops_the_oldest_root_and_breaks_the_chain() -> None:
    index, left = play(Lru(), 4, [*TWO, (2, [21])])
    assert left == {1, 2, 12, 21}
    assert index.lookup([11, 12]) == []


def test_fifo_drops_what_came_first_used_or_not() -> None:
    assert play(Fifo(), 4, [*TWO, (2, [21])])[1] == {2, 11, 12, 21}


def test_largest_drops_the_end_of_the_longest_conversation() -> None:
    puts = [(0, [1, 2]), (1, [11, 12, 13]), (2, [21])]
    assert play(LargestConversation(), 5, puts)[1] == {1, 2, 11, 12, 21}
    assert play(LargestConversation(), 5, [*puts, (2, [21, 22])])[1] == {1, 11, 12, 21, 22}


@pytest.mark.parametrize("policy", [Tail(), Lru(), Fifo(), LargestConversation()], ids=str)
def test_what_is_read_stays(policy: Eviction) -> None:
    index, _ = play(policy, 2, [(0, [1, 2])])
    held = index.lookup([1, 2])
    assert index.reserve(3, 1) is None
    index.unpin(held)
    assert index.reserve(3, 1) is not None


class Leased(Eviction):
    name = "leased"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def victim(self, may_go: MayGo) -> int | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (1, "leased chose block 1, which is being read"),
        (7, "leased chose block 7, which is not resident"),
        (KeyError("x"), "leased raised KeyError"),
    ],
)
def test_a_bad_victim_is_refused_and_nothing_is_lost(answer: object, told: str) -> None:
    index, _ = play(Leased(answer), 2, [(0, [1, 2])])
    held = index.lookup([1])
    with pytest.raises(PolicyError, match=told):
        index.reserve(3)
    assert {b.key for b in index.resident()} == {1, 2}
    assert index.evictions == 0
    index.unpin(held)
    assert len(index.lookup([1, 2])) == 2


# ---- admission


def offer(keys: Sequence[int], prefix: int | None = None) -> Offer:
    return Offer(0, keys, prefix or len(keys), 4096, 0)


def test_all_are_admitted() -> None:
    assert AdmitAll().admit(offer([1, 2, 3])) == 3


def test_second_sight_admits_the_run_that_was_offered_before() -> None:
    policy = SecondSight()
    assert policy.admit(offer([1, 2])) == 0
    assert policy.admit(offer([1, 2, 3])) == 2
    assert policy.admit(offer([3])) == 1
    assert policy.admit(offer([1])) == 0  # it was admitted, lost, and is new again


def test_second_sight_forgets_the_oldest() -> None:
    policy = SecondSight("3")
    for key in range(1000):
        assert policy.admit(offer([key])) == 0
        assert len(policy._seen) <= 3
    assert policy.admit(offer([996])) == 0
    assert policy.admit(offer([999])) == 1


def test_min_prefix_counts_the_whole_request() -> None:
    policy = MinPrefix("4")
    assert policy.admit(offer([4], prefix=3)) == 0
    assert policy.admit(offer([4], prefix=4)) == 1


# ---- placement


def test_round_robin_and_least_loaded() -> None:
    nodes = [Node(0, 500, 500), Node(1, 100, 900), Node(2, 100, 900)]
    turn, load = WholeRequest(), WholeRequest("least-loaded")
    assert [turn.place(Place(s, s, 1, None, nodes)) for s in range(4)] == [0, 1, 2, 0]
    assert load.place(Place(0, 0, 1, None, nodes)) == 1
    assert load.place(Place(0, 1, 1, 2, nodes)) == 2  # its request is there


def test_slots_lie_on_the_member_of_their_stripe_unit() -> None:
    room = Room(8, 4096, WholeRequest(), nodes=2, unit_bytes=8192)
    assert [room.node_of(s) for s in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [room.address(s) for s in range(4)] == [0, 4096, 8192, 12288]
    assert [room.take(1) for _ in range(4)] == [2, 3, 6, 7]
    assert room.misplaced == 0
    assert room.take(1) == 0  # node 1 is full
    assert room.misplaced == 1
    assert [(n.used_bytes, n.free_bytes) for n in room.nodes] == [(4096, 12288), (16384, 0)]


class Nowhere(Placement):
    name = "nowhere"

    def place(self, ask: Place) -> int | None:
        return 2


def test_a_bad_node_is_refused() -> None:
    index = BlockIndex(Room(4, 4096, Nowhere(), nodes=2, unit_bytes=4096), evict=True)
    with pytest.raises(PolicyError, match="nowhere chose node 2 of 2"):
        index.reserve(1)
    assert len(index) == 0
    assert [n.used_bytes for n in index.room.nodes] == [0, 0]


# ---- prefetch


def test_think_time_stages_what_fits() -> None:
    known = Known(0, [5, 6, 7], 4096, 0, 0, room_bytes=2 * 4096 + 1)
    assert list(ThinkTime().turn_ended(known)) == [5, 6]
    assert list(Prefetch().turn_ended(known)) == []
    assert find("none").make().ahead_bytes(known) == 0  # type: ignore[attr-defined]


# ---- names


def test_defaults_come_first_and_every_policy_says_what_it_does() -> None:
    assert select("").to_dict() == {
        "prefetch": "ahead",
        "eviction": "evict-tail",
        "admission": "admit-all",
        "placement": "stripe",
    }
    assert all(p.__doc__ for p in available())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("evict-lur", "did you mean 'evict-lru'"),
        ("widnow", "did you mean 'window'"),
        ("evict-lru+evict-fifo", "evict-lru and evict-fifo both decide eviction"),
        ("lru+fifo", "both decide device cache"),
        ("min-prefix:x", "'x' is no count"),
        ("whole-request:random", "neither round-robin nor least-loaded"),
        ("no_such_module_here:Class", "ModuleNotFoundError"),
        ("pathlib:Path", "is no subclass of"),
    ],
)
def test_bad_names(text: str, told: str) -> None:
    with pytest.raises(PolicyError, match=told):
        select(text)


def test_a_class_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_policy_a.py").write_text(
        "from chm.policies import Admission\n"
        "class Half(Admission):\n"
        "    def admit(self, offer):\n"
        "        return len(offer.keys) // 2\n"
    )
    monkeypatch.chdir(tmp_path)
    chosen = select("own_policy_a:Half")
    assert chosen.admission().admit(offer([1, 2, 3])) == 1
    assert chosen.to_dict()["admission"] == "own_policy_a:Half"
