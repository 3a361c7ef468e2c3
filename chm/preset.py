# SPDX-License-Identifier: Apache-2.0
"""Presets: devices as data files, each number with its source and grade beside it.

    preset = chm.preset.load("hymcache-proto", ["dram_bytes=16GiB"])
    dev = chm.Device(preset.options())      simulated, and keeps no bytes

A file has the tables ``[preset]`` (name, summary, sources, extends), ``[sim]`` (fields of
``SimOptions``), ``[device]`` (fields of ``Options``) and ``[link]`` (fields of ``Options`` that
begin with ``link_``). A number is ``field = { value = "11.5GB/s", source = "...", grade = "B" }``
or, without saying where it comes from, ``field = "11.5GB/s"``. Grades: A read in the primary
artifact, B in two secondary texts, C in one, D derived or chosen here, M measured by whoever wrote
the file.

The fields are those of the option classes: what they learn, a preset can say. A value that cannot
work is refused (PresetError), one that only surprises is told by ``warnings``.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from chm._ffi import ffi, lib
from chm.options import OptionGroup, Options, SimOptions, nearest, option_names
from chm.units import format_rate, format_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SUFFIX = ".toml"
GRADES = "ABCDM"
TABLES = ("sim", "device", "link")
ABOUT = ("name", "summary", "extends", "sources")
SET = "command line"
"""Source of a value that --set gave."""

# Of the machine and of the test, not of the device that a preset describes.
_NOT_OF_A_DEVICE = (
    *("paths", "media", "buffered", "huge_pages", "lock_memory", "prefault", "poison"),
    *("thread", "poll_ns", "sim", "pace", "fault", "trace_record", "trace_replay"),
)


class PresetError(ValueError):
    """A preset, or a value for one, cannot be used; the text says which and why."""


@dataclass(frozen=True)
class Field:
    """One thing a preset can say: its table, the class that has it, and how its values are read."""

    name: str
    table: str
    group: type[OptionGroup]
    default: Any

    def parse(self, value: Any) -> Any:
        """A value as the option class keeps it. Raises PresetError."""
        try:
            return getattr(self.group(**{self.name: value}), self.name)
        except (TypeError, ValueError) as e:
            raise PresetError(str(e)) from None

    def from_text(self, text: str) -> Any:
        """The same from --set, where everything is text."""
        if isinstance(self.default, bool):
            if text not in ("on", "off", "true", "false", "0", "1"):
                raise PresetError(f"{self.name}={text}: say on or off")
            return self.parse(text in ("on", "true", "1"))
        return self.parse(int(text) if text.isdigit() else text)


@dataclass(frozen=True)
class Number:
    """A value, as parsed and as written, and where it comes from."""

    value: Any
    text: Any
    source: str = ""
    grade: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {"value": value, "text": self.text, "source": self.source, "grade": self.grade}


@functools.cache
def known_fields() -> Mapping[str, Field]:
    """Every field a preset can have, in order of tables."""
    out: dict[str, Field] = {}
    for f in dataclasses.fields(SimOptions):
        out[f.name] = Field(f.name, "sim", SimOptions, f.default)
    for f in dataclasses.fields(Options):
        if f.name not in _NOT_OF_A_DEVICE and not f.name.startswith("force_"):
            table = "link" if f.name.startswith("link_") else "device"
            out[f.name] = Field(f.name, table, Options, f.default)
    return dict(sorted(out.items(), key=lambda item: TABLES.index(item[1].table)))


def find_field(name: str) -> Field:
    """The field of that name, with or without its table. Raises PresetError with the nearest."""
    table, dot, bare = name.rpartition(".")
    field = known_fields().get(bare)
    if field is None:
        if bare in option_names(Options):
            raise PresetError(f"{bare} is no property of a device: give it where one is opened")
        raise PresetError(f"no field {name!r}{nearest(bare, known_fields())}")
    if dot and table != field.table:
        raise PresetError(f"{bare} belongs in [{field.table}], not in [{table}]")
    return field


# ------------------------------------------------------------------------------------ a preset


@dataclass(frozen=True)
class Preset:
    """A device as data. Immutable; ``set`` makes another one."""

    name: str
    summary: str
    numbers: Mapping[str, Number]
    sources: tuple[str, ...] = ()
    path: Path | None = None
    settings: tuple[str, ...] = ()

    def get(self, name: str, default: Any = 0) -> Any:
        """The value of a field, or a default if the preset does not say."""
        number = self.numbers.get(name)
        return default if number is None else number.value

    def values(self, *tables: str) -> dict[str, Any]:
        """Field names and values of some tables, or of all."""
        wanted = tables or TABLES
        known = known_fields()
        return {k: n.value for k, n in self.numbers.items() if known[k].table in wanted}

    @property
    def digest(self) -> str:
        """16 hex digits of what the preset says (values alone, not how they are written)."""
        text = json.dumps(self.values(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def capacity_bytes(self) -> int:
        """Of all members together, 1 MiB of each set aside."""
        return self.members * (int(self.get("capacity_bytes", 1 << 30)) - (1 << 20))

    @property
    def members(self) -> int:
        """How many drives."""
        return int(self.get("members", 1)) or 1

    def options(self, **changes: Any) -> Options:
        """Options of the simulated device. It keeps no bytes, unless the preset or ``sim`` in
        ``changes`` say otherwise, and touches no memory before it is used. ``changes`` win."""
        sim = {"no_contents": True, **self.values("sim"), **dict(changes.pop("sim", {}))}
        base = {"media": "sim", "prefault": "no", **self.values("device", "link")}
        try:
            return Options.from_dict({**base, "sim": SimOptions.from_dict(sim), **changes})
        except ValueError as e:
            raise PresetError(f"preset {self.name}: {e}") from None

    def set(self, settings: Iterable[str]) -> Preset:
        """A copy with FIELD=VALUE settings applied and checked. Raises PresetError."""
        settings = tuple(settings)
        if not settings:
            return self
        numbers = {**self.numbers, **parse_settings(settings)}
        made = dataclasses.replace(self, numbers=numbers, settings=(*self.settings, *settings))
        check(made)
        return made

    def renamed(self, name: str, summary: str) -> Preset:
        """A copy under another name."""
        return dataclasses.replace(self, name=name, summary=summary)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        known = known_fields()
        tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
        for name in known:
            if name in self.numbers:
                tables[known[name].table][name] = self.numbers[name].to_dict()
        return {
            "name": self.name,
            "summary": self.summary,
            "sources": list(self.sources),
            "path": str(self.path) if self.path else None,
            "set": list(self.settings),
            "digest": self.digest,
            "capacity_bytes": self.capacity_bytes,
            **tables,
        }

    def to_toml(self) -> str:
        """The preset as a file, `extends` resolved; ``load`` reads it back."""
        lines = ["[preset]", f"name = {_quote(self.name)}", f"summary = {_quote(self.summary)}"]
        if self.sources:
            lines.append(f"sources = {_quote(list(self.sources))}")
        known = known_fields()
        for table in TABLES:
            names = [n for n in known if known[n].table == table and n in self.numbers]
            lines += ["", f"[{table}]"] if names else []
            lines += [_line(name, self.numbers[name]) for name in names]
        return "\n".join(lines) + "\n"


def _quote(value: Any) -> str:
    """A JSON value as TOML; they agree on everything a preset holds."""
    return json.dumps(value, ensure_ascii=False)


def _line(name: str, n: Number) -> str:
    text = n.value if n.text == "" else n.text
    if not n.source and not n.grade:
        return f"{name} = {_quote(text)}"
    return (
        f"{name} = {{ value = {_quote(text)}, source = {_quote(n.source)}, "
        f"grade = {_quote(n.grade)} }}"
    )


def parse_settings(settings: Iterable[str]) -> dict[str, Number]:
    """FIELD=VALUE settings by field. Raises PresetError."""
    out: dict[str, Number] = {}
    for setting in settings:
        name, eq, text = setting.partition("=")
        if not eq:
            raise PresetError(f"{setting!r}: write FIELD=VALUE")
        field = find_field(name.strip())
        value = field.from_text(text.strip())
        written = list(text.strip().split("/")) if isinstance(value, tuple) else text.strip()
        plain = value if isinstance(value, (bool, int)) and text.strip().isdigit() else written
        plain = value if isinstance(value, bool) else plain
        out[field.name] = Number(value, plain, SET, "")
    return out


# ------------------------------------------------------------------------------------ files


def user_directory() -> Path:
    """Where a user's own presets are found by name."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "chm" / "presets"


