/* SPDX-License-Identifier: Apache-2.0 */
/* op_write.c - writing, trimming and flushing, and what they promise (explore.h). */
#include "explore/explore.h"

enum { BATCH = 3 };

/* ------------------------------------------------------------------ room */

/* With no write open and all of it on the drive the buffer is empty: there must be room. */
static void check_refusal(struct run *r, const struct chm_write *w)
{
    bool open = false;

    for (int i = 0; i < WRITES; i++) {
        open = open || r->write[i].live;
    }
    for (int i = 0; i < OBJECTS; i++) {
        open = open || r->object[i].state == OBJECT_PUT;
    }
    if (!open && !r->cut && !(r->c->plan->flags & (PLAN_HANGS | PLAN_ERRORS))) {
        run_fail(r, "no-room", "no room for %" PRIu64 " bytes in an empty buffer of %" PRIu64,
                 w->len, r->info.write_buffer_bytes);
    }
}

static void check_begin(struct run *r, const struct chm_write *w)
{
    bool full_table = w->status == -EBUSY;

    if (w->status != 0 && w->status != -EAGAIN && !full_table && !run_error_allowed(r, w->status)) {
        run_fail(r, "status", "write begin of %" PRIu64 " + %" PRIu64 ": %d", w->addr, w->len,
                 w->status);
    }
}

/* Reserve room; when there is none and the stream must not depend on timing, make some. */
static bool begin(struct run *r, struct chm_write *w)
{
    bool insist = r->c->agree || run_random(r, 4) == 0;

    for (int tries = 0;; tries++) {
        int n = chm_write_begin(r->dev, w, 1);
        run_note(r, (uint64_t)w->status);
        check_begin(r, w);
        if ((n == 1) != (w->status == 0)) {
            run_fail(r, "status", "write begin returned %d with status %d", n, w->status);
        }
        if (n == 1 || w->status != -EAGAIN || !insist || r->cut) {
            return n == 1;
        }
        if (tries > 0) {
            check_refusal(r, w);
            return false;
        }
        write_flush(r, LONG_NS);
    }
}

/* ------------------------------------------------------------------ commit */

static void change(struct run *r, uint64_t addr, uint64_t len, uint64_t seed)
{
    model_begin(&r->model);
    for (uint64_t p = addr / PAGE; p < (addr + len) / PAGE; p++) {
        model_set(&r->model, p, seed ? pattern_key(seed, p) : 0, seed ? PAGE : 0);
    }
}

static void fill(const struct chm_write *w, uint64_t seed)
{
    for (uint64_t at = 0; at < w->len; at += PAGE) {
        pattern_fill((uint8_t *)w->data + at, pattern_key(seed, (w->addr + at) / PAGE), 0, PAGE);
    }
}

/* A strict commit that returns 0 is a promise about its own bytes. */
void write_told(struct run *r, uint64_t addr, uint64_t len, uint32_t upto, int status)
{
    run_note(r, (uint64_t)status);
    if (status == 0 && r->opt.durability == CHM_DURABILITY_STRICT) {
        model_promise_range(&r->model, addr, len, upto);
    } else if (status == -EIO && run_error_allowed(r, status)) {
        model_told(&r->model);
    } else if (status != 0 && !run_error_allowed(r, status)) {
        run_fail(r, "status", "commit of %" PRIu64 " + %" PRIu64 ": %d", addr, len, status);
    }
}

/* Commit n writes in one call. Each is a change of its own. */
static void commit(struct run *r, struct op_write *const *x, uint32_t n)
{
    uint64_t ids[BATCH] = {0};
    int32_t status[BATCH];
    int done = 0, rc;

    for (uint32_t i = 0; i < n; i++) {
        ids[i] = x[i]->w.id;
        status[i] = 1;
        fill(&x[i]->w, x[i]->seed);
        change(r, x[i]->w.addr, x[i]->w.len, x[i]->seed);
        x[i]->live = false;
    }
    rc = chm_write_commit(r->dev, ids, n, status);
    for (uint32_t i = 0; i < n; i++) {
        run_say(r, " commit %" PRIu64 "+%" PRIu64 " -> %d", x[i]->w.addr / PAGE, x[i]->w.len / PAGE,
                status[i]);
        write_told(r, x[i]->w.addr, x[i]->w.len, r->model.changes - (n - 1 - i), status[i]);
        done += status[i] == 0;
    }
    if (rc != done) {
        run_fail(r, "status", "commit returned %d, %d items are 0", rc, done);
    }
}

/* ------------------------------------------------------------------ operations */

/* What a write may cover: half the buffer, and less where several share it. */
static uint64_t pages_max(const struct run *r)
{
    uint64_t max = r->info.write_buffer_bytes / PAGE / (r->c->agree ? 4 : 2);

    return chm_min(max, IO_PAGES_MAX);
}

