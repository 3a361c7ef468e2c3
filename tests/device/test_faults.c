/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_faults.c - every kind of misbehaviour of a drive, one at a time: what a failed, short or
 * late I/O does to the item it belongs to, and to nobody else.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

/* ------------------------------------------------------------------ reads */

/* Each way in which a read may fail: the item fails, poison and old bytes never come out, the next
 * try is fine (F01, F05, F93). */
static void check_failing_read(const char *script, int error)
{
    struct rig r;
    struct chm_view view;
    uint8_t *buf = rig_alloc(64 * KIB);
    uint64_t req;

    rig_sim(&r);
    rig_open_faulty(&r, script);
    rig_lay(&r, MIB, 64 * KIB, 1);
    req = rig_issue(&r, MIB, 64 * KIB);
    CHECK_IS(chm_wait(r.dev, req, LONG), error);
    CHECK_IS(chm_view(r.dev, req, &view), error);
    CHECK_IS(chm_progress(r.dev, req), error);
    CHECK_EQ(rig_stats(&r)->failed, 1);
    CHECK_EQ(r.stats.window_used_bytes, 0);
    CHECK_IS(rig_read(&r, MIB, 64 * KIB, buf), error);
    CHECK_EQ(rig_stats(&r)->demand_failed, 1);
    CHECK_IS(chm_release(r.dev, req), 0);
    req = rig_issue(&r, MIB, 64 * KIB); /* the fault has passed: no trace of the failed slot */
    rig_expect_staged(&r, req, MIB, 64 * KIB, 1);
    rig_expect(&r, MIB, 64 * KIB, 1);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_check_idle(&r);
    rig_close(&r);
    munmap(buf, 64 * KIB);
}

