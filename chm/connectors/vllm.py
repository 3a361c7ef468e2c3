# SPDX-License-Identifier: Apache-2.0
"""Secondary tier of vLLM's native offloading, 0.28 to 0.33: what leaves the CPU tier stays on disk.

    {"type": "ChmTier", "module_path": "chm.connectors.vllm", "path": "/nvme/kv", ...TierOptions}

vLLM calls it on its scheduler's thread only, and nothing here waits but drain_jobs and shutdown.

A look-up: asked (RETRY) -> answered, when the step ends, together with all others of the request;
the first hits are hinted right then, before vLLM asks for their bytes. The answer (HIT, MISS) holds
until the request is over, some steps have passed, or the load of that key failed (MISS).

A job of vLLM is one task of the tier, or several: a store's keys come in no order, and are put in
runs that follow each other in the request. It is reported once all of its tasks have ended.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from chm.connectors.config import TierOptions
from chm.connectors.naming import Naming, key_of, weights_identity
from chm.connectors.tier import Done, Tier, TierStats
from chm.errors import ChmError

log = logging.getLogger("chm")

ANSWER_STEPS = 64
_GROUP_BYTES = 4  # at the end of a key: its KV-cache group
_METRIC = "vllm:kv_offload_chm_"
_COUNTERS = {
    "get_ok": "Chunks read from the chm tier.",
    "get_failed": "Chunks that the chm tier did not deliver, which are computed anew.",
    "get_bytes": "Bytes read from the chm tier.",
    "put_ok": "Chunks that are in the chm tier after a store.",
    "put_failed": "Chunks that the chm tier did not take.",
    "put_bytes": "Bytes of the chunks that are in the chm tier after a store.",
    "hits": "Chunks looked up in the chm tier that were there.",
    "misses": "Chunks looked up in the chm tier that were not there.",
    "hints": "Requests whose first chunks the chm tier began to read at look-up.",
    "hints_used": "Hints whose chunks were loaded.",
    "hints_expired": "Hints whose chunks nobody loaded in time.",
    "hints_cancelled": "Hints whose request ended before its chunks were loaded.",
}
_GAUGES = {"tasks_running": "Transfers of the chm tier that run."}


class _Request:
    """A request: what it asked, what was answered, and the order of its blocks as far as known."""

    def __init__(self) -> None:
        self.asked: dict[bytes, None] = {}  # in that order
        self.answers: dict[bytes, bool] = {}
        self.step = 0  # when the answers were given
        self._chains: dict[bytes, list[bytes]] = {}  # group -> keys
        self._places: dict[bytes, int] = {}  # key -> place in its chain
        self._learned = 0

    def learn(self, context: Any) -> None:
        """The order that vLLM itself notes (not in 0.28), with blocks that are not looked up."""
        noted = getattr(context, "_offload_key_positions", ())
        if len(noted) > self._learned:
            for key in itertools.islice(noted, self._learned, None):
                self.place(key)
            self._learned = len(noted)

    def place(self, key: bytes) -> int:
        """Place in the chain of the key's group; one that was not seen before comes last."""
        place = self._places.get(key)
        if place is None:
            chain = self._chains.setdefault(key[-_GROUP_BYTES:], [])
            place = self._places[key] = len(chain)
            chain.append(key)
        return place

    def runs(self, keys: Sequence[bytes]) -> Iterator[list[int]]:
        """Indices of keys that follow each other in a chain, run by run."""
        run: list[int] = []
        last = None
        for group, place, i in sorted(
            (key[-_GROUP_BYTES:], self.place(key), i) for i, key in enumerate(keys)
        ):
            if run and last != (group, place - 1):
                yield run
                run = []
            run.append(i)
            last = group, place
        if run:
            yield run

    def before(self, key: bytes) -> bytes | None:
        place = self.place(key)
        return self._chains[key[-_GROUP_BYTES:]][place - 1] if place else None

    def first_hits(self) -> list[bytes]:
        """What was just asked: per group the keys before the first that is not there."""
        ended: set[bytes] = set()
        hits = []
        for key in self.asked:
            if not self.answers[key]:
                ended.add(key[-_GROUP_BYTES:])
            elif key[-_GROUP_BYTES:] not in ended:
                hits.append(key)
        return hits


