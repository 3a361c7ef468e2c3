# SPDX-License-Identifier: Apache-2.0
"""F15: metadata of 10 TiB of 16 MiB objects, 64 bytes each. Arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from chm.bench.paper.claim import near
from chm.bench.paper.figure import Data, Figure, Finding, Settings
from chm.bench.paper.lab import MIB, Lab

SPACE = 10 << 40
OBJECT = 16 * MIB
ENTRY = 64
SOURCE = "HyMCache: 6.5e5 entries, about 40 MB"


def measure(lab: Lab, part: str) -> Data:
    """Entries and bytes."""
    entries = SPACE // OBJECT
    return {"entries": entries, "mib": entries * ENTRY / MIB}


def combine(data: Mapping[str, Data], settings: Settings) -> Finding:
    """As they are."""
    d = data["all"]
    row = {"space TiB": SPACE >> 40, "object MiB": OBJECT // MIB, "entry bytes": ENTRY, **d}
    return Finding({"entries": d["entries"], "bytes": d["mib"]}, [row])


FIGURE = Figure(
    name="F15",
    title="metadata: 64 bytes per object",
    claims=(
        near("entries", "entries of 10 TiB in 16 MiB objects", "", 655_360, 0, "D", SOURCE),
        near("bytes", "their size", "MiB", 40, 0, "D", SOURCE),
    ),
    calibrated="nothing",
    predicted="nothing: arithmetic on the size of an entry",
    measure=measure,
    combine=combine,
)
