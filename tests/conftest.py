# SPDX-License-Identifier: Apache-2.0
"""Collects C test programs beside the Python tests, and says where tests may put files.

Every tests/**/test_*.c is a test: it is linked with the C core and run; exit code 0 is a pass, 77 a
skip with the program's output as the reason, anything else a failure with that output. Environment:

CHM_SAN           address or thread: C core, C tests and extension built with sanitizers. Their
                  runtime has to be preloaded into Python: `tools/test --only address` does so.
CHM_TEST_DIR      where backing files go; default build/test. Not a tmpfs: that has no O_DIRECT.
CHM_TEST_TIMEOUT  seconds for one C program; default 120, with sanitizers 480.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

TOP = Path(__file__).resolve().parent.parent
sys.path.append(str(TOP))  # bench is not installed
SANITIZER = os.environ.get("CHM_SAN", "")
SCRATCH = Path(os.environ.get("CHM_TEST_DIR") or TOP / "build" / "test").resolve()
BUILT = TOP / "build" / "c" / (SANITIZER or "plain")
SKIPPED = 77
THREADED = re.compile(r"pthread_create|chm_thread_create|\bthread = ")
LIMIT_S = float(os.environ.get("CHM_TEST_TIMEOUT", "480" if SANITIZER else "120"))

# No wall-clock threshold in tests, and a failure prints what replays it.
hypothesis.settings.register_profile("chm", deadline=None, print_blob=True)
hypothesis.settings.load_profile("chm")


def pytest_configure(config: pytest.Config) -> None:
    # A job in the background of a script is started with SIGINT ignored, and so would its children
    # be, of which some tests want to see how they are interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    os.environ["CHM_TEST_DIR"] = str(SCRATCH)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SCRATCH))  # where tmp_path lies
    if SANITIZER and f"lib{SANITIZER[0]}san" not in os.environ.get("LD_PRELOAD", ""):
        raise pytest.UsageError(
            f"CHM_SAN={SANITIZER} needs its runtime preloaded: use tools/test --only {SANITIZER}"
        )


def pytest_report_header() -> str:
    return f"chm: {SANITIZER or 'plain'} build, files in {SCRATCH}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix == ".c" and file_path.name.startswith("test_"):
        return CFile.from_parent(parent, path=file_path)
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")


def tool_environment() -> dict[str, str]:
    """The environment without what is preloaded into Python: for compilers and for C programs."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


class CFile(pytest.File):
    """A C test program: one item, so that pytest counts it like a Python test."""

    def collect(self) -> Iterator[pytest.Item]:
        yield CProgram.from_parent(self, name=self.path.stem)


class CFailure(Exception):
    """What went wrong, with the output of the program."""


class CProgram(pytest.Item):
    """Builds, with make, and runs one program in a folder of its own."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.add_marker("c")
        if THREADED.search(self.path.read_text(encoding="utf-8")):
            self.add_marker("threads")

    @property
    def program(self) -> Path:
        return BUILT / self.path.relative_to(TOP).with_suffix("")

    def build(self) -> None:
        command = ["make", "--silent", "-j2", "-C", str(TOP / "csrc"), f"SAN={SANITIZER}"]
        run = subprocess.run(
            [*command, str(self.program)], capture_output=True, text=True, env=tool_environment()
        )
        if run.returncode != 0:
            raise CFailure(f"{self.path.name} does not build:\n{run.stdout}{run.stderr}")

    def runtest(self) -> None:
        self.build()
        folder = tempfile.mkdtemp(prefix=f"{self.name}-", dir=SCRATCH)
        try:
            code, output = self.execute(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if code == SKIPPED:
            pytest.skip(output.strip() or "no reason given")
        if code != 0:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise CFailure(f"{self.program} ended with {how}:\n{output}")

    def execute(self, folder: str) -> tuple[int, str]:
        env = {**tool_environment(), "CHM_TEST_DIR": folder}
        env.pop("ASAN_OPTIONS", None)  # what suits Python (no leak check) does not suit C programs
        try:
            run = subprocess.run(
                [self.program],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
            )
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode(errors="replace")
            raise CFailure(f"{self.program} did not end in {LIMIT_S:.0f} s:\n{output}") from None
        return run.returncode, run.stdout.decode(errors="replace")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None):
        if isinstance(excinfo.value, CFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name
