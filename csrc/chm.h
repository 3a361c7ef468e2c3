/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chm.h - a CXL hybrid-memory device in userspace.
 *
 * A device shows one byte-addressable space, [0, capacity), that lives on one or more files or
 * drives behind a fixed amount of DRAM. The DRAM is no cache. It is a *window* that objects are
 * staged in because you said you will read them (issue, wait, release), and a *write buffer* that
 * takes what you write and goes to the drive when reads leave room.
 *
 *     struct chm_options opt;
 *     chm_options_init(&opt);
 *     opt.paths = paths, opt.npaths = 1;
 *     chm_open(&opt, &dev, &err);
 *     struct chm_issue item = {.addr = addr, .len = len};
 *     chm_issue(dev, &item, 1, NULL);             item.req or item.status
 *     chm_wait(dev, item.req, CHM_SECOND);        0 when all bytes are there
 *     chm_view(dev, item.req, &view);             view.data, view.len: no copy
 *     chm_release(dev, item.req);                 the window space is free again
 *
 * Rules for all calls
 *  - Sizes and addresses are bytes, times are nanoseconds on the device's clock (chm_now), which is
 *    CLOCK_MONOTONIC on a real medium and virtual time on a simulated one.
 *  - A call returns 0, a count, or -errno. errno is not used. On failure outputs are untouched,
 *    except the per-item `status` of a batch.
 *  - A batch call returns the number of items with status 0, or -errno if the call as a whole was
 *    bad; look at each item's status.
 *  - A timeout does not mean that something is free: see chm_wait and chm_release.
 *  - Who may call: a device opened with `thread` = 0 is stepped by its caller, one thread at a
 *    time. With `thread` = 1 it has one device thread and any thread may call.
 *  - In a child made by fork() every call answers -ECHILD and does nothing.
 *  - Common errors, not repeated below: -EINVAL for a malformed argument, -ECHILD after fork,
 *    -ESTALE for a handle that was released, -ENODEV when the medium died, -ESHUTDOWN during close.
 *
 * This header is plain declarations on purpose: the Python package reads it as it is.
 */
#ifndef CHM_H
#define CHM_H

#include <stddef.h>
#include <stdint.h>

enum {
    CHM_VERSION_MAJOR = 0,
    CHM_VERSION_MINOR = 1,
    CHM_PAGE_BYTES = 4096,  /* the unit of addresses and lengths in the device */
    CHM_MEMBERS_MAX = 16,   /* backing files of one device */
    CHM_HEADER_BYTES = 4096 /* device header at the start of each backing file */
};

enum {
    CHM_SECOND = 1000000000 /* nanoseconds */
};

/* Opaque: one open device. */
typedef struct chm_dev chm_dev;
/* Opaque: one stream of staged pieces (chm_stream_open). */
typedef struct chm_stream chm_stream;
/* Opaque: an object allocator over one device (chm_space_open). */
typedef struct chm_space chm_space;
/* Opaque: an open key-value store on a device (chm_store_open). */
typedef struct chm_store chm_store;

/* Why a call failed, in words that name the fix. text is always NUL-terminated. */
struct chm_error {
    int code; /* -errno */
    char text[256];
};

/* "0.1.0"; static storage. */
const char *chm_version(void);

/* ------------------------------------------------------------------ making and opening a device */

/*
 * Timing of the simulated medium (docs/simulator.md). With dies = 0 each member is one resource
 * that reads and writes share: an I/O of n bytes occupies it for n/rate and ends latency after
 * (with duplex, reads have one and writes another).
 * With dies it is a flash drive: dies, channels, a write cache, and a link of its own; the two
 * latencies have no use then. Zero means the default unless said otherwise.
 */
struct chm_sim_options {
    uint64_t capacity_bytes;   /* per member, header included; default 1 GiB */
    uint64_t read_rate;        /* bytes/s; default 2 GB/s; with dies: SSD link, reads */
    uint64_t write_rate;       /* bytes/s; default 2 GB/s; with dies: SSD link, writes */
    uint64_t read_latency_ns;  /* default 80 us */
    uint64_t write_latency_ns; /* default 20 us */
    uint64_t barrier_ns;       /* default 1 ms */
    uint32_t stripe_bytes;     /* stripe unit over several members; default 1 MiB */
    uint32_t no_contents;      /* 1: keep no bytes (TB-scale runs); reads leave memory as it is */
    uint32_t volatile_cache;   /* 1: writes need a barrier to survive chm_sim power cut */
    uint32_t duplex; /* 1: without dies, reads and writes do not share, each has a resource */
    void *keep;      /* tests: bytes that outlive the device (media/sim_image.h), or NULL */

    /* each member a flash drive */
    uint32_t dies;        /* default 0: rates only; at most 1024 */
    uint32_t channels;    /* dies is a multiple of it; default the largest of 8, 4, 2, 1 */
    uint32_t planes;      /* pages that a die reads or programs at once; default 1, at most 16 */
    uint32_t page_bytes;  /* power of two, 4 KiB .. 1 MiB; default 16 KiB */
    uint32_t block_pages; /* programs of a die between two erases; default 1024 */
    uint64_t page_read_ns[3]; /* lower, middle, upper page; default 60 us; [1], [2]: as [0] */
    uint64_t program_ns;      /* one program, of a page on each plane; default 600 us */
    uint64_t erase_ns;        /* 0: erasing takes no time */
    uint64_t suspend_ns;   /* for a read to suspend a program or erase; 0: it waits for its end */
    uint64_t channel_rate; /* bytes/s of one channel; default 1.6 GB/s */
    uint64_t cache_bytes;  /* writes are acknowledged when they are in it; 0: when programmed */
    uint64_t command_ns;   /* SSD firmware, latency of a command; 0: none */

    /* around the members, with dies or without */
    uint64_t software_ns; /* host software, which does one I/O after the other; 0: none */
    uint64_t dram_rate;   /* device DRAM port, bytes/s: SSD transfers and the host link; 0: none */
    uint64_t seed;        /* which page is of which kind */
};

/* Slow a medium down (wrapper): one token bucket that reads and writes share. 0 = not paced. */
struct chm_pace_options {
    uint64_t rate;        /* bytes/s over reads and writes together; 0: no pacing */
    uint64_t latency_ns;  /* added to each I/O */
    uint64_t burst_bytes; /* bucket size; default 1 MiB */
};

/*
 * Faults (wrapper). Either `script`, or rates with a seed. Rates are in parts per million of I/Os.
 * A script is lines `N KIND FAULT [ARG]`: the N-th (from 0) I/O of KIND (read, write, barrier,
 * trim, any) gets FAULT: `err ERRNO` (a number; the inner medium is not asked), `short BYTES` (that
 * many bytes are moved and reported), `torn BYTES` (write: only the first BYTES land, full success
 * is reported), `lost` (write: nothing lands, success is reported), `late NS` (handed back NS
 * later), `never` (not handed back until the medium is closed), `swap` (handed back after the next
 * one). N may be `N-M` or `N-` (an open range).
 */
struct chm_fault_options {
    const char *script; /* or NULL */
    uint64_t seed;
    uint32_t eio_ppm, short_ppm, torn_ppm, lost_ppm, late_ppm, never_ppm, swap_ppm;
    uint64_t late_ns; /* of a late I/O; default 10 ms */
};

/* Everything about a device that is fixed while it is open. Zero means the default. */
struct chm_options {
    uint64_t size; /* sizeof(struct chm_options), set by chm_options_init */

