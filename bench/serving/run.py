# SPDX-License-Identifier: Apache-2.0
"""One length of conversations, all arms.

    start all -> grow: all turns but the last -> last turn, several rounds
              -> stop the drive-backed arms -> (start them paced -> last turn, rounds) per pace

All engines are alive at once, one works at a time: each prompt is asked of all arms in a row, and
the row begins with another arm each time. A turn's stores are in before the next request. The paced
arms go on with what the first ones stored, copied into memory, where nothing but the pace is in
their way; they are warmed up with the short prompts of their start.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import summary
from .arms import Arm, Place
from .process import Engine
from .summary import Sample
from .workload import Workload

_AT_ONCE = 2  # engines that start at the same time: one per core
_PORTS = 10


@dataclass(frozen=True)
class Settings:
    """``recomputed`` is how many conversations the arm without a cache is asked for: nothing of it
    depends on the others. Arms that nothing is stored for are asked in the first round only."""

    model: Path
    scratch: Path
    memory: Path
    preload: Path
    paces: tuple[int, ...] = ()
    rate: float = 0.0
    rounds: int = 3
    recomputed: int = 2
    port: int = 5900
    say: Callable[[str], None] = print


class Run:
    """All arms at one workload; ``samples`` grow as it goes."""

    def __init__(self, settings: Settings, arms: Sequence[Arm], w: Workload) -> None:
        self.settings, self.arms, self.w = settings, arms, w
        self.samples: list[Sample] = []
        self.rates: dict[int, float] = {}
        self._engines: dict[str, Engine] = {}
        self._turn = 0

    def run(self) -> None:
        """Raises Failed if a process of an arm does."""
        try:
            self._all()
        finally:
            for engine in self._engines.values():
                engine.kill()

    def _all(self) -> None:
        s = self.settings
        self._start([(arm, self._place(i)) for i, arm in enumerate(self.arms)])
        for turn in range(self.w.turns - 1):
            s.say(f"turn {turn + 1} of {self.w.turns}, {self.w.lengths[turn]} tokens")
            self._ask_all(turn, 0)
        for variant in range(s.rounds):
            s.say(f"turn {self.w.turns}, round {variant + 1} of {s.rounds}")
            self._ask_all(self.w.turns - 1, variant)
        drives = [arm for arm in self.arms if arm.drive]
        self._stop(drives)
        for pace in s.paces if drives else ():
            self._paced(drives, pace)
        self._stop(self.arms)

    def _paced(self, drives: Sequence[Arm], pace: int) -> None:
        s = self.settings
        base = summary.recompute_rate(self.samples, self.w) or s.rate
        rate = self.rates[pace] = pace * base
        s.say(f"drive at {pace}x the recompute rate: {rate / 1e9:.2f} GB/s")
        places = []
        for i, arm in enumerate(drives):
            folder = s.memory / arm.name
            if not folder.exists():
                shutil.copytree(s.scratch / arm.name, folder)
            port = s.port + (len(self.arms) + i) * _PORTS
            places.append((arm, Place(folder, round(rate), ram=True, port=port)))
        self._start(places)
        for variant in range(s.rounds):
            s.say(f"{pace}x, round {variant + 1} of {s.rounds}")
            self._ask_all(self.w.turns - 1, s.rounds + variant, pace)
        self._stop(drives)

    def _place(self, number: int) -> Place:
        s = self.settings
        return Place(s.scratch / self.arms[number].name, port=s.port + number * _PORTS)

    # -- processes -------------------------------------------------------------------------------

    def _start(self, places: Sequence[tuple[Arm, Place]]) -> None:
        s = self.settings
        for first in range(0, len(places), _AT_ONCE):
            some = places[first : first + _AT_ONCE]
            s.say("starting " + ", ".join(arm.name for arm, _ in some))
            for arm, place in some:
                engine = Engine(arm, self.w, place, s.model, s.scratch, s.preload)
                self._engines[arm.name] = engine
            for arm, _ in some:
                self._engines[arm.name].start()
            for arm, _ in some:
                self._engines[arm.name].ready()

    def _stop(self, arms: Sequence[Arm]) -> None:
        for arm in arms:
            engine = self._engines.get(arm.name)
            if engine is not None:
                engine.stop()
                del self._engines[arm.name]

    # -- requests --------------------------------------------------------------------------------

    def _ask_all(self, turn: int, variant: int, pace: int = 0) -> None:
        """Every conversation, of every arm that is alive."""
        for conversation in range(self.w.conversations):
            alive = [arm for arm in self.arms if arm.name in self._engines]
            first = self._turn % len(alive)
            self._turn += 1
            for arm in alive[first:] + alive[:first]:
                if self._wanted(arm, conversation, variant):
                    self._ask(arm, turn, conversation, variant, pace)

    def _wanted(self, arm: Arm, conversation: int, variant: int) -> bool:
        if arm.store == "none":
            return variant == 0 and conversation < self.settings.recomputed
        return variant == 0 or arm.store != "pool"

    def _ask(self, arm: Arm, turn: int, conversation: int, variant: int, pace: int) -> None:
        engine = self._engines[arm.name]
        tokens = self.w.prompt(conversation, turn, variant)
        told = engine.ask(tokens)
        engine.settle()
        sample = Sample(
            arm=arm.name,
            pace=pace,
            turn=turn,
            conversation=conversation,
            variant=variant,
            prompt=len(tokens),
            **told,
        )
        self.samples.append(sample)
