/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobs.c - the job table: submit, end, drain, cancel.
 *
 *   FREE -> RUNNING (on the list of its kind) -> ENDED (to be drained) -> FREE
 *
 * A job ends when all its keys have a status; it is told exactly once. `stop` says that it has to
 * end (deadline, cancelled, shut down) and why; the worker carries that out, since reads into
 * buffers of the caller may be in flight.
 *
 * The event descriptor is readable exactly while there are ended jobs.
 */
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "store/kv.h"

static const uint64_t TIMEOUT_NS = 10ull * CHM_SECOND;

int chm_kv_jobs_open(struct chm_store *s)
{
    const struct chm_store_options *o = &s->opt;

    s->jobs = chm_kv_map(s, o->jobs_max * sizeof(*s->jobs));
    s->tasks = chm_kv_map(s, o->keys_max * sizeof(*s->tasks));
    s->xfers = chm_kv_map(s, o->reads_max * sizeof(*s->xfers));
    s->leases = chm_kv_map(s, o->leases_max * sizeof(*s->leases));
    s->heads = chm_kv_map(s, (uint64_t)KV_HEADS * s->head_stride);
    s->put.head = chm_kv_map(s, s->head_stride);
    s->put.entry = CHM_KV_NONE;
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!s->jobs || !s->tasks || !s->xfers || !s->leases || !s->heads || !s->put.head ||
        s->event_fd < 0) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < o->jobs_max; i++) {
        chm_list_push(&s->free_jobs, &s->jobs[i].link);
    }
    for (uint32_t i = 0; i < o->keys_max; i++) {
        chm_list_push(&s->free_tasks, &s->tasks[i].link);
    }
    s->free_task_count = o->keys_max;
    for (uint32_t i = o->reads_max; i-- > 0;) {
        s->xfers[i].next = i + 1 < o->reads_max ? i + 1 : CHM_KV_NONE;
    }
    for (uint32_t i = o->leases_max; i-- > 0;) {
        s->leases[i].entry = CHM_KV_NONE;
        s->leases[i].next_free = i + 1 < o->leases_max ? i + 1 : CHM_KV_NONE;
    }
    return 0;
}

static uint64_t job_id(const struct chm_store *s, const struct chm_kv_job *j)
{
    return (uint64_t)j->gen << 32 | (uint64_t)(j - s->jobs + 1);
}

/* ---- end */

void chm_kv_job_end(struct chm_store *s, struct chm_kv_job *j)
{
    uint64_t one = 1;

    CHM_ASSERT(j->state == KV_JOB_RUNNING && j->open == 0);
    chm_kv_slow_note(s, j);
    chm_list_remove(&j->link);
    j->state = KV_JOB_ENDED;
    chm_list_push(&s->ended, &j->link);
    if (s->stats.jobs_ended++ == 0 && write(s->event_fd, &one, sizeof(one)) < 0) {
        return; /* it is readable as it is */
    }
}

void chm_kv_key_end(struct chm_store *s, struct chm_kv_job *j, uint32_t index, int32_t status)
{
    CHM_ASSERT(j->open > 0);
    j->job.status[index] = status;
    j->ok += status >= 0;
    if (status < 0 && j->result == 0) {
        j->result = status;
    }
    if (--j->open == 0) {
        chm_kv_job_end(s, j);
    }
}

/* ---- time */

static bool list_step(struct chm_store *s, struct chm_link *list, uint64_t now)
{
    bool progress = false;

    for (struct chm_link *l = chm_list_first(list), *next; l; l = next) {
        struct chm_kv_job *j = CHM_CONTAINER(l, struct chm_kv_job, link);

        next = chm_list_next(list, l);
        if (j->stop == 0 && now >= j->deadline_ns) {
            j->stop = -ETIME;
            progress = true;
        }
        if (j->stop && j->job.op == CHM_STORE_PUT) {
            chm_kv_put_stop(s, j);
            progress = true;
        }
    }
    return progress;
}

static void sync_job_end(struct chm_store *s, struct chm_kv_job *j, int rc)
{
    j->result = rc;
    chm_kv_job_end(s, j);
}

static bool syncs_step(struct chm_store *s)
{
    bool progress = false;

    for (struct chm_link *l = chm_list_first(&s->syncs), *next; l; l = next) {
        struct chm_kv_job *j = CHM_CONTAINER(l, struct chm_kv_job, link);
        int rc = s->sync.losses != j->losses ? -EIO : 0;

        next = chm_list_next(&s->syncs, l);
        if (s->sync.durable >= j->target || s->degraded || j->stop) {
            rc = s->sync.durable >= j->target ? rc : s->degraded ? -EIO : j->stop;
            sync_job_end(s, j, rc);
            progress = true;
        }
    }
    return progress;
}

