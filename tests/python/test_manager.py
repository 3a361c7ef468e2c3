# SPDX-License-Identifier: Apache-2.0
"""The KV manager: windows and fairness, deadlines, hints, refused writes; and a request's whole way
through lookup, master and manager, in the order in which the paper tells it."""

from __future__ import annotations

import errno
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from kit import run_python
from store_rig import KIB, MIB, blocks, contents, filled, key, keys, small_sim

import chm
from chm import pool as pools
from chm.events import EventLog
from chm.lookup import Lookup
from chm.manager import Manager
from chm.master import LocalMaster
from chm.pool import Member, Pool

SIZE = 256 * KIB


class FirstClock:
    """The clock of a device, which stands still when that is closed."""

    def __init__(self, device: chm.Device) -> None:
        self.device, self.last = device, 0

    def __call__(self) -> int:
        if not self.device.closed:
            self.last = self.device.now()
        return self.last


class House:
    """A pool of simulated devices with all that is above it, on the clock of the first device."""

    def __init__(self, nodes: int = 1, device: dict | None = None, **fields) -> None:
        members = [Member(str(i), device=small_sim(**(device or {}))) for i in range(nodes)]
        for member in members:
            pools.format(member)
        self.pool = Pool(members, clock=FirstClock(members[0].device))
        self.log = EventLog()
        self.master = LocalMaster(self.pool, "m", log=self.log)
        self.manager = Manager(self.pool, self.master, "m", log=self.log, **fields)
        self.lookup = Lookup(self.master, self.manager, log=self.log)

    def __enter__(self) -> House:
        return self

    def __exit__(self, *_) -> None:
        self.manager.close()
        self.pool.close()

    def fill(self, first: int, n: int, nbytes: int = SIZE, request: str = "fill") -> None:
        data = list(blocks(first, n, nbytes))
        outcome = self.manager.put(request, keys(first, n), data, retries=200)
        assert outcome.missing == []
        for node in self.pool.nodes:
            if node.readable:
                node.store.sync().result()

    def find(self, first: int, n: int, request: str = "r"):
        return self.lookup.find(request, keys(first, n))

    def leases(self) -> int:
        return sum(node.store.stats().leases for node in self.pool.nodes if node.readable)


def test_the_walkthrough() -> None:
    """A turn: look up, hint, answer, get; compute the rest; reserve, put, publish, visible."""
    with House(2) as house:
        house.fill(1, 40)
        house.log.events.clear()
        found = house.find(1, 50, "turn 2")
        assert found.keys == keys(1, 40)
        with house.manager.read(found) as reader:
            seen = [bytes(lease.array()[:64]) for lease in reader]
        assert seen == [contents(i, SIZE)[:64].tobytes() for i in range(1, 41)]
        assert reader.outcome.complete
        new = keys(41, 10)
        assert house.find(41, 10, "somebody else").keys == []
        outcome = house.manager.put("turn 2", new, list(blocks(41, 10, SIZE)), after=key(40))
        assert (outcome.stored, outcome.missing) == (10, [])
        assert house.find(1, 50, "turn 3").keys == keys(1, 50)
        kinds = house.log.kinds("turn 2")
        assert kinds == ["hint", "lookup", "get", "reserve", "put", "publish", "visible"]
        events = {event.kind: event for event in house.log.events if event.request == "turn 2"}
        assert events["hint"].keys == tuple(keys(1, 32))
        assert events["lookup"].keys == events["get"].keys == tuple(keys(1, 40))
        assert events["visible"].keys == tuple(new)
        home = {place.node for place in house.find(1, 50, "turn 4").descriptors}
        assert len(home) == 1  # a request lies on one node
        assert house.manager.stats().hints_used == 1
        house.manager.cancel("turn 3")
        house.manager.cancel("turn 4")
        house.manager.cancel("somebody else")
        house.pool.nodes[0].store.poll()
        assert house.leases() == 0


