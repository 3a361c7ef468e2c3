/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_stage.c - issue, wait, look, release (explore.h).
 *
 * A staged range must equal the model at one moment between its issue and when it first had window
 * space; at the very moment of its issue if it had that at once. Once seen whole, its bytes stay
 * as they are until it is released, whatever is written meanwhile.
 */
#include "explore/explore.h"

/* ------------------------------------------------------------------ issue */

/* The error of a request, once known, stays. */
static void ended(struct run *r, struct op_request *q, int rc)
{
    if (q->result != 1 && q->result != rc) {
        run_fail(r, "result", "a request that ended with %d says %d now", q->result, rc);
    }
    if (rc != 0 && rc != -ETIME && rc != -EAGAIN && !run_error_allowed(r, rc)) {
        run_fail(r, "status", "request of %" PRIu64 " + %" PRIu64 " failed: %d", q->addr, q->len,
                 rc);
    }
    q->result = rc;
}

static void choose_range(struct run *r, struct op_request *q)
{
    const struct op_request *other = &r->req[run_random(r, REQS)];
    bool share = run_random(r, 4) == 0 && other->live && other != q;

    ops_read_range(r, chm_min(IO_PAGES_MAX, r->info.window_bytes / PAGE), &q->addr, &q->len);
    if (share) {
        q->addr = other->addr;
        q->len = other->len;
    }
}

static struct chm_issue_options choose_options(struct run *r)
{
    struct chm_issue_options o = {0};

    o.flags = run_random(r, 3) == 0 ? CHM_ISSUE_NOWAIT : 0;
    o.not_before_ns = run_random(r, 6) == 0 ? chm_now(r->dev) + run_random(r, 2 * MS) : 0;
    o.queue_ns = run_random(r, 3) == 0 ? 1 + run_random(r, 5 * MS) : 0;
    o.expire_ns = run_random(r, 6) == 0 ? 1 + run_random(r, 5 * MS) : 0;
    return o;
}

/* What is looked at never expires, so those that may are left alone. */
static void issued(struct run *r, struct op_request *q, const struct chm_issue *item, bool expires)
{
    struct chm_view view;

    q->id = item->req;
    q->live = item->status == 0;
    if (q->live && !r->cut && !expires && chm_view(r->dev, q->id, &view) == 0) {
        q->placed = true;
        q->span.to = q->span.from;
    }
}

void op_issue(struct run *r)
{
    struct op_request *q = &r->req[run_random(r, REQS)];
    struct chm_issue_options o = choose_options(r);
    struct chm_issue item = {.status = 1};

    if (q->live) {
        return;
    }
    *q = (struct op_request){.result = 1, .span = {r->model.changes, UINT32_MAX}};
    choose_range(r, q);
    item.addr = q->addr;
    item.len = q->len;
    chm_issue(r->dev, &item, 1, &o);
    run_say(r, " request %d: %" PRIu64 "+%" PRIu64 "%s%s%s -> %d", (int)(q - r->req),
            q->addr / PAGE, q->len / PAGE, o.flags ? " nowait" : "",
            o.not_before_ns ? " later" : "", o.expire_ns ? " expires" : "", item.status);
    run_note(r, (uint64_t)item.status);
    if (item.status != 0 && item.status != -EBUSY && !(item.status == -EAGAIN && o.flags) &&
        !run_error_allowed(r, item.status)) {
        run_fail(r, "status", "issue: %d", item.status);
    }
    issued(r, q, &item, o.expire_ns != 0);
}

/* ------------------------------------------------------------------ look */

