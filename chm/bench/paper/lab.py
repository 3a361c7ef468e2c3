# SPDX-License-Identifier: Apache-2.0
"""Devices from presets, and the record of every run.

A figure asks for a preset and chooses the structure of its experiment: sizes, policies, depths,
the number of drives and rails. Everything else, above all every time and rate, is the preset's, and
a figure that tries to set it is refused. What the user sets with --set goes on top, and is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import chm
from chm import preset as presets
from chm.bench.paper.figure import Settings
from chm.options import Options

MIB = 1 << 20
GIB = 1 << 30
HEADER_AREA = MIB  # of each member, beside its share of the capacity

STRUCTURE = frozenset(
    (
        "dram_bytes",
        "write_buffer_bytes",
        "requests_max",
        "read_unit",
        "policy",
        "ways",
        "members",
        "link_rails",
        # write path: what A1 is about
        "flush_policy",
        "flush_unit",
        "flush_depth",
        "flush_depth_reads",
        "flush_low_percent",
        "flush_high_percent",
        "durability",
    )
)
"""Fields that a figure may choose. No time and no rate is among them."""

SWITCHES = frozenset(("software_ns", "suspend_ns", "link_rate", "link_write_rate"))
"""Fields that a figure may set to nothing: the thing itself is there or not."""


def options_for(
    name: str,
    capacity: int,
    settings: Settings,
    structure: dict[str, Any],
    without: Sequence[str] = (),
) -> Options:
    """Options of a simulated device of a preset, without contents, of at least ``capacity``."""
    for field in (*(structure.keys() - STRUCTURE), *(set(without) - SWITCHES)):
        raise ValueError(f"{field} is the preset's to say: a figure may not set it")
    options = presets.load(name).options().replace(**structure)
    members = options.members or 1
    share = -(-capacity // (MIB * members)) * MIB + HEADER_AREA
    zeros: dict[str, dict[str, Any]] = {"sim": {}, "device": {}, "link": {}}
    for field in without:
        zeros[presets.find_field(field).table][field] = 0
    sim = options.sim.replace(
        no_contents=True, capacity_bytes=share, seed=settings.seed, **zeros["sim"]
    )
    options = options.replace(sim=sim, huge_pages="never", members=members, **zeros["link"])
    return _with_sets(options, settings)


def _with_sets(options: Options, settings: Settings) -> Options:
    given = presets.parse_settings(f"{field}={text}" for field, text in settings.sets)
    for name, number in given.items():
        if presets.find_field(name).table == "sim":
            options = options.replace(sim=options.sim.replace(**{name: number.value}))
        else:
            options = options.replace(**{name: number.value})
    return options


class Lab:
    """Opens devices, and keeps what each run was and did."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.runs: list[dict[str, Any]] = []

    @property
    def quick(self) -> bool:
        """Whether smaller runs were asked for."""
        return self.settings.quick

    @contextlib.contextmanager
    def device(
        self,
        preset: str,
        capacity: int,
        name: str = "",
        without: Sequence[str] = (),
        **structure: Any,
    ) -> Iterator[chm.Device]:
        """A fresh device of a preset; recorded when the block ends without an error. ``without``:
        what of it is switched off."""
        options = options_for(preset, capacity, self.settings, structure, without)
        with chm.Device(options) as device:
            yield device
            shown = structure | dict.fromkeys(without, 0)
            self.runs.append(_record(device, preset, name, self.settings.seed, shown))


def _record(
    device: chm.Device, preset: str, name: str, seed: int, structure: dict[str, Any]
) -> dict[str, Any]:
    """What a run was, and the digest that says it was this one."""
    stats = device.stats()
    return {
        "name": name,
        "preset": preset,
        "seed": seed,
        "structure": dict(sorted(structure.items())),
        "virtual_ns": device.now(),
        "sim_ios": stats.sim_ios,
        "sim_digest": f"{stats.sim_digest:016x}",
        "read_bytes": stats.read_bytes,
        "write_bytes": stats.write_bytes,
    }
