# SPDX-License-Identifier: Apache-2.0
"""How large the KV block of a model is.

bytes/token = 2 (K and V) x layers x KV heads x head dimension x bytes per element; a block is that
times the tokens of a block. The four block sizes of the HyMCache paper (16, 32, 64 and 168 MiB) are
blocks of 128 tokens at 2 bytes per element.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from chm.bench.payload import PAGE_BYTES

TOKENS_PER_BLOCK = 128


@dataclass(frozen=True)
class Model:
    """The shape of a model's KV cache, from its published configuration."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int = 2

    @property
    def token_bytes(self) -> int:
        """KV bytes of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes


MODELS: dict[str, Model] = {
    m.name: m
    for m in (
        Model("qwen2.5-7b", 28, 4, 128),
        Model("llama-3.1-8b", 32, 8, 128),
        Model("qwen3-8b", 36, 8, 128),
        Model("qwen2.5-32b", 64, 8, 128),
        Model("llama-3.1-70b", 80, 8, 128),
        Model("qwen2.5-72b", 80, 8, 128),
        Model("llama-2-7b", 32, 32, 128),
        Model("opt-6.7b", 32, 32, 128),
        Model("llama-2-13b", 40, 40, 128),
        Model("opt-13b", 40, 40, 128),
        Model("opt-30b", 48, 56, 128),
    )
}


def block_bytes(token_bytes: int, tokens: int, scale: Fraction = Fraction(1)) -> int:
    """Bytes of a block of `tokens` tokens, scaled, in whole pages (at least one)."""
    exact = token_bytes * tokens * scale
    return max(PAGE_BYTES, -(-exact.numerator // (exact.denominator * PAGE_BYTES)) * PAGE_BYTES)