def shipped_directory() -> Path:
    """Where those of the package are."""
    return Path(str(resources.files("chm"))) / "presets"


def available() -> dict[str, Path]:
    """Names and files: those of the package, then the user's own (which cannot hide one)."""
    out: dict[str, Path] = {}
    for directory in (shipped_directory(), user_directory()):
        if directory.is_dir():
            for path in sorted(directory.glob("*" + SUFFIX)):
                out.setdefault(path.stem, path)
    return out


def find(name: str | os.PathLike[str], beside: Path | None = None) -> Path:
    """The file of a preset by name, or a path as it is (relative to the directory ``beside``)."""
    text = os.fspath(name)
    if text.endswith(SUFFIX) or os.sep in text:
        path = (beside or Path()) / Path(text).expanduser()
        if not path.is_file():
            raise PresetError(f"no preset file {path}")
        return path
    known = available()
    if text not in known:
        raise PresetError(
            f"no preset {text!r}{nearest(text, known)}; there are {', '.join(known)}, and a path "
            f"ends in {SUFFIX}"
        )
    return known[text]


def load(name: str | os.PathLike[str], settings: Iterable[str] = ()) -> Preset:
    """A preset by name or path, with FIELD=VALUE settings over it, checked.

    Raises PresetError, which names the file, the field and the reason.
    """
    path = find(name)
    preset = _read(path, ())
    try:
        check(preset)
    except PresetError as e:
        raise PresetError(f"{path}: {e}") from None
    return preset.set(settings)


