# SPDX-License-Identifier: Apache-2.0
"""What is replayed: requests of several traces, and the objects that their block ids stand for.

An object is as many blocks of a trace, one behind the other, as make `tokens` tokens (0: one
block); what is left over at the end of a request is left out. Its key is a hash of trace and ids,
so no two traces share one. Its size and its bytes are functions of the key: whoever has the key can
check them.

Traces go on together: when half of one has been asked for, so has half of each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chm.bench.traces import Trace, TraceError, load_joined, parts_of

PAGE = 4096


@dataclass(frozen=True)
class Step:
    """One request: numbers of objects, in prefix order, and the trace that it is from."""

    trace: int
    objects: Sequence[int]


@dataclass(frozen=True)
class Work:
    """All requests, in the order in which they are made."""

    names: tuple[str, ...]
    digests: tuple[str, ...]  # of the files of each trace
    steps: Sequence[Step]
    sizes: tuple[int, ...]  # of objects: each has one of these
    tokens: int
    objects: int  # different ones; they are numbered from 0, over all traces
    salt: bytes

    def key(self, number: int) -> bytes:
        """16 bytes, as engines make them: evenly spread."""
        return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16, key=self.salt).digest()

    def size(self, key: bytes) -> int:
        """Bytes of the object of that key."""
        return self.sizes[key[8] % len(self.sizes)]

    def identity(self) -> dict[str, Any]:
        """What has to be the same for a run to be continued."""
        return {
            "traces": list(self.digests),
            "requests": len(self.steps),
            "tokens": self.tokens,
            "block": list(self.sizes),
        }

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all objects on a device, a page of each for what is stored with it."""
        if len(self.sizes) == 1:
            return self.objects * (self.sizes[0] + PAGE)
        return sum(self.size(self.key(number)) + PAGE for number in range(self.objects))

    def possible(self) -> Iterator[int]:
        """For each request: leading objects that were asked for before. An unbounded cache that
        forgets nothing has them."""
        seen: set[int] = set()
        for step in self.steps:
            run = 0
            for number in step.objects:
                if number not in seen:
                    break
                run += 1
            seen.update(step.objects)
            yield run


def number_of(key: bytes) -> int:
    """What the payload generator calls the object of a key."""
    return int.from_bytes(key[:8], "little")


def read_work(arguments: Sequence[str], sizes: Sequence[int], tokens: int, requests: int) -> Work:
    """Load traces; each argument is a file, or several joined by "+". `requests` > 0 keeps only the
    first of each. Raises TraceError, OSError."""
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    lists = [
        _steps(at, load_joined(argument, limit=requests), tokens, numbers)
        for at, argument in enumerate(arguments)
    ]
    digests = tuple(_digest(argument) for argument in arguments)
    return Work(
        names=tuple("+".join(p.stem for p in parts_of(argument)) for argument in arguments),
        digests=digests,
        steps=_together(lists),
        sizes=tuple(sizes),
        tokens=tokens,
        objects=len(numbers),
        salt=hashlib.blake2b("/".join((*digests, str(tokens))).encode(), digest_size=16).digest(),
    )


def _steps(
    at: int, trace: Trace, tokens: int, numbers: dict[tuple[int, tuple[int, ...]], int]
) -> list[Step]:
    join = tokens // trace.block_tokens if tokens else 1
    if tokens and tokens % trace.block_tokens:
        raise TraceError(
            f"an object of {tokens} tokens is no whole number of the trace's blocks of "
            f"{trace.block_tokens} tokens"
        )
    steps = []
    for request in trace.requests:
        ids = tuple(request.keys)
        groups = ((at, ids[i : i + join]) for i in range(0, len(ids) - join + 1, join))
        objects = dict.fromkeys(numbers.setdefault(group, len(numbers)) for group in groups)
        steps.append(Step(at, tuple(objects)))
    return steps


def _together(lists: Sequence[Sequence[Step]]) -> list[Step]:
    """Merge so that each list is as far along as the others."""
    placed = [
        ((i + 0.5) / len(steps), at, step)
        for at, steps in enumerate(lists)
        for i, step in enumerate(steps)
    ]
    return [step for _, _, step in sorted(placed, key=lambda p: p[:2])]


def _digest(argument: str) -> str:
    total = hashlib.sha256()
    for part in parts_of(argument):
        total.update(Path(part).read_bytes())
    return total.hexdigest()[:16]
