/* SPDX-License-Identifier: Apache-2.0 */
/* look.c - asking a store: exists, list, information, counters; and evicting by hand. */
#include <errno.h>

#include "store/kv.h"

/* ---- exists */

struct run {
    uint32_t flags;
    uint32_t hits, leading;
    bool whole; /* no miss so far */
};

/* Look up at most KV_STEP_KEYS keys. */
static void exists_some(struct chm_store *s, uint32_t ns, const struct chm_key *keys, uint32_t n,
                        struct run *run, uint8_t *found, uint64_t *lens)
{
    uint32_t numbers[KV_STEP_KEYS];

    chm_kv_find_many(s, ns, keys, n, numbers);
    for (uint32_t i = 0; i < n; i++) {
        const struct chm_kv_entry *e = numbers[i] == CHM_KV_NONE ? NULL : chm_kv_at(s, numbers[i]);
        bool hit = e && chm_kv_visible(e) && (run->whole || !(run->flags & CHM_STORE_RUN));

        run->whole = run->whole && hit;
        run->leading += run->whole;
        run->hits += hit;
        numbers[i] = run->whole ? numbers[i] : CHM_KV_NONE;
        if (found) {
            found[i] = hit;
        }
        if (lens) {
            lens[i] = hit ? e->len : 0;
        }
    }
    if (run->flags & CHM_STORE_TOUCH) {
        s->evict->touch(s, numbers, n);
    }
}

int chm_store_exists(chm_store *s, uint32_t ns, const struct chm_key *keys, uint32_t n,
                     uint32_t flags, uint8_t *found, uint64_t *lens)
{
    struct run run = {.flags = flags, .whole = true};
    int rc = s && (keys || n == 0) ? chm_door_check(s->dev) : -EINVAL;

    if (rc < 0 || flags > 3 || n > INT32_MAX) {
        return rc < 0 ? rc : -EINVAL;
    }
    for (uint32_t first = 0; first < n; first += KV_STEP_KEYS) {
        uint32_t some = (uint32_t)chm_min(KV_STEP_KEYS, n - first);

        pthread_mutex_lock(&s->lock);
        if (ns >= s->space_count || atomic_load(&s->stopping)) {
            pthread_mutex_unlock(&s->lock);
            return ns >= s->space_count ? -EINVAL : -ESHUTDOWN;
        }
        run.hits = 0;
        exists_some(s, ns, keys + first, some, &run, found ? found + first : NULL,
                    lens ? lens + first : NULL);
        s->stats.lookups += some;
        s->stats.lookup_hits += run.hits;
        s->stats.lookup_misses += some - run.hits;
        pthread_mutex_unlock(&s->lock);
    }
    return (int)run.leading;
}

/* ---- list */

static void object_tell(const struct chm_store *s, uint32_t number, struct chm_store_object *out)
{
    const struct chm_kv_entry *e = chm_kv_at(s, number);
    struct chm_kv_where w;

    chm_kv_place_where(s, number, &w);
    *out = (struct chm_store_object){
        .key = e->key,
        .ns = e->ns,
        .has_parent = e->parent != CHM_KV_NONE && chm_kv_visible(chm_kv_at(s, e->parent)),
        .len = e->len,
        .used_bytes = chm_kv_space_bytes(s, e),
        .children = e->children,
        .durable = chm_kv_state_of(e) == KV_LIVE,
        .pins = e->pins,
        .extents = w.extents,
    };
    if (out->has_parent) {
        out->parent = chm_kv_at(s, e->parent)->key;
    }
}

int chm_store_list(chm_store *s, uint64_t *cursor, struct chm_store_object *out, uint32_t max)
{
    int rc = s && cursor && out ? chm_door_check(s->dev) : -EINVAL;
    uint32_t n = 0;

    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    for (; *cursor < s->touched && n < max; ++*cursor) {
        if (chm_kv_visible(chm_kv_at(s, (uint32_t)*cursor))) {
            object_tell(s, (uint32_t)*cursor, &out[n++]);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return (int)n;
}

/* ---- information */

static uint64_t other_memory(const struct chm_store *s)
{
    const struct chm_store_options *o = &s->opt;
    uint64_t bytes = sizeof(*s) + s->touched * sizeof(uint32_t);

    bytes += s->extents.touched * sizeof(struct chm_extent);
    bytes += KV_SPLITS * sizeof(struct chm_kv_split);
    bytes += s->super.max_namespaces * sizeof(struct chm_kv_space);
    bytes += s->super.journal_pages * sizeof(uint64_t) + (uint64_t)KV_UNSAFE * CHM_KV_PAGE;
    bytes += (s->super.index_pages + s->super.names_pages) / 2;
    bytes += o->jobs_max * sizeof(struct chm_kv_job) + o->keys_max * sizeof(struct chm_kv_task);
    bytes += o->reads_max * sizeof(struct chm_kv_xfer);
    bytes += o->leases_max * sizeof(struct chm_kv_lease);
    return bytes + (KV_HEADS + 1) * s->head_stride;
}

int chm_store_info(chm_store *s, struct chm_store_info *out)
{
    int rc = s && out ? chm_door_check(s->dev) : -EINVAL;

    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    *out = s->info;
    memcpy(out->id, s->super.id, sizeof(out->id));
    out->base = s->base;
    out->len = s->super.len;
    out->data_base = s->data;
    out->data_bytes = s->super.data_bytes;
    out->journal_bytes = s->super.journal_pages * s->unit;
    out->version = s->super.version;
    out->max_objects = s->max;
    out->max_namespaces = s->super.max_namespaces;
    out->namespaces = s->space_count;
    out->memory_entries_bytes = (uint64_t)s->touched * sizeof(struct chm_kv_entry);
    out->memory_directory_bytes = s->slot_count * sizeof(uint32_t);
    out->memory_other_bytes = other_memory(s);
    out->degraded = s->degraded;
    out->life_written_bytes = s->life_bytes + s->stats.object_bytes + s->stats.metadata_bytes;
    out->life_open_ns = s->life_open_ns + chm_now(s->dev) - s->opened_ns;
    out->published = s->publish.fd >= 0;
    strncpy(out->eviction, s->evict->name, sizeof(out->eviction) - 1);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int chm_store_stats(chm_store *s, struct chm_store_stats *out)
{
    int rc = s && out ? chm_door_check(s->dev) : -EINVAL;
    const struct chm_kv_sync *y;

    if (rc < 0) {
        return rc;
    }
    y = &s->sync;
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->free_bytes = s->extents.free_bytes;
    out->limbo_bytes = s->limbo_bytes;
    out->largest_free_bytes = chm_extents_largest(&s->extents);
    out->free_extents = s->extents.free.count;
    out->split_objects = s->split_count;
    out->not_durable = (uint64_t)y->fresh.count + y->flushing.count + y->ready.count +
                       y->dying.count + y->recording.count + y->logged.count + y->logging.count;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int64_t chm_store_evict(chm_store *s, uint32_t ns, uint64_t bytes)
{
    int rc = s ? chm_door_check(s->dev) : -EINVAL;
    uint64_t objects = 0;

    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    if (ns != CHM_KV_NONE && ns >= s->space_count) {
        rc = -EINVAL;
    } else {
        chm_kv_evict_bytes(s, ns, bytes, &objects);
    }
    pthread_mutex_unlock(&s->lock);
    chm_kv_kick(s);
    return rc < 0 ? rc : (int64_t)objects;
}
