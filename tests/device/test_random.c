/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_random.c - seeded random operations of every kind against a byte-exact model.
 *
 *     test_random                    a bounded number of seeds on all media
 *     test_random FIRST COUNT        seeds FIRST .. FIRST + COUNT - 1 on the simulated medium
 *     test_random FIRST COUNT MEDIA  the same on "sync", "uring", "threads" or "sim"
 *
 * A failure is preceded by the line that replays it. On the simulated medium each seed runs twice
 * and must do exactly the same: all results, bytes, times and counters go into a digest. The
 * operations that change bytes depend on the seed alone, so that after a run without errors all
 * media hold the same bytes.
 *
 * The model is, for each page, the list of what it read as and from when on. A staged range must
 * equal the model at one moment between its issue and its end, and at the very moment of its issue
 * if it had window space at once.
 */
#include "device/rig.h"

enum {
    SPACE = 6 * MIB,
    PAGES = SPACE / PAGE,
    HISTORY = 64, /* values of a page that are remembered; fewer than that are ever needed */
    REQS = 24,
    WRITES = 4,
    READS = 6,
    OPEN_PAGES = 4,   /* so few that, wherever they lie in a 1 MiB buffer, */
    RANGE_PAGES = 48, /* a run of this many is free beside them */
    OPS = 700,
};

struct value {
    uint64_t since; /* number of the change */
    uint64_t seed;
};

struct request {
    bool live, placed;
    uint64_t id, addr, len;
    uint64_t from, to; /* it shows the model of one moment in [from, to]; to: 0 = still open */
    int64_t progress;
    int result; /* 1: not known yet */
};

struct demand {
    bool live;
    struct chm_read item;
    uint64_t at;
    uint8_t *memory; /* PAGE bytes of canary on both sides of the buffer */
    uint64_t skew;   /* of buf in its page */
};

struct write {
    bool live;
    struct chm_write w;
    uint64_t seed;
};

struct world {
    struct rig rig;
    bool faulty; /* reads and writes may fail */
    uint64_t seed, what, which;
    uint64_t changes;
    struct value *history; /* PAGES x HISTORY, newest last */
    uint32_t *values;      /* per page: how many */
    struct request reqs[REQS];
    struct demand reads[READS];
    struct write writes[WRITES];
    uint64_t digest;
};

static void note(struct world *w, uint64_t v)
{
    w->digest = (w->digest ^ v) * UINT64_C(0x9E3779B97F4A7C15);
    w->digest ^= w->digest >> 29;
}

/* `what` says what is done to bytes; `which` everything that may depend on how things went. */
static uint64_t what(struct world *w, uint64_t below)
{
    return chm_random(&w->what) % below;
}

static uint64_t which(struct world *w, uint64_t below)
{
    return chm_random(&w->which) % below;
}

/* ------------------------------------------------------------------ the model */

static void model_set(struct world *w, uint64_t addr, uint64_t len, uint64_t seed)
{
    w->changes++;
    for (uint64_t p = addr / PAGE; p < (addr + len) / PAGE; p++) {
        struct value *h = w->history + p * HISTORY;
        if (w->values[p] == HISTORY) {
            memmove(h, h + 1, (HISTORY - 1) * sizeof(*h));
            w->values[p]--;
        }
        h[w->values[p]++] = (struct value){.since = w->changes, .seed = seed};
    }
}

/* What page p read as after change number `at`. */
static uint64_t model_at(const struct world *w, uint64_t p, uint64_t at)
{
    const struct value *h = w->history + p * HISTORY;

    for (uint32_t i = w->values[p]; i-- > 0;) {
        if (h[i].since <= at) {
            return h[i].seed;
        }
    }
    return 0;
}

/* Do [addr, addr + len) at p look as the model did at one moment? Any alignment. */
static bool matches(const struct world *w, const uint8_t *p, uint64_t addr, uint64_t len,
                    uint64_t at)
{
    uint64_t done = 0;

    while (done < len) {
        uint64_t page = (addr + done) / PAGE;
        uint64_t n = chm_min(len - done, (page + 1) * PAGE - (addr + done));
        if (!holds(p + done, addr + done, n, model_at(w, page, at))) {
            return false;
        }
        done += n;
    }
    return true;
}

