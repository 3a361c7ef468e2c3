/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time model of a flash drive, to the nanosecond where it promises that, and what it must never
 * do: let a resource move more than its rate.
 */
#include "rig.h"

#include <errno.h>

#include "media/sim_flash.h"

enum { KIB = 1 << 10, MIB = 1 << 20, PAGE = 16 * KIB };

/* Rates at which a page takes whole microseconds: link 2 us, channel 10 us. */
static const uint64_t US = 1000, LINK = UINT64_C(8192000000), CHANNEL = UINT64_C(1638400000);

static struct chm_sim_options drive(uint32_t dies, uint32_t channels)
{
    return (struct chm_sim_options){
        .capacity_bytes = UINT64_C(1) << 40,
        .no_contents = 1,
        .read_rate = LINK,
        .write_rate = LINK,
        .dies = dies,
        .channels = channels,
        .planes = 1,
        .page_bytes = PAGE,
        .block_pages = 1 << 16,
        .page_read_ns = {60 * US},
        .program_ns = 600 * US,
        .channel_rate = CHANNEL,
        .command_ns = 15 * US,
    };
}

static struct chm_flash flash_of(struct chm_sim_options o)
{
    struct chm_error err;
    struct chm_flash f;

    chm_flash_defaults(&o);
    CHECK_EQ(chm_flash_check(&o, &err), 0);
    CHECK_EQ(chm_flash_open(&f, &o), 0);
    return f;
}

static uint64_t write_at(struct chm_flash *f, uint64_t at_ns, uint64_t bytes)
{
    return chm_flash_write(f, at_ns, 0, at_ns, bytes, false);
}

/* ------------------------------------------------------------------ reads */

/* Idle: command, page, channel, link; the two transfers are of what is read, not of the page. */
static void check_idle_read(void)
{
    struct chm_flash f = flash_of(drive(16, 4));
    uint64_t one = 15 * US + 60 * US + 2500 + 500;

    CHECK_EQ(chm_flash_read(&f, 0, 5 * PAGE, 4 * KIB), one);
    CHECK_EQ(chm_flash_read(&f, 500 * US, 5 * PAGE + 4 * KIB, 4 * KIB), 500 * US + one);
    CHECK_EQ(chm_flash_read(&f, 1000 * US, 6 * PAGE, PAGE), 1087 * US);
    CHECK_EQ(chm_flash_read(&f, 2000 * US, 0, 0), 2015 * US);
    chm_flash_close(&f);
}

/* One die does one read after the other; sixteen dies do sixteen at a time. */
static void check_hot_die(void)
{
    struct chm_flash f = flash_of(drive(16, 4));
    uint64_t end = 0;

    for (unsigned i = 0; i < 100; i++) {
        end = chm_flash_read(&f, 0, (uint64_t)i * 16 * PAGE, 4 * KIB);
    }
    CHECK_EQ(end, 15 * US + 100 * 60 * US + 3000);
    chm_flash_reset(&f, end);
    for (unsigned i = 0; i < 16; i++) { /* four per channel, one after the other */
        uint64_t one = chm_flash_read(&f, 20000 * US, (uint64_t)i * PAGE, 4 * KIB);
        CHECK(one >= 20078 * US && one <= 20078 * US + 3 * 2500 + 3 * 500);
    }
    chm_flash_close(&f);
}

/* A read that waits for its die does not hold up the link for one that does not. */
static void check_no_convoy(void)
{
    struct chm_flash f = flash_of(drive(16, 4));

    for (unsigned i = 0; i < 50; i++) {
        (void)chm_flash_read(&f, 0, 0, 4 * KIB);
    }
    CHECK(chm_flash_read(&f, 0, PAGE, 4 * KIB) <= 78 * US + 50 * 500);
    chm_flash_close(&f);
}

