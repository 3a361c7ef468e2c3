# SPDX-License-Identifier: Apache-2.0
"""A chat whose KV cache lies on a device, with transformers: each turn loads what earlier turns
computed, computes the rest, and stores it. The answers are those of a model that computes it all.

    python docs/examples/transformers_chat.py [DEVICE]

DEVICE (default chat.kv) is made if it is not there; run it twice, and the second run begins with
hits. The model is small, random and made here, so nothing is downloaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from chm.connectors import Naming, Tier, TierOptions, key_of

BLOCK = 16  # tokens of an object
TURNS, ASKED, ANSWERED = 6, 40, 24  # tokens of a question and of an answer
SHAPE = LlamaConfig(
    vocab_size=512,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    initializer_range=0.3,  # large: what comes next shall depend on all that was said
)
BLOCK_SHAPE = (SHAPE.num_hidden_layers, 2, SHAPE.num_key_value_heads, BLOCK, SHAPE.head_dim)


def key(tokens: Sequence[int]) -> bytes:
    """Of the block that ends these tokens: KV depends on all tokens before it, too."""
    return key_of(np.array(tokens, np.int64).tobytes())


def load(tier: Tier, tokens: Sequence[int]) -> DynamicCache:
    """A cache with the leading blocks of a prompt that the device has. One token is left over."""
    keys = [key(tokens[:end]) for end in range(BLOCK, len(tokens), BLOCK)]
    hits = (*tier.exists(keys), False).index(False)
    blocks = np.empty((hits, *BLOCK_SHAPE), np.float32)
    done = tier.result(tier.get("chat", keys[:hits], list(blocks)))
    cache = DynamicCache()
    if done.prefix:  # what failed is computed, with all that follows
        kv = torch.from_numpy(np.concatenate(blocks[: done.prefix], axis=3))
        for layer, (k, v) in enumerate(kv):
            cache.update(k[None], v[None], layer)
    return cache


def store(tier: Tier, tokens: Sequence[int], cache: DynamicCache) -> bool:
    """Put the whole blocks of a cache; those that are there stay as they are."""
    ends = range(BLOCK, cache.get_seq_length() + 1, BLOCK)
    kv = torch.stack([torch.cat([layer.keys, layer.values]) for layer in cache.layers])
    blocks = [kv[:, :, :, end - BLOCK : end].contiguous().numpy() for end in ends]
    return tier.result(tier.put("chat", [key(tokens[:end]) for end in ends], blocks)).good


@torch.inference_mode()
def answer(model: LlamaForCausalLM, tokens: Sequence[int], cache: DynamicCache) -> list[int]:
    """The likeliest next tokens; computes what the cache lacks, and leaves it there."""
    feed, said = list(tokens[cache.get_seq_length() :]), []
    for _ in range(ANSWERED):
        logits = model(input_ids=torch.tensor([feed]), past_key_values=cache).logits
        feed = [int(logits[0, -1].argmax())]
        said += feed
    return said


def main(path: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(SHAPE).eval()
    name = Naming("transformers", weights="seed 0", dtype="float32", block=BLOCK)
    options = TierOptions(path=path, capacity="128MiB", dram="64MiB")
    tokens: list[int] = []
    with Tier(options, str(name), block_bytes=int(np.prod(BLOCK_SHAPE)) * 4) as tier:
        for turn in range(TURNS):
            tokens += torch.randint(SHAPE.vocab_size, (ASKED,)).tolist()
            cache = load(tier, tokens)
            found = cache.get_seq_length()
            said = answer(model, tokens, cache)
            if said != answer(model, tokens, DynamicCache()):
                sys.exit(f"turn {turn}: the answer is another than without the device")
            print(f"turn {turn}: {found} of {len(tokens)} tokens from the device, same answer")
            tokens += said
            store(tier, tokens, cache)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["chat.kv"])
