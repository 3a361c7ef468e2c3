# SPDX-License-Identifier: Apache-2.0
"""The store against a dictionary: whatever is done to it, what it gives is right or a miss.

On a simulated device, in virtual time. The model knows what was put and is not deleted; the store
may have evicted some of it, never anything else, and never so that a chain is broken.
"""

from __future__ import annotations

import errno

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from store_rig import KIB, MIB, assert_closes, contents, key, small_sim

import chm

NUMBERS = st.integers(0, 40)
SIZES = st.sampled_from([1, 4095, 4096, 4097, 64 * KIB, 300 * KIB, MIB, MIB + 1, 3 * MIB + 5])


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.dev = small_sim(24 * MIB, dram_bytes=16 * MIB, write_buffer_bytes=8 * MIB)
        chm.store.format(self.dev)
        self.held: list[tuple[chm.ObjectLease, bytes]] = []
        self.model: dict[tuple[int, int], bytes] = {}
        self.serial = 0
        self.open()

    def open(self) -> None:
        self.store = chm.Store(self.dev)
        self.ns = [self.store.namespace("one"), self.store.namespace("two", quota="6MiB")]

    def fresh(self, nbytes: int) -> bytes:
        self.serial += 1
        return contents(self.serial, nbytes).tobytes()

    @rule(
        ns=st.integers(0, 1),
        numbers=st.lists(NUMBERS, min_size=1, max_size=6, unique=True),
        size=SIZES,
        wait=st.booleans(),
        chain=st.booleans(),
    )
    def put(self, ns: int, numbers: list[int], size: int, wait: bool, chain: bool) -> None:
        data = [self.fresh(size) for _ in numbers]
        some = [key(n) for n in numbers]
        there = self.store.exists(self.ns[ns], some).tolist()
        job = self.store.put(self.ns[ns], some, data, wait=wait, chain=chain).wait()
        for number, was, buf, status in zip(numbers, there, data, job.statuses, strict=True):
            if status == 0:
                self.model[ns, number] = buf
            elif status == chm.store.DUPLICATE:
                assert was
            else:
                assert -status in (
                    errno.EAGAIN,
                    errno.ENOSPC,
                    errno.EDQUOT,
                    errno.ENOLINK,
                    errno.ETIME,
                    errno.ENOENT,
                )

    @rule(ns=st.integers(0, 1), numbers=st.lists(NUMBERS, max_size=8))
    def look_up(self, ns: int, numbers: list[int]) -> None:
        some = [key(n) for n in numbers]
        found = self.store.exists(self.ns[ns], some).tolist()
        sizes = self.store.sizes(self.ns[ns], some).tolist()
        run = self.store.prefix(self.ns[ns], some, touch=False)
        assert run == next((i for i, hit in enumerate(found) if not hit), len(found))
        for number, hit, size in zip(numbers, found, sizes, strict=True):
            assert (size > 0) == hit
            if hit:
                assert size == len(self.model[ns, number])

    @rule(ns=st.integers(0, 1), number=NUMBERS, copy=st.booleans())
    def get(self, ns: int, number: int, copy: bool) -> None:
        size = int(self.store.sizes(self.ns[ns], [key(number)])[0])
        out = np.zeros(max(size, 1), np.uint8)
        job = self.store.get(self.ns[ns], [key(number)], [out], copy=copy).wait()
        if size:
            assert job.statuses[0] == 0
            assert out.tobytes() == self.model[ns, number]
        else:
            assert job.statuses[0] == -errno.ENOENT
            assert not out.any()

    @rule(ns=st.integers(0, 1), number=NUMBERS)
    def lease(self, ns: int, number: int) -> None:
        job = self.store.lease(self.ns[ns], [key(number)], timeout=0.01).wait()
        if job.statuses[0] == 0:
            self.held.append((job.leases[0], self.model[ns, number]))
        else:
            assert -job.statuses[0] in (errno.ENOENT, errno.EAGAIN, errno.E2BIG)

    @rule()
    def release(self) -> None:
        if self.held:
            lease, was = self.held.pop(0)
            assert b"".join(bytes(view) for view in lease.views()) == was
            lease.release()

    @rule(ns=st.integers(0, 1), number=NUMBERS)
    def delete(self, ns: int, number: int) -> None:
        if self.store.remove(self.ns[ns], key(number)):
            del self.model[ns, number]
        assert not self.store.exists(self.ns[ns], [key(number)])[0]

    @rule(nbytes=st.integers(0, 4 * MIB))
    def evict(self, nbytes: int) -> None:
        self.store.evict(nbytes)

    @rule()
    def sync(self) -> None:
        self.store.sync().result()

    @rule()
    def reopen(self) -> None:
        for lease, was in self.held:
            assert b"".join(bytes(view) for view in lease.views()) == was
            lease.release()
        self.held.clear()
        before = {(o.ns, o.key) for o in self.store.list()}
        self.store.close()
        self.open()
        assert self.store.info.clean
        assert {(o.ns, o.key) for o in self.store.list()} == before

    @initialize()
    def begin(self) -> None:
        assert self.store.stats().objects == 0

    @invariant()
    def what_is_there_was_put(self) -> None:
        objects = {(o.ns, o.key): o for o in self.store.list()}
        for (ns, name), o in objects.items():
            number = int.from_bytes(name, "little")
            assert o.length == len(self.model[self.ns.index(ns), number])
            assert o.parent is None or (ns, o.parent) in objects
        stats = self.store.stats()
        assert stats.objects == len(objects)
        assert stats.payload_bytes == sum(o.length for o in objects.values())
        info = self.store.info
        assert stats.used_bytes + stats.free_bytes + stats.limbo_bytes == info.data_bytes
        assert stats.leases == len(self.held)
        assert_closes(stats)

    def teardown(self) -> None:
        for lease, _ in self.held:
            lease.release()
        self.store.close()
        self.dev.close()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
