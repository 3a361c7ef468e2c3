/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wake.h - how a thread that waits for I/O is woken: an eventfd and a flag.
 *
 * The eventfd is rung for two reasons: something finished, or chm_medium_wake() was called. The
 * flag tells them apart. Ringing is safe in a signal handler.
 */
#ifndef CHM_WAKE_H
#define CHM_WAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct chm_wake {
    int fd;
    _Atomic bool asked;
};

/* 0 or -errno. */
int chm_wake_open(struct chm_wake *w);
void chm_wake_close(struct chm_wake *w);
/* Something finished: make the fd readable. */
void chm_wake_ring(struct chm_wake *w);
/* As chm_medium_wake: set the flag, then ring. */
void chm_wake_ask(struct chm_wake *w);
/* Make the fd unreadable, then say (once) whether the flag was set. */
bool chm_wake_take(struct chm_wake *w);
/* Sleep until the fd is readable, a signal came or deadline_ns (monotonic) passed. */
void chm_wake_wait(struct chm_wake *w, uint64_t deadline_ns);

#endif
