# SPDX-License-Identifier: Apache-2.0
"""ChmTier with a hand in the rows that it has loaded, before vLLM hears of them: negative controls.

Loaded by vLLM, in the test's own process; the test finds it there and sets ``damage``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from chm.connectors.vllm import ChmTier


class DamagedTier(ChmTier):
    """``damage(rows, chunks)`` is called with vLLM's rows and the chunk ids of an ended load."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.damage: Callable[[Any, list[int]], None] | None = None
        self._loads: dict[int, list[int]] = {}

    def submit_load(self, job_metadata: Any) -> None:
        self._loads[job_metadata.job_id] = job_metadata.chunk_ids.tolist()
        super().submit_load(job_metadata)

    def get_finished_jobs(self) -> Iterable[Any]:
        results = list(super().get_finished_jobs())
        for result in results:
            chunks = self._loads.pop(result.job_id, None)
            if chunks is not None and self.damage is not None:
                self.damage(self._rows, chunks)
        return results
