/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No mix of streams can hang: random streams, prefetches, reads and writes in virtual time.
 *
 * At random moments everybody is frozen as they are, with all they hold, and one admitted stream is
 * driven to its end by a consumer that gives pieces back. It must get there: in at most two calls
 * for a piece, each of them within a minute, whatever the frozen ones hold. All along, what the
 * window says of itself is recounted, no prefetch lies in a reserved run, and all bytes are such as
 * their place has held since they were asked for.
 *
 *     test_stream_mix [first seed [seeds [steps]]]
 */
#include "pages.h"
#include "rig.h"

#include "host/door.h"

enum {
    SIZE_BITS = 14, /* of objects: 4 KiB .. 64 MiB */
    STREAMS = 8,
    OBJECTS_MAX = 8,
    SINGLES = 48,
    READS = 4,
    READ_MAX = 2 * MIB,
    OPEN_WRITES = 6,
    HELD_MAX = 512,
    RECOUNT_EVERY = 8,
    SEEDS_DEFAULT = 10,
    STEPS_DEFAULT = 400,
};

static const uint64_t FOREVER = UINT64_MAX;

struct consumer {
    chm_stream *s;
    struct asked obj[OBJECTS_MAX];
    struct chm_range range[OBJECTS_MAX];
    uint32_t n, object;
    uint64_t offset;
    struct chm_piece held[HELD_MAX];
    uint32_t nheld, hold_max;
    uint64_t not_before_ns, deadline_ns; /* absolute; 0: none */
    bool early;
};

struct single {
    uint64_t req;
    struct asked what;
};

struct read {
    uint64_t req;
    struct asked what;
    uint8_t *buf;
};

struct mix {
    struct rig r;
    uint64_t random;
    bool faults;
    struct pages pages;
    struct consumer stream[STREAMS];
    struct single single[SINGLES];
    struct read read[READS];
    struct chm_write write[OPEN_WRITES];
    uint8_t use[CAPACITY / PAGE]; /* recount: who has a page of the window */
    uint64_t finished, driven, deadlocks, failed, timeouts, admitted_late;
};

static struct mix mix;

static uint64_t pick(struct mix *m, uint64_t below)
{
    return chm_random(&m->random) % below;
}

static bool one_in(struct mix *m, uint64_t n)
{
    return pick(m, n) == 0;
}

/* ------------------------------------------------------------------ recount of the window */

/* Mark a run; it must be nobody's yet. Returns what it takes. */
static uint64_t mark(struct mix *m, const struct chm_window *w, uint64_t off, uint64_t len)
{
    uint64_t cost = chm_window_cost(w, len);

    CHECK(off >= w->base && off + cost <= w->base + w->bytes);
    CHECK(is_byte(m->use + off / PAGE, cost / PAGE, 0));
    memset(m->use + off / PAGE, 1, cost / PAGE);
    return cost;
}

static void recount(struct mix *m)
{
    const struct chm_fw *fw = m->r.dev->fw;
    const struct chm_window *w = &fw->window;
    uint64_t reserved = 0, pool = 0, pinned = 0;

    memset(m->use, 0, sizeof(m->use));
    for (uint32_t i = 0; i < fw->opts.requests_max; i++) {
        const struct chm_reserve *res =
            fw->reqs[i].state == REQ_GRANTED ? fw->reqs[i].reserve : NULL;

        for (uint32_t k = 0; res && k < res->runs; k++) {
            reserved += mark(m, w, res->run[k], res->run_bytes);
        }
    }
    for (uint32_t i = 0; i < w->slots_max; i++) {
        const struct chm_slot *s = &w->slots[i];

        if (s->state == SLOT_FREE) {
            continue;
        }
        pinned += chm_window_cost(w, s->bytes);
        if (!s->reserve) {
            pool += mark(m, w, s->off, s->bytes);
        } else if (s->reserve->closing) {
            reserved += mark(m, w, s->off, s->bytes);
        } else {
            CHECK_EQ(s->off, s->reserve->run[s->reserve_run]);
        }
        CHECK(!s->reserve || !s->find.linked);
    }
    CHECK_EQ(w->reserved_bytes, reserved);
    CHECK_EQ(w->used_bytes, reserved + pool);
    CHECK_EQ(w->pinned_bytes, pinned);
    rig_check_counters(&m->r);
}

