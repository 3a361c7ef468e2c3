/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entries.c - the life of index entries (states: kv.h), and who is whose parent.
 *
 * Entries are a dense array; a number is given out again only when nothing on the drive speaks of
 * the old object, nobody pins it, and no entry names it as its parent. An entry that is removed
 * while it has children stays as a ghost, so that parent links never point at a stranger.
 *
 * Links are made only where no cycle can come of them: a new entry has no children; one that is
 * adopted later is not an ancestor of its new parent, which is looked up.
 *
 * A removed entry lets go of a visible parent at once, since that may be the next to be evicted:
 * that removal is then recorded later. One whose parent went before it holds on to the number until
 * its own removal is durable, since until then what is on the drive names it.
 */
#include <errno.h>

#include "store/kv.h"

enum {
    ORPHAN_SLICE = 4096,
    ANCESTORS_MAX = 65536, /* looked at before an adoption is given up */
};

/* ---- numbers and lists */

uint32_t chm_kv_entry_take(struct chm_store *s)
{
    uint32_t number = s->free_head;

    if (number != CHM_KV_NONE) {
        s->free_head = chm_kv_at(s, number)->next;
        s->free_count--;
    } else if (s->touched < s->max) {
        number = s->touched++;
    } else {
        return CHM_KV_NONE;
    }
    *chm_kv_at(s, number) =
        (struct chm_kv_entry){.parent = CHM_KV_NONE, .prev = CHM_KV_NONE, .next = CHM_KV_NONE};
    return number;
}

static void entry_free(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    CHM_ASSERT(e->pins == 0 && e->children == 0 && e->parent == CHM_KV_NONE);
    *e = (struct chm_kv_entry){.next = s->free_head};
    s->free_head = number;
    s->free_count++;
}

void chm_kv_list_init(struct chm_kv_list *l)
{
    *l = (struct chm_kv_list){.first = CHM_KV_NONE, .last = CHM_KV_NONE};
}

void chm_kv_list_push(struct chm_store *s, struct chm_kv_list *l, uint32_t number)
{
    s->links[number] = CHM_KV_NONE;
    if (l->first == CHM_KV_NONE) {
        l->first = number;
    } else {
        s->links[l->last] = number;
    }
    l->last = number;
    l->count++;
}

uint32_t chm_kv_list_pop(struct chm_store *s, struct chm_kv_list *l)
{
    uint32_t number = l->first;

    if (number != CHM_KV_NONE) {
        l->first = s->links[number];
        l->last = l->first == CHM_KV_NONE ? CHM_KV_NONE : l->last;
        l->count--;
    }
    return number;
}

void chm_kv_list_join(struct chm_store *s, struct chm_kv_list *to, struct chm_kv_list *from)
{
    if (from->first == CHM_KV_NONE) {
        return;
    }
    if (to->first == CHM_KV_NONE) {
        to->first = from->first;
    } else {
        s->links[to->last] = from->first;
    }
    to->last = from->last;
    to->count += from->count;
    chm_kv_list_init(from);
}

/* ---- parents */

static void set_parent(struct chm_store *s, uint32_t number, uint32_t parent)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);
    uint32_t old = e->parent;

    e->parent = parent;
    if (parent != CHM_KV_NONE) {
        chm_kv_at(s, parent)->children++;
    }
    if (old != CHM_KV_NONE) {
        struct chm_kv_entry *o = chm_kv_at(s, old);

        CHM_ASSERT(o->children > 0);
        if (--o->children == 0 && chm_kv_state_of(o) == KV_GHOST) {
            entry_free(s, old);
        }
    }
}

static bool is_ancestor(const struct chm_store *s, uint32_t number, uint32_t of)
{
    for (int i = 0; i < ANCESTORS_MAX; i++) {
        if (of == number) {
            return true;
        }
        if (of == CHM_KV_NONE) {
            return false;
        }
        of = chm_kv_at(s, of)->parent;
    }
    return true; /* nobody knows: as bad */
}

/* Can it hang on another parent than it does? Not if its own is good, nor in a circle. */
static bool may_adopt(const struct chm_store *s, uint32_t number, uint32_t parent)
{
    const struct chm_kv_entry *e = chm_kv_at(s, number);
    bool good = e->parent != CHM_KV_NONE && chm_kv_visible(chm_kv_at(s, e->parent));

    return !good && number != parent && (e->children == 0 || !is_ancestor(s, number, parent));
}

void chm_kv_adopt(struct chm_store *s, uint32_t number, uint32_t parent)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);
    const struct chm_kv_entry *p = chm_kv_at(s, parent);

    if (!chm_kv_visible(p) || !s->evict->chains) {
        return;
    }
    if (e->parent != parent) {
        if (!may_adopt(s, number, parent)) {
            return;
        }
        set_parent(s, number, parent);
        if (chm_kv_state_of(e) == KV_LIVE) {
            chm_kv_table_mark(s, 0, number / CHM_KV_INDEX_ENTRIES);
        }
    }
    if ((e->state & KV_ORPHAN) && !(p->state & KV_ORPHAN)) {
        e->state &= KV_STATE_MASK;
        s->stats.orphans--;
    }
}

