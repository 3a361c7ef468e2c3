/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media_sim.c - a simulated medium: bytes in memory (or none) and a clock that only reap() moves.
 *
 * When an I/O ends is known when it is submitted, by arithmetic. There are two models of a member.
 * With rates only (dies = 0) it is one resource that reads and writes share: an I/O of n bytes
 * occupies it for n/rate, after what was submitted before, and ends latency after that; a barrier
 * occupies it for barrier_ns; a trim counts as a write of nothing. With dies it is a flash drive
 * (sim_flash.h). In front of all members there may be software that does one I/O after the other.
 *
 *     submit() -> in the heap, ordered by (end, order of submission) -> reap()
 *                      ^---- read: once more, through the DRAM port ---'
 *
 * The DRAM port is shared with others (the host link), so it is asked in the order of time: for a
 * write when it is submitted, for a read when the drive has its last byte, which puts the read into
 * the heap once more.
 *
 * Bytes move when the I/O is handed back and not before, so that a caller who looks early sees it.
 * A barrier covers what was handed back before it was submitted, which is all that it promises.
 * Nothing here looks at a real clock: a run is a function of what is submitted and when.
 */
#define _GNU_SOURCE
#include "media/media_sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "media/io_heap.h"
#include "media/media.h"
#include "media/port.h"
#include "media/sim_flash.h"
#include "media/sim_image.h"
#include "util/util.h"

enum { BLOCK_DEFAULT = 4096 };

/* chm_io.priv: */
enum {
    PRIV_FAILED = 1, /* res is an error that was known at submit */
    PRIV_PORT = 2,   /* a read that has the DRAM port before it */
};

struct chm_sim {
    struct chm_medium m;
    struct chm_sim_options opt; /* no zeros left */
    uint64_t now_ns;
    uint64_t busy_ns[CHM_MEMBERS_MAX]; /* when the member has done what was submitted so far */
    struct chm_flash flash[CHM_MEMBERS_MAX]; /* if opt.dies */
    struct chm_port dram;                    /* if opt.dram_rate */
    struct chm_port read_rate;               /* only for what it costs */
    uint64_t software_ns;                    /* when the software has done what was submitted */
    struct chm_sim_events events;
    struct chm_io_heap due;
    struct chm_sim_image image;
    _Atomic bool woken;
};

static struct chm_sim *sim_of(struct chm_medium *m)
{
    return CHM_CONTAINER(m, struct chm_sim, m);
}

/* ------------------------------------------------------------------ the time model */

static uint64_t transfer_ns(uint64_t bytes, uint64_t rate)
{
    return (uint64_t)((unsigned __int128)bytes * CHM_SECOND / rate);
}

/* The model with rates only: occupy the member from start_ns on; returns when the I/O ends. */
static uint64_t occupy(struct chm_sim *s, const struct chm_io *io, uint64_t start_ns,
                       uint64_t bytes)
{
    uint64_t *busy = &s->busy_ns[io->member];

    *busy = chm_max(*busy, start_ns);
    switch (io->kind) {
    case CHM_IO_READ:
        *busy += transfer_ns(bytes, s->opt.read_rate);
        return *busy + s->opt.read_latency_ns;
    case CHM_IO_BARRIER:
        *busy += s->opt.barrier_ns;
        return *busy;
    default:
        *busy += transfer_ns(bytes, s->opt.write_rate);
        return *busy + s->opt.write_latency_ns;
    }
}

/* The same, with the DRAM port before a write if there is one; the bytes go on as they come. */
static uint64_t rate_io(struct chm_sim *s, const struct chm_io *io, uint64_t start_ns,
                        uint64_t bytes)
{
    uint64_t end = occupy(s, io, start_ns, bytes);

    if (s->dram.rate && io->kind == CHM_IO_WRITE) {
        uint64_t through = chm_port_take(&s->dram, s->now_ns, bytes);
        end = chm_max(end, through + s->opt.write_latency_ns);
    }
    return end;
}

/* A write to a flash drive, whose bytes come through the DRAM port if there is one. */
static uint64_t flash_write(struct chm_sim *s, const struct chm_io *io, uint64_t start_ns,
                            uint64_t bytes)
{
    uint64_t lead = 0, last = start_ns;
    bool durable = s->opt.volatile_cache && (io->flags & CHM_IO_FUA) != 0;

    if (s->dram.rate) {
        uint64_t end = chm_port_take(&s->dram, s->now_ns, bytes);
        lead = chm_port_cost(&s->dram, chm_min(bytes, s->opt.page_bytes));
        last = chm_max(end, start_ns + lead);
        lead = chm_max(start_ns, end - chm_port_cost(&s->dram, bytes)) + lead - start_ns;
    }
    return chm_flash_write(&s->flash[io->member], start_ns, lead, last, bytes, durable);
}

