/* SPDX-License-Identifier: Apache-2.0 */
/* names.c - namespaces: a small table from names to numbers, each with a quota and counts. They are
 * made and never removed; what is in them can be. */
#include <errno.h>

#include "store/kv.h"
#include "util/runs.h"

static uint64_t name_id(const void *name, uint32_t len)
{
    return chm_sum_once(name, len, 0);
}

static uint32_t name_find(const struct chm_store *s, const void *name, uint32_t len)
{
    uint64_t id = name_id(name, len);

    for (uint32_t i = 0; i < s->space_count; i++) {
        const struct chm_kv_name *n = &s->spaces[i].name;

        if (n->id == id && n->len == len && memcmp(n->name, name, len) == 0) {
            return i;
        }
    }
    return CHM_KV_NONE;
}

static int name_new(struct chm_store *s, const void *name, uint32_t len, uint32_t *number)
{
    struct chm_kv_space *space = &s->spaces[s->space_count];

    if (s->space_count >= s->super.max_namespaces) {
        return -ENOSPC;
    }
    *space = (struct chm_kv_space){
        .name = {.quota_bytes = UINT64_MAX, .id = name_id(name, len), .len = len, .used = 1},
        .newest = CHM_KV_NONE,
        .oldest = CHM_KV_NONE,
    };
    memcpy(space->name.name, name, len);
    *number = s->space_count++;
    return 0;
}

/* Its record is to be written (again). */
static void name_changed(struct chm_store *s, uint32_t number)
{
    s->spaces[number].logged = false;
    s->names_logged = (uint32_t)chm_min(s->names_logged, number);
    chm_kv_table_mark(s, 1, number / CHM_KV_NAMES_RECORDS);
    chm_bits_clear(s->table[1].again, number / CHM_KV_NAMES_RECORDS, 1);
}

static int namespace(struct chm_store *s, const void *name, uint32_t len, uint64_t quota,
                     uint32_t *number)
{
    uint32_t found = name_find(s, name, len);
    bool fresh = found == CHM_KV_NONE;
    int rc = fresh && s->degraded ? -EIO : fresh ? name_new(s, name, len, &found) : 0;

    if (rc < 0) {
        return rc;
    }
    if (quota != CHM_STORE_QUOTA_KEEP && quota != s->spaces[found].name.quota_bytes) {
        s->spaces[found].name.quota_bytes = quota;
        fresh = true;
    }
    if (fresh) {
        name_changed(s, found);
    }
    *number = found;
    return 0;
}

int chm_store_namespace(chm_store *s, const void *name, uint32_t len, uint64_t quota_bytes,
                        uint32_t *number)
{
    int rc = s && name && number && len > 0 ? chm_door_check(s->dev) : -EINVAL;

    if (rc < 0 || len > CHM_STORE_NAME_MAX) {
        return rc < 0 ? rc : -ENAMETOOLONG;
    }
    pthread_mutex_lock(&s->lock);
    rc = namespace(s, name, len, quota_bytes, number);
    pthread_mutex_unlock(&s->lock);
    chm_kv_kick(s);
    return rc;
}

int chm_store_namespace_info(chm_store *s, uint32_t number, struct chm_store_namespace_info *out)
{
    int rc = s && out ? chm_door_check(s->dev) : -EINVAL;
    const struct chm_kv_space *space;

    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    space = number < s->space_count ? &s->spaces[number] : NULL;
    if (space) {
        *out = (struct chm_store_namespace_info){
            .id = space->name.id,
            .quota_bytes = space->name.quota_bytes,
            .used_bytes = space->used_bytes,
            .payload_bytes = space->payload_bytes,
            .objects = space->objects,
            .name_len = space->name.len,
        };
        memcpy(out->name, space->name.name, sizeof(out->name));
    }
    pthread_mutex_unlock(&s->lock);
    return space ? 0 : -ENOENT;
}