bool chm_kv_jobs_step(struct chm_store *s)
{
    uint64_t now;
    bool progress;

    if (chm_list_empty(&s->puts) && chm_list_empty(&s->reads) && chm_list_empty(&s->syncs)) {
        return false;
    }
    now = chm_now(s->dev);
    progress = list_step(s, &s->puts, now);
    progress = list_step(s, &s->reads, now) || progress;
    progress = list_step(s, &s->syncs, now) || progress;
    return syncs_step(s) || progress;
}

static uint64_t list_next_ns(const struct chm_link *list)
{
    uint64_t next = UINT64_MAX;

    for (const struct chm_link *l = list->next; l != list; l = l->next) {
        const struct chm_kv_job *j = CHM_CONTAINER(l, struct chm_kv_job, link);

        next = j->stop ? next : chm_min(next, j->deadline_ns);
    }
    return next;
}

uint64_t chm_kv_jobs_next_ns(const struct chm_store *s)
{
    uint64_t next = chm_min(list_next_ns(&s->puts), list_next_ns(&s->reads));

    return chm_min(next, list_next_ns(&s->syncs));
}

/* ---- submit */

static bool job_is_sound(const struct chm_store *s, const struct chm_store_job *job)
{
    bool bytes = job->op == CHM_STORE_GET || job->op == CHM_STORE_PUT;

    if (job->op > CHM_STORE_SYNC || job->n > CHM_STORE_KEYS_MAX || job->flags > 15) {
        return false;
    }
    if (job->op == CHM_STORE_SYNC) {
        return job->n == 0;
    }
    return job->n > 0 && job->keys && job->status && job->ns < s->space_count &&
           (!bytes || job->parts) && (job->op != CHM_STORE_LEASE || job->leases);
}

static void submit_delete(struct chm_store *s, struct chm_kv_job *j)
{
    for (uint32_t i = 0; i < j->job.n; i++) {
        uint32_t number = chm_kv_find(s, j->job.ns, &j->job.keys[i]);
        bool there = number != CHM_KV_NONE && chm_kv_visible(chm_kv_at(s, number));

        if (there) {
            s->stats.deleted++;
            chm_kv_entry_remove(s, number);
        }
        chm_kv_key_end(s, j, i, there ? 0 : -ENOENT);
    }
}

static void submit_sync(struct chm_store *s, struct chm_kv_job *j)
{
    j->target = chm_kv_sync_want(s);
    j->losses = s->sync.losses;
    if (j->target == 0) {
        sync_job_end(s, j, s->degraded ? -EIO : 0);
    }
}

static void job_start(struct chm_store *s, struct chm_kv_job *j)
{
    struct chm_link *list[] = {
        [CHM_STORE_GET] = &s->reads,   [CHM_STORE_PUT] = &s->puts,   [CHM_STORE_DELETE] = &s->reads,
        [CHM_STORE_LEASE] = &s->reads, [CHM_STORE_SYNC] = &s->syncs,
    };

    chm_list_push(list[j->job.op], &j->link);
    switch (j->job.op) {
    case CHM_STORE_PUT:
        chm_kv_put_submit(s, j);
        break;
    case CHM_STORE_DELETE:
        submit_delete(s, j);
        break;
    case CHM_STORE_SYNC:
        submit_sync(s, j);
        break;
    default:
        chm_kv_get_submit(s, j);
    }
}

static int submit(struct chm_store *s, const struct chm_store_job *job, uint64_t *id)
{
    struct chm_link *l = chm_list_first(&s->free_jobs);
    bool reads = job->op == CHM_STORE_GET || job->op == CHM_STORE_LEASE;
    struct chm_kv_job *j = l ? CHM_CONTAINER(l, struct chm_kv_job, link) : NULL;

    if (atomic_load(&s->stopping)) {
        return -ESHUTDOWN;
    }
    if (!job_is_sound(s, job)) {
        return -EINVAL;
    }
    if (!j || (reads && job->n > s->free_task_count)) {
        return -EBUSY;
    }
    chm_list_remove(l);
    *j = (struct chm_kv_job){.job = *job,
                             .gen = j->gen + 1 ? j->gen + 1 : 1,
                             .open = job->n,
                             .before = CHM_KV_NONE,
                             .begin_ns = chm_now(s->dev),
                             .state = KV_JOB_RUNNING};
    chm_list_init(&j->link);
    j->deadline_ns = chm_sat_add(j->begin_ns, job->timeout_ns ? job->timeout_ns : TIMEOUT_NS);
    s->stats.jobs++;
    *id = job_id(s, j);
    job_start(s, j);
    return 0;
}

