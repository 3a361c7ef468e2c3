# SPDX-License-Identifier: Apache-2.0
"""One declaration of options: lists, ranges, JSON, and the same words in flags and job files."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from chm.bench import jobs, options
from chm.bench.latency import LatencyConfig
from chm.bench.options import COUNT, FACTOR, RATE, SIZE, TIME, ConfigError, Kind, cases, options_of
from chm.bench.runner import EXPERIMENTS, runs_of
from chm.bench.turns import TurnsConfig

MIB = 1 << 20


@pytest.mark.parametrize(
    ("kind", "text", "want"),
    [
        (SIZE, "1MiB,16MiB", [MIB, 16 * MIB]),
        (SIZE, "64KiB..1MiB*4", [65536, 262144, MIB]),
        (SIZE, "1.5MiB..3MiB:512KiB", [3 * MIB // 2, 2 * MIB, 5 * MIB // 2, 3 * MIB]),
        (SIZE, "4096, 1MiB..2MiB:1MiB", [4096, MIB, 2 * MIB]),
        (COUNT, "1..4", [1, 2, 3, 4]),
        (COUNT, "0..30:10", [0, 10, 20, 30]),
        (COUNT, "1..9*3", [1, 3, 9]),
        (COUNT, "7", [7]),
        (FACTOR, "1/8..1*2", [Fraction(1, 8), Fraction(1, 4), Fraction(1, 2), Fraction(1)]),
        (FACTOR, "0.5,2", [Fraction(1, 2), Fraction(2)]),
        (RATE, "1GB/s..2GB/s:500MB/s", [10**9, 15 * 10**8, 2 * 10**9]),
        (TIME, "1ms..3ms:1ms", [10**6, 2 * 10**6, 3 * 10**6]),
        (options.SWITCH, "on,off", [True, False]),
        (options.choice("a", "b"), "b,a", ["b", "a"]),
        (options.TEXT, "x..y", ["x..y"]),
    ],
)
def test_lists_and_ranges(kind: Kind, text: str, want: list[object]) -> None:
    assert list(options.Option("some_thing", kind, "", None).parse(text)) == want


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (SIZE, "1MiB..4MiB", "needs a step"),
        (SIZE, "huge", "size: cannot read 'huge'"),
        (COUNT, "4..1", "from low to high"),
        (COUNT, "1..4:0", "step above 0"),
        (COUNT, "1..4*1", "factor above 1"),
        (COUNT, "0..4*2", "from low to high"),
        (COUNT, "0..1000000", "more than 10000 values"),
        (COUNT, "-1", "not be negative"),
        (COUNT, "", "--some-thing ''"),
        (FACTOR, "1/0", "--some-thing '1/0'"),
        (FACTOR, "0", "must be positive"),
        (options.SWITCH, "maybe", "say on or off"),
        (options.choice("a", "b"), "c", "not one of a, b"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_flag(kind: Kind, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as e:
        options.Option("some_thing", kind, "", None).parse(text)
    assert "--some-thing" in str(e.value)


def test_cross_product_in_order_with_axes_named() -> None:
    made = cases(TurnsConfig, {"concurrency": "1,2", "block_size": "1MiB,2MiB", "turns": "4"}, "t")
    assert [c.name for c in made] == [
        "t[block_size=1MiB,concurrency=1]",
        "t[block_size=2MiB,concurrency=1]",
        "t[block_size=1MiB,concurrency=2]",
        "t[block_size=2MiB,concurrency=2]",
    ]
    assert made[2].axes == {"block_size": "1MiB", "concurrency": "2"}
    assert {c.config.turns for c in made} == {4}
    assert len({c.name for c in made}) == len(made)


def test_unknown_options_suggest_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'concurrency'"):
        cases(TurnsConfig, {"concurency": "1"}, "t")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_configurations_round_trip_through_json(name: str) -> None:
    config = EXPERIMENTS[name].config
    for case in cases(config, {"seed": "3,4", "scale": "1/3", "dram": "12MiB"}, name):
        text = json.dumps(options.to_json(case.config))
        assert options.from_json(config, json.loads(text)) == case.config


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_job_file_says_all_that_flags_say(name: str, tmp_path: Path) -> None:
    """Every option, given its own default as text, through both doors."""
    given = {
        o.name: o.kind.show(o.default)
        for o in options_of(EXPERIMENTS[name].config)
        if o.kind.show(o.default)
    }
    lines = [f"{k.replace('_', '-')} = {v}" for k, v in given.items()]
    path = tmp_path / "all.ini"
    path.write_text(f"[global]\nexperiment = {name}\n[job]\n" + "\n".join(lines))
    (from_file,) = jobs.runs(jobs.load(path))
    (from_flags,) = runs_of(name, given)
    assert from_file.case.config == from_flags.case.config == EXPERIMENTS[name].config()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_option_has_a_text_form_that_loses_nothing(name: str) -> None:
    for o in options_of(EXPERIMENTS[name].config):
        text = o.kind.show(o.default)
        assert not text or o.parse(text) == (o.default,), o.name


def test_odd_values_survive_their_text_form() -> None:
    for kind, value in ((SIZE, 12345), (RATE, 1500), (TIME, 1_000_001), (SIZE, 0)):
        assert kind.parse(kind.show(value)) == value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "opt-30b", "block_size": "1MiB"}, "give one"),
        ({"concurrency": "0"}, "at least 1"),
        ({"tune": "read_dept=4"}, "did you mean 'read_depth'"),
        ({"tune": "read_depth"}, "FIELD=VALUE"),
        ({"media": "sim", "path": "x"}, "no use"),
        ({"media": "sim", "thread": "on"}, "stepped"),
        ({"arrivals": "traced"}, "only a trace"),
        ({"trace": "x", "block_size": "1MiB"}, "--token-bytes"),
        ({"trace": "x", "token_bytes": "1KiB", "model": "opt-30b"}, "give one"),
        ({"turns": "0"}, "at least 1"),
    ],
)
def test_contradictions_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cases(TurnsConfig, given, "t")


def test_tuned_fields_reach_the_device() -> None:
    (case,) = cases(LatencyConfig, {"tune": "read_depth=9 flush_unit=512KiB"}, "l")
    assert case.config.device_options(MIB)["read_depth"] == 9
    assert case.config.device_options(MIB)["flush_unit"] == "512KiB"
