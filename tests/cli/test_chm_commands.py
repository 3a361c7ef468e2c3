# SPDX-License-Identifier: Apache-2.0
"""The command chm on real files: what it makes, shows, checks, drops, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import chm
from chm.cli import make
from chm.cli.foreign import examine
from chm.cli.main import cli

HELP = Path(__file__).with_name("help.txt")
COMMANDS = ["evict", "format", "info", "ls", "metrics", "resize", "stats", "verify"]
SHAPES = {
    "info": "command paths open_elsewhere pid age_s stale device store objects used_bytes "
    "free_bytes written_per_day_bytes",
    "ls": "command total listed objects",
    "verify": "command good objects read_bytes damaged problems recovered dropped repair",
    "resize": "command paths before_bytes capacity_bytes data_bytes max_objects objects",
    "evict": "command namespace objects freed_bytes objects_left free_bytes",
    "metrics": "command metrics",
}
EXTRA = {"evict": ["--all"]}


def all_help() -> str:
    """The help of every command, as it is kept."""
    texts = []
    for words in ([], *([name] for name in COMMANDS)):
        result = CliRunner().invoke(cli, [*words, "-h"], prog_name="chm", terminal_width=90)
        assert result.exit_code == 0
        texts.append(result.output)
    return "\n".join(texts)


def test_help_is_as_kept() -> None:
    """Made anew with: python -c 'from test_chm_commands import *; HELP.write_text(all_help())'"""
    assert sorted(cli.commands) == COMMANDS
    assert all_help() == HELP.read_text()


@pytest.mark.parametrize("command", sorted(SHAPES))
def test_json_has_these_fields(made, command) -> None:
    made.fill()
    document = json.loads(made(command, *EXTRA.get(command, []), "--json").stdout)
    assert list(document) == SHAPES[command].split()


# ------------------------------------------------------------------------------------- format


def test_format_tells_what_it_made(run) -> None:
    document = json.loads(
        run("format", "--size", "64MiB", "--dram", "128MiB", "-y", "--json").stdout
    )
    assert document["capacity_bytes"] == 64 << 20
    assert document["dram_bytes"] == 128 << 20
    assert document["max_objects"] == 1024
    assert Path(run.path).stat().st_mode & 0o777 == 0o600


def test_format_asks_for_what_is_missing(run, monkeypatch) -> None:
    monkeypatch.setattr(make, "interactive", lambda: True)
    result = run("format", input="96MiB\n64MiB\ny\n")
    assert "Capacity" in result.stderr
    assert "DRAM budget" in result.stderr
    assert "objects at most" in result.stderr
    assert json.loads(run("info", "--json").stdout)["device"]["capacity_bytes"] == 96 << 20


def test_format_answered_no_makes_nothing(run, monkeypatch) -> None:
    monkeypatch.setattr(make, "interactive", lambda: True)
    run("format", input="96MiB\n64MiB\nn\n", code=130)
    assert not Path(run.path).exists()


def test_format_asks_nobody_who_is_not_there(run) -> None:
    assert "--size" in run("format", code=2).stderr
    assert "--yes" in run("format", "--size", "64MiB", code=2).stderr
    assert not Path(run.path).exists()


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_format_never_touches_foreign_content(run, force) -> None:
    text = b"my only copy " * 10000
    Path(run.path).write_bytes(text)
    result = run("format", "--size", "64MiB", "-y", *force, code=1)
    assert "data of an unknown kind" in result.stderr
    assert Path(run.path).read_bytes() == text


@pytest.mark.parametrize(
    ("at", "magic", "what"),
    [(0x438, b"\x53\xef", "ext4"), (0x10040, b"_BHRfS_M", "Btrfs"), (510, b"\x55\xaa", "MBR")],
)
def test_format_names_what_it_found(run, at, magic, what) -> None:
    """Also where the first page is empty, which is all that the library looks at."""
    content = bytearray(1 << 20)
    content[at : at + len(magic)] = magic
    Path(run.path).write_bytes(content)
    assert what in run("format", "-y", "--force", "--size", "64MiB", code=1).stderr
    assert Path(run.path).read_bytes() == content


def test_format_keeps_a_store_without_force(made) -> None:
    made.fill()
    assert "--force" in made("format", "-y", code=1).stderr
    assert json.loads(made("info", "--json").stdout)["objects"] == 8
    made("format", "-y", "--force")
    assert json.loads(made("info", "--json").stdout)["objects"] == 0


def test_format_refuses_a_directory(tmp_path) -> None:
    result = CliRunner().invoke(cli, ["format", str(tmp_path), "-y"])
    assert result.exit_code == 1
    assert "directory" in result.stderr


def test_format_stripes_over_members(tmp_path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    runner = CliRunner()
    assert runner.invoke(cli, ["format", *paths, "--size", "64MiB", "-y"]).exit_code == 0
    document = json.loads(runner.invoke(cli, ["info", *paths, "--json"]).stdout)
    assert document["device"]["members"] == 2
    wrong = runner.invoke(cli, ["info", *reversed(paths)])
    assert wrong.exit_code == 1
    assert "member" in wrong.stderr


def test_what_is_there_is_looked_at_without_changing_it(tmp_path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(bytes(100))
    assert examine(str(empty)).kind == "empty"
    assert examine(str(tmp_path / "no")).kind == "missing"
    assert examine(str(tmp_path)).kind == "unusable"


# ------------------------------------------------------------------------------------- resize


def test_resize_keeps_what_is_there(made) -> None:
    keys = made.fill(n=40, nbytes=1 << 20)
    document = json.loads(made("resize", "--size", "160MiB", "--json").stdout)
    assert (document["before_bytes"], document["capacity_bytes"]) == (64 << 20, 160 << 20)
    assert document["objects"] == 40
    with chm.open(made.path, dram_bytes="32MiB") as device, chm.Store(device) as store:
        ns = store.namespace("model")
        assert all(store.read(ns, key)[0] == key[0] for key in keys)
        more = [bytes([99, n]) * 8 for n in range(80)]
        store.put(ns, more, [bytes(1 << 20)] * 80, wait=True, chain=False).result()
        assert store.stats().objects == 120
    made("verify")


def test_resize_of_several_members(tmp_path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    runner = CliRunner()
    runner.invoke(cli, ["format", *paths, "--size", "64MiB", "-y"])
    result = runner.invoke(cli, ["resize", *paths, "--size", "96MiB", "--json"])
    assert json.loads(result.stdout)["capacity_bytes"] == 96 << 20


def test_resize_does_not_shrink(made) -> None:
    made.fill()
    assert "smaller" in made("resize", "--size", "32MiB", code=1).stderr
    with pytest.raises(chm.InvalidArgument, match="smaller"):
        chm.grow(made.path, "32MiB")
    made("verify")


def test_resize_cut_short_is_run_again(made) -> None:
    """The device has grown, the store has not."""
    made.fill()
    chm.grow(made.path, "128MiB")
    assert "grow" in made("info", code=1).stderr
    assert json.loads(made("resize", "--json").stdout)["objects"] == 8
    made("verify")


# ------------------------------------------------------------------------------------- look, drop


def test_ls(made) -> None:
    keys = made.fill()
    made.fill(3, namespace="other")
    listed = json.loads(made("ls", "--json").stdout)
    assert listed["total"] == 11
    mine = [o for o in listed["objects"] if o["namespace"] == "model"]
    assert sorted(o["key"] for o in mine) == sorted(key.hex() for key in keys)
    few = made("ls", "--namespace", "other", "--limit", "2")
    assert few.stdout.count("other") == 2
    assert "2 of 3 objects" in few.stderr
    spaces = json.loads(made("ls", "--namespaces", "--json").stdout)["namespaces"]
    assert {ns["name"]: ns["objects"] for ns in spaces} == {"model": 8, "other": 3}


def test_looking_evicts_nothing(made) -> None:
    """Full to the brim: opening it keeps no percentage free."""
    with (
        chm.open(made.path, dram_bytes="32MiB") as device,
        chm.Store(device, free_percent=0) as store,
    ):
        ns = store.namespace("model")
        keys = [bytes([n]) * 16 for n in range(62)]
        store.put(ns, keys, [bytes(1 << 20)] * 62, wait=True, chain=False).result()
        before = store.stats().objects
    assert json.loads(made("info", "--json").stdout)["objects"] == before == 62


def test_evict_needs_to_be_told_how_much(made) -> None:
    made.fill()
    assert "--all" in made("evict", code=2).stderr
    assert "either" in made("evict", "--all", "--bytes", "1", code=2).stderr
    assert "there is: model" in made("evict", "--all", "--namespace", "x", code=2).stderr
    assert json.loads(made("info", "--json").stdout)["objects"] == 8


def test_evict(made) -> None:
    made.fill()
    made.fill(namespace="other")
    some = json.loads(made("evict", "--bytes", "64KiB", "--namespace", "model", "--json").stdout)
    assert (some["objects"], some["freed_bytes"]) == (1, 65536)
    made("evict", "--all", "--namespace", "model")
    left = json.loads(made("ls", "--json").stdout)["objects"]
    assert {o["namespace"] for o in left} == {"other"}


# ------------------------------------------------------------------------------------- verify


def damage(path: str, byte: int) -> None:
    """Flip a bit in the one object that is full of this byte."""
    content = bytearray(Path(path).read_bytes())
    at = content.find(bytes([byte]) * 65536)
    assert at > 0
    content[at + 777] ^= 4
    Path(path).write_bytes(content)


def test_verify_finds_keeps_and_repairs(made) -> None:
    """F98: that object is found; with --repair it is a miss, and all others stay."""
    keys = made.fill()
    assert "no damage" in made("verify").stdout
    damage(made.path, 5)
    for _ in range(2):
        found = json.loads(made("verify", "--json", code=1).stdout)
        assert [d["key"] for d in found["damaged"]] == [keys[5].hex()]
        assert found["damaged"][0]["why"] == "checksum is wrong"
    assert "--repair" in made("verify", code=1).stdout
    assert "1 objects dropped" in made("verify", "--repair", code=1).stdout
    left = {o["key"] for o in json.loads(made("ls", "--json").stdout)["objects"]}
    assert keys[5].hex() not in left
    assert {key.hex() for key in keys[:5]} <= left
    made("verify")


def test_errors_name_the_fix(tmp_path, monkeypatch) -> None:
    missing = CliRunner().invoke(cli, ["info", str(tmp_path / "no")])
    assert missing.exit_code == 1
    plain = tmp_path / "plain"
    chm.format(plain, "16MiB")
    no_store = CliRunner().invoke(cli, ["info", str(plain)])
    assert no_store.exit_code == 1
    assert "format" in no_store.stderr
    monkeypatch.delenv("CHM_PATH", raising=False)
    assert CliRunner().invoke(cli, ["info"]).exit_code == 2


def test_path_from_the_environment(made) -> None:
    result = CliRunner().invoke(cli, ["info"], env={"CHM_PATH": made.path})
    assert result.exit_code == 0
    assert re.search(r"objects +0 of 1024", result.stdout)
