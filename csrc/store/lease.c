/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - leases: objects staged whole into the window, kept there until they are given back.
 *
 *   unused -> being made (by a task, see get.c) -> held -> unused
 *
 * A lease keeps the pin of its entry and the requests of its window space. A handle is (gen << 32)
 * | (index + 1); gen moves on when it is given back.
 */
#include <errno.h>

#include "store/get.h"

int chm_kv_lease_begin(struct chm_store *s, struct chm_kv_task *t)
{
    struct chm_store_lease *out = &t->job->job.leases[t->index];
    uint32_t index = s->free_lease;

    *out = (struct chm_store_lease){0};
    if (chm_round_up(t->len, s->unit) > s->dev->fw->window.bytes) {
        return -E2BIG;
    }
    if (index >= s->opt.leases_max) {
        return -EMFILE;
    }
    t->lease = &s->leases[index];
    s->free_lease = t->lease->next_free;
    t->lease->entry = t->entry;
    t->lease->n = 0;
    t->lease->gen = t->lease->gen + 1 ? t->lease->gen + 1 : 1;
    t->parts = out->piece;
    t->nparts = 0;
    out->len = t->len;
    return 0;
}

void chm_kv_lease_keep(struct chm_store *s, struct chm_kv_task *t)
{
    struct chm_kv_lease *l = t->lease;

    for (uint32_t i = t->xfer_first; i != CHM_KV_NONE; i = s->xfers[i].next) {
        l->req[l->n++] = s->xfers[i].req;
    }
    chm_kv_xfers_free(s, t);
    t->job->job.leases[t->index].id = (uint64_t)l->gen << 32 | (uint64_t)(l - s->leases + 1);
}

void chm_kv_lease_free(struct chm_store *s, struct chm_kv_lease *l)
{
    l->entry = CHM_KV_NONE;
    l->next_free = s->free_lease;
    s->free_lease = (uint32_t)(l - s->leases);
}

static bool release_one(struct chm_store *s, uint64_t id)
{
    uint64_t index = (id & UINT32_MAX) - 1;
    struct chm_kv_lease *l = index < s->opt.leases_max ? &s->leases[index] : NULL;

    if (!l || l->entry == CHM_KV_NONE || l->gen != id >> 32 || l->n == 0) {
        return false;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        chm_release(s->dev, l->req[i]);
    }
    chm_kv_unpin(s, l->entry);
    s->stats.leases--;
    chm_kv_lease_free(s, l);
    return true;
}

int chm_store_release(chm_store *s, const uint64_t *ids, uint32_t n)
{
    int done = 0, rc = s && (ids || n == 0) ? chm_door_check(s->dev) : -EINVAL;

    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < n; i++) {
        done += release_one(s, ids[i]);
    }
    pthread_mutex_unlock(&s->lock);
    chm_kv_kick(s);
    return done;
}
