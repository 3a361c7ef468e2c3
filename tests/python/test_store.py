# SPDX-License-Identifier: Apache-2.0
"""The store from Python: what goes in comes out, per key, once, on every kind of device."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import subprocess

import numpy as np
import pytest
from kit import Make, run_python
from store_rig import KIB, MIB, assert_closes, blocks, contents, filled, key, keys

import chm
from chm import aligned_empty as aligned
from chm import stats as records
from chm._ffi import field_names


@pytest.fixture
def store(dev):
    chm.store.format(dev)
    store = chm.Store(dev)
    yield store
    store.close()


@pytest.fixture
def ns(store) -> int:
    return store.namespace("model/f16")


def test_the_records_mirror_c() -> None:
    for ctype, cls in (
        ("struct chm_store_info", chm.StoreInfo),
        ("struct chm_store_stats", chm.StoreStats),
        ("struct chm_store_namespace_info", chm.NamespaceInfo),
    ):
        names = [name for name in field_names(ctype) if name != "name_len"]
        assert [f.name for f in dataclasses.fields(cls)] == names
    assert records.StoredObject


def test_put_look_up_get_lease_delete(store, ns) -> None:
    data, some = blocks(1, 8, 64 * KIB), keys(1, 8)
    job = store.put(ns, some, data)
    assert job.result().tolist() == [0] * 8
    assert job.done
    assert store.exists(ns, [*some, key(99)]).tolist() == [True] * 8 + [False]
    assert store.prefix(ns, [*some[:3], key(99), *some[3:]]) == 3
    assert store.sizes(ns, [some[0], key(99)]).tolist() == [64 * KIB, 0]
    out = np.zeros_like(data)
    assert store.get(ns, some, out).result().tolist() == [0] * 8
    assert np.array_equal(out, data)
    with store.lease(ns, some) as leases:
        for i, lease in enumerate(leases):
            assert np.array_equal(lease.array(), data[i])
            assert lease.length == 64 * KIB
            with pytest.raises(ValueError, match="read-only"):
                lease.array()[0] = 1
    assert store.stats().leases == 0
    assert store.delete(ns, [some[7], key(99)]).wait().statuses.tolist() == [0, -errno.ENOENT]
    assert store.prefix(ns, some) == 7
    assert_closes(store.stats())


def test_keys_in_every_form(store, ns) -> None:
    some = keys(10, 5)
    store.put(ns, some, blocks(10, 5, 4 * KIB)).result()
    joined = b"".join(some)
    as_rows = np.frombuffer(joined, np.uint8).reshape(5, 16)
    as_items = np.frombuffer(joined, "V16")
    as_pairs = np.frombuffer(joined, [("low", "<u8"), ("high", "<u8")])
    for form in (some, tuple(some), joined, bytearray(joined), as_rows, as_items, as_pairs):
        assert store.exists(ns, form).all()
        assert store.prefix(ns, form) == 5
    assert store.exists(ns, keys(10, 1000)).sum() == 5  # more than the memory kept for it
    for bad in (
        [b"short"],
        [some[0][:15], some[0] + b"x"],  # 32 bytes together
        joined[:-1],
        as_rows[::-1],
        as_rows[:, :8].copy(),
        as_rows.astype(np.int64),
    ):
        with pytest.raises(ValueError, match="keys"):
            store.exists(ns, bad)


def test_no_keys_and_one_key(store, ns) -> None:
    """F91: a list of n results in the order of the keys, also for n = 0 and n = 1."""
    assert store.put(ns, [], []).result().tolist() == []
    assert store.get(ns, [], []).result().tolist() == []
    assert store.lease(ns, []).result() == []
    assert store.exists(ns, []).tolist() == []
    assert store.prefix(ns, []) == 0
    one = contents(3, 5000)
    assert store.put(ns, [key(3)], one).result().tolist() == [0]
    out = np.zeros(5000, np.uint8)
    assert store.get(ns, [key(3)], out).result().tolist() == [0]
    assert np.array_equal(out, one)


def test_scatter_lists(store, ns) -> None:
    """F91: an object of several parts has one result, and it is whole."""
    halves = [contents(5, 8 * KIB), contents(6, 100)]
    put = [[halves[0], halves[1]], [contents(7, 4096)]]
    assert store.put(ns, keys(5, 2), put).result().tolist() == [0, 0]
    out = [np.zeros(100, np.uint8), np.zeros(8 * KIB, np.uint8), np.zeros(4096, np.uint8)]
    assert store.get(ns, keys(5, 2), [(out[0], out[1]), out[2]]).result().tolist() == [0, 0]
    assert np.array_equal(np.concatenate(out[:2]), np.concatenate(halves))
    assert np.array_equal(out[2], put[1][0])


def test_buffers_are_checked_before_anything_happens(store, ns) -> None:
    """F12 in the store."""
    data = contents(1, 8192)
    calls = store.stats().put_keys
    with pytest.raises(ValueError, match="C-contiguous"):
        store.put(ns, [key(1)], [data[::2]])
    with pytest.raises(ValueError, match="read-only"):
        store.get(ns, [key(1)], [bytes(100)])
    with pytest.raises(TypeError, match="buffer protocol"):
        store.put(ns, [key(1)], [3])
    with pytest.raises(ValueError, match="2 keys, but 1 buffers"):
        store.put(ns, keys(1, 2), [data])
    with pytest.raises(ValueError, match="16 bytes"):
        store.put(ns, [key(1)], [data], parent=b"no")
    assert store.stats().put_keys == calls


def test_empty_objects_are_refused(store, ns) -> None:
    """F93: an object without bytes is refused, for that key, and is a miss."""
    job = store.put(ns, keys(1, 2), [b"", b"x"], chain=False).wait()
    assert job.statuses.tolist() == [-errno.EINVAL, 0]
    assert not store.exists(ns, [key(1)])[0]
    with pytest.raises(chm.NotFound):
        store.read(ns, key(1))


def test_partial_results(store, ns) -> None:
    """F94: exactly which keys failed is known when the call returns; the others are whole."""
    data = blocks(1, 8, 16 * KIB)
    store.put(ns, keys(1, 8), data, chain=False).result()
    store.delete(ns, [key(6)]).result()
    out = np.zeros_like(data)
    job = store.get(ns, keys(1, 8), out)
    with pytest.raises(chm.KeysFailed, match="1 of 8 keys failed, the first is key 5") as caught:
        job.result()
    error = caught.value
    assert error.errno == errno.ENOENT
    assert list(error.errors) == [5]
    assert isinstance(error.errors[5], chm.NotFound)
    assert error.statuses == [0, 0, 0, 0, 0, -errno.ENOENT, 0, 0]
    assert job.prefix == 5
    assert not out[5].any()
    for i in (0, 1, 2, 3, 4, 6, 7):
        assert np.array_equal(out[i], data[i])


def test_a_wrong_length_is_told_and_nothing_read(store, ns) -> None:
    store.put(ns, [key(1)], contents(1, 5000)).result()
    out = np.zeros(6000, np.uint8)
    assert store.get(ns, [key(1)], [out]).wait().statuses.tolist() == [-errno.EMSGSIZE]
    assert not out.any()
    assert np.array_equal(store.read(ns, key(1)), contents(1, 5000))


def test_one_key_forms(store, ns) -> None:
    data = contents(1, 3 * MIB + 17)
    assert store.write(ns, key(1), data)
    assert not store.write(ns, key(1), contents(2, 100))  # it was there, and stays
    assert np.array_equal(store.read(ns, key(1)), data)
    out = np.zeros(data.nbytes, np.uint8)
    assert np.array_equal(store.read(ns, key(1), out), data)
    assert store.remove(ns, key(1))
    assert not store.remove(ns, key(1))
    with pytest.raises(chm.NotFound):
        store.read(ns, key(1), out)


def test_the_same_key_again_and_again(store, ns) -> None:
    """F31: a hundred puts of one key occupy what one does; the next key is admitted."""
    data = contents(1, 256 * KIB)
    store.put(ns, [key(1)], data).result()
    used = store.stats().used_bytes
    for _ in range(100):
        assert store.put(ns, [key(1)], data).result().tolist() == [chm.store.DUPLICATE]
    stats = store.stats()
    assert (stats.used_bytes, stats.duplicate, stats.objects) == (used, 100, 1)
    assert store.put(ns, [key(2)], data).result().tolist() == [0]
    assert store.stats().used_bytes == sum(o.used_bytes for o in store.list())
    assert_closes(store.stats())


def test_it_goes_between_look_up_and_get(store, ns) -> None:
    """F15: a hit that is gone when it is got is a miss, for that key; one that is held stays."""
    data = blocks(1, 2, 64 * KIB)
    store.put(ns, keys(1, 2), data).result()
    lease = store.lease(ns, [key(1)]).result()[0]
    assert store.exists(ns, keys(1, 2)).all()
    store.delete(ns, keys(1, 2)).result()
    out = np.zeros_like(data)
    assert store.get(ns, keys(1, 2), out).wait().statuses.tolist() == [-errno.ENOENT] * 2
    assert not out.any()
    assert np.array_equal(lease.array(), data[0])
    lease.release()


def test_leases_that_nobody_keeps_are_given_back(store, ns) -> None:
    """F13: dropped jobs, dropped leases, exceptions: nothing stays pinned."""
    store.put(ns, keys(1, 4), blocks(1, 4, 64 * KIB)).result()
    store.lease(ns, keys(1, 4))  # never waited for
    job = store.lease(ns, keys(1, 4)).wait()
    views = job.leases[2].views()
    del job

    def fail() -> None:
        with store.lease(ns, keys(1, 4)) as leases:
            view = leases[0].view()
            raise RuntimeError(view.nbytes)

    with pytest.raises(RuntimeError):
        fail()
    store.sync().result()
    store.poll()
    gc.collect()
    store.exists(ns, [key(1)])
    assert store.stats().leases == 1  # the one that is looked at
    del views
    store.exists(ns, [key(1)])
    assert (store.stats().leases, store.stats().pins) == (0, 0)


def test_a_view_keeps_its_lease(store, ns) -> None:
    store.put(ns, keys(1, 2), blocks(1, 2, 64 * KIB)).result()
    job = store.lease(ns, keys(1, 2)).wait()
    array = job.leases[1].array()[10:20]
    for refuse in (job.release, job.leases[1].release, store.close):
        with pytest.raises(BufferError, match="alive"):
            refuse()
    assert np.array_equal(array, contents(2, 64 * KIB)[10:20])
    del array
    job.release()
    job.release()
    with pytest.raises(chm.StaleHandle):
        job.leases[1].view()


def test_namespaces_and_quotas(store) -> None:
    """Keys of two namespaces never meet; a quota is kept, and told apart from a full device."""
    one, two = store.namespace("one"), store.namespace(b"t\xffo", quota="272KiB")
    assert store.namespace("one") == one
    store.put(one, [key(1)], contents(1, 4096)).result()
    assert not store.exists(two, [key(1)])[0]
    held = store.put(two, keys(1, 4), blocks(1, 4, 64 * KIB)).result()
    assert held.tolist() == [0] * 4
    with store.lease(two, keys(1, 4)):  # nothing can be evicted now
        job = store.put(two, keys(9, 2), blocks(9, 2, 64 * KIB)).wait()
        assert job.statuses.tolist() == [-errno.EDQUOT, -errno.ENOLINK]
        assert isinstance(job.errors[0], chm.QuotaFull)
        assert isinstance(job.errors[1], chm.ChainBroken)
    infos = store.namespaces()
    assert [info.name for info in infos] == [b"one", b"t\xffo"]
    assert infos[0].quota_bytes is None
    assert infos[1].quota_bytes == 272 * KIB
    store.namespace(b"t\xffo", quota=chm.store.NO_QUOTA)
    assert store.namespaces()[1].quota_bytes is None
    assert json.dumps([info.to_dict() for info in store.namespaces()])
    with pytest.raises(chm.InvalidArgument):
        store.namespace("")
    with pytest.raises(chm.InvalidArgument):
        store.exists(99, [key(1)])


def test_objects_can_be_listed_and_found(store, ns) -> None:
    store.put(ns, keys(1, 300), blocks(1, 300, 4 * KIB)).result()
    objects = {o.key: o for o in store.list()}
    assert len(objects) == 300
    assert objects[key(1)].parent is None
    assert objects[key(2)].parent == key(1)
    assert {o.length for o in objects.values()} == {4096}
    assert json.dumps(objects[key(1)].to_dict())
    places = store.where(ns, [key(1), key(999)])
    assert places[1] is None
    addr = places[0].addr
    store.sync().result()
    assert np.array_equal(store.device.read(addr, 4096), contents(1, 4096))
    assert json.dumps(store.info.to_dict())
    assert json.dumps(store.stats().to_dict())


def test_the_address_of_an_object_with_chunks(store, ns) -> None:
    data = contents(1, 2 * MIB + 5)
    store.write(ns, key(1), data)
    store.sync().result()
    place = store.where(ns, [key(1)])[0]
    assert place.length == data.nbytes
    if place.extents == 1:
        assert np.array_equal(store.device.read(place.addr, data.nbytes), data)


def test_it_comes_back(make: Make) -> None:
    """Objects, namespaces and quotas survive closing; the store says that it was closed clean."""
    dev = make("sim")
    chm.store.format(dev)
    with chm.Store(dev) as store:
        ns = store.namespace("a", quota="10MiB")
        store.put(ns, keys(1, 4), blocks(1, 4, 64 * KIB)).result()
    with chm.Store(dev) as store:
        assert store.info.clean
        assert store.namespace("a") == ns
        assert store.namespaces()[0].quota_bytes == 10 * MIB
        assert np.array_equal(store.read(ns, key(3)), contents(3, 64 * KIB))


def test_opening_and_formatting_refuse(make: Make) -> None:
    dev = make("sim")
    with pytest.raises(chm.NotFound):
        chm.Store(dev)
    chm.store.format(dev, length="32MiB")
    with pytest.raises(chm.Exists):
        chm.store.format(dev, length="32MiB")
    chm.store.format(dev, length="32MiB", force=True)
    with pytest.raises(chm.DeviceFull):
        chm.store.format(dev, base="32MiB", length="64KiB")
    with chm.Store(dev, length="32MiB"):
        with pytest.raises(chm.Busy):
            chm.Store(dev, length="32MiB")
        with pytest.raises(chm.InvalidArgument, match="prefix-tail, lru or fifo"):
            chm.Store(dev, base="32MiB", eviction="random")


def test_two_stores_on_one_device(make: Make) -> None:
    dev = make("sim")
    chm.store.format(dev, length="32MiB")
    chm.store.format(dev, base="32MiB")
    with chm.Store(dev, length="32MiB") as one, chm.Store(dev, base="32MiB") as two:
        a, b = one.namespace("x"), two.namespace("x")
        one.put(a, [key(1)], contents(1, 4096)).result()
        assert not two.exists(b, [key(1)])[0]
        two.put(b, [key(1)], contents(2, 4096)).result()
        assert np.array_equal(one.read(a, key(1)), contents(1, 4096))


def test_a_buffer_cannot_move_while_a_job_has_it(make: Make) -> None:
    dev = make("sim")
    chm.store.format(dev)
    with chm.Store(dev) as store:
        ns = store.namespace("a")
        store.put(ns, [key(1)], contents(1, 64 * KIB)).result()
        store.sync().result()
        out = bytearray(64 * KIB)
        job = store.get(ns, [key(1)], [out])
        with pytest.raises(BufferError):
            out.clear()
        job.result()
        assert out == contents(1, 64 * KIB).tobytes()
        out.clear()


def test_more_jobs_than_the_table_holds(store, ns) -> None:
    """Ended jobs that nobody asked for make room; only running ones are in the way."""
    store.put(ns, [key(1)], contents(1, 4096)).result()
    outs = [np.zeros(4096, np.uint8) for _ in range(600)]
    jobs = [store.get(ns, [key(1)], [out], timeout=60) for out in outs[:200]]
    for job in jobs:
        assert job.result().tolist() == [0]
    for out in outs[200:]:
        store.get(ns, [key(1)], [out])
        store.poll()
    store.sync().result()
    del jobs
    assert store.stats().gets == 600


def test_cancelling(make: Make) -> None:
    dev = make("sim", read_latency_ns=1_000_000_000)
    chm.store.format(dev)
    with chm.Store(dev) as store:
        ns = store.namespace("a")
        store.put(ns, keys(1, 3), blocks(1, 3, 64 * KIB)).result()
        store.sync().result()
        job = store.get(ns, keys(1, 3), np.zeros((3, 64 * KIB), np.uint8))
        assert job.statuses.tolist() == [chm.store.PENDING] * 3
        assert job.errors == {}
        assert job.cancel()
        assert job.wait().statuses.tolist() == [-errno.ECANCELED] * 3
        assert not job.cancel()
        assert store.exists(ns, keys(1, 3)).all()  # nothing is wrong with them


def test_waiting_ends_and_the_job_goes_on(make: Make) -> None:
    dev = make("sim", read_latency_ns=1_000_000_000)
    chm.store.format(dev)
    with chm.Store(dev) as store:
        ns = store.namespace("a")
        store.put(ns, [key(1)], contents(1, 64 * KIB)).result()
        store.sync().result()
        job = store.get(ns, [key(1)], np.zeros(64 * KIB, np.uint8))
        begin = dev.now()
        with pytest.raises(chm.WaitTimeout):
            job.wait(0.25)
        assert dev.now() - begin == 250_000_000
        assert not job.told()
        assert job.result().tolist() == [0]


def test_a_late_key_is_a_miss_from_then_on(make: Make) -> None:
    """F94: the deadline of a job ends it; what was late is never a hit again."""
    dev = make("sim", read_latency_ns=2_000_000_000)
    chm.store.format(dev)
    with chm.Store(dev) as store:
        ns = store.namespace("a")
        store.put(ns, [key(1)], contents(1, 64 * KIB)).result()
        store.sync().result()
        job = store.get(ns, [key(1)], np.zeros(64 * KIB, np.uint8), timeout=0.5, copy=True)
        assert job.wait().statuses.tolist() == [-errno.ETIME]
        assert isinstance(job.errors[0], chm.Expired)
        assert not store.exists(ns, [key(1)])[0]


def test_a_result_never_changes(store, ns) -> None:
    """F25: asked again and again, also after the object went, a job says the same."""
    store.put(ns, keys(1, 3), blocks(1, 3, 4096)).result()
    job = store.get(ns, keys(1, 4), np.zeros((4, 4096), np.uint8)).wait()
    first = job.statuses.tolist()
    store.delete(ns, keys(1, 3)).result()
    for _ in range(3):
        assert (job.wait().statuses.tolist(), job.prefix, job.done) == (first, 3, True)


def test_skips_are_told_and_counted(make: Make) -> None:
    """F35: with the write buffer full, puts answer at once, each with its reason."""
    dev = make("sim", write_rate=1 * MIB, dram_bytes=24 * MIB, write_buffer_bytes=4 * MIB)
    chm.store.format(dev)
    with chm.Store(dev) as store:
        ns = store.namespace("a")
        job = store.put(ns, keys(1, 40), blocks(1, 40, MIB)).wait()
        statuses = job.statuses.tolist()
        admitted = statuses.count(0)
        assert 0 < admitted < 8
        assert statuses[admitted:] == [-errno.EAGAIN] + [-errno.ENOLINK] * (39 - admitted)
        assert store.prefix(ns, keys(1, 40)) == admitted
        again = store.put(
            ns, [key(admitted + 1)], contents(admitted + 1, MIB), parent=key(admitted), wait=True
        )
        assert again.result().tolist() == [0]
        assert_closes(store.stats())
        assert store.stats().skipped_buffer == 1


def test_a_failed_read_is_an_error_of_that_key(tmp_path) -> None:
    """F94, F05: one read of eight fails; exactly that key is told, and is a miss from then on."""
    path = tmp_path / "a.chm"
    reads = filled(path, 8, 64 * KIB)
    script = f"{reads + 5} read err 5"
    dev = chm.open(path, dram_bytes=32 * MIB, fault={"script": script})
    with dev, chm.Store(dev) as store:
        ns = store.namespace("a")
        out = aligned(8 * 64 * KIB).reshape(8, 64 * KIB)
        job = store.get(ns, keys(1, 8), out).wait()
        failed = [i for i, status in enumerate(job.statuses) if status < 0]
        assert len(failed) == 1
        assert job.statuses[failed[0]] == -errno.EIO
        assert isinstance(job.errors[failed[0]], chm.MediaError)
        there = store.exists(ns, keys(1, 8)).tolist()
        assert there == [i not in failed for i in range(8)]
        good = [i for i in range(8) if i not in failed]
        assert np.array_equal(out[good], blocks(1, 8, 64 * KIB)[good])
        store.put(ns, [key(1 + failed[0])], contents(1 + failed[0], 64 * KIB)).result()
        assert store.exists(ns, keys(1, 8)).all()  # healed


def test_every_read_fails(tmp_path) -> None:
    """F05: no get ever succeeds, and what was in the window before is never given out."""
    path = tmp_path / "a.chm"
    reads = filled(path, 8, 64 * KIB)
    dev = chm.open(path, dram_bytes=32 * MIB, fault={"script": f"{reads}- read err 5"})
    with dev, chm.Store(dev) as store:
        ns = store.namespace("a")
        out = np.full((8, 64 * KIB), 7, np.uint8)
        assert store.lease(ns, keys(1, 4)).wait().prefix == 0
        assert store.get(ns, keys(1, 8), out, copy=True).wait().prefix == 0
        assert (out == 7).all()
        assert not store.exists(ns, keys(1, 8)).any()
        stats = store.stats()
        assert stats.hits == 0
        assert_closes(stats)


def test_a_store_that_is_dropped_open_warns_and_makes_room(make: Make) -> None:
    dev = make("sim")
    chm.store.format(dev)
    store = chm.Store(dev)
    ns = store.namespace("a")
    store.put(ns, [key(1)], contents(1, 4096)).result()
    with pytest.warns(ResourceWarning, match="was not closed"):
        del store
    with chm.Store(dev) as store:
        assert store.info.clean
        assert store.exists(ns, [key(1)])[0]


def test_ctrl_c_while_waiting(tmp_path) -> None:
    """A wait that would take for ever ends at once, and the store closes as usual."""
    path = tmp_path / "c.chm"
    reads = filled(path, 1, 64 * KIB)
    run: subprocess.CompletedProcess[str] = run_python(
        f"""