/* ------------------------------------------------------------------ streams */

/* Every size of 4 KiB .. 64 MiB is about as likely as its half; places repeat, so that streams
 * share. */
static struct chm_range some_range(struct mix *m, uint64_t max)
{
    uint64_t pages = 1ull << pick(m, SIZE_BITS + 1), len, addr;

    pages = chm_min(pages + pick(m, pages), 64 * MIB / PAGE);
    len = chm_min(pages * PAGE, max);
    addr = one_in(m, 2) ? pick(m, 8) * 16 * MIB : pick(m, PAGES) * PAGE;
    addr = chm_min(addr, m->r.info.capacity_bytes - len);
    return (struct chm_range){.addr = addr, .len = len};
}

static void stream_open(struct mix *m, struct consumer *c)
{
    struct chm_stream_options o = {.deadline_ns = FOREVER};
    uint64_t now = chm_now(m->r.dev);

    *c = (struct consumer){.n = 1 + (uint32_t)pick(m, OBJECTS_MAX)};
    for (uint32_t i = 0; i < c->n; i++) {
        c->range[i] = some_range(m, 64 * MIB);
        c->obj[i] = pages_ask(&m->pages, c->range[i].addr, c->range[i].len);
    }
    c->hold_max = (uint32_t)pick(m, one_in(m, 4) ? 300 : 5);
    if (one_in(m, 4)) {
        o.not_before_ns = c->not_before_ns = now + pick(m, 50 * MS);
    }
    if (one_in(m, 6)) {
        o.deadline_ns = 1 + pick(m, 200 * MS);
        c->deadline_ns = chm_max(now, o.not_before_ns) + o.deadline_ns;
    }
    o.early = c->early = one_in(m, 6);
    o.whole = one_in(m, 3);
    o.segment_bytes = one_in(m, 2) ? 0 : (1 + pick(m, 1024)) * PAGE;
    o.window_bytes = one_in(m, 2) ? 0 : (1 + pick(m, 4096)) * PAGE;
    CHECK_IS(chm_stream_open(m->r.dev, c->range, c->n, &o, &c->s), 0);
}

static void stream_close(struct consumer *c)
{
    CHECK_IS(chm_stream_close(c->s), 0);
    for (uint32_t i = 0; i < c->n; i++) {
        pages_forget(&c->obj[i]);
    }
    c->s = NULL;
}

static void stream_release(struct mix *m, struct consumer *c)
{
    uint32_t i = (uint32_t)pick(m, c->nheld);

    pages_check(&m->pages, c->held[i].data, &c->obj[c->held[i].object], c->held[i].offset, PAGE);
    CHECK_IS(chm_stream_release(c->s, c->held[i].req), 0);
    c->held[i] = c->held[--c->nheld];
}

/* A piece came: is it the right one? False: it was early, and then it failed. */
static bool stream_take(struct mix *m, struct consumer *c, const struct chm_piece *p)
{
    CHECK(c->object < c->n && p->object == c->object && p->offset == c->offset);
    CHECK(p->len > 0 && p->len % PAGE == 0 && p->len <= c->obj[c->object].len - c->offset);
    CHECK_EQ(p->last, p->offset + p->len == c->obj[c->object].len);
    CHECK(c->nheld < HELD_MAX);
    c->held[c->nheld++] = *p;
    c->object += p->last;
    c->offset = p->last ? 0 : p->offset + p->len;
    if (c->early) {
        int rc = chm_wait(m->r.dev, p->req, RIG_LONG);

        CHECK(rc == 0 || (rc == -EIO && m->faults));
        if (rc < 0) {
            return false;
        }
    }
    pages_check(&m->pages, p->data, &c->obj[p->object], p->offset, p->len);
    return true;
}

