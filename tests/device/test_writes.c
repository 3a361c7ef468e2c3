/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_writes.c - the write buffer: admission, commit and abort, what leaves it, when, and in how
 * many I/Os. In virtual time.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

/* ------------------------------------------------------------------ life of one write */

static void check_life(void)
{
    struct rig r;
    struct chm_write w;
    int32_t status = 1;

    rig_sim(&r);
    rig_open(&r);
    w = rig_begin(&r, MIB, 4 * PAGE, 1);
    CHECK_EQ((uintptr_t)w.data % PAGE, 0);
    rig_expect(&r, MIB, 4 * PAGE, 0); /* not before commit */
    CHECK_EQ(rig_stats(&r)->open_writes, 1);
    CHECK_EQ(r.stats.buffer_used_bytes, 4 * PAGE);
    rig_commit(&r, &w);
    rig_expect(&r, MIB, 4 * PAGE, 1); /* read your writes */
    CHECK_EQ(rig_stats(&r)->committed, 1);
    CHECK_EQ(r.stats.committed_bytes, 4 * PAGE);
    CHECK_IS(chm_write_commit(r.dev, &w.id, 1, &status), 0);
    CHECK_IS(status, -ESTALE);
    CHECK_IS(chm_write_abort(r.dev, &w.id, 1, &status), 0);
    CHECK_IS(status, -ESTALE);
    w = rig_begin(&r, MIB, 4 * PAGE, 2);
    CHECK_IS(chm_write_abort(r.dev, &w.id, 1, NULL), 1);
    CHECK_IS(chm_write_commit(r.dev, &w.id, 1, &status), 0);
    CHECK_IS(status, -ESTALE);
    rig_expect(&r, MIB, 4 * PAGE, 1);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, MIB, 4 * PAGE, 1);
    CHECK_EQ(rig_stats(&r)->aborted, 1);
    CHECK_EQ(r.stats.flushed_bytes, 4 * PAGE);
    rig_check_idle(&r);
    rig_close(&r);
}