static bool is_lost(const struct chm_kv_entry *e)
{
    return !chm_kv_visible(e) || (e->state & KV_ORPHAN);
}

/* A child of something lost becomes an orphan and the first to go. */
static bool orphan_look(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    if (!chm_kv_visible(e) || (e->state & KV_ORPHAN) || e->parent == CHM_KV_NONE ||
        !is_lost(chm_kv_at(s, e->parent))) {
        return false;
    }
    e->state |= KV_ORPHAN;
    s->stats.orphans++;
    chm_kv_recent_remove(s, number);
    chm_kv_recent_push(s, number, CHM_KV_NONE, true);
    return true;
}

/* Passes over all entries until one finds nothing. */
bool chm_kv_orphans_step(struct chm_store *s)
{
    uint32_t n = 0;

    if (s->orphan_cursor == CHM_KV_NONE) {
        return false;
    }
    for (; n < ORPHAN_SLICE && s->orphan_cursor < s->touched; n++, s->orphan_cursor++) {
        s->orphan_again = orphan_look(s, s->orphan_cursor) || s->orphan_again;
    }
    if (s->orphan_cursor >= s->touched) {
        s->orphan_cursor = s->orphan_again ? 0 : CHM_KV_NONE;
        s->orphan_again = false;
    }
    return true;
}

/* ---- states */

static void count_in(struct chm_store *s, const struct chm_kv_entry *e, bool in)
{
    struct chm_kv_space *space = &s->spaces[e->ns];
    uint64_t one = in ? 1 : UINT64_MAX, len = in ? e->len : 0 - (uint64_t)e->len;

    space->objects += one;
    space->payload_bytes += len;
    s->stats.objects += one;
    s->stats.payload_bytes += len;
}

void chm_kv_entry_publish(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    CHM_ASSERT(e->state == KV_PUTTING);
    e->state = KV_FRESH;
    count_in(s, e, true);
    s->evict->insert(s, number);
    chm_kv_list_push(s, &s->sync.fresh, number);
    s->sync.fresh_bytes += chm_kv_space_bytes(s, e);
}

void chm_kv_entry_abort(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);
    uint64_t bytes = chm_kv_space_bytes(s, e);

    CHM_ASSERT(e->state == KV_PUTTING && e->pins == 0);
    chm_kv_directory_remove(s, number);
    s->spaces[e->ns].used_bytes -= bytes;
    s->stats.used_bytes -= bytes;
    chm_kv_place_give(s, number);
    set_parent(s, number, CHM_KV_NONE);
    e->state = KV_FREE;
    entry_free(s, number);
}

void chm_kv_entry_remove(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);
    uint64_t bytes = chm_kv_space_bytes(s, e);
    uint32_t state = chm_kv_state_of(e);

    CHM_ASSERT(chm_kv_visible(e));
    chm_kv_directory_remove(s, number);
    chm_kv_recent_remove(s, number);
    count_in(s, e, false);
    s->spaces[e->ns].used_bytes -= bytes;
    s->stats.used_bytes -= bytes;
    s->limbo_bytes += bytes;
    s->leaving++;
    s->stats.orphans -= (e->state & KV_ORPHAN) != 0;
    if (e->parent != CHM_KV_NONE && chm_kv_visible(chm_kv_at(s, e->parent))) {
        set_parent(s, number, CHM_KV_NONE);
    }
    if (e->children > 0) {
        s->orphan_cursor = 0;
        s->orphan_again = true;
    }
    if (state == KV_LIVE) {
        e->state = KV_DYING;
        chm_kv_list_push(s, &s->sync.dying, number);
    } else {
        e->state = state == KV_LOGGED ? KV_DOOMED : KV_STALE;
    }
}

void chm_kv_entry_drop(struct chm_store *s, uint32_t number)
{
    if (chm_kv_visible(chm_kv_at(s, number))) {
        s->stats.dropped++;
        chm_kv_entry_remove(s, number);
    }
}

/* RETIRED: give back what can be given back now. */
static void entry_settle(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    if (e->pins > 0) {
        return;
    }
    s->limbo_bytes -= chm_kv_space_bytes(s, e);
    s->leaving--;
    chm_kv_place_give(s, number);
    set_parent(s, number, CHM_KV_NONE);
    e->state = KV_GHOST;
    if (e->children == 0) {
        entry_free(s, number);
    }
}

void chm_kv_entry_retire(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    CHM_ASSERT(chm_kv_state_of(e) == KV_STALE || chm_kv_state_of(e) == KV_GONE);
    e->state = KV_RETIRED;
    entry_settle(s, number);
}

void chm_kv_pin(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    CHM_ASSERT(e->pins < UINT16_MAX);
    e->pins++;
    s->stats.pins++;
}

void chm_kv_unpin(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    CHM_ASSERT(e->pins > 0);
    e->pins--;
    s->stats.pins--;
    if (chm_kv_state_of(e) == KV_RETIRED) {
        entry_settle(s, number);
    }
}
