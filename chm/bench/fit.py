# SPDX-License-Identifier: Apache-2.0
"""Parameters of the simulated medium from a sweep of probes.

The model is the simulator's with rates only: an I/O of n bytes passes software that does one I/O
after the other (software_ns), occupies a resource for n / rate, and ends a latency later. Reads and
writes share the resource, or have one each (duplex). A barrier takes barrier_ns. What the host adds
to each read that it waits for is host_ns, the latency of a host link.

`Model.predict` has the time of a probe in closed form, so that a fit takes a fraction of a second;
what a fit is worth is told by the simulator itself, with the very probes (`errors`). A parameter
that explains nothing is left out: of two models that fit equally well the simpler one is taken.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from chm.bench.probe import KIB, Place, Point, measure
from chm.bench.target import BenchError

F64 = npt.NDArray[np.float64]

NO_LIMIT = 10**12
"""Bytes/s of a host link that is there for its latency, or its other direction, only."""
_ROUNDS = 60  # of the least squares, at most
_SETTLED = 1e-5  # a round that changes the loss by less than this share is the last
_HUBER = 0.1  # errors above a tenth count linearly: a disturbed point must not bend the rest
_WORTH = 0.97  # a further parameter must bring the loss below this share of what it was
_NOISE = 0.03  # no point is trusted better than this
_SMALL, _SMALL_COUNTS = 256 * KIB, 0.25  # I/Os below this size, and what they count
_LARGEST = math.log(1e15)


@dataclass(frozen=True)
class Observation:
    """A point and the times it took, ns."""

    point: Point
    samples: tuple[int, ...]

    @functools.cached_property
    def median(self) -> float:
        """ns; half of the samples took longer."""
        return float(statistics.median(self.samples))

    @functools.cached_property
    def spread(self) -> float:
        """Third quartile less first, as a share of the median: half of the samples are within."""
        low, high = np.quantile(self.samples, (0.25, 0.75))
        return float(high - low) / self.median


@dataclass(frozen=True)
class Model:
    """What a fit gives: times in ns, rates in bytes/s. None: the sweep does not tell."""

    read_rate: float | None = None
    read_latency_ns: float | None = None
    write_rate: float | None = None
    write_latency_ns: float | None = None
    barrier_ns: float | None = None
    software_ns: float = 0.0
    host_ns: float = 0.0
    duplex: bool = False

    def predict(self, p: Point) -> float:
        """Time of a probe, ns."""
        return _TIMES[p.kind](self, p)

    def way(self, kind: str, size: int) -> tuple[float, float]:
        """(ns that an I/O holds the resource, ns that it takes alone)."""
        rate = self.read_rate if kind == "read" else self.write_rate
        latency = self.read_latency_ns if kind == "read" else self.write_latency_ns
        if rate is None or latency is None:
            raise BenchError(f"the sweep has no {kind} points")
        holds = size / rate * 1e9
        return holds, self.software_ns + holds + latency

    def sim(self) -> dict[str, Any]:
        """Fields of SimOptions."""
        names = ("read_rate", "read_latency_ns", "write_rate", "write_latency_ns")
        values = {n: getattr(self, n) for n in (*names, "barrier_ns", "software_ns")}
        out: dict[str, Any] = {n: max(1, round(v)) for n, v in values.items() if v}
        if "barrier_ns" in out:
            out["volatile_cache"] = True  # else no barrier would be sent
        return out | ({"duplex": True} if self.duplex else {})

    def link(self) -> dict[str, Any]:
        """Fields of Options that begin with ``link_``."""
        latency = round(self.host_ns)
        return {"link_rate": NO_LIMIT, "link_latency_ns": latency} if latency else {}


def _train(holds: float, alone: float, p: Point, step: float) -> float:
    """`count` I/Os, `depth` in flight, of which one can begin every `step` ns: until the last."""
    if p.depth * step >= alone:
        return alone + (p.count - 1) * step
    rounds, rest = divmod(p.count - 1, p.depth)
    return (rounds + 1) * alone + rest * step


def _one_way(m: Model, p: Point, kind: str) -> float:
    holds, alone = m.way(kind, p.io_bytes)
    return _train(holds, alone, p, max(holds, m.software_ns))


def _sync(m: Model) -> float:
    """The barrier behind writes, which passes the software too."""
    return m.software_ns + (m.barrier_ns or 0.0)


def _mixed(m: Model, p: Point) -> float:
    """Pairs of a read and a write, side by side."""
    read, read_alone = m.way("read", p.io_bytes)
    write, write_alone = m.way("write", p.io_bytes)
    pair = max(read, write) if m.duplex else read + write
    pair = max(pair, 2 * m.software_ns, read_alone / p.depth, write_alone / p.depth)
    return max(read_alone, write_alone) + (p.count - 1) * pair + _sync(m)


_TIMES: dict[str, Callable[[Model, Point], float]] = {
    "read": lambda m, p: _one_way(m, p, "read") + m.host_ns,
    "write": lambda m, p: _one_way(m, p, "write") + _sync(m),
    "mixed": lambda m, p: _mixed(m, p) + m.host_ns,
    "demand": lambda m, p: p.count * (m.way("read", p.io_bytes)[1] + m.host_ns),
    "barrier": lambda m, p: p.count * (m.way("write", p.io_bytes)[1] + _sync(m)),
}


# ------------------------------------------------------------------------------------ the fit


def _loss(model: Model, seen: Sequence[Observation]) -> float:
    """Mean over the points of the squared error in units of what is expected; large ones count
    linearly, and points like the device's own I/O more than others."""
    errors = np.abs(_residuals(model, seen))
    limit = _HUBER / _NOISE
    lost = np.where(errors < limit, errors**2, limit * (2 * errors - limit))
    return float(np.average(lost, weights=_weights(seen)))