/* A large read ends about latency + n/rate after it began, not at the sum of the stages. */
static void check_large_read(void)
{
    struct chm_flash f = flash_of(drive(64, 16));
    uint64_t end = chm_flash_read(&f, 0, 0, MIB);

    CHECK_EQ(end, (15 + 60 + 10 + 64 * 2) * US); /* link-bound: the channels need 40 us */
    chm_flash_close(&f);
    f = flash_of(drive(64, 4));
    end = chm_flash_read(&f, 0, 0, MIB);
    CHECK_EQ(end, (15 + 60 + 16 * 10 + 2) * US); /* channel-bound: the link has 128 us of work */
    end = chm_flash_read(&f, 1000 * US, 0, 18 * PAGE); /* two of the channels have five pages */
    CHECK_EQ(end, (1000 + 15 + 60 + 5 * 10 + 2) * US);
    CHECK_EQ(f.channels[1].read_ns - f.channels[2].read_ns, 10 * US);
    chm_flash_close(&f);
    f = flash_of(drive(4, 4));
    end = chm_flash_read(&f, 0, 0, MIB);
    CHECK_EQ(end, (15 + 16 * 60 + 10 + 2) * US); /* die-bound */
    chm_flash_close(&f);
}

/* Planes are read together: half the page reads, and the transfer of two pages after the last. */
static void check_planes(void)
{
    struct chm_sim_options o = drive(4, 4);
    struct chm_flash f;

    o.planes = 2;
    f = flash_of(o);
    CHECK_EQ(chm_flash_read(&f, 0, 0, MIB), (15 + 8 * 60 + 20 + 2) * US);
    CHECK_EQ(chm_flash_read(&f, 10000 * US, 0, 5 * PAGE), (10000 + 15 + 60 + 20 + 2) * US);
    chm_flash_close(&f);
}

/* Ends that are in the middle of a page: only those bytes move, and each page is read once. */
static void check_unaligned(void)
{
    struct chm_flash f = flash_of(drive(16, 16));

    /* 4 KiB of page 0, page 1, 8 KiB of page 2: page 1 ends last */
    CHECK_EQ(chm_flash_read(&f, 0, 12 * KIB, 28 * KIB), (15 + 60 + 10 + 2) * US + 1500);
    for (unsigned i = 0; i < 16; i++) {
        CHECK_EQ(f.dies[i].free_ns, i < 3 ? 75 * US : 0);
    }
    CHECK_EQ(f.channels[0].read_ns, 75 * US + 2500);
    CHECK_EQ(f.channels[1].read_ns, 85 * US);
    CHECK_EQ(f.channels[2].read_ns, 80 * US);
    chm_flash_close(&f);
}

/* Kinds of pages: the same in every run, about a third each, the mean for large reads. */
static void check_kinds(void)
{
    struct chm_sim_options o = drive(64, 16);
    unsigned n[3] = {0}, differ = 0;

    o.page_read_ns[0] = 40 * US, o.page_read_ns[1] = 60 * US, o.page_read_ns[2] = 110 * US;
    struct chm_flash f = flash_of(o);
    o.seed = 1;
    struct chm_flash g = flash_of(o);
    for (uint64_t i = 0; i < 30000; i++) {
        uint64_t at = i * 1000 * US, off = i * 192 * PAGE; /* a stride that 3 divides */
        uint64_t ns = chm_flash_read(&f, at, off, 4 * KIB) - at - 18 * US;
        CHECK(ns == 40 * US || ns == 60 * US || ns == 110 * US);
        n[ns == 40 * US ? 0 : ns == 60 * US ? 1 : 2]++;
        differ += ns != chm_flash_read(&g, at, off, 4 * KIB) - at - 18 * US;
    }
    for (unsigned i = 0; i < 3; i++) {
        CHECK(n[i] > 9700 && n[i] < 10300);
    }
    CHECK(differ > 19000 && differ < 21000); /* another seed, other kinds */
    CHECK_EQ(chm_flash_read(&f, 90000000 * US, 0, 64 * MIB) - 90000000 * US,
             (15 + 40 + 10 + 4096 * 2) * US);                    /* link-bound */
    CHECK_EQ(f.dies[0].free_ns, (90000000 + 15 + 64 * 70) * US); /* a die's 64 pages, mean 70 */
    chm_flash_close(&f);
    chm_flash_close(&g);
}

/* ------------------------------------------------------------------ reads and programs */

/* A write without a cache: command, link, channel, program. */
static void check_program(void)
{
    struct chm_flash f = flash_of(drive(4, 4));

    CHECK_EQ(write_at(&f, 0, PAGE), (15 + 2 + 10 + 600) * US);
    CHECK_EQ(write_at(&f, 0, 4 * KIB), (15 + 2 + 600) * US + 500 + 2500); /* die 1 */
    CHECK_EQ(f.dies[0].run_ns, 27 * US);
    CHECK_EQ(f.dies[0].end_ns, 627 * US);
    chm_flash_close(&f);
}

