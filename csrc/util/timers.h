/* SPDX-License-Identifier: Apache-2.0 */
/* timers.h - a binary heap of times; intrusive, bounded, memory from the caller. Ties go to the
 * timer that was set first, so that runs repeat. */
#ifndef CHM_TIMERS_H
#define CHM_TIMERS_H

#include <stdint.h>

struct chm_timer {
    uint64_t at_ns;
    uint64_t seq;
    uint32_t slot; /* place in the heap + 1; 0: not set (zeroed memory is fine) */
};

struct chm_timers {
    struct chm_timer **heap; /* max entries, from the caller */
    uint32_t count, max;
    uint64_t seq;
};

void chm_timers_init(struct chm_timers *t, struct chm_timer **heap, uint32_t max);
/* Set or move. Asserts that there is room. UINT64_MAX clears. */
void chm_timer_set(struct chm_timers *t, struct chm_timer *timer, uint64_t at_ns);
void chm_timer_clear(struct chm_timers *t, struct chm_timer *timer);
/* Time of the earliest timer, or UINT64_MAX. */
uint64_t chm_timers_next(const struct chm_timers *t);
/* Take the earliest timer off if it is due at now_ns; else NULL. */
struct chm_timer *chm_timers_pop(struct chm_timers *t, uint64_t now_ns);

#endif
