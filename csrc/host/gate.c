/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.c - see gate.h.
 *
 *   open -> shut: for good.
 *
 * Whoever comes counts itself first and looks at `shut` then; whoever closes shuts first and looks
 * at the count then. So either the comer sees the gate shut, or the closer sees the comer.
 *
 * `lock`: FREE, TAKEN, or WAITED_FOR (taken, and somebody may sleep for it). A waiter that gives up
 * leaves WAITED_FOR behind, which costs one needless wake-up.
 */
#include "host/gate.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "host/futex.h"
#include "media/clock.h"

enum { FREE, TAKEN, WAITED_FOR };
enum { PATIENCE_NS = 50000000 };

struct chm_gate {
    _Atomic int shut; /* error, or 0 */
    _Atomic uint32_t inside;
    _Atomic uint32_t lock;
    bool one_at_a_time;
};

struct chm_gate *chm_gate_new(int one_at_a_time)
{
    struct chm_gate *g = calloc(1, sizeof(*g));

    if (g) {
        g->one_at_a_time = one_at_a_time != 0;
    }
    return g;
}

void chm_gate_free(struct chm_gate *g)
{
    free(g);
}

static int gate_lock(struct chm_gate *g)
{
    uint32_t was = FREE;
    uint64_t deadline_ns;

    if (atomic_compare_exchange_strong(&g->lock, &was, TAKEN)) {
        return 0;
    }
    deadline_ns = chm_clock_now() + PATIENCE_NS;
    while (atomic_exchange(&g->lock, WAITED_FOR) != FREE) {
        if (chm_futex_wait(&g->lock, WAITED_FOR, deadline_ns) < 0) {
            return -EALREADY;
        }
    }
    return 0;
}

static void gate_unlock(struct chm_gate *g)
{
    if (atomic_exchange(&g->lock, FREE) == WAITED_FOR) {
        chm_futex_wake(&g->lock);
    }
}

int chm_gate_enter(struct chm_gate *g)
{
    int rc;

    atomic_fetch_add(&g->inside, 1);
    rc = -atomic_load(&g->shut);
    if (rc == 0 && g->one_at_a_time) {
        rc = gate_lock(g);
        if (rc == 0 && atomic_load(&g->shut)) { /* while it waited for the lock */
            rc = -atomic_load(&g->shut);
            gate_unlock(g);
        }
    }
    if (rc < 0) {
        atomic_fetch_sub(&g->inside, 1);
    }
    return rc;
}

void chm_gate_leave(struct chm_gate *g)
{
    if (g->one_at_a_time) {
        gate_unlock(g);
    }
    atomic_fetch_sub(&g->inside, 1);
}

void chm_gate_shut(struct chm_gate *g, int error)
{
    int none = 0;

    atomic_compare_exchange_strong(&g->shut, &none, error);
}

uint32_t chm_gate_inside(struct chm_gate *g)
{
    return atomic_load(&g->inside);
}