/* A read behind a program waits for exactly what is left of it. */
static void check_read_waits(void)
{
    struct chm_flash f = flash_of(drive(1, 1));

    (void)write_at(&f, 0, 2 * PAGE); /* programs 27 .. 627 .. 1227 us */
    CHECK_EQ(f.dies[0].end_ns, 1227 * US);
    CHECK_EQ(chm_flash_read(&f, 200 * US, 0, PAGE), (627 + 60 + 12) * US);
    CHECK_EQ(f.dies[0].end_ns, 1287 * US); /* the second program goes on after it */
    CHECK_EQ(chm_flash_read(&f, 300 * US, 0, PAGE), (687 + 60 + 12) * US); /* reads first */
    CHECK_EQ(f.dies[0].end_ns, 1347 * US);
    CHECK_EQ(chm_flash_read(&f, 800 * US, 0, PAGE), (1347 + 60 + 12) * US);
    CHECK_EQ(f.dies[0].end_ns, 1347 * US);                      /* it was the last */
    CHECK_EQ(write_at(&f, 1350 * US, PAGE), (1407 + 600) * US); /* behind the read */
    chm_flash_close(&f);
}

/* With suspend it begins after suspend_ns, and the program ends that much and the read later. */
static void check_read_suspends(void)
{
    struct chm_sim_options o = drive(1, 1);
    struct chm_flash f;

    o.suspend_ns = 5 * US;
    f = flash_of(o);
    (void)write_at(&f, 0, PAGE); /* 27 .. 627 */
    CHECK_EQ(chm_flash_read(&f, 185 * US, 0, PAGE), (200 + 5 + 60 + 12) * US);
    CHECK_EQ(f.dies[0].end_ns, 692 * US);
    CHECK_EQ(chm_flash_read(&f, 210 * US, 0, PAGE), (265 + 60 + 12) * US); /* once is enough */
    CHECK_EQ(f.dies[0].end_ns, 752 * US);
    CHECK_EQ(chm_flash_read(&f, 733 * US, 0, PAGE), (752 + 60 + 12) * US); /* 4 us are left */
    CHECK_EQ(f.dies[0].end_ns, 752 * US);
    chm_flash_close(&f);
}

/* Reads that come before a program has its bytes are not in its way, nor it in theirs. */
static void check_read_before_program(void)
{
    struct chm_flash f = flash_of(drive(1, 1));

    (void)write_at(&f, 0, PAGE); /* 27 .. 627 */
    CHECK_EQ(chm_flash_read(&f, 0, 0, PAGE), 87 * US);
    CHECK_EQ(f.dies[0].run_ns, 75 * US);
    CHECK_EQ(f.dies[0].end_ns, 675 * US);
    chm_flash_close(&f);
}

/* Every block_pages programs of a die, one erase; a read waits for that too. */
static void check_erase(void)
{
    struct chm_sim_options o = drive(1, 1);
    struct chm_flash f;
    uint64_t run, end;

    o.block_pages = 4;
    o.erase_ns = 3000 * US;
    f = flash_of(o);
    CHECK_EQ(write_at(&f, 0, 4 * PAGE), (27 + 4 * 600) * US); /* done; then comes the erase */
    run = f.dies[0].run_ns;
    end = f.dies[0].end_ns;
    CHECK_EQ(end - run, (4 * 600 + 3000) * US);
    CHECK_EQ(write_at(&f, 0, 97 * PAGE), run + (101 * 600 + 25 * 3000) * US);
    CHECK_EQ(f.dies[0].end_ns, run + (101 * 600 + 25 * 3000) * US);
    /* in each place of the cycle: the read begins where the operation ends */
    CHECK_EQ(chm_flash_read(&f, run + 10 * US, 0, PAGE), run + (600 + 60 + 12) * US);
    run += 60 * US;
    CHECK_EQ(chm_flash_read(&f, run + (2400 + 10) * US, 0, PAGE), run + (5400 + 60 + 12) * US);
    run += 60 * US;
    CHECK_EQ(chm_flash_read(&f, run + (5400 + 10) * US, 0, PAGE), run + (6000 + 60 + 12) * US);
    run += 60 * US;
    CHECK_EQ(f.dies[0].end_ns, run + (101 * 600 + 25 * 3000) * US);
    CHECK_EQ(chm_flash_read(&f, f.dies[0].end_ns - 30 * US, 0, PAGE), f.dies[0].end_ns + 72 * US);
    chm_flash_close(&f);
}

