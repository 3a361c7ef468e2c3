/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hist.c - log-scale histograms: 32 buckets per power of two, so any value is known within 1/32.
 *
 * The device records (one writer); anybody asks a copy for quantiles. There is no state but the
 * counters. Invariants: count is the sum of all buckets, and max lies in the last used one.
 */
#include "util/hist.h"

#include "util/util.h"

enum {
    SUB_BITS = 5 /* log2 of CHM_HIST_SUB */
};

_Static_assert(CHM_HIST_SUB == 1 << SUB_BITS, "bits below the top bit that choose a bucket");

uint32_t chm_hist_bucket(uint64_t value)
{
    uint32_t top, bucket;

    if (value < CHM_HIST_SUB) {
        return (uint32_t)value;
    }
    top = 63u - (uint32_t)__builtin_clzll(value);
    /* The shifted value is in [32, 64): it carries the top bit, which counts as one step of 32. */
    bucket = CHM_HIST_SUB * (top - SUB_BITS) + (uint32_t)(value >> (top - SUB_BITS));
    return bucket < CHM_HIST_BUCKETS ? bucket : CHM_HIST_BUCKETS - 1;
}

uint64_t chm_hist_floor(uint32_t bucket)
{
    uint32_t shift;

    if (bucket < CHM_HIST_SUB) {
        return bucket;
    }
    shift = bucket / CHM_HIST_SUB - 1;
    return (uint64_t)(CHM_HIST_SUB + bucket % CHM_HIST_SUB) << shift;
}

void chm_hist_add(struct chm_hist *h, uint64_t value)
{
    h->count++;
    h->sum += value;
    h->max = chm_max(h->max, value);
    h->bucket[chm_hist_bucket(value)]++;
}

/* How many of the values, smallest first, make up the share: at least one, at most all. */
static uint64_t share_rank(uint64_t count, double share)
{
    double exact;
    uint64_t rank;

    if (!(share > 0)) { /* also when it is not a number */
        return 1;
    }
    if (share >= 1) {
        return count;
    }
    /* 0.07 of 100 is 7.000000000000001 in binary, and its caller means 7. */
    exact = share * (double)count * (1 - 1e-12);
    rank = (uint64_t)exact;
    if ((double)rank < exact) {
        rank++;
    }
    return chm_min(chm_max(rank, 1), count);
}

/*
 * Answers with the top of a bucket rather than its floor: a tail is never made to look better than
 * it was, and the last bucket gives the exact maximum.
 */
uint64_t chm_hist_quantile(const struct chm_hist *h, double share)
{
    uint64_t rank, seen = 0;

    if (h->count == 0) {
        return 0;
    }
    rank = share_rank(h->count, share);
    for (uint32_t i = 0; i < CHM_HIST_BUCKETS - 1; i++) {
        seen += h->bucket[i];
        if (seen >= rank) {
            return chm_min(chm_hist_floor(i + 1) - 1, h->max);
        }
    }
    return h->max;
}
