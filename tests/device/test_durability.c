/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_durability.c - when barriers are made, how many share one, and what a power cut may take.
 * On the simulated medium with a volatile cache; a power cut there drops or tears whatever no
 * barrier covers.
 */
#include "device/rig.h"
#include "host/door.h"
#include "media/media_sim.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

static void open_volatile(struct rig *r, uint32_t durability)
{
    rig_sim(r);
    r->opt.sim.volatile_cache = 1;
    r->opt.durability = durability;
    rig_open(r);
}

static uint64_t barriers(struct rig *r)
{
    return rig_stats(r)->barriers;
}

static void check_none(void)
{
    struct rig r;

    open_volatile(&r, CHM_DURABILITY_NONE);
    rig_write(&r, 0, 64 * KIB, 1);
    rig_run(&r, 100ull * CHM_SECOND);
    CHECK_EQ(barriers(&r), 0);
    CHECK_EQ(r.stats.flushed_bytes, 64 * KIB);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(barriers(&r), 1);
    CHECK_IS(chm_flush(r.dev, LONG), 0); /* nothing new: nothing to do */
    CHECK_EQ(barriers(&r), 1);
    rig_close(&r);
}

/* By time, and only when there is something. */
static void check_periodic_time(void)
{
    struct rig r;

    open_volatile(&r, CHM_DURABILITY_PERIODIC);
    rig_run(&r, 10ull * CHM_SECOND);
    CHECK_EQ(barriers(&r), 0);
    rig_write(&r, 0, 64 * KIB, 1);
    rig_run(&r, CHM_SECOND + 100 * MS);
    CHECK_EQ(barriers(&r), 1);
    rig_run(&r, 10ull * CHM_SECOND);
    CHECK_EQ(barriers(&r), 1);
    for (uint64_t i = 0; i < 30; i++) { /* a write every 0.1 s for 3 s */
        rig_write(&r, i * 64 * KIB, 64 * KIB, 2);
        rig_run(&r, 100 * MS);
    }
    CHECK(barriers(&r) >= 3 && barriers(&r) <= 5);
    rig_close(&r);
}

/* By amount. */
static void check_periodic_bytes(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.sim.volatile_cache = 1;
    r.opt.barrier_interval_ns = 1000ull * CHM_SECOND;
    r.opt.barrier_bytes = MIB;
    rig_open(&r);
    for (uint64_t i = 0; i < 40; i++) { /* 10 MiB */
        rig_write(&r, i * 256 * KIB, 256 * KIB, 1);
        rig_run(&r, 10 * MS);
    }
    CHECK_EQ(barriers(&r), 10);
    rig_close(&r);
}

/* Commit returns when the bytes are safe; many commits share a barrier. */
static void check_strict(void)
{
    struct rig r;
    uint64_t ids[16], begin;
    int32_t status[16];

    open_volatile(&r, CHM_DURABILITY_STRICT);
    begin = chm_now(r.dev);
    rig_write(&r, 0, PAGE, 1);
    CHECK(chm_now(r.dev) >= begin + r.opt.sim.barrier_ns);
    CHECK_EQ(barriers(&r), 1);
    CHECK_EQ(r.stats.flushed_bytes, PAGE);
    for (uint64_t i = 0; i < 16; i++) {
        ids[i] = rig_begin(&r, i * 2 * PAGE, PAGE, i + 1).id;
    }
    CHECK_IS(chm_write_commit(r.dev, ids, 16, status), 16);
    CHECK(barriers(&r) <= 1 + 1 + 16 / r.opt.flush_depth); /* those written meanwhile share one */
    rig_close(&r);
}

/* Bytes that a newer commit replaced before they were written are safe when the newer ones are, and
 * lost when those are: the older commit says so too. */