static uint64_t sum_of(const uint8_t *p, uint64_t len)
{
    uint64_t sum = len, word;

    for (uint64_t at = 0; at < len; at += 64) {
        memcpy(&word, p + at, sizeof(word));
        sum = (sum ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    }
    return sum;
}

/* The bytes as far as they are said to be there. */
static void check_view(struct run *r, struct op_request *q, const struct chm_view *view,
                       int64_t ready)
{
    uint64_t sum;

    if (view->len != q->len || ready < q->progress || ready > (int64_t)q->len) {
        run_fail(r, "progress",
                 "view of %" PRIu64 " bytes: %" PRIu64 "; ready %" PRId64 ", before that %" PRId64,
                 q->len, view->len, ready, q->progress);
    }
    q->progress = ready;
    run_check_bytes(r, view->data, q->addr, (uint64_t)ready, q->span);
    if (q->result == 0 && ready < (int64_t)q->len) {
        run_fail(r, "progress", "a request that ended has %" PRId64 " of %" PRIu64 " bytes", ready,
                 q->len);
    }
    if (ready == (int64_t)q->len) {
        sum = sum_of(view->data, q->len);
        if (q->summed && sum != q->sum) {
            run_fail(r, "view", "the bytes of a view changed before its release");
        }
        q->summed = true;
        q->sum = sum;
    }
    run_note(r, q->summed ? q->sum : (uint64_t)ready);
}

static void look(struct run *r, struct op_request *q)
{
    int64_t ready = chm_progress(r->dev, q->id);
    struct chm_view view;
    int rc = chm_view(r->dev, q->id, &view);

    run_say(r, " progress %" PRId64 " view %d", ready, rc);
    if (rc == -EAGAIN && q->result == 1) {
        if (q->placed || ready > 0) {
            run_fail(r, "view", "a request with window space has no view");
        }
        if (ready == -EAGAIN) { /* that is its result: no room when its time came */
            ended(r, q, -EAGAIN);
        }
        return;
    }
    if (rc < 0) {
        ended(r, q, rc);
        return;
    }
    if (!q->placed) { /* it got its bytes at some moment up to now */
        q->placed = true;
        q->span.to = r->model.changes;
    }
    check_view(r, q, &view, ready);
}

static struct op_request *some_request(struct run *r)
{
    uint64_t first = run_random(r, REQS);

    for (uint64_t i = 0; i < REQS; i++) {
        if (r->req[(first + i) % REQS].live) {
            return &r->req[(first + i) % REQS];
        }
    }
    return NULL;
}

void op_look(struct run *r)
{
    struct op_request *q = some_request(r);

    if (q) {
        run_say(r, " request %d:", (int)(q - r->req));
        look(r, q);
    }
}

/* ------------------------------------------------------------------ wait, release */

static bool may_time_out(const struct run *r, uint64_t timeout_ns)
{
    return timeout_ns < LONG_NS || r->c->plan->flags & PLAN_HANGS;
}

void op_wait(struct run *r)
{
    static const uint64_t timeouts[] = {0, 50 * US, 2 * MS, LONG_NS};
    struct op_request *q = some_request(r);
    uint64_t timeout_ns = timeouts[run_random(r, 4)], begin_ns = chm_now(r->dev);
    int rc;

    if (!q) {
        return;
    }
    timeout_ns = timeout_ns && timeout_ns < LONG_NS ? run_random(r, timeout_ns) : timeout_ns;
    rc = chm_wait(r->dev, q->id, timeout_ns);
    run_say(r, " request %d -> %d", (int)(q - r->req), rc);
    run_note(r, (uint64_t)rc);
    run_check_time(r, begin_ns, timeout_ns);
    if (rc == -ENODEV && r->cut) {
        return;
    }
    if (rc != -ETIMEDOUT) {
        ended(r, q, rc);
    } else if (!may_time_out(r, timeout_ns)) {
        /* All that can hold a request back for so long is window space that others keep: it would
         * have got -ETIME for that. */
        run_fail(r, "hang", "a request did not end within a minute");
    }
    look(r, q);
}

static void release(struct run *r, struct op_request *q)
{
    int rc;

    if (run_random(r, 2) && !r->cut) {
        look(r, q);
    }
    rc = chm_release(r->dev, q->id);
    run_say(r, " request %d -> %d", (int)(q - r->req), rc);
    if (rc != 0 || chm_release(r->dev, q->id) != -ESTALE || chm_wait(r->dev, q->id, 0) != -ESTALE) {
        run_fail(r, "handle", "release: %d, or the handle lives on", rc);
    }
    q->live = false;
}

void op_release(struct run *r)
{
    struct op_request *q = some_request(r);

    if (q) {
        release(r, q);
    }
}

void stage_end_all(struct run *r)
{
    for (int i = 0; i < REQS; i++) {
        if (r->req[i].live) {
            release(r, &r->req[i]);
        }
    }
}

void stage_end_unexpired(struct run *r)
{
    for (int i = 0; i < REQS; i++) {
        if (r->req[i].live && chm_wait(r->dev, r->req[i].id, 0) != -ETIME) {
            release(r, &r->req[i]);
        }
    }
}

void op_reap(struct run *r)
{
    uint64_t ids[8];
    int n = chm_reap(r->dev, ids, 8);

    if (n < 0 || n > 8) {
        run_fail(r, "status", "reap: %d", n);
    }
    run_say(r, " -> %d", n);
    for (int i = 0; i < n; i++) {
        run_note(r, ids[i]);
    }
}