    /* what it lies on */
    const char *const *paths; /* backing files or block devices, in member order */
    uint32_t npaths;          /* 1 .. CHM_MEMBERS_MAX; with media "sim" the number of members */
    const char *media;        /* "auto" (default), "uring", "threads", "sync", "sim" */
    uint32_t buffered;        /* 1: allow the page cache (no O_DIRECT). Default 0: refused where
                                 O_DIRECT does not work, with the reason */

    /* DRAM: the device never holds more payload than this */
    uint64_t dram_bytes;         /* window + write buffer; default 256 MiB */
    uint64_t write_buffer_bytes; /* part of it; default dram/4, at least 16 MiB (but at most half
                                    of dram) and at most 512 MiB */
    uint32_t huge_pages;  /* 0: reserved ones if the system has some, else collapse small pages
                                    while pre-faulting, as far as the kernel does; 1: never;
                                    2: reserved ones or fail */
    uint32_t lock_memory; /* 1: mlock the DRAM */
    uint32_t prefault;    /* 0: a helper does it in the background, 1: before open returns,
                                    2: not at all */
    uint32_t poison;      /* 1: fill DRAM with 0xA5 whenever it is given back (tests) */

    /* what the DRAM is used as (see "the transparent cache" below) */
    const char *policy;  /* "window" (default), or a line cache by its way of replacing:
                                   "lru", "fifo", "clock"; chm_policy_name lists them */
    uint32_t line_bytes; /* lines: a power of two, 4 KiB .. 16 MiB; default 4096 */
    uint32_t ways;       /* lines: of one set; 0: one set of all (fully associative) */
    uint32_t line_fills; /* lines: misses in flight, each with its write-back; default 14 */
    uint32_t
        effective_percent;  /* lines: share of them that can be used (fewer sets); default 100 */
    uint32_t fill_on_write; /* lines: 1: a store fetches a line also when it overwrites all of
                                   it */

    /* bounds */
    uint32_t requests_max;       /* outstanding requests; default 4096 */
    uint32_t writes_max;         /* extents in the write buffer; default 8192 */
    uint32_t read_unit;          /* bytes per read I/O; default 1 MiB */
    uint32_t read_depth;         /* read I/Os in flight; default 128 */
    uint32_t read_depth_pressed; /* the same while the write buffer presses; default 24, so that one
                                    flush unit among them gets 1/25 of a first-come-first-served
                                    drive */

    /* flush scheduling */
    uint32_t flush_unit;          /* bytes per flush I/O; default 1 MiB */
    uint32_t flush_depth;         /* flush I/Os in flight while no read waits; default 4 */
    uint32_t flush_depth_reads;   /* the same while reads wait; default 1 */
    uint32_t flush_low_percent;   /* buffer fill at which pressing ends; default 25 */
    uint32_t flush_high_percent;  /* buffer fill at which it starts; default 50 */
    uint64_t flush_age_ns;        /* data older than this presses; default 1 s */
    uint64_t flush_idle_ns;       /* reads idle this long: flush whatever there is; default 1 ms */
    const char *flush_policy;     /* "read-first" (default), "fcfs" (no read priority, first come
                                     first served), "idle-only"; chm_flush_policy_name lists them */
    uint32_t fcfs;                /* 1: short for flush_policy "fcfs" */
    uint32_t durability;          /* enum chm_durability; default CHM_DURABILITY_PERIODIC */
    uint64_t barrier_interval_ns; /* periodic: at least this often; default 1 s */
    uint64_t barrier_bytes;       /* periodic: or after this much; default 512 MiB */

    /* how it is driven */
    uint32_t thread;  /* 1: a device thread of its own; 0: stepped by the caller */
    uint64_t poll_ns; /* the device thread polls this long after work; default 20 us */

    /* the host link: what is delivered takes size / rate on it and is seen a latency later. Both
     * directions at once */
    uint64_t link_rate;         /* bytes/s of one rail towards the host; 0: no link */
    uint64_t link_write_rate;   /* bytes/s of one rail towards the device; 0: link_rate */
    uint64_t link_latency_ns;   /* of each transfer */
    uint32_t link_jitter_ns[4]; /* added to it: at quantiles 0.5, 0.75, 0.9 and 1, linear between, 0
                                   at 0, drawn from sim.seed; must not fall */
    uint32_t link_rails;        /* 1 (default) or 2 */
    uint32_t link_split_bytes;  /* two rails: transfers of at least this many bytes go half over
                                  each, shorter ones over the one that is free first */

    /* wrappers and the simulated medium */
    struct chm_sim_options sim;
    struct chm_pace_options pace;
    struct chm_fault_options fault;
    const char *trace_record; /* write every I/O to this file (JSON lines), or NULL */
    const char *trace_replay; /* take result, latency and order of every I/O from this file */

    /* for tests: pretend the medium is pickier than it is; 0 = as probed */
    uint32_t force_align;        /* block and memory alignment, bytes: 512, 4096, 65536 */
    uint32_t force_transfer_max; /* bytes */
    uint32_t force_no_register;  /* 1: behave as if buffer registration were refused */
    uint32_t force_ring_errno;   /* io_uring set-up answers -force_ring_errno */
    uint32_t force_plain_ring;   /* 1: behave as if newer ring flags were refused */
    uint32_t force_ring_entries; /* size of the rings */
};

enum chm_durability {
    CHM_DURABILITY_PERIODIC = 0, /* a barrier now and then, and at chm_flush and close */
    CHM_DURABILITY_NONE = 1,     /* at chm_flush and close only */
    CHM_DURABILITY_STRICT = 2    /* chm_write_commit returns when the bytes are durable */
};

/* Names of the device cache policies and of the flush policies, i from 0; NULL after the last one.
 * Static storage. */
const char *chm_policy_name(uint32_t i);
const char *chm_flush_policy_name(uint32_t i);

/*
 * The transparent cache, policies "lru", "fifo", "clock": for comparison with the window. It is
 * what a hybrid-memory device does by itself: all DRAM but the write buffer is a cache of lines,
 * which nobody is told of and nobody can tell anything.
 *
 *  - chm_issue, and with it the published form and streams, answers -EOPNOTSUPP: there is no
 *    prefetch call. Reads are chm_read and chm_read_issue; they may be larger than the cache.
 *  - Every access goes through lines, in the order of the calls. A line that is absent is fetched,
 *    whole, for a read and for a store of part of it; what a line held before is written back
 *    first if it is dirty. At most line_fills lines are on their way in at a time, so misses per
 *    second are at most line_fills / (latency of a fill and the write-back before it).
 *  - Writes are begun and committed as ever. The write buffer is where they land: room in it comes
 *    free when the bytes are in lines. Bytes go to the drive when their line gives way, and for
 *    chm_flush, strict or periodic durability, and close.
 *  - A read that fails with -EIO leaves nothing behind and can be tried again. A line that cannot
 *    be written back is lost: reads of it fail until it is written again, the next flush tells. So
 *    is the store of a part of a line whose rest cannot be fetched.
 *  - A trim waits for what is on its way, and what comes after it waits for the trim.
 */

/* Fill o with the defaults. */
void chm_options_init(struct chm_options *o);

struct chm_format_options {
    uint64_t size; /* sizeof(struct chm_format_options) */
    const char *const *paths;
    uint32_t npaths;
    uint64_t capacity_bytes; /* of the whole device, without headers; rounded down to whole stripe
                                rows; 0: as large as existing files or drives allow */
    uint32_t stripe_bytes;   /* default 1 MiB; a multiple of CHM_PAGE_BYTES, at most 1 GiB */
    uint32_t force;          /* 1: overwrite what is there: another device, or anything else */
    uint32_t buffered;       /* as in chm_options */
};