/* One call to next, and all that may come of it. Closes the stream at its end. */
static int stream_next(struct mix *m, struct consumer *c, uint64_t timeout_ns)
{
    uint64_t now = chm_now(m->r.dev);
    struct chm_piece p;
    int rc = chm_stream_next(c->s, timeout_ns, &p);

    switch (rc) {
    case 0:
        rc = stream_take(m, c, &p) ? 0 : -EIO;
        break;
    case -EDEADLK:
        CHECK(c->nheld >= 2); /* two pieces are its own */
        CHECK_EQ(chm_now(m->r.dev), now);
        m->deadlocks++;
        return rc;
    case -ETIMEDOUT:
        CHECK(chm_now(m->r.dev) >= now + timeout_ns);
        m->timeouts++;
        return rc;
    case -ENODATA:
        CHECK_EQ(c->object, c->n);
        m->finished++;
        break;
    case -EIO:
        CHECK(m->faults);
        break;
    default:
        CHECK_IS(rc, -ETIME);
        CHECK(c->deadline_ns && chm_now(m->r.dev) >= c->deadline_ns);
    }
    if (rc < 0) {
        m->failed += rc != -ENODATA;
        stream_close(c);
    }
    return rc;
}

static void stream_go_on(struct mix *m, struct consumer *c)
{
    static const uint64_t timeout[] = {0, 100 * US, 5 * MS, CHM_SECOND};

    if (c->nheld > c->hold_max || (c->nheld && one_in(m, 4))) {
        stream_release(m, c);
    } else if (stream_next(m, c, timeout[pick(m, 4)]) == -EDEADLK) {
        stream_release(m, c);
    }
}

/* To its end, while all others stay as they are. A call takes a piece, or gives one back first. */
static void stream_drive(struct mix *m, struct consumer *c)
{
    struct chm_stream_info info;
    uint64_t calls = 2;
    int rc;

    CHECK_IS(chm_stream_info(c->s, &info), 0);
    for (uint32_t i = 0; i < c->n; i++) {
        calls += 2 * (c->range[i].len / info.piece_bytes + 1);
    }
    calls += c->nheld;
    do {
        rc = stream_next(m, c, RIG_LONG);
        CHECK(rc != -ETIMEDOUT);
        CHECK(calls-- > 0);
        while (rc == -EDEADLK || (rc == 0 && c->nheld > c->hold_max)) {
            stream_release(m, c);
            rc = 0;
        }
    } while (rc == 0);
    m->driven++;
}

/* Something was issued for it, which is done only when its space is granted, or it is told when. */
static bool stream_is_admitted(struct consumer *c)
{
    struct chm_stream_info info;

    CHECK_IS(chm_stream_info(c->s, &info), 0);
    return info.delivered_bytes > 0 || (c->not_before_ns == 0 && info.ahead > 0);
}

static void act_stream(struct mix *m)
{
    struct consumer *c = &m->stream[pick(m, STREAMS)];

    if (!c->s) {
        stream_open(m, c);
    } else if (one_in(m, 30)) {
        stream_close(c);
    } else if (one_in(m, 12) && stream_is_admitted(c)) {
        stream_drive(m, c);
    } else {
        stream_go_on(m, c);
    }
}

/* ------------------------------------------------------------------ everybody else */

static void single_end(struct mix *m, struct single *s)
{
    CHECK_IS(chm_release(m->r.dev, s->req), 0);
    s->req = 0;
    pages_forget(&s->what);
}

static void single_look(struct mix *m, struct single *s, uint64_t timeout_ns)
{
    int rc = chm_wait(m->r.dev, s->req, timeout_ns);
    struct chm_view view;

    if (rc == 0) {
        CHECK_IS(chm_view(m->r.dev, s->req, &view), 0);
        pages_check(&m->pages, view.data, &s->what, 0, view.len);
    } else if (rc != -ETIMEDOUT) {
        CHECK(rc == -ETIME || (rc == -EIO && m->faults));
        single_end(m, s);
    }
}

