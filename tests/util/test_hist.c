/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms: the bucket layout that chm.h fixes, and quantiles against sorting. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "util/hist.h"
#include "util/util.h"

enum { VALUES = 5000 };

static const uint64_t end_of_range = UINT64_C(1) << 44;

/* The formula of chm.h, written down naively. */
static uint32_t bucket_by_formula(uint64_t value)
{
    uint32_t e = 0;

    if (value < CHM_HIST_SUB) {
        return (uint32_t)value;
    }
    while (value >> e > 1) {
        e++;
    }
    return 32 * (e - 4) + (uint32_t)(value >> (e - 5) & 31);
}

/* Every bucket: its floor and its last value lead back to it, and it is at most 1/32 wide. */
static void test_buckets(void)
{
    CHECK_EQ(chm_hist_floor(0), 0);
    for (uint32_t b = 0; b < CHM_HIST_BUCKETS; b++) {
        uint64_t low = chm_hist_floor(b), next = chm_hist_floor(b + 1);

        CHECK(next > low);
        CHECK_EQ(chm_hist_bucket(low), b);
        CHECK_EQ(chm_hist_bucket(next - 1), b);
        CHECK_EQ(bucket_by_formula(low), b);
        CHECK((next - 1 - low) * 32 <= low);
    }
    CHECK_EQ(chm_hist_floor(CHM_HIST_BUCKETS), end_of_range);
}

static void test_values(void)
{
    uint64_t random = 5;

    for (uint64_t v = 0; v < 100000; v++) {
        CHECK_EQ(chm_hist_bucket(v), bucket_by_formula(v));
    }
    for (uint32_t i = 0; i < 100000; i++) {
        uint64_t v = chm_random(&random) >> (20 + i % 44);

        CHECK_EQ(chm_hist_bucket(v), bucket_by_formula(v));
        CHECK(chm_hist_floor(chm_hist_bucket(v)) <= v);
    }
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void check_quantile(const struct chm_hist *h, const uint64_t *sorted, uint64_t n,
                           double share)
{
    uint64_t rank = (uint64_t)ceil(share * (double)n - 1e-6);
    uint64_t exact = sorted[chm_max(rank, 1) - 1], got = chm_hist_quantile(h, share);

    CHECK(got >= exact);
    CHECK((got - exact) * 32 <= exact);
}

static void test_quantiles(uint32_t shift, uint64_t n)
{
    static uint64_t value[VALUES];
    static struct chm_hist h;
    uint64_t random = shift, sum = 0;

    memset(&h, 0, sizeof(h));
    for (uint64_t i = 0; i < n; i++) {
        value[i] = chm_random(&random) >> (shift + chm_random(&random) % 6);
        chm_hist_add(&h, value[i]);
        sum += value[i];
    }
    qsort(value, n, sizeof(value[0]), compare);
    CHECK_EQ(h.count, n);
    CHECK_EQ(h.sum, sum);
    CHECK_EQ(h.max, value[n - 1]);
    for (uint32_t percent = 0; percent <= 100; percent++) {
        check_quantile(&h, value, n, percent / 100.0);
    }
    check_quantile(&h, value, n, 0.999);
    check_quantile(&h, value, n, 0.9999);
    CHECK_EQ(chm_hist_quantile(&h, 1), value[n - 1]); /* the maximum is exact */
}

/* Small values have buckets of their own, so these are exact: the rank has to be right. */
static void test_rank(void)
{
    static struct chm_hist h;

    for (uint64_t v = 1; v <= 20; v++) {
        chm_hist_add(&h, v);
    }
    CHECK_EQ(chm_hist_quantile(&h, 0), 1);
    CHECK_EQ(chm_hist_quantile(&h, 0.05), 1);
    CHECK_EQ(chm_hist_quantile(&h, 0.051), 2);
    CHECK_EQ(chm_hist_quantile(&h, 0.5), 10);
    CHECK_EQ(chm_hist_quantile(&h, 0.95), 19);
    CHECK_EQ(chm_hist_quantile(&h, 0.951), 20);
    CHECK_EQ(chm_hist_quantile(&h, 1), 20);
    CHECK_EQ(chm_hist_quantile(&h, -1), 1);
    CHECK_EQ(chm_hist_quantile(&h, 2), 20);
    CHECK_EQ(chm_hist_quantile(&h, NAN), 1);
    for (uint64_t i = 0; i < 80; i++) {
        chm_hist_add(&h, 25);
    }
    CHECK_EQ(chm_hist_quantile(&h, 0.07), 7); /* 0.07 * 100 > 7 in binary */
}

/* A long tail must not be made to look shorter: one value in a thousand decides p99.95. */
static void test_tail(void)
{
    static struct chm_hist h;

    for (uint32_t i = 0; i < 999; i++) {
        chm_hist_add(&h, 20);
    }
    chm_hist_add(&h, CHM_SECOND);
    CHECK_EQ(chm_hist_quantile(&h, 0.999), 20);
    CHECK_EQ(chm_hist_quantile(&h, 0.9995), CHM_SECOND);
}

static void test_past_the_end(void)
{
    static struct chm_hist h;

    CHECK_EQ(chm_hist_quantile(&h, 0.5), 0); /* empty */
    CHECK_EQ(chm_hist_bucket(end_of_range - 1), CHM_HIST_BUCKETS - 1);
    CHECK_EQ(chm_hist_bucket(end_of_range), CHM_HIST_BUCKETS - 1);
    CHECK_EQ(chm_hist_bucket(UINT64_MAX), CHM_HIST_BUCKETS - 1);
    chm_hist_add(&h, 3);
    chm_hist_add(&h, end_of_range * 8);
    CHECK_EQ(h.bucket[CHM_HIST_BUCKETS - 1], 1);
    CHECK_EQ(h.count, 2);
    CHECK_EQ(chm_hist_quantile(&h, 0.5), 3);
    CHECK_EQ(chm_hist_quantile(&h, 0.99), end_of_range * 8);
}

int main(void)
{
    test_buckets();
    test_values();
    for (uint32_t shift = 20; shift < 59; shift += 3) {
        test_quantiles(shift, VALUES);
    }
    test_quantiles(40, 1);
    test_quantiles(40, 7);
    test_rank();
    test_tail();
    test_past_the_end();
    return 0;
}
