/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_staging.c - issue, wait, view, release: results, the queue for window space, and
 * the three times a request may carry. In virtual time, so that times are exact.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

/* Time the simulated medium takes for one read of len bytes in a row of I/Os, from idle. */
static uint64_t read_time(const struct rig *r, uint64_t len)
{
    return len * CHM_SECOND / r->opt.sim.read_rate + r->opt.sim.read_latency_ns;
}

/* ------------------------------------------------------------------ life of one request */

static void check_life(void)
{
    struct rig r;
    struct chm_view view;
    uint64_t begin, req;

    rig_sim(&r);
    rig_open(&r);
    rig_lay(&r, MIB, MIB, 7);
    begin = chm_now(r.dev);
    req = rig_issue(&r, MIB, MIB);
    CHECK_IS(chm_wait(r.dev, req, 0), -ETIMEDOUT);
    CHECK_IS(chm_progress(r.dev, req), 0);
    CHECK_IS(chm_wait(r.dev, req, 1000), -ETIMEDOUT);
    CHECK_EQ(chm_now(r.dev), begin + 1000);
    CHECK_IS(chm_wait(r.dev, req, UINT64_MAX), 0);
    CHECK_EQ(chm_now(r.dev), begin + read_time(&r, MIB));
    rig_expect_staged(&r, req, MIB, MIB, 7);
    CHECK_IS(chm_view(r.dev, req, &view), 0);
    CHECK_EQ(view.offset % PAGE, 0);
    CHECK_EQ(rig_stats(&r)->window_used_bytes, MIB);
    CHECK_EQ(r.stats.staged_bytes, MIB);
    CHECK_IS(chm_release(r.dev, req), 0);
    CHECK_IS(chm_wait(r.dev, req, LONG), -ESTALE);
    CHECK_IS(chm_progress(r.dev, req), -ESTALE);
    CHECK_IS(chm_view(r.dev, req, &view), -ESTALE);
    CHECK_IS(chm_release(r.dev, req), -ESTALE);
    rig_check_idle(&r);
    rig_close(&r);
}

