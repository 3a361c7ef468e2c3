/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.c - a stream of operations (explore.h).
 *
 * What operation n does is drawn from (seed, n) alone, and acts on whatever it finds: so any
 * operation can be left out and the others stay what they were. The seed also chooses what the
 * stream does most of. To add an operation, write a function and add a line to the table.
 */
#include <stdio.h>

#include "explore/explore.h"

/* ------------------------------------------------------------------ small ones */

static void op_step(struct run *r)
{
    uint64_t now = chm_now(r->dev), until = run_random(r, 2) ? 0 : now + run_random(r, 500 * US);
    int n = chm_step(r->dev, until);

    run_say(r, " %" PRIu64 " ns -> %d", until ? until - now : 0, n);
    run_note(r, (uint64_t)n);
    if (n < 0 && !run_error_allowed(r, n)) {
        run_fail(r, "status", "step: %d", n);
    }
}

/* Let time pass, so that timers run and buffers empty. */
static void op_idle(struct run *r)
{
    uint64_t until = chm_now(r->dev) + run_random(r, r->files ? MS : 20 * MS);

    run_say(r, " until %" PRIu64 " ns", until);
    while (chm_now(r->dev) < until && !r->cut) {
        if (chm_step(r->dev, until) < 0) {
            break;
        }
    }
}

static void op_quiesce(struct run *r)
{
    uint64_t begin_ns = chm_now(r->dev), timeout_ns = run_random(r, 2) ? LONG_NS : US;
    int rc = chm_quiesce(r->dev, timeout_ns);

    run_say(r, " -> %d", rc);
    run_note(r, (uint64_t)rc);
    run_check_time(r, begin_ns, timeout_ns);
    if (rc != 0 && !(rc == -ETIMEDOUT && timeout_ns < LONG_NS) && !run_error_allowed(r, rc)) {
        run_fail(r, "status", "quiesce: %d", rc);
    }
}

static void op_counters(struct run *r)
{
    run_check_counters(r);
}

static void op_reopen(struct run *r)
{
    run_reopen(r);
}

/* ------------------------------------------------------------------ which and how often */

enum profile { EVEN, WRITING, STAGING, STREAMING, PUTTING, PROFILES };

static const struct {
    const char *name;
    void (*run)(struct run *r);
    uint8_t weight[PROFILES];
} ops[] = {
    {"write", op_write, {14, 30, 10, 8, 6}},
    {"open-write", op_open_write, {5, 8, 3, 2, 2}},
    {"end-write", op_end_write, {6, 10, 4, 2, 2}},
    {"trim", op_trim, {4, 7, 3, 2, 1}},
    {"flush", op_flush, {3, 6, 2, 1, 2}},
    {"issue", op_issue, {12, 6, 24, 4, 3}},
    {"wait", op_wait, {8, 4, 16, 3, 2}},
    {"look", op_look, {5, 2, 10, 2, 1}},
    {"release", op_release, {8, 4, 14, 3, 2}},
    {"reap", op_reap, {1, 1, 2, 1, 1}},
    {"read", op_read, {7, 8, 3, 3, 3}},
    {"read-begin", op_read_begin, {4, 5, 3, 1, 1}},
    {"read-end", op_read_end, {5, 5, 3, 1, 1}},
    {"stream-open", op_stream_open, {2, 1, 1, 8, 1}},
    {"stream-next", op_stream_next, {5, 1, 1, 26, 1}},
    {"stream-release", op_stream_release, {4, 1, 1, 20, 1}},
    {"stream-close", op_stream_close, {1, 1, 1, 3, 1}},
    {"put", op_put, {2, 1, 1, 2, 14}},
    {"put-begin", op_put_begin, {2, 1, 1, 1, 10}},
    {"put-go-on", op_put_go_on, {3, 1, 1, 1, 20}},
    {"object-read", op_object_read, {2, 1, 1, 1, 12}},
    {"object-hold", op_object_hold, {1, 1, 1, 1, 7}},
    {"object-delete", op_object_delete, {1, 1, 1, 1, 8}},
    {"step", op_step, {6, 6, 8, 5, 4}},
    {"idle", op_idle, {3, 3, 2, 2, 2}},
    {"quiesce", op_quiesce, {1, 1, 1, 1, 1}},
    {"counters", op_counters, {1, 1, 1, 1, 1}},
    {"reopen", op_reopen, {1, 1, 1, 1, 1}},
};

static size_t choose(struct run *r, uint64_t profile)
{
    uint64_t total = 0, n;
    size_t i = 0;

    for (size_t k = 0; k < CHM_COUNT(ops); k++) {
        total += ops[k].weight[profile];
    }
    n = run_random(r, total);
    while (n >= ops[i].weight[profile]) {
        n -= ops[i++].weight[profile];
    }
    return i;
}

void ops_run(struct run *r, uint32_t number)
{
    uint64_t seed = r->c->seed, profile;
    size_t i;

    profile = chm_random(&seed) % PROFILES;
    r->rng = chm_random(&seed) ^ (number + 1) * UINT64_C(0xD1342543DE82EF95);
    i = choose(r, profile);
    r->op = number;
    r->doing = ops[i].name;
    run_say(r, "%4u %s:", number, ops[i].name);
    ops[i].run(r);
    run_say(r, "\n");
}

/* ------------------------------------------------------------------ where */

static void range_below(struct run *r, uint64_t pages, uint64_t max, uint64_t *addr, uint64_t *len)
{
    uint64_t n = 1 + run_random(r, run_random(r, 4) ? chm_min(max, 4) : max);
    uint64_t border = r->info.stripe_bytes / PAGE, at;

    n = chm_min(n, pages);
    switch (run_random(r, 8)) {
    case 0:
        at = run_random(r, pages - n + 1); /* anywhere */
        break;
    case 1:
    case 2:
        at = border - 8 + run_random(r, 12); /* the end of the first stripe unit */
        break;
    default:
        at = run_random(r, 14);
    }
    *addr = chm_min(at, pages - n) * PAGE;
    *len = n * PAGE;
}

void ops_range(struct run *r, uint64_t max, uint64_t *addr, uint64_t *len)
{
    range_below(r, r->pages - (r->with_space ? SPACE_PAGES : 0), chm_max(max, 1), addr, len);
}

void ops_read_range(struct run *r, uint64_t max, uint64_t *addr, uint64_t *len)
{
    const struct op_object *o = &r->object[run_random(r, OBJECTS)];

    range_below(r, r->pages, chm_max(max, 1), addr, len);
    if (o->state != OBJECT_NONE && run_random(r, 2) && chm_round_up(o->o.len, PAGE) <= max * PAGE) {
        *addr = o->o.addr;
        *len = chm_round_up(o->o.len, PAGE);
    }
}
