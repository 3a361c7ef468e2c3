/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.c - parents and recency across a close or a crash.
 *
 * A clean close writes the entry numbers from the newest to the oldest, namespace by namespace, to
 * the order pages. After a crash they are sorted by stamp, newest first, and each is preceded by
 * those of its ancestors that have not been placed: so no child is newer than its parent.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/recover.h"

/* ---- parents */

/* A parent that is no object, or lies in another namespace, is none; the child then is an orphan.
 * A cycle, which only damage can make, is cut where it is met. */
static bool parent_is_lost(const struct chm_store *s, const struct chm_kv_entry *e)
{
    return e->parent >= s->touched || chm_kv_state_of(chm_kv_at(s, e->parent)) != KV_LIVE ||
           chm_kv_at(s, e->parent)->ns != e->ns;
}

static void link_parents(struct chm_store *s)
{
    for (uint32_t i = 0; i < s->touched; i++) {
        struct chm_kv_entry *e = chm_kv_at(s, i);

        if (chm_kv_state_of(e) != KV_LIVE || e->parent == CHM_KV_NONE) {
            continue;
        }
        if (!s->evict->chains || parent_is_lost(s, e)) {
            if (s->evict->chains) {
                e->state |= KV_ORPHAN;
                s->stats.orphans++;
            }
            e->parent = CHM_KV_NONE;
        }
    }
    for (uint32_t i = 0; i < s->touched; i++) {
        const struct chm_kv_entry *e = chm_kv_at(s, i);

        if (chm_kv_state_of(e) == KV_LIVE && e->parent != CHM_KV_NONE) {
            chm_kv_at(s, e->parent)->children++;
        }
    }
}

/* ---- recency after a crash */

enum { PLACED = 1, ON_PATH = 2 };

struct sorter {
    struct chm_store *s;
    uint32_t *path; /* from an entry up to the first ancestor that is placed */
    uint8_t *marks;
};

