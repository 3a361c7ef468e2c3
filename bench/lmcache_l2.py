# SPDX-License-Identifier: Apache-2.0
"""LMCache's own benchmark of L2 adapters, on ours and on those it brings, on one disk, in one run.

    tools/engines run python bench/lmcache_l2.py --dir DIR [--quick] [--json FILE] [--only NAME]

`lmcache bench l2` stores, looks up and loads chunks of 1 MiB, 4 batches of 32 in flight, rounds of
128 MiB after two to warm up. A rate is bytes over time of all rounds, in brackets the slowest and
the fastest. The page cache is out of it: every adapter uses O_DIRECT, those that need to be told
are told; and loads run in a process of their own, after the files were synced and dropped from the
cache, so nothing comes from memory of whoever stored. An adapter whose index lives in its process
(nixl_store) stores and loads in one.

What is not equal: ours checks every byte it loads against a checksum, lays it out so that a crash
never shows a torn chunk, and answers a store when the chunk is in its write buffer; the warm-up is
larger than that buffer, so that the rate is the drive's. None of the others checks or syncs.
The row `store` is ours without LMCache and adapter: the same batches put and got through chm.Store.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rows import MIB, TOP, use_checkout

use_checkout()

import chm  # noqa: E402
from chm.connectors import TierOptions, key_of  # noqa: E402
from chm.connectors.config import SharedStore  # noqa: E402

CHUNK_KB = 1024
BATCH, IN_FLIGHT, WARM_UP = 32, 4, 2
DRAM = 256 * MIB
META_BYTES = 256 * MIB  # that raw_block keeps for itself
Spec = Callable[[Path, int], dict[str, Any]]


@dataclass(frozen=True)
class Arm:
    """An adapter: how it is configured for a folder and so many chunks, and what to know of it."""

    name: str
    spec: Spec
    note: str
    keeps: bool = True
    """Whether another process finds what was stored."""


@dataclass
class Row:
    """MB/s of all rounds, the slowest and the fastest; look-up: ms for a batch of 32."""

    name: str
    note: str
    store: tuple[float, float, float] | None = None
    load: tuple[float, float, float] | None = None
    lookup_ms: float | None = None
    skipped: str = ""


def ours(kind: str, module: str, name: str, **more: Any) -> Spec:
    def spec(folder: Path, chunks: int) -> dict[str, Any]:
        params = {"path": str(folder / "kv"), "capacity": room(chunks), "dram": DRAM, **more}
        return {
            "type": kind,
            "module_path": f"chm.connectors.{module}",
            "class_name": name,
            "adapter_params": params,
        }

    return spec


def room(chunks: int) -> int:
    return chunks * CHUNK_KB * 1024 * 3 // 2 + 64 * MIB


def files(kind: str) -> Spec:
    return lambda folder, chunks: {"type": kind, "base_path": str(folder), "use_odirect": True}


def raw_block(engine: str) -> Spec:
    def spec(folder: Path, chunks: int) -> dict[str, Any]:
        path, slot = folder / "device", CHUNK_KB * 1024 + 4096
        if not path.exists():
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, META_BYTES + (chunks + 64) * slot)
        return {
            "type": "raw_block",
            "device_path": str(path),
            "slot_bytes": slot,
            "meta_total_bytes": META_BYTES,
            "io_engine": engine,
        }

    return spec


def nixl(folder: Path, chunks: int) -> dict[str, Any]:
    params = {"file_path": str(folder), "use_direct_io": "true"}
    params["file_size"] = str(CHUNK_KB * 1024)
    return {
        "type": "nixl_store",
        "backend": "POSIX",
        "backend_params": params,
        "pool_size": chunks + 64,
    }


NATIVE = ("native_plugin", "lmcache", "ChmL2")
ARMS = (
    Arm("chm native", ours(*NATIVE), "O_DIRECT, io_uring, checksums"),
    Arm("chm native direct", ours(*NATIVE, direct=True), "the same, drive to caller"),
    Arm(
        "chm plugin",
        ours("plugin", "lmcache_plugin", "ChmL2Plugin"),
        "as chm native, through the Python seam",
    ),
    Arm("fs", files("fs"), "a file a chunk, Python threads, use_odirect"),
    Arm("fs_native", files("fs_native"), "a file a chunk, C++ threads, use_odirect"),
    Arm("raw_block posix", raw_block("posix"), "one file, O_DIRECT, Rust"),
    Arm("raw_block io_uring", raw_block("io_uring"), "one file, O_DIRECT, Rust"),
    Arm("nixl_store POSIX", nixl, "a file a chunk, use_direct_io; one process", keeps=False),
)
STORE = "store"


def run_l2(spec: dict[str, Any], rounds: int, out: Path, *more: str) -> dict[str, Any]:
    """One `lmcache bench l2`; its operations by name."""
    command = [sys.executable, "-m", "lmcache.cli.main", "bench", "l2", "--quiet"]
    command += ["--l2-adapter", json.dumps(spec), "--l1-align-bytes", "4096"]
    command += ["--data-size-kb", str(CHUNK_KB), "--num-keys", str(BATCH)]
    command += ["--in-flight", str(IN_FLIGHT), "--warmup-rounds", str(WARM_UP)]
    command += ["--rounds", str(rounds), "--format", "json", "--output", str(out), *more]
    path = os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH")]))
    quiet = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "PYTHONPATH": path}
    done = subprocess.run(
        command, env={**os.environ, **quiet}, capture_output=True, text=True, cwd=out.parent
    )
    if done.returncode or not out.exists():
        tail = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise RuntimeError(tail[0] if tail else f"ended with {done.returncode}")
    metrics = json.loads(out.read_text())["metrics"]
    out.unlink()
    return {one["operation"]: one for key, one in metrics.items() if key.startswith("op_")}


def rate(operation: dict[str, Any]) -> tuple[float, float, float]:
    """MB/s, if everything succeeded."""
    if operation["total_success"] != operation["total_keys"]:
        raise RuntimeError(f"{operation['total_success']} of {operation['total_keys']} succeeded")
    mb = operation["keys_per_round"] * CHUNK_KB * 1024 / 1e6
    spans = (operation[f"duration_{which}_ms"] for which in ("avg", "max", "min"))
    mean, slow, fast = (mb / (span / 1e3) for span in spans)
    return mean, slow, fast


def forget(folder: Path) -> None:
    """Take what lies under a folder out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(arm: Arm, folder: Path, rounds: int) -> Row:
    row = Row(arm.name, arm.note)
    out, data = folder / "out.json", folder / "data"
    data.mkdir(parents=True)
    spec = arm.spec(data, (rounds + WARM_UP) * BATCH * IN_FLIGHT)
    look = ("--lookup-max-hit-rate", "0.5")
    try:
        if arm.keeps:
            done = run_l2(spec, rounds, out, "--only", "store")
            forget(data)
            done |= run_l2(spec, rounds, out, "--only", "load")
            done |= run_l2(spec, rounds, out, "--only", "lookup", *look)
        else:
            done = run_l2(spec, rounds, out, *look)
        row.store, row.load = rate(done["Store"]), rate(done["Load"])
        row.lookup_ms = done["Lookup"]["duration_p50_ms"] / IN_FLIGHT
    except RuntimeError as error:
        row.skipped = str(error)
    return row