def _weights(seen: Sequence[Observation]) -> F64:
    """How much the points count: a device reads and writes in units of 1 MiB, unless told."""
    return np.array([_SMALL_COUNTS if o.point.io_bytes < _SMALL else 1.0 for o in seen])


def _residuals(model: Model, seen: Sequence[Observation]) -> F64:
    return np.array([math.log(model.predict(o.point) / o.median) / _doubt(o) for o in seen])


def _doubt(o: Observation) -> float:
    """How far from the median the true time may be, as a share."""
    return _NOISE + o.spread / math.sqrt(len(o.samples))


def _descend(start: Model, free: Sequence[str], seen: Sequence[Observation]) -> Model:
    """Least squares over the logarithms of the free parameters (Levenberg and Marquardt)."""

    def at(x: F64) -> Model:
        limited = np.clip(x, 0.0, _LARGEST)
        return dataclasses.replace(start, **dict(zip(free, np.exp(limited).tolist(), strict=True)))

    x = np.log([max(1.0, getattr(start, name)) for name in free])
    damping, best, counts = 1e-2, _loss(at(x), seen), _weights(seen)
    for _ in range(_ROUNDS):
        r = _residuals(at(x), seen)
        slope = np.stack([(_residuals(at(x + d), seen) - r) / 1e-4 for d in np.eye(len(x)) * 1e-4])
        weight = counts * np.minimum(1.0, _HUBER / _NOISE / np.maximum(np.abs(r), 1e-9))
        square = (slope * weight) @ slope.T
        step = np.linalg.solve(
            square + damping * (np.diag(np.diag(square)) + 1e-9 * np.eye(len(x))),
            -(slope * weight) @ r,
        )
        tried = x + np.clip(step, -1.0, 1.0)
        loss = _loss(at(tried), seen)
        settled = abs(best - loss) < _SETTLED * best
        if loss < best:
            x, best, damping = tried, loss, damping / 3
        else:
            damping *= 4
        if settled or damping > 1e9:
            break
    return at(x)


def _start(seen: Sequence[Observation]) -> Model:
    """What single points say: the fastest gives the rate, the quickest I/O alone the latency."""
    values: dict[str, Any] = {}
    for kind in ("read", "write"):
        points = [o for o in seen if o.point.kind == kind]
        if points:
            values[f"{kind}_rate"] = max(o.point.nbytes / o.median * 1e9 for o in points)
            shortest = min(points, key=lambda o: (o.point.io_bytes, o.point.depth))
            values[f"{kind}_latency_ns"] = shortest.median / shortest.point.count
    barriers = [o.median / o.point.count for o in seen if o.point.kind == "barrier"]
    if "write_rate" in values:
        values["barrier_ns"] = min(barriers, default=1e6)
    return Model(**values)


def _quickest(seen: Sequence[Observation]) -> float:
    """Least time between two I/Os."""
    return min(o.median / o.point.count for o in seen if o.point.kind in ("read", "write"))


def fit(seen: Sequence[Observation]) -> Model:
    """The simplest model that explains the sweep. Raises BenchError for one without reads."""
    if not any(o.point.kind == "read" for o in seen):
        raise BenchError("a fit needs read points")
    first = _start(seen)
    if first.write_rate is None:
        seen = [o for o in seen if o.point.kind in ("read", "demand")]
    free = [n for n in _ALWAYS if getattr(first, n) is not None]
    best = _descend(first, free, seen)
    for more, values in _further(seen):
        names = [*free, *(n for n in more if n not in free)]
        tried = _descend(dataclasses.replace(best, **values), names, seen)
        if _loss(tried, seen) < _WORTH * _loss(best, seen):
            best, free = tried, names
    return best


_ALWAYS = ("read_rate", "read_latency_ns", "write_rate", "write_latency_ns", "barrier_ns")


def _further(seen: Sequence[Observation]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """What may be added to a model: parameters, and where they start."""
    kinds = {o.point.kind for o in seen}
    out: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    out.append((("software_ns",), {"software_ns": _quickest(seen) / 2}))
    if "mixed" in kinds:
        out.append(((), {"duplex": True}))
    if "demand" in kinds:
        out.append((("host_ns",), {"host_ns": 10_000.0}))
    return out


# ------------------------------------------------------------------------------------ its worth


@dataclass(frozen=True)
class Error:
    """A point as measured, and as the simulator has it with the fitted parameters."""

    seen: Observation
    simulated_ns: int

    @property
    def ratio(self) -> float:
        """Simulated over measured time."""
        return self.simulated_ns / self.seen.median

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        p = self.seen.point
        return {
            "point": str(p),
            "kind": p.kind,
            "io_bytes": p.io_bytes,
            "depth": p.depth,
            "count": p.count,
            "samples_ns": list(self.seen.samples),
            "median_ns": self.seen.median,
            "spread_ratio": self.seen.spread,
            "bytes_per_s": p.nbytes / self.seen.median * 1e9,
            "simulated_ns": self.simulated_ns,
            "simulated_over_measured_ratio": self.ratio,
        }


def errors(model: Model, seen: Sequence[Observation], size_bytes: int) -> list[Error]:
    """Every point once more on the simulator."""
    place = Place(size_bytes, sim=model.sim(), link=model.link())
    return [
        Error(o, measure(place, o.point, 1))
        for o in seen
        if model.write_rate or o.point.kind in ("read", "demand")
    ]


def typical_error(found: Sequence[Error]) -> float:
    """Median distance from 1 of the ratios: half of the points are fitted better."""
    return float(statistics.median(abs(e.ratio - 1) for e in found))