/* Fill o with the defaults. */
void chm_format_options_init(struct chm_format_options *o);

/*
 * Make a device: create the backing files (mode 0600, preallocated) and write their headers. A file
 * or drive that holds something, a chm device too, is refused without force, with which it is lost;
 * zeros in front hold nothing. All are looked at before any is touched. Errors: -EEXIST (text says
 * what is there), -EBUSY (open elsewhere; text names the owner), -ENOSPC (text gives both numbers),
 * -EINVAL, or what the system said.
 */
int chm_format(const struct chm_format_options *o, struct chm_error *err);

/*
 * Make a closed device larger; what is on it stays. capacity_bytes is what it shall have (0: what
 * the members that exist now allow); size, paths in order, npaths and buffered as in chm_format,
 * the rest is not looked at. Cut short, it has the old capacity or the new one. Errors: -EINVAL (it
 * would become smaller), -EXDEV (not these members), -EBUSY, -ENOSPC, -EBADMSG, or what the system
 * said.
 */
int chm_grow(const struct chm_format_options *o, struct chm_error *err);

/*
 * Open a device. With media "sim" nothing needs to exist: the space is fresh and reads as zeros.
 * Errors: -EBUSY (open elsewhere; text names the owner's pid), -ENOENT, -EBADMSG (no or damaged
 * header), -EXDEV (member missing, swapped, or of another device), -EPROTO (format version),
 * -EOPNOTSUPP (O_DIRECT or io_uring not to be had; text says which and what to do), -ENOMEM,
 * -ENOSPC (a backing file is shorter than its header says), -EINVAL.
 */
int chm_open(const struct chm_options *o, chm_dev **out, struct chm_error *err);

/*
 * Close: stop taking work, let flushes and I/O in flight end, barrier, free. Waits at most
 * timeout_ns. Returns 0, -EIO if data that was committed could not be written and no chm_flush has
 * told of it, -EBUSY while streams or spaces are open, or -ETIMEDOUT: then the handle is gone all
 * the same, and memory that the system may still write to is kept and never reused. NULL is
 * allowed.
 */
int chm_close(chm_dev *dev, uint64_t timeout_ns);

struct chm_info {
    uint64_t capacity_bytes, dram_bytes, window_bytes, write_buffer_bytes;
    uint64_t cache_bytes;    /* usable lines of a line cache; 0 with a window */
    uint64_t metadata_bytes; /* memory of the device beside dram_bytes */
    uint64_t frame_bytes;    /* unit of window space: 2 MiB with huge pages, else 64 KiB */
    uint64_t prefaulted_bytes, prefault_ns; /* how far, and how long it took so far */
    uint64_t huge_bytes; /* DRAM that lies on huge pages, reserved or collapsed so far */
    uint64_t link_rate, link_write_rate; /* all rails together */
    uint32_t members, stripe_bytes, block_bytes, align_bytes, transfer_max;
    uint32_t threaded, direct, fixed_buffers, huge_pages, virtual_time, contents, locked;
    uint32_t degraded; /* 1: too many I/O errors; writes are refused with -EIO */
    int memory_fd;     /* memfd of window and write buffer; do not close */
    char policy[16];   /* what the DRAM is used as: "window", "lru" */
    char flush_policy[16];
    char media[32];     /* the medium and what wraps it: "uring", "pace+sim" */
    char note[192];     /* why it is not what was asked for, or "" */
    char device_id[33]; /* 128-bit id of the device, hex */
};

/* What the device is now. */
int chm_info(chm_dev *dev, struct chm_info *out);

/* The device's clock, ns. */
uint64_t chm_now(chm_dev *dev);

/*
 * Stepped devices: do what can be done, then wait for I/O until until_ns on the device's clock (0:
 * do not wait). Returns the number of requests that ended. -EPERM on a device with a thread. Calls
 * that wait step by themselves; this is for callers with a loop of their own.
 */
int chm_step(chm_dev *dev, uint64_t until_ns);

/* ------------------------------------------------------------------ staging */

enum chm_issue_flag {
    CHM_ISSUE_NOWAIT = 1 /* no room in the window: -EAGAIN at once instead of queueing */
};

struct chm_issue_options {
    uint32_t flags;         /* enum chm_issue_flag */
    uint64_t not_before_ns; /* device clock; do not stage earlier; 0: now */
    uint64_t expire_ns;     /* a staged object nobody waited for is dropped this long after issue;
                               0: 60 s; UINT64_MAX: never */
    uint64_t queue_ns;      /* give up waiting for window space after this long; 0: 10 s */
};

/* One range to stage. addr and len are multiples of CHM_PAGE_BYTES. */
struct chm_issue {
    uint64_t addr, len;
    uint64_t req;   /* out: handle, never 0 */
    int32_t status; /* out: 0 or -errno: -ERANGE (beyond capacity), -E2BIG (larger than the window),
                       -EAGAIN (NOWAIT and no room), -EBUSY (request table full), -EOPNOTSUPP (the
                       policy has no prefetch call; the call as a whole answers this too) */
};

/* Start staging n ranges, in order. Two requests for one range share window space and one read, as
 * long as nothing of it was written in between. opts may be NULL. Returns how many were issued. */
int chm_issue(chm_dev *dev, struct chm_issue *items, uint32_t n,
              const struct chm_issue_options *opts);

/*
 * Wait until all bytes of a request are there (staged, and over the host link if there is one), or
 * until timeout_ns from now (0: just ask; UINT64_MAX: no limit). Returns 0, -ETIMEDOUT, or why the
 * request failed: -EIO and other I/O errors, -ETIME (expired or no window space in time), -EAGAIN
 * (no room for a NOWAIT request when its not_before came), -ESTALE, or -EINTR: a signal came, ask
 * again. The result of a request never changes once it is known. A timeout changes nothing: the
 * request goes on and still has to be released.
 */
int chm_wait(chm_dev *dev, uint64_t req, uint64_t timeout_ns);

/* The same for n requests with one common timeout; status[i] as from chm_wait. Returns how many
 * are 0. */
int chm_wait_many(chm_dev *dev, const uint64_t *reqs, uint32_t n, uint64_t timeout_ns,
                  int32_t *status);

/* Bytes ready from the front of the range, or -errno. Only grows. They can be read through chm_view
 * before the request is complete. */
int64_t chm_progress(chm_dev *dev, uint64_t req);

/* When the bytes of a request arrive, or arrived, over the host link, on the device's clock: for
 * loops that step many requests side by side. -EAGAIN while that is not known: they are not on the
 * device yet, or they are staged and nobody has waited for them; -EOPNOTSUPP without a link; errors
 * as chm_wait. Waits for nothing. */
int64_t chm_arrival(chm_dev *dev, uint64_t req);

struct chm_view {
    void *data; /* in the window; read only; valid until the request is released */
    uint64_t len;
    uint64_t offset; /* of data in the memfd of the device (chm_info.memory_fd) */
};

/* Where the bytes of a request are. -EAGAIN while it has no window space yet; errors as chm_wait.
 * Copies nothing. Only the first chm_progress bytes may be looked at. A demand read has no view:
 * -EINVAL. */
int chm_view(chm_dev *dev, uint64_t req, struct chm_view *out);
/* The same for n requests; status[i] as from chm_view, views[i] is untouched where it is not 0.
 * Returns how many are 0. */