static int by_stamp(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

static void cut_parent(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    chm_kv_at(s, e->parent)->children--;
    e->parent = CHM_KV_NONE;
}

/* Put an entry at the old end, behind all its ancestors. */
static void place_one(struct sorter *o, uint32_t number)
{
    struct chm_store *s = o->s;
    uint32_t depth = 0, *path = o->path;

    for (uint32_t at = number; at != CHM_KV_NONE && !(o->marks[at] & PLACED);
         at = chm_kv_at(s, at)->parent) {
        uint32_t parent = chm_kv_at(s, at)->parent;

        o->marks[at] |= ON_PATH;
        path[depth++] = at;
        if (parent != CHM_KV_NONE && !(o->marks[parent] & PLACED) && (o->marks[parent] & ON_PATH)) {
            cut_parent(s, at);
        }
    }
    while (depth-- > 0) {
        chm_kv_recent_push(s, path[depth], CHM_KV_NONE, true);
        o->marks[path[depth]] = PLACED;
    }
}

/* Which of two is newer is told by their distance from the newest stamp of all, which may have
 * wrapped. */
static uint32_t newest_stamp(const struct chm_store *s)
{
    uint32_t newest = s->super.stamp;

    for (uint32_t i = 0; i < s->touched; i++) {
        const struct chm_kv_entry *e = chm_kv_at(s, i);

        if (chm_kv_state_of(e) == KV_LIVE && (int32_t)(e->stamp - newest) > 0) {
            newest = e->stamp;
        }
    }
    return newest;
}

static int order_by_stamp(struct chm_store *s)
{
    struct sorter o = {.s = s};
    uint64_t *keys = malloc((s->touched + 1ull) * sizeof(*keys));
    uint32_t n = 0, newest = newest_stamp(s);

    o.path = malloc((s->touched + 1ull) * sizeof(*o.path));
    o.marks = calloc(s->touched + 1ull, 1);
    if (!keys || !o.path || !o.marks) {
        free(keys);
        free(o.path);
        free(o.marks);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < s->touched; i++) {
        if (chm_kv_state_of(chm_kv_at(s, i)) == KV_LIVE) {
            uint32_t age = newest - chm_kv_at(s, i)->stamp;

            keys[n++] = (uint64_t)(UINT32_MAX - age) << 32 | i;
        }
    }
    qsort(keys, n, sizeof(*keys), by_stamp);
    for (uint32_t i = 0; i < n; i++) {
        if (!(o.marks[(uint32_t)keys[i]] & PLACED)) {
            place_one(&o, (uint32_t)keys[i]);
        }
    }
    s->stamp = newest;
    free(keys);
    free(o.path);
    free(o.marks);
    return 0;
}

/* ---- recency after a clean close */

/* The lists as they were, or false: the order pages are not what they should be. */
static bool order_by_pages(struct chm_store *s, uint8_t *buf, uint8_t *marks)
{
    const struct chm_kv_page *p = (const void *)buf;
    uint32_t left = s->super.order_count;

    if (left != s->stats.objects) {
        return false;
    }
    for (uint32_t i = 0; left > 0; i++) {
        uint32_t n = (uint32_t)chm_min(left, CHM_KV_ORDER_NUMBERS);

        if (i >= s->super.order_pages ||
            chm_kv_read(s, s->base + s->super.order_off + i * s->unit, buf, s->unit) < 0 ||
            !chm_kv_page_is_good(s, p, CHM_KV_ORDER) || p->head.number != i ||
            p->head.round != s->super.round || p->head.count != n) {
            return false;
        }
        for (uint32_t k = 0; k < n; k++) {
            uint32_t number = p->order[k];

            if (number >= s->touched || marks[number] ||
                chm_kv_state_of(chm_kv_at(s, number)) != KV_LIVE) {
                return false;
            }
            marks[number] = 1;
            chm_kv_recent_push(s, number, CHM_KV_NONE, true);
        }
        left -= n;
    }
    return true;
}

static void forget_order(struct chm_store *s)
{
    for (uint32_t i = 0; i < s->space_count; i++) {
        s->spaces[i].newest = s->spaces[i].oldest = CHM_KV_NONE;
    }
}

static void orphans_last(struct chm_store *s)
{
    for (uint32_t i = 0; i < s->touched && s->stats.orphans > 0; i++) {
        if (chm_kv_at(s, i)->state == (KV_LIVE | KV_ORPHAN)) {
            chm_kv_recent_remove(s, i);
            chm_kv_recent_push(s, i, CHM_KV_NONE, true);
        }
    }
}

int chm_kv_recover_order(struct chm_store *s, uint8_t *buf)
{
    int rc;

    uint8_t *marks = calloc(s->touched + 1ull, 1);
    bool done;

    if (!marks) {
        return -ENOMEM;
    }
    link_parents(s);
    s->orphan_cursor = s->stats.orphans > 0 ? 0 : CHM_KV_NONE;
    done = s->info.clean && order_by_pages(s, buf, marks);
    free(marks);
    if (done) {
        return 0;
    }
    forget_order(s);
    rc = order_by_stamp(s);
    orphans_last(s);
    return rc;
}

/* ---- close */

int chm_kv_save_order(struct chm_store *s)
{
    struct chm_kv_page page = {0};
    uint32_t number = CHM_KV_NONE, space = 0, n = 0;
    uint64_t saved = 0;
    int rc = 0;

    while (rc == 0 && saved < s->stats.objects) {
        while (number == CHM_KV_NONE) {
            CHM_ASSERT(space < s->space_count);
            number = s->spaces[space++].newest;
        }
        page.order[page.head.count++] = number;
        saved++;
        number = chm_kv_at(s, number)->next;
        if (page.head.count == CHM_KV_ORDER_NUMBERS || saved == s->stats.objects) {
            page.head.round = s->check.last_round + 1; /* the checkpoint that comes now */
            chm_kv_page_seal(s, &page, CHM_KV_ORDER, n);
            rc = chm_kv_write_page_wait(s, s->super.order_off + n * s->unit, &page);
            n++;
            memset(&page, 0, sizeof(page));
        }
    }
    s->super.order_count = rc == 0 ? (uint32_t)saved : 0;
    return rc;
}
