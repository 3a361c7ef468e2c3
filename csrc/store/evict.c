/* SPDX-License-Identifier: Apache-2.0 */
/*
 * evict.c - who goes first: policies, and keeping space free ahead of need.
 *
 * Each namespace has one recency list of its visible entries; across namespaces the tail with the
 * oldest stamp goes.
 *
 * prefix-tail: a child is always older in the list than its parent. A new entry goes right behind
 * its parent; a touch moves an entry and all its ancestors to the front, the topmost in front, or,
 * if an ancestor was moved in this very batch, right behind that one. So the end of the list has no
 * children, and taking it never breaks a chain. Orphans (descendants of something lost) are put at
 * the end and may go in any order: they are of no use.
 * lru: a touch moves an entry, and nothing else. fifo: nothing moves.
 */
#include "store/kv.h"

enum {
    LOOK_MAX = 4096,  /* entries in use passed over in one search for a victim */
    AHEAD_MAX = 64,   /* evictions in one turn of the worker */
    AHEAD_SHARE = 16, /* of the data space is the most that is kept free for the write buffer */
};

/* ---- the list */

void chm_kv_recent_push(struct chm_store *s, uint32_t number, uint32_t before, bool oldest)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);
    struct chm_kv_space *space = &s->spaces[e->ns];

    /* prev is newer, next is older. `before`: the newer neighbour; none: an end. */
    if (before != CHM_KV_NONE) {
        e->prev = before;
        e->next = chm_kv_at(s, before)->next;
    } else {
        e->prev = oldest ? space->oldest : CHM_KV_NONE;
        e->next = oldest ? CHM_KV_NONE : space->newest;
    }
    if (e->prev != CHM_KV_NONE) {
        chm_kv_at(s, e->prev)->next = number;
    } else {
        space->newest = number;
    }
    if (e->next != CHM_KV_NONE) {
        chm_kv_at(s, e->next)->prev = number;
    } else {
        space->oldest = number;
    }
}

void chm_kv_recent_remove(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);
    struct chm_kv_space *space = &s->spaces[e->ns];

    if (e->prev != CHM_KV_NONE) {
        chm_kv_at(s, e->prev)->next = e->next;
    } else {
        space->newest = e->next;
    }
    if (e->next != CHM_KV_NONE) {
        chm_kv_at(s, e->next)->prev = e->prev;
    } else {
        space->oldest = e->prev;
    }
    e->prev = e->next = CHM_KV_NONE;
}

static void to_front(struct chm_store *s, uint32_t number, uint32_t before)
{
    chm_kv_recent_remove(s, number);
    chm_kv_recent_push(s, number, before, false);
    chm_kv_at(s, number)->stamp = s->stamp;
}

/* ---- policies */

static void insert_front(struct chm_store *s, uint32_t number)
{
    chm_kv_at(s, number)->stamp = ++s->stamp;
    chm_kv_recent_push(s, number, CHM_KV_NONE, false);
}

static void prefix_insert(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    if (e->parent == CHM_KV_NONE || !chm_kv_visible(chm_kv_at(s, e->parent))) {
        insert_front(s, number);
        return;
    }
    e->stamp = chm_kv_at(s, e->parent)->stamp;
    chm_kv_recent_push(s, number, e->parent, false);
}

/* Can the walk to the ancestors go on to this one? A lost one ends it. */
static bool goes_on(const struct chm_store *s, uint32_t number)
{
    return number != CHM_KV_NONE && chm_kv_visible(chm_kv_at(s, number));
}

static void prefix_touch_one(struct chm_store *s, uint32_t number)
{
    uint32_t anchor = number;

    while (goes_on(s, anchor) && chm_kv_at(s, anchor)->stamp != s->stamp) {
        anchor = chm_kv_at(s, anchor)->parent;
    }
    anchor = goes_on(s, anchor) ? anchor : CHM_KV_NONE;
    while (goes_on(s, number) && number != anchor) {
        to_front(s, number, anchor);
        number = chm_kv_at(s, number)->parent;
    }
}

/* The deepest first: its ancestors are then done. */
static void prefix_touch(struct chm_store *s, const uint32_t *numbers, uint32_t n)
{
    s->stamp++;
    while (n-- > 0) {
        if (numbers[n] != CHM_KV_NONE) {
            prefix_touch_one(s, numbers[n]);
        }
    }
}

static void lru_touch(struct chm_store *s, const uint32_t *numbers, uint32_t n)
{
    s->stamp++;
    for (uint32_t i = 0; i < n; i++) {
        if (numbers[i] != CHM_KV_NONE) {
            to_front(s, numbers[i], CHM_KV_NONE);
        }
    }
}