static void expect_one_of(struct world *w, const uint8_t *p, uint64_t addr, uint64_t len,
                          uint64_t from, uint64_t to)
{
    for (uint64_t at = from; at <= to; at++) {
        if (matches(w, p, addr, len, at)) {
            return;
        }
    }
    for (uint64_t i = 0; i < len; i += PAGE) {
        uint64_t page = (addr + i) / PAGE;
        uint64_t n = chm_min(len - i, (page + 1) * PAGE - (addr + i));
        uint64_t wrong = first_wrong(p + i, addr + i, n, model_at(w, page, from));
        if (wrong != n) {
            fprintf(stderr,
                    "address %" PRIu64 ": byte 0x%02x is not of any moment %" PRIu64 " .. %" PRIu64
                    "\n",
                    addr + i + wrong, p[i + wrong], from, to);
            break;
        }
    }
    fprintf(stderr, "range %" PRIu64 " + %" PRIu64 " shows no moment of the model\n", addr, len);
    exit(1);
}

static void model_open(struct world *w)
{
    w->history = calloc(PAGES * HISTORY, sizeof(*w->history));
    w->values = calloc(PAGES, sizeof(*w->values));
    CHECK(w->history && w->values);
}

static void model_close(struct world *w)
{
    free(w->history);
    free(w->values);
}

/* ------------------------------------------------------------------ changes */

static void random_range(struct world *w, uint64_t *addr, uint64_t *len)
{
    *len = (1 + what(w, what(w, 4) ? 8 : RANGE_PAGES)) * PAGE;
    *addr = what(w, (SPACE - *len) / PAGE + 1) * PAGE;
    if (what(w, 3) == 0) {
        *addr %= MIB; /* a hot spot */
    }
}

static int flush(struct world *w)
{
    int rc = chm_flush(w->rig.dev, 60ull * CHM_SECOND);

    note(w, (uint64_t)rc);
    CHECK(rc == 0 || (w->faulty && rc == -EIO));
    return rc;
}

/* Take room; when there is none, a flush must make some. False: the device is degraded. */
static bool begin(struct world *w, struct chm_write *out)
{
    for (int tries = 0; tries < 3; tries++) {
        int n = chm_write_begin(w->rig.dev, out, 1);
        note(w, (uint64_t)out->status);
        CHECK_IS(n, out->status == 0);
        if (n == 1) {
            return true;
        }
        if (out->status == -EIO) {
            CHECK(w->faulty);
            return false;
        }
        CHECK_IS(out->status, -EAGAIN);
        flush(w);
    }
    fprintf(stderr, "no room for %" PRIu64 " bytes after a flush\n", out->len);
    exit(1);
}

static void commit(struct world *w, struct write *x)
{
    int32_t status = 1;
    int n = chm_write_commit(w->rig.dev, &x->w.id, 1, &status);

    note(w, (uint64_t)status);
    CHECK_IS(n, status == 0);
    CHECK(status == 0 || (w->faulty && status == -EIO));
    model_set(w, x->w.addr, x->w.len, x->seed);
    x->live = false;
}

static void op_write(struct world *w)
{
    struct write x = {.seed = chm_random(&w->what) | 1};

    random_range(w, &x.w.addr, &x.w.len);
    if (begin(w, &x.w)) {
        fill(x.w.data, x.w.addr, x.w.len, x.seed);
        commit(w, &x);
    }
}

/* Begin one and leave it open; the next time, commit or abort it. */
static void op_open_write(struct world *w)
{
    struct write *x = &w->writes[what(w, WRITES)];
    uint64_t addr, len, seed = chm_random(&w->what) | 1;
    bool abort_it = what(w, 4) == 0;
    int32_t status;

    random_range(w, &addr, &len);
    if (x->live && !abort_it) {
        fill(x->w.data, x->w.addr, x->w.len, x->seed);
        commit(w, x);
    } else if (x->live) {
        CHECK_IS(chm_write_abort(w->rig.dev, &x->w.id, 1, &status), 1);
        x->live = false;
    } else {
        x->w = (struct chm_write){.addr = addr, .len = chm_min(len, OPEN_PAGES * PAGE)};
        x->seed = seed;
        x->live = begin(w, &x->w);
    }
}