int chm_view_many(chm_dev *dev, const uint64_t *reqs, uint32_t n, struct chm_view *views,
                  int32_t *status);

/*
 * Give the window space back, or cancel what has not ended. The handle is dead at once; the space
 * is reused only after its I/O has ended. Every request, also a failed one, has to be released.
 */
int chm_release(chm_dev *dev, uint64_t req);
/* The same for n; status may be NULL. Returns how many were released. */
int chm_release_many(chm_dev *dev, const uint64_t *reqs, uint32_t n, int32_t *status);

/* Readable while a request has ended that chm_reap has not told yet. Do not close, do not read. On
 * a stepped device it is the medium's: readable when chm_step has work; -EOPNOTSUPP if that has
 * none (simulated, wrapped). */
int chm_event_fd(chm_dev *dev);

/* Up to max requests that have ended (with success or not) since the last call, in order of ending.
 * Needs no call per request. Requests that were released meanwhile may be among them. */
int chm_reap(chm_dev *dev, uint64_t *reqs, uint32_t max);

/* ------------------------------------------------------------------ the published form */

/* An address that knows its device; from chm_ptr_of or an allocator. By value. */
typedef struct chm_ptr {
    chm_dev *dev;
    uint64_t addr;
} chm_ptr;

/* A request that knows its device. id is 0 and status -errno if it could not be issued. */
typedef struct chm_req {
    chm_dev *dev;
    uint64_t id;
    int32_t status;
} chm_req;

chm_ptr chm_ptr_of(chm_dev *dev, uint64_t addr);
/* issue: start staging [ptr, ptr + size). size is rounded up to whole pages. */
chm_req chm_prefetch_object(chm_ptr ptr, uint64_t size);
/* wait, at most 10 s; then as chm_wait. */
int chm_prefetch_wait(chm_req req);
/* bytes ready from the front. */
int64_t chm_prefetch_progress(chm_req req);
/* release. */
int chm_prefetch_release(chm_req req);

/* ------------------------------------------------------------------ demand reads */

/* One read into memory of the caller. If buf, addr and len are multiples of chm_info.align_bytes
 * and CHM_PAGE_BYTES the drive writes into buf itself; else bytes are copied: all of them, or of a
 * long read whose addr and buf are equally far from such multiples those at its ends. */
struct chm_read {
    uint64_t addr, len; /* any alignment */
    void *buf;
    uint64_t req;   /* out (chm_read_issue) */
    int32_t status; /* out */
};

/* Start n reads. buf belongs to the device until the request has ended (chm_wait) or, after
 * chm_release, until chm_read_done says so. Does not use the window. With a host link each item
 * crosses it as soon as its bytes are on the device. Errors per item as chm_issue. */
int chm_read_issue(chm_dev *dev, struct chm_read *items, uint32_t n);

/* The whole of it: issue, wait, release. On -ETIMEDOUT an item's buf may still be written to until
 * chm_quiesce returns 0. Returns how many items are 0. */
int chm_read(chm_dev *dev, struct chm_read *items, uint32_t n, uint64_t timeout_ns);

/* Wait until no released request has I/O in flight: from then on every buffer the caller ever lent
 * and whose request it released is the caller's again. 0 or -ETIMEDOUT. */
int chm_quiesce(chm_dev *dev, uint64_t timeout_ns);

/*
 * Register memory that reads will go to, so that each costs less (io_uring fixed buffers). base and
 * len are multiples of CHM_PAGE_BYTES; it should have been touched. Returns 0 also where the system
 * does not register (nothing is lost but the gain), -ENOSPC when the table is full. Unregister
 * before freeing.
 */
int chm_memory_register(chm_dev *dev, void *base, uint64_t len);
int chm_memory_unregister(chm_dev *dev, void *base);

/* ------------------------------------------------------------------ writing */

/* One write of whole pages. */
struct chm_write {
    uint64_t addr, len; /* multiples of CHM_PAGE_BYTES; len at most write_buffer_bytes / 2 */
    void *data;         /* out: fill these len bytes; in the write buffer, contents undefined */
    uint64_t id;        /* out: handle */
    int32_t status; /* out: 0; -EAGAIN: no room now, skip or retry; -E2BIG; -ERANGE; -EBUSY (request
                       table full); -EIO: degraded */
};

/* Reserve room in the write buffer for n writes, in order. Never waits for room. After the first
 * -EAGAIN the rest of the batch is -EAGAIN too. Returns how many were admitted. */
int chm_write_begin(chm_dev *dev, struct chm_write *items, uint32_t n);

/*
 * The bytes are in place: make them what the address reads as, now, and drive contents later. With
 * CHM_DURABILITY_STRICT returns when they are durable (-EIO if they could not be written;
 * -ETIMEDOUT in virtual time, where it shows that they never will be). With a host link the bytes
 * travel first: the call ends when the last of the batch is on the device.
 * After commit or abort data must not be touched.
 */
int chm_write_commit(chm_dev *dev, const uint64_t *ids, uint32_t n, int32_t *status);
int chm_write_abort(chm_dev *dev, const uint64_t *ids, uint32_t n, int32_t *status);

/* Begin, copy from buf, commit. addr, len: whole pages. -EAGAIN: no room, nothing was written. */
int chm_write(chm_dev *dev, uint64_t addr, const void *buf, uint64_t len);

/* Everything committed so far is durable when this returns 0. -ETIMEDOUT, or -EIO when some of it
 * was lost (told once). */
int chm_flush(chm_dev *dev, uint64_t timeout_ns);

/* The range reads as zeros from now on. Whole pages. -EAGAIN when the write buffer's table is full.
 */
int chm_trim(chm_dev *dev, uint64_t addr, uint64_t len);

/* ------------------------------------------------------------------ streams */

struct chm_range {
    uint64_t addr, len; /* whole pages */
};

struct chm_stream_options {
    uint64_t segment_bytes; /* longest piece; default 16 MiB; less when two do not fit its window */
    uint32_t whole;         /* 1: pieces are whole objects wherever two of them fit its window */
    uint64_t window_bytes;  /* most it may hold; default 128 MiB or its share of the window */
    uint64_t deadline_ns; /* from open, or not_before, to the last piece; what is staged by then is
                             still handed out; default 10 s; UINT64_MAX: none */
    uint64_t not_before_ns; /* device clock; the first pieces are staged then by themselves */
    uint32_t early; /* 1: next hands a piece out as soon as it has window space; then look at
                       chm_progress and chm_wait of its req (layer by layer) */
};

/* A piece of a stream: [offset, offset + len) of object `object`, staged. */
struct chm_piece {
    const void *data; /* in the window, no copy, until chm_stream_release */
    uint64_t len;
    uint64_t offset; /* within the object */
    uint64_t req;    /* handle for chm_stream_release */
    uint32_t object; /* index in the list given at open */
    uint32_t last;   /* 1: the last piece of its object */
};

/*
 * Stage a list of ranges in order, a bounded number of pieces ahead of the consumer. objs is
 * copied. A stream is admitted, in order of opening, when it has window space of its own for two
 * pieces (one if two cannot fit the window), which it keeps until closed: every admitted stream can
 * go on whatever others hold. Open does not wait for that; the first chm_stream_next does. Errors:
 * -EBUSY (too many streams, or the request table is full), -ERANGE, -EINVAL, -ENOMEM, -EOPNOTSUPP
 * (a policy without a window).
 */
