# SPDX-License-Identifier: Apache-2.0
"""`turns` on the simulated medium, where every figure is exact."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chm.bench.measure import QUANTILES
from chm.bench.payload import PayloadMismatch
from chm.bench.target import Target

Measure = Callable[..., dict[str, Any]]
KIB, MIB = 1 << 10, 1 << 20
SMALL = ["turns", "--block-size", "256KiB", "--conversations", "3", "--turns", "4"]


@pytest.mark.parametrize("prefetch", ["on", "off"])
@pytest.mark.parametrize("order", ["grouped", "interleaved"])
@pytest.mark.parametrize("concurrency", ["1", "2"])
def test_counts_follow_the_closed_form(
    measure: Measure, prefetch: str, order: str, concurrency: str
) -> None:
    """Turn t of 3 conversations, 3 blocks a turn: 9 t look-ups, 9 (t - 1) hits, 9 puts."""
    result = measure(*SMALL, "--prefetch", prefetch, "--order", order, "--concurrency", concurrency)
    rows = result["rows"]
    assert [r["label"] for r in rows] == ["1", "2", "3", "4"]
    assert [r["lookups"] for r in rows] == [9, 18, 27, 36]
    assert [r["hits"] for r in rows] == [0, 9, 18, 27]
    assert [r["delivered"] for r in rows] == [0, 9, 18, 27]
    assert [r["misses_new"] for r in rows] == [9, 9, 9, 9]
    assert [r["admitted"] for r in rows] == [9, 9, 9, 9]
    assert [r["read_bytes"] for r in rows] == [9 * t * 256 * KIB for t in range(4)]
    assert result["metrics"]["read_bytes"] == 54 * 256 * KIB
    assert result["metrics"]["payload_written_bytes"] == 36 * 256 * KIB


@pytest.mark.parametrize("full", ["wait", "skip"])
def test_f35_and_f86_the_accounts_close(measure: Measure, full: str) -> None:
    """Puts and look-ups add up, also where most puts are refused: a 2 MiB buffer, a slow drive."""
    result = measure(
        *SMALL, "--on-full", full, "--flush", "end", "--sim-write-rate", "50MB/s",
        "--tune", "flush_age_ns=1ms",
    )  # fmt: skip
    for c in [*result["rows"], *result["counters"].values()]:
        assert c["puts"] == c["admitted"] + c["skipped"] + c["duplicate"] + c["put_failed"]
        assert c["lookups"] == c["hits"] + c["misses_new"] + c["misses_lost"]
        assert c["hits"] == c["delivered"] + c["late"] + c["read_failed"]
    total = result["counters"]["total"]
    assert total["refusals"] > 0
    if full == "skip":
        assert total["skipped_full"] > 0
        assert total["skipped_chain"] > 0
        assert total["skipped_full"] == total["refusals"]
    else:
        assert total["admitted"] == total["puts"] == 36


def test_f35_a_block_that_another_request_put_is_a_duplicate(
    measure: Measure, tmp_path: Path
) -> None:
    """Two requests for the same blocks side by side: each block is written once."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "hash_ids": [1, 2, 3]}\n' * 2)
    result = measure("turns", "--trace", str(path), "--token-bytes", "64", "--rows", "1",
                     "--concurrency", "2")  # fmt: skip
    total = result["counters"]["total"]
    assert total["admitted"] == 3
    assert total["duplicate"] > 0
    assert total["puts"] == total["admitted"] + total["duplicate"]


def test_pieces_smaller_than_blocks_change_no_count(measure: Measure) -> None:
    result = measure(*SMALL, "--segment", "64KiB", "--whole", "off", "--verify", "all")
    assert [r["delivered"] for r in result["rows"]] == [0, 9, 18, 27]
    assert result["latency"]["piece_wait"]["service_time"]["count"] == 4 * 54
    assert result["metrics"]["verified_bytes"] == result["metrics"]["read_bytes"]


