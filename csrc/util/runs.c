/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runs.c - contiguous runs out of a bitmap, first fit.
 *
 * A unit is free (bit clear) or in use (bit set): take and claim set, give clears. The firmware
 * calls it from its one thread. Invariants: used is the number of set bits; bits past the last unit
 * are clear. Searches look at whole words, and skip those that cannot hold the answer.
 */
#include "util/runs.h"

#include <string.h>

#include "util/util.h"

enum { WORD_BITS = 64 };

/* All bits from `bit` upwards, and all bits up to and including it. */
static uint64_t mask_from(uint64_t bit)
{
    return UINT64_MAX << (bit % WORD_BITS);
}

static uint64_t mask_to(uint64_t bit)
{
    return UINT64_MAX >> (WORD_BITS - 1 - bit % WORD_BITS);
}

/* First bit in [at, end) that is set in the words xor flip, or end. Reads no word beyond end. */
static inline uint64_t next_bit(const uint64_t *words, uint64_t at, uint64_t end, uint64_t flip)
{
    uint64_t i, last, word;

    if (at >= end) {
        return end;
    }
    i = at / WORD_BITS;
    last = (end - 1) / WORD_BITS;
    word = (words[i] ^ flip) & mask_from(at);
    while (word == 0 && i < last) {
        word = words[++i] ^ flip;
    }
    if (word == 0) {
        return end;
    }
    return chm_min(i * WORD_BITS + (uint64_t)__builtin_ctzll(word), end);
}

uint64_t chm_bits_next_set(const uint64_t *words, uint64_t at, uint64_t end)
{
    return next_bit(words, at, end, 0);
}

uint64_t chm_bits_next_clear(const uint64_t *words, uint64_t at, uint64_t end)
{
    return next_bit(words, at, end, UINT64_MAX);
}

void chm_bits_set(uint64_t *words, uint64_t at, uint64_t n)
{
    uint64_t i = at / WORD_BITS, last;

    if (n == 0) {
        return;
    }
    last = (at + n - 1) / WORD_BITS;
    if (i == last) {
        words[i] |= mask_from(at) & mask_to(at + n - 1);
        return;
    }
    words[i] |= mask_from(at);
    memset(&words[i + 1], 0xff, (last - i - 1) * sizeof(*words));
    words[last] |= mask_to(at + n - 1);
}

void chm_bits_clear(uint64_t *words, uint64_t at, uint64_t n)
{
    uint64_t i = at / WORD_BITS, last;

    if (n == 0) {
        return;
    }
    last = (at + n - 1) / WORD_BITS;
    if (i == last) {
        words[i] &= ~(mask_from(at) & mask_to(at + n - 1));
        return;
    }
    words[i] &= ~mask_from(at);
    memset(&words[i + 1], 0, (last - i - 1) * sizeof(*words));
    words[last] &= ~mask_to(at + n - 1);
}

uint64_t chm_runs_bytes(uint64_t units)
{
    return chm_round_up(units, WORD_BITS) / 8;
}

void chm_runs_init(struct chm_runs *r, uint64_t *words, uint64_t units)
{
    *r = (struct chm_runs){.words = words, .units = units};
    memset(words, 0, chm_runs_bytes(units));
}

/* The first free run of n units within [at, end), or CHM_RUNS_NONE. Each turn moves at forward. */
static uint64_t find_run(const struct chm_runs *r, uint64_t n, uint64_t at, uint64_t end)
{
    for (;;) {
        uint64_t busy;

        at = chm_bits_next_clear(r->words, at, end);
        if (end - at < n) {
            return CHM_RUNS_NONE;
        }
        busy = chm_bits_next_set(r->words, at, at + n);
        if (busy == at + n) {
            return at;
        }
        at = busy + 1;
    }
}

uint64_t chm_runs_take(struct chm_runs *r, uint64_t n, uint64_t from)
{
    uint64_t at;

    CHM_ASSERT(n >= 1);
    if (n > r->units - r->used) {
        return CHM_RUNS_NONE;
    }
    from = chm_min(from, r->units);
    at = find_run(r, n, from, r->units);
    if (at == CHM_RUNS_NONE) {
        /* A run that begins before `from` may reach past it, but has to begin before it. */
        at = find_run(r, n, 0, chm_min(from + n - 1, r->units));
    }
    if (at != CHM_RUNS_NONE) {
        chm_bits_set(r->words, at, n);
        r->used += n;
    }
    return at;
}

void chm_runs_claim(struct chm_runs *r, uint64_t at, uint64_t n)
{
    CHM_ASSERT(at <= r->units && n <= r->units - at);
    CHM_ASSERT(chm_bits_next_set(r->words, at, at + n) == at + n);
    chm_bits_set(r->words, at, n);
    r->used += n;
}

void chm_runs_give(struct chm_runs *r, uint64_t at, uint64_t n)
{
    CHM_ASSERT(at <= r->units && n <= r->units - at);
    CHM_ASSERT(chm_bits_next_clear(r->words, at, at + n) == at + n);
    chm_bits_clear(r->words, at, n);
    r->used -= n;
}

uint64_t chm_runs_largest(const struct chm_runs *r)
{
    uint64_t best = 0, at = chm_bits_next_clear(r->words, 0, r->units);

    while (at < r->units) {
        uint64_t busy = chm_bits_next_set(r->words, at, r->units);

        best = chm_max(best, busy - at);
        at = chm_bits_next_clear(r->words, busy, r->units);
    }
    return best;
}