def test_loading_into_memory_with_and_without_a_hint() -> None:
    with House() as house:
        house.fill(1, 12)
        for hint in (True, False):
            found = house.find(1, 12)
            if not hint:
                house.manager.cancel("r")
            out = np.zeros((12, SIZE), np.uint8)
            outcome = house.manager.load(found, list(out)).wait()
            assert (outcome.usable, outcome.recompute, outcome.status) == (12, [], 0)
            assert np.array_equal(out, blocks(1, 12, SIZE))
        assert house.leases() == 0
        stats = house.manager.stats()
        assert (stats.hints, stats.hints_used, stats.hints_cancelled) == (2, 1, 1)
        assert stats.blocks_asked == stats.blocks_usable == 24


def test_a_block_goes_between_look_up_and_get() -> None:
    """F15, F94: a usable prefix, and exactly the keys that are to be computed again."""
    with House() as house:
        house.fill(1, 12)
        for stage in (True, False):
            found = house.find(1, 12)
            house.manager.cancel("r")
            house.pool.nodes[0].store.delete(house.pool.nodes[0].ns("m"), [key(8)]).result()
            if stage:
                with house.manager.read(found) as reader:
                    assert sum(1 for _ in reader) == 7
                outcome = reader.outcome
            else:
                outcome = house.manager.load(found, list(np.zeros((12, SIZE), np.uint8))).wait()
            assert outcome.usable == 7
            assert outcome.recompute == keys(8, 5)
            assert outcome.status == -errno.ENOENT
            house.fill(8, 1, request="again")
        assert house.leases() == 0


def test_a_node_that_goes_away_while_it_is_read() -> None:
    with House(2) as house:
        house.fill(1, 8)
        found = house.find(1, 8)
        house.manager.cancel("r")
        house.pool.remove(found.descriptors[0].node)
        outcome = house.manager.load(found, list(np.zeros((8, SIZE), np.uint8))).wait()
        assert (outcome.usable, outcome.recompute) == (0, keys(1, 8))
        assert outcome.status < 0
        assert house.find(1, 8, "s").keys == []


def test_the_deadline_leaves_a_usable_prefix() -> None:
    """F94: 20 ms a read, one piece after the other: after 10 s exactly so many blocks are there,
    and what came too late is not a hit any more. Virtual time: the same in every run."""
    device = {"read_rate": 1 * MIB}  # a block takes 0.25 s
    with House(device=device) as house:
        house.fill(1, 50)
        found = house.find(1, 50)
        house.manager.cancel("r")
        begin = house.manager.now()
        out = np.zeros((50, SIZE), np.uint8)
        reader = house.manager.load(found, list(out), deadline_s=5.0)
        outcome = reader.wait()
        took = house.manager.now() - begin
        assert outcome.status == -errno.ETIME
        assert isinstance(reader.error(), chm.Expired)
        assert 0 < outcome.usable <= 20
        assert outcome.recompute == keys(1 + outcome.usable, 50 - outcome.usable)
        assert np.array_equal(out[: outcome.usable], blocks(1, outcome.usable, SIZE))
        assert 5_000_000_000 <= took < 6_000_000_000
        assert house.manager.stats().reads_late == 1
        again = house.find(1, 50, "s")
        assert len(again.keys) >= outcome.usable
        house.manager.cancel("s")


def test_windows_are_bounded_and_fair() -> None:
    """Eight requests at once: together they never hold more than the window; each can go on; none
    is served twice while another waits."""
    with House() as house:
        window = house.pool.nodes[0].window_bytes
        house.fill(1, 64)
        readers = [house.manager.read(house.find(1 + 8 * i, 8, f"r{i}")) for i in range(8)]
        took, stood = [0] * 8, [0] * 8
        while any(took[i] < 8 for i in range(8)):
            for i, reader in enumerate(readers):
                if took[i] == 8:
                    continue
                try:
                    lease = reader.take()
                except chm.Deadlock:  # its turn comes when others have given back
                    stood[i] += 1
                    continue
                number = 1 + 8 * i + took[i]
                assert np.array_equal(lease.array()[:100], contents(number, SIZE)[:100])
                took[i] += 1
                del lease
                held = sum(sum(r.held.values()) for r in readers)
                assert held <= window
                assert house.pool.nodes[0].device.stats().window_used_bytes <= window
        assert stood[:7] == [0] * 7
        assert stood[7] <= 2
        for reader in readers:
            assert reader.take() is None
            assert reader.outcome.complete
            assert sum(reader.held.values()) == 0


