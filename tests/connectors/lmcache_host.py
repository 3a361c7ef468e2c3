# SPDX-License-Identifier: Apache-2.0
"""The LMCache server and vLLM replicas of the engine tests: processes on the loopback device, each
ended by its number."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
START_S = 600.0  # bounds waits for programs that never start; nothing here is about speed
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "HF_HUB_OFFLINE": "1"}

FORMS = {
    "native": {
        "type": "native_plugin",
        "module_path": "chm.connectors.lmcache",
        "class_name": "ChmL2",
    },
    "plugin": {
        "type": "plugin",
        "module_path": "chm.connectors.lmcache_plugin",
        "class_name": "ChmL2Plugin",
    },
}


def adapter(form: str, path: Path, **params: Any) -> dict[str, Any]:
    """The adapter as a user configures it."""
    sizes = {"path": str(path), "capacity": "1GiB", "dram": "256MiB"}
    return {**FORMS[form], "adapter_params": {**sizes, **params}}


def environment() -> dict[str, str]:
    root = str(HERE.parent.parent)
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **QUIET, "PYTHONPATH": paths}


def run(program: Sequence[str], timeout: float = START_S) -> subprocess.CompletedProcess[str]:
    """``python -m program...``, with what it printed."""
    return subprocess.run(
        [sys.executable, "-m", *program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def counters(path: Path) -> dict[str, Any]:
    """The store's, as its owner publishes them: what ``chm stats`` shows."""
    command = [sys.executable, "-c", "from chm.cli.main import main; main()", "stats", "--json"]
    done = subprocess.run([*command, str(path)], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    store: dict[str, Any] = json.loads(done.stdout)["store"]
    return store


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class _Process:
    """A child, ended by its number at the latest when its owner is left."""

    process: subprocess.Popen[str]

    def end(self, kill: bool = False) -> None:
        if self.process.poll() is None:
            if kill:
                self.process.kill()
            else:
                self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Server(_Process):
    """An LMCache server whose L1 keeps nothing, so that all it serves comes from L2."""

    def __init__(self, spec: dict[str, Any], log: Path, chunk: int, port: int = 0) -> None:
        self.port, self.http, self.log = port or free_port(), free_port(), log
        command = ["lmcache.cli.main", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--http-port", str(self.http), "--disable-metrics", "--chunk-size", str(chunk)]
        command += ["--l1-size-gb", "1", "--l1-init-size-gb", "1", "--eviction-policy", "LRU"]
        command += ["--supported-transfer-mode", "engine_driven", "--l2-store-policy", "skip_l1"]
        command += ["--l2-adapter", json.dumps(spec)]
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.http}/openapi.json", timeout=5)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.end()
        raise RuntimeError(f"the server did not start:\n{self.log.read_text()[-3000:]}")

    def served(self) -> list[str]:
        """What it logged of each prefetch: "7/7 retained keys (0 L1, 7 L2)"."""
        lines = self.log.read_text().splitlines()
        return [
            line.split("(L1+L2): ", 1)[1].split(" in ", 1)[0]
            for line in lines
            if "Prefetch request completed (L1+L2)" in line
        ]


class Replica(_Process):
    """One vLLM engine; see replica_lmcache.py."""

    def __init__(self, model: Path, port: int, log: Path) -> None:
        read, write = os.pipe()
        program = [sys.executable, str(HERE / "replica_lmcache.py"), str(model), str(port)]
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [*program, str(write)],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                pass_fds=[write],
            )
        os.close(write)
        self._answers = os.fdopen(read)
        self.log = log

    def ready(self) -> Replica:
        self._answer()
        return self

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        assert line, f"the replica died:\n{self.log.read_text()[-3000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def say(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def ask(self, tokens: Sequence[int]) -> dict[str, Any]:
        answer = self.say(ask=list(tokens))
        self.say(settle=True)
        return answer

    def end(self, kill: bool = False) -> None:
        if self.process.stdin is not None and not kill and self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                pass
        super().end(kill)
        self._answers.close()
