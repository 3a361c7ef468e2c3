/* SPDX-License-Identifier: Apache-2.0 */
/* futex.h - sleeping on a word, and on the clock. */
#ifndef CHM_FUTEX_H
#define CHM_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Sleep while *word is `value`, until deadline_ns (CLOCK_MONOTONIC; UINT64_MAX: none), or for no
 * reason. -EINTR after a signal, -ETIMEDOUT, else 0. */
int chm_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t deadline_ns);
void chm_futex_wake(_Atomic uint32_t *word);
/* 0, or -EINTR after a signal. */
int chm_sleep_until(uint64_t at_ns);

#endif