/* The model with dies. */
static uint64_t flash_io(struct chm_sim *s, const struct chm_io *io, uint64_t start_ns,
                         uint64_t bytes)
{
    struct chm_flash *f = &s->flash[io->member];

    switch (io->kind) {
    case CHM_IO_READ:
        return chm_flash_read(f, start_ns, io->off, bytes);
    case CHM_IO_WRITE:
        return flash_write(s, io, start_ns, bytes);
    case CHM_IO_BARRIER:
        start_ns = s->opt.volatile_cache ? chm_flash_drain(f, start_ns) : start_ns;
        return start_ns + s->opt.barrier_ns;
    default:
        return start_ns + s->opt.command_ns;
    }
}

/* When an I/O that is submitted now ends, as far as its member is concerned. */
static uint64_t end_of(struct chm_sim *s, const struct chm_io *io, uint64_t bytes)
{
    uint64_t start = s->now_ns;

    if (s->opt.software_ns) {
        start = s->software_ns = chm_max(s->software_ns, start) + s->opt.software_ns;
    }
    return s->opt.dies ? flash_io(s, io, start, bytes) : rate_io(s, io, start, bytes);
}

/* Bytes that the I/O moves: less than asked for at the end of the member. */
static uint32_t moved_bytes(const struct chm_medium_caps *caps, const struct chm_io *io)
{
    uint64_t size = caps->size_bytes[io->member];

    if (io->kind != CHM_IO_READ && io->kind != CHM_IO_WRITE) {
        return 0;
    }
    return io->off >= size ? 0 : (uint32_t)chm_min(io->len, size - io->off);
}

/* ------------------------------------------------------------------ submit and reap */

static void sim_start(struct chm_sim *s, struct chm_io *io)
{
    int rc = chm_io_check(&s->m.caps, io);

    io->submit_ns = s->now_ns;
    io->priv = rc ? PRIV_FAILED : 0;
    if (rc) {
        io->res = rc;
        io->done_ns = s->now_ns;
    } else {
        io->res = (int32_t)moved_bytes(&s->m.caps, io);
        io->done_ns = end_of(s, io, (uint64_t)io->res);
        io->priv = s->dram.rate && io->kind == CHM_IO_READ ? PRIV_PORT : 0;
    }
    if (rc == 0 && io->kind == CHM_IO_BARRIER) {
        chm_sim_image_barrier(&s->image, io->member);
    }
    chm_io_heap_push(&s->due, io->done_ns, io);
}

static unsigned sim_submit(struct chm_medium *m, struct chm_io *const *ios, unsigned n)
{
    struct chm_sim *s = sim_of(m);
    unsigned i;

    for (i = 0; i < n && s->due.count < s->due.max; i++) {
        sim_start(s, ios[i]);
    }
    return i;
}

static void cut_write(struct chm_sim *s, const struct chm_io *io, uint64_t *seed)
{
    for (uint64_t at = 0; at < (uint64_t)io->res; at += CHM_SIM_PAGE) {
        uint64_t len = chm_min(CHM_SIM_PAGE, (uint64_t)io->res - at);
        if (chm_random(seed) & 1) {
            chm_sim_image_write(&s->image, io->member, io->off + at, (uint8_t *)io->buf + at, len,
                                false);
        }
    }
}

static void cut_if_write(struct chm_sim *s, const struct chm_io *io, uint64_t *seed)
{
    if (io->kind == CHM_IO_WRITE && !(io->priv & PRIV_FAILED)) {
        cut_write(s, io, seed);
    }
}

/* Is this the write or barrier at which a kept image loses power? Then pages of it and of those in
 * flight, and of what is in the cache, make it or not, and nothing changes the bytes any more. */
static void keep_count(struct chm_sim *s, const struct chm_io *io)
{
    struct chm_sim_keep *k = s->image.keep;
    uint64_t seed;

    if (!k || k->cut || (io->kind != CHM_IO_WRITE && io->kind != CHM_IO_BARRIER) ||
        ++k->writes != k->cut_at) {
        return;
    }
    seed = k->seed;
    cut_if_write(s, io, &seed);
    for (uint32_t i = 0; i < s->due.count; i++) {
        cut_if_write(s, s->due.event[i].io, &seed);
    }
    chm_sim_image_cut(&s->image, &seed);
    k->cut = true;
}

