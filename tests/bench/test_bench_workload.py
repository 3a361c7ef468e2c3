# SPDX-License-Identifier: Apache-2.0
"""Workloads: turn growth by its closed form, and the slicing of traces into rounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chm.bench.workload import Request, in_rounds, reuse, turn_growth


@given(n=st.integers(1, 6), turns=st.integers(1, 6), k=st.integers(1, 4))
def test_turn_growth_closed_form(n: int, turns: int, k: int) -> None:
    """Turn t reads (t - 1) k blocks of each conversation and appends k; none is written twice."""
    work = turn_growth(n, turns, k, 4096)
    seen: set[int] = set()
    for t, r in enumerate(work.rounds, 1):
        assert [q.session for q in r.requests] == list(range(n))
        new = set()
        for q in r.requests:
            old = [key for key in q.keys if key in seen]
            assert list(q.keys[: len(old)]) == old
            assert len(old) == (t - 1) * k
            new.update(q.keys[len(old) :])
        assert len(new) == n * k
        seen |= new
    assert work.unique_keys() == n * turns * k
    assert work.footprint_bytes == n * turns * k * 4096


def test_reuse_counts_leading_blocks_only() -> None:
    requests = [Request(0, 1, (1, 2, 3)), Request(1, 1, (1, 9, 3)), Request(2, 1, (7, 1))]
    got = reuse(requests)
    assert (got.requests, got.lookups, got.prefix_hits, got.unique) == (3, 8, 1, 5)
    assert got.hit_rate == 1 / 8


def test_rounds_keep_every_request_in_order() -> None:
    requests = [Request(i, 1, (i,)) for i in range(11)]
    rounds = in_rounds(requests, 4)
    assert [q for r in rounds for q in r.requests] == requests
    assert [len(r.requests) for r in rounds] == [2, 3, 3, 3]
    assert [r.label for r in rounds] == ["1-2", "3-5", "6-8", "9-11"]
    assert len(in_rounds(requests[:2], 10)) == 2