class _Job:
    """A job of vLLM's and the tasks of the tier that it still waits for, with their keys."""

    def __init__(self, keys: list[bytes], load: bool) -> None:
        self.keys = keys
        self.load = load
        self.ok = [False] * len(keys)
        self.tasks: dict[int, list[int]] = {}
        self.seconds = 0.0
        self.nbytes = 0

    def take(self, done: Done) -> None:
        for i, ok in zip(self.tasks.pop(done.task), done.ok, strict=True):
            self.ok[i] = ok
        self.seconds = max(self.seconds, done.seconds)
        self.nbytes += done.nbytes


class ChmTier(SecondaryTierManager):  # type: ignore[misc]
    """``config`` is ``locality`` of vLLM's and the fields of TierOptions; docs/vllm.md."""

    medium: ClassVar[Any] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        locality: str | None = None,
        **config: Any,
    ) -> None:
        known = {} if backpressure_detector is None else _detector(backpressure_detector)
        super().__init__(offloading_spec, primary_kv_view, tier_type, **known)
        self.locality = None if locality is None else Locality(locality)
        options = TierOptions.from_dict(config)
        row_bytes = primary_kv_view.shape[1]  # type: ignore[index]
        name = namespace(offloading_spec, row_bytes, options)
        self.tier = Tier(options, name, row_bytes)
        self._rows: Any = np.asarray(primary_kv_view).view(np.uint8)
        self._requests: dict[str, _Request] = {}
        self._jobs: dict[int, _Job] = {}
        self._results: list[Any] = []  # of jobs that have ended
        self._step = 0
        self._told = TierStats()

    # -- requests ------------------------------------------------------------------------------

    def on_new_request(self, req_context: Any) -> Any:
        self._requests[req_context.req_id] = _Request()
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self._requests.pop(req_context.req_id, None)
        self.tier.cancel(req_context.req_id)

    def lookup(self, key: bytes, req_context: Any) -> Any:
        request = self._requests.setdefault(req_context.req_id, _Request())
        answer = request.answers.get(key)
        if answer is None:
            request.learn(req_context)
            request.place(key)
            request.asked[key] = None
            return LookupResult.RETRY
        return LookupResult.HIT if answer else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        self._step += 1
        for name, request in self._requests.items():
            if request.asked:
                self._answer(name, request)
            elif request.answers and self._step - request.step > ANSWER_STEPS:
                request.answers.clear()

    def _answer(self, name: str, request: _Request) -> None:
        keys = list(request.asked)
        try:
            found = self.tier.exists(list(map(key_of, keys)))
        except ChmError as error:
            log.warning("look-up in the chm tier: %s", error)
            found = [False] * len(keys)
        request.answers.update(zip(keys, found, strict=True))
        request.step = self._step
        hits = request.first_hits()
        request.asked.clear()
        if hits:
            self.tier.hint(name, list(map(key_of, hits)))

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        request = self._requests.get(req_context.req_id) or _Request()
        request.learn(req_context)
        some = list(keys)
        for run in request.runs(some):
            self.tier.touch([key_of(some[i]) for i in run])

    # -- jobs ----------------------------------------------------------------------------------

    def submit_load(self, job_metadata: Any) -> None:
        job, rows = self._new(job_metadata, load=True)
        every = list(range(len(job.keys)))
        number = self.tier.get(job_metadata.job_id, list(map(key_of, job.keys)), rows)
        job.tasks[number] = every

    def submit_store(self, job_metadata: Any) -> None:
        job, rows = self._new(job_metadata, load=False)
        request = self._requests.get(job_metadata.req_context.req_id) or _Request()
        request.learn(job_metadata.req_context)
        for run in list(request.runs(job.keys)) or [[]]:
            before = request.before(job.keys[run[0]]) if run else None
            number = self.tier.put(
                job_metadata.job_id,
                [key_of(job.keys[i]) for i in run],
                [rows[i] for i in run],
                after=None if before is None else key_of(before),
            )
            job.tasks[number] = run

    def _new(self, told: Any, load: bool) -> tuple[_Job, list[Any]]:
        job = self._jobs[told.job_id] = _Job(list(told.keys), load)
        chunks = getattr(told, "chunk_ids", None)
        if chunks is None:
            chunks = told.block_ids  # 0.28
        return job, [self._rows[i] for i in chunks.tolist()]

    def get_finished_jobs(self) -> Iterable[Any]:
        self._take(self.tier.drain())
        results, self._results = self._results, []
        return results

    def _take(self, ended: Iterable[Done]) -> None:
        for done in ended:
            job = self._jobs[done.tag]
            job.take(done)
            if done.error:
                level = logging.WARNING if job.load else logging.DEBUG
                log.log(level, "%s of %d chunks: %s", done.op, len(done.ok), done.error)
            if not job.tasks:
                del self._jobs[done.tag]
                self._results.append(self._result(done.tag, job))

    def _result(self, number: int, job: _Job) -> Any:
        result: dict[str, Any] = {"transfer_time": job.seconds, "transfer_bytes": job.nbytes}
        if not all(job.ok):
            good = [key for key, ok in zip(job.keys, job.ok, strict=True) if ok]
            result["successful_keys"] = tuple(good) or None
            if job.load:
                self._failed(set(job.keys) - set(good))
        return JobResult(number, all(job.ok), **{k: v for k, v in result.items() if k in _RESULT})

    def _failed(self, keys: set[bytes]) -> None:
        """Whoever was told that these are there is told now that they are not."""
        for request in self._requests.values():
            request.answers.update(dict.fromkeys(keys & request.answers.keys(), False))

    def has_pending_work(self) -> bool:
        return bool(self._jobs)

    def drain_jobs(self) -> None:
        if not self.tier.wait(self.tier.options.deadline_s + 1.0):
            log.error("jobs of the chm tier have not ended by their deadline")

    def shutdown(self) -> None:
        self._take(self.tier.close())
        self._requests.clear()
        self._rows = self._primary_kv_view = None

    # -- metrics -------------------------------------------------------------------------------

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {
            _METRIC + name: OffloadingCounterMetadata(documentation=text, labelnames=("tier",))
            for name, text in _COUNTERS.items()
        }
        for name, text in _GAUGES.items():
            made[_METRIC + name] = OffloadingGaugeMetadata(documentation=text, labelnames=("tier",))
        return made

    def get_stats(self) -> Any:
        now, before = self.tier.stats(), self._told
        if now == before:
            return None
        self._told = now
        stats, label = OffloadingConnectorStats(), (self.tier_type,)
        for name in _COUNTERS:
            more = getattr(now, name) - getattr(before, name)
            if more:
                stats.increase_counter(_METRIC + name, more, label)
        for name in _GAUGES:
            stats.set_gauge(_METRIC + name, getattr(now, name), label)
        return stats


