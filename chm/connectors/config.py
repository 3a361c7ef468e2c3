# SPDX-License-Identifier: Apache-2.0
"""What a user writes into an engine's configuration about the device, and opening what it names.

One process opens a device at a time. Several adapters of one process that name the same files share
the open store; its files are those of whoever opened it first.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field
from typing import Any

from chm import store as stores
from chm.device import format as format_device
from chm.device import open as open_device
from chm.errors import ChmError, NotFound
from chm.options import MEDIA, OptionGroup, Size, _choice, _count, _flag, _size, path_list
from chm.store import Store
from chm.units import parse_size

log = logging.getLogger("chm")

MIB = 1 << 20
_BYTES_PER_OBJECT = MIB
_SPARE = 4 / 3  # entries beyond capacity / block size; see docs/sizing.md


def _seconds(default: float) -> Any:
    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise ValueError(f"{value!r} is not a number of seconds above 0")
        return float(value)

    return field(default=default, metadata={"parse": parse})


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

    path: tuple[str, ...] = field(default=(), metadata={"parse": path_list})
    capacity: Size = _size()
    dram: Size = _size(256 * MIB)
    deadline_s: float = _seconds(10.0)
    hints: bool = field(default=True, metadata=_flag().metadata)
    hint_share: float = _seconds(0.5)
    hint_s: float = _seconds(60.0)
    direct: bool = _flag()
    salt: str = ""
    identity: str = ""
    quota: Size = _size()
    block_bytes: Size = _size()
    eviction: str = "prefix-tail"
    media: str = _choice(MEDIA)
    buffered: bool = _flag()
    flush_depth: int = _count()
    device: Any = None
    """Further fields of ``chm.open``, as a mapping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ValueError("TierOptions.path: name the file or drive of the device")
        if not 0 < self.hint_share <= 1:
            raise ValueError(f"TierOptions.hint_share: {self.hint_share} is not within (0, 1]")


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
            del self._open[self._key]
        for part in (self.store, self.device):
            try:
                part.close(timeout)
            except ChmError as error:
                log.warning("%s", error)


def _make_if_missing(options: TierOptions, block_bytes: int) -> None:
    missing = [path for path in options.path if not os.path.exists(path)]
    if not missing:
        return
    names = ", ".join(missing)
    capacity = parse_size(options.capacity)
    if not capacity:
        raise NotFound(
            2, f"{names} does not exist: give a capacity to have it made, or use chm format"
        )
    if len(missing) < len(options.path):
        raise NotFound(2, f"{names} does not exist, but other members do: give all, or none")
    each = parse_size(options.block_bytes) or block_bytes or _BYTES_PER_OBJECT
    format_device(options.path, capacity, buffered=options.buffered)
    with open_device(options.path, media=options.media, buffered=options.buffered) as device:
        objects = int(device.info.capacity_bytes / each * _SPARE) + 64
        stores.format(device, max_objects=objects)