int chm_stream_open(chm_dev *dev, const struct chm_range *objs, uint32_t n,
                    const struct chm_stream_options *opts, chm_stream **out);

/*
 * The next piece, in order. Returns 0; -ENODATA after the last one; -EDEADLK at once if the caller
 * holds so many pieces that the next one has no space; -ETIMEDOUT when timeout_ns passed (ask
 * again); -ETIME when the stream's deadline passed (final: what was delivered is the usable
 * prefix); or the I/O error of that piece (final too).
 */
int chm_stream_next(chm_stream *s, uint64_t timeout_ns, struct chm_piece *out);

/* One look at each of n streams of one device, for programs that serve many consumers from one
 * thread. status[i] is as of chm_stream_next without waiting, out[i] is filled where it is 0.
 * Returns how many are. -EINVAL: a NULL, or streams of several devices. */
int chm_stream_next_many(chm_stream *const *streams, uint32_t n, struct chm_piece *out,
                         int32_t *status);

/* Give a piece back; the next ones are issued into its place. Any order. */
int chm_stream_release(chm_stream *s, uint64_t req);

struct chm_stream_info {
    uint64_t ready_bytes;     /* staged and delivered, counted from the front of the list */
    uint64_t delivered_bytes; /* handed out by next */
    uint32_t whole_objects;   /* objects delivered to their end: the usable prefix */
    uint32_t held;            /* pieces the consumer holds now */
    uint32_t ahead;           /* pieces issued and not handed out */
    uint64_t window_bytes;    /* most it may hold now */
    uint64_t piece_bytes;     /* longest piece */
    int32_t status;           /* 0, or the final error */
};

/* How far it is. Changes nothing. */
int chm_stream_info(chm_stream *s, struct chm_stream_info *out);

/* Cancel what is ahead, release what is held. Views of its pieces are dead. NULL is allowed. */
int chm_stream_close(chm_stream *s);

/* ------------------------------------------------------------------ objects */

/*
 * A space hands out device addresses to objects of mixed sizes, 1 byte to 1 GiB, and sees to it
 * that an object is visible only when whole, and that its place is reused only when nobody reads
 * it. Its records live in memory; a space starts empty. Spaces of one device must not overlap. Used
 * like the device (any thread if the device has a thread).
 */
struct chm_space_options {
    uint64_t base, len;   /* part of the device it manages; default all */
    uint32_t objects_max; /* default 1 Mi; memory is used only for objects that exist */
};

int chm_space_open(chm_dev *dev, const struct chm_space_options *opts, chm_space **out);
/* -EBUSY while objects are held or puts are open. */
int chm_space_close(chm_space *sp);

struct chm_object {
    uint64_t id;   /* handle; 0: none */
    uint64_t addr; /* page aligned */
    uint64_t len;  /* payload bytes as given; the rest of its last page is zero */
};

struct chm_piece_put {
    void *data;   /* fill these bytes */
    uint64_t len; /* payload bytes of this piece */
    uint64_t offset;
};

/* Reserve an extent for an object of len bytes. Returns its id in *out. -ENOSPC: no space, or
 * -ENOMEM: objects_max, -E2BIG: over 1 GiB; chm_space_stats tells fragmentation. The object is not
 * visible yet. */
int chm_put_begin(chm_space *sp, uint64_t len, struct chm_object *out);
/* Room for the next piece (the whole object unless it is larger than half the write buffer).
 * -EAGAIN: the write buffer is full, ask again or abort; -ENODATA: all pieces were handed out. The
 * piece before is committed by this call. */
int chm_put_piece(chm_space *sp, uint64_t id, struct chm_piece_put *out);
/* All bytes are in place: the object is visible. -EINVAL if pieces are missing. */
int chm_put_commit(chm_space *sp, uint64_t id);
/* Forget it, free all of it. */
int chm_put_abort(chm_space *sp, uint64_t id);
/* All of that from buf (copied), waiting for room at most timeout_ns. -EAGAIN or -ETIMEDOUT:
 * nothing is left of it. */
int chm_put(chm_space *sp, const void *buf, uint64_t len, uint64_t timeout_ns,
            struct chm_object *out);

/* Look an object up. -ENOENT if it does not exist or is not whole yet. */
int chm_object_get(chm_space *sp, uint64_t id, struct chm_object *out);
/* Hold an object so that its place stays its own through delete; then let go. */
int chm_object_hold(chm_space *sp, uint64_t id);
int chm_object_drop(chm_space *sp, uint64_t id);
/* Read len bytes at offset of it into buf (as chm_read; holds it meanwhile). */
int chm_object_read(chm_space *sp, uint64_t id, uint64_t offset, void *buf, uint64_t len,
                    uint64_t timeout_ns);
/* It is gone for everybody who asks from now on; its space is free when the last holder drops it.
 */
int chm_object_delete(chm_space *sp, uint64_t id);

struct chm_space_stats {
    uint64_t total_bytes, free_bytes, used_bytes; /* extents; used + free = total */
    uint64_t payload_bytes;                       /* sum of len of visible objects */
    uint64_t largest_free_bytes;
    uint64_t free_extents;
    uint64_t objects, puts_open, held, deleting;
    uint64_t puts, put_aborts, put_refused, deletes;
    uint64_t metadata_bytes;
};

/* A copy of the counters, all of one moment. */
int chm_space_stats(chm_space *sp, struct chm_space_stats *out);

/* ------------------------------------------------------------------ statistics */

enum {
    CHM_HIST_SUB = 32,                   /* buckets per power of two: 3 % resolution */
    CHM_HIST_BUCKETS = CHM_HIST_SUB * 40 /* up to 2^44 ns */
};

/* A log-scale histogram. Value v < CHM_HIST_SUB has bucket v; above, bucket = 32 * (e - 4) + the
 * five bits below the top bit, e being the position of the top bit. chm_hist_value turns it back.
 */
struct chm_hist {
    uint64_t count, sum, max;
    uint64_t bucket[CHM_HIST_BUCKETS];
};

/* Smallest recorded value that at least `share` (0..1) of all values do not exceed, within 1/32. 0
 * when empty. */
uint64_t chm_hist_quantile(const struct chm_hist *h, double share);

