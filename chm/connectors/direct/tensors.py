# SPDX-License-Identifier: Apache-2.0
"""KV in torch tensors: host memory as it lies, a device's through copies on its current stream.

An engine's tensor of a layer is (blocks, ...), or (2, blocks, ...) with K and V apart; its other
dimensions may lie in another order than they are named. Here it becomes planes of (blocks, ...)
whose blocks are contiguous, in the order in which they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from chm.connectors.direct.memory import Bytes, Fence, HostLayer, Layer


def planes_of(tensor: Any, blocks: int) -> list[Any]:
    """Planes of a layer's tensor. ValueError: it has another shape, or blocks with gaps."""
    return [_as_it_lies(plane) for plane in _named(tensor, blocks)]


def _named(tensor: Any, blocks: int) -> list[Any]:
    if tensor.shape[0] == blocks:
        return [tensor]
    if tensor.ndim > 1 and tensor.shape[1] == blocks:
        return list(tensor.unbind(0))
    if tensor.shape[0] % blocks == 0:  # attention cuts blocks into smaller ones
        return [tensor.unflatten(0, (blocks, -1))]
    raise ValueError(f"KV of shape {tuple(tensor.shape)}: no dimension has {blocks} blocks")


def _order(plane: Any) -> list[int]:
    """Dimensions of a block, outermost in memory first."""
    return sorted(range(1, plane.ndim), key=plane.stride, reverse=True)


def _as_it_lies(plane: Any) -> Any:
    plane = plane.permute(0, *_order(plane))
    if not plane[0].is_contiguous():
        raise ValueError(f"KV of shape {tuple(plane.shape)}: the bytes of a block have gaps")
    return plane


def describe(tensor: Any, blocks: int) -> str:
    """What must be equal for one engine to read what another wrote."""
    planes = _named(tensor, blocks)
    return "+".join(f"{p.dtype}{tuple(p.shape[1:])}{_order(p)}" for p in planes)


def layer_of(planes: Sequence[Any]) -> Layer:
    """The layer whose planes these are."""
    if planes[0].device.type == "cpu":
        return HostLayer([_rows(plane) for plane in planes])
    return DeviceLayer(planes)


def _rows(plane: Any) -> Bytes:
    """The bytes of each block of a plane in host memory; no copy."""
    each = plane[0].numel() * plane.element_size()
    whole = torch.empty(0, dtype=torch.uint8).set_(plane.untyped_storage()).numpy()
    return np.lib.stride_tricks.as_strided(
        whole[plane.storage_offset() * plane.element_size() :],
        (plane.shape[0], each),
        (plane.stride(0) * plane.element_size(), 1),
    )


class DeviceLayer:
    """Planes that only the device reaches; copies are ordered as the device's current stream."""

    def __init__(self, planes: Sequence[Any]) -> None:
        self.planes = list(planes)
        self._each = [plane[0].numel() * plane.element_size() for plane in planes]
        self.block_bytes = sum(self._each)

    def parts(self, blocks: Sequence[int | None]) -> None:
        return None

    def gather(self, blocks: Sequence[int], out: Bytes) -> None:
        at = 0
        for plane, each in zip(self.planes, self._each, strict=True):
            picked = plane.index_select(0, _indices(blocks, plane.device)).view(torch.uint8)
            piece = torch.from_numpy(out[at : at + each * len(blocks)])
            piece.copy_(picked.reshape(-1), non_blocking=True)
            at += piece.numel()

    def scatter(self, blocks: Sequence[int | None], source: Bytes) -> None:
        wanted = [i for i, block in enumerate(blocks) if block is not None]
        if not wanted:
            return
        at = 0
        for plane, each in zip(self.planes, self._each, strict=True):
            piece = torch.from_numpy(source[at : at + each * len(blocks)]).view(len(blocks), each)
            moved = piece.to(plane.device, non_blocking=True)[wanted]
            shaped = moved.view(plane.dtype).view(len(wanted), *plane.shape[1:])
            to = [block for block in blocks if block is not None]
            plane.index_copy_(0, _indices(to, plane.device), shaped)
            at += each * len(blocks)


def _indices(blocks: Sequence[int], device: Any) -> Any:
    return torch.tensor(blocks, dtype=torch.int64, device=device)


def staging_memory(nbytes: int, device: Any) -> Bytes | None:
    """Pinned memory for a device that copies from and to it by itself; None: plain will do."""
    if device.type != "cuda":
        return None
    memory: Bytes = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    return memory


def fence_of(device: Any) -> Any:
    """Makes fences for copies on the device's current stream; None where copies do not last."""
    return _event if device.type == "cuda" else None


def _event() -> Fence:
    event = torch.cuda.Event()
    event.record()
    return lambda: bool(event.query())
