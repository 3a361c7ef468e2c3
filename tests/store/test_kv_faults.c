/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_faults.c - a drive that fails, is late, hangs, or is full: what is told, when, and that
 * nothing is told that is not so.
 *
 * Which I/O of a run is meant is found by a run without faults: simulated runs repeat.
 *
 * Field reports: F03 (a failed write leaves no object that look-ups find), F05 (every transfer
 * fails: no hits), F35 (skips are counted), F94 (which of eight failed), F96 (the drive goes away
 * or hangs: close returns).
 */
#include "store/kv_rig.h"

enum { N = 8 };

static void open_with(struct kv *k, const char *script)
{
    kv_options(k);
    k->r.opt.fault.script = script;
    kv_start(k);
}

/* Puts N objects, makes them durable. Returns the reads so far. */
static uint64_t fill_up(struct kv *k)
{
    for (uint64_t i = 0; i < N; i++) {
        CHECK_IS(kv_put(k, i, 64 * KIB, 1), 0);
    }
    kv_sync(k);
    return rig_stats(&k->r)->read_ios;
}

static uint64_t reads_before(void)
{
    struct kv k;
    uint64_t reads;

    open_with(&k, NULL);
    reads = fill_up(&k);
    kv_stop(&k);
    return reads;
}

struct batch {
    struct chm_key keys[N];
    struct chm_part parts[N];
    int32_t status[N];
    uint8_t *buf;
    struct chm_store_job job;
};

static void batch_get(struct batch *b, uint32_t flags, uint64_t timeout_ns)
{
    b->buf = rig_alloc(N * 64 * KIB);
    memset(b->buf, 0x5A, N * 64 * KIB);
    for (uint64_t i = 0; i < N; i++) {
        b->keys[i] = kv_key(i);
        b->parts[i] = (struct chm_part){.data = b->buf + i * 64 * KIB, .len = 64 * KIB};
    }
    b->job = (struct chm_store_job){.op = CHM_STORE_GET,
                                    .flags = flags,
                                    .n = N,
                                    .keys = b->keys,
                                    .parts = b->parts,
                                    .status = b->status,
                                    .timeout_ns = timeout_ns};
}

/* F94: one read of eight fails. Exactly that key is told, dropped, and can be put again. */
static void check_read_error(uint64_t reads)
{
    struct kv k;
    struct batch b;
    char script[64];

    snprintf(script, sizeof(script), "%" PRIu64 " read err 5\n", reads + 4);
    open_with(&k, script);
    CHECK_EQ(fill_up(&k), reads);
    batch_get(&b, 0, 0);
    CHECK_EQ(kv_run(&k, &b.job).ok, N - 1);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_IS(b.status[i], i == 4 ? -EIO : 0);
        CHECK(i == 4 || kv_holds(b.parts[i].data, 64 * KIB, kv_seed(i, 1)));
        CHECK_EQ(kv_has(&k, i), i != 4);
    }
    CHECK_EQ(kv_stats(&k)->errors_io, 1);
    CHECK_EQ(k.stats.dropped, 1);
    CHECK_IS(kv_put(&k, 4, 64 * KIB, 2), 0);
    CHECK_IS(kv_get(&k, 4, 64 * KIB, 2), 0);
    munmap(b.buf, N * 64 * KIB);
    kv_recount(&k);
    kv_stop(&k);
}

/* F05: everything fails from some moment on. No hit, and the buffers are as they were. */
static void check_all_fail(uint64_t reads, const char *fault)
{
    struct kv k;
    struct batch b;
    char script[64];

    snprintf(script, sizeof(script), "%" PRIu64 "- read %s\n", reads, fault);
    open_with(&k, script);
    fill_up(&k);
    batch_get(&b, 0, 0);
    CHECK_EQ(kv_run(&k, &b.job).ok, 0);
    for (uint64_t i = 0; i < N; i++) {
        CHECK(b.status[i] < 0);
        CHECK(!kv_has(&k, i));
    }
    CHECK(is_byte(b.buf, N * 64 * KIB, 0x5A));
    CHECK_EQ(kv_stats(&k)->hits, 0);
    munmap(b.buf, N * 64 * KIB);
    kv_stop(&k);
}

