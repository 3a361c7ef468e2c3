/* SPDX-License-Identifier: Apache-2.0 */
/* where.c - the device addresses of objects, for whoever places requests and registers regions. */
#include <errno.h>

#include "store/kv.h"

static void tell(const struct chm_store *s, uint32_t number, struct chm_store_place *out)
{
    const struct chm_kv_entry *e = chm_kv_at(s, number);
    struct chm_kv_where w;

    chm_kv_place_where(s, number, &w);
    *out = (struct chm_store_place){.addr = w.extent[0].addr, .len = e->len, .extents = w.extents};
    if (e->place & CHM_KV_HAS_HEAD) {
        out->addr += chm_kv_head_bytes(s, e->len);
    }
}

/* At most KV_STEP_KEYS keys. */
static uint32_t where_some(struct chm_store *s, uint32_t ns, const struct chm_key *keys, uint32_t n,
                           struct chm_store_place *out)
{
    uint32_t numbers[KV_STEP_KEYS], found = 0;

    chm_kv_find_many(s, ns, keys, n, numbers);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (struct chm_store_place){0};
        if (numbers[i] != CHM_KV_NONE && chm_kv_visible(chm_kv_at(s, numbers[i]))) {
            tell(s, numbers[i], &out[i]);
            found++;
        }
    }
    return found;
}

int chm_store_where(chm_store *s, uint32_t ns, const struct chm_key *keys, uint32_t n,
                    struct chm_store_place *out)
{
    int rc = s && ((keys && out) || n == 0) ? chm_door_check(s->dev) : -EINVAL;
    uint32_t found = 0;

    if (rc < 0 || n > INT32_MAX) {
        return rc < 0 ? rc : -EINVAL;
    }
    for (uint32_t first = 0; first < n; first += KV_STEP_KEYS) {
        pthread_mutex_lock(&s->lock);
        rc = ns >= s->space_count ? -EINVAL : atomic_load(&s->stopping) ? -ESHUTDOWN : 0;
        if (rc == 0) {
            found += where_some(s, ns, keys + first, (uint32_t)chm_min(KV_STEP_KEYS, n - first),
                                out + first);
        }
        pthread_mutex_unlock(&s->lock);
        if (rc < 0) {
            return rc;
        }
    }
    return (int)found;
}