def _read(path: Path, seen: tuple[Path, ...]) -> Preset:
    if path in seen:
        raise PresetError(f"{path}: extends itself, by way of {seen[-1]}")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return _from_data(data, path, (*seen, path))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise PresetError(f"{path}: {e}") from None


def _from_data(data: Mapping[str, Any], path: Path, seen: tuple[Path, ...]) -> Preset:
    def bad(text: str) -> PresetError:
        return PresetError(f"{path}: {text}")

    for table in data:
        if table not in ("preset", *TABLES):
            raise bad(f"no table [{table}]{nearest(table, ('preset', *TABLES))}")
        if not isinstance(data[table], dict):
            raise bad(f"{table} = ... stands outside of a table")
    about = data.get("preset", {})
    for key, value in about.items():
        if key not in ABOUT:
            raise bad(f"[preset] has no {key!r}{nearest(key, ABOUT)}")
        if not isinstance(value, list if key == "sources" else str):
            raise bad(
                f"[preset] {key}: {value!r} is not {'a list' if key == 'sources' else 'text'}"
            )
    numbers: dict[str, Number] = {}
    sources: tuple[str, ...] = ()
    if "extends" in about:
        base = _read(find(about["extends"], path.parent), seen)
        numbers, sources = dict(base.numbers), base.sources
    for table in TABLES:
        for name, value in data.get(table, {}).items():
            try:
                numbers[name] = _number(find_field(f"{table}.{name}"), value)
            except PresetError as e:
                raise bad(f"[{table}] {name}: {e}") from None
    name = about.get("name", path.stem)
    own = tuple(str(s) for s in about.get("sources", ()))
    return Preset(name, about.get("summary", ""), numbers, own or sources, path)