/* A read that is late is told when nothing writes its buffer any more: at the deadline if it goes
 * through the window, at its end if the drive writes there. The key is no hit again. */
static void check_late(uint64_t reads, uint32_t flags, uint64_t told_ns)
{
    struct kv k;
    struct batch b;
    char script[64];
    uint64_t begin;

    snprintf(script, sizeof(script), "%" PRIu64 " read late 20000000000\n", reads + 2);
    open_with(&k, script);
    fill_up(&k);
    batch_get(&b, flags, CHM_SECOND);
    begin = chm_now(k.r.dev);
    CHECK_EQ(kv_run(&k, &b.job).ok, N - 1);
    CHECK_IS(b.status[2], -ETIME);
    CHECK(chm_now(k.r.dev) - begin >= told_ns);
    CHECK(chm_now(k.r.dev) - begin < told_ns + 100 * MS);
    memset(b.parts[2].data, 0x77, 64 * KIB);
    rig_run(&k.r, 30ull * CHM_SECOND);
    CHECK(is_byte(b.parts[2].data, 64 * KIB, 0x77));
    CHECK(!kv_has(&k, 2) && kv_has(&k, 3));
    CHECK_EQ(kv_stats(&k)->errors_late, 1);
    CHECK_EQ(k.stats.pins, 0);
    munmap(b.buf, N * 64 * KIB);
    kv_stop(&k);
}

/* Cancelled keys are told as that, and stay. */
static void check_cancel(void)
{
    struct kv k;
    struct batch b;
    struct chm_store_done done;
    uint64_t id;

    open_with(&k, NULL);
    fill_up(&k);
    batch_get(&b, 0, 0);
    id = kv_submit(&k, &b.job);
    CHECK_IS(chm_store_cancel(k.s, id), 0);
    CHECK_IS(chm_store_drain(k.s, &done, 1, KV_LONG), 1);
    CHECK_IS(chm_store_cancel(k.s, id), -ESTALE);
    CHECK_IS(done.result, -ECANCELED);
    CHECK_IS(chm_store_drain(k.s, &done, 1, 0), 0);
    for (uint64_t i = 0; i < N; i++) {
        CHECK(kv_has(&k, i));
    }
    b.job.op = CHM_STORE_PUT;
    b.keys[0] = kv_key(100);
    id = kv_submit(&k, &b.job);
    CHECK_IS(chm_store_cancel(k.s, id), 0);
    CHECK_IS(chm_store_drain(k.s, &done, 1, KV_LONG), 1);
    CHECK_IS(b.status[0], -ECANCELED);
    CHECK(!kv_has(&k, 100));
    munmap(b.buf, N * 64 * KIB);
    kv_recount(&k);
    kv_stop(&k);
}

/* F96: the drive hangs. Copied reads are told; direct ones cannot be, and close says so. */
static void hang(const char *direct)
{
    struct kv k;
    struct batch b;
    struct chm_store_done done;
    char script[64];
    uint64_t id, reads = reads_before();

    snprintf(script, sizeof(script), "%" PRIu64 "- any never\n", reads + 100000);
    snprintf(script, sizeof(script), "%" PRIu64 "- read never\n", reads);
    open_with(&k, script);
    fill_up(&k);
    batch_get(&b, *direct == 'd' ? 0 : CHM_STORE_COPY, CHM_SECOND);
    id = kv_submit(&k, &b.job);
    CHECK(id);
    CHECK_IS(chm_store_drain(k.s, &done, 1, 5ull * CHM_SECOND), *direct != 'd');
    if (*direct == 'd') {
        CHECK_IS(chm_store_stop(k.s, CHM_SECOND), -ETIMEDOUT);
        CHECK_IS(chm_store_close(k.s, CHM_SECOND), -ETIMEDOUT);
    } else {
        CHECK_IS(done.result, -ETIME);
        CHECK_IS(chm_store_close(k.s, 10ull * CHM_SECOND), 0);
    }
    CHECK_IS(chm_close(k.r.dev, CHM_SECOND), -ETIMEDOUT);
}