struct chm_stats {
    /* requests. issued = ready + failed + expired + cancelled + open */
    uint64_t issued, ready, failed, expired, cancelled, open;
    uint64_t refused;        /* issue calls answered -EAGAIN, -EBUSY, -E2BIG, -ERANGE */
    uint64_t shared;         /* issues that found the range staged or on its way */
    uint64_t staged_bytes;   /* made ready in the window */
    uint64_t buffered_bytes; /* of these, copied from the write buffer */
    uint64_t delivered_bytes;
    uint64_t demand_reads, demand_failed, demand_bytes, demand_copied_bytes;
    /* window */
    uint64_t window_used_bytes, window_pinned_bytes, window_reserved_bytes, window_largest_free;
    uint64_t window_peak_bytes, window_waits, window_waiting;
    uint64_t fill_at_block_percent_sum; /* window fill when a request had to wait, summed over
                                           window_waits */
    uint64_t overtakes;
    /* writes. begun = committed + aborted + open_writes */
    uint64_t begun, committed, aborted, open_writes, write_refused;
    uint64_t committed_bytes, flushed_bytes, superseded_bytes, lost_bytes;
    uint64_t buffer_used_bytes, buffer_peak_bytes, buffer_dirty_bytes;
    uint64_t trims, trimmed_bytes;
    uint64_t flush_units, flush_errors, flush_retries, barriers, barrier_errors;
    uint64_t flush_inflight_at_read_max; /* most flush units a read found in flight */
    /* Line cache: cache_hits + cache_misses are all accesses to lines. Of a miss the line is
     * fetched (cache_fills), on its way already for an earlier one (cache_shared), or overwritten
     * as a whole (cache_unfetched): cache_misses = cache_fills + cache_shared + cache_unfetched. A
     * line on its way out, for a flush, is a hit. */
    uint64_t cache_hits, cache_misses, cache_fills, cache_shared, cache_unfetched;
    uint64_t cache_evictions;  /* lines that gave way to others, dirty or not */
    uint64_t cache_writebacks; /* lines written, to give way or for a flush */
    uint64_t cache_fill_ns; /* time the medium took for fills, first submit to last end, summed */
    uint64_t cache_writeback_ns; /* the same of write-backs, lost ones included */
    uint64_t cache_dirty_lines, cache_lines, cache_sets; /* now; usable; sets of them */
    /* medium */
    uint64_t read_ios, read_bytes, write_ios, write_bytes, trim_ios, io_errors, short_ios,
        resubmits;
    uint64_t steps, sleeps;
    uint64_t sim_ios;    /* handed back by a simulated medium; 0 on a real one */
    uint64_t sim_digest; /* of these and their times, in order: equal for equal runs; 0: as above */
    /* latencies, ns */
    struct chm_hist stage_ns;      /* issue to ready */
    struct chm_hist demand_ns;     /* read issue to end */
    struct chm_hist read_io_ns;    /* one read I/O on the medium */
    struct chm_hist write_io_ns;   /* one flush I/O */
    struct chm_hist flush_age_ns;  /* commit to written */
    struct chm_hist flush_at_read; /* flush units in flight when a read arrived (a count, not ns) */
};

/* A copy of the counters, all of one moment. */
int chm_stats(chm_dev *dev, struct chm_stats *out);

/* ------------------------------------------------------------------ store */

/*
 * A durable key-value store on one device (or a part of it): objects of 1 byte to 1 GiB under keys
 * of 128 bits in namespaces. An object is visible when all of its bytes are admitted, never before;
 * after any crash it is whole and right, or a miss. Everything read is checked against the checksum
 * it was written with.
 *
 * One asynchronous shape: a job names an operation and arrays of keys; submit starts it, drain
 * hands each job back exactly once, with one status per key.
 *
 *     chm_store_submit(store, &job, &id);                 returns at once
 *     chm_store_drain(store, done, 16, CHM_SECOND);       or wait on chm_store_event_fd
 *     job.status[i]                                       0, or why key i failed
 *
 * The arrays of a job (keys, parts, nparts, status, lens, leases) and the memory that parts name
 * belong to the store from submit until drain hands the job back; after that nothing writes to
 * them.
 *
 * Chains: the keys of one put are a chain unless told otherwise: each key's parent is the key
 * before it. With eviction "prefix-tail" only ends of chains are evicted, so what is left of a
 * chain is always a prefix of it.
 *
 * An open store has one worker thread if the device has a thread, and then any thread may call.
 * Over a stepped device the caller steps it (chm_store_step; drain, sync, stop and close step by
 * themselves). A store must be closed before its device.
 */
enum {
    CHM_STORE_NAME_MAX = 255,        /* bytes of the name of a namespace */
    CHM_STORE_EXTENTS_MAX = 16,      /* pieces of one object on the device */
    CHM_STORE_CHUNK_BYTES = 1 << 20, /* one checksum covers at most this much payload */
    CHM_STORE_KEYS_MAX = 65536       /* keys of one job */
};

/* Equal only if all 16 bytes are. */
struct chm_key {
    uint8_t bytes[16];
};

struct chm_store_format_options {
    uint64_t size;           /* sizeof(struct chm_store_format_options) */
    uint64_t base, len;      /* part of the device, whole pages; len 0: all from base on */
    uint32_t max_objects;    /* fixed for good; 0: one per MiB, at least 1024, at most 16 Mi */
    uint32_t max_namespaces; /* 0: 256; at most 4096 */
    uint64_t journal_bytes;  /* 0: 128 bytes per object, 256 KiB to 64 MiB */
    uint32_t force;          /* 1: also where a store is already */
};

/* Fill o with the defaults. */
void chm_store_format_options_init(struct chm_store_format_options *o);

/* Make an empty store. What was in the range is lost. Waits for the device. Errors: -EEXIST (a
 * store is there and force is 0), -EINVAL, -ENOSPC (the range is too small; text says how much is
 * needed), -EOPNOTSUPP (a device that keeps no bytes), or what the device said. */
int chm_store_format(chm_dev *dev, const struct chm_store_format_options *o, struct chm_error *err);

struct chm_store_options {
    uint64_t size;                /* sizeof(struct chm_store_options) */
    uint64_t base, len;           /* as at format */
    const char *eviction;         /* "prefix-tail" (default), "lru", "fifo" */
    uint32_t jobs_max;            /* submitted and not drained; default 256 */
    uint32_t keys_max;            /* keys of those jobs together; default 16384 */
    uint32_t reads_max;           /* device reads in flight; default 512 */
    uint32_t leases_max;          /* default 1024 */
    uint32_t free_percent;        /* of the data space that eviction keeps free; default 2 */
    uint64_t sync_interval_ns;    /* objects are made durable at least this often; default 1 s */
    uint64_t sync_bytes;          /* or after this much; default 512 MiB */
    uint64_t publish_interval_ns; /* counters for other processes (chm_store_peek) are renewed at
                                     most this often; default 250 ms; UINT64_MAX: there are none */
    uint32_t grow; /* 1: the range is longer than at format: use all of it from now on */
};

/* Fill o with the defaults. */
void chm_store_options_init(struct chm_store_options *o);

/*
 * Open, and recover after a crash. Errors, each with its own text: -ENOENT (no store here),
 * -EBADMSG (both superblocks are damaged), -EPROTO (a newer format, or a feature this version does
 * not know), -EXDEV (the range is not the one it was formatted for: other base or length),
 * -EBUSY (a store is open on part of the range), -EINVAL, -ENOMEM, or what the device said.
 */
int chm_store_open(chm_dev *dev, const struct chm_store_options *o, chm_store **out,
                   struct chm_error *err);

/*
 * Take no more jobs (-ESHUTDOWN) and let those submitted end, at most timeout_ns; what is left then
 * ends with -ESHUTDOWN. Returns 0 when every job can be drained, or -ETIMEDOUT while reads into
 * buffers of callers have not ended (ask again). Harmless twice.
 */
int chm_store_stop(chm_store *s, uint64_t timeout_ns);

/*
 * Stop, make everything durable, write the index, mark the store clean, free it. -EBUSY, and the
 * store is still there (stopped): jobs are not drained, or leases are held. Otherwise it is gone,
 * and 0 is returned or why it could not be closed clean (the next open recovers). -ETIMEDOUT with
 * jobs left means that reads into buffers of callers hang: these jobs are never told, and their
 * buffers must not be reused before the device is closed. NULL is allowed.
 */
int chm_store_close(chm_store *s, uint64_t timeout_ns);

/* ---- namespaces */

enum {
    CHM_STORE_QUOTA_KEEP = 0 /* chm_store_namespace leaves the quota as it is */
};

