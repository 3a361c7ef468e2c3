# SPDX-License-Identifier: Apache-2.0
"""What is compared: who keeps the KV that the engine's own pool has lost, and how it is set up.

Every arm is a vLLM engine on the same model, prompts and cores. ``fs`` is the host's own file back
end with O_DIRECT, ``chm`` is ours, ``dram`` a CPU tier (LMCache: L1) that holds the whole
footprint: what the same host reaches when nothing is ever read from a drive. That is the fair
floor of its two drive-backed arms, since they end with the same copy into the engine's pool.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import engine
from .workload import Workload

SPEC = "bench.serving.cpu_spec:CPUTieringSpec"
PACES = (10, 20, 40)
_MIB = 1 << 20
_GIB = 1 << 30
_SPARE = 1.15  # room of a store or a tier that shall hold the footprint


@dataclass(frozen=True)
class Arm:
    """``host`` is who moves the KV (none, vllm, lmcache), ``store`` where it lies."""

    name: str
    host: str
    store: str
    title: str

    @property
    def drive(self) -> bool:
        return self.store in ("fs", "chm")

    @property
    def oracle(self) -> str:
        """The arm that is the floor of this one."""
        return "lmcache-dram" if self.host == "lmcache" else "vllm-dram"

    @property
    def module(self) -> str | None:
        """Our adapter that it needs."""
        return f"chm.connectors.{self.host}" if self.store == "chm" else None


ARMS = tuple(
    Arm(*fields)
    for fields in (
        ("recompute", "none", "none", "no cache"),
        ("prefix", "none", "pool", "the engine's prefix cache alone"),
        ("vllm-fs", "vllm", "fs", "vLLM tiering, its own file tier"),
        ("vllm-chm", "vllm", "chm", "vLLM tiering, chm"),
        ("lmcache-fs", "lmcache", "fs", "LMCache server, its own fs_native L2"),
        ("lmcache-chm", "lmcache", "chm", "LMCache server, chm"),
        ("vllm-dram", "vllm", "dram", "vLLM tiering, all in the CPU tier"),
        ("lmcache-dram", "lmcache", "dram", "LMCache server, all in L1"),
    )
)
NAMES = tuple(arm.name for arm in ARMS)


def choose(names: Sequence[str]) -> tuple[Arm, ...]:
    """Arms by name, in the order of ARMS. Raises ValueError for what is not one, or cannot run."""
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise ValueError(f"no arm is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    chosen = tuple(arm for arm in ARMS if arm.name in names)
    for arm in chosen:
        if arm.module is not None and not available(arm):
            raise ValueError(f"{arm.name} needs {arm.module}, which this checkout does not have")
    return chosen


def available(arm: Arm) -> bool:
    return arm.module is None or importlib.util.find_spec(arm.module) is not None


@dataclass(frozen=True)
class Place:
    """Where an arm keeps its data; ``pace`` in bytes/s, 0 as fast as it goes; ``ram`` tells that
    the folder is memory."""

    folder: Path
    pace: int = 0
    ram: bool = False
    port: int = 0
    """Where its LMCache server listens; its HTTP port is the next one."""
    chm: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of ``chm.connectors.TierOptions`` for our arms."""


def worker_config(arm: Arm, w: Workload, place: Place, model: Path) -> dict[str, Any]:
    """What bench.serving.worker is told."""
    return {
        "arm": arm.name,
        "host": arm.host,
        "model": str(model),
        "dtype": w.dtype,
        "blocks": w.engine_blocks,
        "longest": w.tokens + 2 * w.chunk,
        "caching": arm.store != "none",
        "transfer": _transfer(arm, w, place),
    }


def _transfer(arm: Arm, w: Workload, place: Place) -> dict[str, Any] | None:
    if arm.host == "none":
        return None
    if arm.host == "lmcache":
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": place.port,
            },
        }
    cpu_bytes = w.share_bytes if arm.drive else int(_SPARE * w.footprint_bytes)
    return engine.connector(_tiers(arm, w, place), w.chunk, cpu_bytes)


def _tiers(arm: Arm, w: Workload, place: Place) -> list[dict[str, Any]]:
    if arm.store == "fs":
        return [{"type": "fs", "root_dir": str(place.folder)}]
    if arm.store == "chm":
        return [{"type": "ChmTier", "module_path": arm.module, **tier_options(w, place)}]
    return []


def tier_options(w: Workload, place: Place) -> dict[str, Any]:
    """Of ``chm.connectors.TierOptions``."""
    options: dict[str, Any] = {
        "path": str(place.folder / "kv.chm"),
        "capacity": int(_SPARE * w.footprint_bytes) + 64 * _MIB,
        "dram": w.share_bytes,
        "block_bytes": w.row_bytes,
        "buffered": place.ram,
    }
    options.update(place.chm)
    if place.pace:
        options["device"] = {**options.get("device", {}), "pace": {"rate": place.pace}}
    return options


def server_command(arm: Arm, w: Workload, place: Place) -> list[str]:
    """The LMCache server of an arm. L1 is its CPU tier: what was stored leaves it."""
    l1_bytes = w.share_bytes if arm.drive else int(_SPARE * w.footprint_bytes)
    command = [
        str(Path(sys.executable).with_name("lmcache")),
        "server",
        *("--supported-transfer-mode", "engine_driven"),
        *("--host", "127.0.0.1", "--port", str(place.port)),
        *("--http-port", str(place.port + 1), "--prometheus-port", str(place.port + 2)),
        *("--chunk-size", str(w.chunk)),
        *("--l1-size-gb", f"{l1_bytes / _GIB:.4f}", "--no-l1-use-lazy"),
        *("--shm-name", f"chm-serving-{place.port}"),
        *("--eviction-policy", "LRU"),
        "--disable-observability",
    ]
    if not arm.drive:
        return [*command, "--eviction-trigger-watermark", "0.95"]
    adapter = {"type": "fs_native", "base_path": str(place.folder), "use_odirect": not place.ram}
    if arm.store == "chm":
        adapter = {
            "type": "native_plugin",
            "module_path": str(arm.module),
            "class_name": "ChmL2",
            "adapter_params": tier_options(w, place),
        }
    return [*command, "--l2-store-policy", "skip_l1", "--l2-adapter", json.dumps(adapter)]
