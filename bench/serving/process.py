# SPDX-License-Identifier: Apache-2.0
"""Engines and cache servers as processes: started, spoken to, ended, and cleaned up after.

    start -> ready -> (ask | settle) ... -> stop

A process that does not answer in time, or ends by itself, is an error that quotes the end of its
log. ``kill`` is for the way out after an error; files of a killed engine in shared memory go too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import arms, cores
from .arms import Arm, Place
from .workload import Workload

START_S = 300.0
ANSWER_S = 180.0
_STOP_S = 180.0
_LOG_LINES = 25


class Failed(Exception):
    """A process of an arm did not do what it was told."""


class Engine:
    """The processes of one arm: its worker and, under LMCache, the server."""

    def __init__(
        self, arm: Arm, w: Workload, place: Place, model: Path, scratch: Path, preload: Path
    ) -> None:
        self.arm, self.place = arm, place
        self._log = scratch / f"{arm.name}.log"
        self._config = scratch / f"{arm.name}.json"
        self._server: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._pair = cores.pair()
        self._pending = b""
        self._name = f"chm-serving-{os.getpid()}-{arm.name}"
        place.folder.mkdir(parents=True, exist_ok=True)
        config = arms.worker_config(arm, w, place, model) | {"cores": self._pair}
        if config["transfer"] is not None:
            config["transfer"]["engine_id"] = self._name
        self._config.write_text(json.dumps(config))
        self._environment = {**os.environ, **cores.ENVIRONMENT}
        self._paced = self._environment | _preload(arm, place, preload)
        if arm.host == "lmcache":
            self._serve(arms.server_command(arm, w, place))

    def _serve(self, command: list[str]) -> None:
        """Start the LMCache server, on the core that is not the engine's."""
        other = self._pair[1]
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._paced,
                preexec_fn=lambda: os.sched_setaffinity(0, {other}),
            )

    def start(self) -> None:
        """Begin to start the engine, once its server listens."""
        if self._server is not None:
            self._await_server(self._server)
        read, write = os.pipe()
        command = [sys.executable, "-m", "bench.serving.worker", str(self._config), str(write)]
        with self._log.open("ab") as log:
            self._worker = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment if self._server is not None else self._paced,
                pass_fds=(write,),
            )
        os.close(write)
        self._reply = os.fdopen(read, "rb", buffering=0)

    def _await_server(self, server: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + START_S
        while True:
            if server.poll() is not None:
                raise self._failure(f"its LMCache server ended with code {server.returncode}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.place.port + 1)) == 0:
                    return
            if time.monotonic() > end:
                raise self._failure(f"its LMCache server does not listen after {START_S:.0f} s")
            time.sleep(0.1)

    def _failure(self, what: str) -> Failed:
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return Failed("\n".join([f"{self.arm.name}: {what}; its log ends with", *lines]))

    # -- talking ---------------------------------------------------------------------------------

    def ready(self) -> None:
        self._answer(START_S)

    def ask(self, tokens: list[int]) -> dict[str, Any]:
        """Run a prompt; what the worker measured, with its server's part."""
        before = self._server_used()
        answer = self._tell({"do": "ask", "tokens": tokens})
        if before is not None:
            after = self._server_used()
            assert after is not None
            used = after.since(before)
            answer["other_s"] += used.other_s
            answer["read_bytes"] += used.read_bytes
            answer["written_bytes"] += used.written_bytes
        return answer

    def settle(self) -> None:
        """Wait until what was asked so far is stored."""
        self._tell({"do": "settle"})
        if self._server is not None and self.arm.drive:
            self._await_quiet()

    def _tell(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._worker is not None
        assert self._worker.stdin is not None
        try:
            self._worker.stdin.write(json.dumps(command).encode() + b"\n")
            self._worker.stdin.flush()
        except BrokenPipeError:
            raise self._failure("its engine is gone") from None
        return self._answer(ANSWER_S)

    def _answer(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\n" not in self._pending:
            left = end - time.monotonic()
            if left <= 0:
                raise self._failure(f"no answer within {seconds:.0f} s")
            if select.select([self._reply], [], [], min(left, 1.0))[0]:
                data = self._reply.read(1 << 16)
                if not data:
                    raise self._failure("its engine ended")
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return dict(json.loads(line))

    def _server_used(self) -> cores.Used | None:
        return None if self._server is None else cores.used_by(self._server.pid)

    def _await_quiet(self) -> None:
        """The server stores behind the engine's back: wait until it has not written for a while."""
        assert self._server is not None
        end = time.monotonic() + ANSWER_S
        quiet, last = 0, -1
        while quiet < 3:
            if time.monotonic() > end:
                raise self._failure("its LMCache server never stops writing")
            time.sleep(0.02)
            now = cores.used_by(self._server.pid).written_bytes
            quiet, last = (quiet + 1 if now == last else 0), now

    # -- ending ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """End in order: the engine, then its server. Raises Failed if one does not end. Who has
        nothing on a drive has nothing to put in order."""
        if not self.arm.drive:
            self.kill()
            return
        if self._worker is not None and self._worker.stdin is not None:
            self._worker.stdin.close()
            self._await_end(self._worker, "its engine")
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            self._await_end(self._server, "its LMCache server")
        self._clean()

    def _await_end(self, process: subprocess.Popen[bytes], what: str) -> None:
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"{what} does not end within {_STOP_S:.0f} s") from None

    def kill(self) -> None:
        """After an error. Does nothing to what has ended."""
        for process in (self._worker, self._server):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        self._clean()

    def _clean(self) -> None:
        for left in Path("/dev/shm").glob(f"vllm_offload_{self._name}*"):
            left.unlink(missing_ok=True)
        (Path("/dev/shm") / f"chm-serving-{self.place.port}").unlink(missing_ok=True)


def _preload(arm: Arm, place: Place, library: Path) -> dict[str, str]:
    """Pacing for back ends that have none of their own."""
    if not place.pace or arm.store != "fs":
        return {}
    return {
        "LD_PRELOAD": str(library),
        "CHM_PACE_DIR": str(place.folder),
        "CHM_PACE_RATE": str(place.pace),
    }
