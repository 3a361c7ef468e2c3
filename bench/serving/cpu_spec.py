# SPDX-License-Identifier: Apache-2.0
"""vLLM's tiered offloading with the engine's own KV cache in host memory, too.

vLLM offloads from GPUs only: ``get_worker`` of its specs refuses a CPU. This one's worker copies
between two parts of host memory; everything else, the scheduler's side and the tiers, is vLLM's.
For tests and benchmarks on a machine without a GPU; on one with a GPU name vLLM's own
``TieringOffloadingSpec``.

A transfer is done when ``submit_*`` returns: the copies are whole runs of blocks, by torch, which
lets go of the interpreter and uses all cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CPUTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """``spec_name`` of the connector's configuration; ``spec_module_path`` is this module."""

    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            if self.config.canonical_layout:
                raise ValueError("canonical_layout: copies of whole pages cannot do that; leave it")
            self._worker = self.create_worker(kv_caches)
        return self._worker

    def create_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=0 if self.replicated_layout else self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        try:
            return MemcpyWorker(kv_caches, self.blocks_per_chunk, region)
        except BaseException:
            region.cleanup()
            raise


class MemcpyWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies between the engine's blocks and the rows of the region; a row holds a chunk."""

    def __init__(self, kv_caches: CanonicalKVCaches, per_chunk: int, region: Any) -> None:
        self._region = region
        self._per_chunk = per_chunk
        self._engine: list[Any] = []  # per tensor: (block, byte)
        self._pool: list[Any] = []  # per tensor: (chunk, block of the chunk, byte)
        for each in kv_caches.tensors:
            page = each.page_size_bytes
            self._engine.append(each.tensor.view(torch.int8).view(-1, page))
            rows = region.create_next_worker_view(page * per_chunk)
            self._pool.append(rows.unflatten(1, (per_chunk, page)))
        # Layers may share a tensor; its bytes are copied once.
        self._sizes: list[dict[int, int]] = []
        for refs in kv_caches.group_data_refs:
            sizes: dict[int, int] = {}
            for ref in refs:
                sizes[ref.tensor_idx] = max(sizes.get(ref.tensor_idx, 0), ref.page_size_bytes)
            self._sizes.append(sizes)
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec.block_ids, store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec.block_ids, store=False)

    def _copy(self, job_id: int, blocks: GPULoadStoreSpec, chunks: Any, store: bool) -> bool:
        begin = time.monotonic()
        nbytes = 0
        for group, runs in enumerate(self._runs(blocks, chunks.tolist())):
            for tensor, size in self._sizes[group].items():
                engine, pool = self._engine[tensor], self._pool[tensor]
                for block, chunk, at, n in runs:
                    here = engine[block : block + n, :size]
                    there = pool[chunk, at : at + n, :size]
                    there.copy_(here) if store else here.copy_(there)
                    nbytes += n * size
        span = time.monotonic() - begin
        self._finished.append(TransferResult(job_id, True, nbytes, span))
        return True

    def _runs(self, spec: GPULoadStoreSpec, chunks: list[int]) -> Iterator[list[Any]]:
        """Per group, what to copy: (first block, chunk, first place in the chunk, blocks)."""
        blocks = spec.block_ids.tolist()
        for count, index in zip(spec.group_sizes, spec.block_indices, strict=True):
            mine, blocks = blocks[:count], blocks[count:]
            skip = index % self._per_chunk
            rows = -(-(count + skip) // self._per_chunk) if count else 0
            yield list(_runs(mine, chunks[:rows], skip, self._per_chunk))
            chunks = chunks[rows:]

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing to wait for."""

    def shutdown(self) -> None:
        self._engine.clear()
        self._pool.clear()
        if self._region is not None:
            self._region.cleanup()
            self._region = None


def _runs(
    blocks: Sequence[int], chunks: Sequence[int], skip: int, per_chunk: int
) -> Iterator[tuple[int, int, int, int]]:
    """Blocks that follow each other on both sides, put together."""
    first = 0
    while first < len(blocks):
        place = first + skip
        at = place % per_chunk
        n = 1
        while (
            at + n < per_chunk
            and first + n < len(blocks)
            and blocks[first + n] == blocks[first] + n
        ):
            n += 1
        yield blocks[first], chunks[place // per_chunk], at, n
        first += n