def _number(field: Field, given: Any) -> Number:
    if not isinstance(given, dict):
        return Number(field.parse(given), given)
    for key in given:
        if key not in ("value", "source", "grade"):
            raise PresetError(f"no {key!r}{nearest(key, ('value', 'source', 'grade'))}")
    if "value" not in given:
        raise PresetError("no value")
    source, grade = given.get("source", ""), given.get("grade", "")
    if not isinstance(source, str) or not isinstance(grade, str) or (grade and not source):
        raise PresetError("a grade needs a source, and both are text")
    if grade and grade not in tuple(GRADES):
        raise PresetError(f"grade {grade!r} is none of {', '.join(GRADES)}")
    return Number(field.parse(given["value"]), given["value"], source, grade)


# ------------------------------------------------------------------------------------ checks

KIB, MIB = 1 << 10, 1 << 20


def _default(name: str) -> Any:
    """What the C side makes of a zero."""
    struct = ffi.new("struct chm_options *")
    lib.chm_options_init(struct)
    return getattr(struct.sim if known_fields()[name].table == "sim" else struct, name, 0)


def check(preset: Preset) -> None:
    """Raise PresetError for the first value that cannot work, with the reason."""
    for rule in _RULES:
        why = rule(preset)
        if why:
            raise PresetError(why)


def warnings(preset: Preset) -> list[str]:
    """What works and may surprise: a rate that the flash cannot give, numbers without a source."""
    out = [text for rule in _WARNINGS if (text := rule(preset))]
    bare = [n for n, number in preset.numbers.items() if not number.source]
    if bare:
        out.append(f"no source: {', '.join(bare)}")
    ungraded = [n for n, x in preset.numbers.items() if x.source not in ("", SET) and not x.grade]
    if ungraded:
        out.append(f"no grade: {', '.join(ungraded)}")
    return out


def _zeros(p: Preset) -> str:
    for name, number in p.numbers.items():
        if number.value == 0 and not isinstance(number.value, bool) and name in _NOT_ZERO:
            return f"{name} is 0, which means the default, {_default(name)}: leave it out"
    return ""


_NOT_ZERO = (
    *("capacity_bytes", "read_rate", "write_rate", "read_latency_ns", "write_latency_ns"),
    *("barrier_ns", "members", "dram_bytes", "line_bytes", "line_fills", "read_unit"),
    *("read_depth", "flush_unit", "flush_depth", "link_rails"),
)


def _geometry(p: Preset) -> str:
    channels, dies, page = p.get("channels"), p.get("dies"), p.get("page_bytes")
    if channels and dies % channels:
        return f"{dies} dies on {channels} channels: dies must be a multiple of channels"
    if channels and not dies:
        return f"{channels} channels without dies: give both, or none for rates alone"
    if page and (page % (4 * KIB) or page & (page - 1)):
        return f"page_bytes is {page}: a power of two of at least 4 KiB"
    if p.get("capacity_bytes", 2 * MIB) < 2 * MIB:
        return f"capacity_bytes is {p.get('capacity_bytes')}: at least 2 MiB a member"
    if p.members > lib.CHM_MEMBERS_MAX:
        return f"{p.members} members: at most {lib.CHM_MEMBERS_MAX}"
    return ""


def _budget(p: Preset) -> str:
    dram = p.get("dram_bytes") or 256 * MIB
    buffer = p.get("write_buffer_bytes")
    if buffer >= dram:
        return (
            f"write_buffer_bytes ({format_size(buffer)}) leaves nothing of dram_bytes "
            f"({format_size(dram)})"
        )
    return ""


