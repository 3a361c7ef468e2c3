# SPDX-License-Identifier: Apache-2.0
"""Presets: what is shipped is whole and opens; files round-trip; what cannot work is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

import chm
from chm import preset as presets
from chm.options import Options, SimOptions, option_names
from chm.preset import PresetError

SHIPPED = (
    *("cmmh-256g-rdma", "cxl-switch", "dram-pool", "gen5-tlc", "hymcache-proto"),
    *("itme-fpga", "nvmeof-xfs", "samsung-cmmh", "xcena-im"),
)
GIB = 1 << 30

TINY = """
[preset]
summary = "for tests"

[sim]
capacity_bytes = { value = "64MiB", source = "this test", grade = "D" }
read_rate = "1GB/s"

[device]
members = 2
dram_bytes = "8MiB"

[link]
link_rate = { value = "2GB/s", source = "a wire", grade = "M" }
link_jitter_ns = ["1us", "2us", "3us", "4us"]
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Make a preset file; the user's own presets are elsewhere."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def make(text: str, name: str = "tiny.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return make


# ------------------------------------------------------------------------------------ shipped


def test_what_is_shipped(write: Write) -> None:
    assert tuple(presets.available()) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_preset_is_whole(name: str) -> None:
    preset = presets.load(name)
    assert preset.name == name
    assert preset.summary
    assert preset.sources
    assert presets.warnings(preset) == []
    assert all(n.grade and n.source for n in preset.numbers.values())


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_preset_opens(name: str) -> None:
    preset = presets.load(name)
    with chm.Device(preset.options()) as dev:
        info = dev.info
        assert not info.contents
        assert info.capacity_bytes == preset.capacity_bytes // (1 << 20) * (1 << 20)
        assert info.dram_bytes == preset.get("dram_bytes")
        assert info.members == preset.members
        assert info.link_rate == preset.get("link_rate") * preset.get("link_rails", 1)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_preset_survives_being_written(name: str, write: Write) -> None:
    preset = presets.load(name)
    again = presets.load(write(preset.to_toml()))
    assert (again.numbers, again.sources) == (preset.numbers, preset.sources)
    assert again.digest == preset.digest


# ------------------------------------------------------------------------------------ files


def test_a_file(write: Write) -> None:
    preset = presets.load(write(TINY))
    assert preset.name == "tiny"
    assert preset.get("read_rate") == 10**9
    assert preset.get("link_jitter_ns") == (1000, 2000, 3000, 4000)
    assert preset.numbers["link_rate"].grade == "M"
    assert preset.capacity_bytes == 2 * (63 << 20)
    options = preset.options()
    assert (options.media, options.members, options.sim.no_contents) == ("sim", 2, True)
    with chm.Device(options) as dev:
        assert dev.info.capacity_bytes == preset.capacity_bytes
    assert presets.load(write(preset.to_toml(), "again.toml")).digest == preset.digest


def test_no_field_means_two_things() -> None:
    known = presets.known_fields()
    assert not set(option_names(SimOptions)) & set(option_names(Options))
    assert {f.table for f in known.values()} == set(presets.TABLES)
    assert "thread" not in known
    assert "force_align" not in known


def test_the_manual_has_every_field_and_preset() -> None:
    text = (Path(__file__).parents[2] / "docs" / "presets.md").read_text()
    assert [name for name in presets.known_fields() if f"`{name}`" not in text] == []
    assert [name for name in SHIPPED if f"| `{name}` |" not in text] == []


def test_extends(write: Write) -> None:
    write(TINY, "base.toml")
    preset = presets.load(
        write('[preset]\nextends = "base.toml"\n[sim]\nread_rate = "3GB/s"\n', "child.toml")
    )
    assert (preset.name, preset.get("read_rate"), preset.get("members")) == ("child", 3 * 10**9, 2)
    assert preset.numbers["link_rate"].source == "a wire"


def test_a_preset_that_extends_itself_is_refused(write: Write) -> None:
    write('[preset]\nextends = "b.toml"\n', "a.toml")
    write('[preset]\nextends = "a.toml"\n', "b.toml")
    with pytest.raises(PresetError, match="extends itself"):
        presets.load(presets.find(str(write("", "x.toml").with_name("a.toml"))))


def test_the_users_own(write: Write) -> None:
    mine = write(TINY, "config/chm/presets/mine.toml")
    write(TINY, "config/chm/presets/dram-pool.toml")
    assert presets.available()["mine"] == mine
    assert presets.load("mine").get("members") == 2
    assert presets.find("dram-pool").parent == presets.shipped_directory()
    with pytest.raises(PresetError, match="did you mean 'mine'"):
        presets.load("mime")


def test_set_wins_and_says_so(write: Write) -> None:
    preset = presets.load(
        write(TINY), ["read_rate=4GB/s", "device.members=1", "link_jitter_ns=1us/2us/3us/9us"]
    )
    assert (preset.get("read_rate"), preset.get("members")) == (4 * 10**9, 1)
    assert preset.get("link_jitter_ns")[3] == 9000
    assert preset.numbers["read_rate"].source == presets.SET
    assert preset.digest != presets.load(write(TINY)).digest
    assert presets.load(write(preset.to_toml(), "set.toml")).digest == preset.digest


