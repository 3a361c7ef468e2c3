/* SPDX-License-Identifier: Apache-2.0 */
/* futex.c - see futex.h. */
#include "host/futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

int chm_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t deadline_ns)
{
    struct timespec ts = timespec_of(deadline_ns);
    const struct timespec *until = deadline_ns == UINT64_MAX ? NULL : &ts;
    long rc =
        syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, until, NULL, FUTEX_BITSET_MATCH_ANY);

    return rc == 0 || errno == EAGAIN ? 0 : -errno;
}

void chm_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int chm_sleep_until(uint64_t at_ns)
{
    struct timespec ts = timespec_of(at_ns);

    return -clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}
