/* SPDX-License-Identifier: Apache-2.0 */
/* The timer heap against a linear search. */
#include "check.h"
#include "util/timers.h"
#include "util/util.h"

enum {
    TIMERS = 60,
    TIMES = 40, /* few, so that ties are common */
    STEPS = 200000
};

struct model {
    struct chm_timers timers;
    struct chm_timer *heap[TIMERS];
    struct chm_timer timer[TIMERS];
    uint64_t at[TIMERS]; /* UINT64_MAX: not set */
    uint64_t order[TIMERS];
    uint64_t calls;
    uint64_t random;
};

static uint64_t pick(struct model *m, uint64_t below)
{
    return chm_random(&m->random) % below;
}

/* The timer that has to come next, or TIMERS. */
static uint32_t model_first(const struct model *m)
{
    uint32_t best = TIMERS;

    for (uint32_t i = 0; i < TIMERS; i++) {
        if (m->at[i] == UINT64_MAX) {
            continue;
        }
        if (best == TIMERS || m->at[i] < m->at[best] ||
            (m->at[i] == m->at[best] && m->order[i] < m->order[best])) {
            best = i;
        }
    }
    return best;
}

static void step_set(struct model *m, uint32_t i, uint64_t at)
{
    m->at[i] = at;
    m->order[i] = m->calls++;
    chm_timer_set(&m->timers, &m->timer[i], at);
}

static void step_pop(struct model *m, uint64_t now)
{
    uint32_t first = model_first(m);
    struct chm_timer *got = chm_timers_pop(&m->timers, now);

    if (first == TIMERS || m->at[first] > now) {
        CHECK(got == NULL);
        return;
    }
    CHECK(got == &m->timer[first]);
    CHECK_EQ(got->slot, 0);
    m->at[first] = UINT64_MAX;
}

static void check_same(const struct model *m)
{
    uint32_t first = model_first(m), count = 0;

    CHECK_EQ(chm_timers_next(&m->timers), first == TIMERS ? UINT64_MAX : m->at[first]);
    for (uint32_t i = 0; i < TIMERS; i++) {
        CHECK_EQ(m->timer[i].slot != 0, m->at[i] != UINT64_MAX);
        if (m->timer[i].slot) {
            CHECK(m->heap[m->timer[i].slot - 1] == &m->timer[i]);
            count++;
        }
    }
    CHECK_EQ(m->timers.count, count);
}

static void test_random(void)
{
    static struct model m = {.random = 11};

    chm_timers_init(&m.timers, m.heap, TIMERS);
    for (uint32_t i = 0; i < TIMERS; i++) {
        m.at[i] = UINT64_MAX;
    }
    for (uint32_t k = 0; k < STEPS; k++) {
        uint32_t i = (uint32_t)pick(&m, TIMERS);

        switch (pick(&m, (k / 1000) % 2 ? 4 : 8)) {
        case 0:
            chm_timer_clear(&m.timers, &m.timer[i]);
            m.at[i] = UINT64_MAX;
            break;
        case 1:
            step_pop(&m, pick(&m, TIMES));
            break;
        case 2:
            step_set(&m, i, UINT64_MAX); /* clears */
            break;
        default:
            step_set(&m, i, pick(&m, TIMES));
        }
        check_same(&m);
    }
    while (m.timers.count > 0) {
        step_pop(&m, UINT64_MAX);
    }
    check_same(&m);
}

/* Timers of one time come in the order they were set; setting one again puts it last. */
static void test_ties(void)
{
    struct chm_timer *heap[4], timer[4] = {0};
    struct chm_timers t;

    chm_timers_init(&t, heap, 4);
    CHECK_EQ(chm_timers_next(&t), UINT64_MAX);
    CHECK(chm_timers_pop(&t, UINT64_MAX) == NULL);
    for (uint32_t i = 0; i < 4; i++) {
        chm_timer_set(&t, &timer[i], 5);
    }
    chm_timer_set(&t, &timer[1], 5);
    CHECK(chm_timers_pop(&t, 4) == NULL);
    CHECK(chm_timers_pop(&t, 5) == &timer[0]); /* due at its time, not after it */
    CHECK(chm_timers_pop(&t, 5) == &timer[2]);
    CHECK(chm_timers_pop(&t, 5) == &timer[3]);
    CHECK(chm_timers_pop(&t, 5) == &timer[1]);
    CHECK(chm_timers_pop(&t, UINT64_MAX) == NULL);
}

static void set_too_many(void)
{
    struct chm_timer *heap[2], timer[3] = {0};
    struct chm_timers t;

    chm_timers_init(&t, heap, 2);
    for (uint32_t i = 0; i < 3; i++) {
        chm_timer_set(&t, &timer[i], i);
    }
}

int main(void)
{
    test_random();
    test_ties();
    check_aborts(set_too_many);
    return 0;
}
