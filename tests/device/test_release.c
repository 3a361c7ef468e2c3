/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_release.c - stop waiting is not buffer free (F10): release before wait, timeout and then
 * completion, close with work in flight. Late I/O is made by fault scripts, in virtual time.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

static bool has_space(struct rig *r, uint64_t req)
{
    struct chm_view view;

    return chm_view(r->dev, req, &view) == 0;
}

/* A slot whose read is late is given to the next one only when that read has ended, and the late
 * bytes never land in the next object. */
static void check_slot_waits_for_io(void)
{
    struct rig r;
    uint64_t a, b, window;

    rig_sim(&r);
    rig_open_faulty(&r, "0 read late 50000000\n");
    window = r.info.window_bytes;
    rig_lay(&r, 0, window, 1);
    rig_lay(&r, 4 * MIB, window, 2);
    a = rig_issue(&r, 0, window); /* its first I/O takes 50 ms */
    CHECK_IS(chm_wait(r.dev, a, MS), -ETIMEDOUT);
    CHECK_IS(chm_release(r.dev, a), 0);
    CHECK_IS(chm_wait(r.dev, a, 0), -ESTALE);
    b = rig_issue(&r, 4 * MIB, window);
    rig_run(&r, 40 * MS);
    CHECK(!has_space(&r, b));
    CHECK_EQ(rig_stats(&r)->window_used_bytes, window);
    rig_expect_staged(&r, b, 4 * MIB, window, 2);
    CHECK(chm_now(r.dev) >= 50 * MS);
    CHECK_EQ(rig_stats(&r)->cancelled, 1);
    rig_run(&r, CHM_SECOND);
    CHECK_HOLDS(rig_view(&r, b, window), 4 * MIB, window, 2);
    CHECK_IS(chm_release(r.dev, b), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* A read that never ends keeps its space and nothing else: the rest of the window goes on. */
static void check_never(const char *unused)
{
    struct rig r;
    uint64_t a, held;

    (void)unused;
    rig_sim(&r);
    rig_open_faulty(&r, "1 read never\n");
    rig_lay(&r, 0, 2 * MIB, 3);
    held = rig_issue(&r, 0, 64 * KIB);
    a = rig_issue(&r, MIB, 64 * KIB);
    CHECK_IS(chm_wait(r.dev, held, LONG), 0);
    CHECK_IS(chm_wait(r.dev, a, 5ull * CHM_SECOND), -ETIMEDOUT);
    CHECK_IS(chm_release(r.dev, a), 0);
    CHECK_IS(chm_release(r.dev, held), 0);
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t req = rig_issue(&r, i % 16 * 64 * KIB, 64 * KIB);
        rig_expect_staged(&r, req, i % 16 * 64 * KIB, 64 * KIB, 3);
        CHECK_IS(chm_release(r.dev, req), 0);
    }
    CHECK_EQ(rig_stats(&r)->window_used_bytes, 64 * KIB);
    CHECK_IS(chm_quiesce(r.dev, MS), -ETIMEDOUT);
    CHECK_IS(chm_close(r.dev, CHM_SECOND), -ETIMEDOUT);
}

/* Poison shows that a slot's memory is given back with the last holder and not before. */
static void check_poison(void)
{
    struct rig r;
    uint64_t a, b;
    uint8_t *p;

    rig_sim(&r);
    rig_open(&r);
    rig_lay(&r, 0, 64 * KIB, 5);
    a = rig_issue(&r, 0, 64 * KIB);
    b = rig_issue(&r, 0, 64 * KIB);
    CHECK_IS(chm_wait(r.dev, a, LONG), 0);
    p = rig_view(&r, a, 64 * KIB);
    CHECK_IS(chm_release(r.dev, a), 0);
    CHECK_HOLDS(p, 0, 64 * KIB, 5);
    CHECK_IS(chm_release(r.dev, b), 0);
    CHECK(is_byte(p, 64 * KIB, POISON));
    rig_close(&r);
}

/* Timed out, then complete: the request is the same one and has its bytes. */
static void check_timeout_then_complete(void)
{
    struct rig r;
    struct chm_view view;
    uint64_t req;

    rig_sim(&r);
    rig_open_faulty(&r, "1 read late 20000000\n");
    rig_lay(&r, 0, 256 * KIB, 6);
    req = rig_issue(&r, 0, PAGE);
    CHECK_IS(chm_wait(r.dev, req, LONG), 0);
    CHECK_IS(chm_release(r.dev, req), 0);
    req = rig_issue(&r, 0, 256 * KIB);
    for (int i = 0; i < 10; i++) {
        CHECK_IS(chm_wait(r.dev, req, MS), -ETIMEDOUT);
        CHECK_IS(chm_view(r.dev, req, &view), 0);
    }
    rig_expect_staged(&r, req, 0, 256 * KIB, 6);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* Two I/Os, one stalls: the timeout holds for the object (F22). */
static void check_one_stalls(const char *unused)
{
    struct rig r;
    uint64_t req, begin;

    (void)unused;
    rig_sim(&r);
    r.opt.read_unit = 64 * KIB;
    rig_open_faulty(&r, "1 read never\n");
    req = rig_issue(&r, 0, 128 * KIB);
    begin = chm_now(r.dev);
    CHECK_IS(chm_wait(r.dev, req, 50 * MS), -ETIMEDOUT);
    CHECK_EQ(chm_now(r.dev), begin + 50 * MS);
    CHECK_IS(chm_progress(r.dev, req), 64 * KIB);
    CHECK_IS(chm_release(r.dev, req), 0);
    CHECK_IS(chm_close(r.dev, CHM_SECOND), -ETIMEDOUT);
}

/* The other of two holders goes on when one cancels. */
static void check_cancel_one_of_two(void)
{
    struct rig r;
    uint64_t a, b;

    rig_sim(&r);
    rig_open(&r);
    rig_lay(&r, 0, MIB, 8);
    a = rig_issue(&r, 0, MIB);
    b = rig_issue(&r, 0, MIB);
    CHECK_IS(chm_release(r.dev, a), 0);
    rig_expect_staged(&r, b, 0, MIB, 8);
    CHECK_IS(chm_release(r.dev, b), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* A new request for the range of a cancelled one is a new read: it never inherits a slot whose read
 * was given up. */
static void check_reissue_after_cancel(void)
{
    struct rig r;
    uint64_t a, b;

    rig_sim(&r);
    r.opt.read_unit = 64 * KIB;
    r.opt.read_depth = 2;
    rig_open(&r);
    rig_lay(&r, 0, MIB, 8);
    a = rig_issue(&r, 0, MIB);
    CHECK_IS(chm_step(r.dev, 0), 0);
    CHECK_IS(chm_release(r.dev, a), 0);
    b = rig_issue(&r, 0, MIB);
    CHECK_EQ(rig_stats(&r)->shared, 0);
    rig_expect_staged(&r, b, 0, MIB, 8);
    CHECK_IS(chm_release(r.dev, b), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* Memory of the caller: with a late read it is the caller's again only when quiesce says so. */
static void check_demand_release(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(4 * PAGE);
    struct chm_read item = {.addr = 0, .len = 4 * PAGE, .buf = buf};

    rig_sim(&r);
    rig_open_faulty(&r, "0 read late 20000000\n");
    rig_lay(&r, 0, 4 * PAGE, 9);
    memset(buf, 0x11, 4 * PAGE);
    CHECK_IS(chm_read(r.dev, &item, 1, MS), 0);
    CHECK_IS(item.status, -ETIMEDOUT);
    CHECK_IS(chm_quiesce(r.dev, MS), -ETIMEDOUT);
    CHECK_IS(chm_quiesce(r.dev, LONG), 0);
    CHECK(chm_now(r.dev) >= 20 * MS);
    memset(buf, 0x22, 4 * PAGE);
    rig_run(&r, CHM_SECOND);
    CHECK(is_byte(buf, 4 * PAGE, 0x22));
    munmap(buf, 4 * PAGE);
    rig_check_idle(&r);
    rig_close(&r);
}

/* 10,000 rounds of issue and cancel at random moments (F18): nothing stays behind. */
static void check_many_cancels(void)
{
    struct rig r;
    uint64_t seed = 18, held[8] = {0};

    rig_sim(&r);
    r.opt.read_unit = 16 * KIB;
    r.opt.fault.late_ppm = 100000;
    r.opt.fault.late_ns = 2 * MS;
    r.opt.fault.swap_ppm = 100000;
    rig_open(&r);
    for (int i = 0; i < 10000; i++) {
        uint64_t *h = &held[chm_random(&seed) % 8];
        if (*h) {
            CHECK_IS(chm_release(r.dev, *h), 0);
            *h = 0;
        } else {
            uint64_t pages = 1 + chm_random(&seed) % 64;
            *h = rig_issue(&r, chm_random(&seed) % 128 * PAGE, pages * PAGE);
        }
        CHECK(chm_step(r.dev, chm_now(r.dev) + chm_random(&seed) % (100 * US)) >= 0);
    }
    for (int i = 0; i < 8; i++) {
        CHECK(!held[i] || chm_release(r.dev, held[i]) == 0);
    }
    CHECK_IS(chm_quiesce(r.dev, LONG), 0);
    CHECK(rig_stats(&r)->cancelled > 1000);
    rig_check_idle(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ close */

/* Requests, reads, open and committed writes in flight: close ends them all. */
static void check_close_in_flight(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(MIB);
    struct chm_read item = {.addr = 0, .len = MIB, .buf = buf};

    rig_sim(&r);
    rig_open_faulty(&r, "0-3 any late 30000000\n");
    rig_issue(&r, 0, MIB);
    rig_issue(&r, 2 * MIB, r.info.window_bytes);
    CHECK_IS(chm_read_issue(r.dev, &item, 1), 1);
    rig_begin(&r, 4 * MIB, 64 * KIB, 1);
    rig_write(&r, 5 * MIB, 64 * KIB, 1);
    CHECK_IS(chm_close(r.dev, LONG), 0);
    memset(buf, 1, MIB);
    munmap(buf, MIB);
}

static void close_with_never(const char *unused)
{
    struct rig r;

    (void)unused;
    rig_sim(&r);
    rig_open_faulty(&r, "0- read never\n");
    rig_issue(&r, 0, MIB);
    CHECK_IS(chm_close(r.dev, CHM_SECOND), -ETIMEDOUT);
}

static void close_with_flush_never(const char *unused)
{
    struct rig r;

    (void)unused;
    rig_sim(&r);
    rig_open_faulty(&r, "0- write never\n");
    rig_write(&r, 0, MIB / 2, 1);
    CHECK_IS(chm_flush(r.dev, CHM_SECOND), -ETIMEDOUT);
    CHECK_IS(chm_close(r.dev, CHM_SECOND), -ETIMEDOUT);
}

/* The same on real files, with the device thread: memory the drive might still write to is kept. */
static void close_real(const char *media)
{
    struct rig r;
    uint64_t req;

    rig_files(&r, media, 1, 4 * MIB);
    r.opt.thread = 1;
    r.opt.fault.script = "0- read never\n";
    if (!rig_try_open(&r)) {
        rig_unlink(&r);
        return;
    }
    req = rig_issue(&r, 0, MIB);
    rig_begun(&r);
    CHECK_IS(chm_wait(r.dev, req, 0), -ETIMEDOUT);
    CHECK_IS(chm_release(r.dev, req), 0);
    CHECK_IS(chm_close(r.dev, MS), -ETIMEDOUT);
    rig_unlink(&r);
}

static void check_close_nothing(void)
{
    struct rig r;

    rig_sim(&r);
    rig_open(&r);
    CHECK_IS(chm_close(r.dev, 0), 0);
    CHECK_IS(chm_close(NULL, 0), 0);
}

/* Without a limit and in virtual time: what will never end is not waited for for ever. */
static void check_never_unlimited(const char *arg)
{
    struct rig r;
    struct chm_write w;
    struct chm_read item = {.addr = MIB, .len = PAGE, .buf = rig_alloc(PAGE)};
    int32_t status = 1;

    (void)arg;
    rig_sim(&r);
    r.opt.durability = CHM_DURABILITY_STRICT;
    rig_open_faulty(&r, "0 write never\n0 read never\n");
    CHECK_IS(chm_read(r.dev, &item, 1, UINT64_MAX), 0);
    CHECK_IS(item.status, -ETIMEDOUT);
    w = rig_begin(&r, 0, PAGE, 1);
    CHECK_IS(chm_write_commit(r.dev, &w.id, 1, &status), 0);
    CHECK_IS(status, -ETIMEDOUT);
    CHECK_IS(chm_quiesce(r.dev, UINT64_MAX), -ETIMEDOUT);
    rig_expect(&r, 0, PAGE, 1); /* what can end still does */
    CHECK_IS(chm_close(r.dev, MS), -ETIMEDOUT);
}

int main(void)
{
    static const char *const media[] = {"sync", "threads", "uring"};

    check_slot_waits_for_io();
    check_poison();
    check_timeout_then_complete();
    check_cancel_one_of_two();
    check_reissue_after_cancel();
    check_demand_release();
    check_many_cancels();
    check_close_nothing();
    check_close_in_flight();
    rig_in_child(check_never, NULL);
    rig_in_child(check_never_unlimited, NULL);
    rig_in_child(check_one_stalls, NULL);
    rig_in_child(close_with_never, NULL);
    rig_in_child(close_with_flush_never, NULL);
    for (size_t i = 0; i < CHM_COUNT(media); i++) {
        rig_in_child(close_real, media[i]);
    }
    return 0;
}
