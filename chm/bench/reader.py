# SPDX-License-Identifier: Apache-2.0
"""Read a request's extents in order, staged ahead by a stream or by one demand read at a time.

Both ways deliver through the same host link of the same device, and check the same share of the
bytes; the time of checking is counted and reported, not hidden.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import chm
from chm.bench.config import BlockConfig
from chm.bench.drive import Demand, Steps
from chm.bench.measure import Samples
from chm.bench.payload import PAGE_BYTES, PayloadMismatch
from chm.bench.target import Target

SAMPLE_EVERY = 16 << 20  # bytes delivered per page checked


@dataclass(frozen=True)
class Extent:
    """One block on the device, and the content it must have."""

    addr: int
    length: int
    obj: int
    version: int = 0


@dataclass
class Checked:
    """What verification did."""

    nbytes: int = 0
    elapsed_ns: int = 0


@dataclass
class ReadResult:
    """How far a request's reads got: whole extents from the front, and what stopped them."""

    delivered: int = 0
    late: bool = False
    failed: bool = False


@dataclass
class Reader:
    """Reads extents as the configuration says. One per run."""

    target: Target
    config: BlockConfig
    samples: Samples
    block_bytes: int
    checked: Checked = field(default_factory=Checked)
    delivered_bytes: int = 0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.config.seed)
        self._unchecked = SAMPLE_EVERY
        self._buffers: list[Any] = []
        self._shared: Any = None
        self._verify = self.config.verify
        if not self.target.info.contents:
            self._verify = "none"

    @property
    def verifies(self) -> bool:
        """Whether any byte is checked: not if the medium keeps none."""
        return self._verify != "none"

    def read(self, extents: Sequence[Extent], result: ReadResult) -> Steps:
        """Deliver the extents in order; a generator for `drive`. Fills in result as it goes."""
        for e in extents:
            self.target.require_written(e.addr, e.length)
        if not extents:
            return
        if self.config.prefetch:
            yield from self._by_stream(extents, result)
        else:
            yield from self._by_demand(extents, result)

    def _by_stream(self, extents: Sequence[Extent], result: ReadResult) -> Steps:
        waits = self.samples.series("piece_wait")
        now, left = self.target.now, len(extents)
        with self._open(extents) as stream:
            began = now()
            while left:
                piece = yield stream
                if isinstance(piece, Exception):
                    result.late = isinstance(piece, chm.Expired)
                    result.failed = not result.late
                    return
                waits.add(began, now())
                self._consume(piece, extents[piece.object])
                if piece.last:
                    result.delivered += 1
                    left -= 1
                piece.release()
                began = now()

    def _consume(self, piece: chm.Piece, extent: Extent) -> None:
        if self._verify == "none":
            self.delivered_bytes += piece.length
        else:
            self.deliver(piece.array(), extent, piece.offset)

    def _open(self, extents: Sequence[Extent]) -> Any:
        return self.target.dev.stream(
            [(e.addr, e.length) for e in extents],
            segment=self.config.segment,
            whole=self.config.whole,
            window=self.config.window,
            deadline_s=self.config.deadline_s,
        )

    def _by_demand(self, extents: Sequence[Extent], result: ReadResult) -> Steps:
        waits = self.samples.series("demand_read")
        began = self.target.now()
        buffer = self._borrow()
        try:
            for e in extents:
                start = self.target.now()
                if self.config.deadline and start - began > self.config.deadline:
                    result.late = True
                    return
                out = buffer[: e.length]
                error = yield Demand(e.addr, out)
                if error is not None:
                    result.late = isinstance(error, (chm.Expired, chm.WaitTimeout))
                    result.failed = not result.late
                    return
                waits.add(start, self.target.now())
                self.deliver(out, e, 0)
                result.delivered += 1
        finally:
            self._buffers.append(buffer)

    def _borrow(self) -> Any:
        if self._buffers:
            return self._buffers.pop()
        info = self.target.info
        if info.virtual_time and not info.contents and self._shared is not None:
            return self._shared  # nothing is ever written to it
        buffer = self.target.buffer("demand read buffers", self.block_bytes)
        self.target.dev.register(buffer)
        self._shared = buffer
        return buffer

    def deliver(self, data: Any, extent: Extent, offset: int) -> None:
        """What a consumer does with bytes of an extent: count them, and check some."""
        self.delivered_bytes += len(data)
        if self._verify == "none":
            return
        began = time.perf_counter_ns()
        if self._verify == "sample":
            self._unchecked += len(data)
            if self._unchecked < SAMPLE_EVERY:
                return
            self._unchecked = 0
            at = int(self._rng.integers(len(data) // PAGE_BYTES)) * PAGE_BYTES
            data, offset = data[at : at + PAGE_BYTES], offset + at
        try:
            self.checked.nbytes += self.target.payload.check(
                data, extent.obj, extent.version, offset
            )
        except PayloadMismatch as e:
            wrong = str(e)
        else:
            self.checked.elapsed_ns += time.perf_counter_ns() - began
            return
        del data  # a traceback that held the view would keep the device from closing
        raise PayloadMismatch(wrong)
