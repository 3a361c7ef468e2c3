/* SPDX-License-Identifier: Apache-2.0 */
/* The run allocator and the bitmap functions against one byte per unit. */
#include <string.h>

#include "check.h"
#include "util/runs.h"
#include "util/util.h"

enum { UNITS_MAX = 1000, STEPS = 20000 };

struct model {
    struct chm_runs runs;
    uint64_t words[UNITS_MAX / 64 + 2]; /* one more than needed: must stay as it was */
    uint8_t used[UNITS_MAX];
    uint64_t units;
    uint64_t random;
};

static const uint64_t guard = 0xa5a5a5a5a5a5a5a5u;

static uint64_t pick(struct model *m, uint64_t below)
{
    return chm_random(&m->random) % below;
}

static uint64_t guard_at(const struct model *m)
{
    return chm_runs_bytes(m->units) / 8;
}

/* Units of the kind `used` that follow from `at` on. */
static uint64_t span(const struct model *m, uint64_t at, uint8_t used)
{
    uint64_t end = at;

    while (end < m->units && m->used[end] == used) {
        end++;
    }
    return end - at;
}

static uint64_t model_take(const struct model *m, uint64_t n, uint64_t from)
{
    for (uint64_t at = from; at < m->units; at++) {
        if (span(m, at, 0) >= n) {
            return at;
        }
    }
    for (uint64_t at = 0; at < chm_min(from, m->units); at++) {
        if (span(m, at, 0) >= n) {
            return at;
        }
    }
    return CHM_RUNS_NONE;
}

static void check_same(const struct model *m)
{
    uint64_t used = 0, largest = 0;

    for (uint64_t i = 0; i < m->units; i++) {
        CHECK_EQ(m->words[i / 64] >> (i % 64) & 1, m->used[i]);
        used += m->used[i];
        largest = chm_max(largest, span(m, i, 0));
    }
    CHECK_EQ(m->runs.used, used);
    CHECK_EQ(chm_runs_largest(&m->runs), largest);
    if (m->units % 64) {
        CHECK_EQ(m->words[m->units / 64] >> (m->units % 64), 0);
    }
    CHECK_EQ(m->words[guard_at(m)], guard);
}

static void step_take(struct model *m)
{
    uint64_t n = 1 + pick(m, pick(m, 3) ? 6 : m->units), from = pick(m, m->units + 3);
    uint64_t expected = model_take(m, n, from), got = chm_runs_take(&m->runs, n, from);

    CHECK_EQ(got, expected);
    if (got != CHM_RUNS_NONE) {
        memset(&m->used[got], 1, n);
    }
}

static void step_claim(struct model *m)
{
    uint64_t at = pick(m, m->units), n = span(m, at, 0);

    if (n > 0) {
        n = 1 + pick(m, n);
        chm_runs_claim(&m->runs, at, n);
        memset(&m->used[at], 1, n);
    }
}

/* Any part of what is in use may come back, not only what was taken in one piece. */
static void step_give(struct model *m)
{
    uint64_t at = pick(m, m->units), n = span(m, at, 1);

    if (n > 0) {
        n = 1 + pick(m, n);
        chm_runs_give(&m->runs, at, n);
        memset(&m->used[at], 0, n);
    }
}

static void check_bits(struct model *m)
{
    uint64_t at = pick(m, m->units + 1), end = at + pick(m, m->units - at + 1);
    uint64_t set = chm_min(end, at + (at < end ? span(m, at, 0) : 0));
    uint64_t clear = chm_min(end, at + (at < end ? span(m, at, 1) : 0));

    CHECK_EQ(chm_bits_next_set(m->words, at, end), set);
    CHECK_EQ(chm_bits_next_clear(m->words, at, end), clear);
}

static void test_random(uint64_t units)
{
    static struct model m;

    m = (struct model){.units = units, .random = units};
    memset(m.words, 0xff, sizeof(m.words)); /* init has to clear it */
    m.words[guard_at(&m)] = guard;
    chm_runs_init(&m.runs, m.words, units);
    check_same(&m);
    for (uint32_t i = 0; i < STEPS; i++) {
        bool grow = (i / 500) % 2 == 0;

        if (pick(&m, 4) == 0) {
            step_claim(&m);
        } else if (grow ? pick(&m, 4) > 0 : pick(&m, 4) == 0) {
            step_take(&m);
        } else {
            step_give(&m);
        }
        check_bits(&m);
        if (i % 13 == 0) {
            check_same(&m);
        }
    }
}

