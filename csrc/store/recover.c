/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.c - what open makes of the device.
 *
 *   1. both slots of each namespace and index page, entry by entry (recover_pages.c)
 *   2. unless closed clean: the journal from the tail on (recover_journal.c). A record says all
 *      about its entry, so that replaying one that a page includes already does no harm
 *   3. each entry is checked, its space claimed, its key entered; one that contradicts another is
 *      dropped. Entries set by the journal come first, then those of pages, then those that may be
 *      out of date because the newer slot is damaged
 *   4. parents and recency: by the order pages if clean, else by stamp, with each entry as recent
 *      as its most recent descendant (order.c)
 *
 * Nothing is written here. So it can be cut off anywhere, and a second try finds the same.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/recover.h"
#include "util/runs.h"

enum { CHUNK_BYTES = 1 << 20 };

/* ---- entries */

static bool entry_is_sound(const struct chm_store *s, const struct chm_kv_entry *e)
{
    const uint64_t known = (UINT64_C(1) << CHM_KV_PLACE_BITS) - 1 + CHM_KV_HAS_HEAD + CHM_KV_SPLIT;
    bool head = (e->place & CHM_KV_HAS_HEAD) != 0;

    return e->len > 0 && e->len <= KV_OBJECT_MAX && e->ns < s->space_count &&
           s->spaces[e->ns].name.used && !(e->place & ~known) &&
           (head || e->len <= CHM_STORE_CHUNK_BYTES) && (head || !(e->place & CHM_KV_SPLIT)) &&
           chm_kv_find(s, e->ns, &e->key) == CHM_KV_NONE;
}

/* The header of a split object says where the rest is. NULL: it cannot be believed. */
static const struct chm_kv_object_head *split_head(struct chm_store *s,
                                                   const struct chm_kv_entry *e, uint8_t *buf)
{
    uint64_t page = e->place & ((UINT64_C(1) << CHM_KV_PLACE_BITS) - 1);
    uint64_t bytes = chm_kv_head_bytes(s, e->len);

    if (page * CHM_KV_PAGE > s->super.data_bytes ||
        bytes > s->super.data_bytes - page * CHM_KV_PAGE ||
        chm_kv_read(s, s->data + page * CHM_KV_PAGE, buf, bytes) < 0 ||
        chm_sum_once(buf, bytes, chm_kv_seed(e)) != e->sum) {
        s->info.recovered_damaged++;
        return NULL;
    }
    return (const void *)buf;
}

static bool entry_admit(struct chm_store *s, uint32_t number, uint8_t *buf)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);
    const struct chm_kv_object_head *h = NULL;
    uint64_t bytes;

    if (!entry_is_sound(s, e)) {
        return false;
    }
    if (e->place & CHM_KV_SPLIT) {
        h = split_head(s, e, buf);
    }
    if (!chm_kv_place_claim(s, number, h)) {
        return false;
    }
    e->state = KV_LIVE;
    e->children = e->pins = 0;
    chm_kv_directory_add(s, number);
    bytes = chm_kv_space_bytes(s, e);
    s->spaces[e->ns].used_bytes += bytes;
    s->spaces[e->ns].payload_bytes += e->len;
    s->spaces[e->ns].objects++;
    s->stats.used_bytes += bytes;
    s->stats.payload_bytes += e->len;
    s->stats.objects++;
    s->info.recovered_objects++;
    return true;
}

static void admit_rank(struct chm_store *s, uint16_t rank, uint8_t *buf)
{
    for (uint32_t i = 0; i < s->touched; i++) {
        struct chm_kv_entry *e = chm_kv_at(s, i);

        if (e->state == rank && !entry_admit(s, i, buf)) {
            s->info.recovered_dropped++;
            e->state = RANK_NONE;
            chm_kv_table_mark(s, 0, i / CHM_KV_INDEX_ENTRIES);
        }
    }
}

/* What is no object, and is named as a parent, keeps its number: else the next that gets it would
 * be taken for that parent, here or by the next recovery. */
static void gather_ghosts(struct chm_store *s)
{
    for (uint32_t i = 0; i < s->touched && s->evict->chains; i++) {
        uint32_t parent = chm_kv_at(s, i)->parent;
        struct chm_kv_entry *p;

        if (chm_kv_at(s, i)->state != KV_LIVE || parent >= s->max) {
            continue;
        }
        p = chm_kv_at(s, parent);
        if (p->state != KV_LIVE) {
            *p = (struct chm_kv_entry){.parent = CHM_KV_NONE, .state = KV_GHOST};
            s->touched = (uint32_t)chm_max(s->touched, parent + 1);
        }
    }
}

/* What is no object and no ghost is free. */
static void gather_free(struct chm_store *s)
{
    s->free_head = CHM_KV_NONE;
    for (uint32_t i = s->touched; i-- > 0;) {
        uint32_t state = chm_kv_at(s, i)->state;

        if (state != KV_LIVE && state != KV_GHOST) {
            *chm_kv_at(s, i) = (struct chm_kv_entry){.next = s->free_head};
            s->free_head = i;
            s->free_count++;
        }
    }
}

/* ---- all of it */

static void init_spaces(struct chm_store *s)
{
    for (uint32_t i = 0; i < s->super.max_namespaces; i++) {
        s->spaces[i].newest = s->spaces[i].oldest = CHM_KV_NONE;
    }
}

int chm_kv_recover(struct chm_store *s, struct chm_error *err)
{
    uint8_t *buf = chm_kv_map(s, chm_max(CHUNK_BYTES, 2 * s->unit));
    int rc = buf ? 0 : -ENOMEM;

    (void)err;
    if (rc < 0) {
        return rc;
    }
    init_spaces(s);
    chm_kv_recover_pages(s, buf, chm_max(CHUNK_BYTES, 2 * s->unit));
    chm_kv_recover_journal(s, buf);
    s->names_logged = s->space_count;
    admit_rank(s, RANK_JOURNAL, buf);
    admit_rank(s, RANK_PAGE, buf);
    admit_rank(s, RANK_OLD, buf);
    gather_ghosts(s);
    gather_free(s);
    s->stamp = s->super.stamp;
    return chm_kv_recover_order(s, buf);
}
