# SPDX-License-Identifier: Apache-2.0
"""Options: two ways to write one thing are equal, JSON keeps them, mistakes are named."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import chm
from chm._ffi import field_names
from chm.options import OptionGroup, option_names

MIB = 1 << 20

FULL = chm.Options(
    paths=["a", Path("b")],
    dram_bytes="256MiB",
    durability="strict",
    thread=True,
    link_rate="25GB/s",
    sim={"read_rate": "2GB/s", "read_latency_ns": "80us"},
    pace=chm.PaceOptions(rate="1GB/s"),
    fault=chm.FaultOptions(script="0 read err 5", seed=7),
    trace_record=Path("t.jsonl"),
)


def test_text_and_numbers_are_equal() -> None:
    assert chm.Options(dram_bytes="256MiB") == chm.Options(dram_bytes=256 * MIB)
    assert FULL.paths == ("a", "b")
    assert FULL.sim.read_latency_ns == 80_000


def test_they_survive_json() -> None:
    text = json.dumps(FULL.to_dict())
    assert chm.Options.from_dict(json.loads(text)) == FULL
    group = chm.FormatOptions(paths="x", capacity_bytes="1GiB", force=True)
    assert chm.FormatOptions.from_dict(json.loads(json.dumps(group.to_dict()))) == group


def test_they_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        FULL.thread = False


@pytest.mark.parametrize(
    ("ctype", "cls", "elsewhere"),
    [
        ("struct chm_options", chm.Options, {"size", "npaths", "members"}),
        (
            "struct chm_sim_options",
            chm.SimOptions,
            {
                "keep",  # for C tests
                "page_read_ns",
                *(f"page_read_{kind}_ns" for kind in ("lower", "middle", "upper")),
            },
        ),
        ("struct chm_pace_options", chm.PaceOptions, set()),
        ("struct chm_fault_options", chm.FaultOptions, set()),
        ("struct chm_format_options", chm.FormatOptions, {"size", "npaths"}),
    ],
)
def test_they_mirror_c(ctype: str, cls: type[OptionGroup], elsewhere: set[str]) -> None:
    assert set(option_names(cls)) ^ set(field_names(ctype)) == elsewhere


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"dram_byte": 1}, "dram_bytes"),
        ({"sim": {"read_rat": 1}}, "read_rate"),
        ({"durability": "strickt"}, "strict"),
        ({"media": "io_uring"}, "uring"),
        ({"dram_bytes": "256 parsecs"}, "256MiB"),
        ({"thread": "yes"}, "True or False"),
        ({"requests_max": -1}, "at least 0"),
    ],
)
def test_mistakes_are_named(values: dict[str, object], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        chm.Options.from_dict(values)


def test_unknown_fields_of_open_and_sim() -> None:
    with pytest.raises(ValueError, match="did you mean 'thread'"):
        chm.open("nowhere", threads=True)
    with pytest.raises(ValueError, match="did you mean 'read_rate'"):
        chm.sim("1GiB", read_rates=1)


def test_the_capacity_of_a_simulated_device(make) -> None:
    for members in (1, 3):
        dev = make("sim", 10 * MIB, members=members)
        assert 10 * MIB <= dev.info.capacity_bytes < 10 * MIB + members * MIB
        assert dev.info.members == members


def test_options_reach_the_device(make) -> None:
    dev = make("sim", dram_bytes="64MiB", write_buffer_bytes="24MiB", link_rate="1GB/s")
    assert dev.info.dram_bytes == 64 * MIB
    assert dev.info.write_buffer_bytes == 24 * MIB
    assert dev.info.link_rate == 10**9
    assert dev.options.dram_bytes == 64 * MIB


def test_huge_pages_never_means_never() -> None:
    with chm.sim("8MiB", dram_bytes="32MiB", prefault="now", huge_pages="never") as dev:
        assert (dev.info.huge_bytes, dev.info.prefaulted_bytes) == (0, 32 << 20)
    with chm.sim("8MiB", dram_bytes="32MiB", prefault="now") as dev:
        assert dev.info.huge_bytes in range(0, (32 << 20) + 1, 2 << 20)