static void op_trim(struct world *w)
{
    uint64_t addr, len;
    int rc;

    random_range(w, &addr, &len);
    rc = chm_trim(w->rig.dev, addr, len);
    if (rc == -EAGAIN) {
        flush(w);
        rc = chm_trim(w->rig.dev, addr, len);
    }
    note(w, (uint64_t)rc);
    if (rc == -EIO) {
        CHECK(w->faulty);
        return;
    }
    CHECK_IS(rc, 0);
    model_set(w, addr, len, 0);
}

/* ------------------------------------------------------------------ staging */

static void request_ended(struct world *w, struct request *q, int rc)
{
    if (q->result != 1) {
        CHECK_IS(rc, q->result); /* a result never changes once it is known (F25) */
        return;
    }
    q->result = rc;
    q->to = q->placed ? q->to : w->changes;
    if (rc != 0 && rc != -ETIME && !(w->faulty && rc == -EIO)) {
        CHECK_IS(rc, 0);
    }
}

/* Bytes as far as they are said to be there. */
static void request_look(struct world *w, struct request *q)
{
    int64_t ready = chm_progress(w->rig.dev, q->id);
    struct chm_view view;
    int rc = chm_view(w->rig.dev, q->id, &view);

    note(w, (uint64_t)ready);
    note(w, (uint64_t)rc);
    if (rc == -EAGAIN) {
        CHECK(!q->placed);
        CHECK_IS(ready, 0);
        return;
    }
    if (rc < 0) {
        request_ended(w, q, rc);
        return;
    }
    CHECK_EQ(view.len, q->len);
    CHECK(ready >= q->progress && ready <= (int64_t)q->len);
    q->progress = ready;
    if (!q->placed) { /* it got its bytes at some moment up to now */
        q->placed = true;
        q->to = w->changes;
    }
    expect_one_of(w, view.data, q->addr, (uint64_t)ready, q->from, q->to);
    if (q->result == 0) {
        CHECK_IS(ready, q->len);
    }
}

static void op_issue(struct world *w)
{
    struct request *q = &w->reqs[which(w, REQS)];
    struct chm_issue_options o = {0};
    struct chm_issue item = {.status = 1};
    struct chm_view view;

    if (q->live) {
        return;
    }
    *q = (struct request){.live = true, .result = 1, .from = w->changes};
    q->len = (1 + which(w, 2 * RANGE_PAGES)) * PAGE;
    q->addr = which(w, (SPACE - q->len) / PAGE + 1) * PAGE;
    if (which(w, 3) == 0) {
        q->addr %= MIB;
    }
    if (which(w, 4) == 0 && w->reqs[(size_t)(q - w->reqs + 1) % REQS].live) {
        q->addr = w->reqs[(size_t)(q - w->reqs + 1) % REQS].addr; /* shares, perhaps */
        q->len = w->reqs[(size_t)(q - w->reqs + 1) % REQS].len;
    }
    o.flags = which(w, 3) == 0 ? CHM_ISSUE_NOWAIT : 0;
    o.not_before_ns = which(w, 8) == 0 ? chm_now(w->rig.dev) + which(w, 2 * MS) : 0;
    o.flags = o.not_before_ns ? 0 : o.flags;
    o.queue_ns = which(w, 4) == 0 ? 1 + which(w, 5 * MS) : 0;
    o.expire_ns = which(w, 8) == 0 ? 1 + which(w, 5 * MS) : 0;
    item.addr = q->addr;
    item.len = q->len;
    chm_issue(w->rig.dev, &item, 1, &o);
    note(w, (uint64_t)item.status);
    q->id = item.req;
    if (item.status != 0) {
        CHECK(item.status == -EAGAIN || (w->faulty && item.status == -EIO));
        q->live = false;
        return;
    }
    if (chm_view(w->rig.dev, q->id, &view) == 0) {
        q->placed = true;
        q->to = q->from;
    }
}

