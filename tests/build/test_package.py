# SPDX-License-Identifier: Apache-2.0
"""What people build and install: libchm, the wheel, and what they are told when it cannot be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

# What a wheel may need from the system it is installed on. liburing is inside.
SYSTEM_LIBRARIES = {"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "libm.so.6"}


def run(*command: str | Path, cwd: Path = TOP, **env: str) -> str:
    """Run to success; output is in the failure otherwise."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{command} gave {done.returncode}:\n{done.stdout}"
    return done.stdout


def fails(*command: str | Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=TOP, env={**os.environ, **env}, capture_output=True, text=True
    )
    assert done.returncode != 0, done.stdout
    return done.stderr


def public_functions() -> set[str]:
    text = re.sub(r"/\*.*?\*/", "", (TOP / "csrc" / "chm.h").read_text(), flags=re.DOTALL)
    return set(re.findall(r"\b(chm_\w+)\(", text))


def needed(library: Path) -> set[str]:
    return set(re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", library)))


# ----------------------------------------------------------------------------------------- libchm


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libchm, installed."""
    where = tmp_path_factory.mktemp("prefix")
    run("make", "-s", "-j2", "-C", "csrc", "SAN=", "install", f"PREFIX={where}")
    return where


def test_library_exports_the_header_and_nothing_else(prefix: Path) -> None:
    symbols = run("nm", "-D", "--defined-only", prefix / "lib" / "libchm.so")
    assert set(re.findall(r" [TDBRW] (\w+)", symbols)) == public_functions()


def test_library_needs_only_the_system(prefix: Path) -> None:
    """F81."""
    if not re.search(r"liburing\.a", run("make", "-n", "-B", "-C", "csrc", "SAN=")):
        pytest.skip("this system has no liburing.a, so libchm.so needs liburing.so")
    assert needed(prefix / "lib" / "libchm.so") <= SYSTEM_LIBRARIES


def test_soname(prefix: Path) -> None:
    assert "SONAME" in (dump := run("objdump", "-p", prefix / "lib" / "libchm.so"))
    assert re.search(r"SONAME\s+libchm\.so\.0\n", dump)


def test_example_builds_against_the_installed_library(prefix: Path, tmp_path: Path) -> None:
    run("make", "-s", "-B", "-C", "csrc", "SAN=", "example", f"PREFIX={prefix}")
    hello = TOP / "build" / "c" / "plain" / "hello"
    output = run(hello, tmp_path / "hello.chm", LD_LIBRARY_PATH=str(prefix / "lib"))
    assert output == "1048576 bytes, the first is 'h', the last is 'h'\n"


def test_header_compiles_alone(tmp_path: Path) -> None:
    source = tmp_path / "alone.c"
    source.write_text('#include "chm.h"\n#include "chm.h"\n')
    run(
        "cc",
        "-std=c11",
        "-pedantic-errors",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        TOP / "csrc",
        "-c",
        source,
        "-o",
        tmp_path / "alone.o",
    )


# ------------------------------------------------------------------------------ the Python package


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the source distribution, as an installer makes it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, TOP)
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.slow
def test_wheel_is_for_every_python(wheel: Path) -> None:
    assert re.fullmatch(r"chm_kv-[0-9.]+-cp310-abi3-linux_\w+\.whl", wheel.name)


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"chm"}
    sources = {str(path.relative_to(TOP)) for path in (TOP / "chm").rglob("*.py")}
    sources |= {str(path.relative_to(TOP)) for path in (TOP / "chm" / "presets").iterdir()}
    assert sources <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_extension_needs_only_the_system(wheel: Path, tmp_path: Path) -> None:
    """F81: no undeclared library, one entry point, and no path of the machine that built it."""
    zipfile.ZipFile(wheel).extract("chm/_core.abi3.so", tmp_path)
    core = tmp_path / "chm" / "_core.abi3.so"
    assert needed(core) <= SYSTEM_LIBRARIES
    assert re.findall(r" T (\w+)", run("nm", "-D", "--defined-only", core)) == ["PyInit__core"]
    contents = core.read_bytes()
    for path in re.findall(r"R(?:UN)?PATH\s+(\S+)", run("objdump", "-p", core)):
        contents = contents.replace(path.encode(), b"")  # an interpreter's own linker flags
    for path in (str(TOP), str(Path.home())):
        assert path.encode() + b"/" not in contents


@pytest.mark.slow
def test_wheel_imports_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    bin_folder = tmp_path / "env" / "bin"
    run(bin_folder / "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    script = "import chm; print(chm.__version__, chm.__file__)"
    python = bin_folder / "python"
    version, path = run(python, "-c", script, cwd=tmp_path, PYTHONPATH="").split()
    assert path.startswith(str(tmp_path))
    assert f"-{version}-" in wheel.name
    assert "doctor" in run(bin_folder / "chm-bench", "--help", cwd=tmp_path, PYTHONPATH="")
    shown = run(bin_folder / "chm-bench", "preset", "show", "gen5-tlc", cwd=tmp_path, PYTHONPATH="")
    assert 'name = "gen5-tlc"' in shown


# ------------------------------------------------------------------------ when something is missing


@pytest.fixture
def no_liburing(tmp_path: Path) -> str:
    """A pkg-config that knows no liburing."""
    fake = tmp_path / "pkg-config"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    return str(fake)


@pytest.mark.parametrize(
    "command",
    [
        [
            sys.executable,
            "setup.py",
            "-q",
            "build_ext",
            "--build-lib",
            "none",
            "--build-temp",
            "none",
        ],
        ["make", "-C", "csrc"],
    ],
    ids=["package", "library"],
)
@pytest.mark.parametrize("pkg_config", ["no_liburing", "nowhere"])
def test_missing_liburing_is_one_line(
    command: list[str], pkg_config: str, request: pytest.FixtureRequest
) -> None:
    """F78: the message says what to install."""
    tool = "nowhere" if pkg_config == "nowhere" else request.getfixturevalue(pkg_config)
    message = fails(*command, PKG_CONFIG=tool)
    (line,) = [line for line in message.splitlines() if "liburing" in line]
    assert "liburing-dev" in line
    assert "Traceback" not in message


OLD_CFFI = """
import sys, types
old = types.ModuleType("_cffi_backend")
old.__version__ = "1.2.3"
old.__file__ = "/somewhere/old/_cffi_backend.so"
sys.modules["_cffi_backend"] = old
import chm
"""


def test_old_cffi_backend_is_explained() -> None:
    """F80: a backend of another version, first on the path."""
    message = fails(sys.executable, "-c", OLD_CFFI)
    last = message.strip().splitlines()[-1]
    assert "1.2.3" in message, message
    assert "/somewhere/old" in message, message
    assert last.startswith("ImportError"), message