_RESULT = frozenset(f.name for f in dataclasses.fields(JobResult))


def _detector(detector: Any) -> dict[str, Any]:
    return {"backpressure_detector": detector}  # an argument that 0.28 does not know


def namespace(spec: Any, row_bytes: int, options: TierOptions) -> str:
    """All that vLLM says of what makes a row what it is, but the tokens: those, and the name of an
    adapter, are in its keys. It says nothing of revisions, overrides and online quantization.

    vLLM's minor version is part of it: another may lay out the engine's blocks in another way.
    """
    config = spec.config
    parallel = config.parallel
    model = config.model.name
    if not options.identity and not os.path.isdir(model):
        log.warning(
            "vLLM tells no revision of %s: say which weights these are, identity=...", model
        )
    return str(
        Naming(
            "vllm",
            model=model,
            dtype=config.model.dtype,
            weights=options.identity or weights_identity(model),
            version=".".join(vllm.__version__.split(".")[:2]),
            tp=parallel.tp_size,
            pp=parallel.pp_size,
            pcp=parallel.pcp_size,
            dcp=parallel.dcp_size,
            world=parallel.world_size,
            rank=parallel.rank,
            hash_tokens=config.cache.tokens_per_hash,
            chunk_blocks=config.cache.blocks_per_chunk,
            row_bytes=row_bytes,
            layout=[
                getattr(config, "kv_cache_layout", None),
                config.replicated_layout,
                config.canonical_layout,
            ],
            groups=[[g.tokens_per_block, list(g.layer_names)] for g in config.groups],
            salt=options.salt,
        )
    )
