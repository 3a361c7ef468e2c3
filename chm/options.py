# SPDX-License-Identifier: Apache-2.0
"""Configuration: frozen dataclasses that mirror the option structs of chm.h, field by field.

A field left at 0, False, "" or None has the default of the C side (chm.h states each). Sizes take
numbers of bytes or text (``"256MiB"``), rates text such as ``"2GB/s"``, and fields that end in
``_ns`` take nanoseconds or text (``"80us"``). Values are normalised to numbers when an object is
made, so that two ways of writing one configuration compare equal and ``to_dict`` is plain JSON.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeVar

from chm._ffi import NULL, lib, text
from chm.units import parse_duration, parse_rate, parse_size

Path: TypeAlias = "str | os.PathLike[str]"
Size: TypeAlias = "int | str"

T = TypeVar("T", bound="OptionGroup")

DURABILITY = ("periodic", "none", "strict")
HUGE_PAGES = ("auto", "never", "must")
PREFAULT = ("background", "now", "no")
MEDIA = ("auto", "uring", "threads", "sync", "sim")


def _names_of(name: Any) -> tuple[str, ...]:
    found: list[str] = []
    while (value := name(len(found))) != NULL:
        found.append(text(value))
    return tuple(found)


def cache_policies() -> tuple[str, ...]:
    """Names of the device cache policies, the default first (``Options.policy``)."""
    return _names_of(lib.chm_policy_name)


def flush_policies() -> tuple[str, ...]:
    """Names of the flush policies, the default first (``Options.flush_policy``)."""
    return _names_of(lib.chm_flush_policy_name)


def nearest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)``, or nothing if no known name is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _size(default: int = 0) -> Any:
    return field(default=default, metadata={"parse": parse_size})


def _rate() -> Any:
    return field(default=0, metadata={"parse": parse_rate})


def _duration() -> Any:
    return field(default=0, metadata={"parse": parse_duration})


def _durations(count: int) -> Any:
    """As many durations as the C array has, or none, which is zeros. Text separates them by '/'."""

    def parse(value: Any) -> tuple[int, ...]:
        parts = value.split("/") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)) or len(parts) not in (0, count):
            raise ValueError(f"{value!r} are not {count} durations, such as '1us/2us/3us/9us'")
        return tuple(parse_duration(part) for part in parts)

    return field(default=(), metadata={"parse": parse})


def _element(array: str, at: int) -> Any:
    """A duration that is one element of an array on the C side."""
    return field(default=0, metadata={"parse": parse_duration, "array": array, "at": at})


def _count() -> Any:
    return field(default=0, metadata={"parse": _parse_count})


def _flag() -> Any:
    return field(default=False, metadata={"parse": _parse_flag})


def _choice(words: tuple[str, ...]) -> Any:
    """One of some words; on the C side its position among them."""

    def parse(value: Any) -> str:
        if value in words:
            return str(value)
        raise ValueError(f"{value!r} is none of {', '.join(words)}{nearest(str(value), words)}")

    return field(default=words[0], metadata={"parse": parse, "words": words})


def _name(known: Callable[[], tuple[str, ...]]) -> Any:
    """One of the names that the C side lists; the first is the default."""

    def parse(value: Any) -> str:
        if value in known():
            return str(value)
        names = known()
        raise ValueError(f"{value!r} is none of {', '.join(names)}{nearest(str(value), names)}")

    return field(default=known()[0], metadata={"parse": parse})


def _parse_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number of at least 0")
    return value


def _parse_flag(value: Any) -> bool:
    if value in (0, 1):
        return bool(value)
    raise ValueError(f"{value!r} is not True or False")


def _parse_path(value: Any) -> str | None:
    return None if value is None else os.fspath(value)


def path_list(paths: Any) -> tuple[str, ...]:
    """One path or several, as a tuple of str."""
    if isinstance(paths, (str, os.PathLike)):
        paths = (paths,)
    return tuple(os.fspath(path) for path in paths)


@dataclass(frozen=True)
class OptionGroup:
    """What all groups of options share: parsing, and the way to JSON and back."""

    def __post_init__(self) -> None:
        for f in fields(self):
            parse = f.metadata.get("parse")
            if parse is None:
                continue
            try:
                value = parse(getattr(self, f.name))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{type(self).__name__}.{f.name}: {error}") from None
            object.__setattr__(self, f.name, value)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON values; ``from_dict`` turns it back."""
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, OptionGroup):
                value = value.to_dict()
            out[f.name] = list(value) if isinstance(value, tuple) else value
        return out

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
        """Options from a mapping. A field that does not exist is refused, with the nearest name."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"{cls.__name__} has no field {name!r}{nearest(name, known)}")
        return cls(**values)

    def replace(self: T, **changes: Any) -> T:
        """A copy with some fields changed; names are checked as in ``from_dict``."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        return type(self).from_dict({**known, **changes})


def _group(cls: type[T]) -> Any:
    def parse(value: Any) -> T:
        return value if isinstance(value, cls) else cls.from_dict(value)

    return field(default_factory=cls, metadata={"parse": parse})


