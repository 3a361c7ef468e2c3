# SPDX-License-Identifier: Apache-2.0
"""Verdicts: a wrong value is missed, and nothing is concluded from what is only reported."""

from __future__ import annotations

import math

import pytest

from chm.bench.paper.claim import Claim, Verdict, least, most, near, number, report, shape

NUMBER = near("k", "a rate", "GB/s", 20, 0.05, "A", "somewhere")
RANGE = near("k", "a rate", "GB/s", (20, 25), 0.1, "B", "somewhere")
EXACT = near("k", "a turn", "", 4, 0, "B", "somewhere")
ZERO = near("k", "bytes", "B", 0, 0, "D", "somewhere")
FLOOR = least("k", "a share", "", 0.9, 0.05, "B", "somewhere")
CEILING = most("k", "a rate", "GB/s", 1, 0, "B", "somewhere")
SHAPE = shape("k", "an order", "C", "somewhere")
SHOWN = report("k", "a mean", "", 0.35, "B", "somewhere")


@pytest.mark.parametrize(
    ("claim", "ours", "verdict"),
    [
        (NUMBER, 20, Verdict.MET),
        (NUMBER, 21, Verdict.MET),
        (NUMBER, 19, Verdict.MET),
        (NUMBER, 21.01, Verdict.MISSED),
        (NUMBER, 18.99, Verdict.MISSED),
        (NUMBER, None, Verdict.MISSED),
        (NUMBER, math.nan, Verdict.MISSED),
        (NUMBER, True, Verdict.MISSED),
        (RANGE, 22, Verdict.MET),
        (RANGE, 27.5, Verdict.MET),
        (RANGE, 27.6, Verdict.MISSED),
        (RANGE, 17.9, Verdict.MISSED),
        (EXACT, 4, Verdict.MET),
        (EXACT, 5, Verdict.MISSED),
        (ZERO, 0, Verdict.MET),
        (ZERO, 1, Verdict.MISSED),
        (FLOOR, 0.9, Verdict.MET),
        (FLOOR, 5, Verdict.MET),
        (FLOOR, 0.85, Verdict.MISSED),
        (CEILING, 0.1, Verdict.MET),
        (CEILING, 1.01, Verdict.MISSED),
        (SHAPE, True, Verdict.SHAPE),
        (SHAPE, False, Verdict.MISSED),
        (SHAPE, None, Verdict.MISSED),
        (SHAPE, 1, Verdict.MISSED),
        (SHOWN, 99, Verdict.REPORTED),
        (SHOWN, None, Verdict.REPORTED),
    ],
)
def test_verdict(claim: Claim, ours: float | bool | None, verdict: Verdict) -> None:
    assert claim.judge(ours) is verdict


def test_difference_counts_from_the_nearest_end() -> None:
    assert RANGE.difference(30) == pytest.approx(0.2)
    assert RANGE.difference(16) == pytest.approx(-0.2)
    assert RANGE.difference(23) == 0
    assert FLOOR.difference(2) == 0
    assert CEILING.difference(1.5) == pytest.approx(0.5)
    assert SHAPE.difference(True) is None


def test_what_was_published_is_shown_as_people_read_it() -> None:
    assert RANGE.published == "20 GB/s - 25 GB/s"
    assert NUMBER.published == "20 GB/s"
    assert FLOOR.published == ">= 0.9"
    assert CEILING.published == "<= 1 GB/s"
    assert SHAPE.published == "holds"
    assert report("k", "ours alone", "", None, "D", "us").published == "-"
    assert (NUMBER.allowed, EXACT.allowed, SHOWN.allowed) == ("5%", "exact", "-")
    assert number(655360, "") == "655,360"
    assert number(11.979, "GB/s") == "11.98 GB/s"
    assert number(True, "") == "yes"
