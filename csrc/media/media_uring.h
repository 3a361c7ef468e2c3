/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media_uring.h - the insides of the io_uring medium, shared by its three files:
 * uring_setup.c (open, and why not), uring_regions.c (registered buffers), media_uring.c (I/O).
 * Tests look here too: the calls that enter the kernel are pointers, so that a test can put a
 * failing kernel in their place.
 */
#ifndef CHM_MEDIA_URING_H
#define CHM_MEDIA_URING_H

#include <liburing.h>

#include "media/media.h"
#include "util/runs.h"

enum {
    CHM_URING_RESERVE = 2,   /* completions that are not I/Os: the wake-up poll and a cancel */
    CHM_URING_SLOTS = 4096,  /* registered chunks, 64 MiB each: 256 GiB */
    CHM_URING_SQ_MAX = 1024, /* entries handed to the kernel at once; more just take turns */
    CHM_URING_CQ_MAX = 65536,
};

/* What is registered of one entry of chm_regions. */
struct chm_uring_region {
    uint8_t *base;
    uint64_t len;
    uint32_t slot;       /* of its first chunk */
    uint32_t chunks;     /* slots taken; 0: none to be had, plain I/O */
    uint32_t registered; /* chunks that the ring knows, from the front */
};

struct chm_uring_regions {
    struct chm_regions *table; /* NULL: nothing is ever registered */
    struct io_uring *ring;
    uint32_t version; /* of the table, as last looked at */
    uint64_t growing; /* bit i: at[i] has chunks still to register */
    int refused;      /* -errno of the refusal that ended registering, or 0 */
    struct chm_runs slots;
    uint64_t *slot_words;
    struct chm_uring_region at[CHM_REGIONS_MAX];
};

/* Prepare the ring's sparse table. 0, or -errno: then nothing can be registered. */
int chm_uring_regions_open(struct chm_uring_regions *r, struct io_uring *ring,
                           struct chm_regions *table);
void chm_uring_regions_close(struct chm_uring_regions *r);
/* Follow the owner's table; registers at most one chunk, because each costs milliseconds.
 * Returns 0, or (once) the -errno with which the kernel refused: nothing more is
 * registered from then on. */
int chm_uring_regions_update(struct chm_uring_regions *r);
/* The registered chunk that the I/O lies in, or -1. */
int chm_uring_regions_slot(const struct chm_uring_regions *r, const struct chm_io *io);

struct chm_uring {
    struct chm_medium m;
    struct io_uring ring;
    int (*submit)(struct io_uring *ring); /* io_uring_submit */
    int (*wait)(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned n,
                struct __kernel_timespec *ts, sigset_t *mask); /* ..._submit_and_wait_timeout */
    struct chm_io_fifo pending;                                /* accepted, not in the ring yet */
    uint32_t held;                                             /* accepted and not reaped */
    uint32_t in_ring;                                          /* of these, those in the ring */
    uint32_t ring_max; /* bound of in_ring: what the CQ holds without overflow */
    int dead;          /* -errno with which the kernel refused the ring itself, or 0 */
    int wake_fd;
    bool wake_armed;
    bool fixed_files;
    int fd[CHM_MEMBERS_MAX];
    bool punch[CHM_MEMBERS_MAX]; /* cannot zero a range and keep its blocks */
    struct chm_uring_regions regions;
};

/* The ring as good as this kernel gives it. On failure -errno, err says why and what to do. */
int chm_uring_setup(struct chm_uring *u, const struct chm_media_args *args, struct chm_error *err);
/* Registered files and buffers; what is refused is left out and noted in caps.note. */
void chm_uring_register(struct chm_uring *u, const struct chm_media_args *args);
/* Note that the kernel refused to register buffers with -errno rc. */
void chm_uring_note_refusal(struct chm_uring *u, int rc);

#endif
