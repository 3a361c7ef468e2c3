/* SPDX-License-Identifier: Apache-2.0 */
/* carve.h - tables cut out of one allocation: once to count, once to place. */
#ifndef CHM_CARVE_H
#define CHM_CARVE_H

#include <stddef.h>
#include <stdint.h>

#include "util/util.h"

struct chm_carve {
    uint8_t *base; /* NULL: only count */
    uint64_t at;
};

static inline void *chm_carve(struct chm_carve *c, uint64_t bytes)
{
    uint64_t at = c->at;

    c->at += chm_round_up(bytes, 64);
    return c->base ? c->base + at : NULL;
}

#endif