def test_durable_includes_the_last_flush(measure: Measure) -> None:
    """All puts fit the write buffer and return at once; the drive still has to write them."""
    rows = measure(
        "turns", "--block-size", "64KiB", "--conversations", "1", "--turns", "2", "--flush", "end",
        "--sim-write-rate", "10MB/s", "--tune", "flush_age_ns=1ms",
    )["rows"]  # fmt: skip
    assert rows[0]["flush_s"] == 0
    assert rows[1]["flush_s"] >= 6 * 65536 / 10e6 * 0.9


def test_f86_cold_and_warm_rounds_are_apart(measure: Measure) -> None:
    result = measure(*SMALL)
    counters = result["counters"]
    assert counters["cold"]["hits"] == 0
    assert counters["warm"]["lookups"] == 81
    assert result["metrics"]["hit_rate_cold"] == 0
    assert result["metrics"]["hit_rate_warm"] == 54 / 81
    assert result["metrics"]["hit_rate"] == 54 / 90


def test_f86_a_changed_hit_rate_changes_the_time(measure: Measure) -> None:
    whole = measure(*SMALL)
    half = measure(*SMALL, "--capacity", "4MiB")
    assert half["metrics"]["hit_rate"] < whole["metrics"]["hit_rate"]
    assert half["metrics"]["read_s"] < whole["metrics"]["read_s"]


def test_f40_bytes_written_over_payload(measure: Measure) -> None:
    metrics = measure(*SMALL)["metrics"]
    assert metrics["medium_written_bytes"] == metrics["payload_written_bytes"] == 36 * 256 * KIB
    assert metrics["write_amplification_ratio"] == 1


