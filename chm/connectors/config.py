# SPDX-License-Identifier: Apache-2.0
"""What a user writes into an engine's configuration about the device, and opening what it names.

One process opens a device at a time. Several adapters of one process that name the same files share
the open store; its files are those of whoever opened it first.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chm import store as stores
from chm.device import format as format_device
from chm.device import open as open_device
from chm.errors import ChmError, NotFound
from chm.options import (
    MEDIA,
    OptionGroup,
    Options,
    Size,
    _choice,
    _count,
    _flag,
    _size,
    nearest,
    option_names,
    path_list,
)
from chm.store import Store
from chm.units import parse_size

log = logging.getLogger("chm")

MIB = 1 << 20
_BYTES_PER_OBJECT = MIB
_BYTES_MIN = 4096  # an object takes at least a page
_SPARE = 4 / 3  # entries beyond capacity / block size; see docs/sizing.md
_OBJECTS_MAX = 16 << 20  # that a store can have
_REAL_MEDIA = tuple(name for name in MEDIA if name != "sim")
_EVICTION = ("prefix-tail", "lru", "fifo")
_SET_HERE = {
    "paths": "give TierOptions.path",
    "dram_bytes": "give TierOptions.dram",
    "media": "give TierOptions.media",
    "buffered": "give TierOptions.buffered",
    "thread": "a tier always has one",
}


def _number(default: float, what: str, most: float = math.inf) -> Any:
    def parse(value: Any) -> float:
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not plain or not math.isfinite(value) or not 0 < value <= most:
            raise ValueError(f"{value!r} is not {what}")
        return float(value)

    return field(default=default, metadata={"parse": parse})


def _seconds(default: float) -> Any:
    return _number(default, "a number of seconds above 0")


def _text() -> Any:
    def parse(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is not text: put it into quotes")
        return value

    return field(default="", metadata={"parse": parse})


def _parse_path(value: Any) -> tuple[str, ...]:
    paths = path_list(value)
    if not all(isinstance(path, str) and path for path in paths):
        raise ValueError(f"{value!r}: a path is text, and not empty")
    if len(set(map(os.path.realpath, paths))) < len(paths):
        raise ValueError(f"{value!r}: a member is given twice")
    return paths


def _parse_device(value: Any) -> dict[str, Any] | None:
    """Fields of ``chm.open``, checked before anything is made."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a mapping of fields of chm.open")
    known = option_names(Options)
    for name in value:
        if name in _SET_HERE:
            raise ValueError(f"{name!r} is no field to set here: {_SET_HERE[name]}")
        if name not in known:
            raise ValueError(f"there is no field {name!r}{nearest(str(name), known)}")
    return dict(value)


