# SPDX-License-Identifier: Apache-2.0
"""`read` and `rw` on the simulated medium."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chm.bench.config import DeviceConfig
from chm.bench.measure import Samples
from chm.bench.reader import Extent, Reader, ReadResult
from chm.bench.streams import ReadConfig
from chm.bench.target import NeverWritten, open_target

Measure = Callable[..., dict[str, Any]]
KIB, MIB = 1 << 10, 1 << 20
READ = ["read", "--block-size", "256KiB", "--footprint", "16MiB", "--sim-read-latency", "1us"]


@pytest.mark.parametrize("order", ["sequential", "random"])
@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_streams_read_at_the_drives_rate(measure: Measure, order: str, concurrency: str) -> None:
    result = measure(*READ, "--order", order, "--concurrency", concurrency, "--verify", "all")
    metrics = result["metrics"]
    assert len(result["rows"]) == 3
    assert metrics["read_bytes"] == metrics["verified_bytes"] == 3 * 16 * MIB
    assert metrics["read_bytes_per_s"] == pytest.approx(2e9, rel=0.02)
    assert metrics["footprint_over_dram_ratio"] == 2


def test_f82_every_timed_byte_came_from_the_medium(measure: Measure) -> None:
    metrics = measure(*READ)["metrics"]
    assert metrics["medium_read_bytes"] == metrics["read_bytes"]
    assert metrics["from_write_buffer_bytes"] == 0


def test_f82_never_written_extents_are_refused() -> None:
    config = ReadConfig(media="sim", dram=8 * MIB)
    with open_target(config, 4 * MIB) as target:
        target.lay_out(2, MIB, lambda _: None)
        reader = Reader(target, config, Samples(), MIB)
        for extent in (Extent(2 * MIB, MIB, 2), Extent(MIB, 2 * MIB, 1), Extent(4096, MIB, 0)):
            with pytest.raises(NeverWritten, match="was never written"):
                next(reader.read([extent], ReadResult()))


def test_f82_after_an_aborted_fill_only_what_was_written_can_be_read() -> None:
    class Stop(Exception):
        pass

    def tick(_: int) -> None:
        raise Stop

    config = ReadConfig(media="sim", dram=8 * MIB)
    with open_target(config, 4 * MIB) as target:
        with pytest.raises(Stop):
            target.lay_out(4, MIB, tick)
        target.require_written(0, MIB)
        with pytest.raises(NeverWritten):
            target.require_written(MIB, MIB)


def test_a_put_given_up_half_way_is_not_written() -> None:
    config = DeviceConfig(media="sim", dram=8 * MIB, write_buffer=4 * MIB, sim_write_rate=10**6)
    with open_target(config, 32 * MIB) as target:
        writing = target.put(0, 16 * MIB, 0, 0)
        next(writing)
        writing.close()
        with pytest.raises(NeverWritten):
            target.require_written(0, MIB)
        assert target.payload_written == 0
        assert target.refusals == 1


def test_a_failed_read_ends_the_run(invoke: Callable[..., Any]) -> None:
    shown = invoke(*READ, "--media", "sim", "--dram", "8MiB", "--fault", "9 read err 5", code=1)
    assert "with an I/O error after" in shown.stderr


def test_footprint_below_one_object_is_refused(invoke: Callable[..., Any]) -> None:
    shown = invoke("read", "--media", "sim", "--dram", "8MiB", "--footprint", "1MiB", code=1)
    assert "footprint of 1 MiB holds no object of 16 MiB" in shown.stderr


RW = ["rw", "--block-size", "256KiB", "--footprint", "8MiB", "--write-footprint", "8MiB",
      "--duration", "60ms", "--concurrency", "4", "--tune", "flush_unit=64KiB"]  # fmt: skip


def test_f36_reads_keep_their_rate_beside_writes(measure: Measure) -> None:
    """With priority; without it the writes take a large share. One resource for both."""
    result = measure(*RW)
    writes, reads, both, fcfs = result["rows"]
    assert writes["read_bytes"] == 0
    assert reads["medium_write_bytes_per_s"] is None
    assert both["refusals"] > 0, "the write side is saturated"
    metrics = result["metrics"]
    assert metrics["read_kept_ratio"] >= 0.9
    assert metrics["write_kept_ratio"] >= 0.03
    assert metrics["fcfs_read_kept_ratio"] < 0.8
    assert metrics["fcfs_write_kept_ratio"] > 3 * metrics["write_kept_ratio"]
    assert fcfs["label"] == "both, fcfs"
    assert both["flush_at_read"]["max"] <= fcfs["flush_at_read"]["max"]


def test_rw_without_contrast_has_three_phases(measure: Measure) -> None:
    result = measure(*RW, "--contrast", "off", "--prefetch", "off", "--verify", "all")
    assert [r["label"] for r in result["rows"]] == ["writes", "reads", "both"]
    assert "fcfs_read_kept_ratio" not in result["metrics"]


def test_a_real_file_in_a_given_directory(invoke: Callable[..., Any], tmp_path: Any) -> None:
    """The same on a file, made and removed by the run."""
    args = ["--path", str(tmp_path), "--dram", "16MiB", "--rounds", "1", "--verify", "all"]
    shown = invoke("read", "--block-size", "256KiB", "--footprint", "8MiB", *args)
    assert "real time" in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_named_file_stays_and_a_foreign_one_is_safe(
    invoke: Callable[..., Any], tmp_path: Any
) -> None:
    ours, foreign = tmp_path / "ours.chm", tmp_path / "thesis.txt"
    foreign.write_text("years of work")
    args = ["read", "--block-size", "256KiB", "--footprint", "1MiB", "--dram", "16MiB"]
    args += ["--rounds", "1", "--path"]
    invoke(*args, str(ours))
    assert ours.stat().st_size >= MIB
    shown = invoke(*args, str(ours), code=1)
    assert "exists and is not empty" in shown.stderr
    invoke(*args, str(ours), "--overwrite")
    for more in ([], ["--overwrite"]):
        shown = invoke(*args, str(foreign), *more, code=1)
        assert "thesis.txt" in shown.stderr
        assert foreign.read_text() == "years of work"


def test_a_striped_device(invoke: Callable[..., Any], tmp_path: Any) -> None:
    paths = ":".join(str(tmp_path / f"{i}.chm") for i in range(2))
    args = ["--block-size", "256KiB", "--footprint", "4MiB", "--dram", "16MiB", "--stripe", "64KiB"]
    invoke("read", "--path", paths, *args, "--rounds", "1", "--verify", "all")
    assert len(list(tmp_path.iterdir())) == 2


def test_too_little_space_is_refused_with_both_numbers(
    invoke: Callable[..., Any], tmp_path: Any
) -> None:
    shown = invoke("read", "--path", str(tmp_path), "--footprint", "1000TiB", code=1)
    assert "free and this run needs 1000 TiB" in shown.stderr
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_for_a_simulated_medium(invoke: Callable[..., Any]) -> None:
    shown = invoke("read", "--media", "sim", "--dram", "8MiB", "--footprint", "1000TiB", code=1)
    assert "keeps 1000 TiB in memory" in shown.stderr


def test_temporary_files_go_after_an_error(tmp_path: Any) -> None:
    config = DeviceConfig(path=str(tmp_path), dram=16 * MIB)
    with pytest.raises(NeverWritten), open_target(config, MIB) as target:
        target.require_written(0, 1)
    assert list(tmp_path.iterdir()) == []
