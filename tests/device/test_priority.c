/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_priority.c - reads against a saturated write side, on a medium where both share one resource
 * (F36): reads keep 0.90 of their bandwidth, writes at least 0.03 of theirs, and what a read finds
 * in flight is bounded. In virtual time; first come first served beside it, for contrast.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;
enum { OBJECT = 4 * MIB, STREAMS = 4, PUT = MIB };

struct outcome {
    double read, write; /* bytes/s */
    uint64_t inflight_max;
};

static void open_busy(struct rig *r, uint32_t fcfs)
{
    rig_sim(r);
    r->opt.poison = 0;
    r->opt.sim.capacity_bytes = 512 * MIB;
    r->opt.dram_bytes = 64 * MIB;
    r->opt.write_buffer_bytes = 16 * MIB;
    r->opt.fcfs = fcfs;
    rig_open(r);
}

static void put_all(struct rig *r, uint64_t *at)
{
    struct chm_write w = {.len = PUT};
    int32_t status;

    for (;;) {
        w.addr = 256 * MIB + *at % (200 * MIB);
        if (chm_write_begin(r->dev, &w, 1) != 1) {
            return; /* full: the write side is saturated */
        }
        CHECK_IS(chm_write_commit(r->dev, &w.id, 1, &status), 1);
        *at += PUT;
    }
}

/* Read `rounds` objects, always STREAMS of them staged or on their way. */
static struct outcome run(bool reads, bool writes, uint32_t fcfs, int rounds)
{
    struct rig r;
    struct outcome o;
    uint64_t req[STREAMS], at = 0, begin, warm;
    double seconds;

    open_busy(&r, fcfs);
    if (writes) { /* begin with a full buffer, so that every moment counts the same */
        put_all(&r, &at);
    }
    for (uint64_t i = 0; reads && i < STREAMS; i++) {
        req[i] = rig_issue(&r, i * OBJECT, OBJECT);
    }
    begin = chm_now(r.dev);
    warm = rig_stats(&r)->write_bytes;
    for (int i = 0; i < rounds; i++) {
        uint64_t *x = &req[i % STREAMS];
        if (reads) {
            CHECK_IS(chm_wait(r.dev, *x, LONG), 0);
            CHECK_IS(chm_release(r.dev, *x), 0);
            *x = rig_issue(&r, (uint64_t)(i + STREAMS) % 60 * OBJECT, OBJECT);
        } else {
            rig_run(&r, 2 * MS);
        }
        if (writes) {
            put_all(&r, &at);
        }
    }
    seconds = (double)(chm_now(r.dev) - begin) / CHM_SECOND;
    o.read = (double)rounds * OBJECT / seconds;
    o.write = (double)(rig_stats(&r)->write_bytes - warm) / seconds;
    o.inflight_max = r.stats.flush_inflight_at_read_max;
    for (uint64_t i = 0; reads && i < STREAMS; i++) {
        CHECK_IS(chm_release(r.dev, req[i]), 0);
    }
    rig_check_counters(&r);
    rig_close(&r);
    return o;
}

static void check_shares(void)
{
    struct outcome alone = run(true, false, 0, 400), full = run(false, true, 0, 400);
    struct outcome both = run(true, true, 0, 400), contrast = run(true, true, 1, 400);

    printf("reads alone %.2f GB/s, writes alone %.2f GB/s\n", alone.read / 1e9, full.write / 1e9);
    printf("both: reads %.3f, writes %.3f of that\n", both.read / alone.read,
           both.write / full.write);
    printf("first come first served: reads %.3f, writes %.3f\n", contrast.read / alone.read,
           contrast.write / full.write);
    CHECK(both.read >= 0.90 * alone.read);
    CHECK(both.write >= 0.03 * full.write);
    CHECK(contrast.read < 0.80 * alone.read);
    CHECK(both.inflight_max <= 4); /* flush_depth: a read may arrive in an idle moment */
}

/* A demand read waits at most for the flush units in flight at its arrival. */
static void check_bound(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(PAGE);
    uint64_t at = 0, worst = 0;
    uint64_t seed = 1;

    open_busy(&r, 0);
    for (int i = 0; i < 2000; i++) {
        uint64_t begin;
        put_all(&r, &at);
        rig_run(&r, chm_random(&seed) % (3 * MS));
        begin = chm_now(r.dev);
        CHECK_IS(rig_read(&r, chm_random(&seed) % 1000 * PAGE, PAGE, buf), 0);
        worst = chm_max(worst, chm_now(r.dev) - begin);
    }
    uint64_t unit = MIB * (uint64_t)CHM_SECOND / r.opt.sim.write_rate;
    uint64_t alone = PAGE * (uint64_t)CHM_SECOND / r.opt.sim.read_rate + 80 * US;
    CHECK(worst <= alone + rig_stats(&r)->flush_inflight_at_read_max * unit);
    CHECK(r.stats.flush_inflight_at_read_max <= r.opt.flush_depth);
    CHECK_EQ(r.stats.flush_at_read.count, 2000);
    rig_close(&r);
    munmap(buf, PAGE);
}

int main(void)
{
    check_shares();
    check_bound();
    return 0;
}