def test_an_early_request_cannot_starve_later_ones() -> None:
    """The first holds most of the window, the second gets what is left, the third waits; then what
    the first gives back goes to the third, not to the second."""
    with House() as house:
        window = house.pool.nodes[0].window_bytes
        house.fill(1, 88)
        founds = [house.find(1, 40, "a"), house.find(41, 40, "b"), house.find(81, 8, "c")]
        for name in "abc":
            house.manager.cancel(name)
        one, two = house.manager.read(founds[0]), house.manager.read(founds[1])
        first = sum(one.held.values())
        assert first == 40 * SIZE
        assert sum(two.held.values()) == window - first
        three = house.manager.read(founds[2])
        assert not three.admitted
        for _ in range(3):  # what was taken is given back when the next is
            assert not three.admitted
            one.take()
            assert sum(two.held.values()) == window - first
        assert three.admitted
        assert three.take().length == SIZE
        for reader in (one, two, three):
            assert sum(sum(r.held.values()) for r in (one, two, three)) <= window
            reader.close()


@pytest.mark.parametrize("stage", [True, False])
def test_shares_are_equal_and_at_most_the_window_of_a_request(stage: bool) -> None:
    with House(window="2MiB") as house:
        house.fill(1, 60)
        founds = [house.find(1 + 20 * i, 20, f"r{i}") for i in range(3)]
        for i in range(3):
            house.manager.cancel(f"r{i}")
        out = [list(np.zeros((20, SIZE), np.uint8)) for _ in range(3)]
        readers = [
            house.manager.read(found) if stage else house.manager.load(found, out[i])
            for i, found in enumerate(founds)
        ]
        assert [sum(reader.held.values()) for reader in readers] == [2 * MIB] * 3
        for reader in readers:
            reader.close()


def test_many_requests_get_by_with_double_buffering() -> None:
    """Sixteen requests with blocks of which two fill an eighth of the window: eight are admitted,
    with two blocks each, the others in order as these end."""
    with House() as house:
        window = house.pool.nodes[0].window_bytes
        size = window // 16
        n = 8
        house.fill(1, n * 2, nbytes=size)
        founds = [house.find(1 + 2 * i, 2, f"r{i}") for i in range(n)]
        for i in range(n):
            house.manager.cancel(f"r{i}")
        readers = [house.manager.read(found) for found in founds + founds]
        assert [r.admitted for r in readers] == [True] * 8 + [False] * 8
        assert [sum(r.held.values()) for r in readers[:8]] == [2 * size] * 8
        with pytest.raises(chm.Deadlock, match="let one of them go on"):
            readers[8].take()
        for i, reader in enumerate(readers[:8]):
            assert sum(1 for _ in reader) == 2
            assert [r.admitted for r in readers[8:]] == [True] * (i + 1) + [False] * (7 - i)
        for reader in readers[8:]:
            assert sum(1 for _ in reader) == 2


def test_a_consumer_that_holds_too_much_is_told() -> None:
    with House(window="1MiB") as house:
        house.fill(1, 12)
        with house.manager.read(house.find(1, 12)) as reader:
            views = []
            refused = None
            while refused is None:
                try:
                    views.append(reader.take().view())
                except chm.Deadlock as error:
                    refused = error
            assert "drop views" in str(refused)
            assert len(views) >= 2
            views.clear()
            assert sum(1 for _ in reader) == 12 - reader.usable or reader.outcome.complete
        assert reader.outcome.complete


def test_closing_a_reader_with_a_view_alive() -> None:
    with House() as house:
        house.fill(1, 4)
        reader = house.manager.read(house.find(1, 4))
        view = reader.take().view()
        with pytest.raises(BufferError):
            reader.close()
        assert view[:10] == contents(1, SIZE)[:10].tobytes()
        del view
        reader.close()
        assert reader.outcome.status == -errno.ECANCELED
        house.pool.nodes[0].store.poll()
        assert house.leases() == 0


