# SPDX-License-Identifier: Apache-2.0
"""`chm-bench calibrate`, `twin`: figures are checked in virtual time, on files only behaviour."""

from __future__ import annotations

import functools
import io
import json
import os
import socket
import subprocess
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import chm
from chm import preset as presets
from chm.bench import calibrate as calibrate_module
from chm.bench import twin
from chm.bench.calibrate import Calibration, prepare, preset_of, preset_text, sweep, sweep_points
from chm.bench.fit import Model, errors, fit
from chm.bench.probe import Place, Point, measure
from chm.bench.target import BenchError
from chm.bench.twin import (
    READ_REFERENCE,
    SETUPS,
    WRITE_REFERENCE,
    Real,
    Simulated,
    compare,
    joined_link,
    setups,
)
from chm.bench.twins import show_comparison
from chm.bench.ui import Progress
from chm.preset import Number, Preset

Invoke = Callable[..., Any]
MIB = 1 << 20
TOP = Path(__file__).resolve().parents[2]
# Sizes and times that keep a run below a few seconds; no figure of such a run means anything.
SMALL = ("--size", "32MiB", "--time", "1ms", "--media", "sync", "--buffered")

DRIVE = Model(
    read_rate=2e9,
    read_latency_ns=150_000.0,
    write_rate=1e9,
    write_latency_ns=60_000.0,
    barrier_ns=1_000_000.0,
    software_ns=5_000.0,
)


@functools.cache
def calibration(model: Model, size: int = 64 * MIB) -> Calibration:
    """A calibration of a simulated drive."""
    place = Place(size, sim=model.sim(), link=model.link())
    seen = sweep(place, sweep_points(size, True), 0, 1, Progress())
    found = fit(seen)
    facts = calibrate_module.facts_of(Path("/"))
    worth = errors(found, seen, size)
    return Calibration(seen, found, worth, 3e9, 1.0, 1.0, True, True, facts)


def device(path: Path, size: int = 40 * MIB, written: int | None = None) -> Path:
    """A chm device whose first bytes were written."""
    chm.format([str(path)], size, buffered=True)
    with chm.open([str(path)], media="sync", buffered=True, dram_bytes="32MiB") as dev:
        for at in range(0, size if written is None else written, MIB):
            dev.write(at, os.urandom(MIB))
        dev.flush()
    return path


# ------------------------------------------------------------------------------------ the preset


def test_the_preset_loads_and_is_the_model(tmp_path: Path, invoke: Invoke) -> None:
    c = calibration(DRIVE)
    path = tmp_path / "mine.toml"
    path.write_text(preset_text(c, "mine"))
    loaded = presets.load(path)
    assert loaded.digest == preset_of(c, "mine").digest
    for name, value in DRIVE.sim().items():
        assert loaded.get(name) == pytest.approx(value, rel=0.03), name
    assert {n.grade for n in loaded.numbers.values()} == {"M"}
    assert all(n.source for n in loaded.numbers.values())
    assert presets.warnings(loaded) == []
    assert "mine: ok" in invoke("preset", "check", str(path)).stdout
    assert loaded.get("link_write_rate") == 3 * 10**9
    run = ("turns", "--preset", str(path), "--conversations", "2", "--block-size", "64KiB")
    (result,) = json.loads(invoke(*run, "--json", "-").stdout)["results"]
    assert result["device"]["options"]["sim"]["volatile_cache"] is True


def test_every_point_and_its_spread_are_in_the_file() -> None:
    c = calibration(DRIVE)
    text = preset_text(c, "mine")
    for o in c.seen:
        assert f"# {o.point}" in text
    assert "spread" in text
    assert "host: {" in text


@pytest.mark.sweep
def test_the_host_is_left_out_where_it_does_not_matter() -> None:
    c = calibration(DRIVE)
    fast = Calibration(**{**vars(c), "fill_rate": 40e9})
    assert not any(n.startswith("link_") for n in preset_of(fast, "x").numbers)
    slow = calibration(Model(**{**vars(DRIVE), "host_ns": 200_000.0}))
    numbers = preset_of(slow, "x").numbers
    assert numbers["link_latency_ns"].value == pytest.approx(200_000, rel=0.03)
    throttle = calibration(Model(**{**vars(DRIVE), "host_ns": 2_000_000.0}))
    assert throttle.model.host_ns == pytest.approx(2_000_000, rel=0.03)
    assert "link_latency_ns" not in preset_of(throttle, "x").numbers


