/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media_threads.c - the fallback where io_uring is not to be had: a few threads that block for us.
 *
 *     submit() -> queued -> active (a worker has it) -> done -> reap()
 *
 * One mutex guards both queues and the counts; it is never held during I/O. Workers sleep on a
 * condition, reap() on the eventfd, so that a signal handler can wake it too. Workers take no
 * signals: those are for the program's own threads.
 *
 * close() forgets what is queued and waits for what is active; if that does not end in time, the
 * threads, the medium and whatever they hold stay for good.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "media/clock.h"
#include "media/media.h"
#include "media/posix_io.h"
#include "media/thread.h"
#include "media/wake.h"
#include "util/util.h"

enum { WORKERS_MIN = 4, WORKERS_MAX = 8 };

struct chm_threads {
    struct chm_medium m;
    struct chm_posix posix;
    struct chm_wake wake;
    pthread_mutex_t lock;
    pthread_cond_t work;  /* something is queued, or stop */
    pthread_cond_t quiet; /* active became 0 */
    struct chm_io_fifo queued, done;
    uint32_t held;   /* accepted and not reaped */
    uint32_t active; /* in the hands of workers */
    uint32_t ready;  /* in done */
    bool stop;
    unsigned workers;
    pthread_t worker[WORKERS_MAX];
};

static struct chm_threads *threads_of(struct chm_medium *m)
{
    return CHM_CONTAINER(m, struct chm_threads, m);
}

/* Finished: into done, in the order in which the lock was got, which done_ns agrees with. */
static void worker_done(struct chm_threads *t, struct chm_io *io)
{
    io->done_ns = chm_clock_now();
    chm_io_fifo_push(&t->done, io);
    t->ready++;
    if (t->ready == 1) {
        chm_wake_ring(&t->wake);
    }
}

static void *worker_main(void *arg)
{
    struct chm_threads *t = arg;

    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->queued.head && !t->stop) {
            pthread_cond_wait(&t->work, &t->lock);
        }
        if (t->stop) {
            break;
        }
        struct chm_io *io = chm_io_fifo_pop(&t->queued);
        t->active++;
        pthread_mutex_unlock(&t->lock);
        if (io->res == 0) {
            io->res = chm_posix_run(&t->posix, io);
        }
        pthread_mutex_lock(&t->lock);
        t->active--;
        worker_done(t, io);
        if (t->active == 0) {
            pthread_cond_signal(&t->quiet);
        }
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static unsigned threads_submit(struct chm_medium *m, struct chm_io *const *ios, unsigned n)
{
    struct chm_threads *t = threads_of(m);
    uint64_t now = chm_clock_now();
    unsigned i;

    pthread_mutex_lock(&t->lock);
    for (i = 0; i < n && t->held < m->caps.inflight_max; i++) {
        struct chm_io *io = ios[i];
        io->submit_ns = now;
        io->res = chm_io_check(&m->caps, io); /* not 0: a worker passes it on untouched */
        chm_io_fifo_push(&t->queued, io);
        t->held++;
        pthread_cond_signal(&t->work);
    }
    pthread_mutex_unlock(&t->lock);
    return i;
}

/* Take up to max from done. The eventfd stays readable exactly while something is left. */
static unsigned threads_take(struct chm_threads *t, struct chm_io **out, unsigned max, bool *asked)
{
    unsigned n = 0;

    pthread_mutex_lock(&t->lock);
    while (n < max && t->ready > 0) {
        out[n++] = chm_io_fifo_pop(&t->done);
        t->ready--;
        t->held--;
    }
    *asked = chm_wake_take(&t->wake);
    if (t->ready > 0) {
        chm_wake_ring(&t->wake);
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}

static int threads_reap(struct chm_medium *m, struct chm_io **out, unsigned max,
                        uint64_t deadline_ns)
{
    struct chm_threads *t = threads_of(m);

    for (;;) {
        bool asked;
        unsigned n = threads_take(t, out, max, &asked);
        if (n > 0 || asked || deadline_ns == 0 || chm_clock_now() >= deadline_ns) {
            return (int)n;
        }
        chm_wake_wait(&t->wake, deadline_ns);
    }
}

static uint64_t threads_now(struct chm_medium *m)
{
    (void)m;
    return chm_clock_now();
}

static void threads_wake(struct chm_medium *m)
{
    chm_wake_ask(&threads_of(m)->wake);
}

/* ------------------------------------------------------------------ the ends */

static struct timespec to_timespec(uint64_t ns)
{
    uint64_t far = chm_min(ns, UINT64_C(1) << 62);

    return (struct timespec){
        .tv_sec = (time_t)(far / CHM_SECOND),
        .tv_nsec = (long)(far % CHM_SECOND),
    };
}

static void workers_stop(struct chm_threads *t)
{
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
}

static void threads_free(struct chm_threads *t)
{
    for (unsigned i = 0; i < t->workers; i++) {
        pthread_join(t->worker[i], NULL);
    }
    pthread_cond_destroy(&t->quiet);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    chm_wake_close(&t->wake);
    free(t);
}

static int threads_close(struct chm_medium *m, uint64_t deadline_ns)
{
    struct chm_threads *t = threads_of(m);
    struct timespec until = to_timespec(deadline_ns);
    int rc = 0;

    workers_stop(t);
    pthread_mutex_lock(&t->lock);
    while (t->active > 0 && rc == 0) {
        rc = pthread_cond_timedwait(&t->quiet, &t->lock, &until);
    }
    rc = t->active > 0 ? -ETIMEDOUT : 0;
    pthread_mutex_unlock(&t->lock);
    if (rc == 0) {
        threads_free(t);
        return 0;
    }
    for (unsigned i = 0; i < t->workers; i++) {
        pthread_detach(t->worker[i]);
    }
    return rc;
}

static const struct chm_medium_ops threads_ops = {
    .submit = threads_submit,
    .reap = threads_reap,
    .now = threads_now,
    .wake = threads_wake,
    .close = threads_close,
};

static int workers_start(struct chm_threads *t)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned want =
        (unsigned)chm_min(chm_max((uint64_t)(cpus > 0 ? cpus : 1), WORKERS_MIN), WORKERS_MAX);
    int rc = 0;

    while (t->workers < want && rc == 0) {
        rc = chm_thread_create(&t->worker[t->workers], worker_main, t);
        t->workers += rc == 0;
    }
    return t->workers > 0 ? 0 : rc; /* fewer than wanted is slower, not wrong */
}

static void locks_init(struct chm_threads *t)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->quiet, &attr);
    pthread_condattr_destroy(&attr);
}

int chm_media_threads_open(const struct chm_media_args *args, struct chm_medium **out,
                           struct chm_error *err)
{
    struct chm_threads *t = calloc(1, sizeof(*t));
    int rc;

    if (!t) {
        return chm_media_fail(err, -ENOMEM, "no memory for the threads medium");
    }
    rc = chm_wake_open(&t->wake);
    if (rc) {
        free(t);
        return chm_media_fail(err, rc, "eventfd: %s", strerror(-rc));
    }
    t->m.ops = &threads_ops;
    chm_media_caps(args, "threads", &t->m.caps);
    t->m.caps.event_fd = t->wake.fd;
    chm_posix_init(&t->posix, args);
    locks_init(t);
    rc = workers_start(t);
    if (rc) {
        threads_free(t);
        return chm_media_fail(err, rc, "cannot start I/O threads: %s", strerror(-rc));
    }
    *out = &t->m;
    return 0;
}