def test_blocks_larger_than_the_window() -> None:
    """They cannot be staged, and are loaded all the same."""
    with House() as house:
        window = house.pool.nodes[0].window_bytes
        size = window + MIB
        house.fill(1, 1, nbytes=size)
        found = house.find(1, 1)
        house.manager.cancel("r")
        with house.manager.read(found) as reader:
            assert reader.take() is None
        assert reader.outcome.status == -errno.E2BIG
        out = chm.aligned_empty(size)
        assert house.manager.load(found, [out]).wait().complete
        assert np.array_equal(out, contents(1, size))


def test_hints_expire_and_are_cancelled_with_their_request() -> None:
    """F13: in virtual time; nothing stays pinned for a request that never came."""
    with House(hint_s=60.0) as house:
        device = house.pool.nodes[0].device
        house.fill(1, 4)
        house.find(1, 4, "never comes")
        house.find(1, 4, "is cancelled")
        house.manager.cancel("is cancelled")
        house.pool.nodes[0].store.poll()
        device.step(device.now() + 59_000_000_000)
        while device.now() < 59_000_000_000:
            device.step(59_000_000_000)
        assert house.manager.stats().hints_now == 1
        until = device.now() + 60_000_000_000
        while device.now() < until:
            device.step(until)
        stats = house.manager.stats()
        assert (stats.hints_now, stats.hints_expired, stats.hints_cancelled) == (0, 1, 1)
        house.pool.nodes[0].store.poll()
        house.pool.nodes[0].store.exists(0, [])
        assert house.leases() == 0
        assert house.pool.nodes[0].store.stats().pins == 0


def test_hints_give_way_to_requests_that_read() -> None:
    with House() as house:
        size = house.pool.nodes[0].window_bytes // 4
        house.fill(1, 4, nbytes=size)
        for i in range(2):
            house.find(1 + 2 * i, 2, f"hinted {i}")
        assert house.manager.stats().hints_now == 2
        found = house.find(1, 4, "reads")
        with house.manager.read(found) as reader:
            assert sum(1 for _ in reader) == 4
        assert house.manager.stats().hints_cancelled >= 1


def test_skipped_writes_are_counted_and_put_again() -> None:
    """F35: a full write buffer never holds a request up; what is missing is said exactly, and a
    retry begins there."""
    device = {"write_rate": 4 * MIB, "dram_bytes": 24 * MIB, "write_buffer_bytes": 4 * MIB}
    with House(device=device) as house:
        data = list(blocks(1, 40, SIZE))
        begin = house.manager.now()
        outcome = house.manager.put("r", keys(1, 40), data)
        assert house.manager.now() - begin < 1_000_000_000
        assert 0 < outcome.stored < 40
        assert outcome.missing == keys(1 + outcome.stored, 40 - outcome.stored)
        assert outcome.status == -errno.EAGAIN
        stats = house.manager.stats()
        assert stats.skipped_buffer == 1
        assert stats.skipped_chain == len(outcome.missing) - 1
        assert house.master.stats().reserved == 0
        assert house.find(1, 40, "s").keys == keys(1, outcome.stored)
        house.manager.cancel("s")
        n = outcome.stored
        again = house.manager.put("r", outcome.missing, data[n:], after=key(n), retries=100)
        assert again.missing == []
        assert house.find(1, 40, "t").keys == keys(1, 40)
        stats = house.manager.stats()
        assert stats.put_retries > 0
        skipped = sum(v for k, v in stats.to_dict().items() if k.startswith("skipped"))
        assert stats.put_keys == stats.admitted + stats.duplicate + skipped + stats.put_failed
        parents = {o.key: o.parent for o in house.pool.nodes[0].store.list()}
        assert parents[key(n + 1)] == key(n)


