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

A save: copied into staging slots at once -> (the copy is over) -> put -> its slots are free again.
Without free slots it is skipped, and with it what the same request would save later: the blocks
behind a gap are of no use. It is tried again when the tokens come by again in another request.

All calls are made by the engine's thread. One thread of ours moves puts on while the engine has
nothing to do and calls nothing; it touches no slots and no loads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chm.connectors.direct.layout import Layout
from chm.connectors.direct.memory import Fence, Layer, Staging
from chm.connectors.direct.plan import Load, Save
from chm.connectors.tier import BATCH, Done, Tier
from chm.errors import ChmError
from chm.stats import Record

log = logging.getLogger("chm")

KEYS_OUT = 2048
"""Keys of loads that are with the store at a time; of all its users it takes 16384, in 256 jobs."""
_PATIENCE_S = 0.05
_PAUSE_S = 0.001


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


@dataclass
class _Saving:
    """A save whose bytes are being copied, or put."""

    keys: list[bytes]
    buffers: list[Any]
    slots: list[int]
    save: Save
    chunks: int


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
        self._direct = direct and all(layer.parts([]) is not None for layer in layers.values())
        self._readings: dict[int, _Reading] = {}
        self._numbers = 0
        self._keys_out = 0
        self._told: list[Ended] = []
        self._invalid: set[int] = set()
        self._poisoned: set[int] = set()  # blocks that failed in this step
        self._broken: set[str] = set()
        self._copying: deque[tuple[Fence, _Saving]] = deque()
        self._draining: deque[tuple[Fence, list[int]]] = deque()
        self._counts = dict.fromkeys(MoverStats.__dataclass_fields__, 0)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def _count(self, **changes: int) -> None:
        for name, change in changes.items():
            self._counts[name] += change

    def stats(self) -> MoverStats:
        """A copy of the counters."""
        return MoverStats(**self._counts)

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

    def wait_layer(self, name: str) -> None:
        """Return when this layer, and those before it, of all loads is there, or has failed."""
        if self._readings:
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
        """Copy these out of the engine's memory, and put them. Never waits for the drive."""
        for save in saves:
            if self._poisoned and not self._poisoned.isdisjoint(save.context):
                continue  # computed from what was not loaded: the host does it again
            fit = min(len(save.chunks), self.staging.free // len(self.layout.groups))
            if save.request in self._broken:
                fit = 0
            if fit < len(save.chunks):
                self._broken.add(save.request)
                self._count(chunks_skipped=len(save.chunks) - fit)
            if fit:
                self._copy(save, fit)
            else:
                self._told.append(Ended(save.request, "save", [False] * len(save.chunks)))
        if saves:
            self._start()

    def _copy(self, save: Save, chunks: int) -> None:
        saving = _Saving([], [], [], save, chunks)
        for chunk, blocks in zip(save.chunks[:chunks], save.blocks, strict=False):
            for group, names in enumerate(self.layout.groups):
                slot = self.staging.take()
                out = self.staging.of(slot, self.layout.object_bytes[group])
                at = 0
                for name in names:
                    nbytes = self.layers[name].block_bytes * len(blocks)
                    self.layers[name].gather(blocks, out[at : at + nbytes])
                    at += nbytes
                saving.keys.append(self.layout.key(chunk, group))
                saving.buffers.append(out)
                saving.slots.append(slot)
        with self._lock:
            self._copying.append((self._fence(), saving))
        self._put_copied()

    def _put_copied(self) -> None:
        """Put what has been copied, in order."""
        with self._lock:
            while self._copying and self._copying[0][0]():
                _, saving = self._copying.popleft()
                before = saving.save.after
                after = None if before is None else self.layout.ends(before)
                self.tier.put(saving, saving.keys, saving.buffers, after=after)

    def _saved(self, done: Done) -> None:
        saving: _Saving = done.tag
        self.staging.give_back(saving.slots)
        width = len(self.layout.groups)
        ok = [all(done.ok[i * width : (i + 1) * width]) for i in range(saving.chunks)]
        good = sum(ok)
        self._count(chunks_saved=good, chunks_not_saved=len(ok) - good)
        skipped = [False] * (len(saving.save.chunks) - len(ok))
        self._told.append(Ended(saving.save.request, "save", ok + skipped))

    def _free_copied(self) -> None:
        while self._draining and self._draining[0][0]():
            self.staging.give_back(self._draining.popleft()[1])

    def finished(self, requests: Iterable[str]) -> None:
        """These requests are over."""
        self._broken.difference_update(requests)

    # -- the thread ----------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="chm-saves", daemon=True)
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        """A put of many objects is submitted part by part; see that the next part follows."""
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            while not self._closing:
                try:
                    self._put_copied()
                    idle = self.tier.wait(1.0)
                except ChmError as error:
                    log.warning("saving stopped: %s", error)
                    return
                if self._copying:
                    time.sleep(_PAUSE_S)
                elif idle:
                    break

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> list[Ended]:
        """End everything, within the deadline of jobs; close the tier; let all memory go."""
        if self._closing:
            return []
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        while self._copying:
            self._put_copied()
            time.sleep(_PAUSE_S)
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
