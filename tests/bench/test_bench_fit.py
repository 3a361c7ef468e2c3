# SPDX-License-Identifier: Apache-2.0
"""The fit finds the parameters of a simulated drive from probes on it. All in virtual time."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from chm.bench.calibrate import SIZE_MIN, sweep, sweep_points
from chm.bench.fit import Model, Observation, errors, fit, typical_error
from chm.bench.probe import KINDS, READ_KINDS, Place, Point, addresses, measure
from chm.bench.target import BenchError
from chm.bench.ui import Progress

MIB, GIB = 1 << 20, 1 << 30

SHARED = Model(
    read_rate=2.1e9,
    read_latency_ns=300_000.0,
    write_rate=0.9e9,
    write_latency_ns=120_000.0,
    barrier_ns=3_000_000.0,
    software_ns=50_000.0,
)
MODELS = {
    "a virtual disk": SHARED,
    "reads and writes apart": Model(5e9, 80_000.0, 2e9, 20_000.0, 1_000_000.0, duplex=True),
    "a slow host before a fast drive": Model(
        12e9, 90_000.0, 6e9, 15_000.0, 200_000.0, software_ns=4_000.0, host_ns=20_000.0
    ),
}
PARAMETERS = (
    *("read_rate", "read_latency_ns", "write_rate", "write_latency_ns"),
    *("barrier_ns", "software_ns", "host_ns"),
)


@functools.cache
def sweep_of(model: Model, writable: bool) -> tuple[Observation, ...]:
    place = Place(GIB, sim=model.sim(), link=model.link())
    return tuple(sweep(place, sweep_points(GIB, writable), 0, 1, Progress()))


def observed(model: Model, writable: bool = True) -> list[Observation]:
    """What a calibration would see of a drive that is this model."""
    return list(sweep_of(model, writable))


def check_parameters(found: Model, true: Model, within: float) -> None:
    assert found.duplex == true.duplex
    for name in PARAMETERS:
        want, got = getattr(true, name), getattr(found, name)
        if want:
            assert got == pytest.approx(want, rel=within), name
        else:
            assert not got, f"{name} explains nothing and was kept"


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_parameters_are_found_again(model: Model) -> None:
    found = fit(observed(model))
    check_parameters(found, model, 0.05)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_closed_form_is_the_simulator(model: Model) -> None:
    for o in observed(model):
        assert model.predict(o.point) == pytest.approx(o.median, rel=0.03), str(o.point)


def noisy(seen: list[Observation], spread: float, samples: int) -> list[Observation]:
    """Disturbed measurements: every sample off by a factor, and one in twelve a stall."""
    rng = np.random.default_rng(5)
    out = []
    for o in seen:
        factors = np.exp(rng.normal(0, spread, samples))
        factors[rng.random(samples) < 1 / 12] *= 8
        out.append(Observation(o.point, tuple(int(o.median * f) for f in factors)))
    return out


def test_noise_and_stalls_do_not_carry_it_away() -> None:
    found = fit(noisy(observed(SHARED), 0.15, 7))
    assert found.duplex is False
    assert found.read_rate == pytest.approx(SHARED.read_rate, rel=0.1)
    assert found.write_rate == pytest.approx(SHARED.write_rate, rel=0.1)
    assert found.read_latency_ns == pytest.approx(SHARED.read_latency_ns, rel=0.2)


def test_one_bad_point_does_not_bend_the_rest() -> None:
    seen = observed(SHARED)
    at = next(i for i, o in enumerate(seen) if o.point.kind == "read" and o.point.depth == 16)
    wrong = tuple(5 * s for s in seen[at].samples)
    seen[at] = dataclasses.replace(seen[at], samples=wrong)
    check_parameters(fit(seen), SHARED, 0.05)


def test_errors_say_what_a_model_is_worth() -> None:
    seen = observed(SHARED)
    exact = errors(SHARED, seen, GIB)
    assert {e.seen.point for e in exact} == {o.point for o in seen}
    assert typical_error(exact) < 0.001
    wrong = errors(dataclasses.replace(SHARED, read_rate=1.05e9), seen, GIB)
    deep = next(e for e in wrong if e.seen.point == Point("read", MIB, 32, 128))
    assert deep.ratio == pytest.approx(2, rel=0.02)


def test_without_writes_only_reads_are_fitted() -> None:
    found = fit(observed(SHARED, writable=False))
    assert found.write_rate is None
    assert found.barrier_ns is None
    assert found.read_rate == pytest.approx(SHARED.read_rate, rel=0.03)
    assert not {"write_rate", "barrier_ns", "volatile_cache"} & found.sim().keys()


def test_a_sweep_without_reads_is_refused() -> None:
    seen = [o for o in observed(SHARED) if o.point.kind == "write"]
    with pytest.raises(BenchError, match="needs read points"):
        fit(seen)


# ------------------------------------------------------------------------------------ probes


@pytest.mark.parametrize("size", [SIZE_MIN, 64 * MIB, GIB])
@pytest.mark.parametrize("writable", [True, False])
def test_every_point_fits_into_the_file(size: int, writable: bool) -> None:
    points = sweep_points(size, writable)
    kinds = {p.kind for p in points}
    assert kinds == set(KINDS if writable else READ_KINDS)
    assert len(set(points)) == len(points)
    for p in points:
        assert p.count >= p.depth
        where = addresses(Place(size), p, np.random.default_rng(1))
        assert len(set(where)) == len(where) == p.nbytes // p.io_bytes
        assert max(where) + p.io_bytes <= size


def test_a_probe_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BenchError, match="larger --size"):
        measure(Place(16 * MIB), Point("read", MIB, 16, 32), 1)


def test_a_probe_takes_what_the_model_says() -> None:
    """To the nanosecond, where the arithmetic is plain."""
    sim = {"read_rate": 10**9, "read_latency_ns": 100_000, "software_ns": 1_000}
    place = Place(64 * MIB, sim=sim)
    one = 1_000 + 4096 + 100_000
    assert measure(place, Point("read", 4096, 1, 10), 1) == 10 * one
    assert measure(place, Point("demand", 4096, 1, 10), 1) == 10 * one
    assert measure(place, Point("read", 4096, 32, 32), 1) == one + 31 * 4096


def test_the_same_seed_gives_the_same_probe() -> None:
    place = Place(64 * MIB, sim={"dies": 8})
    point = Point("read", 64 << 10, 4, 64)
    assert measure(place, point, 3) == measure(place, point, 3)
    assert measure(place, point, 3) != measure(place, point, 4)