def _cache(p: Preset) -> str:
    line, ways = p.get("line_bytes") or 4 * KIB, p.get("ways")
    room = (p.get("dram_bytes") or 256 * MIB) - p.get("write_buffer_bytes")
    if line & (line - 1) or not 4 * KIB <= line <= 16 * MIB:
        return f"line_bytes is {line}: a power of two, 4 KiB to 16 MiB"
    if p.get("policy", "window") != "window" and max(ways, 1) * line > room:
        return (
            f"one set of {max(ways, 1)} lines of {format_size(line)} is larger than the cache, "
            f"{format_size(room)}"
        )
    if p.get("effective_percent", 100) > 100:
        return f"effective_percent is {p.get('effective_percent')}: at most 100"
    return ""


def _link(p: Preset) -> str:
    jitter = p.get("link_jitter_ns", ())
    if p.get("link_rails", 1) > 2:
        return f"link_rails is {p.get('link_rails')}: 1 or 2"
    if list(jitter) != sorted(jitter):
        return f"link_jitter_ns {list(jitter)}: quantiles must not fall"
    others = [n for n in p.values("link") if n != "link_rate" and p.get(n)]
    if others and not p.get("link_rate"):
        return f"{others[0]} without link_rate: there is no link"
    return ""


_RULES: tuple[Callable[[Preset], str], ...] = (_zeros, _geometry, _budget, _cache, _link)


# What chm.h says a flash drive has where nothing is given.
_FLASH = {
    "planes": 1,
    "page_bytes": 16 * KIB,
    "page_read_lower_ns": 60_000,
    "program_ns": 600_000,
    "channel_rate": 1_600_000_000,
}


def _flash(p: Preset, name: str) -> int:
    return int(p.get(name) or _FLASH.get(name, 0))


def flash_read_rate(p: Preset) -> float:
    """Bytes/s that the flash of one member can give: dies side by side, or the channels."""
    first = _flash(p, "page_read_lower_ns")
    reads = [_flash(p, f"page_read_{kind}_ns") or first for kind in ("lower", "middle", "upper")]
    return _flash_rate(p, sum(reads) / len(reads))


def _flash_rate(p: Preset, time_ns: float) -> float:
    dies = p.get("dies")
    channels = p.get("channels") or next(n for n in (8, 4, 2, 1) if dies % n == 0)
    flash = dies * _flash(p, "planes") * _flash(p, "page_bytes") / time_ns * 1e9
    return float(min(flash, channels * _flash(p, "channel_rate")))


def _read_ceiling(p: Preset) -> str:
    if p.get("dies") and p.get("read_rate") > flash_read_rate(p):
        return (
            f"read_rate is {format_rate(p.get('read_rate'))}, and the flash gives "
            f"{format_rate(flash_read_rate(p))} (dies x planes x page / page read, or channels): "
            "reads come at that"
        )
    return ""


def _write_ceiling(p: Preset) -> str:
    if not p.get("dies"):
        return ""
    rate = _flash_rate(p, _flash(p, "program_ns"))
    if p.get("write_rate") > rate:
        return (
            f"write_rate is {format_rate(p.get('write_rate'))}, and the flash takes "
            f"{format_rate(rate)} (dies x planes x page / program, or channels): sustained writes "
            "go at that"
        )
    return ""


def _without_effect(p: Preset) -> str:
    """Values that the rest of the preset leaves without a meaning."""
    idle: list[str] = []
    if p.get("dies"):
        idle += [f"{n} (only without dies)" for n in _RATES_ONLY if n in p.numbers]
    if p.get("policy", "window") == "window":
        idle += [f"{n} (only with a cache of lines)" for n in _LINES_ONLY if n in p.numbers]
    return f"without effect: {', '.join(idle)}" if idle else ""


_RATES_ONLY = ("read_latency_ns", "write_latency_ns", "duplex")
_LINES_ONLY = ("line_bytes", "ways", "line_fills", "effective_percent", "fill_on_write")

_WARNINGS: tuple[Callable[[Preset], str], ...] = (_read_ceiling, _write_ceiling, _without_effect)
