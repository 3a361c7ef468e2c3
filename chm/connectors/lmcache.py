# SPDX-License-Identifier: Apache-2.0
"""L2 adapter of the LMCache server, for its ``native_plugin`` seam; nothing of LMCache is needed.

    {"type": "native_plugin", "module_path": "chm.connectors.lmcache", "class_name": "ChmL2",
     "adapter_params": {"path": "/data/kv", "capacity": "100GiB", "dram": "2GiB"}}

A batch of keys: submitted -> ended -> told by ``drain_completions``, exactly once, also at close.
Look-ups end as they are submitted, everything else on the store's threads; submitting never waits.

The host's key is text that names model, rank, group, chunk and salt: its hash is our key, all in
one namespace. What is chained are keys of one *line*: all of the text but the chunk. The host does
not say what precedes a chunk that it stores, but it asks for a whole prompt, in order, before it
computes the rest: so each chunk that was asked for and not there is remembered with the one before
it. A chunk that nobody asked for follows the one before it in its batch. A put that hangs on one
that is still being written waits for it, and fails with it.

The descriptor is one over two: the store's, and one of our own for what ended elsewhere: look-ups,
and jobs whose end another thread, or another adapter on the store, noticed first.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chm.connectors.config import TierOptions
from chm.connectors.naming import Naming, key_of
from chm.connectors.tier import Done, Tier
from chm.errors import ChmError, Closed

log = logging.getLogger("chm")

HINT_S = 5.0
"""The load follows its look-up at once, or not at all: the chunks were in L1."""
_REMEMBERED = 1 << 16
_SKIP_MOST = 64
_FIELDS = 4  # model, rank, group, chunk; a salt may follow

Answer = tuple[int, bool, str, list[bool] | None]


@dataclass
class Batch:
    """What the host submitted in one call, and how far it is."""

    number: int
    op: str
    ok: list[bool]
    error: str = ""
    nbytes: int = 0
    parts: int = 0
    """Parts that have not ended."""

    def answer(self) -> Answer:
        """The host takes the hits of a look-up only if it succeeded, as one without hits does."""
        good = not self.error if self.op == "exists" else all(self.ok)
        return self.number, good, self.error, self.ok


@dataclass
class _Part:
    """Keys of a batch that are one task of the tier, by their places in the batch."""

    batch: Batch
    places: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=list)
    after: bytes | None = None
    chain: bool = True
    waiting: list[_Part] = field(default_factory=list)
    """Puts that hang on a key of this one."""

    def add(self, place: int, key: bytes, buffer: Any) -> None:
        self.places.append(place)
        self.keys.append(key)
        self.buffers.append(buffer)


def line_of(text: str) -> str:
    """The host's key without the chunk: chunks of one line can follow each other."""
    fields = text.split("@")
    if len(fields) < _FIELDS:
        return text
    del fields[_FIELDS - 1]
    return "@".join(fields)


