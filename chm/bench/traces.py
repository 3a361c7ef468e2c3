# SPDX-License-Identifier: Apache-2.0
"""Trace files, and the seam for more of them.

A loader turns one file format into `TraceRequest`s: who asked, when, and the ordered block ids.
What a trace does not say is never guessed: tokens per block is the format's, bytes per token is
the caller's, and arrivals are the caller's choice (as traced, scaled, or closed loop). To add a
format, write a function from an open file to `Trace` and register it in LOADERS.

    mooncake   JSON lines: timestamp (ms), input_length, output_length, hash_ids; 512 tokens
               a block; no conversations: requests share blocks only through equal ids
    agentic    JSON lines, one conversation each: id, block_size, requests with t (s), and h,
               run-length encoded ids [[start, n], ...] that are local to the conversation
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chm.bench.workload import Request

MOONCAKE_BLOCK_TOKENS = 512


class TraceError(Exception):
    """The trace file is not what it should be."""


@dataclass(frozen=True)
class TraceRequest:
    """One request as traced."""

    session: int
    turn: int
    arrival_s: float
    keys: Sequence[int]


@dataclass(frozen=True)
class Trace:
    """A loaded trace, in order of arrival."""

    format: str
    block_tokens: int
    requests: Sequence[TraceRequest]


Rows = Iterable[dict[str, Any]]


def load_mooncake(rows: Rows) -> Trace:
    """Mooncake's published format. Every row is a session of its own."""
    requests = [
        TraceRequest(i, 1, row["timestamp"] / 1000, tuple(row["hash_ids"]))
        for i, row in enumerate(rows)
    ]
    requests.sort(key=lambda r: r.arrival_s)  # stable: rows of one timestamp keep their order
    return Trace("mooncake", MOONCAKE_BLOCK_TOKENS, requests)


def load_agentic(rows: Rows) -> Trace:
    """Conversations with local, run-length encoded ids; all begin at time 0."""
    requests: list[TraceRequest] = []
    ids: dict[tuple[int, int], int] = {}
    block_tokens = 0
    for session, row in enumerate(rows):
        if block_tokens not in (0, row["block_size"]):
            raise TraceError(f"block sizes {block_tokens} and {row['block_size']} in one trace")
        block_tokens = row["block_size"]
        for turn, r in enumerate(row["requests"], 1):
            local = (i for start, n in r["h"] for i in range(start, start + n))
            keys = tuple(ids.setdefault((session, i), len(ids)) for i in local)
            requests.append(TraceRequest(session, turn, float(r["t"]), keys))
    requests.sort(key=lambda r: r.arrival_s)
    return Trace("agentic", block_tokens, requests)


LOADERS: dict[str, Callable[[Rows], Trace]] = {"mooncake": load_mooncake, "agentic": load_agentic}
_SIGNS = {"mooncake": {"timestamp", "hash_ids"}, "agentic": {"block_size", "requests"}}


def load(path: Path, format: str = "auto", limit: int = 0) -> Trace:
    """Read a trace file; `limit` > 0 keeps its first requests only (by arrival).

    Raises TraceError with file and line for anything malformed, and OSError.
    """
    rows = _Rows(path)
    if format == "auto":
        format = _recognise(path, rows.first())
    if format not in LOADERS:
        raise TraceError(f"unknown trace format {format!r}; there are {', '.join(LOADERS)}")
    try:
        trace = LOADERS[format](rows)
    except (KeyError, TypeError, ValueError) as e:
        raise TraceError(f"{path}:{rows.line}: not a {format} row ({e!r})") from e
    if not trace.requests:
        raise TraceError(f"{path}: no requests")
    return Trace(trace.format, trace.block_tokens, trace.requests[: limit or None])


def parts_of(argument: str) -> list[Path]:
    """The files of one trace as a command takes it: a path, or several joined by "+"."""
    if Path(argument).exists():
        return [Path(argument)]
    return [Path(part) for part in argument.split("+")]


def load_joined(argument: str, limit: int = 0) -> Trace:
    """One trace in one file, or in several of one format: their requests one after the other."""
    parts = [load(path) for path in parts_of(argument)]
    first = parts[0]
    if any((p.format, p.block_tokens) != (first.format, first.block_tokens) for p in parts):
        raise TraceError(f"{argument}: parts of different formats")
    requests = [request for part in parts for request in part.requests]
    return Trace(first.format, first.block_tokens, requests[: limit or None])


class _Rows:
    """The rows of a JSON-lines file, remembering the line for messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self.path.open() as f:
            for self.line, text in enumerate(f, 1):
                if text.strip():
                    yield json.loads(text)

    def first(self) -> dict[str, Any]:
        try:
            row = next(iter(self), None)
        except ValueError as e:
            raise TraceError(f"{self.path}:{self.line}: not JSON lines ({e})") from e
        if not isinstance(row, dict):
            raise TraceError(f"{self.path}: no rows")
        return row


def _recognise(path: Path, row: dict[str, Any]) -> str:
    for name, keys in _SIGNS.items():
        if keys <= row.keys():
            return name
    raise TraceError(f"{path}: format not recognised; name it with --trace-format")


def to_requests(trace: Trace, arrivals: str, speedup: float) -> list[Request]:
    """Requests with times: `closed` drops them, `traced` keeps, `scaled` divides by speedup."""
    if arrivals == "closed":
        return [Request(r.session, r.turn, r.keys) for r in trace.requests]
    factor = speedup if arrivals == "scaled" else 1.0
    begin = trace.requests[0].arrival_s
    return [
        Request(r.session, r.turn, r.keys, (r.arrival_s - begin) / factor) for r in trace.requests
    ]