static void request_release(struct world *w, struct request *q)
{
    if (w->rig.info.virtual_time || which(w, 2)) {
        request_look(w, q);
    }
    CHECK_IS(chm_release(w->rig.dev, q->id), 0);
    CHECK_IS(chm_release(w->rig.dev, q->id), -ESTALE);
    q->live = false;
}

static void op_request(struct world *w)
{
    struct request *q = &w->reqs[which(w, REQS)];
    uint64_t choice = which(w, 4), timeout = which(w, 3) ? which(w, 2 * MS) : 0;
    int rc;

    if (!q->live) {
        return;
    }
    if (choice == 0) {
        request_release(w, q);
        return;
    }
    if (choice < 3) {
        rc = chm_wait(w->rig.dev, q->id, timeout);
        note(w, (uint64_t)rc);
        if (rc != -ETIMEDOUT) {
            request_ended(w, q, rc);
        } else {
            CHECK_IS(q->result, 1);
        }
    }
    request_look(w, q);
}

/* ------------------------------------------------------------------ demand reads */

static void demand_check(struct world *w, struct demand *d, int status)
{
    uint8_t *buf = d->item.buf;

    note(w, (uint64_t)status);
    CHECK(status == 0 || (w->faulty && status == -EIO));
    CHECK(is_byte(d->memory, PAGE + d->skew, 0x3C)); /* nothing around the buffer is touched */
    CHECK(is_byte(buf + d->item.len, PAGE, 0x3C));
    if (status == 0) {
        expect_one_of(w, buf, d->item.addr, d->item.len, d->at, d->at);
    }
}

static void demand_make(struct world *w, struct demand *d)
{
    bool aligned = which(w, 2);

    *d = (struct demand){.live = true, .at = w->changes};
    d->item.len = 1 + which(w, which(w, 4) ? 4 * PAGE : 2 * MIB);
    d->item.addr = which(w, SPACE - d->item.len);
    if (aligned) {
        d->item.len = chm_round_up(d->item.len, PAGE);
        d->item.addr = d->item.addr / PAGE * PAGE;
        d->item.addr = chm_min(d->item.addr, SPACE - d->item.len);
    }
    d->skew = aligned ? 0 : which(w, PAGE);
    d->memory = rig_alloc(d->item.len + 3 * PAGE);
    memset(d->memory, 0x3C, d->item.len + 3 * PAGE);
    d->item.buf = d->memory + PAGE + d->skew;
    d->item.status = 1;
}

static void demand_free(struct demand *d)
{
    munmap(d->memory, d->item.len + 3 * PAGE);
    d->live = false;
}

static void op_read(struct world *w)
{
    struct demand d;

    demand_make(w, &d);
    chm_read(w->rig.dev, &d.item, 1, 60ull * CHM_SECOND);
    demand_check(w, &d, d.item.status);
    demand_free(&d);
}

/* Start one, or end one: by waiting, or by letting go and waiting for the memory only. */
static void op_read_issue(struct world *w)
{
    struct demand *d = &w->reads[which(w, READS)];
    uint64_t choice = which(w, 3);

    if (!d->live) {
        demand_make(w, d);
        int n = chm_read_issue(w->rig.dev, &d->item, 1);
        note(w, (uint64_t)d->item.status);
        CHECK_IS(n, d->item.status == 0);
        if (n != 1) {
            CHECK(w->faulty && d->item.status == -EIO);
            demand_free(d);
        }
        return;
    }
    if (choice > 0) {
        demand_check(w, d, chm_wait(w->rig.dev, d->item.req, 60ull * CHM_SECOND));
        CHECK_IS(chm_release(w->rig.dev, d->item.req), 0);
    } else {
        CHECK_IS(chm_release(w->rig.dev, d->item.req), 0);
        CHECK_IS(chm_quiesce(w->rig.dev, 60ull * CHM_SECOND), 0);
        memset(d->item.buf, 0x77, d->item.len); /* mine again: nobody writes here any more */
        CHECK_IS(chm_flush(w->rig.dev, 60ull * CHM_SECOND) == -EIO && !w->faulty, 0);
        CHECK(is_byte(d->item.buf, d->item.len, 0x77));
    }
    demand_free(d);
}

