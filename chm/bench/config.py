# SPDX-License-Identifier: Apache-2.0
"""The options that every experiment has: the device, what is measured on it, and how it is
checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from chm import preset as presets
from chm import units
from chm.bench.models import MODELS, TOKENS_PER_BLOCK, block_bytes
from chm.bench.options import (
    COUNT,
    FACTOR,
    FILE,
    PRESET,
    RATE,
    SETTINGS,
    SIZE,
    SWITCH,
    TEXT,
    TIME,
    ConfigError,
    Kind,
    choice,
    option,
)
from chm.options import Options
from chm.preset import Preset

MIB = 1 << 20


def _parse_model(text: str) -> str:
    """A model's name, in any case."""
    name = text.lower()
    if name and name not in MODELS:
        raise ValueError(f"there are {', '.join(MODELS)}")
    return name


MODEL = Kind("MODEL", _parse_model, choices=tuple(MODELS))
DEFAULT_BLOCK = 16 * MIB  # Llama-3.1-8B at 128 tokens


# Flags that a preset sets unless they are given, and the fields they stand for.
FLAGS = {
    "members": "members",
    "stripe": "stripe_bytes",
    "dram": "dram_bytes",
    "write_buffer": "write_buffer_bytes",
    "durability": "durability",
    "fcfs": "fcfs",
    "link_rate": "link_rate",
    "link_latency": "link_latency_ns",
    "sim_read_rate": "read_rate",
    "sim_write_rate": "write_rate",
    "sim_read_latency": "read_latency_ns",
    "sim_write_latency": "write_latency_ns",
}


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """The device under test and the run's seed."""

    preset: str = option(
        "",
        PRESET,
        "a device as data, simulated unless --media says otherwise; other flags win over it; see "
        "'chm-bench preset list'",
    )
    set: str = option(
        "", SETTINGS, "a field of the preset's tables, over everything else; may be repeated"
    )
    media: str = option(
        "auto", choice("auto", "uring", "threads", "sync", "sim"), "what it lies on"
    )
    path: str = option(
        "",
        FILE,
        "backing file, or several joined by ':' (one device striped over them); a directory: a "
        "temporary file in it; empty: a temporary file, removed afterwards",
    )
    overwrite: bool = option(
        False, SWITCH, "use a path that holds a chm device already; it is lost"
    )
    stripe: int = option(MIB, SIZE, "stripe unit over several paths")
    members: int = option(1, COUNT, "drives of a simulated device")
    dram: int = option(256 * MIB, SIZE, "DRAM budget of the device: window + write buffer")
    write_buffer: int = option(0, SIZE, "write buffer, part of --dram; 0: the device's default")
    durability: str = option("periodic", choice("periodic", "none", "strict"), "of writes")
    thread: str = option(
        "auto", choice("auto", "on", "off"), "a device thread; auto: on, except on media sim"
    )
    buffered: bool = option(False, SWITCH, "allow the page cache (its DRAM is reported)")
    lock_memory: bool = option(False, SWITCH, "mlock the DRAM")
    huge_pages: str = option("auto", choice("auto", "never", "must"), "for the DRAM")
    fcfs: bool = option(False, SWITCH, "no read priority: first come, first served")
    link_rate: int = option(0, RATE, "host link: bytes per second; 0: none")
    link_latency: int = option(0, TIME, "host link: latency of a delivery")
    pace_rate: int = option(0, RATE, "slow the medium down: one rate for reads and writes together")
    pace_latency: int = option(0, TIME, "added to each I/O of the medium")
    sim_read_rate: int = option(0, RATE, "media sim: 0 is the device's default")
    sim_write_rate: int = option(0, RATE, "media sim: 0 is the device's default")
    sim_read_latency: int = option(0, TIME, "media sim: 0 is the device's default")
    sim_write_latency: int = option(0, TIME, "media sim: 0 is the device's default")
    sim_contents: bool = option(True, SWITCH, "media sim: keep the bytes; off: nothing to verify")
    fault: str = option(
        "", TEXT, "fault script, lines separated by ';', such as '50 read late 1000000000'"
    )
    tune: str = option(
        "", TEXT, "any other field of chm.Options: 'read_depth=64 flush_unit=512KiB'"
    )
    seed: int = option(1, COUNT, "of contents, order and samples")

    def __post_init__(self) -> None:
        if self.media == "sim" and self.path:
            raise ValueError("--path has no use with --media sim")
        if self.media == "sim" and self.thread == "on":
            raise ValueError("--thread on: a simulated device is stepped by its caller")
        self.tuned()
        self.load_preset()
        if not self.simulated:
            for name, n in presets.parse_settings(self.set.split()).items():
                if presets.find_field(name).table == "sim":
                    raise ValueError(f"--set {name}={n.text}: of [sim], and --media {self.media}")

    @classmethod
    def filled(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values that were given, over those of the preset among them."""
        if not given.get("preset"):
            return dict(given)
        p = presets.load(given["preset"])
        flags = {flag: p.get(name) for flag, name in FLAGS.items() if name in p.numbers}
        flags["media"] = "sim"
        flags["sim_contents"] = not p.get("no_contents", True)
        if given.get("media", "sim") != "sim":  # its drive has no part in the run
            flags = {
                k: v for k, v in flags.items() if not k.startswith(("sim_", "members", "stripe"))
            }
        return {**flags, **given}

    def load_preset(self) -> Preset:
        """The preset with --set over it; without one, what --set says alone."""
        base = presets.load(self.preset) if self.preset else Preset("", "", {})
        return base.set(self.set.split())

    def preset_facts(self) -> dict[str, Any] | None:
        """What a result says of its preset: name, hash, and every value of it, --set included."""
        if not self.preset:
            return None
        loaded = presets.load(self.preset)
        return {**self.load_preset().to_dict(), "digest": loaded.digest}

    @property
    def simulated(self) -> bool:
        """Whether the medium, and with it the clock, is simulated."""
        return self.media == "sim"

    def paths(self) -> list[Path]:
        """The backing paths as given; none for a temporary file."""
        return [Path(p) for p in self.path.split(":")] if self.path else []

    def tuned(self) -> dict[str, Any]:
        """--tune as fields of chm.Options. Raises ValueError for what is not one."""
        out: dict[str, Any] = {}
        for word in self.tune.split():
            key, eq, value = word.partition("=")
            if not eq:
                raise ValueError(f"--tune {word!r}: write FIELD=VALUE")
            out[key] = int(value) if value.isdigit() else value
        Options.from_dict(out)
        return out

    def device_options(self, capacity: int) -> dict[str, Any]:
        """Keyword arguments of chm.Options, without paths."""
        out: dict[str, Any] = self._preset_values("device", "link")
        out |= {
            "media": self.media,
            "dram_bytes": self.dram,
            "write_buffer_bytes": self.write_buffer,
            "durability": self.durability,
            "thread": self.thread == "on" or (self.thread == "auto" and not self.simulated),
            "buffered": self.buffered,
            "lock_memory": self.lock_memory,
            "huge_pages": self.huge_pages,
            "prefault": self._prefault(),
            "fcfs": self.fcfs,
            "link_rate": self.link_rate,
            "link_latency_ns": self.link_latency,
            "pace": {"rate": self.pace_rate, "latency_ns": self.pace_latency},
        }
        if self.fault:
            out["fault"] = {"script": self.fault.replace(";", "\n")}
        if self.simulated:
            out |= self._sim_options(capacity)
        return out | self._set_values("device", "link") | self.tuned()

    def _prefault(self) -> str:
        """First touch of memory must not fall into a timed phase, where time is real."""
        return "no" if self.simulated and not self.sim_contents else "now"

    def _preset_values(self, *tables: str) -> dict[str, Any]:
        values = presets.load(self.preset).values(*tables) if self.preset else {}
        values.pop("members", None)
        return values

    def _set_values(self, *tables: str) -> dict[str, Any]:
        known = presets.known_fields()
        numbers = presets.parse_settings(self.set.split())
        return {k: n.value for k, n in numbers.items() if known[k].table in tables}

    def _member_bytes(self, capacity: int, members: int) -> int:
        """Size of a drive: the preset's, which must do, or what the run needs."""
        row = self.stripe * members
        need = -(-capacity // row) * self.stripe + MIB
        has = int(self.load_preset().get("capacity_bytes")) or need
        if has < need:
            raise ConfigError(
                f"the run needs {units.format_size(need * members)} and the device has "
                f"{units.format_size(has * members)}: use fewer or smaller blocks, or --set "
                f"capacity_bytes={units.format_size(need).replace(' ', '')} or more"
            )
        return has

    def _sim_options(self, capacity: int) -> dict[str, Any]:
        members = int(self._set_values("device").get("members", self.members))
        return {
            "members": members,
            "sim": {
                "seed": self.seed,
                **self._preset_values("sim"),
                "capacity_bytes": self._member_bytes(capacity, members),
                "read_rate": self.sim_read_rate,
                "write_rate": self.sim_write_rate,
                "read_latency_ns": self.sim_read_latency,
                "write_latency_ns": self.sim_write_latency,
                "stripe_bytes": self.stripe,
                "no_contents": not self.sim_contents,
                **self._set_values("sim"),
            },
        }


@dataclass(frozen=True, kw_only=True)
class BlockConfig(DeviceConfig):
    """Experiments on blocks of one size, read by streams."""

    block_size: int = option(
        0, SIZE, "bytes of a KV block; 0: from --model, or 16 MiB (Llama-3.1-8B)"
    )
    model: str = option("", MODEL, "block size of a model; see 'chm-bench models'")
    tokens_per_block: int = option(TOKENS_PER_BLOCK, COUNT, "with --model")
    scale: Fraction = option(Fraction(1), FACTOR, "shrink the blocks: 1/64")
    concurrency: int = option(1, COUNT, "streams (requests) at a time")
    prefetch: bool = option(
        True, SWITCH, "stage ahead through the window; off: one demand read at a time per stream"
    )
    window: int = option(0, SIZE, "window of a stream; 0: 128 MiB or its share of the device's")
    segment: int = option(0, SIZE, "longest piece of a stream; 0: 16 MiB")
    whole: bool = option(True, SWITCH, "pieces are whole blocks where two of them fit the window")
    deadline: int = option(0, TIME, "of a request's reads; what is late is recomputed; 0: none")
    verify: str = option(
        "sample",
        choice("all", "sample", "none"),
        "check bytes read: every one, a page per 16 MiB, or none",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model and self.block_size:
            raise ValueError("--model and --block-size both set the block size: give one")
        if not self.concurrency:
            raise ValueError("--concurrency must be at least 1")

    def block_bytes(self) -> int:
        """The block size in force: whole pages."""
        if self.model:
            return block_bytes(MODELS[self.model].token_bytes, self.tokens_per_block, self.scale)
        return block_bytes(self.block_size or DEFAULT_BLOCK, 1, self.scale)

    @property
    def deadline_s(self) -> float | None:
        """The deadline in seconds, or None."""
        return self.deadline / 1e9 if self.deadline else None