@dataclass(frozen=True)
class TierOptions(OptionGroup):
    """Sizes are bytes or text such as "100GiB".

    ``path`` is a file, a drive, or a list of them (striped). What does not exist is made if
    ``capacity`` says how large. ``dram`` is all the DRAM that payload ever takes; a quarter of it
    is the write buffer, the rest the window.

    A job ends ``deadline_s`` after it was submitted, whatever the drive does (10 s, as in the
    paper). ``hints`` lets look-ups start reading, into at most ``hint_share`` of the window, for at
    most ``hint_s``. ``direct`` lets the drive write into the engine's memory itself: less CPU, but
    then a drive that hangs keeps a load unreported until the kernel gives up.
    ``salt`` separates users of the same model; ``identity`` says by hand what weights these are.
    ``block_bytes`` sizes the index when a store is made (0: as the engine says, else 1 MiB).
    """

    path: tuple[str, ...] = field(default=(), metadata={"parse": _parse_path})
    capacity: Size = _size()
    dram: Size = _size(256 * MIB)
    deadline_s: float = _seconds(10.0)
    hints: bool = field(default=True, metadata=_flag().metadata)
    hint_share: float = _number(0.5, "a share within (0, 1]", 1.0)
    hint_s: float = _seconds(60.0)
    direct: bool = _flag()
    salt: str = _text()
    identity: str = _text()
    quota: Size = _size()
    block_bytes: Size = _size()
    eviction: str = _choice(_EVICTION)
    media: str = _choice(_REAL_MEDIA)
    buffered: bool = _flag()
    flush_depth: int = _count()
    device: Any = field(default=None, metadata={"parse": _parse_device})
    """Further fields of ``chm.open``, as a mapping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ValueError("TierOptions.path: name the file or drive of the device")


class SharedStore:
    """A store that this process has open, and how many tiers use it."""

    _open: dict[tuple[str, ...], SharedStore] = {}  # noqa: RUF012 - the process's register
    _lock = threading.Lock()

    def __init__(self, key: tuple[str, ...], options: TierOptions) -> None:
        self._key = key
        self._users = 1
        fields = dict(options.device or {})
        if options.flush_depth:
            fields["flush_depth"] = options.flush_depth
        self.device = open_device(
            options.path,
            dram_bytes=options.dram,
            media=options.media,
            buffered=options.buffered,
            thread=True,
            **fields,
        )
        try:
            self.store = Store(self.device, eviction=options.eviction)
        except BaseException:
            self.device.close()
            raise

    @classmethod
    def take(cls, options: TierOptions, block_bytes: int = 0) -> SharedStore:
        """The store on ``options.path``, opened, and made before that if it is not there.

        Raises NotFound (nothing is there and no capacity was given), Busy (another process has it
        open), BadHeader (something else is there), and whatever else ``chm.open`` does.
        """
        key = tuple(os.path.realpath(path) for path in options.path)
        with cls._lock:
            shared = cls._open.get(key)
            if shared is not None:
                shared._users += 1
                return shared
            _make_if_missing(options, block_bytes)
            shared = cls._open[key] = cls(key, options)
            return shared

    def give_back(self, timeout: float) -> None:
        """Close it if nobody else uses it. An engine that ends shall end: what does not close in
        time, or not clean, is logged; the next open recovers."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if self._open.get(self._key) is self:  # not so in a child process
                del self._open[self._key]
        for part in (self.store, self.device):
            try:
                part.close(timeout)
            except ChmError as error:
                log.warning("%s", error)


def _in_child_process() -> None:
    """What the parent has open is not open here, and its lock may be held by no thread of ours."""
    SharedStore._open, SharedStore._lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_in_child_process)


def _make_if_missing(options: TierOptions, block_bytes: int) -> None:
    missing = [path for path in options.path if not os.path.exists(path)]
    if not missing:
        return
    names = ", ".join(missing)
    if not options.capacity:
        raise NotFound(
            2, f"{names} does not exist: give a capacity to have it made, or use chm format"
        )
    if len(missing) < len(options.path):
        raise NotFound(2, f"{names} does not exist, but other members do: give all, or none")
    _make(options, parse_size(options.block_bytes) or block_bytes or _BYTES_PER_OBJECT)


def _make(options: TierOptions, each: int) -> None:
    """Under other names at first: one that is killed leaves nothing that looks like a store, and of
    two processes that make the same one, the second uses what the first made."""
    paths = [os.path.realpath(path) for path in options.path]
    new = [f"{path}.new-{uuid.uuid4().hex[:8]}" for path in paths]
    try:
        format_device(new, options.capacity, buffered=options.buffered)
        with open_device(new, media=options.media, buffered=options.buffered) as device:
            objects = int(device.info.capacity_bytes / max(each, _BYTES_MIN) * _SPARE) + 64
            stores.format(device, max_objects=min(objects, _OBJECTS_MAX))
        _appear(new, paths)
    finally:
        for path in new:
            if os.path.exists(path):
                os.unlink(path)


def _appear(new: Sequence[str], paths: Sequence[str]) -> None:
    for temporary, path in zip(new, paths, strict=True):
        try:
            os.link(temporary, path)
        except FileExistsError:
            return  # another process was first
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            os.rename(temporary, path)  # a file system without links
