# SPDX-License-Identifier: Apache-2.0
"""Statistics of the serving benchmark, from requests made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from bench.serving import summary
from bench.serving.summary import Sample, Spread
from bench.serving.workload import Workload

W = Workload(1024, conversations=4, turns=3)


def sample(arm: str = "vllm-chm", ttft_s: float = 1.0, **fields: Any) -> Sample:
    turn = fields.pop("turn", 2)
    stored = 0 if arm in ("recompute", "prefix") else W.reusable(turn)
    values = {
        "pace": 0,
        "conversation": 0,
        "variant": 0,
        "prompt": W.lengths[turn],
        "cached": stored,
        "token": 7,
        "engine_s": 0.5,
        "other_s": 0.25,
        "read_bytes": 100,
        "written_bytes": 0,
    }
    return Sample(arm=arm, turn=turn, ttft_s=ttft_s, **{**values, **fields})


def test_a_spread() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0, 1.0, 5.0, 5)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 2.0, 2.0, 1)
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_ratios_are_of_the_same_prompt() -> None:
    """The machine got ten times slower after the first conversation: the ratio did not."""
    samples = [
        sample("vllm-chm", 0.2, conversation=0),
        sample("vllm-dram", 0.1, conversation=0),
        sample("vllm-chm", 3.0, conversation=1),
        sample("vllm-dram", 1.0, conversation=1),
    ]
    chm, dram = summary.rows(samples, W)
    assert chm.over_oracle is not None
    assert (chm.over_oracle.low, chm.over_oracle.high) == (2.25, 2.75)
    assert dram.over_oracle == Spread(1.0, 1.0, 1.0, 1.0, 1.0, 2)


def test_each_host_has_its_own_oracle() -> None:
    samples = [sample("lmcache-chm", 3.0), sample("vllm-dram", 1.0), sample("vllm-chm", 2.0)]
    ratios = {row.arm: row.over_oracle and row.over_oracle.median for row in rows_of(samples)}
    assert ratios == {"vllm-chm": 2.0, "lmcache-chm": None, "vllm-dram": 1.0}
    ratios = {row.arm: row.over_oracle for row in rows_of([*samples, sample("lmcache-dram", 2.0)])}
    assert ratios["lmcache-chm"] == Spread(1.5, 1.5, 1.5, 1.5, 1.5, 1)


def test_a_paced_arm_is_compared_with_what_was_asked_beside_it() -> None:
    samples = [
        sample("vllm-dram", 1.0),
        sample("vllm-dram", 4.0, pace=20),
        sample("vllm-chm", 6.0, pace=20),
    ]
    paced = [row for row in rows_of(samples) if row.arm == "vllm-chm"]
    assert [row.over_oracle and row.over_oracle.median for row in paced] == [1.5]


def rows_of(samples: list[Sample]) -> list[summary.Row]:
    return summary.rows(samples, W)


def test_only_the_last_turn_makes_a_row() -> None:
    [row] = rows_of([sample(ttft_s=9.0, turn=1), sample(ttft_s=1.0)])
    assert row.ttft_s.median == 1.0
    assert row.hit_rate == 1024 / 1056
    assert row.cached_bytes == 1024 * W.token_bytes


def test_turns_are_listed_apart() -> None:
    samples = [sample(ttft_s=3.0, turn=0), sample(ttft_s=1.0, turn=1), sample(ttft_s=2.0, turn=1)]
    first, second = summary.turn_rows([*samples, sample(pace=20, turn=1)], W)
    assert (first.turn, first.ttft_s, first.hit_rate) == (1, 3.0, 0.0)
    assert (second.turn, second.ttft_s, second.prompt) == (2, 1.5, 1024)


def test_recompute_makes_bytes() -> None:
    samples = [sample("recompute", 2.0), sample("recompute", 0.1, turn=0), sample("vllm-fs", 0.1)]
    assert summary.recompute_rate(samples, W) == 1056 * W.token_bytes / 2.0
    assert summary.recompute_rate([sample("vllm-fs")], W) == 0.0
    assert {row.arm: row.over_recompute for row in rows_of(samples)} == {
        "recompute": 1.0,
        "vllm-fs": 0.05,
    }


def test_a_hit_that_was_none_is_a_failure() -> None:
    assert summary.failures([sample()], W) == []
    [text] = summary.failures([sample(cached=896)], W)
    assert "896 tokens cached, expected 1024" in text
    [text] = summary.failures([sample("recompute", cached=32)], W)
    assert "32 tokens cached, expected 0" in text


def test_the_engines_own_cache_may_hit_or_not() -> None:
    assert summary.failures([sample("prefix", cached=n) for n in (0, 96)], W) == []


def test_another_answer_to_the_same_prompt_is_found() -> None:
    same = [sample("recompute"), sample("vllm-chm"), sample("vllm-chm", variant=1, token=9)]
    assert summary.wrong_tokens(same) == []
    [text] = summary.wrong_tokens([*same, sample("vllm-fs", token=8)])
    assert text == "vllm-fs, turn 3, conversation 0: token 8, but recompute has 7"


def test_the_table_says_what_is_missing() -> None:
    text = summary.table(rows_of([sample("lmcache-chm", 0.5, pace=20), sample("recompute", 2.0)]))
    lines = text.splitlines()
    assert lines[2].startswith("| recompute | as it is | 2000.0 (2000.0-2000.0) | - | 1.000 |")
    assert lines[3].startswith("| lmcache-chm | 20x | 500.0 (500.0-500.0) | - | 0.250 | 0.970 |")
