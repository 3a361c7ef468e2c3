# SPDX-License-Identifier: Apache-2.0
"""One length of conversations, all arms.

    start all -> grow: all turns but the last -> last turn, several rounds -> stop all but oracles
              -> per host, per pace: start its drive-backed arms paced -> last turn, several rounds

All engines are alive at once, one works at a time: each prompt is asked of all arms in a row, and
the row begins with another arm each time. A turn's stores are in before the next request. The paced
arms go on with what the first ones stored, copied into memory, where nothing but the pace is in
their way; they are asked beside their host's oracle. One host after the other, since memory holds
the files of all only on a large machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    depends on the others. Arms that nothing is stored for are asked in the first round only.
    ``chm`` are fields of ``chm.connectors.TierOptions``; ports are taken from ``port`` on."""

    model: Path
    scratch: Path
    memory: Path
    preload: Path
    paces: tuple[int, ...] = ()
    rate: float = 0.0
    rounds: int = 3
    recomputed: int = 2
    port: int = 17650
    chm: Mapping[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = print


class Run:
    """All arms at one workload; ``samples`` grow as it goes."""

    def __init__(self, settings: Settings, arms: Sequence[Arm], w: Workload) -> None:
        self.settings, self.arms, self.w = settings, arms, w
        self.samples: list[Sample] = []
        self.rates: dict[int, float] = {}
        self.error = ""
        self._engines: dict[str, Engine] = {}
        self._row = 0

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
            self._ask_all(self.arms, turn, 0)
        for variant in range(s.rounds):
            s.say(f"turn {self.w.turns}, round {variant + 1} of {s.rounds}")
            self._ask_all(self.arms, self.w.turns - 1, variant)
        oracles = {arm.oracle for arm in self.arms if arm.drive} if s.paces else set()
        self._stop([arm for arm in self.arms if arm.name not in oracles])
        for host in ("vllm", "lmcache") if s.paces else ():
            drives = [arm for arm in self.arms if arm.drive and arm.host == host]
            if drives:
                self._paced_host(drives)
        self._stop(self.arms)

    def _paced_host(self, drives: Sequence[Arm]) -> None:
        s = self.settings
        for arm in drives:
            shutil.copytree(s.scratch / arm.name, s.memory / arm.name)
        for pace in s.paces:
            self._paced(drives, pace)
        for arm in drives:
            shutil.rmtree(s.memory / arm.name)

    def _paced(self, drives: Sequence[Arm], pace: int) -> None:
        s = self.settings
        base = summary.recompute_rate(self.samples, self.w) or s.rate
        rate = self.rates[pace] = pace * base
        s.say(f"drive at {pace}x the recompute rate: {rate / 1e9:.2f} GB/s")
        places = []
        for arm in drives:
            port = s.port + self.arms.index(arm) * _PORTS
            places.append((arm, Place(s.memory / arm.name, round(rate), True, port, s.chm)))
        self._start(places)
        for variant in range(s.rounds):
            s.say(f"{pace}x, round {variant + 1} of {s.rounds}")
            alive = [*drives, *(arm for arm in self.arms if arm.name == drives[0].oracle)]
            self._ask_all(alive, self.w.turns - 1, s.rounds + variant, pace)
        self._stop(drives)

    def _place(self, number: int) -> Place:
        s = self.settings
        folder = s.scratch / self.arms[number].name
        return Place(folder, port=s.port + number * _PORTS, chm=s.chm)

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

    def _ask_all(self, arms: Sequence[Arm], turn: int, variant: int, pace: int = 0) -> None:
        """Every conversation, of each of these arms."""
        for conversation in range(self.w.conversations):
            first = self._row % len(arms)
            self._row += 1
            for arm in [*arms[first:], *arms[:first]]:
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
