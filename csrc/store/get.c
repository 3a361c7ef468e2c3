/* SPDX-License-Identifier: Apache-2.0 */
/*
 * get.c - gets and leases: a task for each key, which owns a pin on the entry until it ends.
 *
 *   START -> (HEAD: the header is read) -> READ -> ended
 *                       any error, deadline, cancel -> ENDING: wait for reads into the caller's
 *                       memory that were cancelled -> ended
 *
 * Payload is read in transfers, cut at chunks, extents and parts. A transfer goes into the caller's
 * memory itself, if alignment allows it, else through the window. Chunks are checked in order,
 * once, when all their bytes are where the caller will see them. A key is told only when nothing
 * writes its memory any more.
 *
 * Submitting sends the first reads from the caller's thread; everything else is the worker's. Only
 * the worker ends tasks, so it may look at one without the lock. The transfers themselves: xfer.c.
 */
#include <errno.h>

#include "store/get.h"

/* ---- begin and end of a task */

/* Header buffers that were left come back when the device has let go of them. */
static void heads_take_back(struct chm_store *s)
{
    for (uint32_t i = 0; i < KV_HEADS && s->heads_left != 0; i++) {
        uint64_t bit = UINT64_C(1) << i;

        if ((s->heads_left & bit) && chm_door_is_gone(s->head_read[i].cell, s->head_read[i].gen)) {
            s->heads_left &= ~bit;
            s->heads_used &= ~bit;
        }
    }
}

bool chm_kv_heads_gone(const struct chm_store *s, uint64_t arg)
{
    bool gone = true;

    (void)arg;
    for (uint32_t i = 0; i < KV_HEADS; i++) {
        gone = gone && (!(s->heads_left >> i & 1) ||
                        chm_door_is_gone(s->head_read[i].cell, s->head_read[i].gen));
    }
    return gone;
}

static int32_t head_take(struct chm_store *s)
{
    heads_take_back(s);
    if (s->heads_used == UINT64_MAX) {
        return -1;
    }
    for (int32_t i = 0;; i++) {
        if (!(s->heads_used >> i & 1)) {
            s->heads_used |= UINT64_C(1) << i;
            return i;
        }
    }
}

static void head_give(struct chm_store *s, struct chm_kv_task *t)
{
    if (t->head >= 0) {
        s->heads_used &= ~(UINT64_C(1) << t->head);
        t->head = -1;
    }
}

/* Its read goes on, into memory that is the store's: nobody has to wait for that. */
static void head_leave(struct chm_store *s, struct chm_kv_task *t)
{
    struct chm_kv_cancelled *read = &s->head_read[t->head];

    chm_door_cancel(s->dev, t->head_req, &read->cell, &read->gen);
    s->heads_left |= UINT64_C(1) << t->head;
    t->head_req = 0;
    t->head = -1;
}

static uint8_t *head_of(const struct chm_store *s, const struct chm_kv_task *t)
{
    return s->heads + (uint64_t)t->head * s->head_stride;
}

static bool has_head(const struct chm_store *s, const struct chm_kv_task *t)
{
    return (chm_kv_at(s, t->entry)->place & CHM_KV_HAS_HEAD) != 0;
}

static bool is_dropped_for(int32_t error)
{
    return error != -EAGAIN && error != -ECANCELED && error != -ESHUTDOWN && error != -E2BIG &&
           error != -EMFILE;
}

static void count_error(struct chm_store *s, int32_t error)
{
    s->stats.get_errors++;
    switch (error) {
    case -EBADMSG:
        s->stats.errors_checksum++;
        break;
    case -ETIME:
        s->stats.errors_late++;
        break;
    case -EMSGSIZE:
        s->stats.errors_size++;
        break;
    case -ECANCELED:
    case -ESHUTDOWN:
        s->stats.errors_cancelled++;
        break;
    case -EAGAIN:
    case -E2BIG:
    case -EMFILE:
        s->stats.errors_room++;
        break;
    default:
        s->stats.errors_io++;
    }
}

static void task_free(struct chm_store *s, struct chm_kv_task *t)
{
    head_give(s, t);
    chm_list_remove(&t->link);
    chm_list_push(&s->free_tasks, &t->link);
    s->free_task_count++;
}

static void task_fail(struct chm_store *s, struct chm_kv_task *t)
{
    struct chm_kv_job *j = t->job;
    uint32_t index = t->index;
    int32_t error = t->error;

    CHM_ASSERT(t->xfer_first == CHM_KV_NONE && t->head_req == 0);
    if (is_dropped_for(error) && !(j->job.flags & CHM_STORE_KEEP)) {
        chm_kv_entry_drop(s, t->entry);
    }
    if (t->lease) {
        chm_kv_lease_free(s, t->lease);
        j->job.leases[index] = (struct chm_store_lease){0};
    }
    chm_kv_unpin(s, t->entry);
    count_error(s, error);
    s->stats.get_open--;
    task_free(s, t);
    chm_kv_key_end(s, j, index, error);
}

