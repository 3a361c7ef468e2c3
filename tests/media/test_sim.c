/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated medium: its time model to the nanosecond, and what a power cut leaves.
 */
#include "rig.h"

#include "media/media_sim.h"

enum { MIB = 1 << 20, PAGE = 4096, PAGES = 64 };

static void start_with(struct rig *r, uint32_t duplex)
{
    rig_init(r, "sim");
    r->args.members = 2;
    r->args.inflight_max = 1024;
    r->opt.sim.read_rate = UINT64_C(2000) * MIB;  /* 1 MiB takes 500 us */
    r->opt.sim.write_rate = UINT64_C(1000) * MIB; /* 1 ms */
    r->opt.sim.read_latency_ns = 80000;
    r->opt.sim.write_latency_ns = 20000;
    r->opt.sim.barrier_ns = 3000000;
    r->opt.sim.duplex = duplex;
    rig_open(r, 64 * MIB);
}

static void start(struct rig *r)
{
    start_with(r, 0);
}

static struct chm_io mib(struct rig *r, enum chm_io_kind kind, uint16_t member)
{
    struct chm_io io = rig_io(r, kind, 0, MIB, 0);

    io.member = member;
    return io;
}

/* A member does one thing after the other; two members do not know each other. */
static void check_time(void)
{
    struct chm_io io[8], *out[8];
    struct rig r;

    start(&r);
    io[0] = mib(&r, CHM_IO_READ, 0);    /* busy 0 .. 500 us, ends 580 */
    io[1] = mib(&r, CHM_IO_READ, 0);    /* 500 .. 1000, 1080 */
    io[2] = mib(&r, CHM_IO_WRITE, 0);   /* 1000 .. 2000, 2020 */
    io[3] = mib(&r, CHM_IO_READ, 0);    /* 2000 .. 2500, 2580: reads wait for writes */
    io[4] = mib(&r, CHM_IO_READ, 1);    /* 0 .. 500, 580: after io[0], as submitted later */
    io[5] = mib(&r, CHM_IO_BARRIER, 1); /* 500 .. 3500 */
    io[6] = mib(&r, CHM_IO_TRIM, 0);    /* 2500 .. 2500, 2520: before io[3] ends */
    io[7] = mib(&r, CHM_IO_READ, 1);    /* 3500 .. 4000, 4080 */
    for (unsigned i = 0; i < 8; i++) {
        CHECK_EQ(rig_submit(&r, &io[i]), 1);
    }
    static const struct {
        unsigned which;
        uint64_t done_ns;
    } expected[] = {{0, 580000},  {4, 580000},  {1, 1080000}, {2, 2020000},
                    {6, 2520000}, {3, 2580000}, {5, 3500000}, {7, 4080000}};
    for (unsigned i = 0; i < 8; i++) {
        if (i != 1) { /* equal times come back in one call, if there is room */
            CHECK_EQ(chm_medium_reap(r.m, &out[i], 2, CHM_FOREVER_NS), i == 0 ? 2 : 1);
            CHECK_EQ(chm_medium_now(r.m), expected[i].done_ns);
        }
        CHECK(out[i] == &io[expected[i].which]);
        CHECK_EQ(out[i]->done_ns, expected[i].done_ns);
    }
    rig_close(&r);
}

/* With duplex, reads do not wait for writes, nor for barriers. */
static void check_duplex(void)
{
    struct chm_io io[4], *out;
    struct rig r;

    start_with(&r, 1);
    io[0] = mib(&r, CHM_IO_READ, 0);    /* 0 .. 500 us, ends 580 */
    io[1] = mib(&r, CHM_IO_WRITE, 0);   /* 0 .. 1000, 1020 */
    io[2] = mib(&r, CHM_IO_BARRIER, 0); /* 1000 .. 4000 */
    io[3] = mib(&r, CHM_IO_READ, 0);    /* 500 .. 1000, 1080 */
    static const uint64_t done_ns[] = {580000, 1020000, 4000000, 1080000};
    static const unsigned order[] = {0, 1, 3, 2};
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(rig_submit(&r, &io[i]), 1);
    }
    for (unsigned i = 0; i < 4; i++) {
        rig_reap(&r, &out, 1);
        CHECK(out == &io[order[i]]);
        CHECK_EQ(out->done_ns, done_ns[order[i]]);
    }
    rig_close(&r);
}

