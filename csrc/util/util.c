/* SPDX-License-Identifier: Apache-2.0 */
/* util.c - the two functions behind the macros of util.h. Anybody may call them. */
#include "util/util.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void chm_assert_fail(const char *what, const char *file, int line)
{
    fprintf(stderr, "chm: %s:%d: broken invariant: %s\n", file, line, what);
    abort();
}

uint64_t chm_random(uint64_t *state)
{
    uint64_t z = *state += CHM_RANDOM_STEP;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
