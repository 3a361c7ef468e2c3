/* SPDX-License-Identifier: Apache-2.0 */
/*
 * line.h - a line of the transparent device cache, and the set it belongs to.
 *
 *   FREE -> FILLING -> CLEAN <-> DIRTY           a store makes it dirty
 *             |          ^         |
 *           error        +- WRITING <            a flush writes it back, and it stays
 *             v
 *           FREE
 *
 * A line that gives way to another goes from CLEAN or DIRTY to FILLING and has the new number at
 * once; what it held, if that was dirty, is written back before the new bytes are asked for. A line
 * belongs to one set for ever. Lines that hold something stand in `order` of their set, which is
 * what a replacement policy keeps; FREE ones stand in its `free`.
 */
#ifndef CHM_LINE_H
#define CHM_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"

enum chm_line_state { LINE_FREE, LINE_FILLING, LINE_CLEAN, LINE_DIRTY, LINE_WRITING };

/* 64 bytes, so that to look at a line is to touch one cache line of the host. */
struct chm_line {
    uint64_t number;       /* device address / line_bytes of what it holds */
    uint64_t stamp;        /* while on the dirty list: no commit in it is older than this one */
    struct chm_link order; /* set->order or set->free */
    struct chm_link dirty; /* cache->dirty, in order of stamp */
    uint32_t chain;        /* next line of the hash bucket, index + 1 */
    uint32_t waiters;      /* last of a ring of accesses, index + 1; 0: none */
    uint32_t span;         /* while on the dirty list: no commit in it is newer than stamp + span */
    uint8_t state;
    uint8_t mark; /* the replacement policy's own */
};

_Static_assert(sizeof(struct chm_line) == 64, "a line is one cache line");

struct chm_set {
    struct chm_link order; /* lines that hold something; the next to go is looked for from here */
    struct chm_link free;
};

/* Can it give way? Not while its bytes are on their way in or out. */
static inline bool chm_line_may_go(const struct chm_line *line)
{
    return line->state == LINE_CLEAN || line->state == LINE_DIRTY;
}

#endif
