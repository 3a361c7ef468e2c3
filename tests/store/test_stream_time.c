/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams in time: timeouts, deadlines, staging just in time, pieces handed out early, expiry. Time
 * is virtual, so all of it is exact.
 */
#include "rig.h"

enum { SEED = 5 };

static const uint64_t FOREVER = UINT64_MAX;

/* A device whose medium reads 1 GB/s, with nothing of it in flight and 8 MiB of bytes on it. */
static void setup(struct rig *r, const char *faults, uint64_t latency_ns)
{
    rig_sim(r);
    r->opt.sim.read_rate = CHM_SECOND;
    r->opt.sim.read_latency_ns = latency_ns;
    rig_open_faulty(r, faults);
    rig_lay(r, 0, 8 * MIB, SEED);
}

/* ------------------------------------------------------------------ timeout and deadline */

/* A timeout ends the call when it is due, and nothing else. */
static void test_timeout(void)
{
    static const struct chm_range one = {0, FRAME};
    struct rig r;
    struct flow f;
    uint64_t begin;

    setup(&r, NULL, 50 * MS);
    begin = chm_now(r.dev);
    f = flow_open(&r, &one, 1, SEED, NULL);
    flow_expect(&f, 0, -ETIMEDOUT);
    CHECK_EQ(chm_now(r.dev), begin);
    flow_expect(&f, 20 * MS, -ETIMEDOUT);
    CHECK_EQ(chm_now(r.dev), begin + 20 * MS);
    flow_expect(&f, 30 * MS, -ETIMEDOUT);
    CHECK_EQ(chm_now(r.dev), begin + 50 * MS);
    CHECK_IS(flow_info(&f).status, 0);
    flow_run(&f, 1);
    CHECK_EQ(chm_now(r.dev), begin + 50 * MS + FRAME);
    flow_expect(&f, FOREVER, -ENODATA);
    CHECK_EQ(rig_stats(&r)->read_ios, 1);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* The deadline ends the stream when it is due: what was delivered is the usable prefix (F94). */
static void test_deadline(uint64_t deadline_ns, uint64_t expected_ns)
{
    struct chm_range objs[4];
    const struct chm_stream_options o = {.deadline_ns = deadline_ns, .segment_bytes = 2 * FRAME};
    struct chm_piece p = {0};
    struct rig r;
    struct flow f;
    uint64_t begin;

    setup(&r, "5 read late 40000000000\n", MS); /* second half of the third object */
    begin = chm_now(r.dev);
    f = flow_open(&r, row(objs, 4, 0, 4 * FRAME), 4, SEED, &o);
    for (uint32_t i = 0; i < 5; i++) {
        p = flow_next(&f);
        if (i < 4) {
            flow_release(&f, &p);
        }
    }
    flow_expect(&f, FOREVER, -ETIME);
    CHECK_EQ(chm_now(r.dev), begin + expected_ns);
    flow_expect(&f, FOREVER, -ETIME);
    CHECK_EQ(chm_now(r.dev), begin + expected_ns);
    CHECK_EQ(flow_info(&f).whole_objects, 2);
    CHECK_EQ(flow_info(&f).delivered_bytes, 10 * FRAME);
    CHECK_EQ(flow_info(&f).ready_bytes, 10 * FRAME);
    CHECK_IS(flow_info(&f).status, -ETIME);
    flow_check_bytes(&f, &p);
    flow_release(&f, &p);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* A stream that is not admitted in time ends in the same way, with nothing delivered. */
static void test_deadline_before_admission(void)
{
    static const struct chm_range one = {0, 2 * FRAME};
    const struct chm_stream_options o = {.deadline_ns = 2ull * CHM_SECOND};
    struct hog hog;
    uint64_t begin;
    struct rig r;
    struct flow f, g;

    setup(&r, NULL, 1 * MS);
    hog_fill(&r, &hog, 8 * MIB);
    begin = chm_now(r.dev);
    f = flow_open(&r, &one, 1, SEED, &o);
    flow_expect(&f, FOREVER, -ETIME);
    CHECK_EQ(chm_now(r.dev), begin + 2ull * CHM_SECOND);
    CHECK_EQ(flow_info(&f).whole_objects, 0);
    hog_release(&r, &hog);
    flow_expect(&f, FOREVER, -ETIME);
    g = flow_open(&r, &one, 1, SEED, &o); /* it stands in nobody's way */
    flow_drain(&g);
    flow_close(&g);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ just in time */

/* Nothing before not_before; then all of it without any call on the stream. */
static void test_not_before(void)
{
    struct chm_range objs[4];
    struct chm_stream_options o = {0};
    struct rig r;
    struct flow f;

    setup(&r, NULL, 1 * MS);
    o.not_before_ns = chm_now(r.dev) + 20ull * CHM_SECOND; /* beyond the default deadline */
    f = flow_open(&r, row(objs, 4, 0, 4 * FRAME), 4, SEED, &o);
    flow_expect(&f, 5ull * CHM_SECOND, -ETIMEDOUT);
    rig_run(&r, o.not_before_ns - 1 - chm_now(r.dev));
    CHECK_EQ(rig_stats(&r)->read_ios, 0);
    CHECK_EQ(r.stats.window_used_bytes, 0);
    while (flow_info(&f).ready_bytes < 16 * FRAME) {
        CHECK(chm_step(r.dev, o.not_before_ns + CHM_SECOND) >= 0);
        CHECK(chm_now(r.dev) < o.not_before_ns + CHM_SECOND);
    }
    CHECK_EQ(chm_now(r.dev), o.not_before_ns + 16 * FRAME + 1 * MS);
    flow_drain(&f);
    CHECK_EQ(chm_now(r.dev), o.not_before_ns + 16 * FRAME + 1 * MS);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* Due when there is no room at all: staged when there is. */
static void test_not_before_without_room(void)
{
    struct chm_range objs[8];
    struct chm_stream_options o = {.segment_bytes = 2 * FRAME};
    struct hog hog;
    struct rig r;
    struct flow f;

    setup(&r, NULL, 1 * MS);
    o.not_before_ns = chm_now(r.dev) + 100 * MS;
    hog_fill(&r, &hog, 8 * MIB);
    f = flow_open(&r, row(objs, 8, 0, 2 * FRAME), 8, SEED, &o);
    rig_run(&r, 200 * MS);
    flow_expect(&f, 100 * MS, -ETIMEDOUT);
    hog_release(&r, &hog);
    CHECK_EQ(flow_drain(&f), 8);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* A stream that is closed before its time leaves nothing that comes due. */
static void test_not_before_closed(void)
{
    struct chm_range objs[4];
    struct chm_stream_options o = {0};
    struct rig r;
    struct flow f;

    setup(&r, NULL, 1 * MS);
    o.not_before_ns = chm_now(r.dev) + 100 * MS;
    f = flow_open(&r, row(objs, 4, 0, 4 * FRAME), 4, SEED, &o);
    flow_close(&f);
    rig_run(&r, 200 * MS);
    CHECK_EQ(rig_stats(&r)->read_ios, 0);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ how far it is */

/* ready_bytes only grows while the medium works, and says no more than what is there. */
static void test_progress(void)
{
    static const struct chm_range objs[] = {{0, MIB}, {MIB, PAGE}, {2 * MIB, MIB}};
    struct chm_stream_info info = {0};
    uint32_t grew = 0;
    struct rig r;
    struct flow f;

    rig_sim(&r);
    r.opt.read_unit = FRAME;
    rig_open(&r);
    rig_lay(&r, 0, 4 * MIB, SEED);
    f = flow_open(&r, objs, 3, SEED, NULL);
    while (info.ready_bytes < 2 * MIB + PAGE) {
        uint64_t before = info.ready_bytes;

        CHECK(chm_step(r.dev, chm_now(r.dev) + MS) >= 0);
        info = flow_info(&f);
        CHECK(info.ready_bytes >= before);
        CHECK(info.ready_bytes <= rig_stats(&r)->read_bytes);
        CHECK_EQ(info.delivered_bytes, 0);
        grew += info.ready_bytes > before;
    }
    CHECK(grew > 8); /* it was seen on its way */
    flow_drain(&f);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* The host link delivers pieces one after the other, and next waits for that. */
static void test_link(void)
{
    struct chm_range objs[3];
    struct rig r;
    struct flow f;
    uint64_t begin;

    rig_sim(&r);
    r.opt.link_rate = CHM_SECOND / 10;
    r.opt.link_latency_ns = 5 * MS;
    rig_open(&r);
    f = flow_open(&r, row(objs, 3, 0, FRAME), 3, 0, NULL);
    rig_run(&r, CHM_SECOND);
    begin = chm_now(r.dev);
    flow_expect(&f, MS, -ETIMEDOUT);
    for (uint64_t i = 1; i <= 3; i++) {
        flow_run(&f, 1);
        CHECK_EQ(chm_now(r.dev), begin + i * (10 * FRAME + 5 * MS));
    }
    CHECK_EQ(rig_stats(&r)->delivered_bytes, 3 * FRAME);
    flow_close(&f);
    rig_close(&r);
}

/* ------------------------------------------------------------------ early */

/* Handed out as soon as it has a place; then layer by layer, each as it comes. */
static void test_early(void)
{
    static const struct chm_range objs[] = {{0, MIB}, {2 * MIB, MIB}};
    const struct chm_stream_options o = {.early = 1};
    uint64_t begin, ready = 0;
    struct chm_piece p;
    struct rig r;
    struct flow f;

    rig_sim(&r);
    r.opt.read_unit = FRAME;
    r.opt.sim.read_latency_ns = MS;
    rig_open(&r);
    rig_lay(&r, 0, 4 * MIB, SEED);
    begin = chm_now(r.dev);
    f = flow_open(&r, objs, 2, SEED, &o);
    CHECK_IS(chm_stream_next(f.s, RIG_LONG, &p), 0);
    CHECK_EQ(chm_now(r.dev), begin);
    flow_check_order(&f, &p);
    CHECK_EQ(p.len, MIB);
    while (ready < p.len) {
        int64_t n = chm_progress(r.dev, p.req);

        CHECK(n >= (int64_t)ready);
        ready = (uint64_t)n;
        CHECK_HOLDS(p.data, 0, ready, SEED);
        CHECK(flow_info(&f).ready_bytes >= ready);
        CHECK(ready == p.len || flow_info(&f).ready_bytes == ready); /* no more than is there */
        CHECK_IS(chm_wait(r.dev, p.req, 0), ready == p.len ? 0 : -ETIMEDOUT);
        CHECK(chm_step(r.dev, chm_now(r.dev) + MS) >= 0);
    }
    flow_check_bytes(&f, &p);
    flow_release(&f, &p);
    CHECK_IS(chm_stream_next(f.s, 0, &p), 0);
    CHECK_IS(chm_wait(r.dev, p.req, RIG_LONG), 0);
    flow_check_order(&f, &p);
    flow_check_bytes(&f, &p);
    flow_release(&f, &p);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* A piece that fails before it was asked for ends the stream; one that was handed out tells who
 * waits for it. */
static void test_early_error(uint64_t late_ns)
{
    static const struct chm_range objs[] = {{0, FRAME}, {MIB, FRAME}};
    const struct chm_stream_options o = {.early = 1};
    struct chm_piece p;
    struct rig r;
    struct flow f;

    setup(&r, "1 read short 4096\n2 read err 5\n", MS); /* it fails half-way */
    f = flow_open(&r, objs, 2, SEED, &o);
    CHECK_IS(chm_stream_next(f.s, 0, &p), 0);
    rig_run(&r, late_ns);
    if (late_ns) {
        flow_expect(&f, 0, -EIO);
    } else {
        struct chm_piece q;

        CHECK_IS(chm_stream_next(f.s, 0, &q), 0);
        CHECK_IS(chm_wait(r.dev, q.req, RIG_LONG), -EIO);
        CHECK_IS(chm_wait(r.dev, q.req, 0), -EIO);
        CHECK_EQ(flow_info(&f).ready_bytes, FRAME);
        CHECK_IS(chm_stream_release(f.s, q.req), 0);
    }
    CHECK_IS(chm_wait(r.dev, p.req, RIG_LONG), 0);
    CHECK_HOLDS(p.data, 0, FRAME, SEED);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* Early pieces given back unread leave their run busy until the read has ended. A consumer that
 * holds one piece is not told that it holds too many meanwhile. */
static void test_early_given_back_unread(void)
{
    struct chm_range objs[8];
    const struct chm_stream_options o = {.early = 1, .segment_bytes = 2 * FRAME};
    struct chm_piece p, q;
    struct hog hog;
    struct rig r;
    struct flow f;

    setup(&r, NULL, 50 * MS);
    hog_fill(&r, &hog, 8 * MIB);
    hog_shrink(&r, &hog, 4);
    f = flow_open(&r, row(objs, 8, 0, 2 * FRAME), 8, SEED, &o);
    CHECK_IS(chm_stream_next(f.s, 0, &p), 0);
    flow_check_order(&f, &p);
    flow_release(&f, &p);
    CHECK_IS(chm_stream_next(f.s, 0, &q), 0);
    flow_check_order(&f, &q);
    CHECK_IS(chm_stream_next(f.s, RIG_LONG, &p), 0);
    flow_check_order(&f, &p);
    CHECK_IS(chm_wait(r.dev, q.req, RIG_LONG), 0);
    CHECK_IS(chm_wait(r.dev, p.req, RIG_LONG), 0);
    flow_check_bytes(&f, &q);
    flow_check_bytes(&f, &p);
    flow_close(&f);
    hog_release(&r, &hog);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* An early piece whose read takes longer than anything staged may lie unasked for: it is held, so
 * its place stays its own (F50). */
static void test_early_outlives_expiry(void)
{
    static const struct chm_range one = {0, FRAME};
    const struct chm_stream_options o = {.early = 1, .deadline_ns = FOREVER};
    struct chm_piece p;
    uint64_t pinned;
    struct rig r;
    struct flow f;

    setup(&r, "0 read late 90000000000\n", MS);
    f = flow_open(&r, &one, 1, SEED, &o);
    CHECK_IS(chm_stream_next(f.s, 0, &p), 0);
    pinned = rig_stats(&r)->window_pinned_bytes;
    rig_run(&r, 61ull * CHM_SECOND);
    CHECK_EQ(rig_stats(&r)->window_pinned_bytes, pinned);
    CHECK_EQ(r.stats.expired, 0);
    CHECK_IS(chm_wait(r.dev, p.req, RIG_LONG), 0);
    CHECK_HOLDS(p.data, 0, FRAME, SEED);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ expiry */

/* Staged ahead and not asked for: dropped after a minute, read again when it is asked for. */
static void test_expired(void)
{
    struct chm_range objs[8];
    const struct chm_stream_options o = {.deadline_ns = FOREVER, .segment_bytes = 2 * FRAME};
    struct chm_piece p;
    struct rig r;
    struct flow f;

    setup(&r, NULL, MS);
    f = flow_open(&r, row(objs, 8, 0, 2 * FRAME), 8, SEED, &o);
    p = flow_next(&f);
    rig_run(&r, 61ull * CHM_SECOND);
    CHECK_EQ(rig_stats(&r)->expired, 7);
    CHECK_EQ(r.stats.window_pinned_bytes, 2 * FRAME); /* what is held is held */
    flow_check_bytes(&f, &p);
    rig_lay(&r, 2 * FRAME, 14 * FRAME, SEED + 1);
    flow_release(&f, &p);
    f.seed = SEED + 1;
    CHECK_EQ(flow_drain(&f), 7);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* The next piece expired and somebody has taken its place; those behind it still lie in the
 * reserve. They make way: the stream goes on at once, and not only when they expire too. */
static void test_expired_and_place_taken(void)
{
    struct chm_range objs[8];
    const struct chm_stream_options o = {.deadline_ns = FOREVER,
                                         .segment_bytes = 2 * FRAME,
                                         .window_bytes = 6 * FRAME};
    struct hog hog, more;
    uint64_t begin;
    struct rig r;
    struct flow f;

    setup(&r, NULL, MS);
    hog_fill(&r, &hog, 8 * MIB);
    hog_shrink(&r, &hog, 6); /* the reserve, and one piece in free space */
    f = flow_open(&r, row(objs, 8, 0, 2 * FRAME), 8, SEED, &o);
    CHECK_EQ(flow_info(&f).ahead, 3);
    rig_run(&r, 10ull * CHM_SECOND);
    flow_run(&f, 1); /* the fourth piece goes to free space, at 10 s */
    rig_run(&r, 20ull * CHM_SECOND);
    flow_run(&f, 2); /* the fifth and sixth to the reserve, at 30 s */
    rig_run(&r, 41ull * CHM_SECOND);
    CHECK_EQ(rig_stats(&r)->expired, 1);
    hog_fill(&r, &more, 12 * MIB);
    CHECK_EQ(more.n, 2);
    begin = chm_now(r.dev);
    CHECK_EQ(flow_drain(&f), 5);
    CHECK(chm_now(r.dev) - begin < CHM_SECOND);
    flow_close(&f);
    hog_release(&r, &hog);
    hog_release(&r, &more);
    rig_check_quiet(&r);
    rig_close(&r);
}

int main(void)
{
    test_timeout();
    test_deadline(3ull * CHM_SECOND, 3ull * CHM_SECOND);
    test_deadline(0, 10ull * CHM_SECOND);
    test_deadline_before_admission();
    test_not_before();
    test_not_before_without_room();
    test_not_before_closed();
    test_progress();
    test_link();
    test_early();
    test_early_error(0);
    test_early_error(100 * MS);
    test_early_given_back_unread();
    test_early_outlives_expiry();
    test_expired();
    test_expired_and_place_taken();
    return 0;
}
