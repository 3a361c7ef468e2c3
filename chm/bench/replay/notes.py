# SPDX-License-Identifier: Apache-2.0
"""The progress file: a line for each finished request, so that a run can go on after a kill.

The first line says what is replayed. A line that a kill cut off has no end and does not count.
The page cache outlives the process, so nothing is flushed: this is for kills, not for power cuts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from chm.bench.target import BenchError

VERSION = 1


@dataclass(frozen=True)
class Row:
    """What became of a request. asked = usable + stored + duplicate + skipped."""

    trace: int
    asked: int
    usable: int
    stored: int
    duplicate: int
    skipped: int
    verified_bytes: int
    nodes: Mapping[str, int] = field(default_factory=dict)  # usable, by node
    run: int = 1  # 1: the first process, 2: the one after the first restart


class Notes:
    """The file, open for more lines. A context manager."""

    def __init__(self, path: Path, rows: list[Row]) -> None:
        self.path = path
        self.rows = rows
        self.run = 1 + (rows[-1].run if rows else 0)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def add(self, rows: Sequence[Row]) -> None:
        """These are finished."""
        self.rows += rows
        _write(self._file, "".join(json.dumps(asdict(row)) + "\n" for row in rows))

    def close(self) -> None:
        """Twice is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Notes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


def begin(path: Path, identity: Mapping[str, Any]) -> Notes:
    """A new file. Raises BenchError if there is one."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        raise BenchError(
            f"{path} notes an earlier run: say --resume to go on with it, or remove the file to "
            "begin with the first request"
        ) from None
    try:
        _write(file, json.dumps({"replay": VERSION, **identity}) + "\n")
    finally:
        os.close(file)
    return Notes(path, [])


def resume(path: Path, identity: Mapping[str, Any]) -> Notes:
    """The file of an earlier run, whose lines count. Raises BenchError: none, or another run's."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise BenchError(f"{path}: no run to go on with; leave out --resume to begin one") from None
    whole = data[: data.rfind(b"\n") + 1]
    lines = [_parse(path, i, line) for i, line in enumerate(whole.splitlines(), 1)]
    want = {"replay": VERSION, **identity}
    if not lines or lines[0] != want:
        was = lines[0] if lines else {}
        other = [name for name, value in want.items() if was.get(name) != value]
        raise BenchError(
            f"{path} notes another run ({', '.join(other)} differ): give the same traces and "
            "options, or another --state"
        )
    try:
        rows = [Row(**line) for line in lines[1:]]
    except TypeError as e:
        raise BenchError(f"{path}: not a progress file ({e})") from e
    os.truncate(path, len(whole))
    return Notes(path, rows)


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as e:
        raise BenchError(f"{path}:{number}: not a progress file ({e})") from e
    return row if isinstance(row, dict) else {}


def _write(file: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(file, data) :]