# ------------------------------------------------------------------------------------ calibrate


def test_calibrate_a_directory(tmp_path: Path, invoke: Invoke) -> None:
    where = tmp_path / "disk"
    where.mkdir()
    out = tmp_path / "p.toml"
    shown = invoke("calibrate", str(where), "--out", str(out), *SMALL, "--json", "-")
    assert list(where.iterdir()) == []
    document = json.loads(shown.stdout)
    found = document["calibration"]
    assert found["writes_measured"]
    assert {p["kind"] for p in found["points"]} == {"read", "write", "mixed", "demand", "barrier"}
    assert all(len(p["samples_ns"]) == 1 for p in found["points"])
    assert document["preset"]["sim"]["read_rate"]["grade"] == "M"
    assert "writes go to new blocks" in document["preset"]["summary"]
    loaded = presets.load(out)
    for name in ("read_rate", "write_rate", "read_latency_ns", "write_latency_ns", "barrier_ns"):
        assert loaded.get(name) > 0


def test_no_paths_and_no_names_in_the_preset(tmp_path: Path, invoke: Invoke) -> None:
    out = tmp_path / "p.toml"
    invoke("calibrate", str(tmp_path), "--out", str(out), *SMALL)
    text = out.read_text()
    assert str(tmp_path) not in text
    assert socket.gethostname() not in text
    assert "/dev/" not in text


def test_a_given_device_is_only_read(tmp_path: Path, invoke: Invoke) -> None:
    path = device(tmp_path / "x.chm")
    before = path.read_bytes()
    out = tmp_path / "p.toml"
    document = json.loads(
        invoke("calibrate", str(path), "--out", str(out), *SMALL, "--json", "-").stdout
    )
    assert path.read_bytes() == before
    assert not document["calibration"]["writes_measured"]
    loaded = presets.load(out)
    assert "write_rate" not in loaded.numbers
    assert "writes were not measured" in loaded.summary
    with pytest.raises(BenchError, match="no measured write_rate"):
        compare(loaded, Real(Place(MIB), {}), SETUPS, 1, Fraction(1), Progress())


@pytest.mark.parametrize("written", [0, 4 * MIB])
def test_what_was_never_written_is_not_read(tmp_path: Path, invoke: Invoke, written: int) -> None:
    path = device(tmp_path / "x.chm", written=written)
    out = tmp_path / "p.toml"
    shown = invoke("calibrate", str(path), "--out", str(out), *SMALL, code=1)
    assert "ever written" in shown.stderr
    assert "--overwrite" in shown.stderr
    assert not out.exists()


def test_pages_of_zeros_count_as_not_written(tmp_path: Path, invoke: Invoke) -> None:
    """A drive that discards what it never got, or a file that was filled with zeros."""
    path = device(tmp_path / "x.chm")
    with path.open("r+b") as f:
        f.seek(8 * MIB)
        f.write(bytes(2 * MIB))
    shown = invoke("calibrate", str(path), "--out", str(tmp_path / "p.toml"), *SMALL, code=1)
    assert "reads as zeros" in shown.stderr


def test_a_foreign_file_needs_overwrite(tmp_path: Path, invoke: Invoke) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(os.urandom(48 * MIB))
    before = path.read_bytes()
    args = ("calibrate", str(path), "--out", str(tmp_path / "p.toml"), *SMALL)
    assert "--overwrite" in invoke(*args, code=1).stderr
    assert path.read_bytes() == before
    invoke(*args, "--overwrite")
    assert "writes go over old ones" in presets.load(tmp_path / "p.toml").summary
    assert "name a directory" in invoke(*args, "--force", "--writes", "fresh", code=1).stderr
    assert path.read_bytes()[: 4 * MIB] != before[: 4 * MIB]
    with chm.open([str(path)], media="sync", buffered=True) as dev:
        assert dev.info.capacity_bytes == 32 * MIB


