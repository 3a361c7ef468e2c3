/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.c - who drives a store: its one thread, or the caller of a stepped device.
 *
 * A turn does each kind of work once, a bounded amount of it; when a turn found nothing to do, the
 * worker sleeps until the device has ended something, a caller has submitted something (both ring
 * the device's bell), or a time is due.
 */
#include <errno.h>
#include <sys/prctl.h>

#include "media/thread.h"
#include "store/kv.h"

enum { OVERDUE_NS = 100000 };

bool chm_kv_pump(struct chm_store *s)
{
    bool progress;

    pthread_mutex_lock(&s->lock);
    progress = chm_kv_jobs_step(s);
    progress = chm_kv_sync_step(s) || progress;
    progress = chm_kv_get_step(s) || progress;
    progress = chm_kv_put_step(s) || progress;
    chm_kv_evict_ahead(s);
    progress = chm_kv_orphans_step(s) || progress;
    progress = chm_kv_check_step(s) || progress;
    pthread_mutex_unlock(&s->lock);
    chm_kv_publish_step(s);
    return progress;
}

uint64_t chm_kv_next_ns(const struct chm_store *s)
{
    uint64_t next = chm_min(chm_kv_jobs_next_ns(s), chm_kv_sync_next_ns(s));

    return chm_min(next, chm_kv_put_next_ns(s));
}

static uint64_t next_ns(struct chm_store *s)
{
    uint64_t next;

    pthread_mutex_lock(&s->lock);
    next = chm_kv_next_ns(s);
    pthread_mutex_unlock(&s->lock);
    return next;
}

static void *worker_main(void *arg)
{
    struct chm_store *s = arg;

    prctl(PR_SET_NAME, "chm-store");
    while (!atomic_load(&s->ending)) {
        uint32_t bell = chm_door_bell(s->dev);

        if (!chm_kv_pump(s)) {
            chm_door_listen(s->dev, bell, chm_min(next_ns(s), s->publish.next_ns));
        } else if (atomic_load(&s->waiters) > 0) {
            chm_door_bell_ring(s->dev);
        }
    }
    return NULL;
}

int chm_kv_worker_start(struct chm_store *s)
{
    int rc = chm_thread_create(&s->thread, worker_main, s);

    s->threaded = rc == 0;
    return rc;
}

void chm_kv_worker_stop(struct chm_store *s)
{
    if (s->threaded) {
        atomic_store(&s->ending, true);
        chm_door_bell_ring(s->dev);
        pthread_join(s->thread, NULL);
        s->threaded = false;
    }
}

void chm_kv_kick(struct chm_store *s)
{
    if (s->threaded) {
        chm_door_bell_ring(s->dev);
    }
}

static bool holds(struct chm_store *s, bool (*cond)(const struct chm_store *s, uint64_t arg),
                  uint64_t arg)
{
    bool yes;

    pthread_mutex_lock(&s->lock);
    yes = cond(s, arg);
    pthread_mutex_unlock(&s->lock);
    return yes;
}

/* Let the device run until it ended something, a time of the store is due, or until_ns. False:
 * neither can happen. */
static bool step_device(struct chm_store *s, uint64_t until_ns)
{
    struct chm_fw *fw = s->dev->fw;
    uint64_t due = next_ns(s);

    if (fw->dead || (chm_min(due, until_ns) == UINT64_MAX && chm_fw_stuck(fw))) {
        return false;
    }
    /* What is overdue could not be done: try again when some time has passed. */
    due = chm_max(due, chm_now(s->dev) + OVERDUE_NS);
    chm_step(s->dev, chm_min(until_ns, due));
    return true;
}

static int wait_stepping(struct chm_store *s, bool (*cond)(const struct chm_store *s, uint64_t arg),
                         uint64_t arg, uint64_t deadline_ns)
{
    for (;;) {
        while (chm_kv_pump(s)) {
        }
        if (holds(s, cond, arg)) {
            return 0;
        }
        if (chm_now(s->dev) >= deadline_ns || !step_device(s, deadline_ns)) {
            return -ETIMEDOUT;
        }
    }
}

int chm_kv_wait(struct chm_store *s, bool (*cond)(const struct chm_store *s, uint64_t arg),
                uint64_t arg, uint64_t deadline_ns)
{
    int rc = 0;

    if (!s->threaded) {
        return wait_stepping(s, cond, arg, deadline_ns);
    }
    atomic_fetch_add(&s->waiters, 1);
    for (;;) {
        uint32_t bell = chm_door_bell(s->dev);

        if (holds(s, cond, arg)) {
            rc = 0;
            break;
        }
        if (rc == -EINTR || chm_now(s->dev) >= deadline_ns) {
            rc = rc == -EINTR ? rc : -ETIMEDOUT;
            break;
        }
        rc = chm_door_listen(s->dev, bell, deadline_ns);
    }
    atomic_fetch_sub(&s->waiters, 1);
    return rc;
}

int chm_store_step(chm_store *s, uint64_t until_ns)
{
    int rc = s ? chm_door_check(s->dev) : -EINVAL;

    if (rc < 0 || s->threaded) {
        return rc < 0 ? rc : -EPERM;
    }
    while (chm_kv_pump(s)) {
    }
    if (until_ns > 0) {
        step_device(s, until_ns);
        while (chm_kv_pump(s)) {
        }
    }
    return (int)s->stats.jobs_ended;
}
