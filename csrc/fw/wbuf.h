/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wbuf.h - the write buffer: what was written and is not on the drive yet.
 *
 * An extent is a range of addresses with its bytes in the buffer (or a trim, which has none).
 *
 *   FREE -> OPEN -> DIRTY -> FLUSHING -> FREE     begin, commit, taken for a unit, written
 *            |        |          |
 *          abort   cut by a   error -> LOST         a newer commit cuts DIRTY and LOST extents
 *                  newer one
 *
 * Committed extents stand in `map`, which is what reads look at: buffer over medium, page by page.
 * In it DIRTY and LOST extents never overlap each other; a FLUSHING one may lie under one newer
 * DIRTY one, which is not flushed before the older has ended. So at most two layers exist: FLUSHING
 * below DIRTY.
 *
 * LOST: the drive may hold anything there; reads fail until it is written or trimmed again.
 *
 * With a transparent cache (cache.h) the buffer is only where stores land:
 *
 *   OPEN -> LANDED -> FREE      begin, commit, all of it moved into lines
 *
 * `pending` holds LANDED extents then, and `map` only LOST ones.
 */
#ifndef CHM_WBUF_H
#define CHM_WBUF_H

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"
#include "util/runs.h"
#include "util/tree.h"

struct chm_fw;
struct chm_fio;

enum chm_ext_state { EXT_FREE, EXT_OPEN, EXT_DIRTY, EXT_FLUSHING, EXT_LOST, EXT_LANDED };

struct chm_ext {
    struct chm_node range;   /* in wbuf->map when committed */
    struct chm_link pending; /* DIRTY, FLUSHING, LANDED in order of commit; free list; lost list */
    struct chm_link dirty;   /* DIRTY, in order of commit */
    uint64_t off;            /* in memory; unused for trims */
    uint64_t seq;            /* of its commit */
    uint64_t reads_before;   /* seq of the last read that began before the commit */
    uint64_t commit_ns;
    struct chm_ext *unit_next; /* next extent of the same flush unit */
    bool trim;
    uint8_t state;
};

struct chm_wbuf {
    uint64_t base, bytes, granule; /* in memory */
    struct chm_runs runs;
    uint64_t cursor; /* next fit: neighbours in time are neighbours in space */
    struct chm_ext *exts;
    uint32_t exts_max, exts_free, open, lost;
    uint32_t exts_aside; /* kept for splitting extents into units: one per unit in flight */
    struct chm_link free, pending, dirty, lost_list;
    struct chm_tree map;
    uint64_t seq; /* of the last commit */
    uint64_t dirty_bytes, peak_bytes;
    bool lost_all; /* more was lost than the table holds: all that would be looked up is */
};

static inline uint64_t chm_ext_len(const struct chm_ext *e)
{
    return e->range.end - e->range.start;
}

/* Room for len bytes at addr. -EAGAIN: none now. */
int chm_wbuf_begin(struct chm_fw *fw, uint64_t addr, uint64_t len, struct chm_ext **out);
void chm_wbuf_commit(struct chm_fw *fw, struct chm_ext *e);
void chm_wbuf_abort(struct chm_fw *fw, struct chm_ext *e);
/* -EAGAIN: the extent table is full. */
int chm_wbuf_trim(struct chm_fw *fw, uint64_t addr, uint64_t len);

/*
 * The next flush unit of at most max bytes: fills fio's I/O and extents. False: nothing may go now
 * (nothing dirty, or all of the first ones wait for reads or older flushes of the same pages).
 */
bool chm_wbuf_take(struct chm_fw *fw, struct chm_fio *fio, uint64_t max);
/* A unit ended: res 0 or -errno. */
void chm_wbuf_landed(struct chm_fw *fw, struct chm_fio *fio, int32_t res);

/* ---- under a transparent cache */
/* A commit, or a trim, that the cache takes over; and the end of it. */
void chm_wbuf_land(struct chm_fw *fw, struct chm_ext *e);
int chm_wbuf_land_trim(struct chm_fw *fw, uint64_t addr, uint64_t len, struct chm_ext **out);
void chm_wbuf_drop(struct chm_fw *fw, struct chm_ext *e);
/* The bytes of [start, end), of commits first .. last, are gone. */
void chm_wbuf_lose(struct chm_fw *fw, uint64_t start, uint64_t end, uint64_t first, uint64_t last);
/* Written or trimmed anew: not lost any more. */
void chm_wbuf_forgive(struct chm_fw *fw, uint64_t start, uint64_t end);
/* Is any of it lost? */
bool chm_wbuf_is_lost(struct chm_fw *fw, uint64_t start, uint64_t end);

/* All commits up to and including this one are on the drive or lost. */
uint64_t chm_wbuf_settled(const struct chm_wbuf *b);
/* Commit time of the oldest extent not yet written; UINT64_MAX: none. */
uint64_t chm_wbuf_oldest_ns(const struct chm_wbuf *b);

#endif
