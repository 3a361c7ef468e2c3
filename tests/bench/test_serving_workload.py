# SPDX-License-Identifier: Apache-2.0
"""The conversations of the serving benchmark: what is reused, and what gets how much memory."""

from __future__ import annotations

import pytest

from bench.serving.workload import BLOCK, Workload


@pytest.mark.parametrize("tokens", [896, 1024, 2048, 4096])
def test_prompts_grow_in_whole_chunks_and_end_a_little_longer(tokens: int) -> None:
    w = Workload(tokens)
    assert len(w.lengths) == 8
    assert w.lengths[-2:] == (tokens, tokens + 32)
    assert all(length % w.chunk == 0 for length in w.lengths[:-1])
    assert all(a < b for a, b in zip(w.lengths, w.lengths[1:], strict=False))


def test_a_prompt_begins_as_the_one_before() -> None:
    w = Workload(2048)
    for turn in range(1, w.turns):
        before, now = w.prompt(3, turn - 1), w.prompt(3, turn)
        assert len(now) == w.lengths[turn]
        assert now[: w.reusable(turn)] == before


def test_what_is_reusable_at_the_last_turn_is_all_but_the_tail() -> None:
    for tokens in (2048, 4096):
        w = Workload(tokens)
        assert w.reusable(7) == tokens
        assert w.reusable(7) / w.lengths[7] >= 0.95
    assert w.reusable(0) == 0


def test_a_variant_changes_the_tail_of_the_last_turn_alone() -> None:
    w = Workload(1024)
    first, other = w.prompt(0, 7), w.prompt(0, 7, variant=1)
    assert first[:1024] == other[:1024]
    assert first[1024:] != other[1024:]
    assert w.prompt(0, 6) == w.prompt(0, 6, variant=1)


def test_conversations_and_seeds_differ_from_their_first_chunk() -> None:
    w, other = Workload(1024), Workload(1024, seed=2)
    heads = [tuple(x.prompt(c, 0)) for x in (w, other) for c in range(8)]
    assert len(set(heads)) == 16
    assert w.prompt(5, 7) == Workload(1024).prompt(5, 7)


def test_no_token_is_a_special_one() -> None:
    assert min(Workload(2048).prompt(0, 7)) >= 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shares_are_an_eighth_and_hold_one_conversation(dtype: str) -> None:
    w = Workload(2048, dtype=dtype)
    one = w.lengths[-1] * w.token_bytes
    assert one < w.share_bytes < 1.5 * w.footprint_bytes / 8
    assert w.share_bytes % w.row_bytes == 0
    assert w.engine_blocks * BLOCK >= w.lengths[-1]
    assert (w.engine_blocks - 1) * BLOCK * w.token_bytes <= w.share_bytes


def test_a_share_is_too_small_for_what_is_asked_in_between() -> None:
    """Else a hit would show nothing about the tier below."""
    for w in (Workload(2048), Workload(512, conversations=4, turns=3)):
        assert w.share_bytes < 2 * w.tokens * w.token_bytes


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tokens": 2000}, "not a multiple of 128"),
        ({"tokens": 512}, "gives each of 7 turns a chunk"),
        ({"tokens": 2048, "conversations": 1}, "2 at least"),
        ({"tokens": 2048, "turns": 1}, "2 at least"),
        ({"tokens": 2048, "last": 128}, "not within"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Workload(**fields)
