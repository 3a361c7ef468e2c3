# SPDX-License-Identifier: Apache-2.0
"""Names: what must differ so that two blocks of KV are never mistaken for each other.

An engine's key says which tokens a block holds. Everything else that makes its bytes what they are
goes into the namespace: model, weights, dtype and scales, layout, parallel sizes and rank, tokens
to a block, adapter, the user's salt.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEY_BYTES = 16
NAME_MAX = 255  # CHM_STORE_NAME_MAX
_SHOWN = 160
_WEIGHTS = ("*.safetensors.index.json", "*.bin.index.json", "config.json")


def key_of(engine_key: bytes) -> bytes:
    """The 128-bit key of an engine's block key of any length."""
    return hashlib.blake2b(engine_key, digest_size=KEY_BYTES).digest()


class Naming:
    """Collects what a namespace is made of; ``str()`` is its name, at most 255 bytes.

        name = str(Naming("vllm", model="llama", dtype="bfloat16", tp=2, rank=0, salt=""))

    The name starts readable and ends with a hash of all fields, so that no two sets of fields
    share one, whatever characters they have. Fields whose value is None are part of it, too.
    """

    def __init__(self, host: str, **fields: Any) -> None:
        self.host = host
        self.fields: Mapping[str, Any] = fields

    def __str__(self) -> str:
        whole = json.dumps([self.host, self.fields], sort_keys=True, default=str)
        digest = hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()
        shown = [self.host, *(f"{k}={v}" for k, v in self.fields.items() if v not in (None, ""))]
        text = "/".join(shown).encode("ascii", "replace").decode()
        return f"{text[:_SHOWN]}#{digest}"


def weights_identity(model: str, revision: str | None = None) -> str:
    """Which weights these are: the revision if one is given, else a hash of what a local folder
    says about them (configuration, weight index, names, sizes and times of the weight files).

    A hub name without a revision is known by its name alone: give a revision, or ``identity``.
    """
    if revision:
        return f"revision:{revision}"
    folder = Path(model)
    if not os.path.isdir(model):
        return f"name:{model}"
    digest = hashlib.blake2b(digest_size=16)
    for pattern in _WEIGHTS:
        for path in sorted(folder.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.bin")):
        status = os.stat(path)
        digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return f"files:{digest.hexdigest()}"
