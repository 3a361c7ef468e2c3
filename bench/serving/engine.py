# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine on the CPU with tiers under it, as engine tests and the serving benchmark use it.

Prompts are token ids. ``ask`` runs one and tells what came out and how much of it was cached. vLLM
offers the last stores of a request to a tier one step later, so ``settle`` runs a prompt of less
than one chunk; ``forget`` empties the engine's pool and its CPU tier, not the tiers below.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = 32  # tokens of an engine block; CPU attention wants a multiple of 32
CHUNK = 128  # tokens of an offloaded chunk
_SHORT = 24


@dataclass(frozen=True)
class Answer:
    """Tokens, their log-probabilities, and how many tokens of the prompt came from a cache."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached: int


def environment(own_process: bool = False) -> dict[str, str]:
    """What must be set before vLLM is imported."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(own_process)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }


def connector(
    tiers: Sequence[dict[str, Any]], chunk: int = CHUNK, cpu_bytes: int = 640 << 20
) -> dict[str, Any]:
    """The ``kv_transfer_config`` of an engine with a CPU tier and these below it."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "CPUTieringSpec",
            "spec_module_path": "bench.serving.cpu_spec",
            "block_size": chunk,
            "cpu_bytes_to_use": cpu_bytes,
            "secondary_tiers": list(tiers),
        },
    }


def make_llm(
    model: Path, transfer: dict[str, Any] | None = None, own_process: bool = False, **changes: Any
) -> Any:
    """A ``vllm.LLM``; ``transfer`` is its ``kv_transfer_config``, None for an engine without.

    ``own_process`` holds for the first engine of a process: vLLM reads it once.
    """
    os.environ.update(environment(own_process))
    from vllm import LLM

    settings: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "float32",
        "block_size": BLOCK,
        "max_model_len": 4352,
        "max_num_seqs": 2,
        "num_gpu_blocks_override": 192,
        "enable_prefix_caching": True,
        "kv_transfer_config": transfer,
    }
    return LLM(model=str(model), **{**settings, **changes})


def ask(llm: Any, tokens: Sequence[int], n: int = 16) -> Answer:
    """Run one prompt, greedily, for ``n`` tokens."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=n, detokenize=False, ignore_eos=True, logprobs=0
    )
    [out] = llm.generate([{"prompt_token_ids": list(tokens)}], sampling, use_tqdm=False)
    [one] = out.outputs
    steps = zip(one.token_ids, one.logprobs, strict=True)
    probabilities = [step[token].logprob for token, step in steps]
    return Answer(tuple(one.token_ids), tuple(probabilities), out.num_cached_tokens or 0)


def settle(llm: Any) -> None:
    """Let vLLM offer what it still has to store, and take what the tiers have finished."""
    for _ in range(2):
        ask(llm, range(3, 3 + _SHORT), 1)


def forget(llm: Any) -> None:
    """Empty the engine's pool and its CPU tier."""
    settle(llm)
    if not llm.reset_prefix_cache(reset_connector=True):
        raise RuntimeError("vLLM did not reset its caches: a request still runs")
