# SPDX-License-Identifier: Apache-2.0
"""`chm-bench twin`: a calibrated preset predicts real runs of `turns`, beside what they give.

    reference - real run - reference - real run - reference - ...      configurations take turns

No configuration is part of the fit, which knows single I/Os only. There are two predictions, and
they are never mixed:

    as calibrated   the preset as it is; a drive that drifts since makes it wrong
    drift removed   before and after every real run the reference probes (1 MiB, 32 reads or 4
                    writes in flight) are measured; the preset's rates are scaled so that the
                    simulated reference takes as long as the real one just did

The second one tells whether the model is right, the first one whether it still fits.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from chm.bench import turns
from chm.bench.charts import Chart, Line
from chm.bench.options import build
from chm.bench.outcome import Outcome
from chm.bench.probe import MIB, Place, Point, measure
from chm.bench.target import BenchError
from chm.bench.turns import TurnsConfig
from chm.bench.ui import Progress
from chm.preset import Preset

WITHIN = 0.15  # what the prediction aims at
CONVERSATIONS, TURNS = 8, 4
FOOTPRINT = 512 * MIB  # of every configuration, before --scale
REFERENCE_BYTES = 256 * MIB
READ_REFERENCE = Point("read", MIB, 32, 64)
WRITE_REFERENCE = Point("write", MIB, 4, 32)
_SCALED = {"read": "read_rate", "write": "write_rate"}


@dataclass(frozen=True)
class Setup:
    """One configuration of `turns`; `options` are fields of TurnsConfig."""

    name: str
    block_bytes: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def values(self, scale: Fraction) -> dict[str, Any]:
        """Fields of TurnsConfig that are common to the real run and the simulated one."""
        return {
            "block_size": self.block_bytes,
            "scale": scale,
            "conversations": CONVERSATIONS,
            "turns": TURNS,
            "blocks_per_turn": FOOTPRINT // (CONVERSATIONS * TURNS * self.block_bytes),
            "verify": "none",
            **self.options,
        }

    @property
    def mixed(self) -> bool:
        """Reads and writes share the time, so that only both together are a figure."""
        return self.options.get("order") == "interleaved"


SETUPS = (
    Setup("16 MiB, 1 stream", 16 * MIB),
    Setup("16 MiB, 8 streams", 16 * MIB, {"concurrency": 8}),
    Setup("4 MiB, 8 streams", 4 * MIB, {"concurrency": 8}),
    Setup("1 MiB, 1 stream", MIB),
    Setup("1 MiB, 8 streams", MIB, {"concurrency": 8}),
    Setup("16 MiB, no prefetch", 16 * MIB, {"prefetch": False}),
    Setup("1 MiB, no prefetch", MIB, {"prefetch": False}),
    Setup("4 MiB, with writes", 4 * MIB, {"concurrency": 8, "order": "interleaved"}),
    Setup(
        "4 MiB, 32 MiB DRAM",
        4 * MIB,
        {"concurrency": 8, "dram": 32 * MIB, "write_buffer": 16 * MIB},
    ),
    Setup("4 MiB, 1 GB/s link", 4 * MIB, {"concurrency": 8, "link_rate": 10**9}),
)


def setups(names: Sequence[str]) -> list[Setup]:
    """Those whose name contains one of the texts; all for none. Raises BenchError."""
    chosen = [s for s in SETUPS if not names or any(n in s.name for n in names)]
    if not chosen:
        raise BenchError(
            f"no configuration has {' or '.join(names)} in its name; there are: "
            + "; ".join(s.name for s in SETUPS)
        )
    return chosen


# ------------------------------------------------------------------------------------ one run


def figures(setup: Setup, out: Outcome) -> dict[str, float]:
    """Bytes per second by direction; of a mixed configuration of both together."""
    m = out.metrics
    if out.failed_checks:
        raise BenchError(f"{setup.name}: {'; '.join(out.failed_checks)}")
    read, write, took = m["read_bytes"], m["durable_bytes"], m["elapsed_s"]
    if setup.mixed:
        return {"both": (int(read or 0) + int(write or 0)) / float(took or 1)}
    rates = {"read": m["read_bytes_per_s"], "write": m["durable_bytes_per_s"]}
    return {name: float(rate) for name, rate in rates.items() if rate}


@dataclass(frozen=True)
class Real:
    """What is predicted: a directory on a real medium, or, for tests, another preset.

    `reference` is where the reference probes run.
    """

    reference: Place
    options: Mapping[str, Any]

    def run(self, setup: Setup, scale: Fraction) -> dict[str, float]:
        """One run of `turns`."""
        config = build(TurnsConfig, {**setup.values(scale), **self.options})
        return figures(setup, turns.run(config, Progress()))


@dataclass(frozen=True)
class Simulated:
    """The preset, as it is or with scaled rates."""

    preset: Preset
    scale: Mapping[str, float] = field(default_factory=dict)  # by direction

    def sim(self) -> dict[str, Any]:
        """Fields of [sim]."""
        values = self.preset.values("sim")
        for kind, factor in self.scale.items():
            name = _SCALED[kind]
            if name in values:
                values[name] = max(1, round(values[name] * factor))
        return values

    def reference_ns(self, point: Point) -> int:
        """Time of a reference probe."""
        link = self.preset.values("link")
        return measure(Place(REFERENCE_BYTES, sim=self.sim(), link=link), point, 1)

    def run(self, setup: Setup, scale: Fraction) -> dict[str, float]:
        """One run of `turns`."""
        values = setup.values(scale)
        link = joined_link(self.preset.values("link"), values.pop("link_rate", 0))
        words = [f"{k}={_text(v)}" for k, v in {**self.sim(), **link}.items()]
        config = build(TurnsConfig, {**values, "media": "sim", "sim_contents": False})
        return figures(
            setup, turns.run(dataclasses.replace(config, set=" ".join(words)), Progress())
        )


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(str(v) for v in value)
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def joined_link(host: Mapping[str, Any], rate: int) -> dict[str, Any]:
    """The host's own share, as calibrated, with a link of `rate` behind it: times add up."""
    if not rate:
        return dict(host)
    out = {**host, "link_rate": rate}
    own = host.get("link_write_rate")
    out["link_write_rate"] = round(1 / (1 / own + 1 / rate)) if own else rate
    return out


# ------------------------------------------------------------------------------------ comparison


@dataclass
class Figure:
    """One line of the table: a configuration and a direction. Bytes per second, a value a round."""

    setup: Setup
    what: str
    measured: list[float] = field(default_factory=list)
    predicted: float = 0.0  # as calibrated
    scaled: list[float] = field(default_factory=list)  # drift removed, for each run its own

    @property
    def range(self) -> float:
        """Half of what lies between the slowest and the fastest run, over the median."""
        middle = statistics.median(self.measured)
        return (max(self.measured) - min(self.measured)) / 2 / middle

    @property
    def ratio(self) -> float:
        """Predicted as calibrated over the median measured."""
        return self.predicted / statistics.median(self.measured)

    @property
    def scaled_ratio(self) -> float:
        """Median of drift-removed prediction over its own measured run."""
        pairs = zip(self.scaled, self.measured, strict=True)
        return statistics.median(s / m for s, m in pairs)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "configuration": self.setup.name,
            "what": self.what,
            "options": {
                "block_bytes": self.setup.block_bytes,
                **self.setup.options,
            },
            "measured_bytes_per_s": self.measured,
            "measured_median_bytes_per_s": statistics.median(self.measured),
            "as_calibrated_bytes_per_s": self.predicted,
            "as_calibrated_ratio": self.ratio,
            "as_calibrated_within": within(self.ratio),
            "drift_removed_bytes_per_s": self.scaled,
            "drift_removed_ratio": self.scaled_ratio,
            "drift_removed_within": within(self.scaled_ratio),
        }


