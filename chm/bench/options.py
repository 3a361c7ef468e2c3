# SPDX-License-Identifier: Apache-2.0
"""One declaration of an option serves flags, job files, sweeps, JSON and the manual.

An experiment's configuration is a frozen dataclass whose fields are made by `option`. From it
come the command's flags, the keys of a job file, and the axes of a sweep; so what one can say,
the others can.

Any option takes a list or a range, which makes a sweep of the run:

    1MiB,16MiB        a list
    1..4              1, 2, 3, 4
    0..30:10          0, 10, 20, 30
    64KiB..1MiB*4     64 KiB, 256 KiB, 1 MiB
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, TypeVar

from chm import preset as presets
from chm import units

VALUES_MAX = 10_000  # of one option; a typo in a range must not fill the memory


class ConfigError(Exception):
    """A flag or a line of a job file cannot be used; the text says which and why."""


@dataclass(frozen=True)
class Kind:
    """A type of option: its name in help texts, and its text form both ways."""

    name: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str
    choices: tuple[str, ...] = ()
    numeric: bool = False
    step: str = ""  # of a range that names none
    complete: Callable[[], Iterable[str]] | None = None  # words for the shell, where they vary


def _parse_switch(text: str) -> bool:
    if text.lower() in ("on", "yes", "true", "1"):
        return True
    if text.lower() in ("off", "no", "false", "0"):
        return False
    raise ValueError("say on or off")


def _parse_factor(text: str) -> Fraction:
    value = Fraction(text.replace(" ", ""))
    if value <= 0:
        raise ValueError("must be positive")
    return value


def _parse_count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("must not be negative")
    return value


def _exactly(*steps: tuple[int, str]) -> Callable[[Any], str]:
    """A formatter that loses nothing: the largest unit that divides the value."""

    def show(value: int) -> str:
        for factor, unit in steps:
            if value and value % factor == 0:
                return f"{value // factor}{unit}"
        return str(value)

    return show


_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_RATES = ((10**9, "GB/s"), (10**6, "MB/s"), (10**3, "kB/s"))
_TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))

SIZE = Kind("SIZE", units.parse_size, _exactly(*_SIZES), numeric=True)
RATE = Kind("RATE", units.parse_rate, _exactly(*_RATES), numeric=True)
TIME = Kind("TIME", units.parse_duration, _exactly(*_TIMES), numeric=True)
COUNT = Kind("N", _parse_count, numeric=True, step="1")
FACTOR = Kind("X", _parse_factor, numeric=True, step="1")
SWITCH = Kind("on|off", _parse_switch, lambda v: "on" if v else "off", ("on", "off"))
TEXT = Kind("TEXT", str)
FILE = Kind("FILE", str)
# FIELD=VALUE, several separated by blanks; a list of values makes a sweep of that field.
SETTINGS = Kind("FIELD=VALUE", str, complete=lambda: (f"{n}=" for n in presets.known_fields()))
PRESET = Kind("NAME|FILE", str, complete=lambda: presets.available())


def choice(*names: str) -> Kind:
    """One of a few words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"not one of {', '.join(names)}")
        return text

    return Kind("|".join(names), parse, choices=names)


@dataclass(frozen=True)
class Option:
    """One option of an experiment."""

    name: str
    kind: Kind
    help: str
    default: Any

    @property
    def flag(self) -> str:
        """--block-size for block_size."""
        return "--" + self.name.replace("_", "-")

    def parse(self, text: str) -> tuple[Any, ...]:
        """All values that text stands for."""
        try:
            return tuple(_expand(text, self.kind))
        except (ValueError, ZeroDivisionError) as e:
            raise ConfigError(f"{self.flag} {text!r}: {e}") from e


def option(default: Any, kind: Kind, help: str) -> Any:
    """A dataclass field that is an option; default is the parsed value."""
    return dataclasses.field(default=default, metadata={"kind": kind, "help": help})


def options_of(config: type) -> list[Option]:
    """The options of a configuration class, in order of declaration."""
    return [
        Option(f.name, f.metadata["kind"], f.metadata["help"], f.default)
        for f in dataclasses.fields(config)
    ]


