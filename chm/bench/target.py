# SPDX-License-Identifier: Apache-2.0
"""The device under test: made, written, read and removed.

A target makes its own device, on a temporary file unless told otherwise, and never overwrites a
file that it did not make. It knows which extents have been written and refuses to read any other:
never-written extents are answered without touching the drive, and would give fantastic figures
(F82).
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import chm
from chm import units
from chm.bench import host
from chm.bench.config import DeviceConfig
from chm.bench.drive import Demand
from chm.bench.measure import Cost, Stopwatch
from chm.bench.payload import PAGE_BYTES, Payload
from chm.device import HEADER_MAGIC
from chm.stats import DeviceInfo

MIB = 1 << 20
_SPARE = 64 * MIB  # left free on the file system
_PIECE = 16 * MIB  # longest piece of a put
_PATIENCE_S = 300.0  # a drive that needs longer than this for one call has hung
_PUSH_NS = 200_000  # how long to wait for the flush to make room
_SECOND_NS = 1_000_000_000


class BenchError(Exception):
    """The experiment cannot be run; the text says why and what to do."""


class NeverWritten(BenchError):
    """A read of an extent that this run has not written."""


@dataclass
class Target:
    """An open device and what the run knows about it. Use `open_target`."""

    config: DeviceConfig
    dev: chm.Device
    info: DeviceInfo
    paths: Sequence[Path]
    payload: Payload
    notes: list[str] = field(default_factory=list)
    refusals: int = 0  # answers "no room in the write buffer"
    buffers: dict[str, int] = field(default_factory=dict)
    payload_written: int = 0
    _written: dict[int, int] = field(default_factory=dict)

    # ------------------------------------------------------------------ clock

    def now(self) -> int:
        """The device's clock, ns: virtual on a simulated medium."""
        return self.dev.now()

    def stopwatch(self, cost: Cost) -> Stopwatch:
        """Times a phase into cost."""
        return Stopwatch(self.now, cost, not self.info.virtual_time)

    def push(self, until: int | None = None) -> None:
        """Let the device work until `until` on its clock, or for a moment. May return early: in
        virtual time, at the next event."""
        if until is None:
            until = self.now() + (_SECOND_NS if self.info.virtual_time else _PUSH_NS)
        if self.info.threaded:
            time.sleep(max(0, until - self.now()) / 1e9)
        else:
            self.dev.step(until)

    def wait_any(self, until: int | None) -> None:
        """Return when a request has ended that `reap` has not told, or at `until`, or earlier."""
        until = self.now() + 1_000_000_000 if until is None else until
        if self.info.threaded:
            select.select([self.dev.fileno()], [], [], max(0, until - self.now()) / 1e9)
        else:
            self.dev.step(until)

    def wait_until(self, when: int) -> None:
        """Return when the device's clock has passed `when`."""
        while self.now() < when:
            self.push(when)

    # ------------------------------------------------------------------ writing

    def put(self, addr: int, length: int, obj: int, version: int) -> Iterator[None]:
        """Write an object's generated content, piece by piece; a generator that yields while the
        write buffer is full. Stop driving it to give up: what was not committed is not written."""
        piece = min(_PIECE, self.info.write_buffer_bytes // 2) // PAGE_BYTES * PAGE_BYTES
        for at in range(0, length, piece):
            n = min(piece, length - at)
            while not self._put_piece(addr + at, n, obj, version, at):
                self.refusals += 1
                yield
        self._written[addr] = length
        self.payload_written += length

    def _put_piece(self, addr: int, n: int, obj: int, version: int, at: int) -> bool:
        try:
            write = self.dev.write_begin(addr, n)
        except chm.errors.WouldBlock:
            return False
        try:
            if self.info.contents:
                self.payload.fill(np.frombuffer(write.view, np.uint8), obj, version, at)
        except BaseException:
            write.abort()
            raise
        write.commit()
        return True

    def lay_out(self, count: int, length: int, tick: Callable[[int], None]) -> None:
        """Write `count` objects of `length` bytes, one after the other, and make them durable.

        Object i lies at i * length, version 0. Reads of anything else are refused.
        """
        for obj in range(count):
            for _ in self.put(obj * length, length, obj, 0):
                self.push()
            tick(length)
        self.flush()

    def flush(self) -> int:
        """Make everything committed durable; ns on the device's clock that it took."""
        began = self.now()
        self.dev.flush(_PATIENCE_S)
        return self.now() - began

    def require_written(self, addr: int, length: int) -> None:
        """Raise NeverWritten unless [addr, addr + length) is an extent that this run has put."""
        if self._written.get(addr, 0) < length:
            raise NeverWritten(
                f"extent {addr:#x}+{length:#x} was never written in this run: reading it would "
                "measure nothing (it is answered without touching the drive)"
            )

    # ------------------------------------------------------------------ reading

    def read_many(self, demands: Sequence[Demand]) -> list[Exception | None]:
        """Demand reads as one batch; None or the exception for each, in order."""
        results = self.dev.read_many([(d.addr, d.out) for d in demands], timeout=_PATIENCE_S)
        return [r if isinstance(r, Exception) else None for r in results]

    # ------------------------------------------------------------------ accounts

    def buffer(self, name: str, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Aligned memory of the benchmark itself, touched, and listed as DRAM used."""
        memory = chm.aligned_empty(nbytes)
        if self.info.contents:
            memory[:] = 0
        self.buffers[name] = self.buffers.get(name, 0) + nbytes
        return memory

    def dram(self) -> list[dict[str, Any]]:
        """Every piece of DRAM that the run used for data, page cache included (F90).

        The contents of a simulated medium are in memory too, but stand for the drive: not listed.
        """
        info = self.info
        staging = info.cache_bytes or info.window_bytes
        reserve = info.dram_bytes - info.write_buffer_bytes - staging
        used: list[dict[str, Any]] = [
            {"what": "cache lines" if info.cache_bytes else "window", "bytes": staging},
            {"what": "write buffer", "bytes": info.write_buffer_bytes},
            {"what": "device metadata", "bytes": info.metadata_bytes},
            {"what": "payload generator", "bytes": self.payload.nbytes},
        ]
        if reserve:
            used.insert(1, {"what": "demand reserve", "bytes": reserve})
        used += [{"what": f"benchmark: {n}", "bytes": b} for n, b in self.buffers.items()]
        files = [p for p in self.paths if p.is_file()]
        if files and not info.direct:
            used.append({"what": "page cache", "bytes": host.page_cache_bytes(files)})
        return used

    def describe(self) -> dict[str, Any]:
        """The device as it came up."""
        info = self.info
        return {
            "media": info.media,
            "note": info.note,
            "clock": "virtual" if info.virtual_time else "monotonic",
            "threaded": bool(info.threaded),
            "direct": bool(info.direct),
            "fixed_buffers": bool(info.fixed_buffers),
            "huge_pages": bool(info.huge_pages),
            "locked": bool(info.locked),
            "capacity_bytes": info.capacity_bytes,
            "dram_bytes": info.dram_bytes,
            "policy": info.policy,
            "window_bytes": info.window_bytes,
            "cache_bytes": info.cache_bytes,
            "write_buffer_bytes": info.write_buffer_bytes,
            "metadata_bytes": info.metadata_bytes,
            "prefault_ns": info.prefault_ns,
            "members": info.members,
            "stripe_bytes": info.stripe_bytes,
            "link_rate": info.link_rate,
            "options": self.dev.options.to_dict(),
            "preset": self.config.preset_facts(),
        }


@contextlib.contextmanager
def open_target(config: DeviceConfig, capacity: int) -> Iterator[Target]:
    """Make a device of at least `capacity` bytes, yield it open, close it and remove what was made.

    Files named by --path stay; temporary ones go, also after an error. Raises BenchError, ChmError.
    """
    with contextlib.ExitStack() as stack:
        options = config.device_options(capacity)
        paths: list[Path] = []
        if config.simulated:
            _check_memory(config, capacity)
        else:
            paths = _place(config, stack)
            _check_space(paths, capacity)
            _format(config, paths, capacity)
        dev = stack.enter_context(chm.open([str(p) for p in paths], **options))
        target = Target(config, dev, dev.info, paths, Payload(config.seed))
        if config.preset and not config.simulated:
            target.notes.append(
                f"preset {config.preset} on media {config.media}: its [device] and [link] apply, "
                "its [sim] does not"
            )
        if target.info.note:
            target.notes.append(target.info.note)
        if not target.info.contents:
            target.notes.append("the medium keeps no bytes: nothing can be verified")
        yield target


def scratch_directory() -> Path:
    """Where temporary device files go: the system's, unless that is memory."""
    system = Path(tempfile.gettempdir())
    if host.file_system(system).type in ("tmpfs", "ramfs") and os.access("/var/tmp", os.W_OK):
        return Path("/var/tmp")
    return system


def data_path(config: DeviceConfig) -> Path | None:
    """The path whose file system a result has to describe."""
    if config.simulated:
        return None
    return next(iter(config.paths()), None) or scratch_directory()


def _place(config: DeviceConfig, stack: contextlib.ExitStack) -> list[Path]:
    """The backing paths: those given, or one in a temporary directory that goes with the stack."""
    given = config.paths()
    if len(given) == 1 and given[0].is_dir():
        return [_temporary(given[0], stack)]
    for path in given:
        if path.is_dir():
            raise BenchError(f"{path} is a directory; several paths must be files or drives")
        size = host.file_system(path).free_bytes if path.is_block_device() else _size(path)
        if size and not config.overwrite:
            raise BenchError(
                f"{path} exists and is not empty; name another file, or say --overwrite if it is a "
                "chm device that may be lost"
            )
    return given or [_temporary(scratch_directory(), stack)]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _temporary(where: Path, stack: contextlib.ExitStack) -> Path:
    made = tempfile.mkdtemp(prefix="chm-bench-", dir=where)
    stack.callback(shutil.rmtree, made, ignore_errors=True)
    return Path(made) / "device.chm"


def _check_space(paths: Sequence[Path], capacity: int) -> None:
    """Refuse before writing anything, with both numbers."""
    share = capacity // len(paths) + MIB
    need: dict[int, int] = {}
    for path in paths:
        if path.is_block_device():
            continue
        at = host.existing_parent(path)
        number = at.stat().st_dev
        need[number] = need.get(number, 0) + share - _size(path)
        free = host.file_system(at).free_bytes
        if need[number] + _SPARE > free:
            raise BenchError(
                f"{at} has {units.format_size(free)} free and this run needs "
                f"{units.format_size(need[number] + _SPARE)}: use --path on a larger file system, "
                "--scale, --capacity, or fewer blocks"
            )


def _check_memory(config: DeviceConfig, capacity: int) -> None:
    """A simulated medium that keeps its bytes keeps them in memory."""
    free = int(host.facts()["memory_available_bytes"])
    if config.sim_contents and capacity + config.dram > free:
        raise BenchError(
            f"media sim keeps {units.format_size(capacity)} in memory and "
            f"{units.format_size(free)} is available: use --sim-contents off, or --scale"
        )


def _format(config: DeviceConfig, paths: Sequence[Path], capacity: int) -> None:
    row = config.stripe * len(paths)
    chm.format(
        [str(p) for p in paths],
        -(-capacity // row) * row,
        stripe=config.stripe,
        force=config.overwrite and all(map(_is_device, paths)),
        buffered=config.buffered,
    )


def _is_device(path: Path) -> bool:
    """Or nothing yet. What is neither is never overwritten."""
    if not _size(path) and not path.is_block_device():
        return True
    with path.open("rb") as file:
        return file.read(len(HEADER_MAGIC)) == HEADER_MAGIC