def test_a_digest_is_of_values_not_of_spelling(write: Write) -> None:
    one = presets.load(write(TINY))
    two = presets.load(write(TINY.replace('"1GB/s"', '{ value = 1000000000, source = "same" }')))
    assert one.digest == two.digest
    assert one.digest != presets.load(write(TINY.replace('"1GB/s"', '"1.1GB/s"'))).digest


# ------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("table", "line", "reason"),
    [
        ("sim", 'read_rat = "1GB/s"', "did you mean 'read_rate'"),
        ("sim", 'link_rate = "1GB/s"', r"belongs in \[link\]"),
        ("device", "thread = true", "no property of a device"),
        ("sim", 'read_rate = "5us"', "cannot read '5us'"),
        ("sim", 'read_latency_ns = "5GB"', "cannot read '5GB'"),
        ("sim", "read_latency_ns = -5", "at least 0"),
        ("sim", "read_rate = 0", "means the default"),
        ("sim", 'capacity_bytes = "1MiB"', "at least 2 MiB"),
        ("device", "members = 17", "at most 16"),
        ("device", 'members = "two"', "whole number"),
        ("device", 'write_buffer_bytes = "1GiB"', "leaves nothing of dram_bytes"),
        ("device", 'durability = "strickt"', "did you mean 'strict'"),
        ("link", 'link_latency_ns = "1us"', "without link_rate"),
        ("link", 'link_rate = "1GB/s"\nlink_rails = 3', "1 or 2"),
        ("link", 'link_rate = "1GB/s"\nlink_jitter_ns = [1, 2, 3]', "4 durations"),
        ("link", 'link_rate = "1GB/s"\nlink_jitter_ns = [1, 2, 3, 2]', "must not fall"),
        ("sim", 'read_rate = { value = "1GB/s", grade = "B" }', "needs a source"),
        ("sim", 'read_rate = { value = "1GB/s", source = "x", grade = "E" }', "none of A, B"),
        ("sim", 'read_rate = { valeu = "1GB/s" }', "did you mean 'value'"),
        ("sim", 'read_rate = { source = "x" }', "no value"),
        ("preset", 'extend = "x"', "did you mean 'extends'"),
        ("preset", "summary = 5", "not text"),
        ("preset", 'extends = "samsung-cmhm"', "did you mean 'samsung-cmmh'"),
        ("devise", "members = 1", "did you mean 'device'"),
        ("sim", "read_rate = ", "Invalid value"),
        ("sim", "dies = 10\nchannels = 4", "multiple of channels"),
        ("sim", "channels = 4", "without dies"),
        ("sim", 'dies = 4\npage_bytes = "12KiB"', "power of two"),
        ("device", 'policy = "lru"\nline_bytes = "6KiB"', "power of two, 4 KiB to 16 MiB"),
        ("device", 'policy = "lru"\nline_bytes = "16MiB"\nways = 32', "larger than the cache"),
        ("device", "effective_percent = 101", "at most 100"),
    ],
)
def test_what_cannot_work_is_refused(write: Write, table: str, line: str, reason: str) -> None:
    path = write(f"[{table}]\n{line}\n")
    with pytest.raises(PresetError, match=reason) as caught:
        presets.load(path)
    assert str(path) in str(caught.value) or "samsung" in line


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("read_rate", "write FIELD=VALUE"),
        ("read_rat=1GB/s", "did you mean 'read_rate'"),
        ("link.read_rate=1GB/s", r"belongs in \[sim\]"),
        ("fcfs=maybe", "on or off"),
        ("dram_bytes=1GB/s", "cannot read"),
        ("write_buffer_bytes=1TiB", "leaves nothing"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(write: Write, text: str, reason: str) -> None:
    with pytest.raises(PresetError, match=reason):
        presets.load(write(TINY), [text])


def test_what_may_surprise_is_told(write: Write) -> None:
    flash = "dies = 8\nchannels = 8\nread_rate = '9GB/s'\nwrite_rate = '9GB/s'\n"
    told = presets.warnings(presets.load(write("[sim]\n" + flash)))
    # 8 dies of 16 KiB pages: in 60 us each 2.2 GB/s, programmed in 600 us 0.22 GB/s.
    assert "the flash gives 2.185 GB/s" in told[0]
    assert "the flash takes 218.5 MB/s" in told[1]
    assert told[2] == "no source: dies, channels, read_rate, write_rate"
    ungraded = presets.load(write("[sim]\nread_rate = { value = '1GB/s', source = 'x' }\n"))
    assert presets.warnings(ungraded) == ["no grade: read_rate"]


def test_options_can_be_changed(write: Write) -> None:
    preset = presets.load(write(TINY))
    options = preset.options(dram_bytes="16MiB", sim={"no_contents": False})
    assert (options.dram_bytes, options.sim.no_contents) == (16 << 20, False)
    assert options.sim.read_rate == 10**9
    with pytest.raises(PresetError, match="did you mean 'dram_bytes'"):
        preset.options(dram_byte=1)


def test_it_is_plain_data(write: Write) -> None:
    told = presets.load(write(TINY)).to_dict()
    assert told["sim"]["capacity_bytes"] == {
        "value": 64 << 20,
        "text": "64MiB",
        "source": "this test",
        "grade": "D",
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        presets.load(write(TINY)).name = "x"  # type: ignore[misc]
