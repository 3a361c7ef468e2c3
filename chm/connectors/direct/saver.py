# SPDX-License-Identifier: Apache-2.0
"""Saves of the direct connector: nobody waits for them.

A save: copied into staging slots at once -> (the copy is over) -> put -> its slots are free again.
Without free slots it is skipped, and with it what the same request would save later: the blocks
behind a gap are of no use. It is tried again when the tokens come by again in another request.

One thread of ours moves puts on while the engine has nothing to do. It touches no slots; all other
calls are made by the engine's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chm.connectors.direct.layout import Layout
from chm.connectors.direct.memory import Fence, Layer, Staging
from chm.connectors.direct.plan import Save
from chm.connectors.tier import Done, Tier
from chm.errors import ChmError

log = logging.getLogger("chm")
_PAUSE_S = 0.001


@dataclass
class _Saving:
    """A save whose bytes are being copied, or put: of its first ``chunks``."""

    keys: list[bytes]
    buffers: list[Any]
    slots: list[int]
    save: Save
    chunks: int


class Saver:
    """``fence()`` tells when the copies begun so far are over."""

    def __init__(
        self,
        tier: Tier,
        layout: Layout,
        layers: Mapping[str, Layer],
        staging: Staging,
        fence: Any,
    ) -> None:
        self.tier, self.layout, self.layers, self.staging = tier, layout, layers, staging
        self.fence = fence
        self.saved = self.not_saved = self.skipped = 0
        self._broken: set[str] = set()
        self._copying: deque[tuple[Fence, _Saving]] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def save(self, saves: Iterable[Save]) -> list[Save]:
        """Copy these out of the engine's memory, and put them. Never waits for the drive. Gives
        those that were skipped whole; of the others ``ended`` will tell."""
        skipped: list[Save] = []
        for save in saves:
            fit = min(len(save.chunks), self.staging.free // len(self.layout.groups))
            if save.request in self._broken:
                fit = 0
            if fit < len(save.chunks):
                self._broken.add(save.request)
                self.skipped += len(save.chunks) - fit
            if fit:
                self._copy(save, fit)
                self._start()
            else:
                skipped.append(save)
        return skipped

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
            self._copying.append((self.fence(), saving))
        self._put_copied()

    def _put_copied(self) -> None:
        """Put what has been copied, in order."""
        with self._lock:
            while self._copying and self._copying[0][0]():
                _, saving = self._copying.popleft()
                before = saving.save.after
                after = None if before is None else self.layout.ends(before)
                self.tier.put(saving, saving.keys, saving.buffers, after=after)

    def ended(self, done: Done) -> tuple[Save, list[bool]]:
        """A put has ended: which save it was, and which of its chunks are there."""
        saving: _Saving = done.tag
        self.staging.give_back(saving.slots)
        width = len(self.layout.groups)
        ok = [all(done.ok[i * width : (i + 1) * width]) for i in range(saving.chunks)]
        self.saved += sum(ok)
        self.not_saved += len(ok) - sum(ok)
        return saving.save, ok + [False] * (len(saving.save.chunks) - len(ok))

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
                if self.tier.store.closed:
                    return
                if self._copying:
                    time.sleep(_PAUSE_S)
                elif idle:
                    break

    def close(self) -> None:
        """What was copied is put; the thread ends."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        while self._copying:
            self._put_copied()
            time.sleep(_PAUSE_S)