# -- ours without an adapter -----------------------------------------------------------------------


def measure_store(folder: Path, rounds: int) -> Row:
    """The same batches through chm.Store, in this process."""
    row = Row(STORE, "chm.Store alone, as chm native direct")
    folder.mkdir(parents=True)
    total = rounds + WARM_UP
    options = TierOptions(path=(str(folder / "kv"),), capacity=room(total * BATCH * IN_FLIGHT))
    memory = chm.aligned_empty(IN_FLIGHT * BATCH * CHUNK_KB * 1024).reshape(IN_FLIGHT, BATCH, -1)
    memory[:] = 7
    for op in ("put", "get"):
        shared = SharedStore.take(options)
        try:
            spans = _rounds(shared.store, op, memory, total)
        finally:
            shared.give_back(60.0)
        forget(folder)
        rates = [memory.nbytes / 1e6 / span for span in spans[WARM_UP:]]
        told = (statistics.harmonic_mean(rates), min(rates), max(rates))
        if op == "put":
            row.store = told
        else:
            row.load = told
    return row


def _rounds(store: chm.Store, op: str, memory: Any, total: int) -> list[float]:
    ns, spans = store.namespace("bench"), []
    for number in range(total):
        begin = time.perf_counter()
        jobs = []
        for batch in range(IN_FLIGHT):
            first = (number * IN_FLIGHT + batch) * BATCH
            keys = [key_of(b"%d" % (first + i)) for i in range(BATCH)]
            if op == "put":
                jobs.append(store.put(ns, keys, memory[batch], wait=True, timeout=60.0))
            else:
                jobs.append(store.get(ns, keys, memory[batch], timeout=60.0))
        for job in jobs:
            job.result()
        spans.append(time.perf_counter() - begin)
    return spans


# -- the table -------------------------------------------------------------------------------------


def shown(rates: tuple[float, float, float] | None) -> str:
    return "" if rates is None else "{:.0f} ({:.0f}-{:.0f})".format(*rates)


def table(rows: Sequence[Row]) -> str:
    lines = ["| adapter | store MB/s | load MB/s | look-up of 32, ms | |", "| - | - | - | - | - |"]
    for row in rows:
        look = "" if row.lookup_ms is None else f"{row.lookup_ms:.2f}"
        note = f"not run: {row.skipped}" if row.skipped else row.note
        lines.append(f"| {row.name} | {shown(row.store)} | {shown(row.load)} | {look} | {note} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path(), help="folder on the disk to measure")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--rounds", type=int, default=6, help="of 128 MiB, after the warm-up")
    parser.add_argument("--quick", action="store_true", help="2 rounds: a try, not for quoting")
    parser.add_argument("--json", type=Path, help="keep the rows here")
    args = parser.parse_args(argv)
    rounds = 2 if args.quick else args.rounds
    rows: list[Row] = []
    for name, run in [
        (STORE, measure_store),
        *((arm.name, lambda folder, n, arm=arm: measure(arm, folder, n)) for arm in ARMS),
    ]:
        if args.only not in name:
            continue
        folder = args.dir.resolve() / f"lmcache-l2.{os.getpid()}"
        try:
            rows.append(run(folder, rounds))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if args.json:
        facts = {"rounds": rounds, "chunk_kb": CHUNK_KB, "batch": BATCH, "in_flight": IN_FLIGHT}
        text = {**facts, "chm": chm.__version__, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(text, indent=2) + "\n")


if __name__ == "__main__":
    main()
