/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slow.c - how long jobs took, stage by stage, and which took longest.
 *
 * The record has the slowest jobs, slowest first. One that is older than an hour gives way to any
 * newer one, so that a slow start does not hide what is slow now.
 */
#include <errno.h>

#include "store/kv.h"

static const uint64_t RECENT_NS = 3600ull * CHM_SECOND;

static bool is_read(const struct chm_kv_job *j)
{
    return j->job.op == CHM_STORE_GET || j->job.op == CHM_STORE_LEASE;
}

static void count_stages(struct chm_store_stats *t, const struct chm_kv_job *j)
{
    bool put = j->job.op == CHM_STORE_PUT;

    if (j->first_ns) {
        chm_hist_add(put ? &t->put_wait_ns : &t->read_wait_ns, j->first_ns - j->begin_ns);
    }
    if (j->first_ns && j->last_ns) {
        chm_hist_add(put ? &t->put_copy_ns : &t->read_check_ns, j->work_ns);
    }
    if (j->first_ns && j->last_ns && !put) {
        chm_hist_add(&t->read_device_ns, chm_max(j->last_ns, j->first_ns) - j->first_ns);
    }
}

static void count_whole(struct chm_store_stats *t, const struct chm_kv_job *j, uint64_t total_ns)
{
    struct chm_hist *h[] = {
        [CHM_STORE_GET] = &t->get_ns,
        [CHM_STORE_PUT] = &t->put_ns,
        [CHM_STORE_LEASE] = &t->lease_ns,
    };

    if (j->job.op < CHM_COUNT(h) && h[j->job.op]) {
        chm_hist_add(h[j->job.op], total_ns);
    }
}

/* Place of a job in the record, CHM_STORE_SLOW_MAX: none. Those behind it move. */
static uint32_t slow_place(struct chm_store *s, uint64_t total_ns, uint64_t now)
{
    uint32_t n = s->slow_count, out = n, at = 0;

    for (uint32_t i = 0; i < n && n == CHM_STORE_SLOW_MAX; i++) {
        if (s->slow[i].begin_ns + RECENT_NS < now) {
            out = i; /* the last of the old ones */
        }
    }
    while (at < n && s->slow[at].total_ns >= total_ns) {
        at++;
    }
    if (out == CHM_STORE_SLOW_MAX && at == n) {
        return CHM_STORE_SLOW_MAX;
    }
    out = out < CHM_STORE_SLOW_MAX ? out : CHM_STORE_SLOW_MAX - 1;
    if (at <= out) {
        memmove(&s->slow[at + 1], &s->slow[at], (out - at) * sizeof(s->slow[0]));
    } else {
        at--;
        memmove(&s->slow[out], &s->slow[out + 1], (at - out) * sizeof(s->slow[0]));
    }
    s->slow_count = (uint32_t)chm_min(n + 1, CHM_STORE_SLOW_MAX);
    return at;
}

void chm_kv_slow_note(struct chm_store *s, const struct chm_kv_job *j)
{
    uint64_t now = chm_now(s->dev), total_ns = now - j->begin_ns;
    uint32_t at;

    count_whole(&s->stats, j, total_ns);
    if (is_read(j) || j->job.op == CHM_STORE_PUT) {
        count_stages(&s->stats, j);
    }
    at = slow_place(s, total_ns, now);
    if (at == CHM_STORE_SLOW_MAX) {
        return;
    }
    s->slow[at] = (struct chm_store_slow){
        .begin_ns = j->begin_ns,
        .total_ns = total_ns,
        .wait_ns = j->first_ns ? j->first_ns - j->begin_ns : 0,
        .device_ns = j->first_ns && j->last_ns > j->first_ns ? j->last_ns - j->first_ns : 0,
        .work_ns = j->work_ns,
        .bytes = j->bytes,
        .cookie = j->job.cookie,
        .op = j->job.op,
        .n = j->job.n,
        .ok = j->ok,
        .result = j->result,
    };
}

int chm_store_slow(chm_store *s, struct chm_store_slow *out, uint32_t max)
{
    int rc = s && out ? chm_door_check(s->dev) : -EINVAL;
    uint32_t n;

    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    n = (uint32_t)chm_min(s->slow_count, max);
    memcpy(out, s->slow, n * sizeof(*out));
    pthread_mutex_unlock(&s->lock);
    return (int)n;
}
