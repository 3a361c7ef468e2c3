/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io_heap.h - I/Os that are to be handed back at a time; earliest first, ties in order of arrival,
 * so that runs repeat.
 */
#ifndef CHM_IO_HEAP_H
#define CHM_IO_HEAP_H

#include "media/medium.h"

struct chm_io_event {
    uint64_t at_ns;
    uint64_t seq;
    struct chm_io *io;
};

struct chm_io_heap {
    struct chm_io_event *event; /* a binary heap; room for max */
    uint32_t count, max;
    uint64_t seq;
};

/* 0 or -ENOMEM. */
int chm_io_heap_open(struct chm_io_heap *h, uint32_t max);
void chm_io_heap_close(struct chm_io_heap *h);
/* Asserts that there is room. */
void chm_io_heap_push(struct chm_io_heap *h, uint64_t at_ns, struct chm_io *io);
/* Time of the earliest, or CHM_FOREVER_NS. */
uint64_t chm_io_heap_next(const struct chm_io_heap *h);
/* Take the earliest; asserts that there is one. */
struct chm_io *chm_io_heap_pop(struct chm_io_heap *h);

#endif