@dataclass(frozen=True)
class SimOptions(OptionGroup):
    """Timing of the simulated medium, and how large it is; docs/simulator.md describes the model.

    With ``dies`` 0 each member is one resource that reads and writes share (with ``duplex`` two
    that they do not), with rates and latencies. With dies it is a flash drive, for which
    ``read_rate`` and ``write_rate`` are those of its link. The three ``page_read_*`` fields are
    ``page_read_ns[0..2]`` of chm.h.
    """

    capacity_bytes: Size = _size()
    read_rate: Size = _rate()
    write_rate: Size = _rate()
    read_latency_ns: Size = _duration()
    write_latency_ns: Size = _duration()
    barrier_ns: Size = _duration()
    stripe_bytes: Size = _size()
    no_contents: bool = _flag()
    volatile_cache: bool = _flag()
    duplex: bool = _flag()

    dies: int = _count()
    channels: int = _count()
    planes: int = _count()
    page_bytes: Size = _size()
    block_pages: int = _count()
    page_read_lower_ns: Size = _element("page_read_ns", 0)
    page_read_middle_ns: Size = _element("page_read_ns", 1)
    page_read_upper_ns: Size = _element("page_read_ns", 2)
    program_ns: Size = _duration()
    erase_ns: Size = _duration()
    suspend_ns: Size = _duration()
    channel_rate: Size = _rate()
    cache_bytes: Size = _size()
    command_ns: Size = _duration()

    software_ns: Size = _duration()
    dram_rate: Size = _rate()
    seed: int = _count()


@dataclass(frozen=True)
class PaceOptions(OptionGroup):
    """Slow a medium down: one token bucket that reads and writes share."""

    rate: Size = _rate()
    latency_ns: Size = _duration()
    burst_bytes: Size = _size()


@dataclass(frozen=True)
class FaultOptions(OptionGroup):
    """Faults of the medium: a ``script`` (see chm.h for its lines), or rates with a seed."""

    script: str | None = None
    seed: int = _count()
    eio_ppm: int = _count()
    short_ppm: int = _count()
    torn_ppm: int = _count()
    lost_ppm: int = _count()
    late_ppm: int = _count()
    never_ppm: int = _count()
    swap_ppm: int = _count()
    late_ns: Size = _duration()


@dataclass(frozen=True)
class Options(OptionGroup):
    """Everything about a device that is fixed while it is open.

    ``members`` is the number of simulated drives; a device on files has as many as ``paths``.
    """

    paths: tuple[str, ...] = field(default=(), metadata={"parse": path_list})
    media: str = _choice(MEDIA)
    members: int = _count()
    buffered: bool = _flag()

    dram_bytes: Size = _size()
    write_buffer_bytes: Size = _size()
    huge_pages: str = _choice(HUGE_PAGES)
    lock_memory: bool = _flag()
    prefault: str = _choice(PREFAULT)
    poison: bool = _flag()

    policy: str = _name(cache_policies)
    line_bytes: Size = _size()
    ways: int = _count()
    line_fills: int = _count()
    effective_percent: int = _count()
    fill_on_write: bool = _flag()

    requests_max: int = _count()
    writes_max: int = _count()
    read_unit: Size = _size()
    read_depth: int = _count()
    read_depth_pressed: int = _count()

    flush_unit: Size = _size()
    flush_depth: int = _count()
    flush_depth_reads: int = _count()
    flush_low_percent: int = _count()
    flush_high_percent: int = _count()
    flush_age_ns: Size = _duration()
    flush_idle_ns: Size = _duration()
    flush_policy: str = _name(flush_policies)
    fcfs: bool = _flag()
    durability: str = _choice(DURABILITY)
    barrier_interval_ns: Size = _duration()
    barrier_bytes: Size = _size()

    thread: bool = _flag()
    poll_ns: Size = _duration()
    link_rate: Size = _rate()
    link_write_rate: Size = _rate()
    link_latency_ns: Size = _duration()
    link_jitter_ns: tuple[Size, ...] = _durations(4)
    link_rails: int = _count()
    link_split_bytes: Size = _size()

    sim: SimOptions = _group(SimOptions)
    pace: PaceOptions = _group(PaceOptions)
    fault: FaultOptions = _group(FaultOptions)
    trace_record: str | None = field(default=None, metadata={"parse": _parse_path})
    trace_replay: str | None = field(default=None, metadata={"parse": _parse_path})

    force_align: Size = _size()
    force_transfer_max: Size = _size()
    force_no_register: bool = _flag()
    force_ring_errno: int = _count()
    force_plain_ring: bool = _flag()
    force_ring_entries: int = _count()


@dataclass(frozen=True)
class FormatOptions(OptionGroup):
    """How to make a device; see ``chm.format``."""

    paths: tuple[str, ...] = field(default=(), metadata={"parse": path_list})
    capacity_bytes: Size = _size()
    stripe_bytes: Size = _size()
    force: bool = _flag()
    buffered: bool = _flag()


def sim_options(capacity: Size, members: int = 1, **changes: Any) -> Options:
    """Options of a simulated device of at least ``capacity`` bytes.

    Fields of ``SimOptions`` and of ``Options`` can be given side by side; each goes where it
    belongs.
    """
    own = {f.name for f in fields(SimOptions)}
    sim = {name: changes.pop(name) for name in list(changes) if name in own}
    known = own | {f.name for f in fields(Options)}
    for name in changes:
        if name not in known:
            raise ValueError(f"there is no option {name!r}{nearest(name, known)}")
    base = changes.pop("sim", {})
    base = base if isinstance(base, SimOptions) else SimOptions.from_dict(base)
    sim.setdefault("capacity_bytes", _member_bytes(parse_size(capacity), members))
    return Options(media="sim", members=members, sim=base.replace(**sim), **changes)


def _member_bytes(capacity: int, members: int) -> int:
    """Bytes of one simulated drive: its share in stripe units, and 1 MiB for the header's area."""
    unit = 1 << 20
    return (-(-capacity // (unit * members)) + 1) * unit


def option_names(cls: type[OptionGroup]) -> list[str]:
    """Names of the fields, in order."""
    return [f.name for f in dataclasses.fields(cls)]
