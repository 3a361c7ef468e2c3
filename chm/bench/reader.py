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
from chm.bench.index import Block
from chm.bench.measure import Samples
from chm.bench.payload import PAGE_BYTES, PayloadMismatch
from chm.bench.target import Target
from chm.bench.workload import Request
from chm.policies import Known, Prefetch
from chm.policies.seam import ask, refuse

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

    @property
    def stopped(self) -> bool:
        """Whether something did."""
        return self.late or self.failed

    def stop(self, error: Exception) -> None:
        """This did."""
        self.late = isinstance(error, (chm.Expired, chm.WaitTimeout))
        self.failed = not self.late


@dataclass
class Reader:
    """Reads extents as the configuration says. One per run."""

    target: Target
    config: BlockConfig
    samples: Samples
    block_bytes: int
    prefetch: Prefetch | None = None
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

    def window_for(self, request: Request, blocks: Sequence[Block]) -> int | None:
        """Window of the request's stream as the prefetch policy says; None: the run's; 0: none."""
        policy = self.prefetch
        if policy is None or not blocks:
            return None if self.config.prefetch else 0
        keys = request.keys[: len(blocks)]
        known = Known(request.session, keys, self.block_bytes, self.target.now())
        nbytes = ask(policy, policy.ahead_bytes, known)
        if nbytes is not None and (type(nbytes) is not int or nbytes < 0):
            raise refuse(policy, f"gave a window of {nbytes!r} bytes")
        return nbytes

    def read(
        self,
        extents: Sequence[Extent],
        result: ReadResult,
        staged: Sequence[chm.Request] = (),
        window: int | None = None,
    ) -> Steps:
        """Deliver the extents in order; a generator for `drive`. Fills in result as it goes.

        The first ones may be staged already, as requests that stay the caller's. window: of the
        stream for the rest, None: as configured, 0: demand reads.
        """
        for e in extents:
            self.target.require_written(e.addr, e.length)
        if not extents:
            return
        rest = extents[len(staged) :]
        if window == 0 or not self.config.prefetch:
            yield from self._staged(extents, result, staged)
            if not result.stopped and rest:
                yield from self._by_demand(rest, result)
        elif not rest:
            yield from self._staged(extents, result, staged)
        else:
            with self._open(rest, window) as stream:  # reads ahead while the staged ones are used
                yield from self._staged(extents, result, staged)
                if not result.stopped:
                    yield from self._by_stream(stream, rest, result)

    def _staged(
        self, extents: Sequence[Extent], result: ReadResult, staged: Sequence[chm.Request]
    ) -> Steps:
        if not staged:
            return
        waits = self.samples.series("piece_wait")
        for extent, request in zip(extents, staged, strict=False):
            began = self.target.now()
            if not request.done:
                yield request
            try:
                request.wait(0)
            except chm.ChmError as e:
                result.stop(e)
                return
            waits.add(began, self.target.now())
            if self._verify == "none":
                self.delivered_bytes += extent.length
            else:
                self.deliver(request.array(), extent, 0)
            result.delivered += 1
            request.release()
            yield None

    def _by_stream(
        self, stream: chm.Stream, extents: Sequence[Extent], result: ReadResult
    ) -> Steps:
        waits = self.samples.series("piece_wait")
        now, left = self.target.now, len(extents)
        began = now()
        while left:
            piece = yield stream
            if isinstance(piece, Exception):
                result.stop(piece)
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

    def _open(self, extents: Sequence[Extent], window: int | None) -> chm.Stream:
        return self.target.dev.stream(
            [(e.addr, e.length) for e in extents],
            segment=self.config.segment,
            whole=self.config.whole,
            window=self.config.window if window is None else window,
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
                    result.stop(error)
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