class Lines:
    """What precedes which chunk, as far as the host let it be seen. Not thread-safe."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._before: OrderedDict[bytes, bytes | None] = OrderedDict()

    def asked(self, lines: Sequence[str], keys: Sequence[bytes], found: Sequence[bool]) -> None:
        """Remember the order of what is not there."""
        last: dict[str, bytes] = {}
        for line, key, there in zip(lines, keys, found, strict=True):
            if not there:
                self._before[key] = last.get(line)
                self._before.move_to_end(key)
            last[line] = key
        while len(self._before) > self._most:
            self._before.popitem(last=False)

    def runs(self, batch: Batch, texts: Sequence[str], buffers: Sequence[Any]) -> list[_Part]:
        """A put as chains; chunks that hang on nothing and bear nothing are one part without."""
        ends: dict[bytes, _Part] = {}
        last: dict[str, bytes] = {}
        parts: list[_Part] = []
        for place, (text, buffer) in enumerate(zip(texts, buffers, strict=True)):
            key, line = key_of(text.encode()), line_of(text)
            before = self._before.get(key, last.get(line))
            part = ends.pop(before, None) if before is not None else None
            if part is None:
                part = _Part(batch, after=before)
                parts.append(part)
            part.add(place, key, buffer)
            ends[key] = part
            last[line] = key
        return _with_loners_joined(batch, parts)


def _with_loners_joined(batch: Batch, parts: list[_Part]) -> list[_Part]:
    loners = _Part(batch, chain=False)
    chains = []
    for part in parts:
        if len(part.keys) == 1 and part.after is None:
            loners.add(part.places[0], part.keys[0], part.buffers[0])
        else:
            chains.append(part)
    return [loners, *chains] if loners.keys else chains


class _Taste:
    """Whether hints pay: each that was not used makes the next twice as rare, one used resets."""

    def __init__(self) -> None:
        self.used = self.wasted = self.skip = self.left = 0

    def wants(self, used: int, wasted: int) -> bool:
        """Asked once per look-up with hits; ``used``, ``wasted``: hints so far."""
        if used > self.used:
            self.skip = self.left = 0
        elif wasted > self.wasted:
            self.skip = self.left = min(2 * self.skip + 1, _SKIP_MOST)
        self.used, self.wasted = used, wasted
        if self.left:
            self.left -= 1
            return False
        return True


class ChmL2:
    """The connector that the host loads. Parameters: the fields of ``TierOptions``.

    ``salt`` and ``identity`` name what the host's keys do not: which weights, dtype and KV layout
    stand behind the model's name. ``max_capacity_gb`` is accepted and has no effect: the store
    evicts by itself, and keeps chains whole.
    """

    def __init__(self, max_capacity_gb: float = 0, **params: Any) -> None:
        if max_capacity_gb:
            log.warning("max_capacity_gb has no effect: the store evicts by itself when it is full")
        options = TierOptions(**{"hint_s": HINT_S, **params})
        name = Naming("lmcache", salt=options.salt, identity=options.identity)
        self.tier = Tier(options, str(name))
        self._lock = threading.RLock()
        self._numbers = 0
        self._lines = Lines()
        self._taste = _Taste()
        self._putting: dict[bytes, _Part] = {}
        self._ended: deque[Batch] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._both = select.epoll()
        self._both.register(self._wake, select.EPOLLIN)
        self._both.register(self.tier.fileno(), select.EPOLLIN)
        self.tier.on_progress = self._signal

    def event_fd(self) -> int:
        """Readable while ``drain_completions`` has something to do; it must not be read."""
        return self._both.fileno()

    def _signal(self) -> None:
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    # -- looking up ----------------------------------------------------------------------------

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Ask whether chunks are there; the number of the batch."""
        batch = self._batch("exists", keys)
        try:
            batch.ok = self.look_up(keys)
        except ChmError as error:
            batch.error = str(error)
        with self._lock:
            self._ended.append(batch)
            self._signal()
        return batch.number

    def look_up(self, texts: Sequence[str]) -> list[bool]:
        """Whether each is there, and start reading the first of those that will be loaded now."""
        keys = [key_of(text.encode()) for text in texts]
        lines = [line_of(text) for text in texts]
        found = self.tier.exists(keys)
        with self._lock:
            self._lines.asked(lines, keys, found)
            hits = _leading(lines, keys, found)
            if hits:
                self.tier.touch(hits)
                stats = self.tier.stats()
                wasted = stats.hints_expired + stats.hints_cancelled
                if self._taste.wants(stats.hints_used, wasted):
                    self._numbers += 1
                    self.tier.hint(self._numbers, hits)
        return found

    def unhint(self, texts: Sequence[str]) -> None:
        """These will not be loaded, or were: nothing needs to be staged for them any more."""
        self.tier.unhint([key_of(text.encode()) for text in texts])

    def sizes(self, texts: Sequence[str]) -> list[int]:
        """Bytes of each, 0 for those that are not there."""
        return self.tier.sizes([key_of(text.encode()) for text in texts])

    # -- jobs ----------------------------------------------------------------------------------

    def submit_batch_get(self, keys: Sequence[str], bufs: Sequence[Any]) -> int:
        """Load chunks, each of exactly the length of its buffer; the number of the batch."""
        batch = self._batch("get", keys)
        part = _Part(batch)
        for place, (text, buffer) in enumerate(zip(keys, bufs, strict=True)):
            part.add(place, key_of(text.encode()), buffer)
        return self._submit(batch, [part])

    def submit_batch_set(self, keys: Sequence[str], bufs: Sequence[Any]) -> int:
        """Store chunks; the number of the batch. One that is there stays as it is: a success."""
        batch = self._batch("set", keys)
        with self._lock:
            return self._submit(batch, self._lines.runs(batch, keys, bufs))

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Drop chunks; the number of the batch. Answers False for what was not there."""
        batch = self._batch("delete", keys)
        part = _Part(batch)
        for place, text in enumerate(keys):
            part.add(place, key_of(text.encode()), b"")
        return self._submit(batch, [part])

    def _batch(self, op: str, keys: Sequence[str]) -> Batch:
        with self._lock:
            self._numbers += 1
            return Batch(self._numbers, op, [False] * len(keys))

    def _submit(self, batch: Batch, parts: list[_Part]) -> int:
        with self._lock:
            batch.parts = len(parts)
            if not parts:
                self._ended.append(batch)
            for part in parts:
                before = self._putting.get(part.after) if part.after is not None else None
                if batch.op == "set":
                    self._putting.update(dict.fromkeys(part.keys, part))
                if before is not None:
                    before.waiting.append(part)
                else:
                    self._start(part)
            if self._ended:
                self._signal()
        return batch.number

    def _start(self, part: _Part) -> None:
        try:
            if self.tier.closed:
                raise Closed(errno.ESHUTDOWN, "the adapter is closed")
            if part.batch.op == "get":
                self.tier.get(part, part.keys, part.buffers)
            elif part.batch.op == "set":
                self.tier.put(part, part.keys, part.buffers, part.after, part.chain)
            else:
                self.tier.delete(part, part.keys)
        except (ChmError, ValueError, TypeError) as error:
            self._part_ended(part, [False] * len(part.keys), str(error), 0)
        part.buffers = []  # the tier has them

    # -- what has ended ------------------------------------------------------------------------

    def drain_completions(self) -> list[Answer]:
        """(number, all succeeded, error, success of each key) of batches that have ended."""
        return [batch.answer() for batch in self.drain()]

    def drain(self) -> list[Batch]:
        """Batches that have ended since the last time. Does not wait."""
        if not self.tier.closed:
            try:
                self.tier.store.poll()  # all that wakes us on the way is done below
                self._clear()
                self._take(self.tier.drain())
            except ChmError:
                pass  # closed meanwhile, which told everything
        with self._lock:
            ended, self._ended = self._ended, deque()
        return list(ended)

    def _clear(self) -> None:
        with self._lock:
            if self._wake >= 0:
                try:
                    os.eventfd_read(self._wake)
                except BlockingIOError:
                    pass

    def _take(self, done: Sequence[Done]) -> None:
        with self._lock:
            for one in done:
                self._part_ended(one.tag, one.ok, one.error, one.nbytes)

    def _part_ended(self, part: _Part, ok: Sequence[bool], error: str, nbytes: int) -> None:
        """Note how it went; those that hang on it begin, or fail with the key they hang on."""
        todo = [(part, ok, error, nbytes)]
        while todo:
            part, ok, error, nbytes = todo.pop()
            batch = part.batch
            batch.error = batch.error or error
            batch.nbytes += nbytes
            for place, key, good in zip(part.places, part.keys, ok, strict=True):
                batch.ok[place] = good
                if self._putting.get(key) is part:
                    del self._putting[key]
            batch.parts -= 1
            if batch.parts == 0:
                self._ended.append(batch)
            good_keys = {key for key, good in zip(part.keys, ok, strict=True) if good}
            for other in part.waiting:
                if other.after in good_keys:
                    self._start(other)
                else:
                    lost = "the chunk before it was not stored"
                    todo.append((other, [False] * len(other.keys), lost, 0))
            part.waiting = []

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Let what runs end, by its deadline, and close the store. Idempotent.

        What has ended and was not told can still be drained. The descriptor is gone.
        """
        if self._both.closed:
            return
        self._take(self.tier.close())
        with self._lock:
            self._both.close()
            wake, self._wake = self._wake, -1
            os.close(wake)


def _leading(lines: Sequence[str], keys: Sequence[bytes], found: Sequence[bool]) -> list[bytes]:
    """The hits before the first miss of each line, as they will be loaded."""
    broken: set[str] = set()
    hits = []
    for line, key, there in zip(lines, keys, found, strict=True):
        if not there:
            broken.add(line)
        elif line not in broken:
            hits.append(key)
    return hits