static void check_idle_gap(void)
{
    struct chm_io io = {0}, *out;
    struct rig r;

    start(&r);
    CHECK_EQ(chm_medium_reap(r.m, &out, 1, 10000000), 0);
    io = mib(&r, CHM_IO_READ, 0);
    CHECK_EQ(rig_submit(&r, &io), 1);
    CHECK_EQ(chm_medium_reap(r.m, &out, 1, 10000001), 0);
    CHECK_EQ(chm_medium_now(r.m), 10000001);
    rig_reap(&r, &out, 1);
    CHECK_EQ(io.submit_ns, 10000000);
    CHECK_EQ(io.done_ns, 10580000); /* idle time is not saved up */
    rig_close(&r);
}

/* Bytes move when the I/O is handed back. */
static void check_no_early_bytes(void)
{
    struct chm_io io, *out;
    struct rig r;

    start(&r);
    memset(r.memory, 0xA5, MIB);
    io = mib(&r, CHM_IO_READ, 0);
    CHECK_EQ(rig_submit(&r, &io), 1);
    CHECK_EQ(chm_medium_reap(r.m, &out, 1, 579999), 0);
    CHECK(is_byte(r.memory, MIB, 0xA5));
    rig_reap(&r, &out, 1);
    CHECK(is_byte(r.memory, MIB, 0));
    rig_close(&r);
}

/* Terabytes without contents: reads leave memory as it is. */
static void check_no_contents(void)
{
    struct rig r;

    rig_init(&r, "sim");
    r.opt.sim.no_contents = 1;
    rig_open(&r, UINT64_C(64) << 40);
    CHECK(!r.m->caps.contents && r.m->caps.virtual_time);
    memset(r.memory, 0xA5, PAGE);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_WRITE, UINT64_C(60) << 40, PAGE, 0)), PAGE);
    memset(r.memory, 0x5A, PAGE);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_READ, UINT64_C(60) << 40, PAGE, 0)), PAGE);
    CHECK(is_byte(r.memory, PAGE, 0x5A));
    rig_close(&r);
}

/* ------------------------------------------------------------------ power cut */

static void start_volatile(struct rig *r, bool volatile_cache)
{
    rig_init(r, "sim");
    r->args.inflight_max = PAGES;
    r->opt.sim.volatile_cache = volatile_cache;
    rig_open(r, 4 * MIB);
    CHECK_EQ(r->m->caps.volatile_cache, volatile_cache);
}

static void write_pages(struct rig *r, uint8_t byte, uint8_t flags)
{
    struct chm_io io = rig_io(r, CHM_IO_WRITE, 0, PAGES * PAGE, 0);

    memset(r->memory, byte, PAGES * PAGE);
    io.flags = flags;
    CHECK_EQ(rig_do(r, io), PAGES * PAGE);
}

/* Read all pages; each must be wholly one of the two bytes. Returns how many are `b`. */
static unsigned count_pages(struct rig *r, uint8_t a, uint8_t b)
{
    unsigned n = 0;

    CHECK_EQ(rig_do(r, rig_io(r, CHM_IO_READ, 0, PAGES * PAGE, 0)), PAGES * PAGE);
    for (unsigned i = 0; i < PAGES; i++) {
        const uint8_t *page = r->memory + (size_t)i * PAGE;
        CHECK(page[0] == a || page[0] == b);
        CHECK(is_byte(page, PAGE, page[0]));
        n += page[0] == b;
    }
    return n;
}

