/* SPDX-License-Identifier: Apache-2.0 */
/*
 * medium.h - where bytes live, and whose clock it is.
 *
 * A medium takes I/Os, carries them out, and hands them back. It also carries the clock: a real
 * medium brings the monotonic clock, a simulated one brings virtual time, and whoever sits above
 * cannot tell which. Wrapping media (fault, trace, pace) are media over another medium.
 *
 * An I/O is in one of two hands: the caller's, or, between an accepted submit() and the reap()
 * that returns it, the medium's. While the medium has it, the struct and its buffer must not be
 * touched by anybody else; the buffer of a read may be written at any time until reap().
 *
 * One thread at a time calls submit(), reap() and close(); wake() may be called from any thread or
 * signal handler.
 */
#ifndef CHM_MEDIUM_H
#define CHM_MEDIUM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "chm.h"

enum chm_io_kind {
    CHM_IO_READ = 0,
    CHM_IO_WRITE = 1,
    CHM_IO_BARRIER = 2, /* all writes and trims of this member reaped before it was submitted
                           are durable when it is reaped with res 0; off, len, buf unused */
    CHM_IO_TRIM = 3,    /* the range reads as zeros from then on; buf unused */
};

enum chm_io_flag {
    CHM_IO_FUA = 1, /* the write is durable when reaped */
};

enum {
    CHM_NO_REGION = -1,
    CHM_REGIONS_MAX = 64,
    CHM_REGION_CHUNK = 64 << 20, /* unit in which regions are registered with a ring, bytes */
};

#define CHM_FOREVER_NS UINT64_MAX

struct chm_io {
    /* set by the caller */
    uint8_t kind;    /* enum chm_io_kind */
    uint8_t flags;   /* enum chm_io_flag */
    uint16_t member; /* which backing file, 0 .. caps.members-1 */
    int32_t region;  /* index into chm_regions that holds buf, or CHM_NO_REGION */
    uint64_t off;    /* byte offset in the member, multiple of caps.block_bytes */
    uint32_t len;    /* bytes, multiple of caps.block_bytes, <= caps.transfer_max; 0: barrier */
    void *buf;       /* aligned to caps.align_bytes; stays the caller's memory */
    void *owner;     /* the caller's own; a medium never reads it */
    /* set by the medium before reap() returns the I/O */
    int32_t res;        /* bytes moved (may be short), 0 for barrier and trim, or -errno */
    uint64_t submit_ns; /* medium clock at submit */
    uint64_t done_ns;   /* medium clock at completion */
    /* the medium's while it holds the I/O; free for the caller otherwise */
    struct chm_io *link;
    uint64_t priv;
};

/*
 * Memory that I/O buffers may lie in, so that a medium can register it ahead (io_uring fixed
 * buffers). The owner of the table fills entries in; `ready` grows from 0 to len as a helper thread
 * pre-faults the memory, and the medium registers chunks of CHM_REGION_CHUNK up to it, from the
 * thread that submits. A medium that cannot or need not register ignores the table. An entry whose
 * len becomes 0 is dropped by the medium at its next submit(); the owner bumps `version` after
 * every change other than `ready`.
 */
struct chm_region {
    _Atomic(uint8_t *) base;
    _Atomic uint64_t len;
    _Atomic uint64_t ready;
};

struct chm_regions {
    _Atomic uint32_t version;
    struct chm_region at[CHM_REGIONS_MAX];
};

struct chm_port;

/* What a simulated medium has handed back so far. */
struct chm_sim_events {
    uint64_t ios;
    uint64_t digest; /* of kind, member, off, len, res, submit_ns, done_ns of each, in order */
};

