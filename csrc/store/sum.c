/* SPDX-License-Identifier: Apache-2.0 */
/* sum.c - see sum.h: chooses the vectors at run time. */
#include "store/sum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "store/sum_impl.h"

static const struct chm_sum_ops plain_ops = CHM_SUM_OPS;

static const struct chm_sum_ops *sum_ops(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") ? &chm_sum_wide_ops : &plain_ops;
#else
    return &plain_ops;
#endif
}

uint64_t chm_sum_once(const void *data, uint64_t len, uint64_t seed)
{
    return sum_ops()->once(data, len, seed);
}

void chm_sum_begin(struct chm_sum *sum, uint64_t seed)
{
    sum_ops()->begin(sum->state, seed);
}

void chm_sum_add(struct chm_sum *sum, const void *data, uint64_t len)
{
    sum_ops()->add(sum->state, data, len);
}

uint64_t chm_sum_end(const struct chm_sum *sum)
{
    return sum_ops()->end(sum->state);
}
