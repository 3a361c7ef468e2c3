/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media_pace.c - a wrapper that makes a medium slower: one token bucket for reads and writes
 * together, and a latency on top.
 *
 * The bucket is kept as the time at which it would be full again (full_ns). An I/O of n bytes moves
 * that by n/rate; it is paid for when the bucket, at most burst_bytes deep, has given n bytes since
 * it was submitted. I/Os go to the inner medium at once, in order, and are handed back `latency`
 * after the later of "the inner medium is done" and "paid for": like a drive whose inside is the
 * inner medium and whose interface is narrow. Only done_ns and the moment of handing back change.
 */
#include <errno.h>
#include <stdlib.h>

#include "media/wrap.h"
#include "util/util.h"

enum { BURST_DEFAULT = 1 << 20 };

struct chm_pace {
    struct chm_wrap w;
    uint64_t rate; /* bytes/s; 0: no limit */
    uint64_t latency_ns;
    uint64_t burst_ns; /* time that a full bucket stands for */
    uint64_t full_ns;
};

static struct chm_pace *pace_of(struct chm_wrap *w)
{
    return CHM_CONTAINER(w, struct chm_pace, w);
}

static uint64_t bytes_ns(const struct chm_pace *p, uint64_t bytes)
{
    return p->rate ? (uint64_t)((unsigned __int128)bytes * CHM_SECOND / p->rate) : 0;
}

/* Take the bytes of an I/O out of the bucket; returns when they are paid for. */
static uint64_t pay(struct chm_pace *p, const struct chm_io *io, uint64_t now_ns)
{
    bool moves = io->kind == CHM_IO_READ || io->kind == CHM_IO_WRITE;

    if (!moves || chm_io_check(&p->w.m.caps, io) != 0) {
        return now_ns;
    }
    p->full_ns = chm_max(p->full_ns, now_ns) + bytes_ns(p, io->len);
    return p->full_ns > p->burst_ns ? p->full_ns - p->burst_ns : 0;
}

static unsigned pace_submit(struct chm_medium *m, struct chm_io *const *ios, unsigned n)
{
    struct chm_pace *p = pace_of(CHM_CONTAINER(m, struct chm_wrap, m));
    uint64_t now_ns = chm_medium_now(m);
    unsigned i;

    for (i = 0; i < n; i++) {
        struct chm_shadow *s = chm_wrap_take(&p->w, ios[i], now_ns);
        if (!s) {
            break;
        }
        s->due_ns = pay(p, &s->io, now_ns);
        chm_wrap_forward(&p->w, s);
    }
    chm_wrap_flush(&p->w);
    return i;
}

static void pace_finished(struct chm_wrap *w, struct chm_shadow *s)
{
    uint64_t at_ns = chm_max(s->io.done_ns, s->due_ns);

    chm_wrap_give(w, s, chm_sat_add(at_ns, pace_of(w)->latency_ns));
}

static int pace_close(struct chm_medium *m, uint64_t deadline_ns)
{
    struct chm_pace *p = pace_of(CHM_CONTAINER(m, struct chm_wrap, m));
    int rc = chm_wrap_close(&p->w, deadline_ns);

    if (rc == 0) {
        free(p);
    }
    return rc;
}

static const struct chm_medium_ops pace_ops = {
    .submit = pace_submit,
    .reap = chm_wrap_reap,
    .now = chm_wrap_now,
    .wake = chm_wrap_wake,
    .close = pace_close,
};

int chm_media_pace_open(const struct chm_media_args *args, struct chm_medium *inner,
                        struct chm_medium **out, struct chm_error *err)
{
    const struct chm_pace_options *o = &args->opts->pace;
    struct chm_pace *p = calloc(1, sizeof(*p));

    if (!p || chm_wrap_open(&p->w, inner, &pace_ops, pace_finished, "pace") != 0) {
        free(p);
        return chm_media_fail(err, -ENOMEM, "no memory for the pace wrapper");
    }
    p->rate = o->rate;
    p->latency_ns = o->latency_ns;
    p->burst_ns = bytes_ns(p, o->burst_bytes ? o->burst_bytes : BURST_DEFAULT);
    *out = &p->w.m;
    return 0;
}