static void check_strict_replaced(void)
{
    struct rig r;
    struct chm_write w[3];
    uint64_t ids[3];
    int32_t status[3] = {1, 1, 1};

    rig_sim(&r);
    r.opt.sim.volatile_cache = 1;
    r.opt.durability = CHM_DURABILITY_STRICT;
    r.opt.flush_depth = 1;
    rig_open_faulty(&r, "0-3 write err 5\n"); /* the first unit, and it is tried three times more */
    for (uint64_t i = 0; i < 3; i++) {
        w[i] = rig_begin(&r, i == 2 ? MIB : 0, PAGE, i + 1);
        ids[i] = w[i].id;
    }
    CHECK_IS(chm_write_commit(r.dev, ids, 3, status), 1);
    CHECK_IS(status[0], -EIO);
    CHECK_IS(status[1], -EIO);
    CHECK_IS(status[2], 0);
    CHECK_IS(rig_stats(&r)->superseded_bytes, PAGE);
    CHECK_IS(chm_close(r.dev, LONG), 0); /* it was told */
}

/* An address that is written again and again grows as old as what was first written to it, and so
 * does get to the drive. */
static void check_replaced_age(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.durability = CHM_DURABILITY_NONE;
    r.opt.flush_age_ns = 10 * MS;
    r.opt.flush_idle_ns = CHM_SECOND; /* it takes pressing to flush */
    rig_open(&r);
    for (uint64_t i = 1; i <= 50; i++) {
        rig_write(&r, 0, PAGE, i);
        rig_run(&r, MS);
    }
    CHECK_EQ(rig_stats(&r)->write_ios, 4);
    rig_close(&r);
}

/* Every member of a stripe gets its barrier. */
static void check_members(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.npaths = 3;
    r.opt.sim.volatile_cache = 1;
    r.opt.durability = CHM_DURABILITY_NONE;
    rig_open_faulty(&r, "2 barrier err 5\n"); /* that of the third */
    rig_write(&r, 0, PAGE, 1);
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    CHECK_EQ(rig_stats(&r)->barrier_errors, 1);
    CHECK_EQ(r.stats.barriers, 1);
    rig_close(&r);
}

/* ------------------------------------------------------------------ power cut (F43) */

static void cut(struct rig *r, uint64_t seed)
{
    chm_sim_power_cut(r->dev->medium, seed);
}

/* What a flush or a strict commit promised survives; what only reached the drive's cache may be old
 * or new, page by page. */
static void check_power_cut(uint32_t durability)
{
    enum { N = 16 };
    unsigned kept = 0, lost = 0;

    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct rig r;
        uint8_t *buf = rig_alloc(N * PAGE);
        open_volatile(&r, durability);
        rig_write(&r, 0, N * PAGE, 1);
        CHECK_IS(chm_flush(r.dev, LONG), 0);
        CHECK_IS(chm_trim(r.dev, 0, PAGE), 0);
        CHECK_IS(chm_flush(r.dev, LONG), 0);
        rig_write(&r, MIB, PAGE, 2);
        if (durability != CHM_DURABILITY_STRICT) {
            CHECK_IS(chm_flush(r.dev, LONG), 0);
            rig_write(&r, 0, N * PAGE, 3);
            rig_run(&r, 10 * MS); /* written, not promised */
            CHECK_EQ(rig_stats(&r)->buffer_used_bytes, 0);
        }
        cut(&r, seed);
        rig_expect(&r, MIB, PAGE, 2);
        CHECK_IS(rig_read(&r, 0, N * PAGE, buf), 0);
        for (uint64_t i = 0; i < N; i++) {
            bool newer = holds(buf + i * PAGE, i * PAGE, PAGE, 3);
            kept += newer;
            lost += !newer;
            CHECK(newer || holds(buf + i * PAGE, i * PAGE, PAGE, i == 0 ? 0 : 1));
        }
        munmap(buf, N * PAGE);
        rig_close(&r);
    }
    CHECK(lost > 0 && (durability == CHM_DURABILITY_STRICT || kept > 0));
}

int main(void)
{
    check_none();
    check_periodic_time();
    check_periodic_bytes();
    check_strict();
    check_strict_replaced();
    check_replaced_age();
    check_members();
    check_power_cut(CHM_DURABILITY_NONE);
    check_power_cut(CHM_DURABILITY_PERIODIC);
    check_power_cut(CHM_DURABILITY_STRICT);
    return 0;
}
