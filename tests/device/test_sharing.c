/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staged slots that several requests share: one read, one space, until the last of them lets go;
 * never bytes from before a write.
 */
#include "device/rig.h"

static const uint64_t LONG = 10ull * CHM_SECOND;

static void check_sharing(void)
{
    struct rig r;
    uint64_t a, b, c;

    rig_sim(&r);
    rig_open(&r);
    rig_lay(&r, 0, 64 * KIB, 1);
    a = rig_issue(&r, 0, 64 * KIB);
    b = rig_issue(&r, 0, 64 * KIB); /* on its way */
    rig_expect_staged(&r, a, 0, 64 * KIB, 1);
    c = rig_issue(&r, 0, 64 * KIB); /* there already: ready at once */
    CHECK_IS(chm_wait(r.dev, c, 0), 0);
    CHECK(rig_view(&r, a, 64 * KIB) == rig_view(&r, b, 64 * KIB));
    CHECK(rig_view(&r, a, 64 * KIB) == rig_view(&r, c, 64 * KIB));
    CHECK_EQ(rig_stats(&r)->shared, 2);
    CHECK_EQ(r.stats.read_ios, 1);
    CHECK_EQ(r.stats.window_used_bytes, 64 * KIB);
    /* The space lives until the last of them lets go. */
    CHECK_IS(chm_release(r.dev, a), 0);
    CHECK_IS(chm_release(r.dev, c), 0);
    CHECK_HOLDS(rig_view(&r, b, 64 * KIB), 0, 64 * KIB, 1);
    CHECK_EQ(rig_stats(&r)->window_used_bytes, 64 * KIB);
    CHECK_IS(chm_release(r.dev, b), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* A part of what is staged shares its slot, wherever in it it lies. */
static void check_shared_part(void)
{
    struct rig r;
    uint64_t whole, part, late;
    int steps = 0;

    rig_sim(&r);
    r.opt.read_unit = 64 * KIB;
    rig_open(&r);
    rig_lay(&r, 0, 256 * KIB, 1);
    whole = rig_issue(&r, 0, 256 * KIB);
    part = rig_issue(&r, 128 * KIB, 128 * KIB); /* on its way */
    for (uint64_t there = 0; there < 256 * KIB; rig_run(&r, 5 * US)) {
        there = (uint64_t)chm_progress(r.dev, whole);
        CHECK_EQ(chm_progress(r.dev, part), there < 128 * KIB ? 0 : there - 128 * KIB);
        steps += there > 0 && there < 256 * KIB;
    }
    CHECK(steps > 0);
    rig_expect_staged(&r, whole, 0, 256 * KIB, 1);
    rig_expect_staged(&r, part, 128 * KIB, 128 * KIB, 1);
    late = rig_issue(&r, 252 * KIB, PAGE); /* the end of it */
    CHECK_IS(chm_wait(r.dev, late, 0), 0);
    CHECK_EQ(chm_progress(r.dev, late), PAGE);
    CHECK(rig_view(&r, part, 128 * KIB) == rig_view(&r, whole, 256 * KIB) + 128 * KIB);
    CHECK_EQ(rig_stats(&r)->shared, 2);
    CHECK_EQ(r.stats.window_used_bytes, 256 * KIB);
    /* The part keeps the whole. */
    CHECK_IS(chm_release(r.dev, whole), 0);
    CHECK_IS(chm_release(r.dev, late), 0);
    CHECK_HOLDS(rig_view(&r, part, 128 * KIB), 128 * KIB, 128 * KIB, 1);
    CHECK_EQ(rig_stats(&r)->window_used_bytes, 256 * KIB);
    CHECK_IS(chm_release(r.dev, part), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

/* Not shared after a write or trim of any part, and not with what is only near. */
static void check_not_shared(void)
{
    struct rig r;
    uint64_t req[6];

    rig_sim(&r);
    rig_open(&r);
    rig_lay(&r, 0, 128 * KIB, 1);
    req[0] = rig_issue(&r, 0, 64 * KIB);
    req[1] = rig_issue(&r, PAGE, 64 * KIB);
    req[2] = rig_issue(&r, 0, 128 * KIB);
    rig_write(&r, 15 * PAGE, PAGE, 2);
    req[3] = rig_issue(&r, 0, 64 * KIB);
    CHECK_IS(chm_trim(r.dev, 0, PAGE), 0);
    req[4] = rig_issue(&r, 0, 64 * KIB);
    CHECK_EQ(rig_stats(&r)->shared, 0);
    req[5] = rig_issue(&r, 0, 64 * KIB);
    CHECK_EQ(rig_stats(&r)->shared, 1);
    rig_expect_staged(&r, req[0], 0, 64 * KIB, 1);
    rig_expect_staged(&r, req[1], PAGE, 64 * KIB, 1);
    rig_expect_staged(&r, req[2], 0, 128 * KIB, 1);
    CHECK_IS(chm_wait(r.dev, req[3], LONG), 0);
    CHECK_IS(chm_wait(r.dev, req[5], LONG), 0);
    uint8_t *third = rig_view(&r, req[3], 64 * KIB), *last = rig_view(&r, req[5], 64 * KIB);
    CHECK_HOLDS(third, 0, 15 * PAGE, 1);
    CHECK_HOLDS(third + 15 * PAGE, 15 * PAGE, PAGE, 2);
    CHECK_HOLDS(last, 0, PAGE, 0);
    CHECK_HOLDS(last + PAGE, PAGE, 14 * PAGE, 1);
    CHECK_HOLDS(last + 15 * PAGE, 15 * PAGE, PAGE, 2);
    CHECK_IS(chm_release_many(r.dev, req, 6, NULL), 6);
    rig_run(&r, CHM_SECOND);
    rig_check_idle(&r);
    rig_close(&r);
}

/* An open or aborted write is no write. */
static void check_shared_past_open_write(void)
{
    struct rig r;
    struct chm_write w;
    uint64_t a, b;
    int32_t status;

    rig_sim(&r);
    rig_open(&r);
    a = rig_issue(&r, 0, 64 * KIB);
    w = rig_begin(&r, 0, PAGE, 4);
    b = rig_issue(&r, 0, 64 * KIB);
    CHECK_IS(chm_write_abort(r.dev, &w.id, 1, &status), 1);
    CHECK_EQ(rig_stats(&r)->shared, 1);
    rig_expect_staged(&r, b, 0, 64 * KIB, 0);
    CHECK_IS(chm_release(r.dev, a), 0);
    CHECK_IS(chm_release(r.dev, b), 0);
    rig_close(&r);
}

/* A trim over more than the window holds: every slot in it is not found any more, one that it does
 * not touch is, and holders keep what they had. */
static void check_long_trim(void)
{
    enum { N = 8, LEN = 64 << 10, APART = 1 << 20 };
    struct rig r;
    uint64_t held[N], again[N];

    rig_sim(&r);
    rig_open(&r);
    CHECK(r.info.window_bytes < (N - 1) * APART);
    for (uint64_t i = 0; i < N; i++) {
        rig_lay(&r, i * APART, LEN, 1);
        held[i] = rig_issue(&r, i * APART, LEN);
    }
    CHECK_IS(chm_trim(r.dev, 0, (N - 2) * APART + PAGE), 0); /* of the last but one a page */
    for (uint64_t i = 0; i < N; i++) {
        again[i] = rig_issue(&r, i * APART, LEN);
    }
    CHECK_EQ(rig_stats(&r)->shared, 1);
    CHECK_EQ(r.stats.window_used_bytes, (2 * N - 1) * LEN);
    for (uint64_t i = 0; i < N; i++) {
        uint64_t gone = i < N - 2 ? LEN : i == N - 2 ? PAGE : 0;
        const uint8_t *p;

        rig_expect_staged(&r, held[i], i * APART, LEN, 1);
        CHECK_IS(chm_wait(r.dev, again[i], LONG), 0);
        p = rig_view(&r, again[i], LEN);
        CHECK(is_byte(p, gone, 0));
        CHECK_HOLDS(p + gone, i * APART + gone, LEN - gone, 1);
    }
    CHECK_IS(chm_release_many(r.dev, held, N, NULL), N);
    CHECK_IS(chm_release_many(r.dev, again, N, NULL), N);
    rig_run(&r, CHM_SECOND);
    rig_check_idle(&r);
    rig_close(&r);
}

int main(void)
{
    check_long_trim();
    check_sharing();
    check_shared_part();
    check_not_shared();
    check_shared_past_open_write();
    return 0;
}
