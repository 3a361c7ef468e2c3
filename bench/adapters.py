# SPDX-License-Identifier: Apache-2.0
"""What an engine adapter costs over the store: 1 MiB rows through each, on one file, in one run.

    bench/adapters.py [--dir DIR] [--only vllm] [--ram] [--quick]

The yardstick is the store itself: put, and get with a copy, in batches of 32. Each adapter is
called as its host calls it, by the drivers of the conformance suite (tests/connectors/drive_*.py),
which need no engine. A round goes store, adapter, store: rows are put and made durable, then read
back, and an adapter's ratio is its rate over the mean of the store's before and after. All share
one open store. A driver asks for what has ended every half millisecond; the store is waited for.

--ram puts the file into memory (tmpfs, buffered): the ceiling of an adapter where no drive limits.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rows import GIB, MIB, TOP, row, use_checkout

use_checkout()
sys.path.insert(0, str(TOP / "tests" / "connectors"))

import chm  # noqa: E402
from chm.connectors import Tier, TierOptions, key_of  # noqa: E402

HOSTS = {
    "tier": "driver",
    "vllm": "drive_vllm",
    "lmcache": "drive_lmcache",
    "sglang": "drive_sglang",
}
ROW = MIB
BATCH = 32
PAUSE_S = 0.0005
HANG_S = 60.0
_EVERYTHING = 1 << 62


class Bare:
    """The store without an adapter."""

    def __init__(self, options: TierOptions, name: str) -> None:
        self.tier = Tier(options, name, ROW)
        self._store = self.tier.store
        self._ns = self._store.namespace(name)

    def move(self, op: str, rows: Any) -> None:
        keys = [key_of(number.to_bytes(8, "big")) for number in range(len(rows))]
        jobs = []
        for first in range(0, len(rows), BATCH):
            some, buffers = keys[first : first + BATCH], rows[first : first + BATCH]
            if op == "get":
                jobs.append(self._store.get(self._ns, some, buffers, copy=True))
                continue
            parent = keys[first - 1] if first else None
            self._store.put(self._ns, some, buffers, parent=parent, wait=True).result()
        for job in jobs:
            job.result()

    def close(self) -> None:
        self.tier.close()


class Driven:
    """An adapter, by its driver."""

    def __init__(self, host: str, options: TierOptions, name: str) -> None:
        module = importlib.import_module(HOSTS[host])
        identity = importlib.import_module("driver").Identity(model=name)
        self._driver = getattr(module, f"open_{host}")(options, identity, ROW)
        self.tier = self._driver.tier

    def move(self, op: str, rows: Any) -> None:
        submit = self._driver.load if op == "get" else self._driver.store
        waiting = set()
        for first in range(0, len(rows), BATCH):
            some = rows[first : first + BATCH]
            waiting.add(submit(range(first, first + len(some)), some))
        end = time.monotonic() + HANG_S
        while True:
            for told in self._driver.told():
                if not all(told.ok):
                    raise SystemExit(f"a {op} of {len(told.ok)} rows failed")
                waiting.discard(told.job)
            if not waiting:
                return
            if time.monotonic() > end:
                raise SystemExit(f"a {op} does not end within {HANG_S:.0f} s")
            time.sleep(PAUSE_S)

    def close(self) -> None:
        self._driver.close()


@dataclass
class Segment:
    """One pass over all rows. ``copied`` counts bytes that the store moved by a copy (a put: into
    the write buffer, a get: out of the window), ``direct`` those that the drive wrote into the
    buffer itself."""

    nbytes: int
    seconds: float
    cpu_s: float
    copied: int
    direct: int

    @property
    def rate(self) -> float:
        return self.nbytes / self.seconds


@dataclass
class Pairs:
    """An adapter's segments, with the store's around each."""

    own: list[Segment] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    store_cpu: list[float] = field(default_factory=list)

    def add(self, before: Segment, own: Segment, after: Segment) -> None:
        self.own.append(own)
        self.ratios.append(own.rate / statistics.mean((before.rate, after.rate)))
        cpu = statistics.mean((before.cpu_s, after.cpu_s))
        self.store_cpu.append(cpu / (own.nbytes / GIB))

    def report(self, name: str) -> None:
        nbytes = sum(s.nbytes for s in self.own)
        row(
            name,
            ratio=statistics.median(self.ratios),
            ratio_min=min(self.ratios),
            ratio_max=max(self.ratios),
            gb_per_s=statistics.median(s.rate for s in self.own) / 1e9,
            cpu_s_per_gib=statistics.median(s.cpu_s / (s.nbytes / GIB) for s in self.own),
            store_cpu_s_per_gib=statistics.median(self.store_cpu),
            copied_per_byte=sum(s.copied for s in self.own) / nbytes,
            direct_per_byte=sum(s.direct for s in self.own) / nbytes,
            segments=len(self.own),
        )


def segment(who: Bare | Driven, op: str, rows: Any) -> Segment:
    """Put all rows and make them durable, or get them all."""
    store = who.tier.store
    before = store.stats()
    began, cpu = time.perf_counter(), time.process_time()
    who.move(op, rows)
    if op == "put":
        store.sync().result()
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    after = store.stats()
    copied = after.copied_bytes - before.copied_bytes + after.admitted_bytes - before.admitted_bytes
    direct = after.direct_bytes - before.direct_bytes
    return Segment(rows.nbytes, seconds, used, copied, direct)


def one_round(host: str, options: TierOptions, name: str, rows: Any, out: Any) -> dict[str, Any]:
    """store, adapter, store: puts, then gets with their bytes checked."""
    three: list[Bare | Driven] = [
        Bare(options, f"{name}-before"),
        Driven(host, options, name),
        Bare(options, f"{name}-after"),
    ]
    found = {}
    for op, memory in (("put", rows), ("get", out)):
        segments = []
        for who in three:
            if op == "get":
                out[:] = 0
            segments.append(segment(who, op, memory))
            if op == "get" and not (out == rows).all():
                raise SystemExit(f"{host}: other bytes came back than were put")
        found[op] = segments
    three[0].tier.store.evict(_EVERYTHING)
    three[0].tier.store.sync().result()
    for who in three:
        who.close()
    return found


def available(host: str) -> bool:
    """Whether its driver can be imported; says so if not."""
    try:
        importlib.import_module(HOSTS[host])
    except ImportError as error:
        row(f"adapters.{host}", skipped=str(error))
        return False
    return True


def measure(path: Path, args: argparse.Namespace) -> None:
    rounds, count = (2, 64) if args.quick else (8, 128)
    options = TierOptions(
        path=(str(path),),
        capacity=8 * count * ROW,
        dram=128 * MIB,
        block_bytes=ROW,
        buffered=args.ram,
        hints=False,
        device={"prefault": "now"},
    )
    memory = chm.aligned_empty(count * ROW).reshape(count, ROW)
    import numpy as np

    memory[:] = np.random.default_rng(args.seed).integers(0, 256, memory.shape, np.uint8)
    out = chm.aligned_empty(count * ROW).reshape(count, ROW)
    out[:] = 0
    suffix = ".ram" if args.ram else ""
    with Tier(options, "holder", ROW):  # keeps the store open between rounds
        for host in filter(available, [h for h in HOSTS if args.only in f"adapters.{h}"]):
            pairs = {"put": Pairs(), "get": Pairs()}
            for number in range(-1, rounds):  # the first is dropped
                found = one_round(host, options, f"{host}-{number}", memory, out)
                for op, segments in found.items() if number >= 0 else ():
                    pairs[op].add(*segments)
            for op, pair in pairs.items():
                pair.report(f"adapters.{host}.{op}{suffix}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="folder for the file")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--ram", action="store_true", help="the file is in memory (/dev/shm)")
    parser.add_argument("--quick", action="store_true", help="a try, not for quoting")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    folder = Path("/dev/shm") if args.ram else args.dir
    handle, name = tempfile.mkstemp(prefix="chm-adapters-", dir=folder)
    os.close(handle)
    path = Path(name)
    path.unlink()
    try:
        measure(path, args)
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
