/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gate.c - the gate of bindings: one at a time if asked to, and nobody inside once it is shut
 * and empty. Run under the thread sanitizer too.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "device/rig.h"
#include "host/gate.h"

enum { THREADS = 4 };

struct visit {
    struct chm_gate *gate;
    bool alone;         /* at most one may be inside */
    uint64_t *plain;    /* not atomic: the gate keeps it whole */
    atomic_uint inside; /* as the threads count it */
    atomic_bool too_many;
    atomic_bool gone; /* what the gate protects: nobody may be inside from now on */
    atomic_uint entries;
};

static void *visitor(void *arg)
{
    struct visit *v = arg;
    int rc;

    while ((rc = chm_gate_enter(v->gate)) != -EIO) {
        if (rc == -EALREADY) {
            continue;
        }
        CHECK_IS(rc, 0);
        CHECK(!atomic_load(&v->gone));
        if (atomic_fetch_add(&v->inside, 1) > 0) {
            atomic_store(&v->too_many, true);
        }
        if (v->alone) {
            (*v->plain)++;
        }
        atomic_fetch_add(&v->entries, 1);
        atomic_fetch_sub(&v->inside, 1);
        chm_gate_leave(v->gate);
    }
    return NULL;
}

static void check_crowd(bool alone)
{
    uint64_t plain = 0;
    struct visit v = {.gate = chm_gate_new(alone), .alone = alone, .plain = &plain};
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++) {
        CHECK_IS(pthread_create(&threads[i], NULL, visitor, &v), 0);
    }
    while (atomic_load(&v.entries) < 20000) {
    }
    chm_gate_shut(v.gate, EIO);
    chm_gate_shut(v.gate, ENODEV); /* the first error stays */
    while (chm_gate_inside(v.gate) > 0) {
    }
    atomic_store(&v.gone, true);
    for (int i = 0; i < THREADS; i++) {
        CHECK_IS(pthread_join(threads[i], NULL), 0);
    }
    CHECK(!alone || !atomic_load(&v.too_many));
    CHECK(!alone || plain == atomic_load(&v.entries));
    chm_gate_free(v.gate);
}

static void *try_once(void *arg)
{
    CHECK_IS(chm_gate_enter(arg), -EALREADY);
    return NULL;
}

static void *come_shut(void *arg)
{
    int rc;

    while ((rc = chm_gate_enter(arg)) == -EALREADY) {
    }
    CHECK_IS(rc, -ESHUTDOWN);
    return NULL;
}

/* Whoever waits for the other comes back to its signals, and finds the gate shut when it is. */
static void check_patience(void)
{
    struct chm_gate *gate = chm_gate_new(1);
    pthread_t thread;

    CHECK_IS(chm_gate_enter(gate), 0);
    CHECK_IS(pthread_create(&thread, NULL, try_once, gate), 0);
    CHECK_IS(pthread_join(thread, NULL), 0);
    CHECK_EQ(chm_gate_inside(gate), 1);
    chm_gate_leave(gate);
    CHECK_IS(chm_gate_enter(gate), 0);
    CHECK_IS(pthread_create(&thread, NULL, come_shut, gate), 0);
    while (chm_gate_inside(gate) < 2) {
    }
    chm_gate_shut(gate, ESHUTDOWN);
    chm_gate_leave(gate);
    CHECK_IS(pthread_join(thread, NULL), 0);
    CHECK_EQ(chm_gate_inside(gate), 0);
    CHECK_IS(chm_gate_enter(gate), -ESHUTDOWN);
    chm_gate_free(gate);
}

int main(void)
{
    check_crowd(true);
    check_crowd(false);
    check_patience();
    return 0;
}
