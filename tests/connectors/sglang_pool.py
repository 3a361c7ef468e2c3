# SPDX-License-Identifier: Apache-2.0
"""Host pools of SGLang for tests: numpy memory in the layouts of ``MHATokenToKVPoolHost``.

They answer what the adapter asks a pool for, and nothing else: its shape, and at which addresses
the parts of a page lie. Indices are slots of tokens, ``page_size`` for each page.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

COMMAND = Path(__file__).resolve().parents[2] / "docs" / "sglang.md"

LAYOUTS = ("layer_first", "page_first", "page_first_direct")


class HostPool:
    """``buffer[0]`` holds keys, ``buffer[1]`` values; behind that the axes go by layout."""

    layer_num, head_num, head_dim = 3, 2, 64
    start_layer, end_layer = 0, 2
    storage_format_tag = None

    def __init__(self, layout: str, pages: int = 16, page_size: int = 64, dtype: str = "float16"):
        self.layout, self.page_size, self.dtype = layout, page_size, dtype
        self.size = pages * page_size
        self.row = self.head_num * self.head_dim * np.dtype(dtype).itemsize  # token, layer, half
        self.size_per_token = 2 * self.layer_num * self.row
        shapes = {
            "layer_first": (2, self.layer_num, self.size, self.row),
            "page_first": (2, self.size, self.layer_num, self.row),
            "page_first_direct": (2, pages, self.layer_num, page_size, self.row),
        }
        self.buffer = np.zeros(shapes[layout], np.uint8)

    def slots(self, pages: list[int]) -> Any:
        """The token slots of these pages, as SGLang names them."""
        return np.concatenate(
            [np.arange(p * self.page_size, (p + 1) * self.page_size) for p in pages]
        )

    def page(self, page: int) -> Any:
        """The bytes of a page: a view of the buffer with (half, layer, token) in some order."""
        if self.layout == "page_first_direct":
            return self.buffer[:, page]
        tokens = slice(page * self.page_size, (page + 1) * self.page_size)
        return self.buffer[:, :, tokens] if self.layout == "layer_first" else self.buffer[:, tokens]

    def fill(self, page: int, seed: int) -> None:
        view = self.page(page)
        view[...] = np.random.default_rng(seed).integers(0, 256, view.shape, np.uint8)

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        addresses = []
        for first in indices.tolist()[:: self.page_size]:
            view = self.page(first // self.page_size)
            if self.layout == "layer_first":
                parts = [view[half, layer] for layer in range(self.layer_num) for half in (0, 1)]
            else:
                parts = [view[half] for half in (0, 1)]
            assert all(part.flags.c_contiguous for part in parts)
            addresses += [part.ctypes.data for part in parts]
        each = self.page_size * self.size_per_token // len(parts)
        return addresses, [each] * len(addresses)


class RowPool:
    """Pages of one token that lie in rows somebody else owns: two parts each, of any length."""

    page_size = 1

    def __init__(self, layout: str, dtype: str, row_bytes: int) -> None:
        self.layout, self.dtype, self.size_per_token = layout, dtype, row_bytes
        self.rows: Any = None

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        half = self.size_per_token // 2
        at = [int(self.rows[i].ctypes.data) for i in indices.tolist()]
        sizes = [half, self.size_per_token - half]
        return [x for row in at for x in (row, row + half)], sizes * len(at)


@dataclass
class StorageConfig:
    """The fields of ``HiCacheStorageConfig``, in its order, of one rank alone."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = False
    model_name: str | None = "model"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0
    extra_config: dict[str, Any] | None = None


@dataclass
class ExtraInfo:
    """As ``HiCacheStorageExtraInfo``."""

    prefix_keys: list[str] | None = None
    extra_info: dict[str, Any] | None = None


def extra_config(options: Any) -> dict[str, Any]:
    """What a user writes into ``--hicache-storage-backend-extra-config``."""
    return {
        "backend_name": "chm",
        "module_path": "chm.connectors.sglang",
        "class_name": "ChmHiCache",
        "interface_v1": 1,
        "prefetch_timeout_base": 10,
        **options.to_dict(),
    }


def command_of_the_manual() -> list[str]:
    """The words that docs/sglang.md tells to paste, behind the name of the program."""
    text = COMMAND.read_text().split("```sh\n")[1].split("```")[0]
    return shlex.split(text.replace("\\\n", " "))[3:]


def created_by_sglang(pool: Any, extra: dict[str, Any], metrics: bool = False) -> Any:
    """A backend of one rank, made by SGLang's own loader; the pool is not registered yet."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=False,
        enable_storage_metrics=metrics,
        is_page_first_layout=pool.layout == "page_first",
        model_name="model",
        extra_config=extra,
    )
    return StorageBackendFactory.create_backend("dynamic", config, pool)
