# SPDX-License-Identifier: Apache-2.0
"""The scheduler's half: which tokens of a request are in the store, and what a step moves.

    match      how many tokens of a request can be loaded; hints them, so that reading begins
    allocated  the engine gave it blocks: its load goes into the next plan
    plan       loads, and the chunks that this step completes, if the store does not have them
    invalid    a load failed: which blocks of the engine's prefix cache hold nonsense now

A chunk is saved in the step that computes its last token, so its blocks are still the request's. If
a step turns out to have computed with blocks that failed to load, the host takes its tokens back
and computes them again; then they are saved again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chm.connectors.direct.layout import Layout
from chm.connectors.tier import BATCH, Tier


@dataclass
class Load:
    """Chunks of one request, and the blocks they go to; None for a block that the engine has."""

    request: str
    chunks: list[bytes]
    blocks: list[list[int | None]]


@dataclass
class Save:
    """Chunks of one request. ``after`` is the chunk before the first. ``context``: all blocks that
    they were computed from, their own among them."""

    request: str
    chunks: list[bytes]
    blocks: list[list[int]]
    after: bytes | None
    context: list[int]


@dataclass
class Plan:
    """What the worker does in one step."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


class _Tracked:
    """A request that has blocks: these, and how many of its chunks need no saving any more."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.blocks: list[int] = []
        self.saved = 0


class Planner:
    """``reads`` and ``writes``: whether this engine loads, and whether it saves."""

    def __init__(self, layout: Layout, tier: Tier, reads: bool = True, writes: bool = True) -> None:
        self.layout, self.tier = layout, tier
        self.reads, self.writes = reads, writes
        self._matched: dict[str, int] = {}  # tokens that the engine had when it asked
        self._tracked: dict[str, _Tracked] = {}
        self._loads: list[Load] = []

    # -- looking up ----------------------------------------------------------------------------

    def match(self, request: Any, computed: int) -> int:
        """Tokens behind the first ``computed`` that can be loaded: whole chunks, and never the
        last token of the request, whose output is wanted."""
        if not self.reads or self.tier.closed:
            return 0
        layout = self.layout
        first = computed // layout.chunk_tokens
        end = (request.num_tokens - 1) // layout.chunk_tokens
        chunks = self._chunks(request, first, end)
        found = self._leading(chunks)
        if not found:
            return 0
        self.tier.hint(request.request_id, layout.read_order(chunks[:found], BATCH))
        self._matched[request.request_id] = computed
        return (first + found) * layout.chunk_tokens - computed

    def _chunks(self, request: Any, first: int, end: int) -> list[bytes]:
        """Hashes of chunks, as far as the engine has them."""
        per, hashes = self.layout.blocks_per_chunk, request.block_hashes
        end = min(end, len(hashes) // per)
        return [bytes(hashes[(i + 1) * per - 1]) for i in range(first, end)]

    def _leading(self, chunks: Sequence[bytes]) -> int:
        """How many are there, from the front."""
        found = 0
        for first in range(0, len(chunks), BATCH // 2):
            there = self._there(chunks[first : first + BATCH // 2], count=True)
            if not all(there):
                return found + there.index(False)
            found += len(there)
        return found

    def _there(self, chunks: Sequence[bytes], count: bool) -> list[bool]:
        asked = [self.layout.asked(chunk) for chunk in chunks]
        answers = self.tier.exists([key for keys in asked for key in keys], count=count)
        width = len(answers) // max(len(chunks), 1)
        return [all(answers[i * width : (i + 1) * width]) for i in range(len(chunks))]

    # -- a step --------------------------------------------------------------------------------

    def allocated(self, request: Any, blocks: Sequence[int], tokens: int) -> None:
        """The request has these blocks; ``tokens`` behind those it had are to be loaded."""
        name = request.request_id
        tracked = self._tracked.setdefault(name, _Tracked(request))
        tracked.blocks = list(blocks)
        had = self._matched.pop(name, None)
        if not tokens or had is None:
            self.tier.cancel(name)
            return
        layout, per = self.layout, self.layout.blocks_per_chunk
        first = had // layout.chunk_tokens
        end = (had + tokens) // layout.chunk_tokens
        wanted: list[int | None] = list(blocks[: end * per])
        wanted[: had // layout.block_tokens] = [None] * (had // layout.block_tokens)
        rows = [wanted[i * per : (i + 1) * per] for i in range(first, end)]
        self._loads.append(Load(name, self._chunks(request, first, end), rows))

    def plan(self, output: Any) -> Plan:
        """What vLLM's ``SchedulerOutput`` needs moved."""
        plan = Plan(loads=self._loads)
        self._loads = []
        for new in output.scheduled_new_reqs:
            if tracked := self._tracked.get(new.req_id):
                tracked.blocks = list(new.block_ids[0])
                self._save(plan, tracked, new.num_computed_tokens, output)
        cached = output.scheduled_cached_reqs
        for i, name in enumerate(cached.req_ids):
            if tracked := self._tracked.get(name):
                more = cached.new_block_ids[i]
                if name in cached.resumed_req_ids and more is not None:
                    tracked.blocks = []
                tracked.blocks += more[0] if more is not None else []
                self._save(plan, tracked, cached.num_computed_tokens[i], output)
        return plan

    def _save(self, plan: Plan, tracked: _Tracked, computed: int, output: Any) -> None:
        """Save what the store lacks of the chunks that are whole after this step."""
        request, layout = tracked.request, self.layout
        tracked.saved = min(tracked.saved, computed // layout.chunk_tokens)
        known = min(
            computed + output.num_scheduled_tokens[request.request_id],
            request.num_tokens,  # beyond are guesses of speculative decoding
        )
        first = tracked.saved
        chunks = self._chunks(request, first, known // layout.chunk_tokens)
        if not self.writes or not chunks or self.tier.closed:
            return
        tracked.saved = first + len(chunks)
        lacking = [i for i, there in enumerate(self._there(chunks, count=False)) if not there]
        if not lacking:
            return
        skip, per = lacking[0], layout.blocks_per_chunk
        begin, end = first + skip, first + len(chunks)
        before = self._chunks(request, begin - 1, begin) if begin else []
        plan.saves.append(
            Save(
                request.request_id,
                chunks[skip:],
                [tracked.blocks[i * per : (i + 1) * per] for i in range(begin, end)],
                before[0] if before else None,
                tracked.blocks[: end * per],
            )
        )

    # -- the end -------------------------------------------------------------------------------

    def invalid(self, blocks: set[int]) -> set[int]:
        """These blocks failed to load: all that was computed from them, themselves among it."""
        found: set[int] = set()
        for tracked in self._tracked.values():
            first = next((i for i, block in enumerate(tracked.blocks) if block in blocks), None)
            if first is not None:
                found.update(tracked.blocks[first:])
        return found

    def finished(self, request: str) -> None:
        """The request is over, or was given up."""
        self._tracked.pop(request, None)
        self._matched.pop(request, None)
        self._loads = [load for load in self._loads if load.request != request]
        if not self.tier.closed:
            self.tier.cancel(request)
