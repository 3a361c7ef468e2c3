/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover_pages.c - index and namespace pages, as open finds them.
 *
 * Of the two slots of a page the newer counts, entry by entry: each entry carries a sum and the
 * round of the checkpoint that wrote it, so a damaged page still gives what is not damaged in it.
 * An entry of the newer slot that is damaged, or, since a page may be torn, of an older round, is
 * looked for in both slots if the checkpoint that wrote the newer one never ended: the power failed
 * on the way, and the journal has everything since. Else what is found is out of date, and the
 * object is lost.
 */
#include "store/recover.h"
#include "util/runs.h"

struct slot {
    const struct chm_kv_page *p;
    bool whole; /* the page's sum is right */
    bool known; /* something in it is of this store */
    uint32_t round;
};

static bool is_newer(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) > 0;
}

static bool item_is_good(const struct chm_store *s, uint32_t kind, uint32_t number, uint32_t i,
                         const struct slot *slot)
{
    if (slot->whole) {
        return true;
    }
    return kind == CHM_KV_INDEX
               ? chm_kv_image_is_good(s, number * CHM_KV_INDEX_ENTRIES + i, &slot->p->entry[i])
               : chm_kv_name_is_good(s, number * CHM_KV_NAMES_RECORDS + i, &slot->p->name[i]);
}

static uint32_t items_of(uint32_t kind)
{
    return kind == CHM_KV_INDEX ? CHM_KV_INDEX_ENTRIES : CHM_KV_NAMES_RECORDS;
}

/* A page whose sum is wrong: do the parts say anything? */
static void look_into(const struct chm_store *s, uint32_t kind, uint32_t number, struct slot *slot)
{
    for (uint32_t i = 0; i < items_of(kind); i++) {
        if (!item_is_good(s, kind, number, i, slot)) {
            continue;
        }
        if (kind == CHM_KV_INDEX &&
            (!slot->known || is_newer(slot->p->entry[i].prev, slot->round))) {
            slot->round = slot->p->entry[i].prev;
        }
        slot->known = true;
    }
    if (slot->known && kind == CHM_KV_NAMES) {
        slot->round = (uint32_t)slot->p->head.round;
    }
}

static struct slot slot_look(const struct chm_store *s, uint32_t kind, uint32_t number,
                             const struct chm_kv_page *p)
{
    struct slot slot = {.p = p};

    slot.whole = chm_kv_page_is_good(s, p, kind) && p->head.number == number;
    slot.known = slot.whole;
    slot.round = slot.whole ? (uint32_t)p->head.round : 0;
    if (!slot.whole) {
        look_into(s, kind, number, &slot);
    }
    return slot;
}

/* It holds bytes, but none that count: damaged beyond recognition, or of an older store. */
static bool is_strange(const struct slot *slot)
{
    return !slot->known && slot->p->head.sum != 0;
}

static void take_entry(struct chm_store *s, uint32_t number, const struct chm_kv_entry *image,
                       uint16_t rank)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    if (image->state != 1) {
        return;
    }
    *e = *image;
    e->state = rank;
    s->touched = (uint32_t)chm_max(s->touched, number + 1);
}

/* Of a page that is torn: what is left in the slot from before, or what the other slot says. */
static const struct chm_kv_entry *better(const struct chm_store *s, uint32_t number, uint32_t i,
                                         const struct chm_kv_entry *left, const struct slot *older)
{
    static const struct chm_kv_entry NONE = {0};
    const struct chm_kv_entry *other = &older->p->entry[i];

    if (!older->known || !item_is_good(s, CHM_KV_INDEX, number, i, older)) {
        other = NULL;
    }
    if (left && other) {
        return is_newer(left->prev, other->prev) ? left : other;
    }
    return left ? left : other ? other : &NONE;
}

static void take_index(struct chm_store *s, uint32_t number, const struct slot *newer,
                       const struct slot *older)
{
    uint32_t first = number * CHM_KV_INDEX_ENTRIES;
    bool unfinished = is_newer(newer->round, (uint32_t)s->super.round);
    uint16_t rank = is_strange(older) ? RANK_OLD : RANK_PAGE;

    for (uint32_t i = 0; i < CHM_KV_INDEX_ENTRIES && first + i < s->max; i++) {
        const struct chm_kv_entry *image = &newer->p->entry[i];
        bool good = item_is_good(s, CHM_KV_INDEX, number, i, newer);

        if (good && image->prev == newer->round) {
            take_entry(s, first + i, image, rank);
        } else if (unfinished) {
            take_entry(s, first + i, better(s, number, i, good ? image : NULL, older), RANK_OLD);
        }
    }
}

