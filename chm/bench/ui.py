# SPDX-License-Identifier: Apache-2.0
"""Progress for people: on standard error, and only where it is a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress


@dataclass
class Progress:
    """What an experiment tells about how far it is. This one tells nobody."""

    def begin(self, what: str, total: int) -> None:
        """A new phase of `total` steps."""

    def advance(self, steps: int = 1) -> None:
        """Some steps of the phase are done."""


class _Bar(Progress):
    def __init__(self, rich: RichProgress, name: str) -> None:
        self._rich = rich
        self._name = name
        self._task = rich.add_task(name, total=None)

    def begin(self, what: str, total: int) -> None:
        self._rich.reset(self._task, total=total, description=f"{self._name}: {what}")

    def advance(self, steps: int = 1) -> None:
        self._rich.advance(self._task, steps)


@contextlib.contextmanager
def progress_on(console: Console) -> Iterator[Callable[[str], Progress]]:
    """Bars on a console, one per named run; nothing where it is no terminal."""
    if not console.is_terminal:
        yield lambda name: Progress()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with RichProgress(*columns, TimeElapsedColumn(), console=console, transient=True) as rich:
        yield lambda name: _Bar(rich, name)