def test_f40_a_resident_block_is_not_written_again(measure: Measure, tmp_path: Path) -> None:
    rows = [{"timestamp": i, "hash_ids": [1, 2]} for i in range(5)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    result = measure("turns", "--trace", str(path), "--token-bytes", "1KiB")
    assert result["counters"]["total"]["puts"] == 2
    assert result["metrics"]["medium_written_bytes"] == 2 * 512 * KIB


def test_prefetch_on_and_off_over_a_paced_link(measure: Measure) -> None:
    """Off, a block is fetched and then sent: m blocks take 2 m steps, with a link as fast as the
    drive. On, both overlap but for the first one: m + 1 steps."""
    args = [*SMALL, "--sim-read-rate", "1GB/s", "--sim-read-latency", "1ns", "--link-rate", "1GB/s"]
    on = measure(*args)["rows"]
    off = measure(*args, "--prefetch", "off")["rows"]
    for m, row in zip((3, 6, 9), on[1:], strict=True):
        assert row["read_bytes_per_s"] == pytest.approx(1e9 * m / (m + 1), rel=0.001)
    for row in off[1:]:
        assert row["read_bytes_per_s"] == pytest.approx(0.5e9, rel=0.001)


def test_the_same_seed_repeats_the_run(measure: Measure) -> None:
    args = [*SMALL, "--concurrency", "3", "--on-full", "skip", "--flush", "end"]
    first, again = measure(*args), measure(*args)
    for key in ("rows", "metrics", "latency", "counters", "device_stats"):
        assert _steady(first[key]) == _steady(again[key]), key


def _steady(value: Any) -> Any:
    """Without what is measured in real time even here: the time that checking bytes took."""
    if isinstance(value, dict):
        return {k: _steady(v) for k, v in value.items() if k != "verify_s"}
    return [_steady(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("prefetch", ["on", "off"])
def test_all_bytes_are_checked(measure: Measure, prefetch: str) -> None:
    metrics = measure(*SMALL, "--verify", "all", "--prefetch", prefetch)["metrics"]
    assert metrics["verified_bytes"] == metrics["read_bytes"]
    assert metrics["rechecked_blocks"] == 36
    assert metrics["rechecked_bytes"] == 36 * 256 * KIB


def test_a_sample_is_a_page_per_16_mib(measure: Measure) -> None:
    metrics = measure(*SMALL, "--blocks-per-turn", "8")["metrics"]
    read = metrics["read_bytes"]
    assert metrics["verified_bytes"] / 4096 == pytest.approx(read / (16 * MIB), abs=1.1)
    assert metrics["rechecked_blocks"] == 64


@pytest.mark.parametrize("prefetch", ["on", "off"])
def test_a_wrong_byte_fails_the_run(
    invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, prefetch: str
) -> None:
    """What is put is damaged on its way in; the first read that sees it ends the run."""
    put = Target.put

    def damaged(self: Target, addr: int, length: int, obj: int, version: int) -> Any:
        return put(self, addr, length, obj + (obj == 4), version)

    monkeypatch.setattr(Target, "put", damaged)
    shown = invoke(
        *SMALL,
        "--media",
        "sim",
        "--dram",
        "8MiB",
        "--verify",
        "all",
        "--prefetch",
        prefetch,
        "--json",
        "-",
        code=1,
    )
    (failure,) = json.loads(shown.stdout)["failures"]
    assert failure["kind"] == PayloadMismatch.__name__
    assert "object 4" in failure["error"]
    assert "Found(object=5" in failure["error"]


def test_without_contents_nothing_is_claimed(measure: Measure) -> None:
    result = measure(*SMALL, "--sim-contents", "off", "--verify", "all")
    assert result["metrics"]["verified_bytes"] == 0
    assert result["metrics"]["rechecked_bytes"] == 0
    assert any("nothing can be verified" in note for note in result["notes"])


def test_f82_only_written_extents_are_read(
    invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that claims success without writing is caught at the first read."""
    monkeypatch.setattr(Target, "put", lambda *_: iter(()))
    shown = invoke(*SMALL, "--media", "sim", "--dram", "8MiB", code=1)
    assert "never written in this run" in shown.stderr


def test_less_capacity_evicts_leaf_blocks(measure: Measure) -> None:
    result = measure(*SMALL, "--capacity", "4MiB", "--verify", "all")
    total = result["counters"]["total"]
    assert result["workload"]["capacity_bytes"] == 4 * MIB
    assert "evict-tail" in result["workload"]["eviction"]
    assert total["evictions"] > 0
    assert total["misses_lost"] > 0
    assert result["metrics"]["rechecked_blocks"] <= 16


def test_less_capacity_can_be_refused(invoke: Callable[..., Any]) -> None:
    shown = invoke(
        *SMALL,
        "--media",
        "sim",
        "--dram",
        "8MiB",
        "--capacity",
        "4MiB",
        "--on-overflow",
        "error",
        code=1,
    )
    assert "footprint is 9 MiB and the capacity 4 MiB" in shown.stderr


def test_a_request_larger_than_the_capacity_keeps_its_front(measure: Measure) -> None:
    result = measure(*SMALL, "--conversations", "1", "--capacity", "1MiB")
    total = result["counters"]["total"]
    assert total["skipped_no_space"] > 0
    assert [r["hits"] for r in result["rows"]] == [0, 3, 4, 4]


def test_f90_all_dram_is_listed(measure: Measure) -> None:
    result = measure(*SMALL, "--prefetch", "off", "--concurrency", "2")
    used = {d["what"]: d["bytes"] for d in result["dram"]}
    assert used["window"] + used["write buffer"] <= 8 * MIB
    assert used["benchmark: demand read buffers"] == 2 * 256 * KIB
    assert {"device metadata", "payload generator"} <= used.keys()
    assert result["dram_total_bytes"] == sum(used.values())


def test_percentiles_equal_those_of_the_raw_samples(
    invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """Recomputed from the CSV of samples by the definition, not by the tool's code."""
    raw, doc = tmp_path / "s.csv", tmp_path / "r.json"
    invoke(
        *SMALL,
        "--media",
        "sim",
        "--dram",
        "8MiB",
        "--concurrency",
        "2",
        "--samples",
        str(raw),
        "--json",
        str(doc),
    )
    (result,) = json.loads(doc.read_text())["results"]
    times: dict[str, list[int]] = {}
    with raw.open() as f:
        for row in csv.DictReader(f):
            times.setdefault(row["series"], []).append(int(row["end_ns"]) - int(row["start_ns"]))
    assert times.keys() == result["latency"].keys() == {"put", "piece_wait", "request_read"}
    for name, values in times.items():
        said = result["latency"][name]["service_time"]
        assert said["count"] == len(values)
        assert said["max"] == max(values)
        for quantile, share in QUANTILES.items():
            want = np.quantile(values, share, method="inverted_cdf")
            assert said[quantile] == want, (name, quantile)


def test_a_late_request_keeps_its_usable_prefix(measure: Measure) -> None:
    """A deadline of half a turn's time: what came counts, the rest is late, nothing is lost."""
    result = measure(*SMALL, "--sim-read-rate", "100MB/s", "--deadline", "12ms")
    total = result["counters"]["total"]
    assert total["late"] > 0
    assert total["delivered"] > 0
    assert total["hits"] == total["delivered"] + total["late"]


def test_trace_counts_equal_an_infinite_cache(measure: Measure, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = []
    for i in range(40):
        start = int(rng.integers(0, 4)) * 100
        ids = list(range(start, start + int(rng.integers(1, 6))))
        rows.append({"timestamp": 10 * i, "hash_ids": ids})
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    result = measure(
        "turns", "--trace", str(path), "--token-bytes", "64", "--verify", "all", "--rows", "4",
    )  # fmt: skip
    total = result["counters"]["total"]
    assert total["requests"] == 40
    assert total["hit_rate"] == result["workload"]["infinite_cache_hit_rate"] > 0
    assert total["misses_lost"] == 0
    assert [r["label"] for r in result["rows"]] == ["1-10", "11-20", "21-30", "31-40"]


def test_turns_of_one_conversation_never_overlap(measure: Measure, tmp_path: Path) -> None:
    """Else a turn would look up before the one before has put: hits would be lost."""
    requests = [{"t": 0.0, "h": [[0, 2 * n]]} for n in range(1, 6)]
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"block_size": 64, "requests": requests}))
    result = measure("turns", "--trace", str(path), "--token-bytes", "64", "--concurrency", "4")
    assert result["counters"]["total"]["hits"] == 2 + 4 + 6 + 8
    assert result["counters"]["total"]["duplicate"] == 0


@pytest.mark.parametrize(("arrivals", "end_s"), [("traced", 4.0), ("scaled", 1.0)])
def test_f84_a_trace_keeps_its_times(
    invoke: Callable[..., Any], tmp_path: Path, arrivals: str, end_s: float
) -> None:
    """Requests start when they are due (on the virtual clock), and latency counts from then."""
    rows = [{"timestamp": 1000 * i, "hash_ids": [1, 2]} for i in range(5)]
    path, raw, doc = tmp_path / "t.jsonl", tmp_path / "s.csv", tmp_path / "d.json"
    path.write_text("\n".join(map(json.dumps, rows)))
    invoke(
        "turns", "--media", "sim", "--dram", "8MiB", "--trace", str(path),
        "--token-bytes", "64", "--arrivals", arrivals, "--speedup", "4",
        "--samples", str(raw), "--json", str(doc),
    )  # fmt: skip
    with raw.open() as f:
        reads = [r for r in csv.DictReader(f) if r["series"] == "request_read"]
    due = [int(r["intended_ns"]) for r in reads]
    assert len(due) == 4
    assert np.diff(due) == pytest.approx(end_s * 1e9 / 4)
    assert all(int(r["start_ns"]) >= int(r["intended_ns"]) for r in reads)
    (result,) = json.loads(doc.read_text())["results"]
    assert result["latency"]["request_read"]["loop"] == "open"


def test_read_errors_are_counted_and_healed(invoke: Callable[..., Any]) -> None:
    """F94: an EIO ends one request's reads; its block is dropped, put again, and the run fails."""
    shown = invoke(
        *SMALL, "--media", "sim", "--dram", "8MiB", "--fault", "3 read err 5", "--json", "-", code=1
    )
    (failure,) = json.loads(shown.stdout)["failures"]
    assert failure["kind"] == "RunFailed"
    assert "no read failed: " in failure["error"]
    counters = failure["result"]["counters"]["total"]
    assert counters["read_failed"] > 0
    assert counters["hits"] == counters["delivered"] + counters["read_failed"]
    assert counters["admitted"] == 36 + 1, "the lost block is put again in the same turn"