void chm_kv_recover_name(struct chm_store *s, uint32_t number, const struct chm_kv_name *name)
{
    if (number >= s->super.max_namespaces || name->used != 1 || name->len == 0 ||
        name->len > CHM_STORE_NAME_MAX) {
        return;
    }
    s->spaces[number].name = *name;
    s->spaces[number].logged = true;
    s->space_count = (uint32_t)chm_max(s->space_count, number + 1);
}

static void take_names(struct chm_store *s, uint32_t number, const struct slot *newer,
                       const struct slot *older)
{
    uint32_t first = number * CHM_KV_NAMES_RECORDS;

    for (uint32_t i = 0; i < CHM_KV_NAMES_RECORDS; i++) {
        if (item_is_good(s, CHM_KV_NAMES, number, i, newer)) {
            chm_kv_recover_name(s, first + i, &newer->p->name[i]);
        } else if (older->known && item_is_good(s, CHM_KV_NAMES, number, i, older)) {
            chm_kv_recover_name(s, first + i, &older->p->name[i]);
        }
    }
}

/* The two slots of a page, the second `unit` behind the first. */
static void take_page(struct chm_store *s, uint32_t table, uint32_t number, const uint8_t *bytes,
                      uint64_t *round)
{
    struct chm_kv_table *t = &s->table[table];
    struct slot slot[2];
    int best;

    for (int i = 0; i < 2; i++) {
        slot[i] = slot_look(s, t->kind, number, (const void *)(bytes + (uint64_t)i * s->unit));
        if (slot[i].known && !slot[i].whole) {
            s->info.recovered_damaged++;
            chm_bits_set(t->dirty, number, 1);
        }
    }
    best = !slot[0].known || (slot[1].known && is_newer(slot[1].round, slot[0].round));
    if (!slot[best].known) {
        return;
    }
    /* Rounds are counted in 64 bits; what is seen are the low halves. */
    if (is_newer(slot[best].round, (uint32_t)*round)) {
        *round += slot[best].round - (uint32_t)*round;
    }
    if (best) {
        chm_bits_set(t->slot, number, 1);
    }
    if (table == 0) {
        take_index(s, number, &slot[best], &slot[!best]);
    } else {
        take_names(s, number, &slot[best], &slot[!best]);
    }
}

/* Page by page, after a read of many failed: only what cannot be read is lost. */
static void read_each(struct chm_store *s, uint32_t table, uint32_t first, uint32_t n, uint8_t *buf)
{
    memset(buf, 0, 2 * s->unit * n);
    for (uint32_t i = 0; i < 2 * n; i++) {
        uint64_t addr = s->base + chm_kv_table_off(s, table, first, i);

        if (chm_kv_read(s, addr, buf + i * s->unit, s->unit) < 0) {
            memset(buf + i * s->unit, 0, s->unit);
            s->info.recovered_damaged++;
        }
    }
}

static void take_table(struct chm_store *s, uint32_t table, uint32_t pages, uint8_t *buf,
                       uint64_t bytes, uint64_t *round)
{
    uint32_t step = (uint32_t)chm_max(bytes / (2 * s->unit), 1);

    for (uint32_t first = 0; first < pages; first += step) {
        uint32_t some = (uint32_t)chm_min(step, pages - first);
        uint64_t addr = s->base + chm_kv_table_off(s, table, first, 0);

        if (chm_kv_read(s, addr, buf, 2 * s->unit * some) < 0) {
            read_each(s, table, first, some, buf);
        }
        for (uint32_t i = 0; i < some; i++) {
            take_page(s, table, first + i, buf + 2 * s->unit * i, round);
        }
    }
}

void chm_kv_recover_pages(struct chm_store *s, uint8_t *buf, uint64_t bytes)
{
    uint64_t round = s->super.round;

    take_table(s, 1, s->super.names_pages, buf, bytes, &round);
    take_table(s, 0, (uint32_t)chm_min(s->super.index_high, s->super.index_pages), buf, bytes,
               &round);
    s->check.last_round = round;
}
