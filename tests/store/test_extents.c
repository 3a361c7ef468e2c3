/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free space of a store against a model that marks every unit: random takes and gives, with the
 * same place, totals, number of extents and largest extent as the model has. F31, F37.
 */
#include "store/extents.h"

#include <errno.h>
#include <string.h>

#include "util/check.h"
#include "util/util.h"

enum {
    UNITS = 512,
    TAKEN_MAX = UNITS,
    STEPS = 30000,
};

static const uint64_t BASE = 7 << 20, UNIT = 4096;

struct piece {
    uint64_t at, n; /* units */
};

struct model {
    struct chm_extents e;
    uint8_t used[UNITS];
    struct piece taken[TAKEN_MAX];
    uint32_t count;
    uint64_t random;
};

static uint64_t pick(struct model *m, uint64_t below)
{
    return chm_random(&m->random) % below;
}

/* The lowest run of n free units, or UNITS. */
static uint64_t model_fit(const struct model *m, uint64_t n)
{
    uint64_t run = 0;

    for (uint64_t i = 0; i < UNITS; i++) {
        run = m->used[i] ? 0 : run + 1;
        if (run == n) {
            return i + 1 - n;
        }
    }
    return UNITS;
}

static void check(struct model *m)
{
    uint64_t run = 0, largest = 0, extents = 0, free_units = 0;

    for (uint64_t i = 0; i < UNITS; i++) {
        run = m->used[i] ? 0 : run + 1;
        extents += run == 1;
        free_units += run > 0;
        largest = chm_max(largest, run);
    }
    CHECK_EQ(m->e.free_bytes, free_units * UNIT);
    CHECK_EQ(m->e.free.count, extents);
    CHECK_EQ(chm_extents_largest(&m->e), largest * UNIT);
}

static void take(struct model *m, uint64_t n)
{
    uint64_t want = model_fit(m, n), addr = 1;
    int rc = chm_extents_take(&m->e, n * UNIT, &addr);

    if (want == UNITS) {
        CHECK_EQ(rc, -ENOSPC);
        CHECK_EQ(addr, 1);
        return;
    }
    CHECK_EQ(rc, 0);
    CHECK_EQ(addr, BASE + want * UNIT);
    memset(m->used + want, 1, n);
    m->taken[m->count++] = (struct piece){.at = want, .n = n};
}

static void give(struct model *m, uint32_t i)
{
    struct piece p = m->taken[i];

    m->taken[i] = m->taken[--m->count];
    memset(m->used + p.at, 0, p.n);
    chm_extents_give(&m->e, BASE + p.at * UNIT, p.n * UNIT);
}

static void give_all(struct model *m)
{
    while (m->count) {
        give(m, (uint32_t)pick(m, m->count));
    }
    check(m);
    CHECK_EQ(m->e.free.count, 1);
}

static void open_model(struct model *m, uint64_t seed)
{
    *m = (struct model){.random = seed};
    CHECK_EQ(chm_extents_open(&m->e, BASE, UNITS * UNIT, TAKEN_MAX + 1), 0);
    check(m);
}

/* Mostly single units, now and then a large one; swings between nearly empty and full. */
static void test_random(uint64_t seed, uint64_t largest)
{
    static struct model m;

    open_model(&m, seed);
    for (uint32_t i = 0; i < STEPS; i++) {
        bool grow = pick(&m, 10) < ((i / 3000) % 2 ? 3 : 7);

        if (grow) {
            take(&m, 1 + (pick(&m, 3) ? pick(&m, 4) : pick(&m, largest)));
        } else if (m.count) {
            give(&m, (uint32_t)pick(&m, m.count));
        }
        if (i % 16 == 0) {
            check(&m);
        }
    }
    give_all(&m);
    chm_extents_close(&m.e);
}

/* Every other unit is free: as many extents as there can be, and each of them holds one unit. */
static void test_checkerboard(void)
{
    static struct model m;
    uint64_t addr;

    open_model(&m, 1);
    for (uint32_t i = 0; i < UNITS; i++) {
        take(&m, 1);
    }
    CHECK_EQ(chm_extents_take(&m.e, UNIT, &addr), -ENOSPC);
    for (uint32_t i = 0; i < UNITS; i += 2) {
        m.used[i] = 0;
        chm_extents_give(&m.e, BASE + i * UNIT, UNIT);
    }
    check(&m);
    CHECK_EQ(m.e.free.count, UNITS / 2);
    CHECK_EQ(chm_extents_take(&m.e, 2 * UNIT, &addr), -ENOSPC);
    for (uint32_t i = 1; i < UNITS; i += 2) {
        chm_extents_give(&m.e, BASE + i * UNIT, UNIT);
    }
    CHECK_EQ(m.e.free.count, 1);
    CHECK_EQ(chm_extents_largest(&m.e), UNITS * UNIT);
    chm_extents_close(&m.e);
}

/* Memory for extents comes back, so that churn never runs out of it. */
static void test_pool_is_reused(void)
{
    struct chm_extents e;
    uint64_t addr[2];

    CHECK_EQ(chm_extents_open(&e, 0, 4 * UNIT, 3), 0);
    for (uint32_t i = 0; i < 1000; i++) {
        CHECK_EQ(chm_extents_take(&e, UNIT, &addr[0]), 0);
        CHECK_EQ(chm_extents_take(&e, 2 * UNIT, &addr[1]), 0);
        chm_extents_give(&e, addr[0], UNIT);
        chm_extents_give(&e, addr[1], 2 * UNIT);
    }
    CHECK_EQ(e.free.count, 1);
    CHECK(e.touched <= 3);
    chm_extents_close(&e);
}

static void give_twice(void)
{
    struct chm_extents e;
    uint64_t addr;

    CHECK_EQ(chm_extents_open(&e, 0, 4 * UNIT, 3), 0);
    CHECK_EQ(chm_extents_take(&e, 2 * UNIT, &addr), 0);
    chm_extents_give(&e, addr, UNIT);
    chm_extents_give(&e, addr, 2 * UNIT);
}

int main(void)
{
    test_random(11, 16);
    test_random(12, 200);
    test_checkerboard();
    test_pool_is_reused();
    check_aborts(give_twice);
    return 0;
}
