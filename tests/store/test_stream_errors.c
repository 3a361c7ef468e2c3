/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that fail, are refused, or are abandoned. */
#include "rig.h"

enum { SEED = 4 };

static void setup(struct rig *r)
{
    rig_sim(r);
    rig_open(r);
    CHECK_EQ(r->info.window_bytes, FRAMES * FRAME);
    rig_lay(r, 0, 8 * MIB, SEED);
}

/* Object 5 of 8 cannot be read: four are the usable prefix, the error is final (F94). */
static void test_read_error(uint32_t held_max)
{
    struct chm_range objs[8];
    struct chm_piece p[4];
    struct rig r;
    struct flow f;

    rig_sim(&r);
    rig_open_faulty(&r, "4 read err 5\n");
    rig_lay(&r, 0, MIB, SEED);
    f = flow_open(&r, row(objs, 8, 0, 2 * FRAME), 8, SEED, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        p[i] = flow_next(&f);
        if (i >= held_max) {
            flow_release(&f, &p[i]);
        }
    }
    flow_expect(&f, RIG_LONG, -EIO);
    flow_expect(&f, RIG_LONG, -EIO);
    CHECK_EQ(flow_info(&f).whole_objects, 4);
    CHECK_EQ(flow_info(&f).delivered_bytes, 8 * FRAME);
    CHECK_EQ(flow_info(&f).ready_bytes, 8 * FRAME);
    CHECK_IS(flow_info(&f).status, -EIO);
    for (uint32_t i = 0; i < held_max; i++) { /* what was delivered stays good */
        flow_check_bytes(&f, &p[i]);
        flow_release(&f, &p[i]);
    }
    flow_expect(&f, RIG_LONG, -EIO);
    flow_close(&f);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* The same where it is known at issue already: bytes that were lost on their way to the drive. */
static void test_lost_bytes(uint32_t held_max)
{
    struct chm_range objs[8];
    struct chm_piece p[4];
    uint64_t now;
    struct rig r;
    struct flow f;

    rig_sim(&r);
    rig_open_faulty(&r, "0- write err 5\n");
    rig_write(&r, 8 * FRAME, 2 * FRAME, SEED);
    CHECK_IS(chm_flush(r.dev, RIG_LONG), -EIO);
    f = flow_open(&r, row(objs, 8, 0, 2 * FRAME), 8, 0, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        p[i] = flow_next(&f);
        if (i >= held_max) {
            flow_release(&f, &p[i]);
        }
    }
    now = chm_now(r.dev);
    flow_expect(&f, RIG_LONG, -EIO);
    CHECK_EQ(chm_now(r.dev), now);
    CHECK_EQ(flow_info(&f).whole_objects, 4);
    CHECK_IS(flow_info(&f).status, -EIO);
    flow_close(&f);
    CHECK_IS(chm_close(r.dev, RIG_LONG), 0); /* the loss was told by the flush */
}

static void check_open(struct rig *r, const struct chm_range *objs, uint32_t n, int rc)
{
    chm_stream *s = (chm_stream *)(uintptr_t)1;

    CHECK_IS(chm_stream_open(r->dev, objs, n, NULL, &s), rc);
    CHECK(s == (chm_stream *)(uintptr_t)1);
}

static void test_bad_arguments(void)
{
    static const struct chm_range good = {0, MIB};
    struct chm_range list[3] = {{0, PAGE}, {0, PAGE}, {0, PAGE}};
    struct rig r;
    chm_stream *s;
    struct chm_piece p;
    struct flow f;

    setup(&r);
    check_open(&r, NULL, 1, -EINVAL);
    check_open(&r, &good, 0, -EINVAL);
    CHECK_IS(chm_stream_open(NULL, &good, 1, NULL, &s), -EINVAL);
    CHECK_IS(chm_stream_open(r.dev, &good, 1, NULL, NULL), -EINVAL);
    list[2] = (struct chm_range){0, 0};
    check_open(&r, list, 3, -EINVAL);
    list[2] = (struct chm_range){1, PAGE};
    check_open(&r, list, 3, -EINVAL);
    list[2] = (struct chm_range){PAGE, PAGE + 512};
    check_open(&r, list, 3, -EINVAL);
    list[2] = (struct chm_range){r.info.capacity_bytes, PAGE};
    check_open(&r, list, 3, -ERANGE);
    list[2] = (struct chm_range){r.info.capacity_bytes - PAGE, 2 * PAGE};
    check_open(&r, list, 3, -ERANGE);
    list[2] = (struct chm_range){UINT64_MAX - PAGE + 1, PAGE};
    check_open(&r, list, 3, -ERANGE);
    list[2] = (struct chm_range){PAGE, UINT64_MAX - PAGE + 1};
    check_open(&r, list, 3, -ERANGE);
    f = flow_open(&r, &good, 1, SEED, NULL);
    CHECK_EQ(flow_info(&f).window_bytes, r.info.window_bytes); /* none of those counts as open */
    CHECK_IS(chm_stream_next(f.s, 0, NULL), -EINVAL);
    CHECK_IS(chm_stream_next(NULL, 0, &p), -EINVAL);
    CHECK_IS(chm_stream_info(f.s, NULL), -EINVAL);
    CHECK_IS(chm_close(r.dev, 0), -EBUSY);
    flow_drain(&f);
    flow_close(&f);
    CHECK_IS(chm_stream_close(NULL), 0);
    rig_check_quiet(&r);
    rig_close(&r);
}

/* More streams than requests: refused, and nothing is left of the attempt. */
static void test_too_many(void)
{
    static const struct chm_range one = {0, PAGE};
    chm_stream *s[16];
    uint32_t n = 0;
    struct rig r;

    rig_sim(&r);
    r.opt.requests_max = 16;
    rig_open(&r);
    while (chm_stream_open(r.dev, &one, 1, NULL, &s[n]) == 0) {
        n++;
        CHECK(n < 16);
    }
    check_open(&r, &one, 1, -EBUSY);
    CHECK(n >= 2);
    while (n-- > 0) {
        CHECK_IS(chm_stream_close(s[n]), 0);
    }
    rig_check_quiet(&r);
    rig_close(&r);
}

/* Abandoned with pieces held, staged, and in flight: all of it comes back (F13). */
static void test_abandoned(void)
{
    struct chm_range objs[8];
    const struct chm_stream_options o = {.segment_bytes = 2 * FRAME};
    struct rig r;
    struct flow f;

    setup(&r);
    for (uint32_t taken = 0; taken < 6; taken++) {
        f = flow_open(&r, row(objs, 8, 0, MIB), 8, SEED, &o);
        for (uint32_t i = 0; i < taken; i++) {
            flow_next(&f);
        }
        flow_close(&f);
    }
    CHECK_IS(chm_quiesce(r.dev, RIG_LONG), 0);
    rig_check_quiet(&r);
    f = flow_open(&r, objs, 8, SEED, NULL);
    flow_close(&f);
    rig_close(&r); /* with its reads in flight */
}

int main(void)
{
    test_read_error(0);
    test_read_error(4);
    test_lost_bytes(0);
    test_lost_bytes(4);
    test_bad_arguments();
    test_too_many();
    test_abandoned();
    return 0;
}
