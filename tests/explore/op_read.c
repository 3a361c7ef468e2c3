/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_read.c - demand reads into memory of the caller (explore.h).
 *
 * The bytes are those of the moment of issue. Nothing around the buffer is touched, and nothing in
 * it once the request is released and the device quiet.
 */
#include "explore/explore.h"

enum { CANARY = 0x3C, MINE = 0x77 };

static uint8_t *memory_of(struct run *r, const struct op_read *d)
{
    return r->buffers + (uint64_t)(d - r->read) * BUFFER_BYTES;
}

static bool is_byte(const uint8_t *p, uint64_t len, uint8_t byte)
{
    return len == 0 || (p[0] == byte && memcmp(p, p + 1, len - 1) == 0);
}

static void choose(struct run *r, struct op_read *d)
{
    bool aligned = run_random(r, 2);
    uint64_t addr, len, cut;

    ops_read_range(r, IO_PAGES_MAX, &addr, &len);
    *d = (struct op_read){.at = r->model.changes};
    if (!aligned) {
        cut = run_random(r, PAGE);
        addr += cut;
        len -= cut;
        len -= run_random(r, chm_min(len, PAGE));
        d->skew = (uint32_t)run_random(r, PAGE);
    }
    d->item = (struct chm_read){.addr = addr, .len = len, .status = 1};
    d->item.buf = memory_of(r, d) + PAGE + d->skew;
    memset((uint8_t *)d->item.buf - 64, CANARY, len + 128);
}

static void check(struct run *r, struct op_read *d, int status)
{
    uint8_t *buf = d->item.buf;

    run_say(r, " %" PRIu64 " + %" PRIu64 " -> %d", d->item.addr, d->item.len, status);
    run_note(r, (uint64_t)status);
    if (!is_byte(buf - 64, 64, CANARY) || !is_byte(buf + d->item.len, 64, CANARY)) {
        run_fail(r, "overrun", "bytes around the buffer of a read were written");
    }
    if (status == 0) {
        run_check_bytes(r, buf, d->item.addr, d->item.len, (struct span){d->at, d->at});
        run_note(r, buf[0]);
    } else if (status != -EBUSY && !run_error_allowed(r, status) &&
               !(status == -ETIMEDOUT && r->c->plan->flags & PLAN_HANGS)) {
        run_fail(r, "status", "read of %" PRIu64 " + %" PRIu64 ": %d", d->item.addr, d->item.len,
                 status);
    }
}

static void quiesce(struct run *r)
{
    int rc = chm_quiesce(r->dev, LONG_NS);

    if (rc != 0 && !run_error_allowed(r, rc) &&
        !(rc == -ETIMEDOUT && r->c->plan->flags & PLAN_HANGS)) {
        run_fail(r, "hang", "quiesce: %d", rc);
    }
}

/* Bytes of a read whose outcome does not depend on timing. */
static void note_bytes(struct run *r, const struct op_read *d)
{
    const uint8_t *p = d->item.buf;

    for (uint64_t i = 0; i < d->item.len; i += 509) {
        r->bytes = (r->bytes ^ p[i]) * UINT64_C(0x9E3779B97F4A7C15);
    }
}

static int read_now(struct run *r, struct op_read *d)
{
    uint64_t begin_ns = chm_now(r->dev);
    int n = chm_read(r->dev, &d->item, 1, LONG_NS);

    if ((n == 1) != (d->item.status == 0)) {
        run_fail(r, "status", "read returned %d with status %d", n, d->item.status);
    }
    run_check_time(r, begin_ns, LONG_NS);
    if (d->item.status == -ETIMEDOUT) {
        quiesce(r);
    }
    return d->item.status;
}

void op_read(struct run *r)
{
    struct op_read *d = &r->read[run_random(r, READS)];

    if (d->live) {
        return;
    }
    choose(r, d);
    check(r, d, read_now(r, d));
    if (d->item.status == 0) {
        note_bytes(r, d);
    }
}

void op_read_begin(struct run *r)
{
    struct op_read *d = &r->read[run_random(r, READS)];
    int n;

    if (d->live) {
        return;
    }
    choose(r, d);
    n = chm_read_issue(r->dev, &d->item, 1);
    d->live = n == 1;
    if (!d->live) {
        check(r, d, d->item.status);
    } else {
        run_say(r, " read %d: %" PRIu64 " + %" PRIu64, (int)(d - r->read), d->item.addr,
                d->item.len);
    }
}

/* By waiting for it, or by letting go of it and waiting for the memory only. */
static void end(struct run *r, struct op_read *d, bool wait)
{
    int rc;

    run_say(r, " read %d:", (int)(d - r->read));
    d->live = false;
    if (wait) {
        rc = chm_wait(r->dev, d->item.req, LONG_NS);
        check(r, d, rc);
    }
    rc = chm_release(r->dev, d->item.req);
    if (rc != 0) {
        run_fail(r, "handle", "release of a read: %d", rc);
    }
    quiesce(r);
    if (wait || r->c->plan->flags & PLAN_HANGS) {
        return;
    }
    memset(d->item.buf, MINE, d->item.len);
    chm_step(r->dev, r->files ? 0 : chm_now(r->dev) + run_random(r, MS));
    if (!is_byte(d->item.buf, d->item.len, MINE)) {
        run_fail(r, "overrun", "a released and quiet read wrote into its buffer");
    }
}

void op_read_end(struct run *r)
{
    uint64_t first = run_random(r, READS);

    for (uint64_t i = 0; i < READS; i++) {
        struct op_read *d = &r->read[(first + i) % READS];
        if (d->live) {
            end(r, d, run_random(r, 3) > 0);
            return;
        }
    }
}

void read_end_all(struct run *r)
{
    for (int i = 0; i < READS; i++) {
        if (r->read[i].live) {
            end(r, &r->read[i], !r->cut);
        }
    }
}

uint8_t *read_spare(struct run *r)
{
    return r->buffers + READS * BUFFER_BYTES;
}

const uint8_t *read_plain(struct run *r, uint64_t addr, uint64_t len)
{
    uint8_t *buf = read_spare(r);
    struct chm_read item = {.addr = addr, .len = len, .buf = buf, .status = 1};

    chm_read(r->dev, &item, 1, LONG_NS);
    run_note(r, (uint64_t)item.status);
    if (item.status != 0 && !run_error_allowed(r, item.status) &&
        !(item.status == -ETIMEDOUT && r->c->plan->flags & PLAN_HANGS)) {
        run_fail(r, "status", "last look at %" PRIu64 " + %" PRIu64 ": %d", addr, len, item.status);
    }
    return item.status == 0 ? buf : NULL;
}