import os, signal, threading, chm, numpy as np
dev = chm.open({str(path)!r}, thread=True, dram_bytes="32MiB",
               fault={{"script": "{reads} read late 2000000000"}})
store = chm.Store(dev)
ns = store.namespace("a")
job = store.get(ns, [{key(1)!r}], np.zeros(64 << 10, np.uint8), timeout=60)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    job.wait()
    print("waited")
except KeyboardInterrupt:
    print("interrupted", job.told())
print(job.result().tolist())
store.close()
dev.close()
"""
    )
    assert run.stdout.splitlines() == ["interrupted False", "[0]"], run.stderr


def test_in_a_child_process_everything_refuses(tmp_path) -> None:
    run: subprocess.CompletedProcess[str] = run_python(
        f"""
import os, chm
chm.format({str(tmp_path / "f.chm")!r}, "64MiB")
dev = chm.open({str(tmp_path / "f.chm")!r}, thread=True, dram_bytes="32MiB")
chm.store.format(dev)
store = chm.Store(dev)
ns = store.namespace("a")
store.put(ns, [bytes(16)], b"x" * 5000).result()
if os.fork() == 0:
    for call in (lambda: store.exists(ns, [bytes(16)]), lambda: store.put(ns, [bytes(16)], b"y"),
                 store.stats, store.poll):
        try:
            call()
        except chm.Forked:
            print("refused", flush=True)
    store.close()
    os._exit(0)
os.wait()
print(store.read(ns, bytes(16))[:3].tobytes())
store.close()
dev.close()
"""
    )
    assert run.stdout.splitlines() == ["refused"] * 4 + ["b'xxx'"], run.stderr
