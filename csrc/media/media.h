/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media.h - what the media share; private to csrc/media.
 *
 * Rules that all of them keep, beyond medium.h:  - submit() accepts for as long as fewer than
 * caps.inflight_max I/Os are in the medium's hands, so
 *    that a wrapper with that many shadows is never refused by what it wraps.
 *  - An I/O that chm_io_check refuses is accepted, not carried out, and reaped with that error.
 *  - A read across the end of a member is short, and 0 beyond it. A write or trim across the end
 *    is -ENOSPC, because members never grow.
 */
#ifndef CHM_MEDIA_H
#define CHM_MEDIA_H

#include "media/medium.h"

/* Accepted or finished I/Os in order, chained through chm_io.link. Zeroed memory is empty. */
struct chm_io_fifo {
    struct chm_io *head, *tail;
};

static inline void chm_io_fifo_push(struct chm_io_fifo *q, struct chm_io *io)
{
    io->link = NULL;
    if (q->head) {
        q->tail->link = io;
    } else {
        q->head = io;
    }
    q->tail = io;
}

/* The oldest, or NULL. */
static inline struct chm_io *chm_io_fifo_pop(struct chm_io_fifo *q)
{
    struct chm_io *io = q->head;

    if (io) {
        q->head = io->link;
    }
    return io;
}

/* Fill err (may be NULL) with a formatted reason and return code, which is -errno. */
int chm_media_fail(struct chm_error *err, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* I/Os to be prepared for: args->inflight_max, or a default for 0. */
uint32_t chm_media_inflight(const struct chm_media_args *args);

/* Caps of a medium over args->backings: the pickiest member decides; hooks are applied. */
void chm_media_caps(const struct chm_media_args *args, const char *name,
                    struct chm_medium_caps *caps);

/* Apply force_align and force_transfer_max to caps that were probed otherwise. */
void chm_media_force(const struct chm_options *opts, struct chm_medium_caps *caps);

/* 0, or why this I/O cannot be carried out: -EINVAL, -ENOSPC or -EOPNOTSUPP. */
int chm_io_check(const struct chm_medium_caps *caps, const struct chm_io *io);

/* Media. As chm_media_open; the backings stay the caller's. */
int chm_media_sync_open(const struct chm_media_args *args, struct chm_medium **out,
                        struct chm_error *err);
int chm_media_threads_open(const struct chm_media_args *args, struct chm_medium **out,
                           struct chm_error *err);
int chm_media_uring_open(const struct chm_media_args *args, struct chm_medium **out,
                         struct chm_error *err);
int chm_media_sim_open(const struct chm_media_args *args, struct chm_medium **out,
                       struct chm_error *err);

/* Wrappers. On success *out owns inner, and closing *out closes it; on failure inner is
 * untouched. */
int chm_media_pace_open(const struct chm_media_args *args, struct chm_medium *inner,
                        struct chm_medium **out, struct chm_error *err);
int chm_media_fault_open(const struct chm_media_args *args, struct chm_medium *inner,
                         struct chm_medium **out, struct chm_error *err);
int chm_media_record_open(const struct chm_media_args *args, struct chm_medium *inner,
                          struct chm_medium **out, struct chm_error *err);
int chm_media_replay_open(const struct chm_media_args *args, struct chm_medium *inner,
                          struct chm_medium **out, struct chm_error *err);

#endif
