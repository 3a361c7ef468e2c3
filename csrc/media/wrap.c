/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wrap.c - what media that wrap another medium have in common (wrap.h).
 *
 * Invariants: a shadow is unused, with the inner medium (inner_held counts these), in `ready`, or
 * kept by the wrapper that took it; the pool has inflight_max of them, and the inner medium takes
 * that many, so it never refuses one. Time is the inner medium's.
 */
#include "media/wrap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "util/util.h"

enum { COLLECT_BATCH = 64 };

static struct chm_wrap *wrap_of(struct chm_medium *m)
{
    return CHM_CONTAINER(m, struct chm_wrap, m);
}

int chm_wrap_open(struct chm_wrap *w, struct chm_medium *inner, const struct chm_medium_ops *ops,
                  void (*finished)(struct chm_wrap *w, struct chm_shadow *s), const char *name)
{
    uint32_t n = inner->caps.inflight_max;
    char *to = w->m.caps.name;

    w->m.ops = ops;
    w->m.caps = inner->caps;
    w->m.caps.event_fd = -1; /* what waits for its time here makes no descriptor readable */
    (void)snprintf(to, sizeof(w->m.caps.name), "%s+%.9s", name, inner->caps.name);
    w->inner = inner;
    w->finished = finished;
    w->pool = calloc(n, sizeof(*w->pool));
    w->batch = calloc(n, sizeof(*w->batch));
    if (chm_io_heap_open(&w->ready, n) || !w->pool || !w->batch) {
        chm_wrap_free(w);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        chm_io_fifo_push(&w->unused, &w->pool[i].io);
    }
    return 0;
}

void chm_wrap_free(struct chm_wrap *w)
{
    chm_io_heap_close(&w->ready);
    free(w->batch);
    free(w->pool);
}

static struct chm_shadow *shadow_of(struct chm_io *io)
{
    return CHM_CONTAINER(io, struct chm_shadow, io);
}

struct chm_shadow *chm_wrap_take(struct chm_wrap *w, struct chm_io *outer, uint64_t now_ns)
{
    struct chm_io *io = chm_io_fifo_pop(&w->unused);
    struct chm_shadow *s;

    if (!io) {
        return NULL;
    }
    s = shadow_of(io);
    *s = (struct chm_shadow){.outer = outer};
    s->io.kind = outer->kind;
    s->io.flags = outer->flags;
    s->io.member = outer->member;
    s->io.region = outer->region;
    s->io.off = outer->off;
    s->io.len = outer->len;
    s->io.buf = outer->buf;
    s->io.submit_ns = now_ns;
    outer->submit_ns = now_ns;
    return s;
}

void chm_wrap_forward(struct chm_wrap *w, struct chm_shadow *s)
{
    w->batch[w->batched++] = &s->io;
    w->inner_held++;
}

void chm_wrap_flush(struct chm_wrap *w)
{
    unsigned taken = chm_medium_submit(w->inner, w->batch, w->batched);

    CHM_ASSERT(taken == w->batched);
    w->batched = 0;
}

void chm_wrap_give(struct chm_wrap *w, struct chm_shadow *s, uint64_t at_ns)
{
    chm_io_heap_push(&w->ready, at_ns, &s->io);
}

/* Let the inner medium work until wait_ns; returns how many shadows it handed back, or -errno. */
static int collect(struct chm_wrap *w, uint64_t wait_ns)
{
    struct chm_io *ios[COLLECT_BATCH];
    int n = chm_medium_reap(w->inner, ios, COLLECT_BATCH, wait_ns);

    for (int i = 0; i < n; i++) {
        w->inner_held--;
        w->finished(w, shadow_of(ios[i]));
    }
    return n;
}

static unsigned hand_back(struct chm_wrap *w, struct chm_io **out, unsigned max, uint64_t now_ns)
{
    unsigned n = 0;

    while (n < max && chm_io_heap_next(&w->ready) <= now_ns) {
        uint64_t at_ns = chm_io_heap_next(&w->ready);
        struct chm_shadow *s = shadow_of(chm_io_heap_pop(&w->ready));
        s->outer->res = s->io.res;
        s->outer->done_ns = at_ns;
        out[n++] = s->outer;
        chm_io_fifo_push(&w->unused, &s->io);
    }
    return n;
}

int chm_wrap_reap(struct chm_medium *m, struct chm_io **out, unsigned max, uint64_t deadline_ns)
{
    struct chm_wrap *w = wrap_of(m);
    uint64_t wait_ns = 0;

    for (;;) {
        int got = collect(w, wait_ns);
        uint64_t now_ns = chm_medium_now(w->inner);
        unsigned n = hand_back(w, out, max, now_ns);
        if (atomic_exchange(&w->woken, false) || n > 0) {
            return (int)n;
        }
        if (got < 0) {
            return got;
        }
        if (now_ns >= deadline_ns) {
            return 0;
        }
        if (got == 0 && wait_ns == CHM_FOREVER_NS && w->m.caps.virtual_time) {
            return 0; /* nothing will ever end */
        }
        wait_ns = chm_min(deadline_ns, chm_io_heap_next(&w->ready));
    }
}

uint64_t chm_wrap_now(struct chm_medium *m)
{
    return chm_medium_now(wrap_of(m)->inner);
}

/* The flag is what reap() believes; the inner medium only has to stop waiting, if it ever waits. */
void chm_wrap_wake(struct chm_medium *m)
{
    struct chm_wrap *w = wrap_of(m);

    atomic_store(&w->woken, true);
    if (!w->m.caps.virtual_time) {
        chm_medium_wake(w->inner);
    }
}

int chm_wrap_close(struct chm_wrap *w, uint64_t deadline_ns)
{
    int rc = chm_medium_close(w->inner, deadline_ns);

    if (rc == 0) {
        chm_wrap_free(w);
    }
    return rc;
}