/* Now and then where a request shows older bytes: it must go on doing so, and the next one not. */
static void aim(struct run *r, struct chm_write *w)
{
    const struct op_request *q = &r->req[run_random(r, REQS)];

    if (run_random(r, 3) == 0 && q->live && !r->c->agree && q->addr + w->len <= r->space_base) {
        w->addr = q->addr;
    }
}

void op_write(struct run *r)
{
    uint32_t n = r->c->agree ? 1 : 1 + (uint32_t)run_random(r, BATCH);
    struct op_write made[BATCH], *x[BATCH];
    uint32_t got = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct op_write *w = x[got] = &made[got];
        *w = (struct op_write){.seed = run_random(r, UINT64_MAX) | 1};
        ops_range(r, n == 1 ? pages_max(r) : pages_max(r) / 3, &w->w.addr, &w->w.len);
        aim(r, &w->w);
        if (begin(r, &w->w)) {
            got++;
        } else {
            run_say(r, " %" PRIu64 "+%" PRIu64 " -> %d", w->w.addr / PAGE, w->w.len / PAGE,
                    w->w.status);
        }
    }
    if (got > 0) {
        commit(r, x, got);
    }
}

void op_open_write(struct run *r)
{
    struct op_write *x = &r->write[run_random(r, WRITES)];

    if (x->live || r->c->agree) {
        return;
    }
    *x = (struct op_write){.seed = run_random(r, UINT64_MAX) | 1};
    ops_range(r, pages_max(r) / 2, &x->w.addr, &x->w.len);
    x->live = begin(r, &x->w);
    run_say(r, " open %" PRIu64 "+%" PRIu64 " -> %d", x->w.addr / PAGE, x->w.len / PAGE,
            x->w.status);
}

static void abort_write(struct run *r, struct op_write *x)
{
    int32_t status = 1;
    int rc;

    memset(x->w.data, 0xEE, x->w.len); /* nobody may ever see this */
    rc = chm_write_abort(r->dev, &x->w.id, 1, &status);
    run_say(r, " abort %" PRIu64 "+%" PRIu64 " -> %d", x->w.addr / PAGE, x->w.len / PAGE, status);
    if (rc != 1 || status != 0) {
        run_fail(r, "status", "abort: %d, status %d", rc, status);
    }
    x->live = false;
}

void op_end_write(struct run *r)
{
    uint64_t first = run_random(r, WRITES);
    struct op_write *x = NULL;

    for (uint64_t i = 0; i < WRITES && !x; i++) {
        x = r->write[(first + i) % WRITES].live ? &r->write[(first + i) % WRITES] : NULL;
    }
    if (x && run_random(r, 4) == 0) {
        abort_write(r, x);
    } else if (x) {
        commit(r, &x, 1);
    }
}

void write_end_all(struct run *r)
{
    for (int i = 0; i < WRITES; i++) {
        if (r->write[i].live) {
            abort_write(r, &r->write[i]);
        }
    }
}

void op_trim(struct run *r)
{
    uint64_t addr, len;
    int rc;

    ops_range(r, IO_PAGES_MAX, &addr, &len);
    rc = chm_trim(r->dev, addr, len);
    if (rc == -EAGAIN && r->c->agree) {
        write_flush(r, LONG_NS);
        rc = chm_trim(r->dev, addr, len);
    }
    run_say(r, " trim %" PRIu64 "+%" PRIu64 " -> %d", addr / PAGE, len / PAGE, rc);
    run_note(r, (uint64_t)rc);
    if (rc == 0) {
        change(r, addr, len, 0);
    } else if (rc != -EAGAIN && rc != -EBUSY && !run_error_allowed(r, rc)) {
        run_fail(r, "status", "trim: %d", rc);
    }
}

/* 0 is a promise about everything that was committed before the call. */
int write_flush(struct run *r, uint64_t timeout_ns)
{
    uint64_t begin_ns = chm_now(r->dev);
    uint32_t upto = r->model.changes;
    int rc = chm_flush(r->dev, timeout_ns);

    run_say(r, " flush -> %d", rc);
    run_note(r, (uint64_t)rc);
    run_check_time(r, begin_ns, timeout_ns);
    if (rc == 0) {
        model_promise(&r->model, upto);
    } else if (rc == -EIO && run_error_allowed(r, rc)) {
        model_told(&r->model);
    } else if (!(rc == -ETIMEDOUT && (timeout_ns < LONG_NS || r->c->plan->flags & PLAN_HANGS)) &&
               !run_error_allowed(r, rc)) {
        run_fail(r, "status", "flush: %d", rc);
    }
    return rc;
}

void op_flush(struct run *r)
{
    write_flush(r, run_random(r, 4) && !r->files ? LONG_NS : run_random(r, 2 * MS));
}