/* Move the bytes of an I/O that ends now. */
static void sim_finish(struct chm_sim *s, struct chm_io *io)
{
    uint64_t len = io->priv & PRIV_FAILED ? 0 : (uint64_t)io->res;

    keep_count(s, io);
    if (io->kind == CHM_IO_READ) {
        chm_sim_image_read(&s->image, io->member, io->off, io->buf, len);
    } else if (io->kind == CHM_IO_WRITE) {
        chm_sim_image_write(&s->image, io->member, io->off, io->buf, len,
                            (io->flags & CHM_IO_FUA) != 0);
    } else if (io->kind == CHM_IO_TRIM && !(io->priv & PRIV_FAILED)) {
        chm_sim_image_zero(&s->image, io->member, io->off, io->len);
    }
}

/* The drive has the last byte of a read: when is it in DRAM? True: later than now. */
static bool passes_port(struct chm_sim *s, struct chm_io *io)
{
    uint64_t bytes = (uint64_t)io->res;

    io->priv = 0;
    io->done_ns =
        chm_port_stream(&s->dram, io->done_ns, chm_port_cost(&s->read_rate, bytes), bytes);
    return io->done_ns > s->now_ns;
}

static inline uint64_t mix(uint64_t h, uint64_t value)
{
    h = (h ^ value) * UINT64_C(0x9FB21C651E98DF25);
    return h ^ h >> 32;
}

/* All that a caller can see of an I/O goes into the digest, in the order of handing back. What does
 * not depend on the digest so far is mixed apart, since a chain of multiplications would cost. */
static inline void count_event(struct chm_sim_events *e, const struct chm_io *io)
{
    uint64_t what = io->kind | (uint64_t)io->member << 8 | (uint64_t)io->len << 32;
    uint64_t where = mix(mix(what, io->off), (uint32_t)io->res);
    uint64_t when = mix(mix(1, io->submit_ns), io->done_ns);

    e->ios++;
    e->digest = mix(e->digest, where ^ when << 1);
}

/* Hand back what ends now. */
static unsigned hand_back(struct chm_sim *s, struct chm_io **out, unsigned max)
{
    unsigned n = 0;

    while (n < max && chm_io_heap_next(&s->due) <= s->now_ns) {
        struct chm_io *io = chm_io_heap_pop(&s->due);
        if (io->priv & PRIV_PORT && passes_port(s, io)) {
            chm_io_heap_push(&s->due, io->done_ns, io);
            continue;
        }
        sim_finish(s, io);
        count_event(&s->events, io);
        out[n++] = io;
    }
    return n;
}

static int sim_reap(struct chm_medium *m, struct chm_io **out, unsigned max, uint64_t deadline_ns)
{
    struct chm_sim *s = sim_of(m);
    unsigned n;

    if (atomic_load_explicit(&s->woken, memory_order_relaxed)) {
        atomic_store(&s->woken, false); /* what is due already is handed back, time stands still */
        return (int)hand_back(s, out, max);
    }
    for (;;) {
        uint64_t next = chm_io_heap_next(&s->due), until = chm_min(next, deadline_ns);
        if (until > s->now_ns && until != CHM_FOREVER_NS) {
            s->now_ns = until;
        }
        n = hand_back(s, out, max);
        if (n > 0 || next > deadline_ns || next == CHM_FOREVER_NS) {
            return (int)n; /* else some went on to the port, and there is a next one */
        }
    }
}

static uint64_t sim_now(struct chm_medium *m)
{
    return sim_of(m)->now_ns;
}

static void sim_wake(struct chm_medium *m)
{
    atomic_store(&sim_of(m)->woken, true);
}

static void flash_close(struct chm_sim *s)
{
    for (uint32_t i = 0; i < CHM_MEMBERS_MAX; i++) {
        chm_flash_close(&s->flash[i]);
    }
}

/* Nothing outside can touch the buffers, so I/Os in flight need no waiting for. */
static int sim_close(struct chm_medium *m, uint64_t deadline_ns)
{
    struct chm_sim *s = sim_of(m);

    (void)deadline_ns;
    chm_io_heap_close(&s->due);
    chm_sim_image_close(&s->image);
    flash_close(s);
    free(s);
    return 0;
}

static const struct chm_medium_ops sim_ops = {
    .submit = sim_submit,
    .reap = sim_reap,
    .now = sim_now,
    .wake = sim_wake,
    .close = sim_close,
};

/* ------------------------------------------------------------------ power cut */