/* ------------------------------------------------------------------ the write cache */

/* A burst that fits is taken at write_rate; what follows, at the rate of the dies. */
static void check_cache(void)
{
    struct chm_sim_options o = drive(8, 8);
    struct chm_flash f;
    uint64_t end = 0, burst, pages = 640;

    o.cache_bytes = pages * PAGE;
    f = flash_of(o);
    for (uint64_t i = 0; i < pages; i++) {
        end = write_at(&f, 0, PAGE);
    }
    burst = (15 + pages * 2) * US;
    CHECK_EQ(end, burst); /* 1295 us */
    /* The next has the place of the first page, programmed at 15 + 2 + 10 + 600. */
    CHECK_EQ(write_at(&f, 0, PAGE), burst + 2 * US);
    /* 16 groups of 8 were programmed meanwhile by... 2: page 16 is free at 27 + 3 * 600 */
    for (uint64_t i = 1; i < 16; i++) {
        end = write_at(&f, 0, PAGE);
    }
    CHECK_EQ(end, burst + 32 * US);
    CHECK_EQ(write_at(&f, 0, PAGE), (27 + 3 * 600 + 2) * US);
    for (uint64_t i = 1; i < 8 * 1000; i++) {
        end = write_at(&f, 0, PAGE);
    }
    /* 1000 rounds: the last page has the place of page 8015, the last of round 1001 */
    CHECK_EQ(end, (27 + 7 * 2 + 1002 * 600 + 2) * US);
    chm_flash_close(&f);
}

/* A full cache has room when a group is programmed, however many erases its die has behind it. */
static void check_cache_and_erase(void)
{
    struct chm_sim_options o = drive(1, 1);
    struct chm_flash f;

    o.block_pages = 2;
    o.erase_ns = 3000 * US;
    o.cache_bytes = 5 * PAGE;
    f = flash_of(o);
    CHECK_EQ(write_at(&f, 0, 5 * PAGE), 25 * US);
    /* programs end at 627, 1227, erase, 4827, 5427, erase, 9027, ... */
    CHECK_EQ(write_at(&f, 0, PAGE), 629 * US);
    CHECK_EQ(write_at(&f, 0, PAGE), 1229 * US);
    CHECK_EQ(write_at(&f, 0, PAGE), 4829 * US);
    CHECK_EQ(write_at(&f, 0, PAGE), 5429 * US);
    CHECK_EQ(write_at(&f, 0, PAGE), 9029 * US);
    chm_flash_close(&f);
}

/* Small writes share a group: four of 4 KiB are one program, and a barrier has the rest done. */
static void check_small_writes(void)
{
    struct chm_sim_options o = drive(2, 2);
    struct chm_flash f;

    o.cache_bytes = MIB;
    f = flash_of(o);
    for (unsigned i = 0; i < 6; i++) {
        CHECK_EQ(write_at(&f, 0, 4 * KIB), 15 * US + (i + 1) * 500);
    }
    CHECK_EQ(f.dies[0].programs, 1);
    CHECK_EQ(f.dies[1].programs, 0);
    CHECK_EQ(chm_flash_drain(&f, 0), 627 * US);          /* the full one: 10 us of channel */
    CHECK_EQ(f.dies[1].end_ns, (15 + 3 + 5 + 600) * US); /* the other one: 5 */
    CHECK_EQ(f.dies[1].programs, 1);
    CHECK_EQ(chm_flash_drain(&f, 5000 * US), 5000 * US);
    chm_flash_close(&f);
}

/* ------------------------------------------------------------------ conservation */

