/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: order, pieces, what is reserved, who holds and shares what. What has to do with time is
 * in test_stream_time.c, with errors in test_stream_errors.c.
 *
 * The window of most devices here is 42 frames of 64 KiB.
 */
#include "rig.h"

enum { SEED = 3 };

static void setup(struct rig *r)
{
    rig_sim(r);
    rig_open(r);
    CHECK_EQ(r->info.window_bytes, FRAMES * FRAME);
    rig_lay(r, 0, 8 * MIB, SEED);
}

/* ------------------------------------------------------------------ order and pieces */

static void test_order(void)
{
    static const struct chm_range objs[] = {{0, FRAME},           {5 * MIB, PAGE},
                                            {1 * MIB, 1 * MIB},   {0, FRAME},
                                            {2 * MIB, 5 * MIB},   {PAGE, PAGE},
                                            {7 * MIB, 640 * KIB}, {9 * PAGE, 3 * PAGE}};
    struct rig r;
    struct flow f;
    struct chm_stream_info info;

    setup(&r);
    f = flow_open(&r, objs, CHM_COUNT(objs), SEED, NULL);
    info = flow_info(&f);
    CHECK_EQ(info.window_bytes, r.info.window_bytes);
    CHECK_EQ(info.piece_bytes, FRAMES / 2 * FRAME); /* two of them fit */
    CHECK_EQ(flow_drain(&f), 7 + 4);                /* 5 MiB, larger than the window, in segments */
    flow_expect(&f, RIG_LONG, -ENODATA);
    info = flow_info(&f);
    CHECK_EQ(info.whole_objects, CHM_COUNT(objs));
    CHECK_EQ(info.delivered_bytes, info.ready_bytes);
    CHECK_EQ(info.delivered_bytes, 2 * FRAME + 6 * MIB + 640 * KIB + 5 * PAGE);
    CHECK_EQ(info.held + info.ahead, 0);
    CHECK_IS(info.status, 0);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* The list is copied at open. */
static void test_list_is_copied(void)
{
    struct chm_range objs[4], *gone = malloc(sizeof(objs));
    struct rig r;
    struct flow f;

    setup(&r);
    CHECK(gone);
    memcpy(gone, row(objs, 4, 0, MIB), sizeof(objs));
    f = flow_open(&r, gone, 4, SEED, NULL);
    memset(gone, 0xff, sizeof(objs));
    free(gone);
    f.objs = objs;
    flow_drain(&f);
    flow_close(&f);
    rig_close(&r);
}

/* Every piece but the last of its object is as long as asked for. */
static void test_segment_bytes(uint64_t segment, uint64_t expected)
{
    static const struct chm_range objs[] = {{0, 1 * MIB}, {MIB, PAGE}, {2 * MIB, 5 * FRAME + PAGE}};
    struct chm_stream_options o = {.segment_bytes = segment};
    struct rig r;
    struct flow f;

    setup(&r);
    f = flow_open(&r, objs, CHM_COUNT(objs), SEED, &o);
    CHECK_EQ(flow_info(&f).piece_bytes, expected);
    while (f.object < f.n) {
        uint64_t left = objs[f.object].len - f.offset;
        struct chm_piece p = flow_next(&f);

        CHECK_EQ(p.len, chm_min(left, expected));
        flow_release(&f, &p);
    }
    flow_close(&f);
    rig_close(&r);
}

/* A large window: 16 MiB unless whole objects are asked for, and two of those fit. */
static void test_whole(void)
{
    static const struct chm_range forty[] = {{0, 40 * MIB}, {40 * MIB, 4 * MIB}};
    static const struct chm_range eighty[] = {{0, 80 * MIB}, {80 * MIB, 20 * MIB}};
    const struct chm_stream_options whole = {.whole = 1};
    struct rig r;
    struct flow f, g;
    struct chm_piece p;

    rig_sim(&r);
    r.opt.dram_bytes = 160 * MIB;
    r.opt.poison = 0;
    r.opt.sim.capacity_bytes = 129 * MIB;
    r.opt.sim.no_contents = 1;
    rig_open(&r);
    f = flow_open(&r, forty, 2, 0, NULL);
    CHECK_EQ(flow_info(&f).piece_bytes, 16 * MIB);
    CHECK_EQ(flow_info(&f).window_bytes, 128 * MIB);
    flow_close(&f);
    f = flow_open(&r, forty, 2, 0, &whole);
    CHECK_EQ(flow_info(&f).piece_bytes, 40 * MIB);
    CHECK_IS(chm_stream_next(f.s, RIG_LONG, &p), 0);
    CHECK_EQ(p.len, 40 * MIB);
    g = flow_open(&r, forty, 2, 0, &whole); /* its share of the window is half: two do not fit */
    CHECK_EQ(flow_info(&g).piece_bytes, 16 * MIB);
    flow_close(&g);
    flow_close(&f);
    f = flow_open(&r, eighty, 2, 0, &whole);
    CHECK_EQ(flow_info(&f).piece_bytes, 16 * MIB);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* Neither bytes of the budget nor the share of the window are exceeded by a greedy consumer. */
static void test_window_bytes(void)
{
    struct chm_range objs[32];
    const struct chm_stream_options o = {.window_bytes = 6 * FRAME, .segment_bytes = FRAME};
    struct chm_piece p;
    struct rig r;
    struct flow f;

    setup(&r);
    f = flow_open(&r, row(objs, 32, 0, FRAME), 32, SEED, &o);
    for (uint32_t i = 0; i < 6; i++) {
        CHECK_EQ(flow_info(&f).ahead, 6 - i);
        flow_next(&f);
    }
    flow_expect(&f, RIG_LONG, -EDEADLK);
    CHECK_IS(chm_stream_next(f.s, 0, &p), -EDEADLK);
    CHECK_EQ(flow_info(&f).held, 6);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ reservations */

/* An admitted stream goes on while single prefetches hold all they can get; theirs stays theirs. */
static void test_reserved_is_kept(void)
{
    const struct chm_stream_options o = {.segment_bytes = 2 * FRAME};
    struct chm_range objs[8];
    struct hog hog;
    struct rig r;
    struct flow f;

    setup(&r);
    f = flow_open(&r, row(objs, 8, 0, MIB), 8, SEED, &o);
    CHECK_EQ(rig_stats(&r)->window_reserved_bytes, 2 * 2 * FRAME);
    flow_run(&f, 1);
    hog_fill(&r, &hog, 8 * MIB);
    CHECK_EQ(flow_drain(&f), 63);
    CHECK_EQ(rig_stats(&r)->window_reserved_bytes, 2 * 2 * FRAME);
    hog_release(&r, &hog);
    hog_fill(&r, &hog,
             8 * MIB); /* with nothing of the stream's in free space: all but what is reserved */
    CHECK_EQ(hog.n, FRAMES - 4);
    flow_close(&f);
    CHECK_EQ(rig_stats(&r)->window_reserved_bytes, 0);
    hog_release(&r, &hog);
    hog_fill(&r, &hog, 8 * MIB);
    CHECK_EQ(hog.n, FRAMES);
    hog_release(&r, &hog);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* Demand reads go on as well, with the pool full and all of the reservation held. */
static void test_demand_reads_go_on(void)
{
    struct chm_range objs[4];
    const struct chm_stream_options o = {.segment_bytes = 2 * FRAME};
    struct hog hog;
    struct rig r;
    struct flow f;

    setup(&r);
    f = flow_open(&r, row(objs, 4, 0, MIB), 4, SEED, &o);
    hog_fill(&r, &hog, 8 * MIB);
    while (chm_stream_next(f.s, RIG_LONG, &(struct chm_piece){0}) == 0) {
    }
    rig_expect(&r, 5 * MIB, 2 * MIB, SEED);
    rig_expect(&r, 5 * MIB + 1, MIB, SEED); /* through the demand reserve: not aligned */
    flow_close(&f);
    hog_release(&r, &hog);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* Admitted in order of opening: the small one behind a large one has to wait for it, whether room
 * for it comes free later or is there already. */
static void test_admitted_in_order(bool room_before)
{
    enum { ROOM = 8 }; /* frames: enough for the small one, not for the large one */
    struct chm_range large[2], small[4];
    const struct chm_stream_options o = {.window_bytes = 40 * FRAME, .segment_bytes = 10 * FRAME};
    const struct chm_stream_options p = {.segment_bytes = FRAME};
    struct hog hog;
    struct rig r;
    struct flow f, g;

    setup(&r);
    hog_fill(&r, &hog, 8 * MIB);
    if (room_before) {
        hog_shrink(&r, &hog, ROOM);
    }
    f = flow_open(&r, row(large, 2, 0, 20 * FRAME), 2, SEED, &o);
    g = flow_open(&r, row(small, 4, 4 * MIB, FRAME), 4, SEED, &p);
    flow_expect(&f, MS, -ETIMEDOUT);
    if (!room_before) {
        hog_shrink(&r, &hog, ROOM);
    }
    flow_expect(&g, 100 * MS, -ETIMEDOUT);
    CHECK_EQ(rig_stats(&r)->window_reserved_bytes, 0);
    hog_release(&r, &hog);
    flow_drain(&g);
    CHECK_EQ(rig_stats(&r)->window_reserved_bytes, 22 * FRAME);
    flow_drain(&f);
    flow_close(&f);
    flow_close(&g);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* What is left is shared: a stream's window shrinks when others open, and is given back piece by
 * piece as it releases; it grows again when they close. */
static void test_shares(void)
{
    struct chm_range objs[64];
    const struct chm_stream_options o = {.segment_bytes = 2 * FRAME};
    uint32_t out;
    struct rig r;
    struct flow f, g;

    setup(&r);
    f = flow_open(&r, row(objs, 64, 0, 2 * FRAME), 64, SEED, &o);
    CHECK(flow_info(&f).ahead == 19 || flow_info(&f).ahead == 21); /* the reserve may lie idle */
    out = flow_info(&f).ahead;
    g = flow_open(&r, row(objs, 64, 0, 2 * FRAME), 64, SEED, &o);
    CHECK_EQ(flow_info(&f).window_bytes, FRAMES * FRAME / 2);
    CHECK_EQ(flow_info(&g).window_bytes, FRAMES * FRAME / 2);
    while (out > FRAMES / 4) {
        flow_run(&f, 1);
        CHECK_EQ(flow_info(&f).ahead, --out);
    }
    flow_run(&f, 1);
    CHECK_EQ(flow_info(&f).ahead, out);
    flow_run(&g, 20);
    CHECK(flow_info(&g).ahead <= FRAMES / 4);
    flow_close(&g);
    flow_run(&f, 1);
    CHECK(flow_info(&f).ahead > out);
    flow_drain(&f);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ holding and giving back */

/* -EDEADLK at once when all that it could have is held, and on it goes after any release. */
static void test_deadlk(void)
{
    struct chm_range objs[16];
    const struct chm_stream_options o = {.segment_bytes = 2 * FRAME};
    struct chm_piece a, b, c;
    struct hog hog;
    uint64_t now;
    struct rig r;
    struct flow f;

    setup(&r);
    hog_fill(&r, &hog, 8 * MIB);
    hog_shrink(&r, &hog, 4);
    f = flow_open(&r, row(objs, 16, 0, 2 * FRAME), 16, SEED, &o);
    a = flow_next(&f);
    b = flow_next(&f);
    now = chm_now(r.dev);
    flow_expect(&f, RIG_LONG, -EDEADLK);
    flow_expect(&f, 0, -EDEADLK);
    CHECK_EQ(chm_now(r.dev), now);
    CHECK_IS(flow_info(&f).status, 0);
    flow_release(&f, &b);
    c = flow_next(&f);
    flow_expect(&f, RIG_LONG, -EDEADLK);
    flow_release(&f, &a);
    b = flow_next(&f);
    flow_check_bytes(&f, &c);
    flow_release(&f, &c);
    flow_release(&f, &b);
    flow_drain(&f);
    flow_close(&f);
    hog_release(&r, &hog);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* A piece is given back once, by its own stream. */
static void test_release(void)
{
    struct chm_range objs[8];
    struct chm_piece p[4];
    struct rig r;
    struct flow f, g;

    setup(&r);
    f = flow_open(&r, row(objs, 8, 0, FRAME), 8, SEED, NULL);
    g = flow_open(&r, objs, 8, SEED, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        p[i] = flow_next(&f);
    }
    for (uint32_t i = 4; i-- > 0;) {
        CHECK_IS(chm_stream_release(g.s, p[i].req), -ESTALE);
        flow_check_bytes(&f, &p[i]);
        flow_release(&f, &p[i]);
        CHECK_IS(chm_stream_release(f.s, p[i].req), -ESTALE);
        CHECK_EQ(flow_info(&f).held, i);
    }
    CHECK_IS(chm_stream_release(f.s, 0), -ESTALE);
    CHECK_IS(chm_stream_release(NULL, p[0].req), -EINVAL);
    flow_drain(&f);
    flow_close(&f);
    flow_close(&g);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* A consumer that keeps its first piece to the end holds one: the rest goes by all the same. */
static void test_first_is_kept(void)
{
    enum { MANY = 1000 };
    static struct chm_range objs[MANY];
    struct chm_piece first;
    struct rig r;
    struct flow f;

    setup(&r);
    f = flow_open(&r, row(objs, MANY, 0, PAGE), MANY, SEED, NULL);
    first = flow_next(&f);
    CHECK_EQ(flow_drain(&f), MANY - 1);
    flow_check_bytes(&f, &first);
    flow_release(&f, &first);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* What is held keeps its bytes while its place is written or trimmed (F50); what is issued later
 * has the new ones. */
static void test_overwritten_while_held(void)
{
    struct chm_range objs[4];
    const struct chm_stream_options o = {.window_bytes = 4 * FRAME};
    struct chm_piece p, q;
    struct rig r;
    struct flow f;

    setup(&r);
    f = flow_open(&r, row(objs, 4, 0, 2 * FRAME), 4, SEED, &o);
    p = flow_next(&f);
    q = flow_next(&f);
    rig_write(&r, 0, 4 * FRAME, 7);
    CHECK_IS(chm_trim(r.dev, 0, 2 * FRAME), 0);
    rig_write(&r, 4 * FRAME, 4 * FRAME, 8);
    CHECK_IS(chm_flush(r.dev, RIG_LONG), 0);
    flow_check_bytes(&f, &p);
    flow_check_bytes(&f, &q);
    flow_release(&f, &p);
    flow_release(&f, &q);
    f.seed = 8;
    flow_drain(&f);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ sharing */

/* Two streams and a prefetch over the same list read it once. */
static void test_shared_in_the_pool(void)
{
    struct chm_range objs[4];
    struct rig r;
    struct flow f, g;
    uint64_t req;

    setup(&r);
    f = flow_open(&r, row(objs, 4, 0, 2 * FRAME), 4, SEED, NULL);
    g = flow_open(&r, objs, 4, SEED, NULL);
    req = rig_issue(&r, 0, 2 * FRAME);
    for (uint32_t i = 0; i < 4; i++) {
        struct chm_piece p = flow_next(&f), q = flow_next(&g);

        CHECK(p.data == q.data && p.req != q.req);
        flow_release(&f, &p);
        flow_check_bytes(&g, &q);
        flow_release(&g, &q);
    }
    rig_expect_staged(&r, req, 0, 2 * FRAME, SEED);
    CHECK_IS(chm_release(r.dev, req), 0);
    CHECK_EQ(rig_stats(&r)->read_bytes, 8 * FRAME);
    CHECK_EQ(r.stats.shared, 5);
    flow_close(&f);
    flow_close(&g);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* A reserved run comes back when its stream lets go, so nobody else may have a part in it. */
static void test_not_shared_in_the_reserve(void)
{
    const struct chm_stream_options o = {.segment_bytes = 2 * FRAME};
    const struct chm_issue_options now = {.flags = CHM_ISSUE_NOWAIT};
    struct chm_range objs[4];
    struct chm_piece p;
    struct hog hog;
    struct rig r;
    struct flow f;

    setup(&r);
    hog_fill(&r, &hog, 8 * MIB);
    hog_shrink(&r, &hog, 4);
    f = flow_open(&r, row(objs, 4, 0, 2 * FRAME), 4, SEED, &o);
    p = flow_next(&f);
    CHECK_IS(rig_issue_with(&r, 0, 2 * FRAME, &now).status, -EAGAIN);
    CHECK_EQ(rig_stats(&r)->shared, 0);
    flow_release(&f, &p);
    flow_drain(&f);
    flow_close(&f);
    hog_release(&r, &hog);
    rig_check_quiet(&r);
    rig_close(&r);
}

int main(void)
{
    test_order();
    test_list_is_copied();
    test_segment_bytes(4 * FRAME, 4 * FRAME);
    test_segment_bytes(PAGE, PAGE);
    test_segment_bytes(100000, 24 * PAGE);
    test_whole();
    test_window_bytes();
    test_reserved_is_kept();
    test_demand_reads_go_on();
    test_admitted_in_order(false);
    test_admitted_in_order(true);
    test_shares();
    test_deadlk();
    test_release();
    test_first_is_kept();
    test_overwritten_while_held();
    test_shared_in_the_pool();
    test_not_shared_in_the_reserve();
    return 0;
}
