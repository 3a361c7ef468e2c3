# SPDX-License-Identifier: Apache-2.0
"""The worker's half: loads in the order of layers, and saves, which nobody waits for.

A load: waiting -> reading -> ended. It is cut into steps of one or more groups of layers, as many
as make 32 objects; each step is one task of the tier. Steps are submitted in order, as far as the
bounds on keys that are out allow, so the first layers are there first. ``wait_layer`` waits for the
steps up to a layer only. A chunk that fails is left out of later steps, and its blocks are told as
invalid when the load has ended. It has ended when none of its tasks runs any more, so after it was
told nothing writes to its blocks.

    into the engine's memory itself, if the host can write there; else into staging slots, from
    where each step is copied when it is there

Saves are in saver.py; here is what they have to do with loads. All calls are made by the engine's
thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chm.connectors.direct.layout import Layout
from chm.connectors.direct.memory import Fence, Layer, Staging
from chm.connectors.direct.plan import Load, Save
from chm.connectors.direct.saver import Saver
from chm.connectors.tier import BATCH, Done, Tier
from chm.stats import Record

log = logging.getLogger("chm")

KEYS_OUT = 2048
"""Keys of loads that are with the store at a time; of all its users it takes 16384, in 256 jobs."""
_PATIENCE_S = 0.05
_COUNTED = (
    "loads",
    "loads_failed",
    "chunks_loaded",
    "chunks_failed",
    "layer_waits",
    "wait_ns",
)


@dataclass(frozen=True)
class MoverStats(Record):
    """Loads and chunks since the start. Every chunk of a load ends as loaded or failed; every chunk
    to save as saved, failed or skipped (no staging memory)."""

    loads: int = 0
    loads_failed: int = 0
    chunks_loaded: int = 0
    chunks_failed: int = 0
    chunks_saved: int = 0
    chunks_not_saved: int = 0
    chunks_skipped: int = 0
    layer_waits: int = 0
    wait_ns: int = 0


@dataclass(frozen=True)
class Ended:
    """A load or a save that is over, and which of its chunks came to be there."""

    request: str
    op: str
    ok: list[bool]


@dataclass
class _Step:
    """Some groups of those chunks of a load that were good when it was submitted."""

    groups: range
    chunks: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)


class _Reading:
    """A load on its way."""

    def __init__(self, load: Load, groups: int, end: float) -> None:
        self.load = load
        self.ok = [True] * len(load.chunks)
        self.end = end
        width = max(BATCH // max(len(load.chunks), 1), 1)
        self.todo = deque(_Step(range(g, min(g + width, groups))) for g in range(0, groups, width))
        self.running: dict[int, _Step] = {}

    @property
    def ended(self) -> bool:
        return not self.todo and not self.running

    def has(self, group: int) -> bool:
        """Whether everything up to this group is there, or has failed."""
        ahead = [*self.running.values(), *list(self.todo)[:1]]
        return all(step.groups.start > group for step in ahead)

    @property
    def good(self) -> list[int]:
        """Chunks of which nothing has failed."""
        return [i for i, ok in enumerate(self.ok) if ok]


class Mover:
    """``layers``: the engine's memory by name. ``fence()`` tells when copies are over.
    ``direct``: read into the engine's memory itself where the host can write there."""

    def __init__(
        self,
        tier: Tier,
        layout: Layout,
        layers: Mapping[str, Layer],
        staging: Staging,
        fence: Any = None,
        direct: bool = True,
    ) -> None:
        self.tier, self.layout, self.layers, self.staging = tier, layout, dict(layers), staging
        self._fence: Any = fence or (lambda: lambda: True)
        self.saver = Saver(tier, layout, self.layers, staging, self._fence)
        self._direct = direct and all(layer.parts([]) is not None for layer in layers.values())
        self._readings: dict[int, _Reading] = {}
        self._numbers = 0
        self._keys_out = 0
        self._told: list[Ended] = []
        self._invalid: set[int] = set()
        self._poisoned: set[int] = set()  # blocks that failed in this step
        self._draining: deque[tuple[Fence, list[int]]] = deque()
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._closing = False

    def _count(self, **changes: int) -> None:
        for name, change in changes.items():
            self._counts[name] += change

    def stats(self) -> MoverStats:
        """A copy of the counters."""
        saves = self.saver
        return MoverStats(
            **self._counts,
            chunks_saved=saves.saved,
            chunks_not_saved=saves.not_saved,
            chunks_skipped=saves.skipped,
        )

    # -- loads ---------------------------------------------------------------------------------

    def load(self, loads: Sequence[Load]) -> None:
        """Begin a step, and these loads."""
        self._poisoned.clear()
        for load in loads:
            self._numbers += 1
            end = time.monotonic() + self.tier.options.deadline_s
            self._readings[self._numbers] = _Reading(load, len(self.layout.groups), end)
            self._count(loads=1)
        self.turn()

    def turn(self) -> None:
        """Take what has ended, go on with what waits. Does not wait."""
        self._free_copied()
        for done in self.tier.drain():
            if done.op == "put":
                self._saved(done)
            else:
                self._arrived(done)
        for number, reading in list(self._readings.items()):
            self._go_on(reading)
            if reading.ended:
                del self._readings[number]
                self._end(reading)

    def _go_on(self, reading: _Reading) -> None:
        while reading.todo:
            good = reading.good
            if time.monotonic() > reading.end:
                self._lost(reading, good)
                good = []
            if not good:
                reading.todo.clear()
            elif self._submit(reading, reading.todo[0], good):
                reading.todo.popleft()
            else:
                return

    def _submit(self, reading: _Reading, step: _Step, chunks: list[int]) -> bool:
        """Whether there was room for it."""
        n = len(chunks) * len(step.groups)
        if self._keys_out and self._keys_out + n > KEYS_OUT:
            return False
        if not self._direct and n > self.staging.free:
            return False
        step.chunks = chunks
        keys, buffers = [], []
        for group in step.groups:
            for i in chunks:
                keys.append(self.layout.key(reading.load.chunks[i], group))
                buffers.append(self._target(reading.load.blocks[i], group, step))
        self._keys_out += n
        reading.running[self.tier.get(reading, keys, buffers)] = step
        return True

    def _target(self, blocks: list[int | None], group: int, step: _Step) -> Any:
        if not self._direct:
            slot = self.staging.take()
            step.slots.append(slot)
            return self.staging.of(slot, self.layout.object_bytes[group])
        parts: list[Any] = []
        for name in self.layout.groups[group]:
            parts += self.layers[name].parts(blocks) or []
        return parts

    def _arrived(self, done: Done) -> None:
        reading: _Reading = done.tag
        step = reading.running.pop(done.task)
        self._keys_out -= len(done.ok)
        width = len(step.chunks)
        if not done.good:
            log.warning("request %s: a load failed: %s", reading.load.request, done.error)
            failed = {step.chunks[i % width] for i, ok in enumerate(done.ok) if not ok}
            self._lost(reading, sorted(failed))
        for i, slot in enumerate(step.slots):
            if done.ok[i]:
                self._place(reading, step.groups[i // width], step.chunks[i % width], slot)
        if step.slots:
            self._draining.append((self._fence(), step.slots))

    def _place(self, reading: _Reading, group: int, chunk: int, slot: int) -> None:
        """Copy an object from its slot to where it belongs."""
        source = self.staging.of(slot, self.layout.object_bytes[group])
        at, blocks = 0, reading.load.blocks[chunk]
        for name in self.layout.groups[group]:
            nbytes = self.layers[name].block_bytes * len(blocks)
            self.layers[name].scatter(blocks, source[at : at + nbytes])
            at += nbytes

    def _lost(self, reading: _Reading, chunks: Sequence[int]) -> None:
        """These chunks are no hits any more, whichever of their objects failed."""
        asked = [key for i in chunks for key in self.layout.asked(reading.load.chunks[i])]
        self.tier.mark_missing(asked)
        for i in chunks:
            reading.ok[i] = False

    def _end(self, reading: _Reading) -> None:
        load, ok = reading.load, reading.ok
        rows = [row for row, good in zip(load.blocks, ok, strict=True) if not good]
        blocks = {block for row in rows for block in row if block is not None}
        self._invalid |= blocks
        self._poisoned |= blocks
        self._told.append(Ended(load.request, "load", ok))
        good = sum(ok)
        lost = len(ok) - good
        self._count(loads_failed=lost > 0, chunks_loaded=good, chunks_failed=lost)

    def _free_copied(self) -> None:
        while self._draining and self._draining[0][0]():
            self.staging.give_back(self._draining.popleft()[1])

    def wait_layer(self, name: str) -> None:
        """Return when this layer, and those before it, of all loads is there, or has failed. A
        layer that keeps no KV here has nothing to wait for."""
        if self._readings and name in self.layout.group_of:
            self._wait(self.layout.group_of[name])

    def wait_loads(self) -> None:
        """Return when all loads have ended; at most about twice their deadline."""
        if self._readings:
            self._wait(len(self.layout.groups))

    def _wait(self, group: int) -> None:
        begin = time.monotonic_ns()
        self.turn()
        while late := [r for r in self._readings.values() if not r.has(group)]:
            self.tier.wait(_PATIENCE_S, next(iter(late[0].running), None))
            self.turn()
        self._count(layer_waits=1, wait_ns=time.monotonic_ns() - begin)

    def told(self) -> list[Ended]:
        """What has ended since the last time, well or not; each load and each save once."""
        told, self._told = self._told, []
        return told

    def invalid(self) -> set[int]:
        """Blocks that were to be loaded and were not, since the last time."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    # -- saves ---------------------------------------------------------------------------------

    def save(self, saves: Sequence[Save]) -> None:
        """Copy these out of the engine's memory, and put them. Never waits for the drive.

        What was computed from blocks that failed to load in this step is left out: the host
        computes it again.
        """
        sound = [save for save in saves if self._poisoned.isdisjoint(save.context)]
        for save in self.saver.save(sound):
            self._told.append(Ended(save.request, "save", [False] * len(save.chunks)))

    def _saved(self, done: Done) -> None:
        save, ok = self.saver.ended(done)
        self._told.append(Ended(save.request, "save", ok))

    def finished(self, requests: Iterable[str]) -> None:
        """These requests are over."""
        self.saver.finished(requests)

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> list[Ended]:
        """End everything, within the deadline of jobs; close the tier; let all memory go."""
        if self._closing:
            return []
        self._closing = True
        self.saver.close()
        for done in self.tier.close():
            if done.op == "put":
                self._saved(done)
            else:
                self._arrived(done)
        for reading in self._readings.values():
            self._lost(reading, reading.good if reading.todo else [])
            self._end(reading)
        self._readings.clear()
        self._let_go()
        return self.told()

    def _let_go(self) -> None:
        self.layers.clear()
        self._draining.clear()
        self.staging.drop()