/* Sequential reads, `depth` in flight: bytes/s. */
static double read_rate(struct chm_sim_options o, uint64_t bytes, unsigned depth, unsigned n)
{
    struct chm_flash f = flash_of(o);
    uint64_t ends[256] = {0}, last = 0;

    for (unsigned i = 0; i < n; i++) {
        uint64_t *oldest = &ends[0];
        for (unsigned j = 1; j < depth; j++) {
            oldest = ends[j] < *oldest ? &ends[j] : oldest;
        }
        *oldest = chm_flash_read(&f, *oldest, i * bytes, bytes);
        last = chm_max(last, *oldest);
        CHECK((unsigned __int128)(i + 1) * bytes * CHM_SECOND <=
              (unsigned __int128)last * o.read_rate);
    }
    chm_flash_close(&f);
    return (double)n * (double)bytes * 1e9 / (double)last;
}

static void check_read_rate(uint32_t dies, uint32_t channels, uint32_t planes, uint64_t link)
{
    struct chm_sim_options o = drive(dies, channels);
    double flash = (double)dies * planes * PAGE / 60e-6, most;

    o.planes = planes;
    o.read_rate = link;
    most = (double)channels * (double)CHANNEL;
    most = flash < most ? flash : most;
    most = (double)link < most ? (double)link : most;
    double got = read_rate(o, (uint64_t)dies * planes * PAGE, 32, 3000);
    CHECK(got <= most && got >= 0.95 * most);
}

/* Random small reads keep to the rate of the dies, and come near it. */
static void check_random_rate(void)
{
    struct chm_flash f = flash_of(drive(64, 16));
    uint64_t ends[256] = {0}, last = 0, seed = 7;
    unsigned n = 100000;

    for (unsigned i = 0; i < n; i++) {
        uint64_t *oldest = &ends[0];
        for (unsigned j = 1; j < 256; j++) {
            oldest = ends[j] < *oldest ? &ends[j] : oldest;
        }
        *oldest = chm_flash_read(&f, *oldest, (chm_random(&seed) >> 34) * PAGE, 4 * KIB);
        last = chm_max(last, *oldest);
    }
    double share = (double)n * 60e-6 / 64 / ((double)last * 1e-9);
    CHECK(share <= 1.0 && share > 0.7);
    chm_flash_close(&f);
}

/* Writes last at the lesser of the link and the dies, erases counted. */
static void check_write_rate(uint32_t dies, uint64_t link)
{
    struct chm_sim_options o = drive(dies, 4);
    double each, most;
    uint64_t end = 0, n = 20000;
    struct chm_flash f;

    o.write_rate = link;
    o.planes = 2;
    o.block_pages = 16;
    o.erase_ns = 3200 * US;
    o.cache_bytes = 64 * MIB;
    f = flash_of(o);
    for (uint64_t i = 0; i < n; i++) {
        end = write_at(&f, end, MIB);
    }
    each = (600e-6 * 16 + 3200e-6) / 16; /* 800 us for two pages */
    most = (double)dies * 2 * PAGE / each;
    most = (double)link < most ? (double)link : most;
    for (uint32_t i = 0; i < dies; i++) { /* n fills whole blocks */
        end = chm_max(end, f.dies[i].end_ns);
    }
    double got = (double)(n * MIB) * 1e9 / (double)end;
    CHECK(got <= most && got >= 0.95 * most);
    chm_flash_close(&f);
}

/* Any mix: die time handed out is no more than time times dies, channel time likewise. */
static void check_mix(uint64_t suspend_ns)
{
    struct chm_sim_options o = drive(16, 4);
    uint64_t now = 0, seed = 3, reads = 0, writes = 0, last = 0;
    struct chm_flash f;

    o.suspend_ns = suspend_ns;
    o.block_pages = 8;
    o.erase_ns = 2000 * US;
    o.cache_bytes = 4 * MIB;
    f = flash_of(o);
    for (unsigned i = 0; i < 20000; i++) {
        uint64_t page = chm_random(&seed) >> 40, end;
        if (chm_random(&seed) % 4 == 0) {
            end = write_at(&f, now, PAGE);
            writes++;
        } else {
            end = chm_flash_read(&f, now, page * PAGE, PAGE);
            reads++;
        }
        CHECK(end > now);
        last = chm_max(last, end);
        now += chm_random(&seed) % (40 * US);
    }
    last = chm_max(last, chm_flash_drain(&f, last));
    for (unsigned i = 0; i < 16; i++) {
        last = chm_max(last, f.dies[i].end_ns);
    }
    CHECK(reads * 60 * US + writes * 600 * US + writes / 8 * 2000 * US <= 16 * last);
    CHECK((reads + writes) * 10 * US <= 4 * last);
    chm_flash_close(&f);
}

