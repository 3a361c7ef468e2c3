/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media_sync.c - the reference medium: submit() carries each I/O out before it returns.
 *
 * An I/O is done (in the FIFO) from submit() to reap(). Nothing is ever in flight, so reap() waits
 * only to keep its promise about deadlines and wake(). Slow on purpose: every other medium has to
 * give the same bytes and results as this one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "media/clock.h"
#include "media/media.h"
#include "media/posix_io.h"
#include "media/wake.h"
#include "util/util.h"

struct chm_sync {
    struct chm_medium m;
    struct chm_posix posix;
    struct chm_io_fifo done;
    uint32_t held; /* I/Os in done */
    struct chm_wake wake;
};

static struct chm_sync *sync_of(struct chm_medium *m)
{
    return CHM_CONTAINER(m, struct chm_sync, m);
}

static unsigned sync_submit(struct chm_medium *m, struct chm_io *const *ios, unsigned n)
{
    struct chm_sync *s = sync_of(m);
    unsigned i;

    for (i = 0; i < n && s->held < m->caps.inflight_max; i++) {
        struct chm_io *io = ios[i];
        io->submit_ns = chm_clock_now();
        io->res = chm_io_check(&m->caps, io);
        if (io->res == 0) {
            io->res = chm_posix_run(&s->posix, io);
        }
        io->done_ns = chm_clock_now();
        chm_io_fifo_push(&s->done, io);
        s->held++;
    }
    if (s->held > 0) {
        chm_wake_ring(&s->wake);
    }
    return i;
}

static int sync_reap(struct chm_medium *m, struct chm_io **out, unsigned max, uint64_t deadline_ns)
{
    struct chm_sync *s = sync_of(m);
    unsigned n = 0;
    bool asked;

    for (;;) {
        asked = chm_wake_take(&s->wake);
        if (s->held > 0 || asked || deadline_ns == 0 || chm_clock_now() >= deadline_ns) {
            break;
        }
        chm_wake_wait(&s->wake, deadline_ns);
    }
    while (n < max && s->held > 0) {
        out[n++] = chm_io_fifo_pop(&s->done);
        s->held--;
    }
    if (s->held > 0) {
        chm_wake_ring(&s->wake); /* the fd stays readable while there is something to reap */
    }
    return (int)n;
}

static uint64_t sync_now(struct chm_medium *m)
{
    (void)m;
    return chm_clock_now();
}

static void sync_wake(struct chm_medium *m)
{
    chm_wake_ask(&sync_of(m)->wake);
}

static int sync_close(struct chm_medium *m, uint64_t deadline_ns)
{
    struct chm_sync *s = sync_of(m);

    (void)deadline_ns;
    chm_wake_close(&s->wake);
    free(s);
    return 0;
}

static const struct chm_medium_ops sync_ops = {
    .submit = sync_submit,
    .reap = sync_reap,
    .now = sync_now,
    .wake = sync_wake,
    .close = sync_close,
};

int chm_media_sync_open(const struct chm_media_args *args, struct chm_medium **out,
                        struct chm_error *err)
{
    struct chm_sync *s = calloc(1, sizeof(*s));
    int rc;

    if (!s) {
        return chm_media_fail(err, -ENOMEM, "no memory for the sync medium");
    }
    rc = chm_wake_open(&s->wake);
    if (rc) {
        free(s);
        return chm_media_fail(err, rc, "eventfd: %s", strerror(-rc));
    }
    s->m.ops = &sync_ops;
    chm_media_caps(args, "sync", &s->m.caps);
    s->m.caps.event_fd = s->wake.fd;
    chm_posix_init(&s->posix, args);
    *out = &s->m;
    return 0;
}