/* Handles of writes and of requests are no use for each other's calls. */
static void check_handles(void)
{
    struct rig r;
    struct chm_write w;
    struct chm_view view;
    uint64_t req;
    int32_t status;

    rig_sim(&r);
    rig_open(&r);
    w = rig_begin(&r, 0, PAGE, 1);
    req = rig_issue(&r, MIB, PAGE);
    CHECK_IS(chm_wait(r.dev, w.id, 0), -ESTALE);
    CHECK_IS(chm_view(r.dev, w.id, &view), -ESTALE);
    CHECK_IS(chm_progress(r.dev, w.id), -ESTALE);
    CHECK_IS(chm_release(r.dev, w.id), -ESTALE);
    CHECK_IS(chm_write_commit(r.dev, &req, 1, &status), 0);
    CHECK_IS(status, -ESTALE);
    CHECK_IS(chm_write_abort(r.dev, &req, 1, &status), 0);
    CHECK_IS(status, -ESTALE);
    rig_commit(&r, &w);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* ------------------------------------------------------------------ admission */

static void check_refused(void)
{
    struct rig r;
    void *const UNSET = &r;
    rig_sim(&r);
    rig_open(&r);
    uint64_t half = r.info.write_buffer_bytes / 2;
    struct chm_write w[] = {
        {.addr = 1, .len = PAGE},
        {.addr = 0, .len = 0},
        {.addr = 0, .len = PAGE + 1},
        {.addr = r.info.capacity_bytes, .len = PAGE},
        {.addr = UINT64_MAX - PAGE + 1, .len = 2 * PAGE},
        {.addr = 0, .len = half + PAGE},
        {.addr = 0, .len = half},
    };
    static const int expected[] = {-EINVAL, -EINVAL, -EINVAL, -ERANGE, -ERANGE, -E2BIG, 0};
    for (size_t i = 0; i < CHM_COUNT(w); i++) {
        w[i].data = UNSET;
        w[i].id = 77;
        w[i].status = 1;
    }
    CHECK_IS(chm_write_begin(r.dev, w, CHM_COUNT(w)), 1);
    for (size_t i = 0; i < CHM_COUNT(w); i++) {
        CHECK_IS(w[i].status, expected[i]);
        CHECK((w[i].data == UNSET) == (expected[i] != 0));
        CHECK((w[i].id == 77) == (expected[i] != 0));
    }
    CHECK_EQ(rig_stats(&r)->write_refused, 3); /* malformed ones do not count */
    CHECK_IS(chm_write_begin(r.dev, NULL, 0), 0);
    CHECK_IS(chm_write_begin(r.dev, NULL, 1), -EINVAL);
    CHECK_IS(chm_write_commit(r.dev, NULL, 1, NULL), -EINVAL);
    CHECK_IS(chm_write(r.dev, 0, NULL, PAGE), -EINVAL);
    CHECK_IS(chm_write(r.dev, 1, w, PAGE), -EINVAL);
    CHECK_IS(chm_write(r.dev, 0, w, half + PAGE), -E2BIG);
    CHECK_IS(chm_write_abort(r.dev, &w[6].id, 1, NULL), 1);
    rig_close(&r);
}

/* Full: refused at once, nothing changed; after the first -EAGAIN of a batch all are -EAGAIN, even
 * those that would fit; the clock stands still all the while. */
static void check_full(void)
{
    struct rig r;
    struct chm_write w[5];
    uint64_t page = 0, quarter, now;
    int32_t status[5];

    rig_sim(&r);
    rig_open(&r);
    quarter = r.info.write_buffer_bytes / 4;
    for (uint64_t i = 0; i < 5; i++) {
        w[i] = (struct chm_write){.addr = i * MIB, .len = quarter, .id = 77, .status = 1};
    }
    w[3].len = 2 * quarter;
    w[4].len = PAGE;
    now = chm_now(r.dev);
    CHECK_IS(chm_write_begin(r.dev, w, 5), 3);
    CHECK_EQ(chm_now(r.dev), now);
    CHECK_IS(w[2].status, 0);
    CHECK_IS(w[3].status, -EAGAIN);
    CHECK_IS(w[4].status, -EAGAIN);
    CHECK_EQ(w[3].id, 77);
    CHECK_EQ(w[4].id, 77);
    CHECK_EQ(rig_stats(&r)->open_writes, 3);
    CHECK_EQ(r.stats.buffer_used_bytes, 3 * quarter);
    w[3].len = quarter;
    CHECK_IS(chm_write_begin(r.dev, w + 3, 1), 1);
    CHECK_IS(chm_write(r.dev, 0, &page, PAGE), -EAGAIN);
    CHECK_IS(chm_flush(r.dev, LONG), 0); /* open ones cannot be flushed and are not waited for */
    CHECK_IS(chm_write(r.dev, 0, &page, PAGE), -EAGAIN);
    for (uint64_t i = 0; i < 4; i++) {
        fill(w[i].data, w[i].addr, w[i].len, i + 1);
        CHECK_IS(chm_write_commit(r.dev, &w[i].id, 1, status), 1);
    }
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    for (uint64_t i = 0; i < 4; i++) {
        rig_expect(&r, w[i].addr, w[i].len, i + 1);
    }
    rig_check_idle(&r);
    rig_close(&r);
}

/* The flusher stands still and ten times the buffer is offered: each call is admitted or refused,
 * and counted (F35). */
static void check_counters_close(void)
{
    struct rig r;
    uint64_t calls = 0, taken = 0;
    uint8_t *page = rig_alloc(64 * KIB);

    rig_sim(&r);
    rig_open_faulty(&r, "0- write late 60000000000\n");
    while (calls * 64 * KIB < 10 * r.info.write_buffer_bytes) {
        int rc = chm_write(r.dev, calls % 200 * 64 * KIB, page, 64 * KIB);
        CHECK(rc == 0 || rc == -EAGAIN);
        calls++;
        taken += rc == 0;
    }
    CHECK_EQ(taken, r.info.write_buffer_bytes / (64 * KIB));
    CHECK_EQ(rig_stats(&r)->begun, taken);
    CHECK_EQ(r.stats.write_refused, calls - taken);
    CHECK_EQ(r.stats.committed, taken);
    CHECK_EQ(r.stats.buffer_peak_bytes, r.info.write_buffer_bytes);
    rig_check_counters(&r);
    CHECK_IS(chm_flush(r.dev, UINT64_MAX), 0);
    rig_check_idle(&r);
    CHECK_EQ(r.stats.committed_bytes, r.stats.flushed_bytes);
    CHECK_IS(chm_close(r.dev, 200ull * CHM_SECOND), 0);
    munmap(page, 64 * KIB);
}

/* The table of extents is bounded too. */
static void check_table_full(void)
{
    struct rig r;
    uint8_t page[PAGE] = {0};
    int rc = 0, n = 0;

    rig_sim(&r);
    r.opt.writes_max = 8;
    r.opt.flush_idle_ns = CHM_SECOND;
    rig_open(&r);
    for (; rc == 0 && n < 100; n++) {
        rc = chm_write(r.dev, (uint64_t)n * 2 * PAGE, page, PAGE);
    }
    CHECK_IS(rc, -EAGAIN);
    CHECK(n > 8);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_IS(chm_write(r.dev, 0, page, PAGE), 0);
    rig_close(&r);
}

/* ------------------------------------------------------------------ what leaves, and how */

/* Written ten times before anything leaves: the drive sees it once. */
static void check_superseded(void)
{
    struct rig r;

    rig_sim(&r);
    rig_open(&r);
    for (uint64_t v = 1; v <= 10; v++) {
        rig_write(&r, MIB, 64 * KIB, v);
    }
    CHECK_EQ(rig_stats(&r)->superseded_bytes, 9 * 64 * KIB);
    CHECK_EQ(r.stats.buffer_used_bytes, 64 * KIB);
    rig_write(&r, MIB + 4 * PAGE, 4 * PAGE, 11); /* the middle of it */
    CHECK_EQ(rig_stats(&r)->superseded_bytes, 9 * 64 * KIB + 4 * PAGE);
    CHECK_EQ(r.stats.buffer_used_bytes, 64 * KIB);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(rig_stats(&r)->write_bytes, 64 * KIB);
    CHECK_EQ(r.stats.flushed_bytes, 64 * KIB);
    rig_expect(&r, MIB, 4 * PAGE, 10);
    rig_expect(&r, MIB + 4 * PAGE, 4 * PAGE, 11);
    rig_expect(&r, MIB + 8 * PAGE, 64 * KIB - 8 * PAGE, 10);
    rig_check_idle(&r);
    rig_close(&r);
}

/* Small neighbours in order leave as one large I/O; strangers do not. */
static void check_neighbours(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.dram_bytes = 16 * MIB;
    r.opt.write_buffer_bytes = 4 * MIB;
    r.opt.flush_high_percent = 90;
    rig_open(&r);
    for (uint64_t i = 0; i < 32; i++) {
        rig_write(&r, i * 64 * KIB, 64 * KIB, i + 1);
    }
    CHECK_EQ(rig_stats(&r)->write_ios, 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(rig_stats(&r)->write_ios, 2); /* of 1 MiB, the unit */
    CHECK_EQ(r.stats.flush_units, 2);
    for (uint64_t i = 0; i < 32; i++) {
        rig_expect(&r, i * 64 * KIB, 64 * KIB, i + 1);
    }
    for (uint64_t i = 0; i < 8; i++) {
        rig_write(&r, i * 2 * PAGE, PAGE, 50 + i);
    }
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(rig_stats(&r)->write_ios, 10);
    rig_close(&r);
}

/* A large write leaves in units, and never in more than the medium takes at once. */
static void check_units(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.dram_bytes = 16 * MIB;
    r.opt.write_buffer_bytes = 8 * MIB;
    r.opt.force_transfer_max = 256 * KIB;
    rig_open(&r);
    CHECK_EQ(r.info.transfer_max, 256 * KIB);
    rig_write(&r, PAGE, 3 * MIB, 1);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(rig_stats(&r)->write_ios, 12);
    rig_expect(&r, PAGE, 3 * MIB, 1);
    CHECK_EQ(rig_stats(&r)->read_ios, 12);
    rig_close(&r);
}

/* Bytes of flush I/O in flight right now, from what has been taken and not written yet. */
static uint64_t in_flight(struct rig *r)
{
    rig_stats(r);
    return r->stats.buffer_used_bytes - r->stats.buffer_dirty_bytes;
}

/* Four units while no read waits; one while some do and the buffer presses; none while some do and
 * it does not. */
static void check_flush_depth(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(8 * MIB);
    struct chm_read item = {.addr = 0, .len = 8 * MIB, .buf = buf};

    rig_sim(&r);
    r.opt.sim.capacity_bytes = 64 * MIB;
    r.opt.dram_bytes = 32 * MIB;
    r.opt.write_buffer_bytes = 16 * MIB;
    r.opt.flush_unit = 64 * KIB;
    r.opt.flush_idle_ns = 1;
    r.opt.flush_age_ns = 1000ull * CHM_SECOND;
    rig_open_faulty(&r, "0- write late 100000000\n");
    for (uint64_t i = 0; i < 16; i++) { /* 6 %: far below the marks; strangers, so no merging */
        rig_write(&r, 16 * MIB + i * 128 * KIB, 64 * KIB, 1);
    }
    rig_run(&r, MS);
    CHECK_EQ(in_flight(&r), 4 * 64 * KIB);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_IS(chm_read_issue(r.dev, &item, 1), 1); /* 4 ms of reading */
    for (uint64_t i = 0; i < 16; i++) {
        rig_write(&r, 16 * MIB + i * 128 * KIB, 64 * KIB, 2);
    }
    rig_run(&r, MS);
    CHECK_EQ(in_flight(&r), 0);
    for (uint64_t i = 0; i < 9 * 16; i++) { /* above the high mark, 50 % */
        rig_write(&r, 24 * MIB + i * 128 * KIB, 64 * KIB, 3);
    }
    rig_run(&r, MS);
    CHECK_EQ(in_flight(&r), 64 * KIB);
    CHECK_IS(chm_wait(r.dev, item.req, LONG), 0);
    CHECK_IS(chm_release(r.dev, item.req), 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_close(&r);
    munmap(buf, 8 * MIB);
}

/* Pressing begins at the high mark and ends at the low one. */
static void check_marks(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(MIB);
    struct chm_read items[2];
    uint64_t lowest = UINT64_MAX;

    rig_sim(&r);
    r.opt.sim.capacity_bytes = 64 * MIB;
    r.opt.flush_unit = PAGE;
    r.opt.flush_age_ns = 1000ull * CHM_SECOND;
    rig_open(&r);
    for (uint64_t i = 0; i < 2; i++) { /* always a read in flight */
        items[i] = (struct chm_read){.addr = 0, .len = 512 * KIB, .buf = buf + i * 512 * KIB};
        CHECK_IS(chm_read_issue(r.dev, &items[i], 1), 1);
    }
    for (uint64_t i = 0; i < 160; i++) { /* 62 % in single pages */
        rig_write(&r, 16 * MIB + i * 2 * PAGE, PAGE, 1);
    }
    for (int i = 0; i < 400; i++) {
        struct chm_read *x = &items[i % 2];
        CHECK_IS(chm_wait(r.dev, x->req, LONG), 0);
        CHECK_IS(chm_release(r.dev, x->req), 0);
        CHECK_IS(chm_read_issue(r.dev, x, 1), 1);
        lowest = chm_min(lowest, rig_stats(&r)->buffer_used_bytes);
    }
    CHECK_EQ(lowest * 100 / r.info.write_buffer_bytes, 25);
    for (int i = 0; i < 2; i++) {
        CHECK_IS(chm_wait(r.dev, items[i].req, LONG), 0);
        CHECK_IS(chm_release(r.dev, items[i].req), 0);
    }
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_close(&r);
    munmap(buf, MIB);
}

/* Nobody reads: it goes after flush_idle_ns. Somebody always reads: it goes after flush_age_ns. */
static void check_idle_and_age(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(MIB);
    struct chm_read items[2];
    uint64_t begin;

    rig_sim(&r);
    r.opt.flush_idle_ns = 5 * MS;
    r.opt.flush_age_ns = 20 * MS;
    rig_open(&r);
    rig_expect(&r, 0, PAGE, 0);
    rig_write(&r, MIB, PAGE, 1);
    rig_run(&r, 4 * MS);
    CHECK_EQ(rig_stats(&r)->write_ios, 0);
    rig_run(&r, 2 * MS);
    CHECK_EQ(rig_stats(&r)->write_ios, 1);
    for (uint64_t i = 0; i < 2; i++) {
        items[i] = (struct chm_read){.addr = 0, .len = 512 * KIB, .buf = buf + i * 512 * KIB};
        CHECK_IS(chm_read_issue(r.dev, &items[i], 1), 1);
    }
    begin = chm_now(r.dev);
    rig_write(&r, MIB, PAGE, 2);
    for (int i = 0; rig_stats(&r)->write_ios < 2; i++) {
        struct chm_read *x = &items[i % 2];
        CHECK_IS(chm_wait(r.dev, x->req, LONG), 0);
        CHECK_IS(chm_release(r.dev, x->req), 0);
        CHECK_IS(chm_read_issue(r.dev, x, 1), 1);
        CHECK(chm_now(r.dev) < begin + 25 * MS);
    }
    CHECK(chm_now(r.dev) >= begin + 20 * MS);
    for (int i = 0; i < 2; i++) {
        CHECK_IS(chm_wait(r.dev, items[i].req, LONG), 0);
        CHECK_IS(chm_release(r.dev, items[i].req), 0);
    }
    rig_close(&r);
    munmap(buf, MIB);
}

/* A staged read copies buffered pages at issue: holding it pins nothing in the write buffer. */
static void check_lease_pins_nothing(void)
{
    struct rig r;
    uint64_t req;

    rig_sim(&r);
    rig_open(&r);
    rig_write(&r, MIB, 256 * KIB, 1);
    req = rig_issue(&r, MIB, 256 * KIB);
    CHECK_IS(chm_wait(r.dev, req, 0), 0); /* all of it was in the buffer */
    CHECK_EQ(rig_stats(&r)->buffered_bytes, 256 * KIB);
    CHECK_EQ(r.stats.read_ios, 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(rig_stats(&r)->buffer_used_bytes, 0);
    rig_expect_staged(&r, req, MIB, 256 * KIB, 1);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

int main(void)
{
    check_life();
    check_handles();
    check_refused();
    check_full();
    check_counters_close();
    check_table_full();
    check_superseded();
    check_neighbours();
    check_units();
    check_flush_depth();
    check_marks();
    check_idle_and_age();
    check_lease_pins_nothing();
    return 0;
}
