# SPDX-License-Identifier: Apache-2.0
"""One vLLM replica on the CPU, with LMCache under it or nothing: a program for tests.

    python replica_lmcache.py MODEL PORT REPLY_FD        PORT 0: without LMCache

Commands are lines of JSON on standard input, each answered by one on the descriptor, the first
answer says that it is ready:

    {"ask": [tokens...]}    -> {"tokens": [...], "logprobs": [...], "cached": n}
    {"settle": true}        -> {}     what was computed has been offered to LMCache
    {"forget": true}        -> {}     the engine's own cache is empty
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any


def let_vllm_scan_modules() -> None:
    """vLLM asks every loaded module for kernels by ``get``; llvmlite has one, loaded by LMCache,
    whose objects take every name for a foreign function."""
    from llvmlite.binding import ffi

    ffi._lib_fn_wrapper.get = lambda self, key, default=None: default


def connector(port: int) -> dict[str, Any]:
    """What a user writes as ``kv_transfer_config``."""
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "lmcache.mp.host": "tcp://127.0.0.1",
            "lmcache.mp.port": port,
        },
    }


def main(model: str, port: int, reply_fd: int) -> None:
    from bench.serving import engine

    if port:
        let_vllm_scan_modules()
    transfer = connector(port) if port else None
    llm = engine.make_llm(Path(model), transfer, max_model_len=1280, num_gpu_blocks_override=96)
    reply = os.fdopen(reply_fd, "w", buffering=1)
    print("{}", file=reply)
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        if "ask" in command:
            answer = asdict(engine.ask(llm, command["ask"]))
        elif "settle" in command:
            engine.settle(llm)
        else:
            llm.reset_prefix_cache()
        print(json.dumps(answer), file=reply)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
