# SPDX-License-Identifier: Apache-2.0
"""A small random model with much KV: what engine tests and the serving benchmark run.

Llama, 8 layers of 8 heads of 128: 64 KiB of KV a token in float32, 40 MB of weights. All matrices
are normal with a deviation of 0.1, at which the output depends on every block of the KV: at 0.02,
the usual choice, greedy output hardly changes when a block is zeroed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 512
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DEVIATION = 0.1


def kv_bytes_per_token(dtype_bytes: int = 4) -> int:
    """Bytes of K and V of all layers for one token."""
    heads = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    return int(2 * CONFIG["num_hidden_layers"] * heads * dtype_bytes)


def write_model(folder: Path, dtype: str = "float32", seed: int = 1) -> Path:
    """Write config.json and model.safetensors; the same seed gives the same bytes."""
    import torch
    from safetensors.torch import save_file

    torch_dtype = getattr(torch, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": dtype}))
    random = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Any:
        return (torch.randn(*shape, generator=random) * DEVIATION).to(torch_dtype)

    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    heads = CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    weights = {"model.embed_tokens.weight": matrix(VOCABULARY, hidden)}
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{i}"
        for name in ("q", "k", "v"):
            weights[f"{at}.self_attn.{name}_proj.weight"] = matrix(heads, hidden)
        weights[f"{at}.self_attn.o_proj.weight"] = matrix(hidden, heads)
        for name, shape in {"gate": (inner, hidden), "up": (inner, hidden)}.items():
            weights[f"{at}.mlp.{name}_proj.weight"] = matrix(*shape)
        weights[f"{at}.mlp.down_proj.weight"] = matrix(hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}.{name}.weight"] = torch.ones(hidden, dtype=torch_dtype)
    weights["model.norm.weight"] = torch.ones(hidden, dtype=torch_dtype)
    weights["lm_head.weight"] = matrix(VOCABULARY, hidden)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder
