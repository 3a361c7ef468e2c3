/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched.h - the only place that picks the next I/O.
 *
 * Demand reads first, then staging reads, each in order of arrival, or, under a transparent cache,
 * what misses have to move. Beside them flush units. How many of each may be in flight, and whose
 * turn it is, says the flush policy (flush.h); the usual one: four flush units while no read waits,
 * one while some do and the buffer presses (it is above its high mark, or something in it is old,
 * or somebody waits for a flush), else none.
 */
#ifndef CHM_SCHED_H
#define CHM_SCHED_H

#include <stdbool.h>
#include <stdint.h>

#include "media/medium.h"
#include "util/list.h"

struct chm_fw;
struct chm_fetch;
struct chm_ext;
struct chm_move;

enum chm_fio_what { FIO_FETCH, FIO_FLUSH, FIO_BARRIER, FIO_MOVE };

/* One I/O of the firmware. */
struct chm_fio {
    struct chm_io io;
    struct chm_link link; /* fetch->inflight, or the free list */
    struct chm_link back; /* backlog: built but not accepted by the medium yet */
    struct chm_fetch *fetch;
    struct chm_ext *exts;          /* flush: the extents of the unit */
    struct chm_move *move;         /* part of a line's move, or of a trim under a line cache */
    uint64_t addr;                 /* device address of io.off */
    uint64_t bounce, bounce_bytes; /* bounce pages, offset in memory */
    uint32_t unit_bytes; /* as built; io.off and io.len move when a short I/O is continued */
    uint8_t what;
    uint8_t retries;
};

struct chm_sched {
    struct chm_link demand, stage; /* fetches with holes */
    struct chm_link lines;         /* moves of misses, and trims, with bytes left to issue */
    struct chm_link free, backlog;
    struct chm_fio *fios;
    uint32_t fios_max;
    uint32_t reads, flushes, others; /* in flight or in the backlog */
    bool pressing, asked;            /* as in flush.h, at the last look */
    bool turn;                       /* changes with every I/O that is picked */
    uint64_t last_read_ns;           /* when a read was last waiting or in flight */
};

/* Put a fetch that has holes to the queue it belongs on. */
void chm_sched_queue(struct chm_fw *fw, struct chm_fetch *f);
/* The same for a move. */
void chm_sched_queue_move(struct chm_fw *fw, struct chm_move *m);
/* Does the flush policy let this write into the buffer? 0 or -errno. */
int chm_sched_admit(struct chm_fw *fw, uint64_t addr, uint64_t len);
/* Submit whatever may go now. */
void chm_sched_run(struct chm_fw *fw);
/* The medium handed fio back. */
void chm_sched_landed(struct chm_fw *fw, struct chm_fio *fio);
/* A barrier on one member. False: no free I/O (cannot happen: they are set aside). */
bool chm_sched_barrier(struct chm_fw *fw, uint32_t member);
bool chm_sched_reads_wait(const struct chm_sched *s);
/* When something may have to be done even if nothing ends: earliest flush by age or idleness. */
uint64_t chm_sched_next_ns(const struct chm_fw *fw);

#endif
