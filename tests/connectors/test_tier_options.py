# SPDX-License-Identifier: Apache-2.0
"""Configuration of a tier: what is wrong is refused with its name before anything is made; stores
are made whole or not at all; who else has the files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tier_rig import Make, fill, keys

import chm
from chm.connectors import Tier, TierOptions, config


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("path", "", "not empty"),
        ("path", 5, "iterable"),
        ("path", ["a", "./a"], "given twice"),
        ("capacity", -1, "at least 0"),
        ("dram", "lots", "256MiB"),
        ("deadline_s", float("nan"), "above 0"),
        ("deadline_s", float("inf"), "above 0"),
        ("deadline_s", True, "above 0"),
        ("hint_s", "60", "above 0"),
        ("hint_share", 0, "within"),
        ("hint_share", 1.5, "within"),
        ("hints", "yes", "True or False"),
        ("salt", 5, "quotes"),
        ("identity", None, "quotes"),
        ("eviction", "mru", "prefix-tail, lru, fifo"),
        ("media", "sim", "auto, uring"),
        ("flush_depth", -1, "at least 0"),
        ("device", 5, "mapping"),
        ("device", {"dram_bytes": 1}, "TierOptions.dram"),
        ("device", {"read_dept": 1}, "did you mean 'read_depth'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)TierOptions.{field}: .*{says}"):
        TierOptions.from_dict({"path": "x", field: value})


def test_options_survive_json(options: TierOptions) -> None:
    full = options.replace(device={"read_depth": 8}, salt="s", path=["a", "b"])
    assert TierOptions.from_dict(full.to_dict()) == full


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"capacity": "1000TiB"}, chm.DeviceFull),
        ({"capacity": "4KiB"}, chm.InvalidArgument),
        ({"path": "none/kv"}, chm.NotFound),
    ],
)
def test_what_cannot_be_made_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception]
) -> None:
    fields = {"path": "kv", "capacity": "64MiB", **changes}
    fields["path"] = tmp_path / fields["path"]
    with pytest.raises(error):
        Tier(TierOptions(**fields), "n")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_finished_leaves_nothing(
    options: TierOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next start finds a device without a store, for good."""

    def fails(*_: Any, **__: Any) -> None:
        raise chm.MediaError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(config.stores, "format", fails)
        with pytest.raises(chm.MediaError):
            Tier(options, "n")
    assert list(tmp_path.iterdir()) == []
    Tier(options, "n").close()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EEXIST])
def test_made_without_links_and_made_by_two(
    options: TierOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """On a file system without links it is renamed; who comes second takes what the first made."""
    real = os.link

    def link(new: str, path: str) -> None:
        if number == errno.EEXIST:
            real(new, path)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    Tier(options, "n").close()
    assert [path.name for path in tmp_path.iterdir()] == ["kv"]


def test_a_store_of_tiny_blocks(options: TierOptions) -> None:
    with Tier(options.replace(block_bytes=1), "n") as tier:
        assert tier.store.info.max_objects < options.capacity / 4096 * 2


def test_several_members(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with Tier(TierOptions(path=paths, capacity="64MiB", dram="64MiB"), "n") as tier:
        assert tier.store.device.info.members == 2
    paths[1].unlink()
    with pytest.raises(chm.NotFound, match="other members"):
        Tier(TierOptions(path=paths, capacity="64MiB"), "n")


def test_a_device_without_a_store_is_not_touched(tmp_path: Path) -> None:
    chm.format(tmp_path / "kv", "64MiB")
    with chm.open(tmp_path / "kv", dram_bytes="64MiB") as dev:
        dev.write(0, bytes([7]) * 4096)
    with pytest.raises(chm.NotFound, match="format it"):
        Tier(TierOptions(path=tmp_path / "kv", capacity="64MiB"), "n")
    with chm.open(tmp_path / "kv", dram_bytes="64MiB") as dev:
        assert bytes(dev.read(0, 4096)) == bytes([7]) * 4096


OTHER = """
import sys
import chm
from chm.connectors import Tier, TierOptions
try:
    Tier(TierOptions(path=sys.argv[1], capacity="64MiB"), "n")
except chm.Busy as error:
    print(error)
"""


def test_another_process_is_told_who_has_it(tier: Tier, options: TierOptions) -> None:
    command = [sys.executable, "-c", OTHER, options.path[0]]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"in use by process {os.getpid()}" in run.stdout
    fill(tier, 0, 2)


CHILD = """
import os, sys
import numpy as np
import chm
from chm.connectors import Tier, TierOptions, key_of

options = TierOptions(path=sys.argv[1], capacity="64MiB", dram="64MiB", deadline_s=0.2)
tier = Tier(options, "n")
keys, rows = [key_of(b"%d" % i) for i in range(8)], [np.zeros(65536, np.uint8) for _ in range(8)]
tier.put(0, keys, rows)
if os.fork() == 0:
    try:
        try:
            Tier(options, "n")
            raise AssertionError("two processes have one file open")
        except chm.Busy:
            pass
        tier.get(1, keys[:1], rows[:1])
        told = tier.drain()
        told += tier.close()
        assert sorted(done.task for done in told) == [1, 2], told
        assert not any(done.good for done in told)
        assert tier.close() == []
        os._exit(0)
    except BaseException as error:
        print(repr(error), flush=True)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.wait()[1]))
[done] = tier.close()
print(done.good)
"""


def test_a_forked_child_ends_and_hurts_nobody(options: TierOptions) -> None:
    """What it inherited fails there, once; the parent's tier goes on."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, options.path[0]], capture_output=True, text=True, check=False
    )
    assert run.stdout == "0\nTrue\n", run.stdout + run.stderr


def test_a_quota_is_kept(tier_with: Make) -> None:
    tier = tier_with(quota="4MiB", deadline_s=0.5)
    data = [np.full(65536, i, np.uint8) for i in range(100)]
    tier.put(0, keys(0, 100), data)
    assert tier.wait(30.0)
    [done] = tier.drain()
    assert 0 < done.prefix < 100
    assert done.ok == [i < done.prefix for i in range(100)]
    assert done.error
    assert tier.exists(keys(0, 100)) == done.ok
