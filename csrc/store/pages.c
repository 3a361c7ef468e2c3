/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.c - index and namespace pages: two tables of pages with two slots each.
 *
 * A page is written to the slot that does not hold its newest durable state, at most once between
 * two flushes, and the slots change roles when the flush has landed. So a torn page never costs the
 * older one. Namespace pages, on which much hangs, are written again within the same checkpoint, so
 * that both slots come to hold the same.
 *
 * An index page shows what is durable by the journal up to its seq, no more and no less: an entry
 * whose put record is not known to be durable is not in it, one whose delete record is not is still
 * there.
 */
#include <errno.h>

#include "store/kv.h"
#include "util/runs.h"

static int table_open(struct chm_store *s, struct chm_kv_table *t, uint32_t kind, uint64_t off,
                      uint32_t pages)
{
    uint64_t words = pages / 64 + 1;

    t->kind = kind;
    t->off = off;
    t->pages = pages;
    t->dirty = chm_kv_map(s, words * sizeof(uint64_t));
    t->writing = chm_kv_map(s, words * sizeof(uint64_t));
    t->slot = chm_kv_map(s, words * sizeof(uint64_t));
    t->again = chm_kv_map(s, words * sizeof(uint64_t));
    t->twice = kind == CHM_KV_NAMES;
    return t->dirty && t->writing && t->slot && t->again ? 0 : -ENOMEM;
}

int chm_kv_tables_open(struct chm_store *s)
{
    const struct chm_kv_super *p = &s->super;
    int rc = table_open(s, &s->table[0], CHM_KV_INDEX, p->index_off, p->index_pages);

    return rc < 0 ? rc : table_open(s, &s->table[1], CHM_KV_NAMES, p->names_off, p->names_pages);
}

void chm_kv_table_mark(struct chm_store *s, uint32_t table, uint32_t number)
{
    chm_bits_set(s->table[table].dirty, number, 1);
}

uint64_t chm_kv_table_off(const struct chm_store *s, uint32_t table, uint32_t number, uint32_t slot)
{
    return s->table[table].off + (2 * (uint64_t)number + slot) * s->unit;
}

static bool is_durable(const struct chm_kv_entry *e)
{
    uint32_t state = chm_kv_state_of(e);

    return state == KV_LIVE || state == KV_DYING || state == KV_GONE;
}

static void build_index(const struct chm_store *s, uint32_t number, struct chm_kv_page *p)
{
    uint32_t first = number * CHM_KV_INDEX_ENTRIES;

    for (uint32_t i = 0; i < CHM_KV_INDEX_ENTRIES && first + i < s->max; i++) {
        bool there = first + i < s->touched && is_durable(chm_kv_at(s, first + i));

        chm_kv_image(s, first + i, there, s->check.round, &p->entry[i]);
    }
}

static void build_names(const struct chm_store *s, uint32_t number, struct chm_kv_page *p)
{
    uint32_t first = number * CHM_KV_NAMES_RECORDS;

    for (uint32_t i = 0; i < CHM_KV_NAMES_RECORDS && first + i < s->space_count; i++) {
        p->name[i] = s->spaces[first + i].name;
        chm_kv_name_seal(s, first + i, &p->name[i]);
    }
}

void chm_kv_table_build(const struct chm_store *s, uint32_t table, uint32_t number,
                        struct chm_kv_page *p)
{
    memset(p, 0, sizeof(*p));
    if (table == 0) {
        build_index(s, number, p);
    } else {
        build_names(s, number, p);
    }
    p->head.seq = s->journal.durable;
    p->head.round = s->check.round;
    chm_kv_page_seal(s, p, s->table[table].kind, number);
}
