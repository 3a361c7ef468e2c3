/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pace wrapper, in virtual time, where its arithmetic is exact: the simulated medium below is
 * made so fast that only the pace counts, or so slow that it counts too.
 */
#include "rig.h"

enum { MIB = 1 << 20 };

#define FAST UINT64_C(1000000000000000)

static void start(struct rig *r, uint64_t rate, uint64_t latency_ns, uint64_t burst)
{
    rig_init(r, "sim");
    r->opt.sim = (struct chm_sim_options){
        .read_rate = FAST,
        .write_rate = FAST,
        .read_latency_ns = 1,
        .write_latency_ns = 1,
        .barrier_ns = 1,
    };
    r->opt.pace = (struct chm_pace_options){
        .rate = rate,
        .latency_ns = latency_ns,
        .burst_bytes = burst,
    };
    rig_open(r, 64 * MIB);
}

/* n I/Os of 1 MiB, all submitted now; kinds alternate if both. */
static void submit(struct rig *r, struct chm_io *io, unsigned n, bool both)
{
    for (unsigned i = 0; i < n; i++) {
        enum chm_io_kind kind = both && i % 2 ? CHM_IO_WRITE : CHM_IO_READ;
        io[i] = rig_io(r, kind, (uint64_t)i * MIB, MIB, (uint64_t)(i % 16) * MIB);
        CHECK_EQ(rig_submit(r, &io[i]), 1);
    }
}

/* 1 MiB at 2^20 bytes/ms is 1 ms: with a bucket of 1 MiB, I/O number i is paid for after i ms. */
static void check_rate(bool both)
{
    struct chm_io io[8], *out[8];
    struct rig r;

    start(&r, UINT64_C(1000) * MIB, 0, MIB);
    submit(&r, io, 8, both);
    rig_reap(&r, out, 8);
    for (unsigned i = 0; i < 8; i++) {
        CHECK(out[i] == &io[i]);
        CHECK_EQ(io[i].res, MIB);
        CHECK_EQ(io[i].submit_ns, 0);
        CHECK_EQ(io[i].done_ns, i ? UINT64_C(1000000) * i : 1 + 1); /* the inner medium: 2 ns */
    }
    CHECK_EQ(chm_medium_now(r.m), 7000000);
    rig_close(&r);
}

/* What is saved while idle is the bucket and no more. */
static void check_burst(void)
{
    struct chm_io io[8], *out[8];
    struct rig r;

    start(&r, UINT64_C(1000) * MIB, 0, 4 * MIB);
    CHECK_EQ(chm_medium_reap(r.m, out, 8, 100000000), 0);
    CHECK_EQ(chm_medium_now(r.m), 100000000);
    submit(&r, io, 8, false);
    rig_reap(&r, out, 8);
    for (unsigned i = 0; i < 8; i++) {
        uint64_t after = io[i].done_ns - 100000000;
        CHECK_EQ(after / 1000000, i < 4 ? 0 : i - 3);
    }
    rig_close(&r);
}

static void check_latency(void)
{
    struct chm_io barrier = {.kind = CHM_IO_BARRIER}, read, *out;
    struct rig r;

    start(&r, 0, 250000, 0);
    read = rig_io(&r, CHM_IO_READ, 0, 4096, 0);
    CHECK_EQ(rig_submit(&r, &read), 1);
    CHECK_EQ(chm_medium_reap(r.m, &out, 1, 250000), 0); /* a deadline before the end */
    CHECK_EQ(chm_medium_now(r.m), 250000);
    rig_reap(&r, &out, 1);
    CHECK_EQ(read.done_ns, 250001);
    CHECK_EQ(rig_submit(&r, &barrier), 1);
    rig_reap(&r, &out, 1);
    CHECK_EQ(barrier.done_ns - barrier.submit_ns, 250001);
    rig_close(&r);
}

/* A medium slower than the pace keeps its own rate; the two do not add up. */
static void check_slower_inside(void)
{
    struct chm_io io[8], *out[8];
    struct rig r;

    start(&r, UINT64_C(4000) * MIB, 100, MIB);
    CHECK_EQ(chm_medium_close(r.m, CHM_FOREVER_NS), 0);
    r.opt.sim.read_rate = UINT64_C(1000) * MIB;
    CHECK_EQ(chm_media_open(&r.args, &r.m, &r.err), 0);
    submit(&r, io, 8, false);
    rig_reap(&r, out, 8);
    for (unsigned i = 0; i < 8; i++) {
        CHECK_EQ(io[i].done_ns, UINT64_C(1000000) * (i + 1) + 1 + 100);
    }
    rig_close(&r);
}

/* What is malformed moves no bytes and pays for none. */
static void check_malformed_is_free(void)
{
    struct chm_io bad, good, *out;
    struct rig r;

    start(&r, UINT64_C(1000) * MIB, 0, MIB);
    bad = rig_io(&r, CHM_IO_READ, 1, MIB, 0);
    good = rig_io(&r, CHM_IO_READ, 0, MIB, 0);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(rig_submit(&r, &bad), 1);
        rig_reap(&r, &out, 1);
    }
    CHECK_EQ(chm_medium_now(r.m), 0);
    CHECK_EQ(rig_submit(&r, &good), 1);
    rig_reap(&r, &out, 1);
    CHECK_EQ(good.done_ns, 2);
    rig_close(&r);
}

int main(void)
{
    check_rate(false);
    check_rate(true);
    check_burst();
    check_latency();
    check_slower_inside();
    check_malformed_is_free();
    return 0;
}