void chm_sim_power_cut(struct chm_medium *m, uint64_t seed)
{
    struct chm_sim *s = sim_of(m);

    CHM_ASSERT(m->ops == &sim_ops);
    while (s->due.count > 0) {
        struct chm_io *io = chm_io_heap_pop(&s->due);
        cut_if_write(s, io, &seed);
    }
    chm_sim_image_cut(&s->image, &seed);
    for (uint32_t i = 0; i < m->caps.members; i++) {
        s->busy_ns[i] = s->now_ns;
        if (s->opt.dies) {
            chm_flash_reset(&s->flash[i], s->now_ns);
        }
    }
    s->software_ns = s->dram.busy_ns = s->now_ns;
}

/* ------------------------------------------------------------------ open */

static uint64_t or_default(uint64_t value, uint64_t fallback)
{
    return value ? value : fallback;
}

static struct chm_sim_options sim_defaults(const struct chm_sim_options *given)
{
    struct chm_sim_options o = *given;

    o.capacity_bytes = or_default(o.capacity_bytes, UINT64_C(1) << 30);
    o.read_rate = or_default(o.read_rate, UINT64_C(2000000000));
    o.write_rate = or_default(o.write_rate, UINT64_C(2000000000));
    o.read_latency_ns = or_default(o.read_latency_ns, 80000);
    o.write_latency_ns = or_default(o.write_latency_ns, 20000);
    o.barrier_ns = or_default(o.barrier_ns, 1000000);
    if (o.dies) {
        chm_flash_defaults(&o);
    }
    return o;
}

static void sim_caps(struct chm_sim *s, const struct chm_media_args *args)
{
    uint32_t forced = args->opts->force_align;

    s->m.caps = (struct chm_medium_caps){
        .name = "sim",
        .members = args->members,
        .block_bytes = forced ? forced : BLOCK_DEFAULT,
        .align_bytes = forced ? forced : BLOCK_DEFAULT,
        .transfer_max = CHM_REGION_CHUNK,
        .inflight_max = chm_media_inflight(args),
        .volatile_cache = s->opt.volatile_cache != 0,
        .fua_cheap = true,
        .trim = true,
        .virtual_time = true,
        .contents = !s->opt.no_contents,
        .direct = true,
        .event_fd = -1,
        .dram = s->dram.rate ? &s->dram : NULL,
        .events = &s->events,
    };
    chm_media_force(args->opts, &s->m.caps);
    for (uint32_t i = 0; i < args->members; i++) {
        s->m.caps.size_bytes[i] = s->opt.capacity_bytes;
    }
}

static int flash_open(struct chm_sim *s, uint32_t members)
{
    int rc = 0;

    for (uint32_t i = 0; i < members && s->opt.dies && rc == 0; i++) {
        rc = chm_flash_open(&s->flash[i], &s->opt);
    }
    if (rc) {
        flash_close(s);
    }
    return rc;
}

static int sim_open_parts(struct chm_sim *s, const struct chm_media_args *args)
{
    int rc = chm_io_heap_open(&s->due, s->m.caps.inflight_max);

    if (rc) {
        return rc;
    }
    rc = flash_open(s, args->members);
    if (rc) {
        goto fail_heap;
    }
    rc = chm_sim_image_open(&s->image, args->members, s->opt.capacity_bytes, s->m.caps.contents,
                            s->m.caps.volatile_cache);
    if (rc) {
        goto fail_flash;
    }
    return 0;
fail_flash:
    flash_close(s);
fail_heap:
    chm_io_heap_close(&s->due);
    return rc;
}

int chm_media_sim_open(const struct chm_media_args *args, struct chm_medium **out,
                       struct chm_error *err)
{
    struct chm_sim_options o = sim_defaults(&args->opts->sim);
    struct chm_sim *s;
    int rc = o.dies ? chm_flash_check(&o, err) : 0;

    if (rc) {
        return rc;
    }
    s = calloc(1, sizeof(*s));
    rc = -ENOMEM;
    if (!s) {
        goto fail;
    }
    s->m.ops = &sim_ops;
    s->opt = o;
    s->dram.rate = o.dram_rate;
    s->read_rate.rate = o.read_rate;
    sim_caps(s, args);
    rc = sim_open_parts(s, args);
    if (rc) {
        goto fail;
    }
    if (args->opts->sim.keep) {
        chm_sim_image_share(&s->image, args->opts->sim.keep);
    }
    *out = &s->m;
    return 0;
fail:
    free(s);
    return chm_media_fail(err, rc, "no memory for %u simulated members of %llu bytes",
                          args->members, (unsigned long long)o.capacity_bytes);
}
