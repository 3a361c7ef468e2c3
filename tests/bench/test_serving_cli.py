# SPDX-License-Identifier: Apache-2.0
"""The command of the serving benchmark: wrong usage, and what it would start. No engine runs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import click.testing
import pytest

from bench.serving import __main__ as command
from bench.serving import arms, cores
from bench.serving.arms import Place
from bench.serving.workload import Workload

W = Workload(1024)
MODEL = Path("model")


def named(name: str) -> arms.Arm:
    return arms.ARMS[arms.NAMES.index(name)]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--arms", "vllm-chm,disk"], "no arm is called disk"),
        (["--tokens", "2000"], "not a multiple of 128"),
        (["--tokens", "x"], "'x' is not a list of whole numbers"),
        (["--pace", "-1"], "numbers must be above 0"),
        (["--arms", "vllm-fs"], "--pace needs the arm recompute"),
        (["--arms", "recompute", "--dir", "nowhere"], "'nowhere' does not exist"),
        (["--chm", "dram"], "'dram' is not FIELD=VALUE"),
        (["--chm", "drum=1"], "has no field 'drum'"),
    ],
)
def test_wrong_usage_names_the_fix(args: list[str], text: str) -> None:
    result = click.testing.CliRunner().invoke(command.main, args)
    assert result.exit_code == 2
    assert text in result.stderr


def test_without_an_engine_it_says_where_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    result = click.testing.CliRunner().invoke(command.main, ["--arms", "recompute"])
    assert result.exit_code == 2
    assert "tools/engines run python -m bench.serving" in result.stderr


def test_help_names_all_arms() -> None:
    result = click.testing.CliRunner().invoke(command.main, ["--help"])
    assert result.exit_code == 0
    text = "".join(result.stdout.split())  # lines break at hyphens
    for name in arms.NAMES:
        assert name in text


@pytest.mark.parametrize("arm", arms.ARMS, ids=arms.NAMES)
def test_arms_differ_in_the_cache_alone(arm: arms.Arm) -> None:
    found = arms.worker_config(arm, W, Place(Path("x"), port=5900), MODEL)
    base = arms.worker_config(arms.ARMS[0], W, Place(Path("x")), MODEL)
    may_differ = {"arm", "host", "caching", "transfer"}
    assert {k: v for k, v in found.items() if k not in may_differ} == {
        k: v for k, v in base.items() if k not in may_differ
    }
    assert json.loads(json.dumps(found)) == found


def test_a_drive_backed_arm_has_a_small_cpu_tier_and_its_oracle_a_large_one() -> None:
    def cpu_bytes(name: str) -> int:
        found = arms.worker_config(named(name), W, Place(Path("x")), MODEL)
        return int(found["transfer"]["kv_connector_extra_config"]["cpu_bytes_to_use"])

    assert cpu_bytes("vllm-fs") == cpu_bytes("vllm-chm") == W.share_bytes
    assert cpu_bytes("vllm-dram") > W.footprint_bytes


def test_options_of_ours_are_those_of_a_tier() -> None:
    from chm.connectors import TierOptions

    plain = TierOptions(**arms.tier_options(W, Place(Path("x"))))
    assert plain.dram == W.share_bytes
    assert plain.device is None
    paced = arms.tier_options(W, Place(Path("x"), pace=10**9, ram=True, chm={"hint_share": 1.0}))
    assert TierOptions(**paced).device == {"pace": {"rate": 10**9}}
    assert (paced["buffered"], paced["hint_share"]) == (True, 1.0)


def test_a_paced_file_tier_of_others_gets_the_library(tmp_path: Path) -> None:
    from bench.serving.process import _preload

    fs, chm = named("vllm-fs"), named("vllm-chm")
    place = Place(tmp_path, pace=5)
    assert _preload(fs, place, Path("pace.so"))["CHM_PACE_RATE"] == "5"
    assert _preload(chm, place, Path("pace.so")) == {}
    assert _preload(fs, Place(tmp_path), Path("pace.so")) == {}


def test_threads_are_told_apart() -> None:
    before = cores.used_here()
    used = cores.used_here().since(before)
    assert 0 <= used.engine_s < 60
    assert used.read_bytes == 0
    other = cores.used_by(os.getpid())
    assert other.other_s >= 0


@pytest.fixture(scope="module")
def pacer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built here, with the warnings of the build."""
    out = tmp_path_factory.mktemp("pace") / "pace.so"
    source = command.TOP / "bench" / "serving" / "pace.c"
    line = ["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(source)]
    subprocess.run([*line, "-o", str(out), "-ldl"], check=True)
    return out


def reading(pacer: Path, folder: Path, path: Path, rate: int) -> dict[str, Any]:
    """Read a file in a process that is paced; what it saw, and the clock's part in it."""
    text = (
        "import json, os, sys, time\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "begin = time.monotonic()\n"
        "n = sum(len(os.pread(fd, 1 << 20, i << 20)) for i in range(4))\n"
        "print(json.dumps({'n': n, 'seconds': time.monotonic() - begin}))\n"
    )
    extra = {"LD_PRELOAD": str(pacer), "CHM_PACE_DIR": str(folder), "CHM_PACE_RATE": str(rate)}
    done = subprocess.run(
        ["python3", "-c", text, str(path)],
        env={**os.environ, **extra},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def test_a_paced_folder_cannot_be_read_faster(pacer: Path, tmp_path: Path) -> None:
    """4 MiB at 16 MiB/s, of which 1 MiB is free: never faster, however slow the machine is."""
    path = tmp_path / "in" / "file"
    path.parent.mkdir()
    path.write_bytes(bytes(4 << 20))
    found = reading(pacer, path.parent, path, 16 << 20)
    assert found["n"] == 4 << 20
    assert found["seconds"] >= 3 / 16
