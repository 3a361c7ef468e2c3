# SPDX-License-Identifier: Apache-2.0
"""The tier under all adapters: tasks told once, misses, hints, faults, names."""

from __future__ import annotations

import select
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tier_rig import KIB, MIB, Make, fill, finish, keys, rows

import chm
from chm.connectors import Naming, Tier, TierOptions, key_of
from chm.connectors.naming import weights_identity


def test_put_and_get(tier: Tier) -> None:
    data = fill(tier, 0, 80)
    assert tier.exists(keys(0, 81)) == [True] * 80 + [False]
    out = np.zeros_like(data)
    number = tier.get("load", keys(0, 80), list(out))
    [done] = finish(tier)
    assert (done.task, done.tag, done.op, done.good) == (number, "load", "get", True)
    assert done.nbytes == data.nbytes
    assert np.array_equal(out, data)
    assert tier.drain() == []  # told once
    stats = tier.stats()
    assert (stats.lookups, stats.hits, stats.misses) == (81, 80, 1)
    assert (stats.get_ok, stats.put_ok, stats.tasks_running) == (80, 80, 0)


def test_a_put_of_many_is_one_chain(tier: Tier) -> None:
    fill(tier, 0, 70)
    objects = {o.key: o for o in tier.store.list()}
    chain = keys(0, 70)
    assert [objects[k].parent for k in chain] == [None, *chain[:-1]]
    data = rows(70, 3)
    tier.put("more", keys(70, 3), list(data), after=chain[-1])
    assert finish(tier)[0].good
    objects = {o.key: o for o in tier.store.list()}
    assert objects[keys(70, 1)[0]].parent == chain[-1]


def test_a_put_after_what_is_not_there_begins_a_chain(tier: Tier) -> None:
    data = rows(0, 2)
    tier.put(1, keys(0, 2), list(data), after=key_of(b"nowhere"))
    assert finish(tier)[0].good


@pytest.mark.parametrize("hangs_on", [39, 20])
def test_a_put_after_one_that_goes_on_hangs_on_it(tier: Tier, hangs_on: int) -> None:
    tier.put("first", keys(0, 40), list(rows(0, 40)))
    before = keys(hangs_on, 1)[0]
    tier.put("second", keys(40, 3), list(rows(40, 3)), after=before)
    assert [done.tag for done in finish(tier) if done.good] == ["first", "second"]
    objects = {o.key: o for o in tier.store.list()}
    assert objects[keys(40, 1)[0]].parent == before


def test_closing_after_the_store_was_closed(tier: Tier) -> None:
    """At the end of a process: the store closes itself before the host closes the tier."""
    fill(tier, 0, 4)
    number = tier.put("late", keys(4, 40), list(rows(4, 40)))
    tier.store.device.close(10.0)
    assert [done.task for done in tier.close()] == [number]


def test_what_is_there_counts_as_stored(tier: Tier) -> None:
    data = fill(tier, 0, 4)
    tier.put("again", keys(0, 6), list(rows(0, 6)))
    assert finish(tier)[0].ok == [True] * 6
    out = np.zeros_like(data)
    tier.get(0, keys(0, 4), list(out))
    finish(tier)
    assert np.array_equal(out, data)


def test_missing_keys_fail_alone(tier: Tier) -> None:
    data = fill(tier, 0, 4)
    out = np.zeros((6, 64 * KIB), np.uint8)
    tier.get(0, keys(0, 6), list(out))
    [done] = finish(tier)
    assert done.ok == [True] * 4 + [False] * 2
    assert done.prefix == 4
    assert done.error
    assert np.array_equal(out[:4], data)


def test_a_failed_key_is_a_miss_until_it_is_put(tier: Tier) -> None:
    fill(tier, 0, 2)
    tier.get(0, keys(0, 1), [np.zeros(5, np.uint8)])  # another length
    assert not finish(tier)[0].good
    assert tier.exists(keys(0, 2)) == [False, True]
    fill(tier, 0, 2)
    assert tier.exists(keys(0, 2)) == [True, True]