static void task_succeed(struct chm_store *s, struct chm_kv_task *t)
{
    struct chm_kv_job *j = t->job;
    const struct chm_kv_entry *e = chm_kv_at(s, t->entry);
    uint32_t index = t->index;

    s->stats.hits++;
    s->stats.hit_bytes += e->len;
    s->stats.get_open--;
    j->bytes += e->len;
    if (t->lease) { /* which keeps the pin, and the transfers */
        s->stats.leases++;
        s->stats.leased_bytes += e->len;
        chm_kv_lease_keep(s, t);
    } else {
        chm_kv_xfers_free(s, t);
        chm_kv_unpin(s, t->entry);
    }
    task_free(s, t);
    chm_kv_key_end(s, j, index, 0);
}

/* ---- the header */

static int head_begin(struct chm_store *s, struct chm_kv_task *t)
{
    const struct chm_kv_entry *e = chm_kv_at(s, t->entry);
    struct chm_kv_where w;
    struct chm_read item;

    t->head = head_take(s);
    if (t->head < 0) {
        return -EAGAIN;
    }
    chm_kv_place_where(s, t->entry, &w);
    item = (struct chm_read){.addr = w.extent[0].addr,
                             .len = chm_kv_head_bytes(s, e->len),
                             .buf = head_of(s, t)};
    if (chm_read_issue(s->dev, &item, 1) != 1) {
        head_give(s, t);
        return item.status == -EBUSY ? -EAGAIN : item.status;
    }
    t->head_req = item.req;
    return 0;
}

static int head_check(const struct chm_store *s, const struct chm_kv_task *t)
{
    const struct chm_kv_entry *e = chm_kv_at(s, t->entry);
    uint64_t bytes = chm_kv_head_bytes(s, e->len);

    return chm_sum_once(head_of(s, t), bytes, chm_kv_seed(e)) == e->sum ? 0 : -EBADMSG;
}

/* True: something happened. */
static bool head_step(struct chm_store *s, struct chm_kv_task *t)
{
    int rc = 0;

    if (t->state == TASK_START) {
        if (has_head(s, t)) {
            rc = head_begin(s, t);
            if (rc == -EAGAIN) {
                return false;
            }
            t->error = rc;
        }
        t->state = TASK_READ;
        return true;
    }
    if (t->head_req && chm_kv_read_ended(s, t->head_req, &rc)) {
        chm_release(s->dev, t->head_req);
        t->head_req = 0;
        t->error = t->error ? t->error : rc;
        if (rc == 0 && t->error == 0) {
            t->error = head_check(s, t);
        }
        return true;
    }
    return false;
}

/* ---- checking chunks */

static uint64_t chunk_end(const struct chm_store *s, const struct chm_kv_task *t)
{
    return chm_min(t->checked + CHM_STORE_CHUNK_BYTES, chm_kv_at(s, t->entry)->len);
}

/* Without the lock. */
static int chunk_check(const struct chm_store *s, const struct chm_kv_task *t)
{
    const struct chm_kv_entry *e = chm_kv_at(s, t->entry);
    uint64_t chunk = t->checked / CHM_STORE_CHUNK_BYTES, want = e->sum;
    struct chm_sum sum;

    if (t->head >= 0) {
        memcpy(&want, head_of(s, t) + CHM_KV_HEAD_SUMS + chunk * sizeof(want), sizeof(want));
    }
    chm_sum_begin(&sum, chm_kv_seed(e) + chunk);
    chm_kv_parts_sum(t, t->checked, chunk_end(s, t) - t->checked, &sum);
    return chm_sum_end(&sum) == want ? 0 : -EBADMSG;
}

static bool check_step(struct chm_store *s, struct chm_kv_task *t)
{
    bool progress = false;

    while (t->error == 0 && t->head_req == 0 && t->checked < t->len && t->done >= chunk_end(s, t)) {
        uint64_t begin_ns = chm_now(s->dev);
        int rc;

        t->job->last_ns = begin_ns; /* what it needed was there */
        pthread_mutex_unlock(&s->lock);
        rc = chunk_check(s, t);
        pthread_mutex_lock(&s->lock);
        t->job->work_ns += chm_now(s->dev) - begin_ns;
        t->checked = chunk_end(s, t);
        t->error = rc;
        progress = true;
    }
    return progress;
}

/* ---- a task's turn */

static bool task_ending(struct chm_store *s, struct chm_kv_task *t)
{
    if (t->state != TASK_ENDING) {
        t->state = TASK_ENDING;
        chm_kv_xfers_cancel(s, t);
        if (t->head_req) {
            head_leave(s, t);
        }
    }
    if (!chm_kv_xfers_gone(s, t)) {
        return false;
    }
    task_fail(s, t);
    return true;
}

