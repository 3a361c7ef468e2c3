# SPDX-License-Identifier: Apache-2.0
"""One engine with one cache under it, in a process of its own; the runner tells it what to do.

    python -m bench.serving.worker CONFIG REPLY_FD

Commands are lines of JSON on standard input, answers are lines of JSON on the descriptor. A thread
reads no commands: between them nothing of the engine runs.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from . import cores, engine

_SETTLE_S = 60.0
_WARM_UP = 2


def start(config: dict[str, Any]) -> Any:
    """The engine, warm, its threads in place."""
    if config["host"] == "lmcache":
        _let_vllm_scan_modules()
    llm = engine.make_llm(
        Path(config["model"]),
        config["transfer"],
        dtype=config["dtype"],
        num_gpu_blocks_override=config["blocks"],
        enable_prefix_caching=config["caching"],
        max_num_seqs=1,
        max_model_len=config["longest"],
        max_num_batched_tokens=config["longest"],
    )
    for _ in range(_WARM_UP):
        engine.ask(llm, range(3, 3 + 2 * engine.BLOCK), 1)
    settle(llm)
    return llm


def _let_vllm_scan_modules() -> None:
    """vLLM asks every object of every loaded module for its kernels, and trips over the functions
    of llvmlite, which LMCache loads: they have no ``get``."""
    ffi: Any = importlib.import_module("llvmlite.binding.ffi")
    ffi._lib_fn_wrapper.get = lambda self, key, default=None: default


def ask(llm: Any, config: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
    """Run one prompt for one token."""
    cores.separate(*config["cores"])
    before, begin = cores.used_here(), time.perf_counter()
    answer = engine.ask(llm, tokens, 1)
    ttft = time.perf_counter() - begin
    used = cores.used_here().since(before)
    return {
        "ttft_s": ttft,
        "cached": answer.cached,
        "token": answer.tokens[0],
        **dataclasses.asdict(used),
    }


def settle(llm: Any) -> dict[str, Any]:
    """Let the stores of what was asked begin, and wait until the host has them behind it."""
    end = time.monotonic() + _SETTLE_S
    engine.settle(llm)
    while pending(llm):
        if time.monotonic() > end:
            raise TimeoutError(f"stores are still on their way after {_SETTLE_S:.0f} s")
        time.sleep(0.002)
        engine.settle(llm)
    return {}


def pending(llm: Any) -> bool:
    """Whether vLLM's connector has transfers running."""
    connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
    return connector is not None and bool(connector.has_pending_push_work())


def answer(llm: Any, config: dict[str, Any], command: dict[str, Any]) -> dict[str, Any]:
    if command["do"] == "ask":
        return ask(llm, config, command["tokens"])
    if command["do"] == "settle":
        return settle(llm)
    raise ValueError(f"unknown command {command['do']!r}")


def main(argv: list[str]) -> None:
    config = json.loads(Path(argv[1]).read_text())
    reply = os.fdopen(int(argv[2]), "w", buffering=1)
    llm = start(config)
    cores.separate(*config["cores"])
    print(json.dumps({"ready": os.getpid()}), file=reply)
    for line in sys.stdin:
        print(json.dumps(answer(llm, config, json.loads(line))), file=reply)
    llm.llm_engine.engine_core.shutdown()
    os._exit(0)  # what is left would take seconds to take apart, and holds nothing of worth


if __name__ == "__main__":
    main(sys.argv)