/*
 * The number of a namespace; made if it does not exist. name is len bytes, any bytes. quota_bytes:
 * CHM_STORE_QUOTA_KEEP, UINT64_MAX for none, or the most that its objects may occupy, with which
 * eviction goes inside the namespace first. Errors: -ENAMETOOLONG, -EINVAL (empty), -ENOSPC (the
 * table is full), -EIO (degraded).
 */
int chm_store_namespace(chm_store *s, const void *name, uint32_t len, uint64_t quota_bytes,
                        uint32_t *number);

struct chm_store_namespace_info {
    uint64_t id;          /* hash of the name */
    uint64_t quota_bytes; /* UINT64_MAX: none */
    uint64_t used_bytes;  /* space on the device */
    uint64_t payload_bytes;
    uint64_t objects;
    uint32_t name_len;
    uint8_t name[256];
};

/* Numbers go from 0 up without gaps: -ENOENT beyond the last. */
int chm_store_namespace_info(chm_store *s, uint32_t number, struct chm_store_namespace_info *out);

/* ---- looking up */

enum chm_store_exists_flag {
    CHM_STORE_TOUCH = 1, /* the leading run, and what it hangs on, was used now (eviction) */
    CHM_STORE_RUN = 2    /* stop at the first miss: what is behind it is told as missing */
};

/*
 * Which of n keys are visible. found[i] becomes 1 or 0, lens[i] the payload length or 0; either may
 * be NULL. Returns the length of the leading run of hits. Does not wait for the device. Pins
 * nothing: a get may still miss. Errors: -EINVAL (also: no such namespace), -ESHUTDOWN.
 */
int chm_store_exists(chm_store *s, uint32_t ns, const struct chm_key *keys, uint32_t n,
                     uint32_t flags, uint8_t *found, uint64_t *lens);

/* Where an object lies now. Nothing keeps it there, and its bytes are not checked on this way: it
 * is for placing, for telling, and for a door that reads what a lease holds. */
struct chm_store_place {
    uint64_t addr;    /* device address of its first byte; 0: no such object */
    uint64_t len;     /* payload bytes */
    uint32_t extents; /* pieces it lies in; addr is that of the first */
    uint32_t pad;
};

/* Where each of n visible keys lies. Counts as no look-up. Returns how many there are. */
int chm_store_where(chm_store *s, uint32_t ns, const struct chm_key *keys, uint32_t n,
                    struct chm_store_place *out);

/* ---- jobs */

enum chm_store_op {
    CHM_STORE_GET = 0,
    CHM_STORE_PUT = 1,
    CHM_STORE_DELETE = 2,
    CHM_STORE_LEASE = 3, /* stage into the window and keep it there: no copy */
    CHM_STORE_SYNC = 4   /* n = 0; ends when everything admitted before it is durable */
};

enum chm_store_job_flag {
    CHM_STORE_WAIT = 1,  /* put: wait for room until the deadline; else skip at once */
    CHM_STORE_ALONE = 2, /* put: the keys are no chain; one that fails does not end the others */
    CHM_STORE_COPY = 4,  /* get: the drive never writes into parts itself, so that a late key is
                            told at its deadline even if the drive hangs */
    CHM_STORE_KEEP = 8   /* get, lease: an object that cannot be read stays as it is (fsck) */
};

enum chm_store_status {
    CHM_STORE_DUPLICATE = 1 /* put: the key was there, or is being put: nothing was written */
};

/* A piece of memory. A get whose parts and lengths are multiples of chm_info.align_bytes and
 * CHM_PAGE_BYTES is read into them directly. The parts of one key of a get do not overlap (-EINVAL
 * from chm_store_submit); those of different keys and jobs must not either, which is not looked at:
 * what is written over while it is checked counts as damaged. */
struct chm_part {
    void *data;
    uint64_t len;
};

/* A leased object: its payload in pieces, in order, in the window of the device. Read only. */
struct chm_store_lease {
    uint64_t id; /* for chm_store_release; 0: none */
    uint64_t len;
    uint32_t pieces; /* 1 unless the object is split */
    struct chm_part piece[CHM_STORE_EXTENTS_MAX];
};

/*
 * status[i] when the job is drained:
 *
 *   0                    done
 *   CHM_STORE_DUPLICATE  put: counts as success
 *   -ENOENT              get, lease, delete: a miss. put: the parent is not there
 *   -EMSGSIZE            get: stored with another length than the parts have: not read
 *   -EBADMSG             checksum: the object is dropped
 *   -EIO, ...            the device could not read it: the object is dropped; put: degraded
 *   -ETIME               late. get: the object is dropped, so that it is no hit again; put: nothing
 *                        is left of it
 *   -EAGAIN              put: skipped, the write buffer is full; lease: no window space in time
 *   -ENOSPC              put: skipped, no space and nothing to evict (now: an eviction has begun)
 *   -EDQUOT              put: skipped, quota and nothing to evict in the namespace
 *   -EMFILE              put: skipped, max_objects; lease: leases_max
 *   -ENOLINK             put: skipped because the key before it was refused
 *   -E2BIG               put: over 1 GiB; lease: larger than the window
 *   -EINVAL              put: no bytes
 *   -ECANCELED           chm_store_cancel
 *   -ESHUTDOWN           the store was stopped
 *
 * A key whose status is below 0 may have had part of its bytes written into its parts.
 */
struct chm_store_job {
    uint32_t op;    /* enum chm_store_op */
    uint32_t flags; /* enum chm_store_job_flag */
    uint32_t ns;    /* number of the namespace */
    uint32_t n;     /* keys */
    const struct chm_key *keys;
    const struct chm_key *parent;   /* put: what keys[0] hangs on; NULL: nothing */
    const struct chm_part *parts;   /* get, put: scatter lists of all keys, one behind the other */
    const uint32_t *nparts;         /* how many parts each key has; NULL: one */
    struct chm_store_lease *leases; /* lease: out, n */
    uint64_t *lens;                 /* get, lease: payload bytes of each key, out, n; or NULL */
    int32_t *status;                /* out, n */
    uint64_t timeout_ns;            /* 0: 10 s; UINT64_MAX: none */
    uint64_t cookie;                /* comes back from drain */
};

/*
 * Start a job; *id names it until it is drained. Gets and leases pin what they found from this call
 * on, and their reads are on their way when it returns. Errors, with which there is no job: -EBUSY
 * (jobs_max or keys_max: drain first), -EINVAL (also: parts of one key of a get overlap),
 * -ESHUTDOWN.
 */
int chm_store_submit(chm_store *s, const struct chm_store_job *job, uint64_t *id);

struct chm_store_done {
    uint64_t id, cookie;
    uint32_t n;     /* keys */
    uint32_t ok;    /* of these with status >= 0 */
    int32_t result; /* 0, or the first status below 0 */
    uint32_t pad;
};

/* Up to max jobs that have ended; waits at most timeout_ns for the first. Returns how many, 0 if
 * none, or -errno (-EINTR: a signal came). */
int chm_store_drain(chm_store *s, struct chm_store_done *out, uint32_t max, uint64_t timeout_ns);

/* Readable while jobs can be drained. Do not close, do not read. */
int chm_store_event_fd(chm_store *s);

/* End a job early: keys that have not ended get -ECANCELED (nothing is dropped for it). It still
 * has to be drained. -ESTALE: it has ended. */
int chm_store_cancel(chm_store *s, uint64_t id);

/* Give leases back; their pieces are dead. Returns how many were held. */
int chm_store_release(chm_store *s, const uint64_t *ids, uint32_t n);

