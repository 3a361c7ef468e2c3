# SPDX-License-Identifier: Apache-2.0
"""The replay itself: for each request look up, read what is there, check it, put the rest.

    Lookup.find -> Manager.read -> every byte checked -> Manager.put from the first missing block

Requests go one after the other, as fast as possible. A put waits for room, so that what is found
later does not depend on how fast the drive is. A read that ends early (late, or its node is gone)
gives what it has; the rest is put again.

With `sync` N the pool is made durable after every N requests, and only then are they noted: what
is noted was promised. With 0 each is noted at once and the store decides when to make durable, as
under an engine: a kill then costs what was put within the store's sync interval.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import chm
from chm.bench.measure import Samples
from chm.bench.payload import Payload, PayloadMismatch
from chm.bench.replay.notes import Notes, Row
from chm.bench.replay.work import Step, Work, number_of
from chm.bench.target import BenchError
from chm.bench.ui import Progress
from chm.job import ObjectLease
from chm.lookup import BATCH, Found, Lookup
from chm.manager import Manager
from chm.master import LocalMaster
from chm.pool import Member, Pool
from chm.pool import format as format_member

MIB = 1 << 20
NAMESPACE = "chm-bench replay"
ROOM = 1.6  # capacity of new members over what the objects need: they fill unevenly
PUT_RETRIES = 2
PUT_WAIT_S = 10.0


@dataclass(frozen=True)
class Setting:
    """How the members are made and opened, and how requests go."""

    members: tuple[Path, ...]
    capacity: int = 0  # of each new member; 0: what the work needs, shared
    dram: int = 256 * MIB
    eviction: str = "prefix-tail"
    media: str = "auto"
    buffered: bool = False
    sync: int = 0
    deadline_s: float = 10.0
    seed: int = 1


# ------------------------------------------------------------------------------------ members


def make_members(setting: Setting, work: Work) -> list[Path]:
    """Make the files that are not there; which those are."""
    share = int(work.footprint_bytes * ROOM / len(setting.members)) + 64 * MIB
    capacity = setting.capacity or -(-share // MIB) * MIB
    objects = min(work.objects, capacity // min(work.sizes)) + 1000
    new = [path for path in setting.members if not path.exists()]
    for path in new:
        format_member(_member(setting, path), capacity, max_objects=objects)
    return new


def _member(setting: Setting, path: Path) -> Member:
    return Member(
        str(path),
        path,
        options={
            "dram_bytes": setting.dram,
            "media": setting.media,
            "buffered": setting.buffered,
        },
        store_options={"eviction": setting.eviction},
    )


@contextlib.contextmanager
def open_members(setting: Setting, some_missing: bool) -> Iterator[Pool]:
    """The pool. With `some_missing` one that can be opened is enough. Raises BenchError."""
    with Pool(_member(setting, path) for path in setting.members) as pool:
        lost = [node for node in pool.nodes if not node.readable]
        if lost and (not some_missing or len(lost) == len(pool.nodes)):
            raise BenchError("; ".join(f"{n.name}: {n.reason}" for n in lost))
        yield pool


# ------------------------------------------------------------------------------------ requests


class Walk:
    """Requests over an open pool."""

    def __init__(self, setting: Setting, work: Work, pool: Pool) -> None:
        self.pool = pool
        self.samples = Samples()
        self._sync = setting.sync
        self._work = work
        self._master = LocalMaster(pool, NAMESPACE)
        self._manager = Manager(pool, self._master, NAMESPACE, deadline_s=setting.deadline_s)
        self._lookup = Lookup(self._master, self._manager)
        self._payload = Payload(setting.seed)
        self._memory = chm.aligned_empty(BATCH * max(work.sizes)).reshape(BATCH, -1)

    def run(self, notes: Notes, tick: Progress) -> None:
        """All requests that are not noted. Raises PayloadMismatch for a wrong byte."""
        steps = self._work.steps
        tick.begin("requests", len(steps))
        tick.advance(len(notes.rows))
        waiting: list[Row] = []
        with self._manager:
            for n in range(len(notes.rows), len(steps)):
                waiting.append(self.request(n, steps[n], notes.run))
                if self._sync == 0 or len(waiting) == self._sync or n + 1 == len(steps):
                    if self._sync:
                        self._make_durable()
                    notes.add(waiting)
                    tick.advance(len(waiting))
                    waiting = []

    def request(self, n: int, step: Step, run: int) -> Row:
        """One request."""
        began = time.monotonic_ns()
        keys = [self._work.key(number) for number in step.objects]
        name = f"request {n}"
        with self._timed("look-up"):
            found = self._lookup.find(name, keys)
        usable, nbytes = self._read(found)
        rest = keys[usable:]
        with self._timed("put"):
            stored, duplicate = self._put(name, rest, keys[usable - 1] if usable else None)
        nodes = Counter(str(d.node) for d in found.descriptors[:usable])
        self.samples.series("request").add(began, time.monotonic_ns())
        skipped = len(rest) - stored - duplicate
        return Row(
            step.trace, len(keys), usable, stored, duplicate, skipped, nbytes, dict(nodes), run
        )

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic_ns()
        yield
        self.samples.series(name).add(began, time.monotonic_ns())

    def _read(self, found: Found) -> tuple[int, int]:
        """Blocks that could be used, and their bytes, every one of them checked."""
        if not found.keys:
            return 0, 0
        nbytes = 0
        with self._timed("read"), self._manager.read(found) as reader:
            for key, lease in zip(found.keys, reader, strict=False):
                nbytes += self._check(key, lease)
        return reader.usable, nbytes

    def _check(self, key: bytes, lease: ObjectLease) -> int:
        size = self._work.size(key)
        if lease.length != size:
            raise BenchError(f"object {key.hex()} has {lease.length} bytes instead of {size}")
        views = lease.views()
        data = np.frombuffer(views[0], np.uint8)
        if len(views) > 1:
            data = self._memory[0, :size]
            lease.copy_to(data)
        try:
            return self._payload.check(data, number_of(key))
        except PayloadMismatch as e:
            why = str(e)
        del data, views  # a traceback that held them would keep the pool open
        raise PayloadMismatch(f"key {key.hex()}: {why}")

    def _put(self, name: str, keys: Sequence[bytes], after: bytes | None) -> tuple[int, int]:
        stored = duplicate = 0
        for at in range(0, len(keys), BATCH):
            some = keys[at : at + BATCH]
            outcome = self._manager.put(
                name,
                some,
                [self._made(i, key) for i, key in enumerate(some)],
                after=keys[at - 1] if at else after,
                retries=PUT_RETRIES,
                retry_s=PUT_WAIT_S,
            )
            stored += outcome.stored
            duplicate += outcome.duplicate
            if outcome.missing:
                break  # nothing may hang on what is not there
        return stored, duplicate

    def _made(self, slot: int, key: bytes) -> Any:
        out = self._memory[slot, : self._work.size(key)]
        self._payload.fill(out, number_of(key))
        return out

    def _make_durable(self) -> None:
        for node in self.pool.nodes:
            if node.readable:
                try:
                    node.store.sync(None).result()
                except chm.ChmError as error:
                    node.failed(error)  # what it has may be a miss from here on