/* ------------------------------------------------------------------ as a medium */

static void start(struct rig *r, struct chm_sim_options o, uint32_t members)
{
    rig_init(r, "sim");
    r->opt.sim = o;
    r->args.members = members;
    rig_open(r, o.capacity_bytes);
}

/* The DRAM port: a write goes through it first, a read last, in the order of time. */
static void check_dram_port(void)
{
    struct chm_sim_options o = drive(4, 4);
    struct chm_io io[2], *out[2];
    struct rig r;

    o.dram_rate = LINK / 2; /* a page in 4 us, and 2 us over the SSD link */
    start(&r, o, 1);
    CHECK(r.m->caps.dram != NULL);
    io[0] = rig_io(&r, CHM_IO_READ, 0, PAGE, 0);
    CHECK_EQ(rig_submit(&r, &io[0]), 1);
    CHECK_EQ(chm_medium_reap(r.m, out, 2, CHM_FOREVER_NS), 1); /* the way to the port is not told */
    CHECK_EQ(chm_medium_now(r.m), 89 * US);
    CHECK_EQ(r.m->caps.dram->busy_ns, 89 * US);
    io[0] = rig_io(&r, CHM_IO_READ, 0, PAGE, 0);
    io[1] = rig_io(&r, CHM_IO_READ, PAGE, PAGE, 0);
    CHECK_EQ(rig_submit(&r, &io[0]) + rig_submit(&r, &io[1]), 2);
    CHECK_EQ(chm_port_take(r.m->caps.dram, 89 * US, 25 * PAGE), 189 * US); /* somebody else */
    CHECK_EQ(chm_medium_reap(r.m, out, 2, 180 * US), 0);
    CHECK_EQ(chm_medium_reap(r.m, out, 2, CHM_FOREVER_NS), 1); /* one at a time, none for nothing */
    CHECK_EQ(chm_medium_now(r.m), 193 * US);
    rig_reap(&r, out + 1, 1);
    CHECK_EQ(io[0].done_ns, 193 * US); /* off the drive at 176 */
    CHECK_EQ(io[1].done_ns, 197 * US);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_WRITE, 0, PAGE, 0)), PAGE);
    CHECK_EQ(chm_medium_now(r.m), (197 + 4 + 15 + 2 + 10 + 600) * US);
    rig_close(&r);
}

/* Rates only: the port is there too, and the slower of the two decides. */
static void check_dram_port_of_rates(void)
{
    struct chm_sim_options o = drive(0, 0);
    struct rig r;

    o.dram_rate = LINK / 2;
    o.read_latency_ns = 80 * US;
    o.write_latency_ns = 20 * US;
    start(&r, o, 1);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_WRITE, 0, PAGE, 0)), PAGE);
    CHECK_EQ(chm_medium_now(r.m), 24 * US);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_READ, 0, PAGE, 0)), PAGE);
    CHECK_EQ(chm_medium_now(r.m), 24 * US + 84 * US);
    rig_close(&r);
    o.dram_rate = LINK * 4;
    start(&r, o, 1);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_WRITE, 0, PAGE, 0)), PAGE);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_READ, 0, PAGE, 0)), PAGE);
    CHECK_EQ(chm_medium_now(r.m), 22 * US + 82 * US);
    rig_close(&r);
}

/* The software does one I/O after the other, whichever member it is for; also without dies. */
static void check_software(uint32_t dies)
{
    struct chm_sim_options o = drive(dies, dies);
    struct chm_io io[4], *out[4];
    uint64_t one = dies ? 78 * US : 580 * US;
    struct rig r;

    o.software_ns = 20 * US;
    o.read_latency_ns = 80 * US - 500 + 500 * US;
    start(&r, o, 2);
    for (unsigned i = 0; i < 4; i++) {
        io[i] = rig_io(&r, CHM_IO_READ, (uint64_t)i * PAGE, 4 * KIB, 0);
        io[i].member = i % 2;
        CHECK_EQ(rig_submit(&r, &io[i]), 1);
    }
    rig_reap(&r, out, 4);
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(io[i].done_ns, (i + 1) * 20 * US + one);
    }
    rig_close(&r);
}

