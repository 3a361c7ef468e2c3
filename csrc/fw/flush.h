/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.h - admission and flush policies: what is written when, against what is read.
 *
 * A policy is a table of functions of what it is shown. It keeps no state, allocates nothing and
 * never waits; the scheduler asks it before every I/O.
 *
 * Invariants that a policy keeps: once reads are idle for good, flushes() is above 0 sooner or
 * later while something is dirty, or next_ns() says when; and while `asked` is set, it is above 0
 * whatever else goes on, or chm_flush and close may wait for ever.
 */
#ifndef CHM_FLUSH_H
#define CHM_FLUSH_H

#include <stdbool.h>
#include <stdint.h>

#include "chm.h"

/* What a policy may look at. */
struct chm_flush_view {
    const struct chm_options *opts;
    uint64_t now_ns;
    uint64_t last_read_ns;         /* when a read was last waiting or in flight */
    uint64_t oldest_ns;            /* commit of the oldest bytes not written; UINT64_MAX: none */
    uint64_t buffer_bytes, filled; /* write buffer: size, and in use */
    uint32_t reads, flushes;       /* I/Os in flight */
    bool reads_wait;               /* reads are in flight or waiting to be issued */
    bool pressing;                 /* filled over flush_high_percent and not yet under flush_low, or
                                      older than flush_age_ns, or asked */
    bool asked;                    /* somebody waits for a flush, or the device is being closed */
    bool turn;                     /* true at every second I/O that is picked */
};

struct chm_flush_ops {
    const char *name;
    /* May a write of so much enter the buffer, as far as there is room? 0, or -errno: -EAGAIN is
     * what callers know to retry. */
    int (*admit)(const struct chm_flush_view *v, uint64_t addr, uint64_t len);
    /* How many read I/Os, and how many flush units, may be in flight now. */
    uint32_t (*reads)(const struct chm_flush_view *v);
    uint32_t (*flushes)(const struct chm_flush_view *v);
    /* Both may go: is it the turn of a flush? */
    bool (*flush_first)(const struct chm_flush_view *v);
    /* When flushes() may rise although no I/O ends, while none is in flight; UINT64_MAX: never. */
    uint64_t (*next_ns)(const struct chm_flush_view *v);
};

extern const struct chm_flush_ops chm_flush_read_first;
extern const struct chm_flush_ops chm_flush_fcfs;
extern const struct chm_flush_ops chm_flush_idle_only;

/* Parts that policies share. */
int chm_flush_admit_all(const struct chm_flush_view *v, uint64_t addr, uint64_t len);
uint32_t chm_flush_read_depth(const struct chm_flush_view *v);
bool chm_flush_never_first(const struct chm_flush_view *v);
uint64_t chm_flush_when_idle_ns(const struct chm_flush_view *v);

#endif