/* F03: writes fail. What they covered is dropped, what was durable is not; the store reads on. */
static void check_write_error(void)
{
    struct kv k;
    char script[64];
    uint64_t writes;

    open_with(&k, NULL);
    fill_up(&k);
    writes = rig_stats(&k.r)->write_ios;
    kv_stop(&k);
    snprintf(script, sizeof(script), "%" PRIu64 "-%" PRIu64 " write err 5\n", writes, writes + 3);
    open_with(&k, script);
    fill_up(&k);
    CHECK_IS(kv_put(&k, 100, 64 * KIB, 1), 0);
    CHECK_IS(chm_store_sync(k.s, KV_LONG), -EIO);
    CHECK(!kv_has(&k, 100));
    CHECK_EQ(kv_stats(&k)->sync_errors, 1);
    CHECK_IS(kv_put(&k, 100, 64 * KIB, 2), 0);
    kv_sync(&k);
    kv_reopen(&k);
    CHECK_IS(kv_get(&k, 100, 64 * KIB, 2), 0);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_IS(kv_get(&k, i, 64 * KIB, 1), 0);
    }
    kv_stop(&k);
}

/* Writes fail for good: degraded, and told as that; what was durable comes back. */
static void check_degraded(void)
{
    struct kv k;
    struct chm_store_info info;
    char script[64];
    uint64_t writes;

    open_with(&k, NULL);
    fill_up(&k);
    writes = rig_stats(&k.r)->write_ios;
    kv_stop(&k);
    snprintf(script, sizeof(script), "%" PRIu64 "- write err 5\n", writes);
    open_with(&k, script);
    fill_up(&k);
    for (int i = 0; i < 20; i++) {
        int rc = kv_put(&k, 100, 64 * KIB, 1);

        CHECK(rc == 0 || rc == -EIO);
        CHECK_IS(chm_store_sync(k.s, KV_LONG), -EIO);
        CHECK(!kv_has(&k, 100));
    }
    CHECK_IS(chm_store_info(k.s, &info), 0);
    CHECK(info.degraded);
    CHECK_IS(kv_put(&k, 100, 64 * KIB, 1), -EIO);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_IS(kv_get(&k, i, 64 * KIB, 1), 0);
    }
    CHECK_IS(chm_store_close(k.s, KV_LONG), -EIO);
    CHECK(chm_close(k.r.dev, KV_LONG) <= 0);
    k.r.opt.fault.script = NULL;
    kv_device(&k);
    kv_open_store(&k);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_IS(kv_get(&k, i, 64 * KIB, 1), 0);
    }
    kv_stop(&k);
}

/* F35: the write buffer is full. Without waiting the first is refused and the rest of its chain;
 * every key is counted once; a retry goes on at the first that is missing. */
static void check_skips(void)
{
    enum { MANY = 32 };
    struct kv k;
    uint64_t len[MANY];
    int32_t status[MANY];
    uint32_t ok, again;

    for (int i = 0; i < MANY; i++) {
        len[i] = 100 * KIB;
    }
    open_with(&k, NULL);
    ok = kv_put_many(&k, 0, MANY, len, 1, 0, status);
    CHECK(ok > 3 && ok < MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK_IS(status[i], i < ok ? 0 : i == ok ? -EAGAIN : -ENOLINK);
        CHECK_EQ(kv_has(&k, i), i < ok);
    }
    CHECK_EQ(kv_stats(&k)->skipped_buffer, 1);
    CHECK_EQ(k.stats.skipped_chain, MANY - ok - 1);
    again = kv_put_many(&k, 0, MANY, len, 1, CHM_STORE_WAIT, status);
    CHECK_EQ(again, MANY);
    CHECK_EQ(kv_stats(&k)->duplicate, ok);
    kv_recount(&k);
    kv_stop(&k);
}