static void act_single(struct mix *m)
{
    struct single *s = &m->single[pick(m, SINGLES)];
    struct chm_issue_options o = {.flags = (uint32_t)pick(m, 2), .expire_ns = FOREVER};
    struct chm_range range;
    struct chm_issue item;

    if (s->req) {
        single_look(m, s, one_in(m, 4) ? 5 * MS : 0);
        if (s->req && one_in(m, 3)) {
            single_end(m, s);
        }
        return;
    }
    range = some_range(m, m->r.info.window_bytes);
    o.queue_ns = 1 + pick(m, CHM_SECOND);
    o.expire_ns = one_in(m, 3) ? 1 + pick(m, 20 * MS) : FOREVER;
    item = rig_issue_with(&m->r, range.addr, range.len, &o);
    if (item.status == 0) {
        s->req = item.req;
        s->what = pages_ask(&m->pages, range.addr, range.len);
    } else {
        CHECK(item.status == -EAGAIN && o.flags);
    }
}

static void read_end(struct mix *m, struct read *d)
{
    int rc = chm_wait(m->r.dev, d->req, RIG_LONG);

    CHECK(rc == 0 || (rc == -EIO && m->faults));
    if (rc == 0) {
        pages_check(&m->pages, d->buf, &d->what, 0, d->what.len);
    }
    CHECK_IS(chm_release(m->r.dev, d->req), 0);
    d->req = 0;
    pages_forget(&d->what);
}

/* Half of them into memory that is not aligned, so that they pass through the demand reserve. */
static void act_read(struct mix *m)
{
    struct read *d = &m->read[pick(m, READS)];
    struct chm_range range = some_range(m, READ_MAX);
    struct chm_read item = {.addr = range.addr, .len = range.len};

    if (d->req) {
        read_end(m, d);
        return;
    }
    item.buf = d->buf + 8 * pick(m, 2);
    CHECK_IS(chm_read_issue(m->r.dev, &item, 1), 1);
    d->req = item.req;
    d->what = pages_ask(&m->pages, range.addr, range.len);
    if (item.buf != d->buf) {
        CHECK_IS(chm_wait(m->r.dev, d->req, RIG_LONG) < 0 && !m->faults, 0);
        memmove(d->buf, item.buf, range.len);
    }
}

static void write_commit(struct mix *m, struct chm_write *w)
{
    pages_write(&m->pages, w->addr, w->len, w->data);
    rig_commit(&m->r, w);
    w->id = 0;
}

static void act_write(struct mix *m)
{
    struct chm_write *w = &m->write[pick(m, OPEN_WRITES)];
    struct chm_range range = some_range(m, m->r.info.write_buffer_bytes / 2);

    if (pages_are_full(&m->pages)) {
        return;
    }
    if (w->id && one_in(m, 6)) {
        CHECK_IS(chm_write_abort(m->r.dev, &w->id, 1, NULL), 1);
        w->id = 0;
    } else if (w->id) {
        write_commit(m, w);
    } else {
        *w = (struct chm_write){.addr = range.addr, .len = range.len};
        if (chm_write_begin(m->r.dev, w, 1) == 0) {
            CHECK_IS(w->status, -EAGAIN);
            w->id = 0;
        }
    }
}

static void act_trim(struct mix *m)
{
    struct chm_range range = some_range(m, 8 * MIB);

    if (pages_are_full(&m->pages)) {
        return;
    }
    CHECK_IS(chm_trim(m->r.dev, range.addr, range.len), 0);
    pages_trim(&m->pages, range.addr, range.len);
}

/* Time goes by; now and then so much of it that what nobody asked for expires. */
static void act_time(struct mix *m)
{
    uint64_t ns = one_in(m, 60) ? 61ull * CHM_SECOND : 1 + pick(m, 3 * MS);

    rig_run(&m->r, ns);
}

static void act(struct mix *m)
{
    uint64_t what = pick(m, 100);

    if (what < 50) {
        act_stream(m);
    } else if (what < 70) {
        act_single(m);
    } else if (what < 76) {
        act_read(m);
    } else if (what < 88) {
        act_write(m);
    } else if (what < 90) {
        act_trim(m);
    } else {
        act_time(m);
    }
}

