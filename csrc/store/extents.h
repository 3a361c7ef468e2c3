/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extents.h - free space of [base, base + len) as a set of extents: first fit, merged with its
 * neighbours when it comes back. Memory grows with the number of extents, never with the space.
 */
#ifndef CHM_EXTENTS_H
#define CHM_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "util/list.h"
#include "util/tree.h"

struct chm_extent {
    struct chm_node node; /* aug: length */
    struct chm_extent *next_free;
};

struct chm_extents {
    struct chm_tree free;
    struct chm_extent *pool; /* address space for max; touched only as far as used */
    struct chm_extent *spare;
    uint64_t max, touched;
    uint64_t free_bytes;
};

/* max: extents that may be free at once, one more than things allocated. -ENOMEM. */
int chm_extents_open(struct chm_extents *e, uint64_t base, uint64_t len, uint64_t max);
void chm_extents_close(struct chm_extents *e);
/* The lowest free place for len bytes: 0 or -ENOSPC. */
int chm_extents_take(struct chm_extents *e, uint64_t len, uint64_t *addr);
void chm_extents_give(struct chm_extents *e, uint64_t addr, uint64_t len);
/* Take a particular place, if all of it is free. */
bool chm_extents_claim(struct chm_extents *e, uint64_t addr, uint64_t len);
uint64_t chm_extents_largest(const struct chm_extents *e);

#endif