_RANGE = re.compile(r"(?P<low>[^.]+(?:\.\d[^.]*)?)\.\.(?P<high>.+?)(?:(?P<op>[:*])(?P<step>.+))?$")


def _expand_settings(text: str) -> Iterator[str]:
    """Every combination of the values that the words FIELD=VALUE,VALUE list."""
    words = []
    for word in text.split():
        name, eq, values = word.partition("=")
        words.append([f"{name}{eq}{value}" for value in values.split(",")])
    for combination in itertools.product(*words):
        yield " ".join(combination)


def _expand(text: str, kind: Kind) -> Iterator[Any]:
    if kind is SETTINGS:
        yield from _expand_settings(text)
        return
    for part in text.split(","):
        found = _RANGE.match(part.strip()) if kind.numeric else None
        if found:
            yield from _range(found, kind)
        else:
            yield kind.parse(part.strip())


def _range(found: re.Match[str], kind: Kind) -> Iterator[Any]:
    low, high = kind.parse(found["low"].strip()), kind.parse(found["high"].strip())
    grow = found["op"] == "*"
    if not (found["step"] or kind.step):
        raise ValueError("this range needs a step, as in 1MiB..4MiB:1MiB or 1MiB..16MiB*2")
    step = Fraction(found["step"]) if grow else kind.parse(found["step"] or kind.step)
    if (grow and step <= 1) or (not grow and step <= 0):
        raise ValueError("a range needs a step above 0, or a factor above 1")
    if low > high or (grow and low <= 0):
        raise ValueError("a range goes from low to high")
    value: Any = low
    for _ in range(VALUES_MAX):
        if value > high:
            return
        yield value
        value = value * step if grow else value + step
        if not isinstance(low, Fraction):
            value = int(value)
    raise ValueError(f"more than {VALUES_MAX} values")


C = TypeVar("C")


@dataclass(frozen=True)
class Case(Generic[C]):
    """One point of a sweep: a configuration, and the options in which its siblings differ."""

    name: str
    config: C
    axes: dict[str, str]


def cases(config: type[C], given: Mapping[str, str], name: str) -> list[Case[C]]:
    """The cross product of all values given for the options of a configuration class.

    The last option varies fastest. Raises ConfigError.
    """
    known = {o.name: o for o in options_of(config)}
    values: dict[str, Sequence[Any]] = {}
    for key, text in given.items():
        opt = known.get(key.replace("-", "_"))
        if opt is None:
            raise ConfigError(f"unknown option {key!r}{_did_you_mean(key, known)}")
        values[opt.name] = opt.parse(text)
    axes = [n for n in known if len(values.get(n, ())) > 1]
    made = []
    for point in itertools.product(*values.values()):
        chosen = dict(zip(values, point, strict=True))
        where = {n: known[n].kind.show(chosen[n]) for n in axes}
        label = ",".join(f"{n}={v}" for n, v in where.items())
        made.append(Case(f"{name}[{label}]" if label else name, build(config, chosen), where))
    return made


def build(config: type[C], values: Mapping[str, Any]) -> C:
    """Make a configuration; what its checks refuse becomes a ConfigError.

    A class may have `filled`, which adds values to those that were given.
    """
    fill: Callable[[Mapping[str, Any]], Mapping[str, Any]] = getattr(config, "filled", dict)
    try:
        return config(**fill(values))
    except ValueError as e:
        raise ConfigError(str(e)) from e


def _did_you_mean(key: str, known: Mapping[str, Option]) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def to_json(config: Any) -> dict[str, Any]:
    """A configuration as JSON values; from_json turns it back."""
    return {
        o.name: str(v) if isinstance(v := getattr(config, o.name), Fraction | Path) else v
        for o in options_of(type(config))
    }


def from_json(config: type[C], values: Mapping[str, Any]) -> C:
    """The configuration that to_json wrote."""
    kinds = {o.name: o.kind for o in options_of(config)}
    return build(config, {k: Fraction(v) if kinds[k] is FACTOR else v for k, v in values.items()})