/* ------------------------------------------------------------------ the rest */

static void op_reap(struct world *w)
{
    uint64_t ids[8];
    int n = chm_reap(w->rig.dev, ids, 8);

    CHECK(n >= 0 && n <= 8);
    for (int i = 0; i < n; i++) {
        note(w, ids[i]);
    }
}

static void op_step(struct world *w)
{
    uint64_t now = chm_now(w->rig.dev);
    int n = chm_step(w->rig.dev, which(w, 2) ? 0 : now + which(w, 300 * US));

    CHECK(n >= 0);
    note(w, (uint64_t)n);
}

static void note_counters(struct world *w)
{
    const uint64_t *v = (const uint64_t *)(const void *)&w->rig.stats;

    rig_check_counters(&w->rig);
    for (size_t i = 0; i < sizeof(w->rig.stats) / sizeof(*v); i++) {
        note(w, v[i]);
    }
    note(w, chm_now(w->rig.dev));
}

static void one_op(struct world *w)
{
    uint64_t op = what(w, 100);

    if (op < 22) {
        op_write(w);
    } else if (op < 32) {
        op_open_write(w);
    } else if (op < 37) {
        op_trim(w);
    } else if (op < 57) {
        op_issue(w);
    } else if (op < 80) {
        op_request(w);
    } else if (op < 84) {
        op_read(w);
    } else if (op < 90) {
        op_read_issue(w);
    } else if (op < 95) {
        op_step(w);
    } else if (op < 97) {
        op_reap(w);
    } else if (op < 98) {
        flush(w);
    } else {
        note_counters(w);
    }
}

/* Give everything up, then look at the whole device once more. */
static void finish(struct world *w)
{
    int32_t status;

    for (int i = 0; i < REQS; i++) {
        if (w->reqs[i].live) {
            request_release(w, &w->reqs[i]);
        }
    }
    for (int i = 0; i < READS; i++) {
        if (w->reads[i].live) {
            struct demand *d = &w->reads[i];
            demand_check(w, d, chm_wait(w->rig.dev, d->item.req, 60ull * CHM_SECOND));
            CHECK_IS(chm_release(w->rig.dev, d->item.req), 0);
            demand_free(d);
        }
    }
    for (int i = 0; i < WRITES; i++) {
        if (w->writes[i].live) {
            CHECK_IS(chm_write_abort(w->rig.dev, &w->writes[i].w.id, 1, &status), 1);
        }
    }
    flush(w);
    CHECK_IS(chm_quiesce(w->rig.dev, 60ull * CHM_SECOND), 0);
    rig_check_idle(&w->rig);
    note_counters(w);
}

/* The bytes of the whole device against the model. Returns their digest. */
static uint64_t look_at_all(struct world *w)
{
    uint8_t *buf = rig_alloc(SPACE);
    uint64_t digest = 0;

    for (uint64_t at = 0; at < SPACE; at += 64 * PAGE) {
        int rc = rig_read(&w->rig, at, 64 * PAGE, buf + at);
        CHECK(rc == 0 || (w->faulty && rc == -EIO));
        if (rc == 0) {
            expect_one_of(w, buf + at, at, 64 * PAGE, w->changes, w->changes);
        }
    }
    for (uint64_t i = 0; i < SPACE; i += 8) {
        uint64_t v;
        memcpy(&v, buf + i, 8);
        digest = (digest ^ v) * UINT64_C(0x9E3779B97F4A7C15);
    }
    munmap(buf, SPACE);
    return digest;
}

/* ------------------------------------------------------------------ one run */

