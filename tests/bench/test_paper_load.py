# SPDX-License-Identifier: Apache-2.0
"""The traffic of the figures: clients in a closed loop, bulk reads and writes, the turn load."""

from __future__ import annotations

import numpy as np
import pytest

import chm
from chm._bulk import BulkReads, nowhere
from chm.bench.paper.load import Stager, Traffic, consecutive, in_order, latencies, stream_all
from chm.bench.paper.turns import Conversations

MIB = 1 << 20
GB = 10**9


def device(**fields: object) -> chm.Device:
    """1 GB/s and 100 us a drive; the link adds 1 us and takes 1 ns for a byte."""
    base = {"read_rate": GB, "read_latency_ns": 100_000, "no_contents": True}
    link = {"link_rate": GB, "link_latency_ns": 1000}
    return chm.sim("64MiB", **{**base, **link, **fields})


def test_one_client_sees_drive_and_link_one_after_the_other() -> None:
    with device() as dev:
        took = latencies(dev, [iter([0, 4096, 8192])], 4096)
    assert took.tolist() == [4096 + 100_000 + 4096 + 1000] * 3


def test_clients_do_not_wait_for_each_other() -> None:
    """The second read queues behind the first on the drive; both restart by themselves."""
    with device() as dev:
        took = latencies(dev, [iter([0, 4096]), iter([8192])], 4096)
    alone = 4096 + 100_000 + 4096 + 1000
    assert sorted(took.tolist()) == [alone, alone, alone + 4096]


def test_arrival_is_unknown_until_the_bytes_are_there() -> None:
    with device() as dev:
        reads = BulkReads(dev, 1, nowhere(MIB))
        reads.length[:] = 4096
        handle = reads.issue(0, 0)
        assert reads.arrival(handle) is None
        while reads.arrival(handle) is None:
            dev.step(dev.now() + 1000)
        assert reads.arrival(handle) == 4096 + 100_000 + 4096 + 1000
        reads.end(handle)
        with pytest.raises(chm.StaleHandle):
            reads.arrival(handle)


def test_there_is_no_arrival_without_a_link() -> None:
    with device(link_rate=0) as dev:
        reads = BulkReads(dev, 1, nowhere(MIB))
        reads.length[:] = 4096
        handle = reads.issue(0, 0)
        with pytest.raises(chm.Unsupported):
            reads.arrival(handle)
        reads.end(handle)


def test_a_failed_read_is_no_traffic() -> None:
    with device(fault={"script": "0- read err 5"}) as dev:
        traffic = Traffic(dev)
        with pytest.raises(chm.MediaError):
            traffic.read(consecutive(2, 4096), 4096, 2)
        with pytest.raises(chm.MediaError):
            Stager(dev, 2).read(consecutive(2, 4096), 4096)


def test_all_that_is_asked_for_is_moved() -> None:
    addrs = consecutive(16, MIB)
    with device(dram_bytes="16MiB", write_buffer_bytes="8MiB") as dev:
        traffic = Traffic(dev)
        traffic.write(addrs, MIB, MIB // 4)
        dev.flush(None)
        assert dev.stats().write_bytes == 16 * MIB
        for read in (
            lambda: traffic.read(addrs, MIB, 4),
            lambda: Stager(dev, 4).read(addrs, MIB),
            lambda: Stager(dev, 1).one_by_one(addrs, MIB),
            lambda: in_order(dev, [(int(a), MIB) for a in addrs], 4),
            lambda: stream_all(dev, [[(int(a), MIB)] for a in addrs], 2),
        ):
            before = dev.stats()
            took = read()
            did = dev.stats() - before
            assert did.read_bytes == did.delivered_bytes == 16 * MIB
            assert took >= 16 * MIB, "1 GB/s is 1 ns a byte"
        assert dev.stats().window_used_bytes == 0


def test_a_turn_reads_the_prefix_in_order_and_appends() -> None:
    load = Conversations(count=2, turns=3, step=2, block=10)
    assert load.writes(1).tolist() == [0, 10, 20, 30]
    assert load.writes(2).tolist() == [40, 50, 60, 70]
    assert load.reads(1).size == 0
    assert load.reads(3).tolist() == [0, 10, 40, 50, 20, 30, 60, 70]
    assert load.footprint == 120
    everything = np.concatenate([load.writes(t) for t in (1, 2, 3)])
    assert sorted(everything.tolist()) == list(range(0, 120, 10))
