# SPDX-License-Identifier: Apache-2.0
"""Several devices as nodes of one pool: addresses, missing members, coming and going."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest
from store_rig import KIB, MIB, blocks, contents, key, keys, small_sim

import chm
from chm import pool as pools
from chm.pool import Member, Pool


def sim_member(name: str, space: int = 0, **options: object) -> Member:
    member = Member(name, device=small_sim(**options), space=space)
    pools.format(member)
    return member


def file_member(folder, name: str, **fields: object) -> Member:
    return Member(name, folder / f"{name}.chm", options={"dram_bytes": "32MiB"}, **fields)


def test_nodes_regions_and_addresses() -> None:
    with Pool([sim_member("a", space=16 * MIB), sim_member("b", space=16 * MIB)]) as pool:
        assert [node.state for node in pool.nodes] == ["up", "up"]
        one, two = pool.region(0), pool.region(1)
        assert (one.base, two.base) == (0, 1 << pools.NODE_SHIFT)
        assert one.length == pool.nodes[0].device.info.capacity_bytes
        assert one.base + one.length <= two.base
        assert one.key != two.key
        assert json.dumps([info.to_dict() for info in pool.info()])
        with pytest.raises(chm.NotFound):
            pool.node(2)


def test_alloc_on_a_node() -> None:
    """Raw space on the node that was asked for, of mixed sizes; what does not fit goes to another
    and is counted."""
    with Pool([sim_member("a", space=4 * MIB), sim_member("b", space=16 * MIB)]) as pool:
        sizes = [5, 4096, MIB + 3]
        made = []
        for number, size in enumerate(sizes):
            with pool.alloc(size, node=1) as room:
                room.fill(contents(number, size))
            assert room.address >> pools.NODE_SHIFT == room.node == 1
            made.append(room)
        for number, room in enumerate(made):
            size = sizes[number]
            assert np.array_equal(pool.read(room.address, size), contents(number, size))
        req = chm.chm_prefetch_object(pool.ptr(made[2].address), sizes[2])
        chm.chm_prefetch_wait(req)
        assert np.array_equal(req.array()[: sizes[2]], contents(2, sizes[2]))
        chm.chm_prefetch_release(req)
        with pool.prefetch(made[1].address, 4096) as req:
            assert np.array_equal(req.array(), contents(1, 4096))
        assert pool.spilled == 0
        with pool.alloc(8 * MIB, node=0) as room:
            room.fill(contents(9, 8 * MIB))
        assert (room.node, pool.spilled) == (1, 1)
        with pytest.raises(chm.DeviceFull):
            pool.alloc(32 * MIB)
        with pytest.raises(chm.InvalidArgument), pool.alloc(4096) as room:
            room.fill(b"too short")
        made[0].free()
        objects = pool.nodes[1].space.stats.objects
        assert objects == 3


def test_an_aborted_allocation_leaves_nothing() -> None:
    with Pool([sim_member("a", space=4 * MIB)]) as pool:
        free = pool.nodes[0].space.stats.free_bytes
        with pytest.raises(RuntimeError), pool.alloc(MIB):
            raise RuntimeError
        assert pool.nodes[0].space.stats.free_bytes == free


def test_a_member_without_raw_space_says_so() -> None:
    with Pool([sim_member("a")]) as pool:
        with pytest.raises(chm.DeviceFull):
            pool.alloc(4096)
        with pytest.raises(chm.NotFound, match="no raw space"):
            _ = pool.nodes[0].space


def test_it_opens_with_a_member_missing(tmp_path) -> None:
    """What lies on the others is there; the missing one is named, with the reason, and its objects
    are there again once it is."""
    members = [file_member(tmp_path, name) for name in ("a", "b", "c")]
    for member in members:
        pools.format(member, "64MiB")
    with Pool(members) as pool:
        for node in pool.nodes:
            ns = node.ns("model")
            some = keys(100 * node.number, 4)
            node.store.put(ns, some, blocks(100 * node.number, 4, 64 * KIB)).result()
    (tmp_path / "b.chm").rename(tmp_path / "elsewhere")
    with Pool(members) as pool:
        info = pool.info()
        assert [i.state for i in info] == ["up", "missing", "up"]
        assert "b.chm" in info[1].reason
        for number in (0, 2):
            store, ns = pool.nodes[number].store, pool.nodes[number].ns("model")
            assert store.exists(ns, keys(100 * number, 4)).all()
        with pytest.raises(chm.NotFound, match="node b is missing"):
            _ = pool.nodes[1].store
        with pytest.raises(chm.NotFound):
            pool.read(1 << pools.NODE_SHIFT, 4096)
        (tmp_path / "elsewhere").rename(tmp_path / "b.chm")
        node = pool.revive(1)
        assert node.state == "up"
        assert np.array_equal(node.store.read(node.ns("model"), key(101)), contents(101, 64 * KIB))


def test_foreign_and_damaged_members_are_missing_with_the_reason(tmp_path) -> None:
    good, foreign, bare = (file_member(tmp_path, name) for name in ("a", "b", "c"))
    pools.format(good, "64MiB")
    (tmp_path / "b.chm").write_bytes(b"a letter to a friend" * 1000)
    chm.format(tmp_path / "c.chm", "64MiB")  # a device, but no store
    before = (tmp_path / "b.chm").read_bytes()
    with Pool([good, foreign, bare]) as pool:
        assert [node.state for node in pool.nodes] == ["up", "missing", "missing"]
        assert pool.nodes[1].reason != pool.nodes[2].reason != ""
    assert (tmp_path / "b.chm").read_bytes() == before


def test_add_and_remove_online() -> None:
    with Pool([sim_member("a"), sim_member("b")]) as pool:
        node = pool.nodes[0]
        node.store.put(node.ns("m"), [key(1)], contents(1, 4096)).result()
        lease = node.store.lease(node.ns("m"), [key(1)]).result()[0]
        view = lease.view()
        with pytest.raises(BufferError):
            pool.remove(0)
        assert node.state == "up"
        assert bytes(view) == contents(1, 4096).tobytes()
        del view
        pool.remove(0)
        assert [n.state for n in pool.nodes] == ["removed", "up"]
        with pytest.raises(chm.NotFound):
            pool.region(0)
        added = pool.add(sim_member("c"))
        assert (added.number, added.state) == (2, "up")
        added.store.put(added.ns("m"), [key(2)], contents(2, 4096)).result()
    assert pool.nodes[1].state == "removed"


def test_a_degraded_node_takes_nothing_new() -> None:
    device = small_sim(fault={"script": "40- write err 5"})
    member = Member("a", device=device)
    pools.format(member)
    pool = Pool([member])
    node = pool.nodes[0]
    ns = node.ns("m")
    for number in range(400):
        job = node.store.put(ns, [key(number)], contents(number, 4096)).wait()
        node.store.sync().wait()
        if job.statuses[0] == -errno.EIO:
            break
    pool.check()
    assert (node.state, node.readable, node.writable) == ("degraded", True, False)
    assert node.reason
    with pytest.raises(chm.ChmError):
        pool.close()
    assert pool.nodes[0].state != "up"
