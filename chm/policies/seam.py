# SPDX-License-Identifier: Apache-2.0
"""What all seams share: a name, a registry, and finding a policy by the text of --policy.

    name            a registered one
    name:ARGUMENT   the same, made with one argument (a count or a word)
    module:Class    a class of yours, imported from the current directory or sys.path

A policy is made anew for every run, so it may keep state; it must be deterministic, and may look
at nothing but what its seam hands it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar


class PolicyError(Exception):
    """A policy is unknown, cannot be made, or did what its seam forbids; the text says which."""


class Policy:
    """Base of the four seams. `seam` comes from the base class, `name` is the policy's own."""

    seam: ClassVar[str] = ""
    name: str = ""

    def __str__(self) -> str:
        return self.name or type(self).__name__


SEAMS = ("prefetch", "eviction", "admission", "placement")
_registry: dict[str, type[Policy]] = {}

P = TypeVar("P", bound=type[Policy])


def registered(cls: P) -> P:
    """Class decorator: this policy can be named. The first one of a seam is its default."""
    _registry[cls.name] = cls
    return cls


def available(seam: str | None = None) -> list[type[Policy]]:
    """All registered policies, of one seam or of all, the default of each first."""
    return [p for s in SEAMS if seam in (None, s) for p in _registry.values() if p.seam == s]


def line_of(cls: type[Policy]) -> str:
    """The first sentence of a policy's documentation."""
    text = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".")


@dataclass(frozen=True)
class Spec:
    """A policy that was found but not made: a run makes its own."""

    text: str
    cls: type[Policy]
    argument: str | None = None

    @property
    def seam(self) -> str:
        """Which decision it makes."""
        return self.cls.seam

    def make(self) -> Policy:
        """A fresh one. Raises PolicyError."""
        arguments = [] if self.argument is None else [self.argument]
        try:
            made = self.cls(*arguments)
        except Exception as e:
            raise PolicyError(f"policy {self.text!r} cannot be made: {_told(e)}") from e
        made.name = self.text
        return made


def find(text: str, others: tuple[str, ...] = ()) -> Spec:
    """The policy that text names. `others`: names that somebody else knows, for the message.

    Raises PolicyError with the nearest name and the list.
    """
    name, colon, argument = text.partition(":")
    if name in _registry:
        spec = Spec(text, _registry[name], argument if colon else None)
    elif colon:
        spec = Spec(text, _imported(text, name, argument))
    else:
        raise PolicyError(_unknown(text, others))
    spec.make()  # a wrong argument is told now, not after hours of other runs
    return spec


def _unknown(text: str, others: tuple[str, ...]) -> str:
    names = [*others, *_registry]
    near = difflib.get_close_matches(text, names, 1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return f"no policy {text!r}{guess}; there are {', '.join(names)}, and module:Class for your own"


def _imported(text: str, module: str, name: str) -> type[Policy]:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as e:
        raise PolicyError(f"policy {text!r}: {_told(e)}") from e
    if not (inspect.isclass(found) and issubclass(found, Policy) and found.seam in SEAMS):
        raise PolicyError(
            f"policy {text!r} is no subclass of chm.policies.Prefetch, Eviction, Admission or "
            "Placement: its base class says which decision it makes"
        )
    return found


def _told(e: Exception) -> str:
    return f"{type(e).__name__}: {e}"


def refuse(policy: Policy, why: str) -> PolicyError:
    """The error for an answer that the seam forbids."""
    return PolicyError(f"{policy.seam} policy {policy} {why}")


T = TypeVar("T")


def ask(policy: Policy, call: Callable[..., T], *args: object) -> T:
    """call(*args); whatever it raises becomes a PolicyError that names the policy."""
    try:
        return call(*args)
    except PolicyError:
        raise
    except Exception as e:
        raise PolicyError(f"{policy.seam} policy {policy} raised {_told(e)}") from e
