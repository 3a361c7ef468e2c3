# SPDX-License-Identifier: Apache-2.0
"""What --policy says: names joined by +, at most one for each decision.

lru                              a device cache
evict-fifo+second-sight          two object-level ones, the rest as by default
think-time+read-first+my:Class   and a class of your own
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from chm.options import cache_policies, flush_policies
from chm.policies import (
    SEAMS,
    Admission,
    Eviction,
    Placement,
    PolicyError,
    Prefetch,
    Spec,
    available,
    find,
)
from chm.policies.seam import line_of

DEVICE, FLUSH = "device cache", "flush"
_LINES = {
    "window": "Nothing is cached: objects are staged in a window when told (default)",
    "lru": "A transparent cache of lines; the least recently used one of a set goes",
    "fifo": "A transparent cache of lines; the oldest one of a set goes",
    "clock": "A transparent cache of lines; the first one not used since the hand passed goes",
    "read-first": "Writes go to the drive when reads leave room (default)",
    "fcfs": "First come, first served: no read priority",
    "idle-only": "Writes go to the drive only while no read waits",
}
_NO_LINE = "(a line about it goes into _LINES of chm/bench/selection.py)"


@dataclass(frozen=True)
class Selection:
    """A parsed --policy. An empty name or a missing seam means the default."""

    device: str = ""
    flush: str = ""
    specs: Mapping[str, Spec] = field(default_factory=dict)

    def _spec(self, seam: str) -> Spec:
        return self.specs.get(seam) or find(available(seam)[0].name)

    def prefetch(self) -> Prefetch:
        """A fresh prefetch policy."""
        return cast(Prefetch, self._spec("prefetch").make())

    def eviction(self) -> Eviction:
        """A fresh eviction policy."""
        return cast(Eviction, self._spec("eviction").make())

    def admission(self) -> Admission:
        """A fresh admission policy."""
        return cast(Admission, self._spec("admission").make())

    def placement(self) -> Placement:
        """A fresh placement policy."""
        return cast(Placement, self._spec("placement").make())

    def to_dict(self) -> dict[str, str]:
        """Seam -> name of the policy in force, of the object-level ones."""
        return {seam: self._spec(seam).text for seam in SEAMS}


def select(text: str) -> Selection:
    """Parse one item of --policy. Raises PolicyError."""
    chosen: dict[str, str] = {}
    specs: dict[str, Spec] = {}
    others = (*cache_policies(), *flush_policies())
    for part in filter(None, (p.strip() for p in text.split("+"))):
        if part in cache_policies():
            seam = DEVICE
        elif part in flush_policies():
            seam = FLUSH
        else:
            specs_found = find(part, others)
            seam = specs_found.seam
            specs[seam] = specs_found
        if seam in chosen:
            raise PolicyError(f"policy {text!r}: {chosen[seam]} and {part} both decide {seam}")
        chosen[seam] = part
    return Selection(chosen.get(DEVICE, ""), chosen.get(FLUSH, ""), specs)


def parse(text: str) -> str:
    """For the option: the text itself, once it is known to be good."""
    try:
        select(text)
    except PolicyError as e:
        raise ValueError(str(e)) from e
    return text


def rows() -> Iterator[tuple[str, str, str]]:
    """(seam, name, one line) of every policy that can be named."""
    for name in cache_policies():
        yield DEVICE, name, _LINES.get(name, _NO_LINE)
    for name in flush_policies():
        yield FLUSH, name, _LINES.get(name, _NO_LINE)
    for cls in available():
        yield cls.seam, cls.name, line_of(cls)


def names() -> list[str]:
    """All names, for the shell."""
    return [name for _, name, _ in rows()]
