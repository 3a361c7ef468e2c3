/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_stream.c - lists of ranges, staged ahead of a consumer (explore.h).
 *
 * Pieces come in order and without a gap. Each shows the model of one moment between the opening
 * of the stream and the call that handed it out, and keeps its bytes until it is given back.
 */
#include "explore/explore.h"

static struct op_stream *some_stream(struct run *r)
{
    uint64_t first = run_random(r, STREAMS);

    for (uint64_t i = 0; i < STREAMS; i++) {
        if (r->stream[(first + i) % STREAMS].s) {
            return &r->stream[(first + i) % STREAMS];
        }
    }
    return NULL;
}

void op_stream_open(struct run *r)
{
    struct op_stream *s = &r->stream[run_random(r, STREAMS)];
    struct chm_stream_options o = {0};
    int rc;

    if (s->s) {
        return;
    }
    *s = (struct op_stream){.opened = r->model.changes};
    s->n = 1 + (uint32_t)run_random(r, CHM_COUNT(s->objs));
    for (uint32_t i = 0; i < s->n; i++) {
        ops_read_range(r, IO_PAGES_MAX, &s->objs[i].addr, &s->objs[i].len);
    }
    o.segment_bytes = run_random(r, 3) ? (1 + run_random(r, 16)) * PAGE : 0;
    o.whole = run_random(r, 2) == 0;
    o.window_bytes = run_random(r, 2) ? (1 + run_random(r, 64)) * PAGE : 0;
    o.deadline_ns = run_random(r, 4) ? NO_LIMIT : 1 + run_random(r, 20 * MS);
    o.not_before_ns = run_random(r, 5) ? 0 : chm_now(r->dev) + run_random(r, 2 * MS);
    s->early = run_random(r, 3) == 0;
    o.early = s->early;
    rc = chm_stream_open(r->dev, s->objs, s->n, &o, &s->s);
    run_say(r, " stream %d: %u ranges%s -> %d", (int)(s - r->stream), s->n,
            o.early ? ", early" : "", rc);
    run_note(r, (uint64_t)rc);
    if (rc != 0 && rc != -EBUSY && !run_error_allowed(r, rc)) {
        run_fail(r, "status", "stream open: %d", rc);
    }
    s->s = rc == 0 ? s->s : NULL;
}

/* ------------------------------------------------------------------ pieces */

static uint64_t piece_addr(const struct op_stream *s, const struct chm_piece *p)
{
    return s->objs[p->object].addr + p->offset;
}

static uint64_t piece_sum(const struct chm_piece *p)
{
    uint64_t sum = p->len, word;

    for (uint64_t at = 0; at < p->len; at += 64) {
        memcpy(&word, (const uint8_t *)p->data + at, sizeof(word));
        sum = (sum ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    }
    return sum;
}

/* What is there of it. With `early` that may be less than all. */
static void piece_look(struct run *r, struct op_stream *s, struct op_piece *p, bool first)
{
    int64_t ready = s->early ? chm_progress(r->dev, p->piece.req) : (int64_t)p->piece.len;

    if (ready < 0) {
        if (!run_error_allowed(r, (int)ready)) {
            run_fail(r, "status", "a piece failed: %d", (int)ready);
        }
        return;
    }
    run_check_bytes(r, p->piece.data, piece_addr(s, &p->piece), (uint64_t)ready, p->span);
    if (first && ready == (int64_t)p->piece.len) {
        p->sum = piece_sum(&p->piece);
        run_note(r, p->sum);
    } else if (p->sum && p->sum != piece_sum(&p->piece)) {
        run_fail(r, "view", "the bytes of a piece changed before its release");
    }
}

static void check_order(struct run *r, struct op_stream *s, const struct chm_piece *p)
{
    uint64_t end = p->offset + p->len;

    if (p->object != s->object || p->offset != s->offset || p->len == 0 || p->object >= s->n ||
        end > s->objs[p->object].len || p->last != (end == s->objs[p->object].len)) {
        run_fail(r, "order", "piece %u + %" PRIu64 " where %u + %" PRIu64 " was due", p->object,
                 p->offset, s->object, s->offset);
    }
    s->object += p->last;
    s->offset = p->last ? 0 : end;
}

static bool next_allowed(const struct run *r, const struct op_stream *s, int rc)
{
    if (rc == -ENODATA && s->object < s->n) {
        return run_error_allowed(r, rc);
    }
    return rc == -ENODATA || rc == -EDEADLK || rc == -ETIMEDOUT || rc == -ETIME ||
           run_error_allowed(r, rc);
}

void op_stream_next(struct run *r)
{
    struct op_stream *s = some_stream(r);
    uint64_t timeout_ns = run_random(r, 3) ? 5 * MS : run_random(r, MS);
    uint64_t begin_ns = chm_now(r->dev);
    struct op_piece *p = NULL;
    int rc;

    for (int i = 0; i < STREAM_PIECES && s && !p; i++) {
        if (!s->pieces[i].live) {
            p = &s->pieces[i];
        }
    }
    if (!p) {
        return;
    }
    rc = chm_stream_next(s->s, timeout_ns, &p->piece);
    run_say(r, " stream %d -> %d", (int)(s - r->stream), rc);
    run_note(r, (uint64_t)rc);
    run_check_time(r, begin_ns, timeout_ns);
    if (rc != 0) {
        if (!next_allowed(r, s, rc)) {
            run_fail(r, "status", "stream next: %d", rc);
        }
        return;
    }
    p->live = true;
    p->sum = 0;
    p->span = (struct span){s->opened, r->model.changes};
    check_order(r, s, &p->piece);
    piece_look(r, s, p, true);
}

static void release(struct run *r, struct op_stream *s, struct op_piece *p)
{
    int rc;

    piece_look(r, s, p, false);
    rc = chm_stream_release(s->s, p->piece.req);
    run_say(r, " stream %d piece %d -> %d", (int)(s - r->stream), (int)(p - s->pieces), rc);
    if (rc != 0 || chm_stream_release(s->s, p->piece.req) != -ESTALE) {
        run_fail(r, "handle", "release of a piece: %d, or it lives on", rc);
    }
    p->live = false;
}

void op_stream_release(struct run *r)
{
    struct op_stream *s = some_stream(r);
    uint64_t first = run_random(r, STREAM_PIECES);

    for (uint64_t i = 0; i < STREAM_PIECES && s; i++) {
        struct op_piece *p = &s->pieces[(first + i) % STREAM_PIECES];
        if (p->live) {
            release(r, s, p);
            return;
        }
    }
}

static void close_stream(struct run *r, struct op_stream *s)
{
    int rc;

    for (int i = 0; i < STREAM_PIECES; i++) {
        if (s->pieces[i].live && run_random(r, 2)) {
            piece_look(r, s, &s->pieces[i], false);
        }
        s->pieces[i].live = false;
    }
    rc = chm_stream_close(s->s);
    run_say(r, " stream %d closed -> %d", (int)(s - r->stream), rc);
    if (rc != 0) {
        run_fail(r, "status", "stream close: %d", rc);
    }
    s->s = NULL;
}

void op_stream_close(struct run *r)
{
    struct op_stream *s = some_stream(r);

    if (s) {
        close_stream(r, s);
    }
}

void stream_end_all(struct run *r)
{
    for (int i = 0; i < STREAMS; i++) {
        if (r->stream[i].s) {
            close_stream(r, &r->stream[i]);
        }
    }
}
