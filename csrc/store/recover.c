/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover.c - what open makes of the device.
 *
 *   1. both slots of each namespace and index page: the newer right one counts
 *   2. unless closed clean: journal pages from the tail on, as long as numbers and sums chain; a
 *      record that its page includes already is skipped
 *   3. each entry is checked, its space claimed, its key entered; one that contradicts another is
 *      dropped. Entries set by the journal come first, then those of pages of which both slots were
 *      right, then those of pages that had to do with the older slot, which may be out of date
 *   4. parents and recency: by the order pages if clean, else by stamp, with each entry as recent as
 *      its most recent descendant
 *
 * Nothing is written here. So it can be cut off anywhere, and a second try finds the same.
 */
#include <errno.h>
#include <stdlib.h>

#include "store/recover.h"
#include "util/runs.h"

enum { CHUNK_BYTES = 1 << 20 };

/* ---- pages */

static bool is_zero_or_other(const struct chm_store *s, const struct chm_kv_page *p, uint32_t kind)
{
    /* Never written since the format: another store's, or nothing. */
    return p->head.kind != kind || memcmp(p->head.id, s->super.id, sizeof(p->head.id)) != 0;
}

static void take_index(struct chm_store *s, uint32_t number, const struct chm_kv_page *p,
                       uint16_t rank)
{
    uint32_t first = number * CHM_KV_INDEX_ENTRIES;

    for (uint32_t i = 0; i < CHM_KV_INDEX_ENTRIES && first + i < s->max; i++) {
        struct chm_kv_entry *e = chm_kv_at(s, first + i);

        *e = p->entry[i];
        e->state = e->state == 1 ? rank : RANK_NONE;
        if (e->state != RANK_NONE && first + i >= s->touched) {
            s->touched = first + i + 1;
        }
    }
}

static void take_name(struct chm_store *s, uint32_t number, const struct chm_kv_name *name)
{
    if (number >= s->super.max_namespaces || name->used != 1 || name->len == 0 ||
        name->len > CHM_STORE_NAME_MAX) {
        return;
    }
    s->spaces[number].name = *name;
    s->spaces[number].logged = true;
    s->space_count = (uint32_t)chm_max(s->space_count, number + 1);
}

static void take_names(struct chm_store *s, uint32_t number, const struct chm_kv_page *p)
{
    for (uint32_t i = 0; i < CHM_KV_NAMES_RECORDS; i++) {
        take_name(s, number * CHM_KV_NAMES_RECORDS + i, &p->name[i]);
    }
}

/* The two slots of a page, the second `unit` behind the first. */
static void take_page(struct chm_store *s, uint32_t table, uint32_t number, const uint8_t *slots)
{
    struct chm_kv_table *t = &s->table[table];
    const struct chm_kv_page *p[2] = {(const void *)slots, (const void *)(slots + s->unit)};
    bool good[2], bad = false;
    int best;

    for (int i = 0; i < 2; i++) {
        good[i] = chm_kv_page_is_good(s, p[i], t->kind) && p[i]->head.number == number;
        bad = bad || (!good[i] && !is_zero_or_other(s, p[i], t->kind));
    }
    s->info.recovered_damaged += bad;
    if (bad) {
        chm_bits_set(t->dirty, number, 1);
    }
    if (!good[0] && !good[1]) {
        return;
    }
    best = !good[0] || (good[1] && p[1]->head.round > p[0]->head.round);
    s->super.round = chm_max(s->super.round, p[best]->head.round);
    t->seq[number] = p[best]->head.seq;
    if (best) {
        chm_bits_set(t->slot, number, 1);
    }
    if (table == 0) {
        take_index(s, number, p[best], bad ? RANK_OLD : RANK_PAGE);
    } else {
        take_names(s, number, p[best]);
    }
}

static int take_table(struct chm_store *s, uint32_t table, uint32_t pages, uint8_t *buf)
{
    uint32_t step = (uint32_t)chm_max(CHUNK_BYTES / (2 * s->unit), 1);

    for (uint32_t first = 0; first < pages; first += step) {
        uint32_t some = (uint32_t)chm_min(step, pages - first);
        int rc =
            chm_kv_read(s, s->base + chm_kv_table_off(s, table, first, 0), buf, 2 * s->unit * some);

        if (rc < 0) { /* page by page: only what cannot be read is lost */
            memset(buf, 0, 2 * s->unit * some);
            for (uint32_t i = 0; i < 2 * some; i++) {
                rc = chm_kv_read(s, s->base + chm_kv_table_off(s, table, first, i),
                                 buf + i * s->unit, s->unit);
                s->info.recovered_damaged += rc < 0;
            }
        }
        for (uint32_t i = 0; i < some; i++) {
            take_page(s, table, first + i, buf + 2 * s->unit * i);
        }
    }
    return 0;
}

