# SPDX-License-Identifier: Apache-2.0
"""KV block sizes by model: the four of the paper are exact by arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest

from chm.bench.models import MODELS, block_bytes

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("model", "token_kib", "block_mib"),
    [
        ("llama-3.1-8b", 128, 16),
        ("qwen2.5-32b", 256, 32),
        ("opt-6.7b", 512, 64),
        ("llama-2-7b", 512, 64),
        ("opt-30b", 1344, 168),
        ("qwen2.5-7b", 56, 7),
        ("llama-3.1-70b", 320, 40),
        ("opt-13b", 800, 100),
        ("qwen3-8b", 144, 18),
    ],
)
def test_sizes(model: str, token_kib: int, block_mib: int) -> None:
    assert MODELS[model].token_bytes == token_kib * KIB
    assert block_bytes(MODELS[model].token_bytes, 128) == block_mib * MIB


@pytest.mark.parametrize(
    ("scale", "want"),
    [(Fraction(1, 64), 256 * KIB), (Fraction(1, 3), 5595136), (Fraction(1, 10**6), 4096)],
)
def test_scaled_blocks_are_whole_pages(scale: Fraction, want: int) -> None:
    got = block_bytes(128 * KIB, 128, scale)
    assert got == want
    assert got % 4096 == 0
