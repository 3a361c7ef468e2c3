/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sum_impl.h - the functions of sum.h over XXH3, static, for a file that has included the header of
 * xxhash with XXH_INLINE_ALL: each may aim at other instructions.
 */
#ifndef CHM_STORE_SUM_IMPL_H
#define CHM_STORE_SUM_IMPL_H

#include <stdint.h>

#include "store/sum.h"

static uint64_t sum_once(const void *data, uint64_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, len, seed);
}

static void sum_begin(void *state, uint64_t seed)
{
    XXH3_64bits_reset_withSeed(state, seed);
}

static void sum_add(void *state, const void *data, uint64_t len)
{
    XXH3_64bits_update(state, data, len);
}

static uint64_t sum_end(const void *state)
{
    return XXH3_64bits_digest(state);
}

#define CHM_SUM_OPS {.once = sum_once, .begin = sum_begin, .add = sum_add, .end = sum_end}

_Static_assert(sizeof(XXH3_state_t) <= CHM_SUM_STATE_BYTES, "room for the state");

#endif