def test_temporary_files_go_after_an_error_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def interrupted() -> None:
        with prepare(tmp_path, 32 * MIB, "sync", buffered=True) as ready:
            seen.append(ready.path)
            assert ready.path.stat().st_size >= 32 * MIB
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(seen) == 1
    assert list(tmp_path.iterdir()) == []

    def fails(*_: object) -> None:
        raise BenchError("while it was filled")

    monkeypatch.setattr(calibrate_module, "_fill", fails)
    with pytest.raises(BenchError), prepare(tmp_path, 32 * MIB, "sync", buffered=True):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (["--out", "p.ini"], 2, "ends in .toml"),
        (["--out", "no/such/p.toml"], 2, "there is no directory"),
        (["--out", "p.toml", "--time", "soon"], 2, "--time 'soon'"),
        (["--out", "p.toml", "--size", "1MiB"], 1, "at least 32 MiB"),
        (["--out", "p.toml", "--size", "1000TiB"], 1, "smaller --size"),
        ([], 2, "--out"),
    ],
)
def test_calibrate_refuses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Invoke,
    args: list[str],
    code: int,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert reason in invoke("calibrate", ".", *args, code=code).stderr
    assert list(tmp_path.iterdir()) == []


def test_calibrate_keeps_what_is_there(tmp_path: Path, invoke: Invoke) -> None:
    out = tmp_path / "p.toml"
    out.write_text("mine")
    assert "--force" in invoke("calibrate", str(tmp_path), "--out", str(out), code=2).stderr
    assert out.read_text() == "mine"
    gone = str(tmp_path / "gone")
    other = str(tmp_path / "q.toml")
    assert "does not exist" in invoke("calibrate", gone, "--out", other, code=1).stderr


