# SPDX-License-Identifier: Apache-2.0
"""Counters and facts: nothing of the C structs is forgotten, and all of it can be written down."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import MIB, fill

import chm
from chm import stats as records
from chm._ffi import field_names


@pytest.mark.parametrize(
    ("ctype", "cls"),
    [
        ("struct chm_info", chm.DeviceInfo),
        ("struct chm_stats", chm.Stats),
        ("struct chm_space_stats", chm.SpaceStats),
        ("struct chm_stream_info", chm.StreamInfo),
    ],
)
def test_they_mirror_c(ctype: str, cls: type) -> None:
    assert [f.name for f in dataclasses.fields(cls)] == field_names(ctype)


def test_all_of_it_is_json(dev) -> None:
    fill(dev, 0, MIB, seed=1)
    dev.prefetch(0, MIB).wait().release()
    info = json.loads(json.dumps(dev.info.to_dict()))
    assert info["capacity_bytes"] == dev.info.capacity_bytes
    stats = json.loads(json.dumps(dev.stats().to_dict()))
    assert stats["issued"] == 1
    assert stats["stage_ns"]["count"] == 1
    assert json.dumps(dev.options.to_dict())


def test_the_difference_of_two_snapshots(sim) -> None:
    fill(sim, 0, 4 * MIB, seed=2)
    sim.prefetch(0, MIB).wait()
    before = sim.stats()
    for at in (1, 2):
        sim.prefetch(at * MIB, MIB).wait()
    change = sim.stats() - before
    assert change.issued == 2
    assert change.stage_ns.count == 2
    assert change.stage_ns.quantile(1.0) <= change.stage_ns.max
    assert (before - before).stage_ns == chm.Histogram()


def bucket_of(value: int) -> int:
    """By the words of chm.h."""
    if value < records.SUB:
        return value
    top = value.bit_length() - 1
    return records.SUB * (top - 4) + (value >> (top - 5)) % records.SUB


@given(st.lists(st.integers(0, (1 << 44) - 1), min_size=1, max_size=200), st.floats(0.001, 1))
def test_quantiles(values: list[int], share: float) -> None:
    buckets: dict[int, int] = {}
    for value in values:
        buckets[bucket_of(value)] = buckets.get(bucket_of(value), 0) + 1
    histogram = chm.Histogram(len(values), sum(values), max(values), buckets)
    rank = max(1, -(-len(values) * share // 1))
    exact = sorted(values)[min(int(rank), len(values)) - 1]
    assert abs(histogram.quantile(share) - exact) <= exact / 32 + 1
    assert histogram.mean == pytest.approx(sum(values) / len(values))


@given(st.integers(0, (1 << 44) - 1))
def test_the_least_value_of_a_bucket(value: int) -> None:
    bucket = bucket_of(value)
    assert records.bucket_value(bucket) <= value < records.bucket_value(bucket + 1)


def test_an_empty_histogram() -> None:
    empty = chm.Histogram()
    assert (empty.quantile(0.5), empty.mean) == (0, 0.0)
