/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runs.h - a bitmap of equal units, given out in contiguous runs, first fit from a starting point.
 *
 * The caller owns the memory (chm_runs_bytes of it), so that whoever uses it allocates once, at
 * open.
 */
#ifndef CHM_RUNS_H
#define CHM_RUNS_H

#include <stdint.h>

#define CHM_RUNS_NONE UINT64_MAX

struct chm_runs {
    uint64_t *words; /* a set bit is a unit in use */
    uint64_t units;
    uint64_t used;
};

uint64_t chm_runs_bytes(uint64_t units);
/* words: chm_runs_bytes(units) bytes; all units become free. */
void chm_runs_init(struct chm_runs *r, uint64_t *words, uint64_t units);
/* The first free run of n units at or after `from`, else the first before it; marks it used.
 * Returns its first unit or CHM_RUNS_NONE. A run never wraps round the end. n >= 1. Skips whole
 * words. */
uint64_t chm_runs_take(struct chm_runs *r, uint64_t n, uint64_t from);
/* Mark a particular run used; asserts that it is free. */
void chm_runs_claim(struct chm_runs *r, uint64_t at, uint64_t n);
/* Give units back; asserts that all of them are in use. */
void chm_runs_give(struct chm_runs *r, uint64_t at, uint64_t n);
/* Longest free run, in units. */
uint64_t chm_runs_largest(const struct chm_runs *r);

/* On a plain bitmap with the same layout (used for "these pages have arrived"): */
void chm_bits_set(uint64_t *words, uint64_t at, uint64_t n);
void chm_bits_clear(uint64_t *words, uint64_t at, uint64_t n);
/* First set (or clear) bit in [at, end), or end. */
uint64_t chm_bits_next_set(const uint64_t *words, uint64_t at, uint64_t end);
uint64_t chm_bits_next_clear(const uint64_t *words, uint64_t at, uint64_t end);

#endif
