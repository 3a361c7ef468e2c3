/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.h - a range being brought into memory, for a window slot or for a demand read.
 *
 *   begin:  what the write buffer holds of the range is copied at once; the rest are holes
 *   queued: holes are left; the scheduler takes I/Os from the front of them
 *   flying: no holes left, I/Os in flight
 *   done:   no I/O in flight, no holes left; waits on fw->finished until its owner is told, at the
 *           end of the step or command
 *
 * From begin to done the range stands in fw->reading, and no flush starts in it of what was
 * committed after begin: so the drive keeps the bytes that were current at begin, and what was
 * copied and what is read fit together. (What was committed before was copied; its flush is free to
 * go.) On an error or a cancel the holes are dropped and the fetch is done when its I/Os have
 * ended, not before.
 */
#ifndef CHM_FETCH_H
#define CHM_FETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "fw/shift.h"
#include "util/list.h"
#include "util/tree.h"

struct chm_fw;
struct chm_fio;

struct chm_hole {
    uint64_t start, end; /* device addresses */
    struct chm_hole *next;
};

/* Bounce pages that a demand read keeps (shift.h). */
struct chm_tail {
    uint64_t start; /* device address */
    uint64_t bounce;
    uint32_t len, bounce_bytes;
};

struct chm_fetch {
    struct chm_node range;    /* in fw->reading from begin to done */
    struct chm_link queue;    /* on a scheduler queue while it has holes, then on fw->finished */
    struct chm_link inflight; /* of struct chm_fio.link, in order of address */
    struct chm_hole *holes;
    struct chm_hole inline_hole; /* the usual case needs no pool */
    uint64_t addr, len;          /* whole granules */
    uint8_t *dest;               /* where addr goes; NULL: by way of bounce pages to user */
    uint8_t *user;               /* bounced: where user_addr goes */
    uint64_t user_addr, user_len;
    uint8_t *place; /* bounced but for an inner part: where in_start is read to (shift.h) */
    uint64_t in_start, in_end, shift, moved;
    struct chm_tail tail[CHM_SHIFT_TAILS];
    uint32_t tails;
    uint64_t seq;   /* order of arrival among reads */
    int32_t region; /* of dest, or place */
    uint32_t ios;   /* in flight */
    int32_t err;    /* first error, -errno */
    bool demand;    /* for a demand read, else for a slot */
    bool active;    /* from begin until the owner was told that it is done */
    bool done;      /* on fw->finished */
};

/* addr, len, dest or user..., region, demand are set. Returns 0; -EIO when the range holds bytes
 * that were lost; -EAGAIN when it is in too many pieces to keep track of. On failure nothing has
 * begun. */
int chm_fetch_begin(struct chm_fw *fw, struct chm_fetch *f);
/* Give up: no new I/O. It is done once those in flight have ended (perhaps now). */
void chm_fetch_cancel(struct chm_fw *fw, struct chm_fetch *f, int32_t err);
/* Bytes there from the front (of user_addr if bounced). */
uint64_t chm_fetch_front(const struct chm_fetch *f);
/* Device address up to which nothing is left to be read. */
uint64_t chm_fetch_landed_to(const struct chm_fetch *f);
/* Copy the bytes of device range [start, end) to where the fetch wants them; src NULL: zeros. */
void chm_fetch_put(struct chm_fetch *f, uint64_t start, uint64_t end, const uint8_t *src);
/* Take up to `max` bytes off the first hole, as far as they lie in one piece on one member. */
uint64_t chm_fetch_take(struct chm_fw *fw, struct chm_fetch *f, uint64_t max, uint64_t *addr);
/* An I/O of it ended in full (or with f->err set). */
void chm_fetch_landed(struct chm_fw *fw, struct chm_fetch *f, struct chm_fio *fio);
/* Tell the owners of all fetches that are done. */
void chm_fetch_finish_all(struct chm_fw *fw);
/* The front moved, or it is done: what the owner is told (request.c). */
void chm_fetch_moved(struct chm_fw *fw, struct chm_fetch *f);
void chm_fetch_finished(struct chm_fw *fw, struct chm_fetch *f);

#endif