/* ---- journal */

static void replay_put(struct chm_store *s, uint32_t number, const struct chm_kv_entry *e)
{
    *chm_kv_at(s, number) = *e;
    chm_kv_at(s, number)->state = RANK_JOURNAL;
    s->touched = (uint32_t)chm_max(s->touched, number + 1);
}

static void replay_record(struct chm_store *s, const struct chm_kv_record *r, const uint8_t *body,
                          uint64_t seq)
{
    uint32_t page = r->number / CHM_KV_INDEX_ENTRIES;
    struct chm_kv_entry entry;
    struct chm_kv_name name;

    if (r->kind == CHM_KV_NAME && r->bytes == sizeof(*r) + sizeof(name)) {
        memcpy(&name, body, sizeof(name));
        take_name(s, r->number, &name);
        if (r->number < s->super.max_namespaces) {
            chm_kv_table_mark(s, 1, r->number / CHM_KV_NAMES_RECORDS);
        }
        return;
    }
    if (r->number >= s->max || seq <= s->table[0].seq[page]) {
        return;
    }
    chm_kv_table_mark(s, 0, page);
    if (r->kind == CHM_KV_PUT && r->bytes == sizeof(*r) + sizeof(entry)) {
        memcpy(&entry, body, sizeof(entry));
        replay_put(s, r->number, &entry);
    } else if (r->kind == CHM_KV_DELETE) {
        chm_kv_at(s, r->number)->state = RANK_NONE;
    }
    s->info.recovered_records++;
}

static void replay_page(struct chm_store *s, const struct chm_kv_page *p)
{
    struct chm_kv_record r;
    uint32_t at = 0;

    while (at + sizeof(r) <= p->head.count) {
        memcpy(&r, p->bytes + at, sizeof(r));
        if (r.bytes < sizeof(r) || r.bytes > p->head.count - at) {
            return;
        }
        replay_record(s, &r, p->bytes + at + sizeof(r), p->head.seq);
        at += r.bytes;
    }
}

/* Read up to the end of the chain. The journal goes on from there. */
static void replay(struct chm_store *s, uint8_t *buf)
{
    struct chm_kv_journal *j = &s->journal;
    const struct chm_kv_page *p = (const void *)buf;

    j->next = s->super.journal_tail;
    j->prev_sum = s->super.journal_tail_sum;
    if (j->next > 0) {
        j->sums[(j->next - 1) % s->super.journal_pages] = j->prev_sum;
    }
    for (uint32_t i = 0; i < s->super.journal_pages && !s->info.clean; i++) {
        uint64_t off = s->super.journal_off + j->next % s->super.journal_pages * s->unit;

        if (chm_kv_read(s, s->base + off, buf, s->unit) < 0 ||
            !chm_kv_page_is_good(s, p, CHM_KV_JOURNAL) || p->head.seq != j->next ||
            p->head.round != j->prev_sum || p->head.count > sizeof(p->bytes)) {
            break;
        }
        replay_page(s, p);
        s->super.epoch = (uint32_t)chm_max(s->super.epoch, p->head.number);
        j->prev_sum = p->head.sum;
        j->sums[j->next % s->super.journal_pages] = j->prev_sum;
        j->next++;
    }
    j->durable = j->flushing = j->next - 1;
}

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

/* What is no object is free. */
static void gather_free(struct chm_store *s)
{
    s->free_head = CHM_KV_NONE;
    for (uint32_t i = s->touched; i-- > 0;) {
        if (chm_kv_state_of(chm_kv_at(s, i)) != KV_LIVE) {
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
    rc = take_table(s, 1, s->super.names_pages, buf);
    rc = rc < 0
             ? rc
             : take_table(s, 0, (uint32_t)chm_min(s->super.index_high, s->super.index_pages), buf);
    if (rc < 0) {
        return rc;
    }
    replay(s, buf);
    s->names_logged = s->space_count;
    admit_rank(s, RANK_JOURNAL, buf);
    admit_rank(s, RANK_PAGE, buf);
    admit_rank(s, RANK_OLD, buf);
    gather_free(s);
    s->stamp = s->super.stamp;
    return chm_kv_recover_order(s, buf);
}
