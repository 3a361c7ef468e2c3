/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wake.c - an eventfd with a flag (wake.h).
 *
 * chm_wake_take drains the fd before it looks at the flag, and chm_wake_ask sets the flag before it
 * rings: so whatever is asked is either seen now or leaves the fd readable for the next wait. A
 * flag seen early can leave the fd readable for nothing, which costs one turn of the waiter's loop.
 */
#define _GNU_SOURCE
#include "media/wake.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "media/clock.h"
#include "media/medium.h"

int chm_wake_open(struct chm_wake *w)
{
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_init(&w->asked, false);
    return w->fd < 0 ? -errno : 0;
}

void chm_wake_close(struct chm_wake *w)
{
    close(w->fd);
}

void chm_wake_ring(struct chm_wake *w)
{
    int saved = errno; /* this may run in a signal handler */
    uint64_t one = 1;
    ssize_t n = write(w->fd, &one, sizeof(one)); /* a full counter is readable all the same */

    (void)n;
    errno = saved;
}

void chm_wake_ask(struct chm_wake *w)
{
    atomic_store(&w->asked, true);
    chm_wake_ring(w);
}

bool chm_wake_take(struct chm_wake *w)
{
    uint64_t count;
    ssize_t n = read(w->fd, &count, sizeof(count));

    (void)n;
    return atomic_exchange(&w->asked, false);
}

void chm_wake_wait(struct chm_wake *w, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    uint64_t now = chm_clock_now();
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    struct timespec ts = {
        .tv_sec = (time_t)(left / 1000000000u),
        .tv_nsec = (long)(left % 1000000000u),
    };

    (void)ppoll(&p, 1, deadline_ns == CHM_FOREVER_NS ? NULL : &ts, NULL);
}
