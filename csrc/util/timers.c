/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timers.c - a binary heap of pointers to timers that the caller owns.
 *
 * A timer is off (slot 0) or set (slot = its place + 1); set, clear and pop are the arrows. The
 * firmware calls it from its one thread. Invariants: no timer comes before the one above it; the
 * timer at place i has slot i + 1. "Before" compares the time, then the number of the call that set
 * it, so that no two are equal and the order does not depend on the shape of the heap.
 */
#include "util/timers.h"

#include <stdbool.h>
#include <stddef.h>

#include "util/util.h"

static bool before(const struct chm_timer *a, const struct chm_timer *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->seq < b->seq;
}

static void place(struct chm_timers *t, uint32_t i, struct chm_timer *timer)
{
    t->heap[i] = timer;
    timer->slot = i + 1;
}

/* Place i is open and the timer belongs there or above. */
static void sift_up(struct chm_timers *t, uint32_t i, struct chm_timer *timer)
{
    while (i > 0 && before(timer, t->heap[(i - 1) / 2])) {
        place(t, i, t->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    place(t, i, timer);
}

/* Place i is open and the timer belongs there or below. */
static void sift_down(struct chm_timers *t, uint32_t i, struct chm_timer *timer)
{
    while (i < t->count / 2) { /* it has a child */
        uint32_t child = 2 * i + 1;

        if (child + 1 < t->count && before(t->heap[child + 1], t->heap[child])) {
            child++;
        }
        if (!before(t->heap[child], timer)) {
            break;
        }
        place(t, i, t->heap[child]);
        i = child;
    }
    place(t, i, timer);
}

static void settle(struct chm_timers *t, uint32_t i, struct chm_timer *timer)
{
    if (i > 0 && before(timer, t->heap[(i - 1) / 2])) {
        sift_up(t, i, timer);
    } else {
        sift_down(t, i, timer);
    }
}

void chm_timers_init(struct chm_timers *t, struct chm_timer **heap, uint32_t max)
{
    *t = (struct chm_timers){.heap = heap, .max = max};
}

void chm_timer_set(struct chm_timers *t, struct chm_timer *timer, uint64_t at_ns)
{
    if (at_ns == UINT64_MAX) {
        chm_timer_clear(t, timer);
        return;
    }
    timer->at_ns = at_ns;
    timer->seq = t->seq++;
    if (timer->slot == 0) {
        CHM_ASSERT(t->count < t->max);
        sift_up(t, t->count++, timer);
    } else {
        CHM_ASSERT(timer->slot <= t->count && t->heap[timer->slot - 1] == timer);
        settle(t, timer->slot - 1, timer);
    }
}

void chm_timer_clear(struct chm_timers *t, struct chm_timer *timer)
{
    struct chm_timer *last;
    uint32_t i;

    if (timer->slot == 0) {
        return;
    }
    CHM_ASSERT(timer->slot <= t->count && t->heap[timer->slot - 1] == timer);
    i = timer->slot - 1;
    last = t->heap[--t->count];
    timer->slot = 0;
    if (last != timer) {
        settle(t, i, last);
    }
}

uint64_t chm_timers_next(const struct chm_timers *t)
{
    return t->count > 0 ? t->heap[0]->at_ns : UINT64_MAX;
}

struct chm_timer *chm_timers_pop(struct chm_timers *t, uint64_t now_ns)
{
    struct chm_timer *first;

    if (t->count == 0 || t->heap[0]->at_ns > now_ns) {
        return NULL;
    }
    first = t->heap[0];
    chm_timer_clear(t, first);
    return first;
}
