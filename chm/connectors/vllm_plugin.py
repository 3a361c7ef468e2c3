# SPDX-License-Identifier: Apache-2.0
"""Entry point of vLLM's plug-ins (group ``vllm.general_plugins``): makes tiers of type "chm" known.

vLLM calls it in each of its processes, and may do so more than once. It must not fail where this
vLLM has no tiers, and not import what only a tier needs.
"""

from __future__ import annotations

import logging

NAME = "chm"
MODULE = "chm.connectors.vllm"
CLASS = "ChmTier"

log = logging.getLogger("chm")


def register() -> None:
    """Let ``{"type": "chm", ...}`` in ``secondary_tiers`` mean ChmTier. Idempotent."""
    try:
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
    except ImportError:
        log.debug("this vLLM has no secondary tiers: 0.28 and later do")
        return
    try:
        SecondaryTierFactory.register_tier(NAME, MODULE, CLASS)
    except ValueError:
        log.debug("vLLM knows a tier %s already", NAME)
