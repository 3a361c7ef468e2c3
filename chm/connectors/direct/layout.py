# SPDX-License-Identifier: Apache-2.0
"""Which object of the store holds what: some layers of one chunk of tokens.

A chunk is a number of engine blocks; its layers, in the order in which the model runs, are cut into
groups. Each (chunk, group) is one object:

    for each layer of the group: for each plane of the layer (K and V apart, or one): for each block

So a request can be read layer by layer with plain keys: all chunks of group 0, then of group 1. An
object of a whole chunk with its layers inside would need reads of parts of objects to give that
order, and a single object has no use for it: with many chunks the last one's first layer comes
last. The price is entries of the index: groups are as large as makes an object of 1 MiB, for which
the index is sized anyway.

In the store a chunk is a chain of its groups, and hangs on the last group of the chunk before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from chm.connectors.naming import key_of

OBJECT_BYTES = 1 << 20
CHUNK_TOKENS = 256


@dataclass(frozen=True)
class Layout:
    """``layer_bytes`` are those of one block of each layer, in the order of ``groups``."""

    block_tokens: int
    blocks_per_chunk: int
    groups: tuple[tuple[str, ...], ...]
    layer_bytes: Mapping[str, int]

    @classmethod
    def of(
        cls,
        layer_bytes: Mapping[str, int],
        block_tokens: int,
        chunk_tokens: int = 0,
        layers_per_object: int = 0,
    ) -> Layout:
        """``layer_bytes``: of one block, by name, in the order in which the model runs.

        ``chunk_tokens`` 0: 256, or one engine block if that is larger. ``layers_per_object`` 0: as
        many as make an object of 1 MiB.
        """
        chunk = chunk_tokens or max(CHUNK_TOKENS // block_tokens, 1) * block_tokens
        if chunk % block_tokens:
            raise ValueError(
                f"block_size: {chunk} is no multiple of the engine's {block_tokens} tokens a block"
            )
        blocks = chunk // block_tokens
        groups: list[list[str]] = []
        filled = 0
        for name, nbytes in layer_bytes.items():
            full = len(groups[-1]) >= layers_per_object if layers_per_object and groups else False
            if not groups or full or (not layers_per_object and filled >= OBJECT_BYTES):
                groups.append([])
                filled = 0
            groups[-1].append(name)
            filled += nbytes * blocks
        return cls(block_tokens, blocks, tuple(map(tuple, groups)), dict(layer_bytes))

    @property
    def chunk_tokens(self) -> int:
        return self.block_tokens * self.blocks_per_chunk

    @cached_property
    def group_of(self) -> dict[str, int]:
        """The group of each layer."""
        return {name: i for i, names in enumerate(self.groups) for name in names}

    @cached_property
    def object_bytes(self) -> list[int]:
        """Bytes of an object of each group."""
        blocks = self.blocks_per_chunk
        return [blocks * sum(self.layer_bytes[n] for n in names) for names in self.groups]

    def key(self, chunk: bytes, group: int) -> bytes:
        """``chunk`` is the engine's hash of the last block of the chunk: of all tokens so far."""
        return key_of(chunk + group.to_bytes(4, "big"))

    def keys(self, chunk: bytes) -> list[bytes]:
        """All objects of a chunk, in chain order."""
        return [self.key(chunk, group) for group in range(len(self.groups))]

    def asked(self, chunk: bytes) -> list[bytes]:
        """The objects whose presence means that the chunk is there: the first and the last.

        A chain loses its end first, so the last alone would do with eviction by prefix; with the
        others the oldest object goes first.
        """
        return [self.key(chunk, group) for group in sorted({0, len(self.groups) - 1})]

    def ends(self, chunk: bytes) -> bytes:
        """The object that the next chunk hangs on."""
        return self.key(chunk, len(self.groups) - 1)

    def read_order(self, chunks: Sequence[bytes], most: int) -> list[bytes]:
        """Keys in the order in which a load reads them, layers first; the first ``most``."""
        keys: list[bytes] = []
        for group in range(len(self.groups)):
            if len(keys) >= most:
                break
            keys += [self.key(chunk, group) for chunk in chunks]
        return keys[:most]