def test_a_full_store_that_can_evict_is_waited_for() -> None:
    """A put that may wait for room does so: one refusal for lack of space, which it had not waited
    for, does not turn the whole pool away for a second."""
    with House(2) as house:
        for first in range(1, 1001, 100):
            data = list(blocks(first, 100, SIZE))
            outcome = house.manager.put(str(first), keys(first, 100), data, retries=3, retry_s=30.0)
            assert (outcome.stored, outcome.missing) == (100, [])
        assert house.pool.nodes[0].store.stats().evicted > 0
        assert house.manager.stats().skipped_no_node == 0


def test_putting_again_what_is_there() -> None:
    """F31: counted as duplicates, written once."""
    with House(2) as house:
        data = list(blocks(1, 4, SIZE))
        assert house.manager.put("r", keys(1, 4), data).stored == 4
        again = house.manager.put("s", keys(1, 6), [*data, *blocks(5, 2, SIZE)])
        assert (again.stored, again.duplicate, again.missing) == (2, 4, [])
        assert sum(node.store.stats().objects for node in house.pool.nodes) == 6
        places = house.find(1, 6).descriptors
        assert len({place.node for place in places}) == 1


def test_no_node_is_left() -> None:
    with House() as house:
        house.pool.remove(0)
        outcome = house.manager.put("r", keys(1, 2), list(blocks(1, 2, SIZE)))
        assert (outcome.stored, outcome.missing) == (0, keys(1, 2))
        stats = house.manager.stats()
        assert (stats.skipped_no_node, stats.skipped_chain) == (1, 1)
        assert house.find(1, 2).keys == []


def test_polling_never_waits(tmp_path) -> None:
    """F29, F94 with a device thread: a load is polled to its end; a bad read ends it there."""
    path = tmp_path / "a.chm"
    reads = filled(path, 8, 64 * KIB)
    member = Member(
        "a", path, options={"dram_bytes": "32MiB", "fault": {"script": f"{reads + 5} read err 5"}}
    )
    with Pool([member]) as pool:
        master = LocalMaster(pool, "a")
        manager = Manager(pool, master, "a")
        found = Lookup(master).find("r", keys(1, 8))
        out = list(np.zeros((8, 64 * KIB), np.uint8))
        reader = manager.load(found, out)
        while not reader.ended:
            reader.poll()
        outcome = reader.outcome
        assert outcome.status == -errno.EIO
        assert outcome.usable + len(outcome.recompute) == 8
        for i in range(outcome.usable):
            assert np.array_equal(out[i], contents(1 + i, 64 * KIB))
        assert manager.stats().reads_failed == 1


def test_threads_read_and_write_at_once(tmp_path) -> None:
    """More requests than windows, each in a thread: all get all of their bytes."""
    member = Member("a", tmp_path / "a.chm", options={"dram_bytes": "24MiB"})
    pools.format(member, "128MiB")
    with Pool([member]) as pool:
        master = LocalMaster(pool, "m")
        with Manager(pool, master, "m", window="1MiB", deadline_s=60.0) as manager:
            lookup = Lookup(master, manager)
            wrong: list[object] = []

            def work(me: int) -> None:
                try:
                    for turn in range(3):
                        first = 1000 * me + 10 * turn
                        after = key(first - 1) if turn else None
                        outcome = manager.put(
                            f"{me}",
                            keys(first, 10),
                            list(blocks(first, 10, SIZE)),
                            after=after,
                            retries=500,
                        )
                        found = lookup.find(f"{me}", keys(1000 * me, 10 * (turn + 1)))
                        with manager.read(found) as reader:
                            for i, lease in enumerate(reader):
                                same = np.array_equal(lease.array(), contents(1000 * me + i, SIZE))
                                if not same:
                                    wrong.append((me, i))
                        if outcome.missing or not reader.outcome.complete or not found.keys:
                            wrong.append((me, turn, outcome, reader.outcome))
                except BaseException as error:
                    wrong.append(error)

            threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 9)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert wrong == []
            stats = manager.stats()
            assert stats.readers == 0
            assert stats.blocks_asked == stats.blocks_usable + stats.blocks_recompute
            pool.nodes[0].store.poll()
            pool.nodes[0].store.exists(0, [])
            assert pool.nodes[0].store.stats().leases == 0