static void fifo_touch(struct chm_store *s, const uint32_t *numbers, uint32_t n)
{
    (void)s;
    (void)numbers;
    (void)n;
}

const struct chm_kv_evict *chm_kv_evict_of(const char *name)
{
    static const struct chm_kv_evict policies[] = {
        {"prefix-tail", true, prefix_insert, prefix_touch},
        {"lru", false, insert_front, lru_touch},
        {"fifo", false, insert_front, fifo_touch},
    };

    for (size_t i = 0; i < CHM_COUNT(policies); i++) {
        if (!name || strcmp(name, policies[i].name) == 0) {
            return &policies[i];
        }
    }
    return NULL;
}

/* ---- victims */

static bool may_go(const struct chm_store *s, const struct chm_kv_entry *e)
{
    return e->pins == 0 && (!s->evict->chains || e->children == 0 || (e->state & KV_ORPHAN));
}

/* The oldest of a namespace that may go. */
static uint32_t victim_of(const struct chm_store *s, const struct chm_kv_space *space)
{
    uint32_t number = space->oldest;

    for (int i = 0; i < LOOK_MAX && number != CHM_KV_NONE; i++) {
        if (may_go(s, chm_kv_at(s, number))) {
            return number;
        }
        number = chm_kv_at(s, number)->prev;
    }
    return CHM_KV_NONE;
}

static bool is_older(const struct chm_store *s, uint32_t a, uint32_t b)
{
    const struct chm_kv_entry *x = chm_kv_at(s, a), *y = chm_kv_at(s, b);

    if ((x->state ^ y->state) & KV_ORPHAN) {
        return (x->state & KV_ORPHAN) != 0;
    }
    return (int32_t)(x->stamp - y->stamp) < 0;
}

static uint32_t victim(const struct chm_store *s, uint32_t ns)
{
    uint32_t best = CHM_KV_NONE;

    if (ns != CHM_KV_NONE) {
        return victim_of(s, &s->spaces[ns]);
    }
    for (uint32_t i = 0; i < s->space_count; i++) {
        uint32_t number = victim_of(s, &s->spaces[i]);

        if (number != CHM_KV_NONE && (best == CHM_KV_NONE || is_older(s, number, best))) {
            best = number;
        }
    }
    return best;
}

static uint64_t evict_one(struct chm_store *s, uint32_t ns)
{
    uint32_t number = victim(s, ns);
    uint64_t bytes = number == CHM_KV_NONE ? 0 : chm_kv_space_bytes(s, chm_kv_at(s, number));

    if (bytes > 0) {
        s->stats.evicted++;
        s->stats.evicted_bytes += bytes;
        chm_kv_entry_remove(s, number);
    }
    return bytes;
}

bool chm_kv_evict_one(struct chm_store *s, uint32_t ns)
{
    return evict_one(s, ns) > 0;
}

uint64_t chm_kv_evict_bytes(struct chm_store *s, uint32_t ns, uint64_t bytes, uint64_t *objects)
{
    uint64_t gone = 0, one;

    while (gone < bytes && (one = evict_one(s, ns)) > 0) {
        gone += one;
        *objects += 1;
    }
    return gone;
}

/* Space that is free, or will be by itself. */
static uint64_t coming(const struct chm_store *s)
{
    return s->extents.free_bytes + s->limbo_bytes;
}

/* What eviction keeps free. Space comes back when the record of an eviction is durable, which
 * takes a flush of the write buffer: so at least as much as that holds, lest puts wait for it. */
static uint64_t keep_bytes(const struct chm_store *s)
{
    uint64_t data = s->super.data_bytes;

    if (s->opt.free_percent == 0) {
        return 0;
    }
    return chm_max(data / 100 * s->opt.free_percent,
                   chm_min(s->dev->fw->wbuf.bytes, data / AHEAD_SHARE));
}

void chm_kv_evict_ahead(struct chm_store *s)
{
    uint64_t keep = keep_bytes(s);
    uint32_t keep_entries = s->max / 100 * s->opt.free_percent;

    for (int i = 0; i < AHEAD_MAX; i++) {
        uint32_t entries = s->max - s->touched + s->free_count + s->leaving;

        if ((coming(s) >= keep && entries >= keep_entries) || !chm_kv_evict_one(s, CHM_KV_NONE)) {
            break;
        }
    }
    if (s->limbo_bytes > 0 && s->extents.free_bytes < keep / 4) {
        s->sync.hurry = true;
    }
}