def test_the_tool_is_the_command() -> None:
    done = subprocess.run(
        ["bash", "-n", str(TOP / "tools" / "calibrate")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert os.access(TOP / "tools" / "calibrate", os.X_OK)
    assert 'chm-bench" calibrate "$@"' in (TOP / "tools" / "calibrate").read_text()


# ------------------------------------------------------------------------------------ twin


def preset_with(**changes: Any) -> Preset:
    values = {**DRIVE.sim(), **changes}
    return Preset("twin", "", {k: Number(v, v, "test", "M") for k, v in values.items()})


def drive_with(**changes: Any) -> Real:
    """In the place of a real drive: a simulated one, whose parameters are known."""
    sim = {**DRIVE.sim(), **changes}
    words = " ".join(f"{k}={'on' if v is True else v}" for k, v in sim.items())
    options = {"media": "sim", "sim_contents": False, "set": words}
    return Real(Place(twin.REFERENCE_BYTES, sim=sim), options)


REFERENCES = (READ_REFERENCE, WRITE_REFERENCE)
FEW = setups(["1 stream", "no prefetch", "with writes", "32 MiB DRAM", "link"])
SIXTEENTH = Fraction(1, 16)


def test_at_least_six_configurations() -> None:
    assert len(SETUPS) >= 6
    assert len({s.name for s in SETUPS}) == len(SETUPS)
    options = [s.options for s in SETUPS]
    assert {o.get("concurrency", 1) for o in options} == {1, 8}
    assert {o.get("prefetch", True) for o in options} == {True, False}
    assert any(s.mixed for s in SETUPS)
    assert any("link_rate" in o for o in options)
    assert any("dram" in o for o in options)
    assert {s.block_bytes for s in SETUPS} == {MIB, 4 * MIB, 16 * MIB}


def test_a_twin_of_itself_is_exact() -> None:
    found = compare(preset_with(), drive_with(), FEW, 2, SIXTEENTH, Progress())
    assert {f.setup.name for f in found.figures} == {s.name for s in FEW}
    for f in found.figures:
        assert f.ratio == pytest.approx(1, rel=1e-6), f.setup.name
        assert f.scaled_ratio == pytest.approx(1, rel=0.01), f.setup.name
        assert len(f.measured) == len(f.scaled) == 2


def test_drift_is_removed_and_not_hidden() -> None:
    """A drive at half the rates it was calibrated at: one prediction is off and says so, the other
    finds its way."""
    slow = drive_with(read_rate=10**9, write_rate=5 * 10**8)
    chosen = setups(["16 MiB, 8 streams"])
    found = compare(preset_with(), slow, chosen, 1, SIXTEENTH, Progress())
    for f in found.figures:
        assert f.ratio > 1.4
        assert f.scaled_ratio == pytest.approx(1, rel=0.03)
    told = found.to_dict()
    assert told["as_calibrated_within_count"] == 0
    assert told["drift_removed_within_count"] == told["count"] == len(found.figures)


def test_the_simulated_reference_follows_the_real_one() -> None:
    preset = preset_with(read_latency_ns=5_000_000)
    own = {p.kind: Simulated(preset).reference_ns(p) for p in REFERENCES}
    seen = {kind: 3 * ns // 2 for kind, ns in own.items()}
    scaled = Simulated(preset, twin.factors(preset, own, seen, seen))
    for p in REFERENCES:
        assert scaled.reference_ns(p) == pytest.approx(seen[p.kind], rel=0.002)


def test_a_probe_of_first_writes_leaves_no_file(tmp_path: Path) -> None:
    with prepare(tmp_path, 32 * MIB, "sync", buffered=True) as ready:
        assert ready.place.fresh
        for kind in ("write", "mixed", "barrier"):
            assert measure(ready.place, Point(kind, MIB, 2, 2), 1) > 0
            assert [p.name for p in ready.path.parent.iterdir()] == ["device.chm"]


@pytest.mark.sweep
def test_the_table_fits_80_columns() -> None:
    found = compare(preset_with(), drive_with(), SETUPS, 1, SIXTEENTH, Progress())
    console = Console(width=80, record=True, file=io.StringIO())
    show_comparison(console, found)
    text = console.export_text()
    assert "…" not in text
    for f in found.figures:
        assert f.setup.name in text


def test_links_add_up() -> None:
    host = {"link_rate": 10**12, "link_write_rate": 10**9, "link_latency_ns": 5}
    assert joined_link(host, 0) == host
    assert joined_link(host, 10**9) == {
        "link_rate": 10**9,
        "link_write_rate": 5 * 10**8,
        "link_latency_ns": 5,
    }
    assert joined_link({}, 10**9) == {"link_rate": 10**9, "link_write_rate": 10**9}


def test_a_scaled_twin_changes_rates_only() -> None:
    base, scaled = Simulated(preset_with()), Simulated(preset_with(), {"read": 0.5})
    assert scaled.sim() == {**base.sim(), "read_rate": base.sim()["read_rate"] // 2}


def test_twin_on_files(tmp_path: Path, invoke: Invoke) -> None:
    where = tmp_path / "disk"
    where.mkdir()
    png, kept = tmp_path / "t.png", tmp_path / "kept.toml"
    args = ("twin", str(where), *SMALL[2:], "--size", "64MiB", "--scale", "1/64")
    only = ("--only", "16 MiB, no prefetch", "--only", "with writes", "--repeats", "1")
    shown = invoke(*args, *only, "--png", str(png), "--out", str(kept), "--json", "-")
    assert list(where.iterdir()) == []
    document = json.loads(shown.stdout)
    assert "drift removed" in shown.stderr
    assert "reference read" in shown.stderr
    lines = {(f["configuration"], f["what"]) for f in document["twin"]["figures"]}
    assert lines == {
        ("16 MiB, no prefetch", "read"),
        ("16 MiB, no prefetch", "write"),
        ("4 MiB, with writes", "both"),
    }
    assert document["calibration"]["points"]
    assert len(document["twin"]["references_bytes_per_s"]["read"]) == 3
    assert png.stat().st_size > 0
    assert presets.load(kept).get("read_rate") > 0
    assert str(tmp_path) not in json.dumps(document["twin"])


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (["--repeats", "0"], 2, "at least 1"),
        (["--only", "7 MiB"], 1, "there are: 16 MiB, 1 stream"),
        (["--preset", "gen5-tl", *SMALL], 2, "did you mean 'gen5-tlc'"),
        (["--scale", "0"], 2, "--scale '0'"),
    ],
)
def test_twin_refuses(
    tmp_path: Path, invoke: Invoke, args: list[str], code: int, reason: str
) -> None:
    assert reason in invoke("twin", str(tmp_path), *args, code=code).stderr
    assert list(tmp_path.iterdir()) == []


def test_help_is_there(invoke: Invoke) -> None:
    assert "calibrate" in invoke("--help").stdout
    assert "as calibrated" in invoke("twin", "--help").stdout
