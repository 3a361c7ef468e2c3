/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - the monotonic clock, which real media carry. Simulated ones must never look at it. */
#ifndef CHM_CLOCK_H
#define CHM_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t chm_clock_now(void);

#endif
