/* SPDX-License-Identifier: Apache-2.0 */
/* util.h - the few macros everything uses. */
#ifndef CHM_UTIL_H
#define CHM_UTIL_H

#include <stddef.h>
#include <stdint.h>

/* A broken invariant: says where and aborts, in release builds too. */
_Noreturn void chm_assert_fail(const char *what, const char *file, int line);
#define CHM_ASSERT(cond) ((cond) ? (void)0 : chm_assert_fail(#cond, __FILE__, __LINE__))

#define CHM_CONTAINER(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))
#define CHM_COUNT(a) (sizeof(a) / sizeof((a)[0]))

static inline uint64_t chm_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t chm_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t chm_round_up(uint64_t v, uint64_t unit)
{
    return (v + unit - 1) / unit * unit;
}

/* a + b, or UINT64_MAX if that overflows (times far in the future). */
static inline uint64_t chm_sat_add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* What a draw adds to the state. */
#define CHM_RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15)

/* splitmix64: the next number of the sequence that *state seeds. */
uint64_t chm_random(uint64_t *state);

#endif