/* The view is the very memory that the device's memfd gives other processes. */
static void check_memory_fd(void)
{
    struct rig r;
    struct chm_view view;
    uint8_t page[PAGE];
    uint64_t req;

    rig_sim(&r);
    rig_open(&r);
    rig_write(&r, 3 * PAGE, PAGE, 11);
    req = rig_issue(&r, 0, 8 * PAGE);
    CHECK_IS(chm_wait(r.dev, req, LONG), 0);
    CHECK_IS(chm_view(r.dev, req, &view), 0);
    CHECK_IS(pread(r.info.memory_fd, page, PAGE, (off_t)(view.offset + 3 * PAGE)), PAGE);
    CHECK_HOLDS(page, 3 * PAGE, PAGE, 11);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* Progress only grows, in steps that I/Os make, and what it covers can be read. */
static void check_progress(void)
{
    struct rig r;
    int64_t last = 0;
    uint64_t req, seen = 0;

    rig_sim(&r);
    r.opt.read_unit = 64 * KIB;
    rig_open(&r);
    rig_lay(&r, 0, MIB, 3);
    req = rig_issue(&r, 0, MIB);
    while (last < MIB) {
        int64_t now;
        CHECK(chm_step(r.dev, UINT64_MAX) >= 0);
        now = chm_progress(r.dev, req);
        CHECK(now >= last);
        seen += now > last;
        last = now;
        CHECK_HOLDS(rig_view(&r, req, MIB), 0, (uint64_t)now, 3);
    }
    CHECK_EQ(seen, 16);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* Asking again and again gives the same answer, also long after (F25). */
static void check_result_is_final(void)
{
    struct rig r;
    uint64_t good, bad;

    rig_sim(&r);
    rig_open_faulty(&r, "1 read err 5\n");
    good = rig_issue(&r, 0, PAGE);
    bad = rig_issue(&r, MIB, PAGE);
    for (int i = 0; i < 100; i++) {
        CHECK_IS(chm_wait(r.dev, good, LONG), 0);
        CHECK_IS(chm_wait(r.dev, bad, LONG), -EIO);
        CHECK_IS(chm_progress(r.dev, bad), -EIO);
        CHECK_IS(chm_progress(r.dev, good), PAGE);
        rig_run(&r, 10ull * CHM_SECOND);
    }
    CHECK_IS(chm_release(r.dev, bad), 0);
    CHECK_IS(chm_release(r.dev, good), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

static void check_published_form(void)
{
    struct rig r;
    struct chm_view view;

    rig_sim(&r);
    rig_open(&r);
    rig_lay(&r, 0, 4 * PAGE, 5);
    chm_req req = chm_prefetch_object(chm_ptr_of(r.dev, 0), 3 * PAGE + 17);
    CHECK_IS(req.status, 0);
    CHECK_IS(chm_prefetch_wait(req), 0);
    CHECK_IS(chm_prefetch_progress(req), 4 * PAGE);
    CHECK_IS(chm_view(r.dev, req.id, &view), 0);
    CHECK_HOLDS(view.data, 0, 4 * PAGE, 5);
    CHECK_IS(chm_prefetch_release(req), 0);
    CHECK_IS(chm_prefetch_release(req), -ESTALE);
    req = chm_prefetch_object(chm_ptr_of(r.dev, r.info.capacity_bytes), PAGE);
    CHECK_IS(req.status, -ERANGE);
    CHECK_EQ(req.id, 0);
    CHECK_IS(chm_prefetch_wait(req), -ERANGE);
    CHECK_IS(chm_prefetch_progress(req), -ERANGE);
    CHECK_IS(chm_prefetch_release(req), -ERANGE);
    req = chm_prefetch_object(chm_ptr_of(r.dev, 0), UINT64_MAX);
    CHECK(req.status < 0);
    req = chm_prefetch_object(chm_ptr_of(NULL, 0), PAGE);
    CHECK_IS(req.status, -EINVAL);
    rig_close(&r);
}

/* ------------------------------------------------------------------ arguments and batches */

static void check_refused(void)
{
    static const uint64_t UNSET = 0x1234;
    struct rig r;
    rig_sim(&r);
    rig_open(&r);
    struct chm_issue items[] = {
        {.addr = 0, .len = PAGE},
        {.addr = 1, .len = PAGE},
        {.addr = 0, .len = PAGE - 1},
        {.addr = 0, .len = 0},
        {.addr = r.info.capacity_bytes, .len = PAGE},
        {.addr = r.info.capacity_bytes - PAGE, .len = 2 * PAGE},
        {.addr = UINT64_MAX - PAGE + 1, .len = 2 * PAGE},
        {.addr = PAGE, .len = UINT64_MAX - PAGE + 1},
        {.addr = 0, .len = r.info.window_bytes + PAGE},
        {.addr = r.info.capacity_bytes - PAGE, .len = PAGE},
    };
    static const int expected[] = {0,       -EINVAL, -EINVAL, -EINVAL, -ERANGE,
                                   -ERANGE, -ERANGE, -ERANGE, -E2BIG,  0};
    for (size_t i = 0; i < CHM_COUNT(items); i++) {
        items[i].req = UNSET;
        items[i].status = 1;
    }
    CHECK_IS(chm_issue(r.dev, items, CHM_COUNT(items), NULL), 2);
    for (size_t i = 0; i < CHM_COUNT(items); i++) {
        CHECK_IS(items[i].status, expected[i]);
        CHECK((items[i].req == UNSET) == (expected[i] != 0));
    }
    CHECK_EQ(rig_stats(&r)->refused, 5); /* malformed ones are the caller's fault and not counted */
    CHECK_EQ(r.stats.issued, 2);
    CHECK_IS(chm_issue(r.dev, items, 0, NULL), 0);
    CHECK_IS(chm_issue(r.dev, NULL, 0, NULL), 0);
    CHECK_IS(chm_issue(r.dev, NULL, 1, NULL), -EINVAL);
    CHECK_IS(chm_issue(NULL, items, 1, NULL), -EINVAL);
    CHECK_IS(chm_view(r.dev, items[0].req, NULL), -EINVAL);
    CHECK_IS(chm_wait(r.dev, 0, 0), -ESTALE);
    CHECK_IS(chm_wait(r.dev, UINT64_MAX, 0), -ESTALE);
    CHECK_IS(chm_wait(r.dev, UINT64_C(1) << 32 | 99, 0), -ESTALE);
    CHECK_IS(chm_release(r.dev, items[0].req), 0);
    CHECK_IS(chm_release(r.dev, items[9].req), 0);
    rig_close(&r);
}

/* The whole window as one object, exactly. */
static void check_whole_window(void)
{
    struct rig r;
    uint64_t req;

    rig_sim(&r);
    rig_open(&r);
    req = rig_issue(&r, 0, r.info.window_bytes);
    rig_expect_staged(&r, req, 0, r.info.window_bytes, 0);
    CHECK_EQ(rig_stats(&r)->window_largest_free, 0);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* A list in, a list out, in the order of the input. */
static void check_batches(void)
{
    struct rig r;
    struct chm_issue items[8];
    uint64_t reqs[8];
    int32_t status[8];

    rig_sim(&r);
    rig_open(&r);
    for (uint64_t i = 0; i < 8; i++) {
        items[i] = (struct chm_issue){.addr = i * 64 * KIB, .len = 64 * KIB};
        rig_lay(&r, i * 64 * KIB, 64 * KIB, i + 1);
    }
    CHECK_IS(chm_issue(r.dev, items, 8, NULL), 8);
    for (int i = 0; i < 8; i++) {
        reqs[i] = items[i].req;
    }
    CHECK_IS(chm_wait_many(r.dev, reqs, 8, 0, status), 0);
    for (int i = 0; i < 8; i++) {
        CHECK_IS(status[i], -ETIMEDOUT);
    }
    CHECK_IS(chm_wait_many(r.dev, reqs, 8, LONG, status), 8);
    for (uint64_t i = 0; i < 8; i++) {
        CHECK_IS(status[i], 0);
        rig_expect_staged(&r, reqs[i], i * 64 * KIB, 64 * KIB, i + 1);
    }
    CHECK_IS(chm_release(r.dev, reqs[3]), 0);
    CHECK_IS(chm_wait_many(r.dev, reqs, 8, LONG, status), 7);
    CHECK_IS(status[2], 0);
    CHECK_IS(status[3], -ESTALE);
    CHECK_IS(chm_release_many(r.dev, reqs, 8, status), 7);
    CHECK_IS(status[3], -ESTALE);
    CHECK_IS(status[4], 0);
    CHECK_IS(chm_release_many(r.dev, reqs, 8, NULL), 0);
    CHECK_IS(chm_wait_many(r.dev, NULL, 0, 0, NULL), 0);
    CHECK_IS(chm_release_many(r.dev, NULL, 0, NULL), 0);
    CHECK_IS(chm_wait_many(r.dev, reqs, 8, 0, NULL), -EINVAL);
    CHECK_IS(chm_release_many(r.dev, NULL, 1, NULL), -EINVAL);
    rig_check_idle(&r);
    rig_close(&r);
}

/* One common timeout for all, not one for each. */
/* chm_view_many: a status for each, and views only where it is 0. */
static void check_view_many(void)
{
    struct rig r;
    struct chm_view views[4], one;
    uint64_t reqs[4];
    int32_t status[4] = {1, 1, 1, 1};

    rig_sim(&r);
    rig_open_faulty(&r, "1 read err 5\n");
    rig_lay(&r, 0, 64 * KIB, 1);
    reqs[0] = rig_issue(&r, 0, 64 * KIB);
    CHECK_IS(chm_wait(r.dev, reqs[0], LONG), 0);
    reqs[1] = rig_issue(&r, 4 * MIB, PAGE);
    CHECK_IS(chm_wait(r.dev, reqs[1], LONG), -EIO);
    reqs[2] = rig_issue(&r, 64 * KIB, r.info.window_bytes); /* no space */
    reqs[3] = 0;
    memset(views, 0x5a, sizeof(views));
    CHECK_IS(chm_view_many(r.dev, reqs, 4, views, status), 1);
    CHECK_IS(status[0], 0);
    CHECK_IS(status[1], -EIO);
    CHECK_IS(status[2], -EAGAIN);
    CHECK_IS(status[3], -ESTALE);
    CHECK_IS(chm_view(r.dev, reqs[0], &one), 0);
    CHECK(memcmp(&views[0], &one, sizeof(one)) == 0);
    CHECK_HOLDS(views[0].data, 0, 64 * KIB, 1);
    CHECK(is_byte(&views[1], 3 * sizeof(views[0]), 0x5a));
    CHECK_IS(chm_view_many(r.dev, NULL, 0, NULL, NULL), 0);
    CHECK_IS(chm_view_many(r.dev, reqs, 1, NULL, status), -EINVAL);
    CHECK_IS(chm_view_many(r.dev, reqs, 1, views, NULL), -EINVAL);
    CHECK_IS(chm_view_many(NULL, reqs, 1, views, status), -EINVAL);
    CHECK_IS(chm_release_many(r.dev, reqs, 3, NULL), 3);
    rig_close(&r);
}

static void check_wait_many_timeout(void)
{
    struct rig r;
    uint64_t reqs[4], begin;
    int32_t status[4];

    rig_sim(&r);
    rig_open_faulty(&r, "1-3 read late 1000000000\n");
    for (uint64_t i = 0; i < 4; i++) {
        reqs[i] = rig_issue(&r, i * PAGE, PAGE);
    }
    begin = chm_now(r.dev);
    CHECK_IS(chm_wait_many(r.dev, reqs, 4, 5 * MS, status), 1);
    CHECK_EQ(chm_now(r.dev), begin + 5 * MS);
    CHECK_IS(status[0], 0);
    CHECK_IS(status[3], -ETIMEDOUT);
    CHECK_IS(chm_release_many(r.dev, reqs, 4, status), 4);
    rig_close(&r);
}

static void check_table_full(void)
{
    struct rig r;
    struct chm_issue items[9];

    rig_sim(&r);
    r.opt.requests_max = 8;
    rig_open(&r);
    for (uint64_t i = 0; i < 9; i++) {
        items[i] = (struct chm_issue){.addr = i * PAGE, .len = PAGE, .status = 1};
    }
    CHECK_IS(chm_issue(r.dev, items, 9, NULL), 8);
    CHECK_IS(items[8].status, -EBUSY);
    /* A full table must not lock the caller out of what needs no place in it. */
    CHECK_EQ(rig_stats(&r)->refused, 1);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_IS(chm_quiesce(r.dev, LONG), 0);
    CHECK_IS(chm_release(r.dev, items[2].req), 0);
    rig_run(&r, MS);
    CHECK_IS(rig_issue_with(&r, 0, PAGE, NULL).status, 0);
    CHECK_IS(rig_issue_with(&r, 0, PAGE, NULL).status, -EBUSY);
    rig_check_counters(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ room */

/* The whole window is pinned (F20): at once for NOWAIT, at the deadline for a wait, and fine again
 * after one release. */
static void check_window_full(void)
{
    struct chm_issue_options nowait = {.flags = CHM_ISSUE_NOWAIT};
    struct rig r;
    struct chm_view view;
    uint64_t all, req, begin;

    rig_sim(&r);
    rig_open(&r);
    all = rig_issue(&r, 0, r.info.window_bytes);
    CHECK_IS(chm_wait(r.dev, all, LONG), 0);
    CHECK_IS(rig_issue_with(&r, 8 * MIB, PAGE, &nowait).status, -EAGAIN);
    CHECK_EQ(rig_stats(&r)->refused, 1);
    CHECK_EQ(r.stats.failed, 0);
    req = rig_issue(&r, 8 * MIB, PAGE);
    begin = chm_now(r.dev);
    CHECK_IS(chm_wait(r.dev, req, 5 * MS), -ETIMEDOUT);
    CHECK_EQ(chm_now(r.dev), begin + 5 * MS);
    CHECK_IS(chm_view(r.dev, req, &view), -EAGAIN);
    CHECK_IS(chm_progress(r.dev, req), 0);
    CHECK_EQ(rig_stats(&r)->window_waits, 1);
    CHECK_EQ(r.stats.window_waiting, 1);
    CHECK_EQ(r.stats.fill_at_block_percent_sum, 100);
    CHECK(r.stats.sleeps < 10); /* waiting is sleeping */
    CHECK_IS(chm_release(r.dev, all), 0);
    CHECK_IS(chm_wait(r.dev, req, LONG), 0);
    CHECK_IS(chm_release(r.dev, req), 0);
    CHECK_IS(rig_issue_with(&r, 8 * MIB, PAGE, &nowait).status, 0);
    rig_check_counters(&r);
    rig_close(&r);
}

static bool has_space(struct rig *r, uint64_t req)
{
    struct chm_view view;
    int rc = chm_view(r->dev, req, &view);

    CHECK(rc == 0 || rc == -EAGAIN);
    return rc == 0;
}

/* Space goes to those who wait in the order in which they came. */
static void check_queue_order(void)
{
    struct rig r;
    uint64_t half, all, req[3];

    rig_sim(&r);
    rig_open(&r);
    half = r.info.window_bytes / 2;
    all = rig_issue(&r, 0, r.info.window_bytes);
    for (uint64_t i = 0; i < 3; i++) {
        req[i] = rig_issue(&r, 4 * MIB + i * 2 * MIB, half);
    }
    CHECK_IS(chm_release(r.dev, all), 0); /* in flight: its space is not free yet */
    CHECK(!has_space(&r, req[0]));
    rig_run(&r, 10 * MS);
    CHECK(has_space(&r, req[0]) && has_space(&r, req[1]) && !has_space(&r, req[2]));
    CHECK_IS(chm_release(r.dev, req[1]), 0);
    CHECK(has_space(&r, req[2]));
    CHECK_IS(chm_wait(r.dev, req[2], LONG), 0);
    CHECK_IS(chm_release(r.dev, req[0]), 0);
    CHECK_IS(chm_release(r.dev, req[2]), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* Small ones may pass a blocked head, 64 times; then it is served before anybody else. */
static void check_overtaking(void)
{
    struct rig r;
    uint64_t held, head, passed = 0, small = 0;

    rig_sim(&r);
    rig_open(&r);
    held = rig_issue(&r, 0, r.info.window_bytes / 2);
    CHECK_IS(chm_wait(r.dev, held, LONG), 0);
    head = rig_issue(&r, 4 * MIB, r.info.window_bytes);
    for (; passed < 100; passed++) {
        small = rig_issue(&r, 8 * MIB + passed % 8 * PAGE, PAGE);
        if (!has_space(&r, small)) {
            break;
        }
        CHECK_IS(chm_wait(r.dev, small, LONG), 0);
        CHECK_IS(chm_release(r.dev, small), 0);
    }
    CHECK_EQ(passed, 64);
    CHECK_EQ(rig_stats(&r)->overtakes, 64);
    CHECK_IS(chm_release(r.dev, held), 0);
    CHECK(has_space(&r, head));
    CHECK(!has_space(&r, small));
    CHECK_IS(chm_wait(r.dev, head, LONG), 0);
    CHECK_IS(chm_release(r.dev, head), 0);
    CHECK(has_space(&r, small));
    CHECK_IS(chm_release(r.dev, small), 0);
    rig_close(&r);
}

/* A request that finds its range staged needs no space, and passes nobody. */
static void check_share_when_full(void)
{
    struct rig r;
    uint64_t all, head, twin;

    rig_sim(&r);
    rig_open(&r);
    all = rig_issue(&r, 0, r.info.window_bytes);
    head = rig_issue(&r, 4 * MIB, PAGE);
    twin = rig_issue(&r, 0, r.info.window_bytes);
    CHECK_IS(chm_wait(r.dev, twin, LONG), 0);
    CHECK_EQ(rig_stats(&r)->overtakes, 0);
    CHECK(!has_space(&r, head));
    CHECK_IS(chm_release(r.dev, all), 0);
    CHECK_IS(chm_release(r.dev, twin), 0);
    CHECK_IS(chm_wait(r.dev, head, LONG), 0);
    CHECK_IS(chm_release(r.dev, head), 0);
    rig_close(&r);
}

/* A consumer that waits in order while a later request of its own keeps the space that an earlier
 * one needs: bounded by queue_ns, and then it goes on. A stream has space of its own and is never
 * in that place. */
static void check_share_past_head(void)
{
    struct chm_issue_options patient = {.queue_ns = 2ull * CHM_SECOND};
    struct chm_range ranges[3] = {{0}, {.addr = 4 * MIB, .len = 2 * MIB}, {0}};
    struct rig r;
    chm_stream *stream;
    struct chm_piece piece;
    uint64_t all, head, twins[100], begin, n;

    rig_sim(&r);
    rig_open(&r);
    n = ranges[0].len = ranges[2].len = r.info.window_bytes;
    all = rig_issue(&r, 0, n);
    CHECK_IS(chm_wait(r.dev, all, LONG), 0);
    begin = chm_now(r.dev);
    head = rig_issue_with(&r, 4 * MIB, 2 * MIB, &patient).req;
    for (size_t i = 0; i < CHM_COUNT(twins); i++) { /* sharing takes no space: not an overtaking */
        twins[i] = rig_issue(&r, 0, n);
        CHECK(has_space(&r, twins[i]));
    }
    CHECK_EQ(rig_stats(&r)->overtakes, 0);
    CHECK_IS(chm_release(r.dev, all), 0);
    CHECK_IS(chm_wait(r.dev, head, LONG), -ETIME);
    CHECK_EQ(chm_now(r.dev), begin + patient.queue_ns);
    CHECK_IS(chm_release(r.dev, head), 0);
    CHECK_IS(chm_wait(r.dev, twins[0], LONG), 0);
    CHECK_IS(chm_release_many(r.dev, twins, CHM_COUNT(twins), NULL), CHM_COUNT(twins));
    CHECK_IS(chm_stream_open(r.dev, ranges, CHM_COUNT(ranges), NULL, &stream), 0);
    while (chm_stream_next(stream, LONG, &piece) == 0) {
        CHECK_IS(chm_stream_release(stream, piece.req), 0);
    }
    CHECK_IS(chm_stream_next(stream, LONG, &piece), -ENODATA);
    CHECK_IS(chm_stream_close(stream), 0);
    rig_close(&r);
}

/* 10,000 objects against a window of a dozen (F28): bounded, in order, none lost. */
static void check_many(void)
{
    enum { N = 10000, LEN = 64 * KIB, BATCH = 64 };
    static struct chm_issue items[N];
    static uint64_t ids[N];
    struct chm_issue_options patient = {.queue_ns = UINT64_MAX, .expire_ns = UINT64_MAX};
    struct rig r;
    int told = 0, n;

    rig_sim(&r);
    r.opt.sim.capacity_bytes = 1024ull * MIB;
    r.opt.requests_max = 16384;
    r.opt.dram_bytes = 2 * MIB;
    rig_open(&r);
    for (uint64_t i = 0; i < N; i += 500) {
        rig_lay(&r, i * LEN, LEN, i + 1);
    }
    for (uint64_t i = 0; i < N; i++) {
        items[i] = (struct chm_issue){.addr = i * LEN, .len = LEN};
    }
    CHECK_IS(chm_issue(r.dev, items, N, &patient), N);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_IS(chm_wait(r.dev, items[i].req, LONG), 0);
        CHECK_HOLDS(rig_view(&r, items[i].req, LEN), i * LEN, LEN, i % 500 ? 0 : i + 1);
        while ((n = chm_reap(r.dev, ids + told, BATCH)) > 0) {
            told += n;
        }
        CHECK_IS(n, 0);
        CHECK_IS(chm_release(r.dev, items[i].req), 0);
    }
    CHECK_IS(told, N);
    for (int i = 0; i < N; i++) {
        CHECK_EQ(ids[i], items[i].req);
    }
    CHECK_EQ(rig_stats(&r)->ready, N);
    CHECK(r.stats.window_peak_bytes <= r.info.window_bytes);
    rig_check_idle(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ times */

static void check_queue_time(void)
{
    struct chm_issue_options o = {.queue_ns = 3 * MS};
    struct rig r;
    uint64_t all, req, patient, begin;

    rig_sim(&r);
    rig_open(&r);
    all = rig_issue(&r, 0, r.info.window_bytes);
    begin = chm_now(r.dev);
    req = rig_issue_with(&r, 4 * MIB, PAGE, &o).req;
    patient = rig_issue(&r, 5 * MIB, PAGE); /* 10 s */
    CHECK_IS(chm_wait(r.dev, req, LONG), -ETIME);
    CHECK_EQ(chm_now(r.dev), begin + 3 * MS);
    CHECK_IS(chm_wait(r.dev, patient, LONG), -ETIME);
    CHECK_EQ(chm_now(r.dev), begin + 10ull * CHM_SECOND);
    CHECK_EQ(rig_stats(&r)->window_waiting, 0);
    CHECK_IS(chm_release(r.dev, req), 0);
    CHECK_IS(chm_release(r.dev, patient), 0);
    CHECK_IS(chm_release(r.dev, all), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* An abandoned hint gives its space back (F13); one that somebody looked at stays. */
static void check_expiry(void)
{
    struct chm_issue_options o = {.expire_ns = 3 * MS}, never = {.expire_ns = UINT64_MAX};
    struct rig r;
    struct chm_view view;
    uint64_t req[4];

    rig_sim(&r);
    rig_open(&r);
    rig_lay(&r, 0, MIB, 9);
    req[0] = rig_issue_with(&r, 0, PAGE, &o).req;
    req[1] = rig_issue_with(&r, PAGE, PAGE, &o).req;
    req[2] = rig_issue_with(&r, 2 * PAGE, PAGE, &never).req;
    req[3] = rig_issue(&r, 3 * PAGE, PAGE);
    CHECK_IS(chm_wait(r.dev, req[1], LONG), 0);
    rig_run(&r, 4 * MS);
    CHECK_EQ(rig_stats(&r)->expired, 1);
    CHECK_EQ(r.stats.window_used_bytes, 3 * PAGE);
    CHECK_IS(chm_view(r.dev, req[0], &view), -ETIME);
    CHECK_IS(chm_progress(r.dev, req[0]), -ETIME);
    CHECK_IS(chm_wait(r.dev, req[0], LONG), -ETIME);
    rig_run(&r, 59ull * CHM_SECOND);
    CHECK_EQ(rig_stats(&r)->window_used_bytes, 3 * PAGE);
    rig_run(&r, 2ull * CHM_SECOND); /* 60 s by default */
    CHECK_EQ(rig_stats(&r)->window_used_bytes, 2 * PAGE);
    CHECK_IS(chm_wait(r.dev, req[3], LONG), -ETIME);
    rig_run(&r, 1000ull * CHM_SECOND);
    rig_expect_staged(&r, req[1], PAGE, PAGE, 9);
    rig_expect_staged(&r, req[2], 2 * PAGE, PAGE, 9);
    CHECK_IS(chm_release_many(r.dev, req, 4, NULL), 4);
    rig_check_idle(&r);
    rig_close(&r);
}

/* It expires also while its I/O is late, and its space waits for the I/O. */
static void check_expiry_in_flight(void)
{
    struct chm_issue_options o = {.expire_ns = 3 * MS};
    struct rig r;
    uint64_t req;

    rig_sim(&r);
    rig_open_faulty(&r, "0 read late 10000000\n");
    req = rig_issue_with(&r, 0, PAGE, &o).req;
    rig_run(&r, 4 * MS);
    CHECK_IS(chm_wait(r.dev, req, 0), -ETIME);
    CHECK_EQ(rig_stats(&r)->window_used_bytes, PAGE);
    rig_run(&r, 7 * MS);
    CHECK_EQ(rig_stats(&r)->window_used_bytes, 0);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

static void check_not_before(void)
{
    struct chm_issue_options o = {0};
    struct rig r;
    struct chm_view view;
    uint64_t req;

    rig_sim(&r);
    rig_open(&r);
    o.not_before_ns = chm_now(r.dev) + 7 * MS;
    req = rig_issue_with(&r, 0, MIB, &o).req;
    rig_run(&r, 6 * MS);
    CHECK_IS(chm_view(r.dev, req, &view), -EAGAIN);
    CHECK_EQ(rig_stats(&r)->window_used_bytes, 0);
    CHECK_EQ(r.stats.open, 1);
    CHECK_IS(chm_wait(r.dev, req, LONG), 0);
    CHECK_EQ(chm_now(r.dev), o.not_before_ns + read_time(&r, MIB));
    CHECK_IS(chm_release(r.dev, req), 0);
    /* It shows the bytes of when it was staged, and can be cancelled before that. */
    o.not_before_ns = chm_now(r.dev) + 7 * MS;
    req = rig_issue_with(&r, 0, PAGE, &o).req;
    rig_write(&r, 0, PAGE, 21);
    rig_expect_staged(&r, req, 0, PAGE, 21);
    CHECK_IS(chm_release(r.dev, req), 0);
    o.not_before_ns = chm_now(r.dev) + 7 * MS;
    req = rig_issue_with(&r, MIB, PAGE, &o).req;
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_run(&r, 10 * MS);
    CHECK_EQ(rig_stats(&r)->cancelled, 1);
    rig_check_idle(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ one call for all */

/* Everything that ends is told once, failures too, writes never, the released not at all or dead
 * (F26, F29). */
static void check_reap(void)
{
    struct rig r;
    struct chm_write w;
    uint64_t a, b, c, ids[8];

    rig_sim(&r);
    rig_open_faulty(&r, "1 read err 5\n");
    a = rig_issue(&r, 0, PAGE);
    CHECK_IS(chm_reap(r.dev, ids, 8), 0);
    CHECK_IS(chm_wait(r.dev, a, LONG), 0);
    b = rig_issue(&r, MIB, PAGE);
    CHECK_IS(chm_wait(r.dev, b, LONG), -EIO);
    c = rig_issue(&r, 2 * MIB, PAGE);
    CHECK_IS(chm_wait(r.dev, c, LONG), 0);
    w = rig_begin(&r, 0, PAGE, 1);
    CHECK_IS(chm_reap(r.dev, ids, 2), 2);
    CHECK_EQ(ids[0], a);
    CHECK_EQ(ids[1], b);
    CHECK_IS(chm_reap(r.dev, ids, 8), 1);
    CHECK_EQ(ids[0], c);
    CHECK_IS(chm_reap(r.dev, ids, 8), 0);
    rig_commit(&r, &w);
    CHECK_IS(chm_release(r.dev, a), 0);
    CHECK_IS(chm_release(r.dev, b), 0);
    CHECK_IS(chm_release(r.dev, c), 0);
    CHECK_IS(chm_reap(r.dev, ids, 8), 0);
    rig_close(&r);
}

int main(void)
{
    check_life();
    check_memory_fd();
    check_progress();
    check_result_is_final();
    check_published_form();
    check_refused();
    check_whole_window();
    check_batches();
    check_view_many();
    check_wait_many_timeout();
    check_window_full();
    check_queue_order();
    check_overtaking();
    check_share_when_full();
    check_share_past_head();
    check_many();
    check_queue_time();
    check_expiry();
    check_expiry_in_flight();
    check_not_before();
    check_reap();
    check_table_full();
    return 0;
}
