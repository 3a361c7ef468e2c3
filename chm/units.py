# SPDX-License-Identifier: Apache-2.0
"""Sizes, durations and rates: from the words people write to whole numbers, and back.

Sizes follow the two families of units: ``KiB MiB GiB TiB`` are powers of 1024 and ``kB MB GB TB``
powers of 1000. A bare letter (``"64M"``) means the binary unit, as in fio and dd.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_DURATIONS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
_NUMBER = re.compile(
    r"\s*([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([^\s0-9]*)\s*", re.I
)

FOREVER_NS = (1 << 64) - 1
"""What the C side takes for "no limit"."""


def _size_factors() -> dict[str, int]:
    factors = {"": 1, "b": 1}
    for letter, value in _BINARY.items():
        factors[letter] = factors[letter + "ib"] = value
        factors[letter + "b"] = _DECIMAL[letter]
    return factors


_SIZES = _size_factors()


def _parse(
    value: int | float | str, factors: Mapping[str, int], what: str, example: str, suffix: str = ""
) -> int:
    """``suffix`` is a pattern that may follow text and says nothing, such as the /s of a rate."""
    if isinstance(value, bool):
        raise ValueError(f"{what}: expected a number or text such as {example}, got {value!r}")
    if isinstance(value, str):
        match = _NUMBER.fullmatch(re.sub(suffix + r"\s*$", "", value))
        factor = factors.get(match.group(2).lower()) if match else None
        if match is None or factor is None:
            raise ValueError(f"{what}: cannot read {value!r}; write it like {example}")
        digits = match.group(1)
        # Whole numbers stay whole: a float loses bytes above 2**53.
        value = int(digits) * factor if digits.isdigit() else float(digits) * factor
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{what}: {value!r} is not a finite number of at least 0")
    return round(value)


def parse_size(value: int | float | str) -> int:
    """Bytes from ``4096``, ``"256MiB"``, ``"1.5G"`` or ``"2 GB"``."""
    return _parse(value, _SIZES, "size", "'256MiB'")


def parse_rate(value: int | float | str) -> int:
    """Bytes per second from a number or text such as ``"2GB/s"``."""
    return _parse(value, _SIZES, "rate", "'2GB/s'", r"\s*(/s|ps)")


def parse_duration(value: int | float | str) -> int:
    """Nanoseconds from a number *of nanoseconds* or text such as ``"80us"`` or ``"1.5s"``.

    Text needs its unit; only ``"0"`` does without.
    """
    if isinstance(value, str) and value.strip() == "0":
        return 0
    return _parse(value, _DURATIONS, "duration", "'80us'")


def seconds_to_ns(seconds: float | None) -> int:
    """A timeout for the C side: ``None`` is no limit, anything negative is 0."""
    if seconds is None or seconds * 1e9 >= FOREVER_NS:
        return FOREVER_NS
    return max(round(seconds * 1e9), 0)


def _shorten(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for factor, unit in steps:
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    factor, unit = steps[-1]
    return f"{value / factor:.4g} {unit}"


def format_size(size: float) -> str:
    """``268435456`` as ``"256 MiB"`` (four digits, binary units)."""
    return _shorten(
        size, ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
    )


def format_rate(rate: float) -> str:
    """``2e9`` as ``"2 GB/s"`` (four digits, decimal units, as drives are sold)."""
    return _shorten(rate, ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1, "B/s")))


def format_duration(ns: float) -> str:
    """``80000`` as ``"80 us"`` (four digits)."""
    return _shorten(ns, ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns")))