/* Written and not followed by a barrier: some pages old, some new, as the seed says. */
static void check_cut_without_barrier(void)
{
    unsigned kept[3];
    struct rig r;

    for (unsigned i = 0; i < 3; i++) {
        start_volatile(&r, true);
        write_pages(&r, 1, 0);
        CHECK_EQ(rig_do(&r, (struct chm_io){.kind = CHM_IO_BARRIER}), 0);
        write_pages(&r, 2, 0);
        CHECK_EQ(count_pages(&r, 1, 2), PAGES); /* what was written is what is read */
        chm_sim_power_cut(r.m, i / 2);
        kept[i] = count_pages(&r, 1, 2);
        CHECK(kept[i] > 0 && kept[i] < PAGES);
        chm_sim_power_cut(r.m, 99); /* nothing is volatile any more */
        CHECK_EQ(count_pages(&r, 1, 2), kept[i]);
        rig_close(&r);
    }
    CHECK_EQ(kept[0], kept[1]);
}

static void check_what_survives(void)
{
    struct rig r;

    start_volatile(&r, true);
    write_pages(&r, 1, 0);
    CHECK_EQ(rig_do(&r, (struct chm_io){.kind = CHM_IO_BARRIER}), 0);
    chm_sim_power_cut(r.m, 1);
    CHECK_EQ(count_pages(&r, 0, 1), PAGES);
    write_pages(&r, 2, CHM_IO_FUA);
    chm_sim_power_cut(r.m, 1);
    CHECK_EQ(count_pages(&r, 1, 2), PAGES);
    CHECK_EQ(rig_do(&r, (struct chm_io){.kind = CHM_IO_TRIM, .len = PAGES * PAGE}), 0);
    CHECK_EQ(count_pages(&r, 2, 0), PAGES);
    chm_sim_power_cut(r.m, 1);
    unsigned zero = count_pages(&r, 2, 0);
    CHECK(zero > 0 && zero < PAGES);
    rig_close(&r);

    start_volatile(&r, false);
    write_pages(&r, 1, 0);
    chm_sim_power_cut(r.m, 1);
    CHECK_EQ(count_pages(&r, 0, 1), PAGES); /* no cache: durable when handed back */
    rig_close(&r);
}

/* A barrier covers what was handed back before it was submitted, and not what came after. */
static void check_barrier_is_no_wider(void)
{
    struct chm_io write, barrier = {.kind = CHM_IO_BARRIER}, *out[2];
    struct rig r;

    start_volatile(&r, true);
    memset(r.memory, 1, PAGES * PAGE);
    write = rig_io(&r, CHM_IO_WRITE, 0, PAGES * PAGE, 0);
    CHECK_EQ(rig_submit(&r, &write), 1);
    CHECK_EQ(rig_submit(&r, &barrier), 1); /* the write is still in flight */
    rig_reap(&r, out, 2);
    chm_sim_power_cut(r.m, 3);
    unsigned kept = count_pages(&r, 0, 1);
    CHECK(kept > 0 && kept < PAGES);
    rig_close(&r);
}

/* In flight: torn anywhere between pages, with and without a cache; handed back by nobody. */
static void check_cut_in_flight(bool volatile_cache)
{
    struct chm_io io, *out;
    struct rig r;

    start_volatile(&r, volatile_cache);
    memset(r.memory, 1, PAGES * PAGE);
    io = rig_io(&r, CHM_IO_WRITE, 0, PAGES * PAGE, 0);
    CHECK_EQ(rig_submit(&r, &io), 1);
    chm_sim_power_cut(r.m, 5);
    CHECK_EQ(chm_medium_reap(r.m, &out, 1, CHM_FOREVER_NS), 0);
    unsigned kept = count_pages(&r, 0, 1);
    CHECK(kept > 0 && kept < PAGES);
    rig_close(&r);
}

int main(void)
{
    check_time();
    check_duplex();
    check_idle_gap();
    check_no_early_bytes();
    check_no_contents();
    check_cut_without_barrier();
    check_what_survives();
    check_barrier_is_no_wider();
    check_cut_in_flight(false);
    check_cut_in_flight(true);
    return 0;
}