/* A put that waits for what does not come ends at its deadline, and nothing is left of it. */
static void check_put_deadline(void)
{
    struct kv k;
    struct chm_store_lease lease;
    struct chm_key keys[2] = {kv_key(1), kv_key(2)};
    int32_t status[2];
    uint64_t begin;
    struct chm_store_job job = {
        .op = CHM_STORE_LEASE, .n = 1, .keys = keys, .leases = &lease, .status = status};
    struct chm_part parts[2];

    kv_options(&k);
    k.r.opt.dram_bytes = 24 * MIB;
    k.r.opt.sim.capacity_bytes = 10 * MIB;
    kv_start(&k);
    CHECK_IS(kv_put(&k, 1, 4 * MIB, 1), 0);
    CHECK_EQ(kv_run(&k, &job).ok, 1);
    parts[0] = parts[1] = (struct chm_part){.data = lease.piece[0].data, .len = 4 * MIB};
    keys[0] = kv_key(2);
    keys[1] = kv_key(3);
    job = (struct chm_store_job){.op = CHM_STORE_PUT,
                                 .flags = CHM_STORE_WAIT,
                                 .n = 2,
                                 .keys = keys,
                                 .parts = parts,
                                 .status = status,
                                 .timeout_ns = CHM_SECOND};
    begin = chm_now(k.r.dev);
    CHECK_EQ(kv_run(&k, &job).ok, 0);
    CHECK(chm_now(k.r.dev) - begin >= CHM_SECOND);
    CHECK(status[0] == -ETIME && status[1] == -ETIME);
    job.flags = 0;
    kv_run(&k, &job);
    CHECK(status[0] == -ENOSPC && status[1] == -ENOLINK);
    CHECK_IS(chm_store_release(k.s, &lease.id, 1), 1);
    parts[0].data = parts[1].data = rig_alloc(4 * MIB);
    job.flags = CHM_STORE_WAIT;
    job.n = 1;
    CHECK_EQ(kv_run(&k, &job).ok, 1);
    munmap(parts[0].data, 4 * MIB);
    kv_recount(&k);
    kv_stop(&k);
}

/* Barriers fail: what they would have covered is not promised. */
static void check_barrier_error(void)
{
    struct kv k;
    uint64_t barriers;
    char script[64];

    open_with(&k, NULL);
    fill_up(&k);
    barriers = rig_stats(&k.r)->barriers;
    kv_stop(&k);
    snprintf(script, sizeof(script), "%" PRIu64 " barrier err 5\n", barriers);
    open_with(&k, script);
    fill_up(&k);
    CHECK_IS(kv_put(&k, 100, PAGE, 1), 0);
    CHECK_IS(chm_store_sync(k.s, KV_LONG), -EIO);
    CHECK(!kv_has(&k, 100));
    CHECK_IS(kv_put(&k, 101, PAGE, 1), 0);
    kv_sync(&k);
    kv_crash(&k);
    k.r.opt.fault.script = NULL;
    kv_device(&k);
    kv_open_store(&k);
    CHECK_IS(kv_get(&k, 101, PAGE, 1), 0);
    CHECK(!kv_has(&k, 100));
    kv_stop(&k);
}

int main(void)
{
    uint64_t reads = reads_before();

    check_read_error(reads);
    check_all_fail(reads, "err 5");
    check_all_fail(reads, "err 19");
    check_late(reads, CHM_STORE_COPY, CHM_SECOND);
    check_late(reads, 0, 20ull * CHM_SECOND);
    check_cancel();
    rig_in_child(hang, "direct");
    rig_in_child(hang, "copied");
    check_write_error();
    check_degraded();
    check_skips();
    check_put_deadline();
    check_barrier_error();
    return 0;
}
