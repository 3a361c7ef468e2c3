# SPDX-License-Identifier: Apache-2.0
"""The LMCache connector, called as its host does: by descriptor, one batch at a time."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from drive_lmcache import key_text, params_of
from driver import Identity

from chm.connectors import TierOptions, key_of
from chm.connectors.lmcache import Answer, ChmL2, Lines, _Taste, line_of

KIB = 1 << 10
ROW = 64 * KIB
HANG_MS = 60_000


class Host:
    """Sleeps on the descriptor and drains, as the demux thread of LMCache."""

    def __init__(self, l2: ChmL2) -> None:
        self.l2 = l2
        self.poll = select.poll()
        self.poll.register(l2.event_fd(), select.POLLIN)
        self.ended: dict[int, Answer] = {}

    def drain(self) -> None:
        for answer in self.l2.drain_completions():
            assert answer[0] not in self.ended, "told twice"
            self.ended[answer[0]] = answer

    def answer(self, number: int) -> Answer:
        while number not in self.ended:
            assert self.poll.poll(HANG_MS), "nothing woke the host"
            self.drain()
        return self.ended[number]

    def ok(self, number: int) -> list[bool]:
        ok = self.answer(number)[3]
        assert ok is not None
        return ok

    def put(self, keys: list[str], rows: Any) -> list[bool]:
        return self.ok(self.l2.submit_batch_set(keys, list(map(memoryview, rows))))

    def get(self, keys: list[str], rows: Any) -> list[bool]:
        return self.ok(self.l2.submit_batch_get(keys, list(map(memoryview, rows))))

    def exists(self, keys: list[str]) -> list[bool]:
        return self.ok(self.l2.submit_batch_exists(keys))

    def parents(self) -> dict[bytes, bytes | None]:
        return {o.key: o.parent for o in self.l2.tier.store.list()}


@pytest.fixture
def l2(options: TierOptions) -> Iterator[ChmL2]:
    made = ChmL2(**params_of(options))
    yield made
    made.close()


@pytest.fixture
def host(l2: ChmL2) -> Host:
    return Host(l2)


def keys(first: int, n: int, group: int = 0, **identity: Any) -> list[str]:
    return [key_text(Identity(**identity), i, group) for i in range(first, first + n)]


def rows(n: int, nbytes: int = ROW) -> Any:
    return np.random.default_rng(n).integers(0, 256, (n, nbytes), np.uint8)


def chain(texts: list[str]) -> dict[bytes, bytes | None]:
    """The parents of keys that are one chain."""
    names = [key_of(text.encode()) for text in texts]
    return dict(zip(names, [None, *names[:-1]], strict=True))


def test_store_look_up_load(host: Host) -> None:
    data, out = rows(40), np.zeros((41, ROW), np.uint8)
    assert host.exists(keys(0, 40)) == [False] * 40
    assert host.put(keys(0, 40), data) == [True] * 40
    assert host.exists(keys(0, 41)) == [True] * 40 + [False]
    assert host.get(keys(0, 41), out) == [True] * 40 + [False]
    assert np.array_equal(out[:40], data)
    assert host.put(keys(0, 40), data) == [True] * 40  # again: stays
    answers = [(good, bool(error)) for _, good, error, _ in host.ended.values()]
    assert answers == [(True, False)] * 3 + [(False, True), (True, False)]


def test_batches_of_nothing_end(host: Host) -> None:
    l2 = host.l2
    assert host.answer(l2.submit_batch_set([], []))[1:] == (True, "", [])
    assert host.answer(l2.submit_batch_get([], []))[1:] == (True, "", [])
    assert host.answer(l2.submit_batch_delete([]))[1:] == (True, "", [])
    assert host.answer(l2.submit_batch_exists([]))[1:] == (True, "", [])


def test_the_descriptor_is_quiet_when_all_is_drained(host: Host) -> None:
    host.put(keys(0, 4), rows(4))
    for _ in range(1000):  # a late end of a hint may wake the host once more
        if not host.poll.poll(0):
            break
        host.drain()
    assert not host.poll.poll(0), "readable, but nothing is left to drain"


def test_chunks_have_their_own_lengths(host: Host) -> None:
    data = [np.full(n, n % 251, np.uint8) for n in (1, 5000, ROW, 3 * ROW + 17)]
    out = [np.zeros_like(row) for row in data]
    assert host.put(keys(0, 4), data) == [True] * 4
    assert host.get(keys(0, 4), out) == [True] * 4
    assert all(np.array_equal(a, b) for a, b in zip(data, out, strict=True))


def test_a_chunk_of_another_length_is_a_miss_from_then_on(host: Host) -> None:
    host.put(keys(0, 2), rows(2))
    assert host.get(keys(0, 2), [np.zeros(ROW, np.uint8), np.zeros(2 * ROW, np.uint8)]) == [
        True,
        False,
    ]
    assert host.exists(keys(0, 2)) == [True, False]


def test_nothing_of_the_key_is_lost(host: Host) -> None:
    one = keys(7, 1)
    host.put(one, rows(1))
    others = keys(7, 1, group=1) + keys(8, 1)
    for field in ({"model": "m"}, {"ranks": 2}, {"ranks": 2, "rank": 1}, {"salt": "s"}):
        others += keys(7, 1, **field)
    assert host.exists(one + others) == [True] + [False] * len(others)


def test_a_batch_of_many_ranks_and_groups_is_a_chain_for_each(host: Host) -> None:
    lines = [keys(0, 3), keys(0, 3, ranks=2), keys(0, 3, ranks=2, rank=1), keys(0, 3, group=1)]
    mixed = [line[i] for i in range(3) for line in lines]
    assert host.put(mixed, rows(12)) == [True] * 12
    assert host.parents() == {k: v for line in lines for k, v in chain(line).items()}


def test_chunks_without_company_are_one_job(host: Host) -> None:
    many = [key_text(Identity(rank=i, ranks=255), i) for i in range(32)]
    assert host.put(many, rows(32)) == [True] * 32
    assert set(host.parents().values()) == {None}


def test_the_order_is_learned_from_the_look_up(host: Host) -> None:
    """Pieces of two prompts with a common beginning come in one batch, a later piece alone."""
    one, two = keys(0, 6), keys(0, 2) + keys(10, 3)
    host.exists(one)
    host.exists(two)
    assert all(host.put(one[:4] + two[2:4], rows(6)))
    assert all(host.put(two[4:] + one[4:], rows(3)))
    assert host.parents() == {**chain(one), **chain(two)}


def test_a_put_waits_for_the_one_that_it_hangs_on(host: Host) -> None:
    host.exists(keys(0, 8))
    data = rows(8)
    numbers = [
        host.l2.submit_batch_set(keys(i, 2), list(map(memoryview, data[i : i + 2])))
        for i in (0, 2, 4, 6)
    ]
    assert all(all(host.ok(number)) for number in numbers)
    assert host.parents() == chain(keys(0, 8))


def test_a_put_fails_with_the_one_that_it_hangs_on(host: Host) -> None:
    host.exists(keys(0, 4))
    none, some = memoryview(b""), memoryview(rows(1)[0])
    first = host.l2.submit_batch_set(keys(0, 2), [some, none])
    second = host.l2.submit_batch_set(keys(2, 1), [some])
    third = host.l2.submit_batch_set(keys(3, 1), [some])
    assert host.ok(first) == [True, False]
    assert host.ok(second) == host.ok(third) == [False]
    assert "before it" in host.answer(third)[2]
    assert host.put(keys(2, 1), rows(1)) == [True]  # nothing is waited for any more


def test_what_is_remembered_is_bounded() -> None:
    lines = Lines(most=10)
    names = [key_of(b"%d" % i) for i in range(100)]
    lines.asked(["line"] * 100, names, [False] * 100)
    assert len(lines._before) == 10


def test_line_of() -> None:
    assert (
        line_of("m@00000001@0@beef@salt")
        == line_of("m@00000001@0@f00d@salt")
        == ("m@00000001@0@salt")
    )
    assert line_of("m@00000001@0@beef") != line_of("m@00000002@0@beef")
    assert line_of("something else") == "something else"


def test_the_load_uses_what_the_look_up_staged(host: Host) -> None:
    data, out = rows(8), np.zeros((8, ROW), np.uint8)
    host.put(keys(0, 8), data)
    assert host.exists(keys(0, 9)) == [True] * 8 + [False]
    assert host.l2.tier.stats().hints == 1
    assert host.get(keys(0, 8), out) == [True] * 8
    assert host.l2.tier.stats().hints_used == 1
    assert np.array_equal(out, data)


def test_hints_that_nobody_uses_become_rare(host: Host) -> None:
    host.put(keys(0, 4), rows(4))
    for _ in range(40):
        host.exists(keys(0, 4))
        host.l2.unhint(keys(0, 4))
    stats = host.l2.tier.stats()
    assert 0 < stats.hints == stats.hints_cancelled < 8


def test_a_used_hint_brings_them_back() -> None:
    taste = _Taste()
    assert taste.wants(0, 0)
    assert [taste.wants(0, 1), taste.wants(0, 1)] == [False, True]
    assert [taste.wants(0, 2) for _ in range(4)] == [False, False, False, True]
    assert taste.wants(1, 2)


def test_the_hint_lasts_while_one_of_its_chunks_is_wanted(host: Host) -> None:
    host.put(keys(0, 4), rows(4))
    host.exists(keys(0, 4))
    host.l2.unhint(keys(0, 3))
    assert host.l2.tier.stats().hints_cancelled == 0
    host.get(keys(3, 1), np.zeros((1, ROW), np.uint8))
    assert host.l2.tier.stats().hints_used == 1


def test_delete(host: Host) -> None:
    host.put(keys(0, 3), rows(3))
    deleted = host.l2.submit_batch_delete(keys(2, 2))
    assert host.ok(deleted) == [True, False]
    assert host.exists(keys(0, 4)) == [True, True, False, False]
    assert host.l2.tier.stats().deleted == 1


def test_a_neighbour_that_drains_first_takes_no_wake_up(options: TierOptions) -> None:
    mine = ChmL2(**params_of(options))
    other = ChmL2(**{**params_of(options), "salt": "other"})
    try:
        host = Host(mine)
        host.put(keys(0, 4), rows(4))
        number = mine.submit_batch_get(keys(0, 4), list(np.zeros((4, ROW), np.uint8)))
        while not all(job.told() for t in mine.tier._running.values() for _, job in t.jobs):
            assert other.drain_completions() == []
        assert host.ok(number) == [True] * 4
        assert Host(other).exists(keys(0, 4)) == [False] * 4
    finally:
        mine.close()
        other.close()


def test_close_tells_the_rest(options: TierOptions) -> None:
    l2 = ChmL2(**params_of(options))
    data = rows(8)
    l2.submit_batch_exists(keys(0, 8))
    submitted = [
        l2.submit_batch_set(keys(i, 4), list(map(memoryview, data[i : i + 4]))) for i in (0, 4)
    ]
    l2.close()
    l2.close()
    late = l2.submit_batch_get(keys(0, 1), [bytearray(ROW)])
    answers = {answer[0]: answer for answer in l2.drain_completions()}
    assert set(submitted) < set(answers)
    assert answers[late][1] is False
    assert "closed" in answers[late][2]
    again = Host(ChmL2(**params_of(options)))
    kept = [i for i in (0, 4) if answers[submitted[i // 4]][1]]
    assert again.exists(keys(0, 8))[:4] == [0 in kept] * 4
    again.l2.close()


def test_close_leaves_no_descriptor(options: TierOptions) -> None:
    before = set(os.listdir("/proc/self/fd"))
    ChmL2(**params_of(options)).close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_host_parameters(options: TierOptions, caplog: pytest.LogCaptureFixture) -> None:
    l2 = ChmL2(max_capacity_gb=1.5, path=options.path, capacity="64MiB", dram="32MiB")
    l2.close()
    assert "no effect" in caplog.text
    with pytest.raises(TypeError, match="pth"):
        ChmL2(pth="kv")