def rate(nodes: int, members: int, requests: int, placement: str) -> float:
    """Bytes per virtual ns of so many requests of 32 MiB, over drives of 2 GB/s."""
    made = [
        Member(str(i), device=chm.sim("512MiB", members=members, dram_bytes="192MiB"))
        for i in range(nodes)
    ]
    for member in made:
        pools.format(member)
    with Pool(made) as pool:
        master = LocalMaster(pool, "m", placement=placement)
        manager = Manager(pool, master, "m")
        data = list(np.zeros((32, MIB), np.uint8))
        for i in range(requests):
            assert manager.put(f"{i}", keys(100 * i, 32), data, retries=99).missing == []
        for node in pool.nodes:
            node.store.sync().result()
        begin = [node.device.now() for node in pool.nodes]
        left = [
            manager.read(Lookup(master).find(f"{i}", keys(100 * i, 32))) for i in range(requests)
        ]
        while left:
            left = [reader for reader in left if reader.take() is not None]
        took = [node.device.now() - b for node, b in zip(pool.nodes, begin, strict=True)]
        return requests * 32 * MIB / max(took)


def test_what_striping_and_pooling_give() -> None:
    """The table of docs/sizing.md."""
    whole, spread = "whole-request:least-loaded", "interleave"
    assert rate(1, 2, 1, whole) == pytest.approx(4.0, rel=0.03)  # striped: both drives for one
    assert rate(2, 1, 1, whole) == pytest.approx(2.0, rel=0.03)  # pool: one drive for one
    assert rate(2, 1, 1, spread) == pytest.approx(4.0, rel=0.03)
    assert rate(1, 2, 2, whole) == pytest.approx(4.0, rel=0.03)
    assert rate(2, 1, 2, whole) == pytest.approx(4.0, rel=0.03)  # two use both


@pytest.mark.parametrize("late", [False, True])  # without: killed when sync has just returned
def test_killed_and_started_again(tmp_path, late: bool) -> None:
    """F42, at the level of requests: after kill -9 all that was durable is there on both nodes,
    right, and the master knows it without having kept anything."""
    members = [
        Member(name, tmp_path / f"{name}.chm", options={"dram_bytes": "32MiB"}) for name in "ab"
    ]
    for member in members:
        pools.format(member, "64MiB")
    run = run_python(
        f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from store_rig import blocks, keys
from chm.lookup import Lookup
from chm.manager import Manager
from chm.master import LocalMaster
from chm.pool import Member, Pool
pool = Pool([Member(n, f"{tmp_path}/{{n}}.chm", options={{"dram_bytes": "32MiB"}}) for n in "ab"])
master = LocalMaster(pool, "m")
manager = Manager(pool, master, "m")
for request in range(4):
    first = 100 * request
    outcome = manager.put(str(request), keys(first, 8), list(blocks(first, 8, 65536)), retries=9)
    assert not outcome.missing
for node in pool.nodes:
    node.store.sync().result()
if {late}:
    manager.put("late", keys(900, 2), list(blocks(900, 2, 65536)))
    master.reserve("never", keys(950, 2), [65536] * 2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    with Pool(members) as pool:
        assert [node.state for node in pool.nodes] == ["up", "up"]
        assert [node.store.info.clean for node in pool.nodes] == [False, False]
        master = LocalMaster(pool, "m")
        manager = Manager(pool, master, "m")
        homes = set()
        for first in (0, 100, 200, 300):
            found = Lookup(master).find("r", keys(first, 8))
            assert found.keys == keys(first, 8)
            homes |= {place.node for place in found.descriptors}
            out = np.zeros((8, 64 * KIB), np.uint8)
            assert manager.load(found, list(out)).wait().complete
            assert np.array_equal(out, blocks(first, 8, 64 * KIB))
        assert homes == {0, 1}
        for number, there in enumerate(master.lookup(keys(900, 2))):
            if there is not None:
                node = pool.nodes[there.node]
                got = node.store.read(node.ns("m"), key(900 + number))
                assert np.array_equal(got, contents(900 + number, 64 * KIB))
        assert master.lookup(keys(950, 2)) == [None, None]
