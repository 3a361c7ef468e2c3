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

static bool is_earlier(const struct chm_io_event *a, const struct chm_io_event *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->seq < b->seq);
}

void chm_io_heap_push(struct chm_io_heap *h, uint64_t at_ns, struct chm_io *io)
{
    struct chm_io_event e = {.at_ns = at_ns, .seq = h->seq++, .io = io};
    uint32_t i = h->count;

    CHM_ASSERT(h->count < h->max);
    h->count++;
    while (i > 0 && is_earlier(&e, &h->event[(i - 1) / 2])) {
        h->event[i] = h->event[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->event[i] = e;
}

uint64_t chm_io_heap_next(const struct chm_io_heap *h)
{
    return h->count ? h->event[0].at_ns : CHM_FOREVER_NS;
}

struct chm_io *chm_io_heap_pop(struct chm_io_heap *h)
{
    struct chm_io *io;
    struct chm_io_event e;
    uint32_t i = 0, child = 1;

    CHM_ASSERT(h->count > 0);
    io = h->event[0].io;
    e = h->event[--h->count];
    while (child < h->count) {
        if (child + 1 < h->count && is_earlier(&h->event[child + 1], &h->event[child])) {
            child++;
        }
        if (!is_earlier(&h->event[child], &e)) {
            break;
        }
        h->event[i] = h->event[child];
        i = child;
        child = 2 * i + 1;
    }
    h->event[i] = e;
    return io;
}
