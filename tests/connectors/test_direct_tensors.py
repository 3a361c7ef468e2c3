# SPDX-License-Identifier: Apache-2.0
"""KV in torch tensors as the direct connector sees it: the shapes that engines give theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")
tensors = pytest.importorskip("chm.connectors.direct.tensors")

BLOCKS, HEADS, TOKENS, WIDTH = 6, 2, 4, 8


def filled(*shape: int) -> Any:
    return torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape).to(torch.bfloat16)


def blocks_first() -> Any:
    return filled(BLOCKS, HEADS, TOKENS, WIDTH)


def tokens_before_heads() -> Any:
    """Named (blocks, heads, tokens, width), but a token's heads lie together."""
    return filled(BLOCKS, TOKENS, HEADS, WIDTH).permute(0, 2, 1, 3)


def k_and_v_apart() -> Any:
    return filled(2, BLOCKS, HEADS, TOKENS, WIDTH)


def among_other_layers() -> Any:
    """One of three layers whose blocks lie side by side."""
    return filled(BLOCKS, 3, TOKENS, WIDTH)[:, 1]


def cut_by_the_kernel() -> Any:
    return filled(BLOCKS * 2, TOKENS // 2, WIDTH)


SHAPES = [blocks_first, tokens_before_heads, k_and_v_apart, among_other_layers, cut_by_the_kernel]


@pytest.mark.parametrize("make", SHAPES)
def test_both_kinds_of_layers_move_the_same_bytes(make: Callable[[], Any]) -> None:
    tensor = make()
    planes = tensors.planes_of(tensor, BLOCKS)
    host, device = tensors.layer_of(planes), tensors.DeviceLayer(planes)
    assert host.block_bytes == device.block_bytes
    assert host.block_bytes * BLOCKS == tensor.numel() * 2
    assert device.parts([0]) is None
    chosen = [4, 0, 3]
    one, other = (np.zeros(3 * host.block_bytes, np.uint8) for _ in range(2))
    host.gather(chosen, one)
    device.gather(chosen, other)
    assert np.array_equal(one, other)
    assert np.array_equal(np.concatenate(host.parts(chosen)), one)
    before = tensor.clone()
    for layer in (host, device):
        tensor.zero_()
        layer.scatter([4, None, 3], one)
        again = np.zeros(2 * host.block_bytes, np.uint8)
        host.gather([4, 3], again)
        tensor.copy_(before)
        expected = np.zeros_like(again)
        host.gather([4, 3], expected)
        assert np.array_equal(again, expected)


def test_a_block_that_is_none_stays() -> None:
    tensor = blocks_first()
    layer = tensors.DeviceLayer(tensors.planes_of(tensor, BLOCKS))
    before = tensor.clone()
    layer.scatter([1, None], np.zeros(2 * layer.block_bytes, np.uint8))
    assert not tensor[1].any()
    assert torch.equal(tensor[2:], before[2:])
    layer.scatter([None, None], np.zeros(2 * layer.block_bytes, np.uint8))
    assert torch.equal(tensor[2:], before[2:])


def test_shapes_that_it_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="no dimension has 5 blocks"):
        tensors.planes_of(blocks_first(), 5)
    with pytest.raises(ValueError, match="gaps"):
        tensors.planes_of(filled(BLOCKS, TOKENS, WIDTH)[:, :, ::2], BLOCKS)


def test_layouts_have_names_that_differ() -> None:
    names = {tensors.describe(make(), BLOCKS) for make in SHAPES}
    assert len(names) == len(SHAPES)
    square = torch.zeros(BLOCKS, 4, 4)
    turned = square.permute(0, 2, 1)
    assert tensors.describe(square, BLOCKS) != tensors.describe(turned, BLOCKS)


def test_memory_of_the_host_is_used_as_it_lies() -> None:
    tensor = tokens_before_heads()
    [plane] = tensors.layer_of(tensors.planes_of(tensor, BLOCKS)).planes
    plane[2] = 0
    assert not tensor[2].any()
    assert tensor[1].any()
    assert tensors.staging_memory(100, tensor.device) is None
    assert tensors.fence_of(tensor.device) is None
