/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media_record.c - a wrapper that writes down every I/O that is handed back (trace_file.h).
 *
 * It changes nothing about the I/Os. What cannot be written (a full disk) does not disturb them
 * either: the first error is kept, writing ends, and close() returns it, so that an incomplete
 * trace does not pass for a whole one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "media/trace_file.h"
#include "media/wrap.h"
#include "util/util.h"

struct chm_record {
    struct chm_wrap w;
    FILE *file;
    uint64_t seq; /* of the next I/O submitted */
    int broken;   /* -errno of the first failed write */
};

static struct chm_record *record_of(struct chm_wrap *w)
{
    return CHM_CONTAINER(w, struct chm_record, w);
}

static unsigned record_submit(struct chm_medium *m, struct chm_io *const *ios, unsigned n)
{
    struct chm_record *r = record_of(CHM_CONTAINER(m, struct chm_wrap, m));
    uint64_t now_ns = chm_medium_now(m);
    unsigned i;

    for (i = 0; i < n; i++) {
        struct chm_shadow *s = chm_wrap_take(&r->w, ios[i], now_ns);
        if (!s) {
            break;
        }
        s->arg = r->seq++;
        s->due_ns = now_ns; /* the shadow's own submit_ns becomes the inner medium's */
        chm_wrap_forward(&r->w, s);
    }
    chm_wrap_flush(&r->w);
    return i;
}

static void record_finished(struct chm_wrap *w, struct chm_shadow *s)
{
    struct chm_record *r = record_of(w);
    struct chm_trace_line line = {
        .seq = s->arg,
        .submit_ns = s->due_ns,
        .done_ns = s->io.done_ns,
        .off = s->io.off,
        .len = s->io.len,
        .member = s->io.member,
        .res = s->io.res,
        .kind = s->io.kind,
        .flags = s->io.flags,
    };

    if (r->broken == 0) {
        r->broken = chm_trace_write(r->file, &line);
    }
    chm_wrap_give(w, s, s->io.done_ns);
}

static int record_close(struct chm_medium *m, uint64_t deadline_ns)
{
    struct chm_record *r = record_of(CHM_CONTAINER(m, struct chm_wrap, m));
    int rc = chm_wrap_close(&r->w, deadline_ns);

    int closed = chm_trace_close(r->file);

    if (rc == 0) {
        rc = r->broken ? r->broken : closed;
        free(r);
    }
    return rc;
}

static const struct chm_medium_ops record_ops = {
    .submit = record_submit,
    .reap = chm_wrap_reap,
    .now = chm_wrap_now,
    .wake = chm_wrap_wake,
    .close = record_close,
};

int chm_media_record_open(const struct chm_media_args *args, struct chm_medium *inner,
                          struct chm_medium **out, struct chm_error *err)
{
    const char *path = args->opts->trace_record;
    struct chm_record *r = calloc(1, sizeof(*r));
    int rc;

    if (!r || chm_wrap_open(&r->w, inner, &record_ops, record_finished, "trace") != 0) {
        free(r);
        return chm_media_fail(err, -ENOMEM, "no memory for the trace");
    }
    rc = chm_trace_create(path, &inner->caps, &r->file);
    if (rc) {
        chm_wrap_free(&r->w);
        free(r);
        return chm_media_fail(err, rc, "trace %s: %s", path, strerror(-rc));
    }
    *out = &r->w.m;
    return 0;
}