/* Fixed at open. What the pointers lead to is the medium's, and changes. Wrappers pass them on. */
struct chm_medium_caps {
    char name[32];  /* "uring", "threads", "sync", "sim"; a wrapper: "pace+uring" */
    char note[192]; /* why this is not what was asked for, or "" (fallback, buffered I/O) */
    uint32_t members;
    uint32_t block_bytes;                 /* off and len are multiples of it: 512, 4096, ... */
    uint32_t align_bytes;                 /* memory alignment of buf */
    uint32_t transfer_max;                /* largest len, bytes; a multiple of block_bytes */
    uint32_t inflight_max;                /* submit() accepts at most this many at once */
    bool volatile_cache;                  /* writes need a barrier to be durable */
    bool fua_cheap;                       /* CHM_IO_FUA costs less than a barrier */
    bool trim;                            /* CHM_IO_TRIM works; else it gives -EOPNOTSUPP */
    bool virtual_time;                    /* now() moves only in reap(); stepped use only */
    bool contents;                        /* false: bytes are not kept, reads leave buf as it is */
    bool direct;                          /* the page cache is not involved */
    bool fixed_buffers;                   /* registration of regions works on this medium */
    int event_fd;                         /* readable when reap() has work, or -1; never close it */
    struct chm_port *dram;                /* the device's DRAM port (media/port.h), or NULL */
    const struct chm_sim_events *events;  /* NULL on a real medium */
    uint64_t size_bytes[CHM_MEMBERS_MAX]; /* of each member, header included */
};

struct chm_medium;

struct chm_medium_ops {
    /*
     * Offer n I/Os. Returns how many were accepted, always the first ones of the array; the rest
     * stay the caller's. Less than n (0 too) means full: reap, then offer again. Never blocks on
     * I/O. An I/O that is malformed or fails at once is accepted and reaped with res = -errno.
     */
    unsigned (*submit)(struct chm_medium *m, struct chm_io *const *ios, unsigned n);
    /*
     * Collect up to max finished I/Os, in completion order. Returns as soon as there is one; 0 when
     * deadline_ns (medium clock; 0 polls, CHM_FOREVER_NS never) passed first or wake() was called.
     * The only place that waits. In virtual time it moves the clock to the next completion, or to
     * deadline_ns if that comes first; with nothing in flight and CHM_FOREVER_NS it returns 0 and
     * leaves the clock alone. A negative return is -errno of the medium itself (it is dead then).
     */
    int (*reap)(struct chm_medium *m, struct chm_io **out, unsigned max, uint64_t deadline_ns);
    uint64_t (*now)(struct chm_medium *m);
    /* Ends a reap() in progress or, if none is, the next one. Any thread, any signal handler. */
    void (*wake)(struct chm_medium *m);
    /*
     * Ends the medium and frees it. I/Os still in flight are waited for until deadline_ns (real
     * media: monotonic). Returns 0, or -ETIMEDOUT when some did not end: then their buffers and
     * chm_io structs must never be reused, and the medium keeps what the kernel may still touch.
     */
    int (*close)(struct chm_medium *m, uint64_t deadline_ns);
};

struct chm_medium {
    const struct chm_medium_ops *ops;
    struct chm_medium_caps caps;
};

static inline unsigned chm_medium_submit(struct chm_medium *m, struct chm_io *const *ios,
                                         unsigned n)
{
    return m->ops->submit(m, ios, n);
}

static inline int chm_medium_reap(struct chm_medium *m, struct chm_io **out, unsigned max,
                                  uint64_t deadline_ns)
{
    return m->ops->reap(m, out, max, deadline_ns);
}

static inline uint64_t chm_medium_now(struct chm_medium *m)
{
    return m->ops->now(m);
}

static inline void chm_medium_wake(struct chm_medium *m)
{
    m->ops->wake(m);
}

static inline int chm_medium_close(struct chm_medium *m, uint64_t deadline_ns)
{
    return m->ops->close(m, deadline_ns);
}

struct chm_backing;

struct chm_media_args {
    const struct chm_options *opts;     /* media, wrappers, hooks; read only during open */
    const struct chm_backing *backings; /* opened members, NULL for "sim"; the medium uses their fds
                                           and does not close them */
    uint32_t members;
    struct chm_regions *regions; /* or NULL; must outlive the medium */
    uint32_t inflight_max;       /* I/Os the caller wants in flight at once */
    bool one_thread;             /* all calls but wake() come from the very thread that opens */
};

/*
 * Open the medium opts->media, wrapped as opts asks (from the inside out: pace, fault, trace). On
 * failure returns -errno with err filled and *out untouched.
 */
int chm_media_open(const struct chm_media_args *args, struct chm_medium **out,
                   struct chm_error *err);

#endif
