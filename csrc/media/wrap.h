/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wrap.h - what media that wrap another medium have in common.
 *
 * Each of the caller's I/Os gets a shadow from a pool. The shadow's own chm_io goes to the inner
 * medium (or does not), and decides what becomes of the caller's:
 *
 *     take -> forward -> (inner medium) -> finished() -> give at a time -> handed back -> pool
 *          \------------- not forwarded: give at once, or keep it -----/
 *
 * The reap, now, wake and close of a wrapper are those of this file; it brings submit() and
 * finished().
 */
#ifndef CHM_WRAP_H
#define CHM_WRAP_H

#include "media/io_heap.h"
#include "media/media.h"

struct chm_shadow {
    struct chm_io io;     /* what the inner medium sees; io.res becomes the caller's res */
    struct chm_io *outer; /* the caller's */
    uint64_t due_ns;      /* the wrapper's own: */
    uint64_t arg;
    uint32_t tag;
};

struct chm_wrap {
    struct chm_medium m;
    struct chm_medium *inner;
    /* The inner medium handed s->io back. The wrapper calls chm_wrap_give, now or later. */
    void (*finished)(struct chm_wrap *w, struct chm_shadow *s);
    struct chm_shadow *pool;
    struct chm_io_fifo unused; /* the shadows that are in nobody's hands */
    struct chm_io **batch;     /* to be submitted to the inner medium */
    uint32_t batched;
    uint32_t inner_held;      /* shadows in the hands of the inner medium, or batched */
    struct chm_io_heap ready; /* shadows to be handed back at a time */
    _Atomic bool woken;
};

/* Set up w (zeroed) around inner; the name becomes "NAME+INNER". 0 or -ENOMEM. */
int chm_wrap_open(struct chm_wrap *w, struct chm_medium *inner, const struct chm_medium_ops *ops,
                  void (*finished)(struct chm_wrap *w, struct chm_shadow *s), const char *name);
/* Frees what open took, and not w. */
void chm_wrap_free(struct chm_wrap *w);

/* A shadow that copies what the caller set in outer; NULL when as many as allowed are in use. */
struct chm_shadow *chm_wrap_take(struct chm_wrap *w, struct chm_io *outer, uint64_t now_ns);
/* Queue the shadow for the inner medium; flush submits all queued ones in one call. It is called
 * also when there are none, because media look at the regions whenever something is submitted. */
void chm_wrap_forward(struct chm_wrap *w, struct chm_shadow *s);
void chm_wrap_flush(struct chm_wrap *w);
/* Hand the shadow back at at_ns, with s->io.res. Of equal times the first given is the
 * first back. */
void chm_wrap_give(struct chm_wrap *w, struct chm_shadow *s, uint64_t at_ns);

int chm_wrap_reap(struct chm_medium *m, struct chm_io **out, unsigned max, uint64_t deadline_ns);
uint64_t chm_wrap_now(struct chm_medium *m);
void chm_wrap_wake(struct chm_medium *m);
/* Closes the inner medium; unless that times out (then all is kept) frees w's parts. */
int chm_wrap_close(struct chm_wrap *w, uint64_t deadline_ns);

#endif
