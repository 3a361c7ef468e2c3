# SPDX-License-Identifier: Apache-2.0
"""What a user writes into the configuration of the direct connector, beside ``TierOptions``."""

from __future__ import annotations

import os
from dataclasses import dataclass

from chm.options import OptionGroup, Size, _choice, _count, _size
from chm.units import parse_size

LOADS = ("auto", "layerwise", "async")
_STAGING_MOST = 5 * 10**9
_STAGING_SHARE = 10


@dataclass(frozen=True)
class DirectOptions(OptionGroup):
    """``block_size``: tokens of a chunk, a multiple of the engine's block; 0: 256, or one block.
    ``layers_per_object`` 0: as many as make an object of 1 MiB. ``load``: see vllm_direct.
    ``staging_bytes``: host memory for what is on its way; 0: 5 GB or a tenth of the memory,
    whichever is less."""

    block_size: int = _count()
    layers_per_object: int = _count()
    staging_bytes: Size = _size()
    load: str = _choice(LOADS)

    def staging(self) -> int:
        """Bytes of staging memory."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return parse_size(self.staging_bytes) or min(_STAGING_MOST, memory // _STAGING_SHARE)