/* Parts in order of their addresses, rising or falling, are compared once each. */
static bool parts_overlap(const struct chm_part *parts, uint32_t n)
{
    uintptr_t low = UINTPTR_MAX, high = 0;

    for (uint32_t i = 0; i < n; i++) {
        uintptr_t from = (uintptr_t)parts[i].data, to = from + parts[i].len;

        if (parts[i].len == 0) {
            continue;
        }
        for (uint32_t k = 0; from < high && to > low && k < i; k++) {
            uintptr_t other = (uintptr_t)parts[k].data;

            if (other < to && from < other + parts[k].len) {
                return true;
            }
        }
        low = from < low ? from : low;
        high = to > high ? to : high;
    }
    return false;
}

/* Does a get name memory twice within a key? Then bytes that were checked would be written over,
 * or a good object be taken for a damaged one. */
static bool any_overlap(const struct chm_store_job *job)
{
    const struct chm_part *parts = job->parts;

    if (job->op != CHM_STORE_GET || !job->nparts || !parts || job->n > CHM_STORE_KEYS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < job->n; parts += job->nparts[i++]) {
        if (parts_overlap(parts, job->nparts[i])) {
            return true;
        }
    }
    return false;
}

int chm_store_submit(chm_store *s, const struct chm_store_job *job, uint64_t *id)
{
    int rc = s && job && id ? chm_door_check(s->dev) : -EINVAL;

    if (rc < 0 || any_overlap(job)) {
        return rc < 0 ? rc : -EINVAL;
    }
    pthread_mutex_lock(&s->lock);
    rc = submit(s, job, id);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0) {
        chm_kv_kick(s);
    }
    return rc;
}

int chm_store_cancel(chm_store *s, uint64_t id)
{
    int rc = s ? chm_door_check(s->dev) : -EINVAL;
    uint64_t index = (id & UINT32_MAX) - 1;

    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    rc = -ESTALE;
    if (index < s->opt.jobs_max && s->jobs[index].gen == id >> 32 &&
        s->jobs[index].state == KV_JOB_RUNNING) {
        s->jobs[index].stop = s->jobs[index].stop ? s->jobs[index].stop : -ECANCELED;
        rc = 0;
    }
    pthread_mutex_unlock(&s->lock);
    chm_kv_kick(s);
    return rc;
}

/* ---- drain */

static uint32_t drain(struct chm_store *s, struct chm_store_done *out, uint32_t max)
{
    uint32_t n = 0;
    uint64_t count;

    for (; n < max && !chm_list_empty(&s->ended); n++) {
        struct chm_kv_job *j = CHM_CONTAINER(chm_list_first(&s->ended), struct chm_kv_job, link);

        out[n] = (struct chm_store_done){.id = job_id(s, j),
                                         .cookie = j->job.cookie,
                                         .n = j->job.n,
                                         .ok = j->ok,
                                         .result = j->result};
        chm_list_remove(&j->link);
        j->state = KV_JOB_FREE;
        chm_list_push(&s->free_jobs, &j->link);
        s->stats.jobs--;
        if (--s->stats.jobs_ended == 0 && read(s->event_fd, &count, sizeof(count)) < 0) {
            continue; /* it was not readable */
        }
    }
    return n;
}

static bool any_ended(const struct chm_store *s, uint64_t arg)
{
    (void)arg;
    return s->stats.jobs_ended > 0;
}

int chm_store_drain(chm_store *s, struct chm_store_done *out, uint32_t max, uint64_t timeout_ns)
{
    int rc = s && out ? chm_door_check(s->dev) : -EINVAL;
    uint32_t n;

    if (rc < 0) {
        return rc;
    }
    rc = chm_kv_wait(s, any_ended, 0, chm_door_deadline(s->dev, timeout_ns));
    pthread_mutex_lock(&s->lock);
    n = drain(s, out, max);
    pthread_mutex_unlock(&s->lock);
    return n > 0 ? (int)n : rc == -EINTR ? rc : 0;
}

int chm_store_event_fd(chm_store *s)
{
    int rc = s ? chm_door_check(s->dev) : -EINVAL;

    return rc < 0 ? rc : s->event_fd;
}
