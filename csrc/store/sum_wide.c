/* SPDX-License-Identifier: Apache-2.0 */
/* sum_wide.c - see sum.h: XXH3 with AVX2. Nothing here runs on a processor without. */
#if defined(__x86_64__)
#if defined(__clang__)
#include <immintrin.h> /* before the attribute, which is not for what it declares */
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define XXH_VECTOR 2 /* XXH_AVX2, which has no name before the header is read */
#endif
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "store/sum_impl.h"

const struct chm_sum_ops chm_sum_wide_ops = CHM_SUM_OPS;

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute pop
#endif
