/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media_replay.c - a wrapper that makes a medium repeat a trace (trace_file.h): each I/O gets the
 * result, the latency and the place in the order of completion that it had when the trace was
 * taken. The inner medium moves the bytes.
 *
 *     following -> diverged, at the first I/O that is not the next one of the trace
 *
 * Once diverged, that I/O and all later ones get -EILSEQ; those submitted before still end, as they
 * come. While following, I/O number `seq` uses entry[seq]; order[k] is the seq that was handed back
 * k-th, and nothing is given before all that stand before it there.
 *
 * An I/O recorded with an error is not forwarded, and a short one only as far as it went. One
 * without a line was never handed back, and is not now.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "media/trace_file.h"
#include "media/wrap.h"
#include "util/util.h"

/* A trace longer than this is a damaged one. */
#define SEQ_MAX (UINT64_C(1) << 40)

struct replay_entry {
    struct chm_trace_line line;
    bool present;
    struct chm_shadow *finished; /* ended in the inner medium, not given yet */
};

struct chm_replay {
    struct chm_wrap w;
    struct replay_entry *entry; /* by seq */
    uint64_t entries;
    uint64_t *order; /* seqs by line */
    uint64_t lines;
    uint64_t seq;     /* of the next I/O submitted */
    uint64_t given;   /* lines given so far */
    uint64_t last_ns; /* when the last of them was */
    bool diverged;
};

static struct chm_replay *replay_of(struct chm_wrap *w)
{
    return CHM_CONTAINER(w, struct chm_replay, w);
}

/* ------------------------------------------------------------------ giving in recorded order */

static void give_entry(struct chm_replay *r, struct replay_entry *e)
{
    struct chm_shadow *s = e->finished;

    e->finished = NULL;
    r->last_ns = chm_max(r->last_ns, chm_max(s->due_ns, s->io.done_ns));
    chm_wrap_give(&r->w, s, r->last_ns);
}

/* Give what can be: the next lines of the trace, or everything that ended if it no longer
 * counts. */
static void give_ready(struct chm_replay *r)
{
    while (r->given < r->lines) {
        struct replay_entry *e = &r->entry[r->order[r->given]];
        if (e->finished) {
            give_entry(r, e);
        } else if (!r->diverged) {
            return;
        }
        r->given++;
    }
}

static void replay_ended(struct chm_replay *r, struct chm_shadow *s)
{
    struct replay_entry *e = &r->entry[s->arg];

    e->finished = s;
    if (r->diverged) {
        give_entry(r, e);
    } else {
        give_ready(r);
    }
}

static void replay_finished(struct chm_wrap *w, struct chm_shadow *s)
{
    struct chm_replay *r = replay_of(w);

    if (s->io.res >= 0) {
        s->io.res = r->entry[s->arg].line.res;
    }
    replay_ended(r, s);
}

/* ------------------------------------------------------------------ submit */

static bool is_next(const struct chm_replay *r, const struct chm_io *io)
{
    const struct chm_trace_line *l;

    if (r->diverged || r->seq >= r->entries) {
        return false;
    }
    if (!r->entry[r->seq].present) {
        return true; /* nothing is known about it but that it never ended */
    }
    l = &r->entry[r->seq].line;
    if (io->kind != l->kind || io->member != l->member) {
        return false;
    }
    return io->kind == CHM_IO_BARRIER ||
           (io->off == l->off && io->len == l->len && (io->flags & CHM_IO_FUA) == l->flags);
}

/* Forward as much of the I/O as took place when it was recorded. */
static void replay_forward(struct chm_replay *r, struct chm_shadow *s,
                           const struct chm_trace_line *l)
{
    bool moves = l->kind == CHM_IO_READ || l->kind == CHM_IO_WRITE;
    uint64_t bytes = l->res > 0 ? (uint64_t)l->res : 0;

    if (l->res < 0 || (moves && bytes == 0)) {
        s->io.res = l->res;
        s->io.done_ns = s->io.submit_ns;
        replay_ended(r, s);
        return;
    }
    if (moves) {
        bytes = chm_round_up(bytes, r->w.m.caps.block_bytes);
        s->io.len = (uint32_t)chm_min(bytes, s->io.len);
    }
    chm_wrap_forward(&r->w, s);
}

