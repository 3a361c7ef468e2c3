# SPDX-License-Identifier: Apache-2.0
"""`turns`: multi-turn conversations, or a trace, against the device.

Every turn of every conversation reads its whole prefix in order and then appends its new blocks.
The footprint is computed and the free space checked before anything is written; blocks are read
only after they were written. With less capacity than footprint blocks go as the eviction policy
says (counted), or the run is refused: --on-overflow. A list of --policy compares policies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from chm import units
from chm.bench.charts import Chart, Line
from chm.bench.config import BlockConfig
from chm.bench.measure import Cost
from chm.bench.models import MODELS, block_bytes
from chm.bench.options import COUNT, FACTOR, FILE, SIZE, TIME, Kind, choice, option
from chm.bench.outcome import Outcome, phase
from chm.bench.play import Play, Row
from chm.bench.selection import Selection, names, parse, select
from chm.bench.serve import Tally
from chm.bench.target import BenchError, open_target
from chm.bench.traces import load, to_requests
from chm.bench.ui import Progress
from chm.bench.workload import Workload, in_rounds, reuse, turn_growth
from chm.stats import Stats

GIB = 1 << 30
POLICY = Kind("NAME[+NAME]", parse, complete=names)
_TRACE_CAPACITY = 2 * GIB
_TOKEN_BYTES = 128 << 10  # Llama-3.1-8B


@dataclass(frozen=True, kw_only=True)
class TurnsConfig(BlockConfig):
    """Multi-turn conversations: each turn reads its whole prefix in order, then appends.

    With --trace FILE the requests come from a trace instead. Prints bandwidth per turn.
    """

    conversations: int = option(8, COUNT, "N conversations")
    turns: int = option(6, COUNT, "T turns of each")
    blocks_per_turn: int = option(3, COUNT, "k new blocks in every turn")
    order: str = option(
        "grouped",
        choice("grouped", "interleaved"),
        "grouped: all reads of a turn, then its writes; interleaved: request by request",
    )
    think: int = option(0, TIME, "pause after every turn, in which the device may flush")
    capacity: int = option(
        0, SIZE, "bytes of the device for blocks; 0: the footprint (of a trace: at most 2 GiB)"
    )
    on_overflow: str = option(
        "evict",
        choice("evict", "error"),
        "footprint above capacity: drop blocks as the eviction policy says, or refuse to run",
    )
    on_full: str = option(
        "wait", choice("wait", "skip"), "write buffer full: wait for room, or skip the put"
    )
    flush: str = option("turn", choice("turn", "end"), "wait for durable writes after every turn")
    trace: str = option("", FILE, "replay this trace")
    trace_format: str = option("auto", choice("auto", "mooncake", "agentic"), "of the trace")
    trace_limit: int = option(0, COUNT, "use its first N requests; 0: all")
    token_bytes: int = option(0, SIZE, "KV bytes of a token of the trace; 0: of --model, or 128KiB")
    arrivals: str = option(
        "closed",
        choice("closed", "traced", "scaled"),
        "of a trace: one after the other, at its times, or at its times divided by --speedup",
    )
    speedup: Fraction = option(Fraction(1), FACTOR, "with --arrivals scaled")
    rows: int = option(10, COUNT, "lines of the report for a trace")
    policy: str = option(
        "",
        POLICY,
        "who decides: names joined by +, or module:Class; a list compares; see 'chm-bench policy "
        "list'",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.trace and not (self.conversations and self.turns and self.blocks_per_turn):
            raise ValueError("--conversations, --turns and --blocks-per-turn must be at least 1")
        if self.arrivals != "closed" and not self.trace:
            raise ValueError("--arrivals: only a trace has times")
        if self.trace and self.token_bytes and self.model:
            raise ValueError("--model and --token-bytes both set the bytes of a token: give one")
        if self.trace and self.block_size:
            raise ValueError("--block-size: the blocks of a trace follow from --token-bytes")
        chosen = self.selection()
        staging = chosen.specs.get("prefetch")
        if staging and staging.text != "none" and (chosen.device or "window") != "window":
            raise ValueError(
                f"--policy {self.policy}: the device cache {chosen.device} has no prefetch call, "
                f"so {staging.text} has no use"
            )
        if staging and staging.text != "none" and not self.prefetch:
            raise ValueError(f"--policy {self.policy} stages, and --prefetch is off: choose one")

    def selection(self) -> Selection:
        """--policy, parsed."""
        return select(self.policy)

    def device_options(self, capacity: int) -> dict[str, Any]:
        """Keyword arguments of chm.Options, without paths."""
        chosen = self.selection()
        named = {"policy": chosen.device, "flush_policy": chosen.flush}
        return super().device_options(capacity) | {k: v for k, v in named.items() if v}

    def token_bytes_in_force(self) -> int:
        """KV bytes of a token, before scaling."""
        return self.token_bytes or (MODELS[self.model].token_bytes if self.model else _TOKEN_BYTES)


def workload_of(config: TurnsConfig) -> Workload:
    """The requests that the configuration describes."""
    if not config.trace:
        shape = (config.conversations, config.turns, config.blocks_per_turn)
        return turn_growth(*shape, config.block_bytes())
    trace = load(Path(config.trace), config.trace_format, config.trace_limit)
    requests = to_requests(trace, config.arrivals, float(config.speedup))
    size = block_bytes(config.token_bytes_in_force(), trace.block_tokens, config.scale)
    origin = {
        "kind": "trace",
        "file": Path(config.trace).name,
        "format": trace.format,
        "block_tokens": trace.block_tokens,
        "arrivals": config.arrivals,
        "note": "a request's last, partly filled block counts as a whole one",
    }
    return Workload(in_rounds(requests, config.rows), size, origin)


def capacity_of(config: TurnsConfig, workload: Workload) -> int:
    """Bytes of the device for blocks. Refuses what cannot work, with the numbers."""
    footprint, size = workload.footprint_bytes, workload.block_bytes
    default = min(footprint, _TRACE_CAPACITY) if config.trace else footprint
    capacity = (config.capacity or default) // size * size
    if capacity < size:
        raise BenchError(
            f"the capacity of {units.format_size(config.capacity or default)} holds no block of "
            f"{units.format_size(size)}: use --scale or a larger --capacity"
        )
    if capacity < footprint and config.on_overflow == "error":
        raise BenchError(
            f"the footprint is {units.format_size(footprint)} and the capacity "
            f"{units.format_size(capacity)}: enlarge it, or say --on-overflow evict"
        )
    return capacity


def run(config: TurnsConfig, tick: Progress) -> Outcome:
    """The experiment."""
    workload = workload_of(config)
    capacity = capacity_of(config, workload)
    config, room = _laid_out(config, capacity, workload.block_bytes)
    with open_target(config, room) as target:
        play = Play(config, workload, target, capacity // workload.block_bytes)
        before = target.dev.stats()
        play.run(tick)
        moved = target.dev.stats() - before
        blocks, nbytes = play.recheck() if config.verify != "none" else (0, 0)
        out = _outcome(play, moved)
        out.metrics |= {"rechecked_blocks": blocks, "rechecked_bytes": nbytes}
        out.close(target, moved)
    return out


def _laid_out(config: TurnsConfig, capacity: int, block: int) -> tuple[TurnsConfig, int]:
    """The configuration and device bytes with which the placement policy can be had.

    For whole objects on one member, a stripe unit has to hold one.
    """
    if not config.selection().placement().whole:
        return config, capacity
    unit = max(config.stripe, block)
    units_needed = -(-(capacity // block) // (unit // block))
    return dataclasses.replace(config, stripe=unit), units_needed * unit


def _outcome(play: Play, moved: Stats) -> Outcome:
    rows, workload = play.rows, play.workload
    out = Outcome(samples=play.samples, rows=[r.to_dict() for r in rows])
    total, cold = sum((r.tally for r in rows), Tally()), rows[0].tally
    warm = sum((r.tally for r in rows[1:]), Tally())
    out.counters = {
        "total": total.to_dict(),
        "cold": cold.to_dict(),
        "warm": warm.to_dict(),
    }
    out.metrics = _metrics(play, moved) | {
        "hit_rate": total.hit_rate,
        "hit_rate_cold": cold.hit_rate,
        "hit_rate_warm": warm.hit_rate,
    }
    for row in [*rows, Row("all", total)]:
        rest = row.tally.unbalanced()
        if rest or row.label == "all":
            out.check(f"counters close, round {row.label}", not rest, "; ".join(rest))
    out.check("no read failed", not total.read_failed, f"{total.read_failed} blocks")
    out.check("no put failed", not total.put_failed, f"{total.put_failed} blocks")
    known = reuse(workload.requests())
    out.workload = workload.origin | {
        "block_bytes": workload.block_bytes,
        "footprint_bytes": workload.footprint_bytes,
        "unique_blocks": known.unique,
        "requests": known.requests,
        "infinite_cache_hit_rate": known.hit_rate,
        "capacity_bytes": play.index.slots * workload.block_bytes,
        "eviction": f"{play.index.policy}, by the benchmark",
        "policy": play.policies(),
        "node_bytes": play.node_bytes(),
    }
    if play.shares_time:
        out.notes.append("reads and writes of a row share its time: neither rate is the drive's")
    out.chart = turns_chart(play.config, out.rows)
    return out


def _metrics(play: Play, moved: Stats) -> dict[str, float | int | None]:
    """Figures of the whole run."""
    rows, target, checked = play.rows, play.target, play.reader.checked
    durable = sum((r.durable for r in rows), Cost())
    payload = target.payload_written
    lines = moved.cache_hits + moved.cache_misses
    out = phase("read", sum((r.read for r in rows if r.read.nbytes), Cost()))
    out |= phase("durable", durable)
    out |= {
        "elapsed_s": play.total.elapsed_ns / 1e9,
        "cpu_s_per_gib": play.total.cpu_s_per_gib,
        "verified_bytes": checked.nbytes,
        "verify_s": checked.elapsed_ns / 1e9,
        "payload_written_bytes": payload,
        "medium_written_bytes": moved.write_bytes,
        "medium_read_bytes": moved.read_bytes,
        "from_write_buffer_bytes": moved.buffered_bytes,
        "line_hits": moved.cache_hits,
        "line_misses": moved.cache_misses,
        "line_hit_rate": moved.cache_hits / lines if lines else None,
        "misplaced_blocks": play.index.room.misplaced,
        "write_amplification_ratio": moved.write_bytes / payload if payload else None,
    }
    if play.stager:
        out |= {
            "staged_early_blocks": play.stager.staged_blocks,
            "staged_early_used_blocks": play.stager.used_blocks,
            "staged_early_peak_blocks": play.stager.peak_blocks,
        }
    return out


def turns_chart(config: TurnsConfig, rows: Sequence[dict[str, Any]]) -> Chart:
    """Bandwidth per turn."""
    name = "slice of the trace" if config.trace else "turn"
    reads = Line("read", [r["read_bytes_per_s"] for r in rows])
    writes = Line("write (durable)", [r["durable_bytes_per_s"] for r in rows])
    labels = [str(r["label"]) for r in rows]
    return Chart("bandwidth per turn", name, "bytes_per_s", labels, [reads, writes])
