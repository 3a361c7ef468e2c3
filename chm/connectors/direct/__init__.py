# SPDX-License-Identifier: Apache-2.0
"""The direct connector without its host: layout of objects, plans of a step, moving of bytes.

    layout   which object holds which layers of which tokens
    plan     the scheduler's half: what is there, what to load, what to save
    mover    the worker's half: loads in the order of layers
    saver    and saves, through staging memory
    memory   where the engine keeps KV, if the host can reach it, and staging memory
    tensors  the same for torch tensors on any device

Only ``tensors`` needs torch; ``chm.connectors.vllm_direct`` puts all of it under vLLM.
"""
