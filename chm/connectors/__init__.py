# SPDX-License-Identifier: Apache-2.0
"""Adapters that put a chm store under an inference engine; each is one module, named as its host.

    chm.connectors.vllm        secondary tier of vLLM's native offloading
    chm.connectors.vllm_direct KV connector of vLLM, device to engine without its CPU tier
    chm.connectors.lmcache     L2 adapter of the LMCache server
    chm.connectors.sglang      storage backend of SGLang's HiCache

All are thin layers over ``Tier`` (chm/connectors/tier.py), and none is imported from here: each
needs its host.
"""

from chm.connectors.config import TierOptions
from chm.connectors.naming import Naming, key_of
from chm.connectors.tier import Done, Tier, TierStats

__all__ = ["Done", "Naming", "Tier", "TierOptions", "TierStats", "key_of"]
