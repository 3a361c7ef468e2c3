# SPDX-License-Identifier: Apache-2.0
"""Trace loaders, on traces made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chm.bench.traces import TraceError, load, to_requests


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mooncake(ms: int, *ids: int) -> dict[str, Any]:
    return {"timestamp": ms, "input_length": 512 * len(ids), "output_length": 9, "hash_ids": ids}


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    rows = [mooncake(500, 1, 2), mooncake(3000, 1, 2, 3), mooncake(1000, 4), mooncake(1000, 1)]
    return write(tmp_path / "chat.jsonl", rows)


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    def conversation(*requests: tuple[float, list[list[int]]]) -> dict[str, Any]:
        return {"id": "x", "block_size": 64, "requests": [{"t": t, "h": h} for t, h in requests]}

    rows = [
        conversation((0.0, [[1, 2]]), (9.0, [[1, 2], [7, 1]])),
        conversation((2.0, [[1, 3]])),
    ]
    return write(tmp_path / "agents.jsonl", rows)


def test_mooncake(chat: Path) -> None:
    trace = load(chat)
    assert (trace.format, trace.block_tokens) == ("mooncake", 512)
    assert [r.arrival_s for r in trace.requests] == [0.5, 1.0, 1.0, 3.0]
    assert [tuple(r.keys) for r in trace.requests] == [(1, 2), (4,), (1,), (1, 2, 3)]
    assert len({r.session for r in trace.requests}) == 4


def test_agentic_ids_are_local_to_a_conversation(agents: Path) -> None:
    trace = load(agents)
    assert (trace.format, trace.block_tokens) == ("agentic", 64)
    first, other, second = (tuple(r.keys) for r in trace.requests)
    assert len(first), len(second) == (2, 3)
    assert second[:2] == first
    assert not set(other) & set(second)
    assert [(r.session, r.turn) for r in trace.requests] == [(0, 1), (1, 1), (0, 2)]


def test_limit_takes_the_earliest(chat: Path) -> None:
    assert [tuple(r.keys) for r in load(chat, limit=2).requests] == [(1, 2), (4,)]


@pytest.mark.parametrize(
    ("arrivals", "speedup", "want"),
    [
        ("closed", 4.0, [None] * 4),
        ("traced", 4.0, [0.0, 0.5, 0.5, 2.5]),
        ("scaled", 5.0, [0.0, 0.1, 0.1, 0.5]),
    ],
)
def test_arrivals(chat: Path, arrivals: str, speedup: float, want: list[float | None]) -> None:
    assert [r.arrival_s for r in to_requests(load(chat), arrivals, speedup)] == want


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("[1]\n", "no rows"),
        ("{}\n", "not recognised"),
        ("not json\n", "bad.jsonl:1: not JSON"),
        ('{"timestamp": 1, "hash_ids": [1]}\n{"timestamp": 1}\n', "bad.jsonl:2: not a mooncake"),
        ('{"timestamp": 1, "hash_ids": [1]}\n{"time', "bad.jsonl:2: not a mooncake row"),
        ('{"block_size": 64, "requests": []}\n', "no requests"),
        (
            '{"block_size": 64, "requests": []}\n{"block_size": 16, "requests": []}\n',
            "block sizes 64 and 16",
        ),
    ],
)
def test_bad_files_say_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        load(path)


def test_unknown_format_lists_the_known(chat: Path) -> None:
    with pytest.raises(TraceError, match="mooncake, agentic"):
        load(chat, "csv")
