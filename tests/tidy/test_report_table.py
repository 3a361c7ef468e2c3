# SPDX-License-Identifier: Apache-2.0
"""docs/field-reports.md names exactly the tests that cover each row of the field reports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
TESTS = TOP / "tests"
ROW = re.compile(r"^\| (F\d\d) \| [^|]+ \| ([^|]+) \|$", re.M)
ROWS = dict(ROW.findall((TOP / "docs" / "field-reports.md").read_text(encoding="utf-8")))
SOURCES = [
    p  # published figures have names of this form
    for p in sorted(TESTS.rglob("*.[cp]*"))
    if p.suffix in (".c", ".py") and not p.name.startswith("test_paper")
]
NAMED: dict[str, set[str]] = {}
for source in SOURCES:
    for row in set(re.findall(r"\bF\d\d\b|_f\d\d_", source.read_text(encoding="utf-8"))):
        NAMED.setdefault(row.strip("_").upper(), set()).add(str(source.relative_to(TESTS)))


def test_table_is_there() -> None:
    assert len(ROWS) == 64


@pytest.mark.parametrize("row", ROWS)
def test_row_names_its_tests(row: str) -> None:
    listed = set(re.findall(r"`([\w/]+\.(?:c|py))`", ROWS[row]))
    assert NAMED.get(row, set()) <= listed
    for name in listed:
        assert (TESTS / name.removeprefix("tests/")).exists()
    assert listed or len(ROWS[row]) > 40  # no test: a sentence says why
