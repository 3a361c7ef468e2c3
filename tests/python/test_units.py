# SPDX-License-Identifier: Apache-2.0
"""Sizes, durations and rates as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chm import units

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("256MiB", 256 << 20),
        ("256 mib", 256 << 20),
        ("64M", 64 << 20),
        ("2GB", 2 * 10**9),
        ("1.5G", GIB * 3 // 2),
        ("1_000kB", 10**6),
        ("9007199254740993", 9007199254740993),
        (0, 0),
    ],
)
def test_sizes(text: object, value: int) -> None:
    assert units.parse_size(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("2GB/s", 2 * 10**9), ("1 GiB/s", GIB), ("500MBps", 5 * 10**8), (7, 7)]
)
def test_rates(text: object, value: int) -> None:
    assert units.parse_rate(text) == value


def test_a_rate_that_cannot_be_read_is_shown_as_it_was_written() -> None:
    with pytest.raises(ValueError, match="cannot read '-3GB/s'"):
        units.parse_rate("-3GB/s")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80us", 80_000),
        ("80 µs", 80_000),
        ("1.5s", 1_500_000_000),
        ("10min", 6 * 10**11),
        ("0", 0),
        (5, 5),
    ],
)
def test_durations(text: object, value: int) -> None:
    assert units.parse_duration(text) == value


@pytest.mark.parametrize(
    "bad", ["", "MiB", "-1", "12 parsecs", "1e400G", -1, math.nan, math.inf, True]
)
def test_nonsense_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="size"):
        units.parse_size(bad)


def test_a_duration_in_text_needs_its_unit() -> None:
    with pytest.raises(ValueError, match="'80us'"):
        units.parse_duration("80")


@given(st.integers(0, 1 << 60))
def test_a_formatted_size_reads_back_within_its_digits(size: int) -> None:
    assert units.parse_size(units.format_size(size)) == pytest.approx(size, rel=1e-3, abs=0.5)


def test_formats() -> None:
    assert units.format_size(268435456) == "256 MiB"
    assert units.format_rate(2e9) == "2 GB/s"
    assert units.format_duration(80_000) == "80 us"
    assert units.format_duration(0) == "0 ns"


def test_timeouts_for_c() -> None:
    assert units.seconds_to_ns(None) == units.FOREVER_NS
    assert units.seconds_to_ns(float("inf")) == units.FOREVER_NS
    assert units.seconds_to_ns(-1) == 0
    assert units.seconds_to_ns(1.5) == 1_500_000_000
