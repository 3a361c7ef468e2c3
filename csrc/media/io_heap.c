/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_heap.c - a binary heap of I/Os by (time, order of arrival). Its memory is taken once, at open.
 * Invariant: no event is due later than either of its children at 2i + 1 and 2i + 2.
 */
#include "media/io_heap.h"

#include <errno.h>
#include <stdlib.h>

#include "util/util.h"

int chm_io_heap_open(struct chm_io_heap *h, uint32_t max)
{
    *h = (struct chm_io_heap){.max = max};
    h->event = malloc(max * sizeof(*h->event));
    return h->event ? 0 : -ENOMEM;
}

void chm_io_heap_close(struct chm_io_heap *h)
{
    free(h->event);
}

/* Without a branch: which of two is earlier is as good as random, and a wrong guess costs more than
 * all the rest of a step. */
static inline bool is_earlier(const struct chm_io_event *a, const struct chm_io_event *b)
{
    unsigned __int128 x = (unsigned __int128)a->at_ns << 64 | a->seq;
    unsigned __int128 y = (unsigned __int128)b->at_ns << 64 | b->seq;

    return x < y;
}

/* Put e into the hole at i, or further up where it belongs. */
static inline void sift_up(struct chm_io_event *event, uint32_t i, struct chm_io_event e)
{
    while (i > 0 && is_earlier(&e, &event[(i - 1) / 2])) {
        event[i] = event[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    event[i] = e;
}

void chm_io_heap_push(struct chm_io_heap *h, uint64_t at_ns, struct chm_io *io)
{
    struct chm_io_event e = {.at_ns = at_ns, .seq = h->seq++, .io = io};

    CHM_ASSERT(h->count < h->max);
    sift_up(h->event, h->count++, e);
}

uint64_t chm_io_heap_next(const struct chm_io_heap *h)
{
    return h->count ? h->event[0].at_ns : CHM_FOREVER_NS;
}

/* The hole that the earliest leaves goes down to a leaf, always to the earlier child. The last
 * event is put there; it was a leaf, and so rarely has to go up again. */
struct chm_io *chm_io_heap_pop(struct chm_io_heap *h)
{
    struct chm_io_event *event = h->event;
    struct chm_io *io;
    uint32_t i = 0, child = 1, count;

    CHM_ASSERT(h->count > 0);
    io = event[0].io;
    count = --h->count;
    while (child + 1 < count) {
        child += (uint32_t)is_earlier(&event[child + 1], &event[child]);
        event[i] = event[child];
        i = child;
        child = 2 * i + 1;
    }
    if (child < count) {
        event[i] = event[child];
        i = child;
    }
    sift_up(event, i, event[count]);
    return io;
}