/* Stepped devices: do what can be done, then let the device run until until_ns on its clock (0: do
 * not wait). Returns the number of jobs that can be drained. -EPERM on a device with a thread. */
int chm_store_step(chm_store *s, uint64_t until_ns);

/* Everything admitted so far is durable when this returns 0. -ETIMEDOUT, -EIO (degraded). */
int chm_store_sync(chm_store *s, uint64_t timeout_ns);

/* Evict from a namespace (UINT32_MAX: from all), by the policy, until at least bytes were given
 * back or nothing is left that can go. Returns how many objects went. */
int64_t chm_store_evict(chm_store *s, uint32_t ns, uint64_t bytes);

/* ---- looking at it */

struct chm_store_object {
    struct chm_key key, parent; /* parent: zeros if has_parent is 0 */
    uint32_t ns, has_parent;
    uint64_t len;
    uint64_t used_bytes; /* space on the device */
    uint32_t children;
    uint32_t durable;
    uint32_t pins; /* leases and jobs that use it now */
    uint32_t extents;
};

/* Visible objects, in no order. *cursor starts at 0 and is moved on; 0 is returned at the end.
 * Objects put or dropped meanwhile may or may not be told. */
int chm_store_list(chm_store *s, uint64_t *cursor, struct chm_store_object *out, uint32_t max);

struct chm_store_info {
    uint8_t id[16];
    uint64_t base, len;             /* part of the device */
    uint64_t data_base, data_bytes; /* of it, for objects */
    uint64_t journal_bytes;
    uint32_t version, max_objects, max_namespaces, namespaces;
    uint64_t memory_entries_bytes;   /* index entries: 64 bytes for each that was ever used */
    uint64_t memory_directory_bytes; /* 4-byte entry numbers */
    uint64_t memory_other_bytes;     /* all else, as far as it was touched */
    uint64_t open_ns;                /* how long open took, device clock */
    uint64_t recovered_objects;      /* at open */
    uint64_t recovered_records;      /* replayed from the journal */
    uint64_t recovered_damaged;      /* index, journal and header pages whose checksum was wrong */
    uint64_t recovered_dropped;      /* objects that did not survive the checks of open */
    uint64_t life_written_bytes;     /* written for objects and metadata since format. After a crash
                                    without what was written since the last checkpoint */
    uint64_t life_open_ns;           /* it was open for so long since format; the same holds */
    uint32_t clean;                  /* 1: it had been closed clean */
    uint32_t degraded;               /* 1: metadata cannot be written: puts answer -EIO */
    uint32_t published;              /* 1: other processes can look at its counters */
    char eviction[16];
};

/* What the store is now. */
int chm_store_info(chm_store *s, struct chm_store_info *out);

struct chm_store_stats {
    /* keys of put jobs: put_keys = admitted + skipped + duplicate + put_failed + put_open;
     * skipped = the sum of skipped_... */
    uint64_t put_keys, admitted, skipped, duplicate, put_failed, put_open;
    uint64_t skipped_buffer, skipped_space, skipped_quota, skipped_objects, skipped_chain;
    uint64_t admitted_bytes;
    /* keys of exists: lookups = lookup_hits + lookup_misses */
    uint64_t lookups, lookup_hits, lookup_misses;
    /* keys of get and lease jobs: gets = hits + misses + get_errors + get_open */
    uint64_t gets, hits, misses, get_errors, get_open;
    uint64_t hit_bytes, direct_bytes, copied_bytes, leased_bytes;
    uint64_t errors_io, errors_checksum, errors_late, errors_size, errors_cancelled, errors_room;
    /* what left */
    uint64_t deleted, evicted, evicted_bytes, dropped;
    /* now */
    uint64_t objects, payload_bytes, used_bytes, free_bytes, limbo_bytes; /* used + free + limbo =
                                                                             data_bytes */
    uint64_t largest_free_bytes, free_extents, split_objects;
    uint64_t leases, pins, orphans, not_durable;
    uint64_t jobs, jobs_ended; /* submitted and not drained; of these ended */
    /* what durability costs */
    uint64_t syncs, sync_errors, records, journal_pages, checkpoints, index_pages;
    uint64_t metadata_bytes; /* written for journal, index and superblocks */
    uint64_t object_bytes;   /* written for objects: payload, padding, headers */
    /* latencies, ns */
    struct chm_hist get_ns, put_ns, lease_ns; /* jobs, submit to end */
    struct chm_hist sync_ns;                  /* one round of making objects durable */
    /* stages of jobs, ns. A job that did not come to a stage is not in its histogram. */
    struct chm_hist read_wait_ns;   /* get, lease: submit until its first read is asked for */
    struct chm_hist read_device_ns; /* get, lease: from there until its last bytes are there */
    struct chm_hist read_check_ns;  /* get, lease: making checksums, summed */
    struct chm_hist put_wait_ns;    /* put: submit until its first piece is in the write buffer */
    struct chm_hist put_copy_ns;    /* put: taking room, copying and making checksums, summed */
};

/* A copy of the counters, all of one moment. */
int chm_store_stats(chm_store *s, struct chm_store_stats *out);

enum { CHM_STORE_SLOW_MAX = 16, CHM_STORE_PAGE_VERSION = 1 };

/* A job that took long. Times in ns, stages as in chm_store_stats, 0: it did not come so far. */
struct chm_store_slow {
    uint64_t begin_ns;                              /* device clock: when it was submitted */
    uint64_t total_ns, wait_ns, device_ns, work_ns; /* work: checksums, or copying */
    uint64_t bytes;                                 /* payload read or written */
    uint64_t cookie;
    uint32_t op, n, ok;
    int32_t result;
};

/* The jobs that took longest, the longest first, of those submitted within the last hour or, where
 * these are fewer than CHM_STORE_SLOW_MAX, before. Returns how many. */
int chm_store_slow(chm_store *s, struct chm_store_slow *out, uint32_t max);

/*
 * What the owner of an open store publishes for other processes: a file in /dev/shm (or else in
 * /run/user/UID) that only its user can read, made anew a few times a second and removed at close.
 * There is none for a store on a simulated device. On a device without a thread it is as new as the
 * last call that let the store work.
 */
struct chm_store_page {
    uint8_t magic[8]; /* "CHMPAGE\n" */
    uint64_t sum;     /* of all bytes behind it */
    uint32_t version; /* CHM_STORE_PAGE_VERSION */
    uint32_t bytes;   /* sizeof(struct chm_store_page); namespaces follow */
    uint32_t pid;
    uint32_t namespaces;
    uint64_t count;  /* pages published so far */
    uint64_t now_ns; /* CLOCK_MONOTONIC: when this one was made */
    uint64_t opened_ns;
    uint32_t slow_count, pad;
    struct chm_info device;
    struct chm_store_info info;
    struct chm_stats device_stats;
    struct chm_store_stats stats;
    struct chm_store_slow slow[CHM_STORE_SLOW_MAX];
};

/*
 * The newest page of the store at base of the device that path is a member of, and up to max of its
 * namespaces in ns (NULL: none). Changes nothing anywhere, and does not wait for the owner. With an
 * error *out means nothing. Errors: -ESRCH (no process has the device open: open it), -EBUSY (one
 * has, and publishes nothing; text names it), -EPROTO (it uses another version of this library),
 * -EACCES, -EBADMSG (no chm device), or what the system said about path.
 */
int chm_store_peek(const char *path, uint64_t base, struct chm_store_page *out,
                   struct chm_store_namespace_info *ns, uint32_t max, struct chm_error *err);

#endif
