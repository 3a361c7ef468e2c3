/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.h - a bounded lock-free queue of fixed 64-byte entries: many producers, one consumer.
 *
 * Each entry carries a sequence number that says whose turn it is. No pointers inside, so that the
 * queue can lie in shared memory mapped at different addresses. The consumer may sleep: it says so
 * in `sleeping`, and a producer that finds it set is told to wake it.
 */
#ifndef CHM_QUEUE_H
#define CHM_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct chm_queue_entry {
    _Atomic uint64_t turn;
    uint64_t body[7]; /* 56 bytes of payload, copied in and out */
};

struct chm_queue {
    uint32_t mask; /* entries - 1 */
    uint32_t pad0[15];
    _Atomic uint64_t head; /* producers */
    uint64_t pad1[7];
    _Atomic uint64_t tail; /* the consumer; atomic so that others may look */
    uint64_t pad2[7];
    _Atomic uint32_t sleeping;
    uint32_t pad3[15];
    struct chm_queue_entry entry[];
};

/* Bytes for a queue of `entries` (a power of two). */
uint64_t chm_queue_bytes(uint32_t entries);
void chm_queue_init(struct chm_queue *q, uint32_t entries);
/* Copy body in. False when full. Any thread. */
bool chm_queue_push(struct chm_queue *q, const uint64_t body[7]);
/* True if the consumer sleeps or is about to: the caller then wakes it. Call after push. Who is not
 * in a hurry leaves a consumer that only naps alone: it looks by itself soon. */
bool chm_queue_must_wake(struct chm_queue *q, bool hurry);
/* Copy the oldest entry out. False when empty. The consumer only. */
bool chm_queue_pop(struct chm_queue *q, uint64_t body[7]);
/* The consumer says that it will sleep, or (nap) that it will for a bounded time only. False if
 * something came meanwhile: then it must not. */
bool chm_queue_sleep(struct chm_queue *q, bool nap);
void chm_queue_awake(struct chm_queue *q);

#endif
