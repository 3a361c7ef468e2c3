/* SPDX-License-Identifier: Apache-2.0 */
/*
 * durable.h - barriers: when are bytes that were committed safe?
 *
 * IDLE -> BUSY (one barrier per member in flight, covering commits up to `covers`) -> IDLE
 *
 * A barrier begins when a flush waits for commits that are all written, or by age or amount. One
 * round covers all that was written before it, so many small flushes share it.
 */
#ifndef CHM_DURABLE_H
#define CHM_DURABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

struct chm_fw;
struct chm_fwreq;

struct chm_durable {
    struct chm_link waiters; /* requests, in order of their target */
    uint64_t durable_seq;    /* commits up to here are durable (or were lost) */
    uint64_t covers;         /* of the round in flight */
    uint64_t settled_bytes;  /* written since the last round began */
    uint64_t last_ns;        /* when the last round began */
    uint32_t inflight;
    int32_t err; /* of the round in flight */
    bool untold; /* something was lost and no one has been told */
};

/* A request that ends when commits up to req->target are durable: a flush, or a strict commit, for
 * which target is the commit itself. */
void chm_durable_wait(struct chm_fw *fw, struct chm_fwreq *req);
/* It stops waiting without an answer. */
void chm_durable_unwait(struct chm_fw *fw, struct chm_fwreq *req);
/* Commits first .. last did not reach the drive, or nobody knows. A strict commit among them and
 * every flush that waits for one of them will say so; if there is none, the next flush does, or
 * close. */
void chm_durable_note_loss(struct chm_fw *fw, uint64_t first, uint64_t last);
/* Begin a round or end waiters, as may be. */
void chm_durable_run(struct chm_fw *fw);
void chm_durable_landed(struct chm_fw *fw, int32_t res);
/* Commits up to this one are waited for, 0: none. */
uint64_t chm_durable_wanted(const struct chm_durable *d);
uint64_t chm_durable_next_ns(const struct chm_fw *fw);

#endif