/* A barrier waits for the write cache if that is volatile; a durable write for itself. */
static void check_barrier(bool volatile_cache)
{
    struct chm_sim_options o = drive(4, 4);
    struct chm_io io;
    struct rig r;

    o.volatile_cache = volatile_cache;
    o.cache_bytes = MIB;
    o.barrier_ns = 100 * US;
    start(&r, o, 1);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_WRITE, 0, PAGE, 0)), PAGE);
    CHECK_EQ(chm_medium_now(r.m), 17 * US);
    CHECK_EQ(rig_do(&r, (struct chm_io){.kind = CHM_IO_BARRIER}), 0);
    CHECK_EQ(chm_medium_now(r.m), (volatile_cache ? 727 : 117) * US);
    CHECK_EQ(chm_medium_reap(r.m, (struct chm_io *[1]){0}, 1, 1000 * US), 0);
    io = rig_io(&r, CHM_IO_WRITE, 0, PAGE, 0);
    io.flags = CHM_IO_FUA;
    CHECK_EQ(rig_do(&r, io), PAGE);
    CHECK_EQ(chm_medium_now(r.m), (volatile_cache ? 1627 : 1017) * US);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_TRIM, 0, MIB, 0)), 0);
    CHECK_EQ(chm_medium_now(r.m), (volatile_cache ? 1642 : 1032) * US);
    rig_close(&r);
}

/* The last page of 64 TiB; the drive costs its dies, not its bytes. */
static void check_large_member(void)
{
    struct chm_sim_options o = drive(1024, 32);
    struct rig r;

    o.capacity_bytes = UINT64_C(64) << 40;
    start(&r, o, 2);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_READ, o.capacity_bytes - PAGE, PAGE, 0)), PAGE);
    CHECK_EQ(chm_medium_now(r.m), 87 * US);
    CHECK_EQ(rig_do(&r, rig_io(&r, CHM_IO_READ, o.capacity_bytes, PAGE, 0)), 0);
    CHECK_EQ(chm_medium_now(r.m), 102 * US);
    rig_close(&r);
}

static void check_refused(void)
{
    struct chm_error err;
    const struct {
        struct chm_sim_options o;
        const char *names;
    } bad[] = {
        {{.dies = 10, .channels = 4}, "multiple of channels"},
        {{.dies = 2048, .channels = 4}, "at most 1024"},
        {{.dies = 4, .page_bytes = 12288}, "power of two"},
        {{.dies = 4, .page_bytes = 2048}, "page_bytes"},
        {{.dies = 4, .planes = 17}, "sim.planes"},
        {{.dies = 4, .block_pages = 1 << 17}, "block_pages"},
        {{.dies = 4, .planes = 4, .cache_bytes = 32768}, "65536"},
        {{.dies = 4, .program_ns = UINT64_C(11000000000)}, "program_ns"},
    };

    for (size_t i = 0; i < CHM_COUNT(bad); i++) {
        struct chm_sim_options o = bad[i].o;
        chm_flash_defaults(&o);
        CHECK_EQ(chm_flash_check(&o, &err), -EINVAL);
        CHECK(strstr(err.text, bad[i].names) != NULL);
    }
}

int main(void)
{
    check_idle_read();
    check_hot_die();
    check_no_convoy();
    check_large_read();
    check_planes();
    check_unaligned();
    check_kinds();
    check_program();
    check_read_waits();
    check_read_suspends();
    check_read_before_program();
    check_erase();
    check_cache();
    check_cache_and_erase();
    check_small_writes();
    check_read_rate(64, 16, 1, LINK);
    check_read_rate(64, 4, 1, LINK);
    check_read_rate(16, 8, 1, LINK);
    check_read_rate(16, 8, 2, LINK);
    check_read_rate(16, 16, 2, LINK);
    check_random_rate();
    check_write_rate(16, LINK);
    check_write_rate(64, LINK / 8);
    check_mix(0);
    check_mix(5 * US);
    check_dram_port();
    check_dram_port_of_rates();
    check_software(0);
    check_software(4);
    check_barrier(false);
    check_barrier(true);
    check_large_member();
    check_refused();
    return 0;
}
