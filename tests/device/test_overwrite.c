/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_overwrite.c - who sees which bytes when a range is written or trimmed while it is held, read
 * or flushed (F06, F50). Holders keep the old bytes; later reads see the newest, page by page.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;
enum { LEN = 256 * KIB };

/* How a range is changed under a holder. */
enum change { WHOLE, FRONT, MIDDLE, ONE_PAGE, BEYOND, TRIM_WHOLE, TRIM_PART, CHANGES };

static void change(struct rig *r, enum change how, uint64_t seed)
{
    switch (how) {
    case WHOLE:
        rig_write(r, MIB, LEN, seed);
        break;
    case FRONT:
        rig_write(r, MIB - 4 * PAGE, 8 * PAGE, seed);
        break;
    case MIDDLE:
        rig_write(r, MIB + 5 * PAGE, 7 * PAGE, seed);
        break;
    case ONE_PAGE:
        rig_write(r, MIB + LEN - PAGE, PAGE, seed);
        break;
    case BEYOND:
        rig_write(r, MIB + LEN - PAGE, 9 * PAGE, seed);
        break;
    case TRIM_WHOLE:
        CHECK_IS(chm_trim(r->dev, MIB, LEN), 0);
        break;
    default:
        CHECK_IS(chm_trim(r->dev, MIB + 3 * PAGE, 2 * PAGE), 0);
        break;
    }
}

/* Where in [MIB, MIB + LEN) it changes what. */
static void changed_range(enum change how, uint64_t *from, uint64_t *to)
{
    static const uint64_t ranges[CHANGES][2] = {
        [WHOLE] = {0, LEN},
        [FRONT] = {0, 4 * PAGE},
        [MIDDLE] = {5 * PAGE, 12 * PAGE},
        [ONE_PAGE] = {LEN - PAGE, LEN},
        [BEYOND] = {LEN - PAGE, LEN},
        [TRIM_WHOLE] = {0, LEN},
        [TRIM_PART] = {3 * PAGE, 5 * PAGE},
    };

    *from = MIB + ranges[how][0];
    *to = MIB + ranges[how][1];
}

static void check_newest(struct rig *r, enum change how, const uint8_t *p, uint64_t old,
                         uint64_t seed)
{
    uint64_t from, to;

    changed_range(how, &from, &to);
    CHECK_HOLDS(p, MIB, from - MIB, old);
    CHECK_HOLDS(p + (from - MIB), from, to - from, how >= TRIM_WHOLE ? 0 : seed);
    CHECK_HOLDS(p + (to - MIB), to, MIB + LEN - to, old);
    (void)r;
}

/* The holder has all its bytes, or its read is in flight, or has not begun when the change comes;
 * and the change is flushed, or is not, while it looks. */
static void check_holder(enum change how, bool ready, bool flushed)
{
    struct rig r;
    uint8_t *buf = rig_alloc(LEN);
    uint64_t old, later;

    rig_sim(&r);
    r.opt.read_unit = 16 * KIB;
    r.opt.read_depth = 4;
    rig_open(&r);
    rig_lay(&r, 0, 2 * MIB, 1);
    old = rig_issue(&r, MIB, LEN);
    if (ready) {
        CHECK_IS(chm_wait(r.dev, old, LONG), 0);
    }
    change(&r, how, 2);
    later = rig_issue(&r, MIB, LEN);
    if (flushed) {
        CHECK_IS(chm_flush(r.dev, LONG), 0);
    }
    rig_expect_staged(&r, old, MIB, LEN, 1);
    CHECK_IS(chm_wait(r.dev, later, LONG), 0);
    check_newest(&r, how, rig_view(&r, later, LEN), 1, 2);
    CHECK_IS(rig_read(&r, MIB, LEN, buf), 0);
    check_newest(&r, how, buf, 1, 2);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_IS(rig_read(&r, MIB, LEN, buf), 0);
    check_newest(&r, how, buf, 1, 2);
    rig_expect_staged(&r, old, MIB, LEN, 1);
    CHECK_IS(chm_release(r.dev, old), 0);
    CHECK_IS(chm_release(r.dev, later), 0);
    rig_check_idle(&r);
    rig_close(&r);
    munmap(buf, LEN);
}

/* A slow flush of one object, read and staged at every point of it: whole, old or new (F06). */
static void check_read_during_flush(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(LEN);
    struct chm_stats before;

    rig_sim(&r);
    r.opt.flush_unit = 16 * KIB;
    r.opt.flush_depth = 1;
    r.opt.flush_idle_ns = 1;
    r.opt.sim.write_rate = 100000000; /* 2.6 ms in 16 units */
    rig_open(&r);
    rig_lay(&r, MIB, LEN, 1);
    rig_stats(&r);
    before = r.stats;
    rig_write(&r, MIB, LEN, 2);
    while (rig_stats(&r)->buffer_used_bytes > 0) {
        uint64_t req;
        rig_run(&r, 50 * US);
        req = rig_issue(&r, MIB, LEN);
        rig_expect_staged(&r, req, MIB, LEN, 2);
        CHECK_IS(chm_release(r.dev, req), 0);
        CHECK_IS(rig_read(&r, MIB, LEN, buf), 0);
        CHECK_HOLDS(buf, MIB, LEN, 2);
    }
    CHECK_EQ(r.stats.write_ios - before.write_ios, 16);
    rig_expect(&r, MIB, LEN, 2);
    rig_close(&r);
    munmap(buf, LEN);
}