/* A short read is carried on; what is handed out is whole. All lengths, also within a block. */
static void check_short_read(uint64_t bytes)
{
    struct rig r;
    char script[64];
    uint64_t req;

    snprintf(script, sizeof(script), "0 read short %" PRIu64 "\n2 read short %" PRIu64 "\n", bytes,
             bytes);
    rig_sim(&r);
    rig_open_faulty(&r, script);
    rig_lay(&r, MIB, 64 * KIB, 2);
    req = rig_issue(&r, MIB, 64 * KIB);
    rig_expect_staged(&r, req, MIB, 64 * KIB, 2);
    CHECK_EQ(rig_stats(&r)->short_ios, 1);
    CHECK_EQ(r.stats.read_bytes, 64 * KIB);
    rig_expect(&r, MIB, 64 * KIB, 2);
    uint8_t *odd = rig_alloc(64 * KIB);
    CHECK_IS(rig_read(&r, MIB + 5, 60 * KIB, odd + 3), 0); /* by way of bounce pages */
    CHECK_HOLDS(odd + 3, MIB + 5, 60 * KIB, 2);
    munmap(odd, 64 * KIB);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* Short again and again, down to a block at a time: it ends. */
static void check_ever_shorter(void)
{
    struct rig r;

    rig_sim(&r);
    rig_open_faulty(&r, "0- read short 4096\n");
    rig_lay(&r, MIB, 64 * KIB, 2);
    rig_expect(&r, MIB, 64 * KIB, 2);
    CHECK_EQ(rig_stats(&r)->short_ios, 15);
    rig_close(&r);
}

/* "Try again" of the medium is tried again, but not for ever. */
static void check_try_again(void)
{
    struct rig r;
    uint8_t page[PAGE];

    rig_sim(&r);
    rig_open_faulty(&r, "0 read err 11\n1 read err 4\n2 read err 16\n8- read err 11\n");
    rig_lay(&r, MIB, PAGE, 2);
    rig_expect(&r, MIB, PAGE, 2);
    CHECK_EQ(rig_stats(&r)->resubmits, 3);
    rig_expect(&r, MIB, PAGE, 2);
    for (int i = 0; i < 3; i++) {
        rig_expect(&r, MIB, PAGE, 2);
    }
    CHECK(rig_read(&r, MIB, PAGE, page) < 0);
    rig_close(&r);
}

/* Late and out of order: right bytes, and progress never ahead of them. */
static void check_out_of_order(void)
{
    struct rig r;
    uint64_t req;
    int64_t last = 0;

    rig_sim(&r);
    r.opt.read_unit = 16 * KIB;
    rig_open_faulty(&r, "0 read late 5000000\n3 read late 1000000\n5- read swap\n");
    rig_lay(&r, 0, MIB, 3);
    req = rig_issue(&r, 0, MIB);
    while (last < MIB) {
        CHECK(chm_step(r.dev, UINT64_MAX) >= 0);
        CHECK(chm_progress(r.dev, req) >= last);
        last = chm_progress(r.dev, req);
        CHECK_HOLDS(rig_view(&r, req, MIB), 0, (uint64_t)last, 3);
    }
    CHECK(chm_now(r.dev) > 5 * MS);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* Object 5 of 8 fails: exactly that one, staged and on demand, in the order of the input (F91,
 * F94). Each object is two I/Os, so that half of it is good. */
static void check_five_of_eight(void)
{
    enum { N = 8, LEN = 128 * KIB };
    struct rig r;
    struct chm_issue items[N];
    struct chm_read reads[N];
    uint64_t reqs[N];
    int32_t status[N];
    uint8_t *buf = rig_alloc(N * LEN);

    rig_sim(&r);
    r.opt.read_unit = 64 * KIB;
    rig_open_faulty(&r, "11 read err 5\n26 read err 5\n");
    for (uint64_t i = 0; i < N; i++) {
        rig_lay(&r, i * LEN, LEN, i + 1);
        items[i] = (struct chm_issue){.addr = i * LEN, .len = LEN};
        reads[i] = (struct chm_read){.addr = i * LEN, .len = LEN, .buf = buf + i * LEN};
    }
    CHECK_IS(chm_issue(r.dev, items, N, NULL), N);
    for (int i = 0; i < N; i++) {
        reqs[i] = items[i].req;
    }
    CHECK_IS(chm_wait_many(r.dev, reqs, N, LONG, status), N - 1);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_IS(status[i], i == 5 ? -EIO : 0);
        if (i != 5) {
            rig_expect_staged(&r, reqs[i], i * LEN, LEN, i + 1);
        }
    }
    CHECK_IS(chm_release_many(r.dev, reqs, N, NULL), N);
    CHECK_IS(chm_read(r.dev, reads, N, LONG), N - 1);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_IS(reads[i].status, i == 5 ? -EIO : 0);
        if (i != 5) {
            CHECK_HOLDS(reads[i].buf, i * LEN, LEN, i + 1);
        }
    }
    rig_check_idle(&r);
    rig_close(&r);
    munmap(buf, N * LEN);
}

