/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.c - the monotonic clock. Stateless; called by the real media and nobody else.
 */
#define _GNU_SOURCE
#include "media/clock.h"

#include <time.h>

uint64_t chm_clock_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
