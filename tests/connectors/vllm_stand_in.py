# SPDX-License-Identifier: Apache-2.0
"""What chm.connectors.vllm takes from vLLM, and no more, for where that is not installed.

The adapter imports its base class as any code of vLLM's does. ``adapter()`` imports it with vLLM if
there is one, else with modules that are made here and gone from ``sys.modules`` afterwards, so that
nothing else takes them for the real ones. Names, fields and defaults are those of vLLM 0.32.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np


class LookupResult(Enum):
    MISS = auto()
    HIT = auto()
    HIT_PENDING = auto()
    RETRY = auto()


class Medium(Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


class Locality(Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


@dataclass
class ReqContext:
    req_id: str
    kv_transfer_params: dict[str, Any] | None = None
    _offload_key_positions: dict[bytes, int] = field(default_factory=dict, init=False)

    def set_offload_key_position(self, key: bytes, end_token: int) -> None:
        self._offload_key_positions[key] = end_token


@dataclass
class RequestOffloadingContext:
    policy: str = "chunk_level"


class ScheduleEndContext(NamedTuple):
    new_req_ids: Collection[str]
    preempted_req_ids: Collection[str]


@dataclass(frozen=True)
class OffloadingCounterMetadata:
    documentation: str
    labelnames: tuple[str, ...] = ()


@dataclass(frozen=True)
class OffloadingGaugeMetadata:
    documentation: str
    labelnames: tuple[str, ...] = ()


@dataclass
class TransferJob:
    job_id: int
    keys: Collection[bytes]
    chunk_ids: Any
    is_promotion: bool
    req_context: ReqContext


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Collection[bytes] | None = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager:
    medium: Any = None

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
    ) -> None:
        self._primary_kv_view = primary_kv_view
        self.tier_type = tier_type
        self.locality = None
        self.bp_detector = backpressure_detector


class SecondaryTierFactory:
    registry: dict[str, tuple[str, str]] = {}  # noqa: RUF012 - as vLLM has it

    @classmethod
    def register_tier(cls, tier_type: str, module_path: str, class_name: str) -> None:
        if tier_type in cls.registry:
            raise ValueError(f"Tier '{tier_type}' is already registered.")
        cls.registry[tier_type] = module_path, class_name


class OffloadingConnectorStats:
    def __init__(self) -> None:
        self.data: Any = {"types": {}, "data": defaultdict(dict)}

    def increase_counter(self, name: str, more: float, labels: tuple[str, ...] = ()) -> None:
        values = self.data["data"][name]
        values[labels] = values.get(labels, 0) + more

    def set_gauge(self, name: str, value: float, labels: tuple[str, ...] = ()) -> None:
        self.data["data"][name][labels] = value


_MODULES: dict[str, tuple[Any, ...]] = {
    "vllm.v1.kv_offload.base": (
        Locality,
        LookupResult,
        Medium,
        OffloadingCounterMetadata,
        OffloadingGaugeMetadata,
        ReqContext,
        RequestOffloadingContext,
        ScheduleEndContext,
    ),
    "vllm.v1.kv_offload.tiering.base": (JobResult, SecondaryTierManager, TransferJob),
    "vllm.v1.kv_offload.tiering.factory": (SecondaryTierFactory,),
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics": (OffloadingConnectorStats,),
}


@contextmanager
def stand_in() -> Iterator[None]:
    """``import vllm...`` gives the modules of this file, as long as it lasts."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_vllm(name)}
    made: dict[str, Any] = {}
    for full in _MODULES:
        for end in range(1, full.count(".") + 2):
            name = ".".join(full.split(".")[:end])
            made.setdefault(name, ModuleType(name))
    made["vllm"].__version__ = "0.32.0"
    for full, things in _MODULES.items():
        for thing in things:
            setattr(made[full], thing.__name__, thing)
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]
        sys.modules.update(before)


def _is_vllm(name: str) -> bool:
    return name.split(".")[0] == "vllm"


def installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


def adapter() -> ModuleType:
    """chm.connectors.vllm."""
    if installed():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("chm.connectors.vllm")
    with stand_in():
        return importlib.import_module("chm.connectors.vllm")


def transfer(
    job: int, keys: Collection[bytes], chunks: Collection[int], load: bool, context: Any
) -> Any:
    """A TransferJob as vLLM makes it; of the stand-in's class, which has the same fields."""
    return TransferJob(job, keys, np.array(list(chunks), np.int32), load, context)