def test_marked_missing_though_it_is_there(tier: Tier) -> None:
    fill(tier, 0, 2)
    tier.mark_missing(keys(1, 1))
    assert tier.exists(keys(0, 2)) == [True, False]
    tier.put(0, keys(0, 2), list(rows(0, 2)))
    finish(tier)
    assert tier.exists(keys(0, 2)) == [True, True]


def test_batches_are_at_most_32(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    for name in ("exists", "get", "put", "lease", "sizes", "prefix"):
        real = getattr(chm.Store, name)

        def spy(self: Any, ns: int, some: Any, *rest: Any, real: Any = real, **more: Any) -> Any:
            seen.append(len(some))
            return real(self, ns, some, *rest, **more)

        monkeypatch.setattr(chm.Store, name, spy)
    data = fill(tier, 0, 100)
    tier.exists(keys(0, 100))
    tier.touch(keys(0, 100))
    tier.hint("r", keys(0, 100))
    tier.get(0, keys(0, 100), list(np.zeros_like(data)))
    assert finish(tier)[0].good
    assert max(seen) == 32


@pytest.mark.parametrize("nbytes", [64 * KIB, 3 * MIB])
def test_a_hint_is_read_once(tier: Tier, nbytes: int) -> None:
    n = 4
    data = fill(tier, 0, n, nbytes)
    assert tier.store.device.flush() is None
    before = tier.store.device.stats()
    assert tier.hint("r", keys(0, n)) == n
    assert tier.hint("r", keys(0, n)) == 0  # has one
    out = np.zeros_like(data)
    tier.get(0, keys(0, n), list(out))
    assert finish(tier)[0].good
    assert np.array_equal(out, data)
    after = tier.store.device.stats()
    read = after.read_bytes - before.read_bytes
    assert read <= data.nbytes + n * 3 * 2 * 4096  # payload once; headers twice
    assert after.shared - before.shared >= n
    stats = tier.stats()
    assert (stats.hints, stats.hints_used) == (1, 1)
    tier.drain()
    assert tier.store.stats().leases == 0


def test_a_hint_takes_its_share_of_the_window_only(tier_with: Make) -> None:
    tier = tier_with(hint_share=0.05)
    fill(tier, 0, 64)
    window = tier.store.device.info.window_bytes
    n = tier.hint("r", keys(0, 64))
    assert 0 < n * 64 * KIB <= window * 0.05
    assert tier.hint("other", keys(n, 64)) < 32
    tier.cancel("r")
    tier.cancel("other")
    assert tier.stats().hints_cancelled == 2
    assert tier.wait(5.0)
    assert tier_with(hints=False).hint("r", keys(0, 4)) == 0


def test_hints_expire(tier_with: Make) -> None:
    tier = tier_with(hint_s=1e-6)
    fill(tier, 0, 4)
    assert tier.hint("r", keys(0, 4)) == 4
    tier.drain()
    assert tier.stats().hints_expired == 1


def reads_to_open(tier_with: Make) -> int:
    with tier_with() as tier:
        return tier.store.device.stats().read_ios


@pytest.mark.parametrize("nbytes", [64 * KIB, 3 * MIB])
@pytest.mark.parametrize("fault", ["never", "err 5"])
def test_a_failed_read_is_told_in_time(tier_with: Make, fault: str, nbytes: int) -> None:
    """The deadline ends a hung read, also that of a header; the buffer is the caller's then."""
    with tier_with() as tier:
        fill(tier, 0, 2, nbytes)
    first = reads_to_open(tier_with)
    tier = tier_with(deadline_s=0.3, device={"fault": {"script": f"{first} read {fault}"}})
    out = np.zeros((2, nbytes), np.uint8)
    tier.get(0, keys(0, 1), list(out[:1]))
    [done] = finish(tier)
    assert done.ok == [False]
    assert done.error
    out[:] = 90
    assert tier.exists(keys(0, 2)) == [False, True]
    tier.close()
    assert (out == 90).all()


def test_damaged_bytes_are_a_miss(options: TierOptions, tier_with: Make, tmp_path: Path) -> None:
    tier = tier_with()
    data = fill(tier, 0, 2)
    tier.close()
    raw = (tmp_path / "kv").read_bytes()
    at = raw.index(data[1].tobytes()[:4096])
    with open(tmp_path / "kv", "r+b") as file:
        file.seek(at + 7)
        file.write(bytes([raw[at + 7] ^ 1]))
    tier = tier_with()
    out = np.zeros_like(data)
    tier.get(0, keys(0, 2), list(out))
    [done] = finish(tier)
    assert done.ok == [True, False]
    assert tier.exists(keys(0, 2)) == [True, False]


def test_restart_keeps_what_was_stored(tier_with: Make) -> None:
    tier = tier_with()
    data = fill(tier, 0, 8)
    tier.close()
    tier = tier_with()
    out = np.zeros_like(data)
    tier.get(0, keys(0, 8), list(out))
    assert finish(tier)[0].good
    assert np.array_equal(out, data)


def test_namespaces_do_not_mix(tier_with: Make) -> None:
    one, other = tier_with("one"), tier_with("other")
    assert one.store is other.store
    fill(one, 0, 2)
    assert other.exists(keys(0, 2)) == [False, False]
    one.close()
    assert other.exists(keys(0, 2)) == [False, False]  # still open


def test_close_reports_what_runs(options: TierOptions) -> None:
    tier = Tier(options, "test")
    data = rows(0, 40)
    number = tier.put("last", keys(0, 40), list(data))
    [done] = tier.close()
    assert (done.task, done.good) == (number, True)
    assert tier.close() == []


def test_the_descriptor_tells(tier: Tier) -> None:
    poll = select.poll()
    poll.register(tier.fileno(), select.POLLIN)
    data = fill(tier, 0, 4)
    assert poll.poll(0) == []
    tier.get(0, keys(0, 4), list(np.zeros_like(data)))
    assert poll.poll(10_000)
    assert tier.drain()[0].good
    assert poll.poll(0) == []


def test_scatter_lists(tier: Tier) -> None:
    parts = [np.full(16 * KIB, i, np.uint8) for i in range(4)]
    tier.put(0, keys(0, 2), [parts[:2], parts[2:]])
    assert finish(tier)[0].good
    out = np.zeros(32 * KIB, np.uint8)
    tier.get(0, keys(1, 1), [[out[: 8 * KIB], out[8 * KIB :]]])
    assert finish(tier)[0].good
    assert np.array_equal(out, np.concatenate(parts[2:]))


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'capacity'"):
        TierOptions.from_dict({"path": "x", "capacty": 1})
    with pytest.raises(ValueError, match="name the file"):
        TierOptions()
    with pytest.raises(ValueError, match="above 0"):
        TierOptions(path="x", deadline_s=0)
    with pytest.raises(chm.NotFound, match="give a capacity"):
        Tier(TierOptions(path=tmp_path / "none"), "n")
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"not ours" * 4096)
    with pytest.raises(chm.BadHeader):
        Tier(TierOptions(path=foreign, capacity="64MiB"), "n")
    assert foreign.read_bytes() == b"not ours" * 4096


def test_names_differ_when_anything_differs() -> None:
    base: dict[str, Any] = {"model": "m", "tp": 1, "salt": ""}
    names = {str(Naming("vllm", **base, **more)) for more in ({}, {"x": None}, {"x": ""}, {"x": 1})}
    names |= {str(Naming("sglang", **base)), str(Naming("vllm", **{**base, "model": "m/tp=1"}))}
    assert len(names) == 6
    long = str(Naming("vllm", model="ü" * 1000))
    assert len(long.encode()) <= 255
    assert str(Naming("vllm", model="ü" * 1001)) != long


def test_weights_identity(tmp_path: Path) -> None:
    assert weights_identity("org/model") == "name:org/model"
    assert weights_identity("org/model", "abc") == "revision:abc"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1")
    before = weights_identity(str(tmp_path))
    assert before == weights_identity(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"12")
    assert weights_identity(str(tmp_path)) != before
