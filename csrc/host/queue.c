/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.c - a bounded queue: many producers, one consumer, no locks.
 *
 * Positions count up for ever; position p lives in entry p & mask. The turn of that entry says who
 * is next: p - the producer of p may fill it; p + 1 - the consumer may take it; p + entries - the
 * producer of the next lap. A producer first claims p by moving head, then fills, then passes the
 * turn on; the consumer does the same with tail. The turn is passed with release and looked at with
 * acquire, which carries the body.
 *
 * Sleeping: the consumer sets `sleeping` and then looks at the queue once more; a producer passes
 * the turn and then looks at `sleeping`. The two fences forbid that both miss the other's write, so
 * a wake-up is never lost. One too many may come, and does no harm.
 *
 * Invariants: tail <= head <= tail + entries; every entry is handed over exactly once, and the
 * entries of one producer in its order. A producer that stops between claim and turn (a killed
 * process) holds up all later entries.
 */
#include "host/queue.h"

#include <stddef.h>
#include <string.h>

#include "util/util.h"

_Static_assert(sizeof(struct chm_queue_entry) == 64, "an entry is one cache line");
_Static_assert(offsetof(struct chm_queue, entry) % 64 == 0, "entries do not straddle cache lines");

/* Thread sanitisers do not model fences, and gcc warns of it. Nothing here leans on a fence for
 * passing data, only for the wake-up, which they do not check. */
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif

enum { AWAKE, ASLEEP, NAPPING }; /* sleeping */

uint64_t chm_queue_bytes(uint32_t entries)
{
    return sizeof(struct chm_queue) + entries * (uint64_t)sizeof(struct chm_queue_entry);
}

void chm_queue_init(struct chm_queue *q, uint32_t entries)
{
    /* With one entry, "full" and "the next lap's turn" would be the same number. */
    CHM_ASSERT(entries >= 2 && (entries & (entries - 1)) == 0);
    memset(q, 0, chm_queue_bytes(entries));
    q->mask = entries - 1;
    for (uint32_t i = 0; i < entries; i++) {
        atomic_init(&q->entry[i].turn, i);
    }
}

/* A loop, not memcpy: gcc's thread sanitiser does not see a memcpy that was made inline. */
static inline void body_copy(uint64_t to[7], const uint64_t from[7])
{
    for (uint32_t i = 0; i < 7; i++) {
        to[i] = from[i];
    }
}

bool chm_queue_push(struct chm_queue *q, const uint64_t body[7])
{
    uint64_t pos = atomic_load_explicit(&q->head, memory_order_relaxed);
    struct chm_queue_entry *e;

    /* Each further turn means that another producer got an entry: somebody always gets on. */
    for (;;) {
        uint64_t turn;

        e = &q->entry[pos & q->mask];
        turn = atomic_load_explicit(&e->turn, memory_order_acquire);
        if (turn == pos) {
            if (atomic_compare_exchange_weak_explicit(&q->head, &pos, pos + 1, memory_order_relaxed,
                                                      memory_order_relaxed)) {
                break;
            }
        } else if ((int64_t)(turn - pos) < 0) {
            return false; /* the entry of the lap before has not been taken */
        } else {
            pos = atomic_load_explicit(&q->head, memory_order_relaxed);
        }
    }
    body_copy(e->body, body);
    atomic_store_explicit(&e->turn, pos + 1, memory_order_release);
    return true;
}

bool chm_queue_must_wake(struct chm_queue *q, bool hurry)
{
    uint32_t sleeping;

    atomic_thread_fence(memory_order_seq_cst); /* pairs with the one in chm_queue_sleep */
    sleeping = atomic_load_explicit(&q->sleeping, memory_order_relaxed);
    return sleeping == ASLEEP || (sleeping == NAPPING && hurry);
}

bool chm_queue_pop(struct chm_queue *q, uint64_t body[7])
{
    uint64_t pos = atomic_load_explicit(&q->tail, memory_order_relaxed);
    struct chm_queue_entry *e = &q->entry[pos & q->mask];

    if (atomic_load_explicit(&e->turn, memory_order_acquire) != pos + 1) {
        return false;
    }
    body_copy(body, e->body);
    atomic_store_explicit(&e->turn, pos + q->mask + 1, memory_order_release);
    atomic_store_explicit(&q->tail, pos + 1, memory_order_release);
    return true;
}

bool chm_queue_sleep(struct chm_queue *q, bool nap)
{
    uint64_t pos = atomic_load_explicit(&q->tail, memory_order_relaxed);
    struct chm_queue_entry *e = &q->entry[pos & q->mask];

    atomic_store_explicit(&q->sleeping, nap ? NAPPING : ASLEEP, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the one in chm_queue_must_wake */
    if (atomic_load_explicit(&e->turn, memory_order_relaxed) == pos + 1) {
        chm_queue_awake(q);
        return false;
    }
    return true;
}

void chm_queue_awake(struct chm_queue *q)
{
    atomic_store_explicit(&q->sleeping, AWAKE, memory_order_relaxed);
}
