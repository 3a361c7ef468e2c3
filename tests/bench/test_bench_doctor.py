# SPDX-License-Identifier: Apache-2.0
"""`doctor`: each thing that can be wrong is told with its fix; nothing it meets makes it crash."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import json
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import chm
from chm.bench import doctor

MIB, GIB = 1 << 20, 1 << 30


def fails(code: int) -> Callable[[], None]:
    def setup() -> None:
        raise OSError(code, "x")

    return setup


@pytest.mark.parametrize(
    ("finding", "status", "fix"),
    [
        (doctor.check_kernel("6.1.0-18-amd64"), "ok", ""),
        (doctor.check_kernel("5.15.0"), "warn", "6.1 or newer"),
        (doctor.check_kernel("4.19.0-x"), "warn", "6.1 or newer"),
        (doctor.check_cpus(2), "ok", ""),
        (doctor.check_cpus(1), "warn", "cpuset"),
        (doctor.check_memory(GIB, 256 * MIB), "ok", ""),
        (doctor.check_memory(GIB, 2 * GIB), "fail", "--dram"),
        (doctor.check_huge_pages(128, 256 * MIB), "ok", ""),
        (doctor.check_huge_pages(127, 256 * MIB), "warn", "vm.nr_hugepages=128"),
        (doctor.check_space(Path("/x"), 9 * GIB), "ok", ""),
        (doctor.check_space(Path("/x"), 2 * GIB), "warn", "--path"),
        (doctor.check_space(Path("/x"), MIB), "fail", "--path"),
        (doctor.check_ring(lambda: None), "ok", ""),
        (doctor.check_ring(fails(errno.EPERM)), "warn", "kernel.io_uring_disabled=0"),
        (doctor.check_ring(fails(errno.ENOSYS)), "warn", "seccomp"),
        (doctor.check_ring(fails(errno.ENOMEM)), "warn", "ulimit -l"),
        (doctor.check_ring(fails(errno.EMFILE)), "warn", "log"),
        (doctor.check_registered(None, None, GIB), "ok", ""),
        (doctor.check_registered(None, GIB, GIB), "ok", ""),
    ],
)
def test_findings(finding: doctor.Finding, status: str, fix: str) -> None:
    assert finding.status == status
    assert fix in finding.fix
    assert bool(finding.fix) == (status != "ok")


def test_a_low_locked_memory_limit_names_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    finding = doctor.check_registered(None, 8 * MIB, 256 * MIB)
    assert finding.status == "warn"
    assert "ulimit -l 262144" in finding.fix
    assert "limits.conf" in finding.fix


@pytest.mark.parametrize(
    ("code", "status", "detail"),
    [
        ("import json; print(json.dumps(['IORING_OP_' + n for n in %r]))", "ok", "5, with all"),
        ("print('[\"IORING_OP_READ\"]')", "warn", "lacks WRITE, READ_FIXED"),
        ("import os; os.kill(os.getpid(), 4)", "ok", "SIGILL"),
        ("import nothing_of_that_name", "ok", "nothing_of_that_name"),
    ],
)
def test_the_independent_probe_may_crash(code: str, status: str, detail: str) -> None:
    """Some wheels of that library use instructions that this CPU may not have."""
    code = code % (doctor._NEEDED,) if "%r" in code else code
    finding = doctor.check_operations((sys.executable, "-c", code))
    assert (finding.status, detail in finding.detail) == (status, True), finding


def test_document_and_table(invoke: Callable[..., object], tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    shown = invoke("doctor", "--path", str(tmp_path), "--dram", "64MiB", "--json", str(path))
    doc = json.loads(path.read_text())
    assert doc["schema"] == "chm-bench/1"
    assert doc["ok"] is True
    assert doc["host"]["kernel"] == platform.release()
    found = {f["name"]: f for f in doc["findings"]}
    assert found["device on a file"]["status"] in ("ok", "warn")
    assert found["simulator"]["status"] == "ok"
    assert all(f["fix"] for f in doc["findings"] if f["status"] != "ok")
    assert all(name.split()[0] in shown.stdout for name in found)  # type: ignore[attr-defined]
    assert not list(tmp_path.glob("chm-doctor-*")), "its trial files are gone"


def test_a_failure_is_an_exit_code(invoke: Callable[..., object]) -> None:
    shown = invoke("doctor", "--dram", "1PiB", code=1)
    assert "fix:" in shown.stdout  # type: ignore[attr-defined]


# What a container's default seccomp profile does: every io_uring call answers an error number.
_UNDER_SECCOMP = """
import sys
from test_bench_doctor import refuse_io_uring
refuse_io_uring(int(sys.argv[1]))
from chm.bench.cli import cli
cli(["doctor", "--path", sys.argv[2], "--dram", "64MiB", "--json", "-"])
"""


def refuse_io_uring(code: int) -> None:
    """From here on this process gets -code from every io_uring call (a seccomp filter)."""
    load_number, equal, answer, allow = 0x20, 0x15, 0x06, 0x7FFF0000
    program = [(load_number, 0, 0, 0)]
    for number in (425, 426, 427):
        program += [(equal, 0, 1, number), (answer, 0, 0, 0x00050000 | code)]
    program += [(answer, 0, 0, allow)]
    body = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in program))
    head = ctypes.create_string_buffer(struct.pack("H6xP", len(program), ctypes.addressof(body)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0, "no_new_privs"
    assert libc.prctl(22, 2, head, 0, 0) == 0, "seccomp"


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_in_a_container_that_blocks_io_uring(code: int, tmp_path: Path) -> None:
    """It runs on the fallback, says so, and names the fix."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", _UNDER_SECCOMP, str(code), str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = {f["name"]: f for f in json.loads(run.stdout)["findings"]}
    assert found["io_uring"]["status"] == "warn"
    assert "seccomp" in found["io_uring"]["fix"]
    assert found["device on a file"]["status"] == "warn"
    assert "media threads" in found["device on a file"]["detail"]


def test_small_pages_that_are_made_huge_are_as_good_as_reserved_ones() -> None:
    with chm.sim("8MiB", dram_bytes="32MiB") as dev:
        info = dev.info
    made = dataclasses.replace(info, huge_bytes=2 * MIB)
    small = dataclasses.replace(info, huge_bytes=0)
    assert doctor.check_huge_pages(0, 256 * MIB, made).status == "ok"
    assert doctor.check_huge_pages(0, 256 * MIB, small).status == "warn"