def within(ratio: float) -> bool:
    """Whether a prediction over what was measured is as good as is aimed at."""
    return abs(ratio - 1) <= WITHIN


@dataclass
class Comparison:
    """All figures, and the reference over time: the drift, where everybody can see it."""

    figures: list[Figure]
    references: dict[str, list[float]]  # bytes/s by direction, in the order of measuring
    preset: Preset

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "figures": [f.to_dict() for f in self.figures],
            "references_bytes_per_s": self.references,
            "preset": {**self.preset.to_dict(), "path": None},
            "within": WITHIN,
            "as_calibrated_within_count": sum(within(f.ratio) for f in self.figures),
            "drift_removed_within_count": sum(within(f.scaled_ratio) for f in self.figures),
            "count": len(self.figures),
        }

    def chart(self) -> Chart:
        """Measured and both predictions over the configurations."""
        return Chart(
            "turns, predicted and measured",
            "configuration",
            "bytes_per_s",
            [f"{f.setup.name}: {f.what}" for f in self.figures],
            [
                Line("measured", [statistics.median(f.measured) for f in self.figures]),
                Line("as calibrated", [f.predicted for f in self.figures]),
                Line("drift removed", [statistics.median(f.scaled) for f in self.figures]),
            ],
        )


def _references(real: Real, seed: int) -> dict[str, int]:
    return {p.kind: measure(real.reference, p, seed) for p in (READ_REFERENCE, WRITE_REFERENCE)}


def factors(
    preset: Preset, own: Mapping[str, int], before: Mapping[str, int], after: Mapping[str, int]
) -> dict[str, float]:
    """By how much rates have to change so that the simulated reference takes as long as the real
    one, of which the one before and the one after the run count alike."""
    out: dict[str, float] = {}
    for p in (READ_REFERENCE, WRITE_REFERENCE):
        real = math.sqrt(before[p.kind] * after[p.kind])
        factor = own[p.kind] / real
        for _ in range(3):  # latencies stay, so the time does not follow the rate exactly
            trial = Simulated(preset, {p.kind: factor}).reference_ns(p)
            factor *= trial / real
        out[p.kind] = factor
    return out


def compare(
    preset: Preset,
    real: Real,
    chosen: Sequence[Setup],
    repeats: int,
    scale: Fraction,
    tick: Progress,
) -> Comparison:
    """Run everything. Real runs alternate with reference probes, configurations with each other."""
    if "write_rate" not in preset.numbers:
        raise BenchError(
            f"preset {preset.name} has no measured write_rate, and every run of turns writes: "
            "calibrate a directory, or with --overwrite"
        )
    twin = Simulated(preset)
    own = {p.kind: twin.reference_ns(p) for p in (READ_REFERENCE, WRITE_REFERENCE)}
    found: dict[tuple[str, str], Figure] = {}
    tick.begin("runs", repeats * len(chosen))
    before = _references(real, 1)
    seen = [before]
    for _ in range(repeats):
        for setup in chosen:
            measured = real.run(setup, scale)
            after = _references(real, len(seen) + 1)
            seen.append(after)
            scaled = Simulated(preset, factors(preset, own, before, after)).run(setup, scale)
            for what, rate in measured.items():
                f = found.setdefault((setup.name, what), Figure(setup, what))
                f.measured.append(rate)
                f.scaled.append(scaled[what])
            before = after
            tick.advance()
    for setup in chosen:
        for what, rate in twin.run(setup, scale).items():
            found[setup.name, what].predicted = rate
    points = {p.kind: p for p in (READ_REFERENCE, WRITE_REFERENCE)}
    rates = {k: [p.nbytes * 1e9 / s[k] for s in seen] for k, p in points.items()}
    return Comparison(list(found.values()), rates, preset)