static bool task_step(struct chm_store *s, struct chm_kv_task *t)
{
    bool progress;

    if (t->job->stop && t->error == 0) {
        /* Late for want of window space is no fault of the object. */
        t->error = t->job->stop == -ETIME && chm_kv_xfers_no_room(s, t) ? -EAGAIN : t->job->stop;
    }
    if (t->error == 0) {
        progress = head_step(s, t);
        progress = chm_kv_xfers_send(s, t) || progress;
        progress = chm_kv_xfers_poll(s, t) || progress;
        progress = check_step(s, t) || progress;
        if (t->error == 0 && t->checked == t->len && t->head_req == 0) {
            task_succeed(s, t);
            return true;
        }
        if (t->error == 0) {
            return progress;
        }
    }
    return task_ending(s, t);
}

bool chm_kv_get_step(struct chm_store *s)
{
    bool progress = false;

    for (struct chm_link *l = chm_list_first(&s->active), *next; l; l = next) {
        /* Others may come behind it meanwhile, but only this thread takes any off. */
        next = chm_list_next(&s->active, l);
        progress = task_step(s, CHM_CONTAINER(l, struct chm_kv_task, link)) || progress;
    }
    return progress;
}

/* ---- submit */

static uint64_t key_bytes(const struct chm_kv_task *t)
{
    uint64_t len = 0;

    for (uint32_t i = 0; i < t->nparts; i++) {
        len = chm_sat_add(len, t->parts[i].len);
    }
    return len;
}

static struct chm_kv_task *task_new(struct chm_store *s, struct chm_kv_job *j, uint32_t index,
                                    uint32_t number)
{
    struct chm_link *l = chm_list_first(&s->free_tasks);
    struct chm_kv_task *t = CHM_CONTAINER(l, struct chm_kv_task, link);

    CHM_ASSERT(l);
    chm_list_remove(l);
    s->free_task_count--;
    *t = (struct chm_kv_task){.job = j,
                              .index = index,
                              .entry = number,
                              .len = chm_kv_at(s, number)->len,
                              .xfer_first = CHM_KV_NONE,
                              .xfer_last = CHM_KV_NONE,
                              .head = -1};
    chm_list_init(&t->link);
    return t;
}

static void key_error(struct chm_store *s, struct chm_kv_job *j, uint32_t index, int32_t error)
{
    s->stats.get_open--;
    if (error == -ENOENT) {
        s->stats.misses++;
    } else {
        count_error(s, error);
    }
    chm_kv_key_end(s, j, index, error);
}

/* Its reads are on their way when this returns, as far as there is room. */
static void key_submit(struct chm_store *s, struct chm_kv_job *j, uint32_t index, uint32_t number,
                       const struct chm_part *parts, uint32_t nparts)
{
    struct chm_kv_task *t;

    if (j->job.lens) {
        j->job.lens[index] = number == CHM_KV_NONE ? 0 : chm_kv_at(s, number)->len;
    }
    if (j->job.op == CHM_STORE_LEASE) {
        j->job.leases[index] = (struct chm_store_lease){0};
    }
    if (number == CHM_KV_NONE) {
        key_error(s, j, index, -ENOENT);
        return;
    }
    t = task_new(s, j, index, number);
    t->parts = parts;
    t->nparts = nparts;
    if (j->job.op == CHM_STORE_GET && key_bytes(t) != t->len) {
        task_free(s, t);
        key_error(s, j, index, -EMSGSIZE);
        return;
    }
    chm_kv_pin(s, number);
    chm_list_push(&s->active, &t->link);
    if (j->job.op == CHM_STORE_LEASE) {
        t->error = chm_kv_lease_begin(s, t);
    }
    if (t->error == 0) {
        head_step(s, t);
        chm_kv_xfers_send(s, t);
    }
}

void chm_kv_get_submit(struct chm_store *s, struct chm_kv_job *j)
{
    uint32_t numbers[KV_STEP_KEYS], part = 0, n = j->job.n;

    s->stats.gets += n;
    s->stats.get_open += n;
    j->open++; /* so that it does not end on the way */
    for (uint32_t first = 0; first < n; first += KV_STEP_KEYS) {
        uint32_t some = (uint32_t)chm_min(KV_STEP_KEYS, n - first);

        chm_kv_find_many(s, j->job.ns, &j->job.keys[first], some, numbers);
        for (uint32_t i = 0; i < some; i++) {
            bool there = numbers[i] != CHM_KV_NONE && chm_kv_visible(chm_kv_at(s, numbers[i]));

            numbers[i] = there ? numbers[i] : CHM_KV_NONE;
        }
        s->evict->touch(s, numbers, some);
        for (uint32_t i = 0; i < some; i++) {
            uint32_t nparts = j->job.nparts ? j->job.nparts[first + i] : 1;

            key_submit(s, j, first + i, numbers[i], j->job.parts + part, nparts);
            part += nparts;
        }
    }
    if (--j->open == 0) {
        chm_kv_job_end(s, j);
    }
}
