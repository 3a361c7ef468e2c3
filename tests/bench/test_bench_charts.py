# SPDX-License-Identifier: Apache-2.0
"""Charts: what is drawn where, and what a PNG is."""

from __future__ import annotations

from pathlib import Path

import pytest

from chm.bench.charts import Chart, Line, draw_png, draw_terminal


def chart(*lines: Line, x: str = "1 2 3 4") -> Chart:
    return Chart("turns", "turn", "read_bytes_per_s", x.split(), lines)


def test_terminal_rises_with_the_values() -> None:
    text = draw_terminal(chart(Line("up", [0.0, 1e9, 2e9, 3e9])), width=40, height=8)
    marks = [
        (r, line.index(c)) for r, line in enumerate(text.splitlines()) for c in line if c == "●"
    ]
    (*points, legend) = marks
    rows, columns = zip(*points, strict=True)
    assert list(rows) == sorted(rows)
    assert list(columns) == sorted(columns, reverse=True)
    assert len(points) == 4
    assert text.splitlines()[legend[0]] == "● up"


def test_points_are_joined() -> None:
    """Between a low and a high point, dots: low ones on the left, high ones on the right."""
    text = draw_terminal(chart(Line("a", [0.0, 1e9]), x="1 2"), width=40, height=8)
    dots = [
        (r, c)
        for r, line in enumerate(text.splitlines())
        for c, sign in enumerate(line)
        if "\u2800" < sign <= "\u28ff"
    ]
    assert len(dots) > 20
    assert dots == sorted(dots, key=lambda at: at[0])
    assert all(a[1] >= b[1] for a, b in zip(dots, dots[20:], strict=False))
    assert dots[0][1] > dots[-1][1] + 20


def test_terminal_names_axes_and_units() -> None:
    text = draw_terminal(chart(Line("a", [1e9, 2e9, None, 2e9]), Line("b", [None] * 4)))
    assert text.startswith("turns  (read_bytes_per_s over turn)")
    assert "2 GB/s ┤" in text
    assert "1 GB/s ┤" in text
    assert "● a   ◆ b" in text
    assert text.count("●") == 3 + 1
    assert text.count("◆") == 1


@pytest.mark.parametrize("n", [1, 3, 300])
def test_terminal_keeps_its_size(n: int) -> None:
    text = draw_terminal(
        chart(Line("a", [float(i) for i in range(n)]), x=" ".join(map(str, range(n))))
    )
    lines = text.splitlines()
    assert len(lines) == 12 + 4
    assert max(map(len, lines)) <= 64


def test_nothing_to_draw_is_no_error() -> None:
    assert "0 B/s" in draw_terminal(chart(Line("a", [None] * 4)))


def test_png(tmp_path: Path) -> None:
    path = tmp_path / "c.png"
    draw_png(chart(Line("a", [1e9, None, 2e9, 3e9])), path, "media sim")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xae\x42\x60\x82")