/* A device whose sizes and faults come from the seed. */
static void open_world(struct world *w, const char *media, bool faults)
{
    struct rig *r = &w->rig;
    uint64_t s = w->seed ^ 0x5eed;

    if (strcmp(media, "sim") == 0) {
        rig_sim(r);
        r->opt.npaths = 1 + (uint32_t)(chm_random(&s) % 3);
        r->opt.sim.volatile_cache = chm_random(&s) % 2;
    } else {
        rig_files(r, media, 1 + (uint32_t)(chm_random(&s) % 2), 8 * MIB);
    }
    r->opt.dram_bytes = (2 + chm_random(&s) % 3) * MIB;
    r->opt.write_buffer_bytes = r->opt.dram_bytes / 2;
    r->opt.read_unit = (uint32_t)(16 * KIB << chm_random(&s) % 4);
    r->opt.flush_unit = (uint32_t)(16 * KIB << chm_random(&s) % 4);
    r->opt.read_depth = 1 + (uint32_t)(chm_random(&s) % 16);
    r->opt.read_depth_pressed = 1 + (uint32_t)(chm_random(&s) % 8);
    r->opt.flush_depth = 1 + (uint32_t)(chm_random(&s) % 4);
    r->opt.writes_max = 16 + (uint32_t)(chm_random(&s) % 64);
    r->opt.durability = (uint32_t)(chm_random(&s) % 3);
    r->opt.flush_idle_ns = 1 + chm_random(&s) % MS;
    r->opt.flush_age_ns = 1 + chm_random(&s) % (20 * MS);
    r->opt.fcfs = chm_random(&s) % 4 == 0;
    r->opt.fault.seed = w->seed + 1;
    if (faults) {
        r->opt.fault.short_ppm = w->faulty ? 50000 : 0; /* now and then 0 bytes: an error */
        r->opt.fault.late_ppm = 50000;
        r->opt.fault.swap_ppm = 50000;
        r->opt.fault.late_ns = 3 * MS;
        r->opt.fault.eio_ppm = w->faulty ? 30000 : 0;
    }
    rig_open(r);
}

static void close_world(struct world *w)
{
    int rc = chm_close(w->rig.dev, 60ull * CHM_SECOND);

    CHECK(rc == 0 || (w->faulty && rc == -EIO));
    if (w->rig.files && !w->faulty) { /* what was written is still there after the next open */
        w->rig.opt.fault = (struct chm_fault_options){0};
        rig_open(&w->rig);
        look_at_all(w);
        CHECK_IS(chm_close(w->rig.dev, 60ull * CHM_SECOND), 0);
    }
    rig_unlink(&w->rig);
}

static void run(uint64_t seed, const char *media, bool faults, bool errors, uint64_t *digest,
                uint64_t *bytes)
{
    struct world *w = calloc(1, sizeof(*w));

    CHECK(w);
    w->seed = w->what = seed;
    w->which = seed + 1000003;
    w->faulty = errors;
    model_open(w);
    open_world(w, media, faults);
    for (int i = 0; i < OPS; i++) {
        one_op(w);
    }
    finish(w);
    *bytes = look_at_all(w);
    note(w, *bytes);
    *digest = w->digest;
    close_world(w);
    model_close(w);
    free(w);
}

/* Once without faults, and with them: bytes and the digest of the first. */
static uint64_t run_seed(uint64_t seed, const char *media)
{
    bool sim = strcmp(media, "sim") == 0;
    uint64_t digest, again, bytes, same;

    fprintf(stderr, "replay: test_random %" PRIu64 " 1 %s\n", seed, media);
    run(seed, media, false, false, &digest, &bytes);
    if (sim) {
        run(seed, media, false, false, &again, &same);
        CHECK_EQ(again, digest);
    }
    run(seed, media, true, false, &digest, &same);
    CHECK_EQ(same, bytes);
    run(seed, media, true, true, &digest, &same);
    if (sim) {
        run(seed, media, true, true, &again, &same);
        CHECK_EQ(again, digest);
    }
    return bytes;
}

int main(int argc, char **argv)
{
    static const char *const real[] = {"sync", "uring", "threads"};

    if (argc >= 3) {
        uint64_t first = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10);
        for (uint64_t seed = first; seed < first + count; seed++) {
            run_seed(seed, argc > 3 ? argv[3] : "sim");
        }
        return 0;
    }
    for (uint64_t seed = 1; seed <= 6; seed++) {
        run_seed(seed, "sim");
    }
    for (uint64_t seed = 101; seed <= 101; seed++) {
        uint64_t bytes = run_seed(seed, "sim");
        for (size_t i = 0; i < CHM_COUNT(real); i++) {
            CHECK_EQ(run_seed(seed, real[i]), bytes);
        }
    }
    return 0;
}
