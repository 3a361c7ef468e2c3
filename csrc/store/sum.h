/* SPDX-License-Identifier: Apache-2.0 */
/* sum.h - checksums of 64 bits (XXH3), with the widest vectors that the processor has. */
#ifndef CHM_STORE_SUM_H
#define CHM_STORE_SUM_H

#include <stdint.h>

enum { CHM_SUM_STATE_BYTES = 640 };

/* A sum that is being made. */
struct chm_sum {
    uint8_t state[CHM_SUM_STATE_BYTES] __attribute__((aligned(64)));
};

struct chm_sum_ops {
    uint64_t (*once)(const void *data, uint64_t len, uint64_t seed);
    void (*begin)(void *state, uint64_t seed);
    void (*add)(void *state, const void *data, uint64_t len);
    uint64_t (*end)(const void *state);
};

/* For processors with AVX2; elsewhere the same as without. */
extern const struct chm_sum_ops chm_sum_wide_ops;

uint64_t chm_sum_once(const void *data, uint64_t len, uint64_t seed);
void chm_sum_begin(struct chm_sum *sum, uint64_t seed);
void chm_sum_add(struct chm_sum *sum, const void *data, uint64_t len);
uint64_t chm_sum_end(const struct chm_sum *sum);

#endif