static void replay_start(struct chm_replay *r, struct chm_shadow *s)
{
    if (!is_next(r, &s->io)) {
        r->diverged = true;
        give_ready(r);
        s->io.res = -EILSEQ;
        chm_wrap_give(&r->w, s, s->io.submit_ns);
        return;
    }
    s->arg = r->seq++;
    if (r->entry[s->arg].present) {
        const struct chm_trace_line *l = &r->entry[s->arg].line;
        s->due_ns = chm_sat_add(s->io.submit_ns, l->done_ns - l->submit_ns);
        replay_forward(r, s, l);
    }
}

static unsigned replay_submit(struct chm_medium *m, struct chm_io *const *ios, unsigned n)
{
    struct chm_replay *r = replay_of(CHM_CONTAINER(m, struct chm_wrap, m));
    uint64_t now_ns = chm_medium_now(m);
    unsigned i;

    for (i = 0; i < n; i++) {
        struct chm_shadow *s = chm_wrap_take(&r->w, ios[i], now_ns);
        if (!s) {
            break;
        }
        replay_start(r, s);
    }
    chm_wrap_flush(&r->w);
    return i;
}

/* ------------------------------------------------------------------ open and close */

static void replay_free(struct chm_replay *r)
{
    free(r->order);
    free(r->entry);
    free(r);
}

static int replay_close(struct chm_medium *m, uint64_t deadline_ns)
{
    struct chm_replay *r = replay_of(CHM_CONTAINER(m, struct chm_wrap, m));
    int rc = chm_wrap_close(&r->w, deadline_ns);

    if (rc == 0) {
        replay_free(r);
    }
    return rc;
}

static const struct chm_medium_ops replay_ops = {
    .submit = replay_submit,
    .reap = chm_wrap_reap,
    .now = chm_wrap_now,
    .wake = chm_wrap_wake,
    .close = replay_close,
};

/* Sort the lines into entries by seq; every seq occurs at most once. 0, -EINVAL or -ENOMEM. */
static int index_lines(struct chm_replay *r, const struct chm_trace *t)
{
    for (uint64_t k = 0; k < t->lines; k++) {
        r->entries = chm_max(r->entries, chm_sat_add(t->line[k].seq, 1));
    }
    if (r->entries > SEQ_MAX) {
        return -EINVAL;
    }
    r->entry = calloc(r->entries + 1, sizeof(*r->entry));
    r->order = calloc(t->lines + 1, sizeof(*r->order));
    if (!r->entry || !r->order) {
        return -ENOMEM;
    }
    for (uint64_t k = 0; k < t->lines; k++) {
        struct replay_entry *e = &r->entry[t->line[k].seq];
        if (e->present) {
            return -EINVAL;
        }
        *e = (struct replay_entry){.line = t->line[k], .present = true};
        r->order[k] = t->line[k].seq;
    }
    r->lines = t->lines;
    return 0;
}

static int load(struct chm_replay *r, const char *path, const struct chm_medium_caps *caps,
                struct chm_error *err)
{
    struct chm_trace t = {0};
    int rc = chm_trace_load(path, caps, &t, err);

    if (rc) {
        return rc;
    }
    rc = index_lines(r, &t);
    free(t.line);
    return rc ? chm_media_fail(err, rc, "trace %s: %s", path, strerror(-rc)) : 0;
}

int chm_media_replay_open(const struct chm_media_args *args, struct chm_medium *inner,
                          struct chm_medium **out, struct chm_error *err)
{
    struct chm_replay *r = calloc(1, sizeof(*r));
    int rc;

    if (!r) {
        return chm_media_fail(err, -ENOMEM, "no memory for the trace");
    }
    rc = load(r, args->opts->trace_replay, &inner->caps, err);
    if (rc) {
        goto fail;
    }
    rc = chm_wrap_open(&r->w, inner, &replay_ops, replay_finished, "trace");
    if (rc) {
        rc = chm_media_fail(err, rc, "no memory for the trace");
        goto fail;
    }
    *out = &r->w.m;
    return 0;
fail:
    replay_free(r);
    return rc;
}