/* Many versions in quick succession, flushes between and under them. */
static void check_versions(void)
{
    struct rig r;
    uint64_t held[40];

    rig_sim(&r);
    r.opt.flush_unit = 16 * KIB;
    r.opt.flush_idle_ns = 1;
    rig_open(&r);
    for (uint64_t v = 1; v <= 40; v++) {
        rig_write(&r, MIB, 64 * KIB, v);
        held[v - 1] = rig_issue(&r, MIB, 64 * KIB);
        rig_run(&r, v * 3 * US);
    }
    for (uint64_t v = 1; v <= 40; v++) {
        rig_expect_staged(&r, held[v - 1], MIB, 64 * KIB, v);
        CHECK_IS(chm_release(r.dev, held[v - 1]), 0);
    }
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, MIB, 64 * KIB, 40);
    rig_check_idle(&r);
    CHECK_EQ(r.stats.committed_bytes, r.stats.flushed_bytes + r.stats.superseded_bytes);
    rig_close(&r);
}

/* ------------------------------------------------------------------ who waits for whom */

/* The flush of a page waits for a read of it that needs the old bytes. */
static void check_flush_waits_for_read(void)
{
    struct rig r;
    uint64_t req;

    rig_sim(&r);
    r.opt.flush_idle_ns = 1;
    rig_open_faulty(&r, "0 read late 20000000\n");
    rig_lay(&r, MIB, LEN, 1);
    rig_stats(&r);
    uint64_t ios = r.stats.write_ios;
    req = rig_issue(&r, MIB, LEN);
    rig_write(&r, MIB + LEN - PAGE, PAGE, 2);
    rig_write(&r, 4 * MIB, PAGE, 3); /* a stranger need not wait */
    CHECK_IS(chm_flush(r.dev, 10 * MS), -ETIMEDOUT);
    CHECK_EQ(rig_stats(&r)->write_ios - ios, 1);
    CHECK_EQ(r.stats.buffer_used_bytes, PAGE);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(rig_stats(&r)->write_ios - ios, 2);
    rig_expect_staged(&r, req, MIB, LEN, 1);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* Also for one that was released: its I/O still reads. */
static void check_flush_waits_for_released_read(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(PAGE);
    struct chm_read item = {.addr = MIB, .len = PAGE, .buf = buf};

    rig_sim(&r);
    rig_open_faulty(&r, "0 read late 20000000\n");
    CHECK_IS(chm_read_issue(r.dev, &item, 1), 1);
    CHECK_IS(chm_release(r.dev, item.req), 0);
    rig_write(&r, MIB, PAGE, 2);
    CHECK_IS(chm_flush(r.dev, 10 * MS), -ETIMEDOUT);
    CHECK_EQ(rig_stats(&r)->write_ios, 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(rig_stats(&r)->write_ios, 1);
    rig_close(&r);
    munmap(buf, PAGE);
}

/* Reads that began after the write copied the page and do not hold its flush up: a stream of
 * overlapping reads without a gap cannot starve it. */
static void check_reads_do_not_starve_flush(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(8 * LEN);
    struct chm_read items[8];
    unsigned at = 0;

    rig_sim(&r);
    r.opt.flush_age_ns = 10 * MS;
    rig_open(&r);
    rig_lay(&r, MIB, LEN, 1);
    rig_write(&r, MIB, PAGE, 2);
    for (unsigned i = 0; i < 8; i++) {
        items[i] = (struct chm_read){.addr = MIB, .len = LEN, .buf = buf + i * LEN};
        CHECK_IS(chm_read_issue(r.dev, &items[i], 1), 1);
        rig_run(&r, 20 * US);
    }
    for (int i = 0; i < 1000; i++, at = (at + 1) % 8) { /* always seven in flight */
        CHECK_IS(chm_wait(r.dev, items[at].req, LONG), 0);
        CHECK_HOLDS(items[at].buf, MIB, PAGE, 2);
        CHECK_IS(chm_release(r.dev, items[at].req), 0);
        CHECK_IS(chm_read_issue(r.dev, &items[at], 1), 1);
    }
    CHECK(chm_now(r.dev) > 50 * MS);
    CHECK_EQ(rig_stats(&r)->buffer_used_bytes, 0);
    for (unsigned i = 0; i < 8; i++) {
        CHECK_IS(chm_wait(r.dev, items[i].req, LONG), 0);
        CHECK_IS(chm_release(r.dev, items[i].req), 0);
    }
    rig_close(&r);
    munmap(buf, 8 * LEN);
}

/* The second flush of a page waits for the first, so that the newer bytes win. */
static void check_second_flush_waits(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.flush_idle_ns = 1;
    rig_open_faulty(&r, "0 write late 20000000\n");
    rig_write(&r, MIB, 4 * PAGE, 1);
    rig_run(&r, MS);
    rig_write(&r, MIB + 3 * PAGE, 4 * PAGE, 2);
    rig_write(&r, 4 * MIB, PAGE, 3);
    rig_run(&r, MS);
    CHECK_EQ(rig_stats(&r)->buffer_used_bytes, 8 * PAGE); /* the stranger is on the drive */
    uint8_t *buf = rig_alloc(7 * PAGE);
    CHECK_IS(rig_read(&r, MIB, 7 * PAGE, buf), 0);
    CHECK_HOLDS(buf, MIB, 3 * PAGE, 1);
    CHECK_HOLDS(buf + 3 * PAGE, MIB + 3 * PAGE, 4 * PAGE, 2);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(rig_stats(&r)->write_ios, 3);
    CHECK_EQ(r.stats.superseded_bytes, 0);
    CHECK_IS(rig_read(&r, MIB, 7 * PAGE, buf), 0);
    CHECK_HOLDS(buf, MIB, 3 * PAGE, 1);
    CHECK_HOLDS(buf + 3 * PAGE, MIB + 3 * PAGE, 4 * PAGE, 2);
    munmap(buf, 7 * PAGE);
    rig_close(&r);
}

/* Completions out of order do not change which bytes win. */
static void check_swapped_flushes(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.flush_unit = 16 * KIB;
    r.opt.flush_idle_ns = 1;
    rig_open_faulty(&r, "0- write swap\n");
    for (uint64_t v = 1; v <= 30; v++) {
        rig_write(&r, MIB + v % 3 * PAGE, 128 * KIB, v);
        rig_run(&r, 10 * US * v);
    }
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, MIB, 128 * KIB, 30);
    rig_expect(&r, MIB + 128 * KIB, 2 * PAGE, 29);
    rig_close(&r);
}

/* ------------------------------------------------------------------ trim */

static void check_trim(void)
{
    struct rig r;

    rig_sim(&r);
    rig_open(&r);
    rig_expect(&r, 0, r.info.capacity_bytes, 0); /* never written */
    rig_lay(&r, MIB, LEN, 1);
    CHECK_IS(chm_trim(r.dev, MIB + PAGE, PAGE), 0);
    rig_expect(&r, MIB + PAGE, PAGE, 0);
    rig_write(&r, MIB + PAGE, PAGE, 2); /* written again before the trim is on the drive */
    rig_expect(&r, MIB + PAGE, PAGE, 2);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, MIB + PAGE, PAGE, 2);
    rig_expect(&r, MIB, PAGE, 1);
    rig_write(&r, MIB, LEN, 3); /* trimmed before the write is on the drive: it never goes there */
    CHECK_IS(chm_trim(r.dev, MIB, LEN), 0);
    CHECK_EQ(rig_stats(&r)->superseded_bytes, LEN);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, MIB, LEN, 0);
    CHECK_EQ(rig_stats(&r)->trims, 2);
    CHECK_IS(chm_trim(r.dev, 0, r.info.capacity_bytes), 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, 0, r.info.capacity_bytes, 0);
    CHECK_IS(chm_trim(r.dev, 1, PAGE), -EINVAL);
    CHECK_IS(chm_trim(r.dev, 0, 0), -EINVAL);
    CHECK_IS(chm_trim(r.dev, 0, PAGE + 1), -EINVAL);
    CHECK_IS(chm_trim(r.dev, r.info.capacity_bytes, PAGE), -ERANGE);
    rig_check_idle(&r);
    rig_close(&r);
}

static void check_trim_table_full(void)
{
    struct rig r;
    int rc = 0;

    rig_sim(&r);
    r.opt.writes_max = 16;
    r.opt.flush_idle_ns = CHM_SECOND;
    rig_open(&r);
    for (uint64_t i = 0; rc == 0 && i < 1000; i++) {
        rc = chm_trim(r.dev, i * 2 * PAGE, PAGE);
    }
    CHECK_IS(rc, -EAGAIN);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_IS(chm_trim(r.dev, 0, PAGE), 0);
    rig_close(&r);
}

int main(void)
{
    for (int how = 0; how < CHANGES; how++) {
        for (int i = 0; i < 4; i++) {
            check_holder((enum change)how, i & 1, i & 2);
        }
    }
    check_read_during_flush();
    check_versions();
    check_flush_waits_for_read();
    check_flush_waits_for_released_read();
    check_second_flush_waits();
    check_swapped_flushes();
    check_trim();
    check_trim_table_full();
    check_reads_do_not_starve_flush();
    return 0;
}
