# SPDX-License-Identifier: Apache-2.0
"""Keys and names that connectors derive: equal everywhere, different for what is different."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import chm
from chm.connectors.naming import NAME_MAX, Naming, key_of

MIB = 1 << 20

DERIVE = """
from chm.connectors.naming import Naming, key_of
print(key_of(b"tokens 0 to 15").hex())
print(Naming("vllm", model="llama", lora=None, dtype="bfloat16", tp=2, ranks={"b": 1}))
"""
# As derived when this was written: what is on a drive has to be found by later versions, too.
GOLDEN = [
    "6be158e09a3a9a03236763beae0159b5",
    "vllm/model=llama/dtype=bfloat16/tp=2/ranks={'b': 1}#fb7d1be8a85bbb6ccde012232168ec25",
]


def derived(hash_seed: str, *flags: str) -> list[str]:
    top = str(Path(chm.__file__).parent.parent)
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": top}
    command = [sys.executable, *flags, "-c", DERIVE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd="/")
    return done.stdout.splitlines()


def test_f52_processes_derive_equal_keys() -> None:
    """Whatever their hash seed is: the interpreter's own hash has no part in it."""
    for seed, flags in (("0", ()), ("1", ()), ("random", ("-O",))):
        assert derived(seed, *flags) == GOLDEN


def test_f52_what_differs_between_processes_is_no_part_of_a_name() -> None:
    """Sets are put in order, and what shows an address is refused."""
    letters = "abcdefgh"
    names = {str(Naming("v", x=frozenset(letters[i:] + letters[:i]))) for i in range(8)}
    assert len(names) == 1
    assert str(Naming("v", x={"a"})) != str(Naming("v", x={"b"}))
    for value in (object(), {"a": [object()]}, {1, object()}):
        with pytest.raises(TypeError, match="differs between processes"):
            str(Naming("v", x=value))


def engine_keys() -> list[bytes]:
    """1 to 4096 bytes, of every kind that a file system could mind; and none at all."""
    odd = [
        b"",
        b"/",
        b"//",
        b".",
        b"..",
        b"../../escape",
        b"/etc/passwd",
        b"\0",
        b"a\0",
        b"a",
        b"A",
    ]
    odd += [
        b"\xff\xfe",
        "\u00e9".encode(),
        "e\u0301".encode(),
        b"\xe9",
        b"con",
        b"a ",
        b"a.",
        b"*?",
    ]
    odd += [bytes([n]) * length for n in (0, 47, 255) for length in (3, 255, 256, 4096)]
    return odd


def test_f56_any_engine_key_can_be_stored(tmp_path: Path) -> None:
    """All are distinct and come back, and nothing but the device's file is there."""
    path = tmp_path / "kv.chm"
    chm.format(path, 64 * MIB)
    keys = [key_of(name) for name in engine_keys()]
    assert len(set(keys)) == len(keys)
    data = np.arange(len(keys) * 64, dtype=np.uint16).view(np.uint8).reshape(len(keys), -1)
    for first in (True, False):
        with chm.open(path, dram_bytes=32 * MIB) as dev:
            if first:
                chm.store.format(dev)
            with chm.Store(dev) as store:
                ns = store.namespace("m")
                if first:
                    store.put(ns, keys, data, chain=False, wait=True).result()
                out = np.zeros_like(data)
                store.get(ns, keys, out).result()
                assert np.array_equal(out, data)
    assert [p.name for p in tmp_path.iterdir()] == ["kv.chm"]


def test_f56_any_name_of_a_namespace(tmp_path: Path) -> None:
    """Fields of any kind and length give names that a store takes, all different."""
    path = tmp_path / "kv.chm"
    chm.format(path, 64 * MIB)
    texts = [k.decode("latin-1") for k in engine_keys()]
    names = [str(Naming("vllm", model=text)) for text in texts]
    raw: list[bytes] = [k for k in engine_keys() if 0 < len(k) <= NAME_MAX]
    with chm.open(path, dram_bytes=32 * MIB) as dev:
        chm.store.format(dev)
        with chm.Store(dev) as store:
            numbers = [store.namespace(name) for name in [*names, *raw]]
            assert len(set(numbers)) == len(names) + len(raw)
    assert [p.name for p in tmp_path.iterdir()] == ["kv.chm"]
