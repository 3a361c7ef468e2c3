# SPDX-License-Identifier: Apache-2.0
"""Many threads on one small tier: whatever they do at once, each task is told once and each byte
that is told to have come is right."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from conformance import wait_until
from tier_rig import KIB, keys

from chm.connectors import Done, Tier, TierOptions
from chm.errors import Closed

ROW = 16 * KIB
BLOCKS = 200
STEPS = 150
THREADS = 6


class Crowd:
    """What the threads share: tasks that were submitted, and what was told of them."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.lock = threading.Lock()
        self.submitted: dict[int, tuple[int, Any]] = {}  # task -> first block, rows
        self.told: Counter[int] = Counter()
        self.wrong: list[object] = []
        self.good = 0
        self.requests = itertools.count()

    def submit(self, call: Callable[[], int], first: int, rows: Any) -> None:
        with self.lock:  # before anybody can be told of it
            self.submitted[call()] = (first, rows)

    def take(self, done: list[Done]) -> None:
        with self.lock:
            for one in done:
                self.told[one.task] += 1
                first, rows = self.submitted[one.task]
                self.good += sum(one.ok)
                for i, ok in enumerate(one.ok):
                    if ok and one.op == "get" and not np.array_equal(rows[i], block(first + i)):
                        self.wrong.append((one.task, first + i))

    def step(self, draw: random.Random) -> None:
        first, n = draw.randrange(BLOCKS), draw.randrange(1, 50)
        some = keys(first, n)
        what = draw.choice(["put", "get", "get", "drain", "exists", "hint", "cancel", "other"])
        if what == "put":
            rows = np.stack([block(first + i) for i in range(n)])
            before = keys(first - 1, 1)[0] if first else None
            self.submit(lambda: self.tier.put(None, some, list(rows), before), first, rows)
        elif what == "get":
            rows = np.zeros((n, ROW), np.uint8)
            self.submit(lambda: self.tier.get(None, some, list(rows)), first, rows)
        elif what == "drain":
            self.take(self.tier.drain())
        elif what == "exists":
            self.tier.touch(some[: self.tier.exists(some).count(True)])
        elif what == "hint":
            self.tier.hint(next(self.requests), some)
        elif what == "cancel":
            self.tier.cancel(draw.randrange(next(self.requests) + 1))
        else:
            self.rare(draw, some)

    def rare(self, draw: random.Random, some: list[bytes]) -> None:
        """What other tiers and the store itself do meanwhile."""
        tier = self.tier
        draw.choice(
            [
                lambda: tier.store.evict(20 * ROW),
                lambda: tier.store.delete(tier._ns, some[:3]),
                lambda: tier.mark_missing(some[:1]),
                lambda: tier.wait(0.001),
                lambda: (tier.stats(), tier.busy),
            ]
        )()

    def work(self, seed: int) -> None:
        draw = random.Random(seed)
        try:
            for _ in range(STEPS):
                self.step(draw)
        except BaseException as error:
            self.wrong.append(error)


def block(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, ROW, np.uint8)


def run(targets: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    wait_until("threads", lambda: not any(thread.is_alive() for thread in threads))


@pytest.mark.parametrize("direct", [False, True])
def test_a_crowd(options: TierOptions, direct: bool) -> None:
    """Window and write buffer are small, the device holds fewer blocks than are put."""
    small = options.replace(dram="4MiB", capacity="3MiB", block_bytes=ROW, direct=direct)
    small = small.replace(deadline_s=2.0)
    with Tier(small, "n") as tier:
        crowd = Crowd(tier)
        run([partial(crowd.work, seed) for seed in range(THREADS)])
        assert tier.wait(60.0)
        crowd.take(tier.drain())
        assert crowd.wrong == []
        assert crowd.told == Counter(crowd.submitted.keys())
        assert crowd.good > 0
        stats = tier.stats()
        assert stats.tasks_running == 0
        assert stats.lookups == stats.hits + stats.misses
        keys_told = stats.get_ok + stats.get_failed + stats.put_ok + stats.put_failed
        assert keys_told == sum(len(rows) for _, rows in crowd.submitted.values())
        for request in range(next(crowd.requests)):
            tier.cancel(request)
        stats = tier.stats()
        assert stats.hints == stats.hints_used + stats.hints_expired + stats.hints_cancelled
        wait_until("leases", lambda: (tier.drain(), tier.store.stats().leases)[1] == 0)


@pytest.mark.parametrize("seed", range(5))
def test_closing_in_a_crowd(options: TierOptions, seed: int) -> None:
    """Closed by three threads at once while others work: each task is told by one of them."""
    tier = Tier(options, "n")
    crowd = Crowd(tier)
    start = threading.Barrier(7)

    def work(number: int) -> None:
        start.wait()
        crowd.work(10 * seed + number)

    def close() -> None:
        start.wait()
        crowd.take(tier.close())

    run([partial(work, i) for i in range(4)] + [close] * 3)
    crowd.take(tier.drain())
    assert [one for one in crowd.wrong if not isinstance(one, Closed)] == []
    assert crowd.told == Counter(crowd.submitted.keys())