/* ------------------------------------------------------------------ a run */

/* Streams that wait for admission are admitted one after the other, in order of opening, as those
 * before them end: there is always one that goes on. */
static void finish_waiting(struct mix *m)
{
    uint32_t before, open = STREAMS + 1;

    do {
        before = open;
        open = 0;
        for (uint32_t i = 0; i < STREAMS; i++) {
            struct consumer *c = &m->stream[i];

            if (c->s && stream_next(m, c, CHM_SECOND) == 0) {
                stream_drive(m, c);
                m->admitted_late++;
            }
            open += c->s != NULL;
        }
        CHECK(open < before);
    } while (open > 0);
}

/* What was admitted ends though prefetches keep what they have; the rest once those let go. */
static void finish(struct mix *m)
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        if (m->stream[i].s && stream_is_admitted(&m->stream[i])) {
            stream_drive(m, &m->stream[i]);
        }
    }
    for (uint32_t i = 0; i < SINGLES; i++) {
        if (m->single[i].req) {
            single_look(m, &m->single[i], 0);
        }
        if (m->single[i].req) {
            single_end(m, &m->single[i]);
        }
    }
    finish_waiting(m);
    for (uint32_t i = 0; i < READS; i++) {
        if (m->read[i].req) {
            read_end(m, &m->read[i]);
        }
        munmap(m->read[i].buf, READ_MAX + PAGE);
    }
    for (uint32_t i = 0; i < OPEN_WRITES; i++) {
        if (m->write[i].id) {
            CHECK_IS(chm_write_abort(m->r.dev, &m->write[i].id, 1, NULL), 1);
        }
    }
}

static void setup(struct mix *m, uint64_t seed)
{
    memset(m, 0, sizeof(*m));
    m->pages.random = m->random = seed;
    m->faults = seed % 2;
    rig_sim(&m->r);
    m->r.opt.dram_bytes = 48 * MIB;
    m->r.opt.write_buffer_bytes = 8 * MIB;
    m->r.opt.sim.capacity_bytes = CAPACITY + MIB;
    m->r.opt.requests_max = 4096;
    if (m->faults) {
        m->r.opt.fault.seed = seed;
        m->r.opt.fault.eio_ppm = 200;
        m->r.opt.fault.short_ppm = 1000;
        m->r.opt.fault.swap_ppm = 2000;
        m->r.opt.fault.late_ppm = 5000;
        m->r.opt.fault.late_ns = 20 * MS;
    }
    rig_open(&m->r);
    CHECK_EQ(m->r.info.capacity_bytes, CAPACITY);
    for (uint32_t i = 0; i < READS; i++) {
        m->read[i].buf = rig_alloc(READ_MAX + PAGE);
    }
}

static void run(struct mix *m, uint64_t seed, uint64_t steps)
{
    printf("seed %" PRIu64 ":", seed);
    fflush(stdout);
    setup(m, seed);
    for (uint64_t i = 0; i < steps; i++) {
        act(m);
        if (i % RECOUNT_EVERY == 0) {
            recount(m);
        }
    }
    finish(m);
    recount(m);
    rig_check_quiet(&m->r);
    printf(" %" PRIu64 " finished, %" PRIu64 " driven, %" PRIu64 " late, %" PRIu64
           " failed, %" PRIu64 " deadlocks, %" PRIu64 " timeouts, %" PRIu64 " MiB\n",
           m->finished, m->driven, m->admitted_late, m->failed, m->deadlocks, m->timeouts,
           m->r.stats.read_bytes / MIB);
    rig_close(&m->r);
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t seeds = argc > 2 ? strtoull(argv[2], NULL, 0) : SEEDS_DEFAULT;
    uint64_t steps = argc > 3 ? strtoull(argv[3], NULL, 0) : STEPS_DEFAULT;

    for (uint64_t seed = first; seed < first + seeds; seed++) {
        run(&mix, seed, steps);
    }
    return 0;
}
