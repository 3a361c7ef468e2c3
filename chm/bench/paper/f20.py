# SPDX-License-Identifier: Apache-2.0
"""F20: staging in think time lets a small device DRAM serve what a large one does.

48 conversations with 33.6 GiB of KV together take turns, each after a time to think. At the end of
a turn the scheduler knows when the conversation comes back, and asks for its prefix to be staged
shortly before. When it does, everything is there: nothing waits for the SSD. With the hint only at
the read, the request waits for its first object, and is as fast as the SSD fills.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np

import chm
from chm.bench.paper.claim import near, report, shape
from chm.bench.paper.figure import Curve, Data, Figure, Finding, Part, Plot, Settings
from chm.bench.paper.lab import GIB, MIB, Lab
from chm.bench.paper.load import rate

PRESET = "xcena-im"
CONVERSATIONS = 48
BLOCK = 16 * MIB
BLOCKS = 45  # 48 * 45 * 16 MiB = 33.75 GiB; published 33.6
TURNS = 8
LEAD_NS = 1_500_000_000  # staged so long before the turn: a few fills of a prefix, and some queue
THINK_S = (4.0, 10.0)  # p10 and p50 of the recorded think times; lognormal
MIX = (("staged", 16), ("staged", 128), ("at read", 16))
SOURCE = "Maru, multi-turn staging guide"


def _thinks(seed: int, turns: int) -> list[list[int]]:
    """Think times of each conversation, ns."""
    low, middle = THINK_S
    sigma = np.log(middle / low) / 1.2816  # the 10 % quantile of a normal is 1.2816 sigmas down
    drawn = np.random.default_rng(seed).lognormal(np.log(middle), sigma, (CONVERSATIONS, turns))
    return [[int(s * 1e9) for s in row] for row in drawn]


def measure(lab: Lab, part: str) -> Data:
    """One way of staging with one size of the DRAM."""
    how, gib = part.split(", ")
    dram = int(gib.removesuffix(" GiB")) * GIB
    turns = 3 if lab.quick else TURNS
    capacity = CONVERSATIONS * BLOCKS * BLOCK
    with lab.device(PRESET, capacity, part, dram_bytes=dram) as device:
        rows = _Play(device, _thinks(lab.settings.seed, turns), how == "staged").run()
    waits = np.asarray([row["wait ns"] for row in rows])
    responses = np.asarray([row["response ns"] for row in rows])
    return {
        "staging": how,
        "DRAM GiB": dram // GIB,
        "turns": len(rows),
        "wait p50 ms": float(np.quantile(waits, 0.5)) / 1e6,
        "wait p90 ms": float(np.quantile(waits, 0.9, method="inverted_cdf")) / 1e6,
        "response p50 ms": float(np.quantile(responses, 0.5)) / 1e6,
        "response p90 ms": float(np.quantile(responses, 0.9)) / 1e6,
        "GB/s of a request": rate(BLOCKS * BLOCK, int(np.quantile(responses, 0.5))),
        "responses ms": [round(float(v) / 1e6, 3) for v in np.quantile(responses, _SHARES)],
    }


class _Play:
    """Turns in order of when they are due. One request is served at a time, as one GPU would."""

    def __init__(self, device: chm.Device, thinks: list[list[int]], ahead: bool) -> None:
        self.device = device
        self.thinks = thinks
        self.ahead = ahead
        self.due: list[tuple[int, int, int]] = []  # when, conversation, turn
        self.staged: dict[int, list[chm.Request]] = {}
        self.rows: list[dict[str, Any]] = []

    def run(self) -> list[dict[str, Any]]:
        """Play all turns; a row for each."""
        for conversation in range(CONVERSATIONS):
            self._ends(conversation, 0)
        while self.due:
            self._serve(*heapq.heappop(self.due))
        return self.rows

    def _ends(self, conversation: int, turn: int) -> None:
        """A turn is over: the next one is due after the time to think."""
        if turn >= len(self.thinks[conversation]):
            return
        due = self.device.now() + self.thinks[conversation][turn]
        heapq.heappush(self.due, (due, conversation, turn))
        if self.ahead:
            self.staged[conversation] = self._issue(conversation, max(due - LEAD_NS, 1))

    def _issue(self, conversation: int, not_before: int) -> list[chm.Request]:
        first = conversation * BLOCKS
        never = float("inf")
        made = self.device.prefetch_many(
            [((first + i) * BLOCK, BLOCK) for i in range(BLOCKS)],
            not_before_ns=not_before,
            expire_s=never,
            queue_s=never,
        )
        for one in made:
            if isinstance(one, chm.ChmError):
                raise one
        return [one for one in made if isinstance(one, chm.Request)]

    def _serve(self, due: int, conversation: int, turn: int) -> None:
        while self.device.now() < due:
            self.device.step(due)
        begin = self.device.now()
        requests = self.staged.pop(conversation, None) or self._issue(conversation, 0)
        waited = 0
        for request in requests:  # in order: when it is staged, over the link
            waited += self._until_staged(request)
            with request:
                pass
        took = self.device.now() - begin
        self.rows.append({"wait ns": waited, "response ns": took})
        self._ends(conversation, turn + 1)

    def _until_staged(self, request: chm.Request) -> int:
        begin = self.device.now()
        while request.progress < request.length:
            self.device.step(self.device.now() + 1_000_000)
        return self.device.now() - begin


_SHARES = tuple(i / 20 for i in range(1, 20))


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """Waits, responses and rates."""
    small, large, late = (data[name] for name in _names())
    values = {
        "wait": small["wait p90 ms"],
        "equal": small["response p90 ms"] / large["response p90 ms"],
        "late": late["GB/s of a request"],
        "staged": small["GB/s of a request"],
        "better": small["response p90 ms"] < late["response p90 ms"],
    }
    curves = []
    rows = []
    for name in _names():
        row = dict(data[name])
        curves.append(Curve(name, row.pop("responses ms"), list(_SHARES)))
        rows.append(row)
    notes = [
        f"{CONVERSATIONS} conversations with {BLOCKS} blocks of 16 MiB each; think times are drawn "
        "(lognormal, p10 4 s, p50 10 s); a prefix is asked for 1.5 s before its turn."
    ]
    plot = Plot("response of a turn", "ms", "share of turns", curves)
    return Finding(values, rows, [plot], notes)


def _names() -> list[str]:
    return [f"{how}, {gib} GiB" for how, gib in MIX]


FIGURE = Figure(
    name="F20",
    title="XCENA: staging in think time",
    presets=(PRESET,),
    claims=(
        near(
            "wait", "wait for the SSD, p90, 16 GiB, staged in think time", "ms", 0, 0, "A", SOURCE
        ),
        near("equal", "response p90 of 16 GiB over 128 GiB", "", 1, 0.02, "A", SOURCE),
        near("late", "rate of a request hinted only at its read", "GB/s", 11, 0.05, "A", SOURCE),
        report("staged", "rate of a request that was staged", "GB/s", 23.8, "A", SOURCE),
        shape("better", "staged ahead answers sooner", "A", SOURCE),
    ),
    calibrated="fill rate 11 GB/s, link 23.8 GB/s",
    predicted="that 16 GiB are enough for 33.75 GiB of KV, and that late hints do not help",
    measure=measure,
    combine=combine,
    parts=lambda _: [Part(name, 1.0) for name in _names()],
)