static void test_bits(void)
{
    uint64_t words[4];
    uint8_t model[256];
    uint64_t random = 3;

    memset(words, 0, sizeof(words));
    memset(model, 0, sizeof(model));
    for (uint32_t k = 0; k < STEPS; k++) {
        uint64_t at = chm_random(&random) % 256, n = chm_random(&random) % (256 - at + 1);
        bool set = chm_random(&random) & 1;

        if (set) {
            chm_bits_set(words, at, n);
        } else {
            chm_bits_clear(words, at, n);
        }
        memset(&model[at], set, n);
        for (uint32_t i = 0; i < 256; i++) {
            CHECK_EQ(words[i / 64] >> (i % 64) & 1, model[i]);
        }
    }
}

/* "At or after from, else before it", and never round the end. */
static void test_start_point(void)
{
    uint64_t words[2];
    struct chm_runs r;

    chm_runs_init(&r, words, 100);
    CHECK_EQ(chm_runs_take(&r, 10, 60), 60);
    CHECK_EQ(chm_runs_take(&r, 30, 60), 70); /* to the very end */
    CHECK_EQ(chm_runs_take(&r, 5, 60), 0);   /* nothing there: from the front */
    CHECK_EQ(chm_runs_take(&r, 1, 59), 59);
    CHECK_EQ(chm_runs_take(&r, 54, 30), 5);           /* begins before `from`, ends after it */
    CHECK_EQ(chm_runs_take(&r, 1, 0), CHM_RUNS_NONE); /* full */
    CHECK_EQ(chm_runs_largest(&r), 0);
    chm_runs_give(&r, 0, 3);
    chm_runs_give(&r, 97, 3);
    CHECK_EQ(chm_runs_take(&r, 6, 97), CHM_RUNS_NONE); /* six are free, but not in one run */
    CHECK_EQ(chm_runs_take(&r, 101, 0), CHM_RUNS_NONE);
    CHECK_EQ(chm_runs_take(&r, UINT64_MAX, 0), CHM_RUNS_NONE);
    CHECK_EQ(chm_runs_take(&r, 3, UINT64_MAX), 0); /* past the end: from the front */
    CHECK_EQ(r.used, 97);
}

static void test_sizes(void)
{
    CHECK_EQ(chm_runs_bytes(0), 0);
    CHECK_EQ(chm_runs_bytes(1), 8);
    CHECK_EQ(chm_runs_bytes(64), 8);
    CHECK_EQ(chm_runs_bytes(65), 16);
}

static void give_twice(void)
{
    uint64_t words[2];
    struct chm_runs r;

    chm_runs_init(&r, words, 100);
    CHECK_EQ(chm_runs_take(&r, 10, 0), 0);
    chm_runs_give(&r, 5, 5);
    chm_runs_give(&r, 0, 10); /* its second half is free already */
}

static void give_past_end(void)
{
    uint64_t words[2];
    struct chm_runs r;

    chm_runs_init(&r, words, 100);
    CHECK_EQ(chm_runs_take(&r, 100, 0), 0);
    chm_runs_give(&r, 99, 2);
}

static void claim_used(void)
{
    uint64_t words[2];
    struct chm_runs r;

    chm_runs_init(&r, words, 100);
    chm_runs_claim(&r, 70, 10);
    chm_runs_claim(&r, 60, 11);
}

int main(void)
{
    static const uint64_t sizes[] = {1, 2, 63, 64, 65, 127, 128, 200, UNITS_MAX};

    test_sizes();
    test_bits();
    for (size_t i = 0; i < CHM_COUNT(sizes); i++) {
        test_random(sizes[i]);
    }
    test_start_point();
    check_aborts(give_twice);
    check_aborts(give_past_end);
    check_aborts(claim_used);
    return 0;
}