/* Left-over completions of a failed batch are never credited to the next one (F01). */
static void check_leftovers(void)
{
    struct rig r;
    uint64_t a, b;

    rig_sim(&r);
    r.opt.read_unit = 16 * KIB;
    rig_open_faulty(&r, "0 read err 5\n1-15 read late 10000000\n");
    rig_lay(&r, 0, MIB, 4);
    a = rig_issue(&r, 0, 256 * KIB);
    rig_run(&r, MS);
    CHECK_IS(chm_release(r.dev, a), 0);
    b = rig_issue(&r, 512 * KIB, 256 * KIB);
    rig_expect_staged(&r, b, 512 * KIB, 256 * KIB, 4);
    rig_run(&r, CHM_SECOND);
    CHECK_HOLDS(rig_view(&r, b, 256 * KIB), 512 * KIB, 256 * KIB, 4);
    CHECK_IS(chm_release(r.dev, b), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* A failed read in which two share: both fail, and both are told. */
static void check_shared_failure(void)
{
    struct rig r;
    struct chm_issue items[2] = {{.addr = 0, .len = PAGE}, {.addr = 0, .len = PAGE}};
    uint64_t ids[4];

    rig_sim(&r);
    rig_open_faulty(&r, "0 read err 61\n");
    CHECK_IS(chm_reap(r.dev, ids, 4), 0);
    CHECK_IS(chm_issue(r.dev, items, 2, NULL), 2);
    CHECK_EQ(rig_stats(&r)->shared, 1);
    CHECK_IS(chm_wait(r.dev, items[1].req, LONG), -ENODATA);
    CHECK_IS(chm_wait(r.dev, items[0].req, 0), -ENODATA);
    CHECK_IS(chm_reap(r.dev, ids, 4), 2);
    CHECK_IS(chm_release(r.dev, items[0].req), 0);
    CHECK_IS(chm_release(r.dev, items[1].req), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ flushes */

/* An error or a short write that passes: retried, nothing lost. */
static void check_flush_retry(const char *script)
{
    struct rig r;

    rig_sim(&r);
    rig_open_faulty(&r, script);
    rig_write(&r, MIB, 64 * KIB, 1);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(rig_stats(&r)->lost_bytes, 0);
    CHECK_EQ(r.stats.flushed_bytes, 64 * KIB);
    rig_expect(&r, MIB, 64 * KIB, 1);
    rig_check_idle(&r);
    rig_close(&r);
}

/* One that does not: lost. Its range fails until it is written again, chm_flush tells it once,
 * memory is free, everything else goes on (F03, F24). */
static void check_flush_lost(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(64 * KIB);
    uint64_t req;

    rig_sim(&r);
    rig_open_faulty(&r, "1-20 write err 5\n");
    rig_lay(&r, MIB, 64 * KIB, 1);
    rig_write(&r, MIB, 64 * KIB, 2);
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    CHECK_IS(chm_flush(r.dev, LONG), 0); /* told once */
    CHECK_EQ(rig_stats(&r)->lost_bytes, 64 * KIB);
    CHECK(r.stats.flush_errors > 1 && r.stats.flush_errors < 20);
    CHECK_EQ(r.stats.buffer_used_bytes, 0);
    CHECK_IS(rig_read(&r, MIB, 64 * KIB, buf), -EIO);
    CHECK_IS(rig_read(&r, MIB + 63 * KIB, 8, buf), -EIO);
    CHECK_IS(rig_read(&r, MIB - 4, 8, buf), -EIO);
    req = rig_issue(&r, MIB + 4 * PAGE, PAGE);
    CHECK_IS(chm_wait(r.dev, req, LONG), -EIO);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_expect(&r, MIB - PAGE, PAGE, 0);
    rig_expect(&r, MIB + 64 * KIB, PAGE, 0);
    CHECK_IS(chm_info(r.dev, &r.info), 0);
    CHECK_EQ(r.info.degraded, 0);
    while (rig_stats(&r)->flush_errors < 20) { /* other data goes the same way, or is flushed */
        rig_write(&r, 4 * MIB, PAGE, 3);
        (void)chm_flush(r.dev, LONG);
    }
    rig_write(&r, 4 * MIB, PAGE, 4);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, 4 * MIB, PAGE, 4);
    rig_write(&r, MIB + PAGE, PAGE, 5); /* a page of it is written again, and readable again */
    rig_expect(&r, MIB + PAGE, PAGE, 5);
    CHECK_IS(rig_read(&r, MIB, PAGE, buf), -EIO);
    CHECK_IS(rig_read(&r, MIB + 2 * PAGE, PAGE, buf), -EIO);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, MIB + PAGE, PAGE, 5);
    CHECK_IS(rig_read(&r, MIB + 2 * PAGE, PAGE, buf), -EIO);
    CHECK_IS(chm_trim(r.dev, MIB, 64 * KIB), 0);
    rig_expect(&r, MIB, 64 * KIB, 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, MIB, 64 * KIB, 0);
    rig_check_idle(&r);
    rig_close(&r);
    munmap(buf, 64 * KIB);
}

/* A loss that no flush has told is told by close. */
static void check_loss_told_by_close(void)
{
    struct rig r;

    rig_sim(&r);
    rig_open_faulty(&r, "0- write err 5\n");
    rig_write(&r, 0, PAGE, 1);
    CHECK_IS(chm_close(r.dev, LONG), -EIO);
}

/* The older bytes are lost, the newer ones are in the buffer: reads give the newer ones. */
static void check_lost_under_newer(void)
{
    struct rig r;
    uint8_t page[PAGE];

    rig_sim(&r);
    r.opt.flush_idle_ns = 1;
    rig_open_faulty(&r, "0 write late 10000000\n1 write err 5\n2 write err 5\n3 write err 5\n"
                        "4 write err 5\n");
    rig_write(&r, 8 * MIB, PAGE, 1); /* late */
    rig_write(&r, MIB, 8 * PAGE, 1); /* lost */
    CHECK(chm_step(r.dev, chm_now(r.dev) + 10) >= 0);
    rig_write(&r, MIB + 2 * PAGE, 2 * PAGE, 2);
    rig_run(&r, 100 * US);
    CHECK_EQ(rig_stats(&r)->lost_bytes, 8 * PAGE);
    rig_expect(&r, MIB + 2 * PAGE, 2 * PAGE, 2);
    CHECK_IS(rig_read(&r, MIB + PAGE, PAGE, page), -EIO);
    CHECK_IS(rig_read(&r, MIB + 4 * PAGE, PAGE, page), -EIO);
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    rig_expect(&r, MIB + 2 * PAGE, 2 * PAGE, 2);
    CHECK_IS(rig_read(&r, MIB + 7 * PAGE, PAGE, page), -EIO);
    rig_expect(&r, 8 * MIB, PAGE, 1);
    rig_close(&r);
}

/* Every write fails: the device says so after a stated number of losses, refuses more, frees its
 * memory, still reads what it has, and closes (F24, F96). */
static void check_degraded(void)
{
    struct rig r;
    struct chm_write w = {.addr = 0, .len = PAGE};
    unsigned losses = 0;

    rig_sim(&r);
    rig_open_faulty(&r, "1- write err 5\n");
    rig_lay(&r, 8 * MIB, PAGE, 1);
    for (; losses < 1000; losses++) {
        w.addr = losses * 2 * PAGE;
        if (chm_write_begin(r.dev, &w, 1) != 1) {
            break;
        }
        rig_commit(&r, &w);
        CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    }
    CHECK_IS(w.status, -EIO);
    CHECK(losses > 8 && losses < 200);
    CHECK_IS(chm_write(r.dev, 0, &w, PAGE), -EIO);
    CHECK_IS(chm_trim(r.dev, 0, PAGE), -EIO);
    CHECK_IS(chm_info(r.dev, &r.info), 0);
    CHECK_EQ(r.info.degraded, 1);
    rig_expect(&r, 8 * MIB, PAGE, 1);
    rig_check_idle(&r);
    CHECK_IS(chm_close(r.dev, LONG), 0);
}

/* The drive is pulled out: every transfer answers ENODEV. Nothing hangs (F96). */
static void check_pulled_out(void)
{
    struct rig r;
    uint8_t page[PAGE];
    uint64_t req;

    rig_sim(&r);
    rig_open_faulty(&r, "0- any err 19\n");
    rig_write(&r, MIB, PAGE, 1);
    req = rig_issue(&r, 0, MIB);
    CHECK_IS(chm_wait(r.dev, req, LONG), -ENODEV);
    CHECK_IS(rig_read(&r, 0, PAGE, page), -ENODEV);
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    CHECK(rig_read(&r, MIB, PAGE, page) < 0);
    CHECK_IS(chm_release(r.dev, req), 0);
    CHECK_IS(chm_close(r.dev, LONG), 0);
}

/* A write that the drive tears or drops behind our back cannot be seen here: what is promised is
 * that only its own range is affected, and that the buffer is not read instead of the drive. */
static void check_silent_write_faults(const char *script, uint64_t landed)
{
    struct rig r;
    uint8_t *buf = rig_alloc(64 * KIB);

    rig_sim(&r);
    rig_open_faulty(&r, script);
    rig_lay(&r, MIB - PAGE, 64 * KIB + 2 * PAGE, 1);
    rig_write(&r, MIB, 64 * KIB, 2);
    rig_expect(&r, MIB, 64 * KIB, 2);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_IS(rig_read(&r, MIB, 64 * KIB, buf), 0);
    CHECK_HOLDS(buf, MIB, landed, 2);
    CHECK_HOLDS(buf + landed, MIB + landed, 64 * KIB - landed, 1);
    rig_expect(&r, MIB - PAGE, PAGE, 1);
    rig_expect(&r, MIB + 64 * KIB, PAGE, 1);
    rig_close(&r);
    munmap(buf, 64 * KIB);
}

static void check_trim_fails(void)
{
    struct rig r;
    uint8_t page[PAGE];

    rig_sim(&r);
    rig_open_faulty(&r, "0 trim err 5\n");
    rig_lay(&r, MIB, 2 * PAGE, 1);
    CHECK_IS(chm_trim(r.dev, MIB, PAGE), 0);
    rig_expect(&r, MIB, PAGE, 0);
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    CHECK_IS(rig_read(&r, MIB, PAGE, page), -EIO); /* never the bytes from before the trim */
    rig_expect(&r, MIB + PAGE, PAGE, 1);
    CHECK_IS(chm_trim(r.dev, MIB, PAGE), 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, MIB, PAGE, 0);
    rig_close(&r);
}

/* ------------------------------------------------------------------ barriers */

/* A failed barrier: what it covered is not promised, which is told once; the next one is fine. */
static void check_barrier_error(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.sim.volatile_cache = 1;
    rig_open_faulty(&r, "0 barrier err 5\n");
    rig_write(&r, MIB, PAGE, 1);
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    CHECK_EQ(rig_stats(&r)->barrier_errors, 1);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_write(&r, MIB, PAGE, 2);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, MIB, PAGE, 2);
    rig_close(&r);
}

/* Strict: each commit answers for its own bytes and for no others (F94). */
static void check_strict_commit(void)
{
    enum { N = 8 };
    struct rig r;
    uint64_t ids[N];
    int32_t status[N];

    rig_sim(&r);
    r.opt.durability = CHM_DURABILITY_STRICT;
    r.opt.sim.volatile_cache = 1;
    r.opt.flush_unit = PAGE;
    r.opt.flush_depth = N;
    rig_open_faulty(&r, "5 write err 5\n8-10 write err 5\n");
    for (uint64_t i = 0; i < N; i++) {
        ids[i] = rig_begin(&r, i * MIB, PAGE, i + 1).id;
    }
    CHECK_IS(chm_write_commit(r.dev, ids, N, status), N - 1);
    for (int i = 0; i < N; i++) {
        CHECK_IS(status[i], i == 5 ? -EIO : 0);
    }
    CHECK_EQ(rig_stats(&r)->lost_bytes, PAGE);
    rig_close(&r);
}

int main(void)
{
    check_failing_read("0-1 read err 5\n", -EIO);
    check_failing_read("0-1 read err 61\n", -ENODATA);
    check_failing_read("0-1 read short 0\n", -EIO);
    check_short_read(4096);
    check_short_read(4097);
    check_short_read(8191);
    check_short_read(60 * KIB);
    check_short_read(64 * KIB - 1);
    check_ever_shorter();
    check_try_again();
    check_out_of_order();
    check_five_of_eight();
    check_leftovers();
    check_shared_failure();
    check_flush_retry("0 write err 5\n");
    check_flush_retry("0-1 write err 28\n");
    check_flush_retry("0 write short 4096\n1 write err 5\n");
    check_flush_retry("0 write short 4096\n1 write short 8192\n");
    check_flush_retry("0 write short 0\n");
    check_flush_retry("0 write err 11\n");
    check_flush_lost();
    check_loss_told_by_close();
    check_lost_under_newer();
    check_degraded();
    check_pulled_out();
    check_silent_write_faults("1 write torn 8192\n", 8192);
    check_silent_write_faults("1 write lost\n", 0);
    check_trim_fails();
    check_barrier_error();
    check_strict_commit();
    return 0;
}
