/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_edit.h - from the bytes of a fuzzer to a damaged store: edits of its pages, and, in every
 * second case, sums made right again, so that what stands behind the sums is reached too.
 *
 * An input is two bytes that choose the image and whether sums are made again, and then edits of
 * eight bytes each: which page, where in it, what to do, and a value.
 */
#ifndef CHM_TESTS_FUZZ_EDIT_H
#define CHM_TESTS_FUZZ_EDIT_H

#include "store/kv_rig.h"

enum { FUZZ_EDITS_MAX = 24, FUZZ_AREAS_MAX = 8 };

enum fuzz_target {
    FUZZ_SUPER = 1, /* superblocks */
    FUZZ_JOURNAL = 2,
    FUZZ_INDEX = 4, /* index and order pages */
    FUZZ_NAMES = 8,
    FUZZ_OBJECT = 16, /* headers and payload */
};

struct fuzz_area {
    uint64_t off, pages; /* of the store */
};

/* The store that is damaged; only its superblock and the sizes that follow are set. */
struct fuzz_image {
    struct chm_store s;
    uint8_t *bytes; /* byte 0 of the store */
    uint32_t areas;
    struct fuzz_area area[FUZZ_AREAS_MAX];
};

static inline void fuzz_area_add(struct fuzz_image *m, uint64_t off, uint64_t pages)
{
    CHECK(m->areas < FUZZ_AREAS_MAX);
    m->area[m->areas++] = (struct fuzz_area){.off = off, .pages = pages};
}

/* The pages that a target is about. */
static inline void fuzz_areas(struct fuzz_image *m, uint32_t targets, uint64_t object_pages)
{
    const struct chm_kv_super *p = &m->s.super;

    if (targets & FUZZ_SUPER) {
        fuzz_area_add(m, 0, 1);
        fuzz_area_add(m, CHM_KV_SUPER_STEP, 1);
    }
    if (targets & FUZZ_JOURNAL) {
        fuzz_area_add(m, p->journal_off, p->journal_pages);
    }
    if (targets & FUZZ_INDEX) {
        fuzz_area_add(m, p->index_off, 2 * p->index_pages);
        fuzz_area_add(m, p->order_off, p->order_pages);
    }
    if (targets & FUZZ_NAMES) {
        fuzz_area_add(m, p->names_off, 2 * p->names_pages);
    }
    if (targets & FUZZ_OBJECT) {
        fuzz_area_add(m, p->data_off, object_pages);
    }
}

static inline uint8_t *fuzz_page(const struct fuzz_image *m, uint32_t number)
{
    uint64_t all = 0, at;

    for (uint32_t i = 0; i < m->areas; i++) {
        all += m->area[i].pages;
    }
    at = number % all;
    for (uint32_t i = 0;; i++) {
        if (at < m->area[i].pages) {
            return m->bytes + m->area[i].off + at * PAGE;
        }
        at -= m->area[i].pages;
    }
}

/* ---- edits */

static inline void fuzz_store(uint8_t *page, uint64_t at, uint64_t value, uint32_t bytes)
{
    at -= at % bytes;
    memcpy(page + at % PAGE, &value, bytes);
}

/* Values that are near the ends of something. */
static inline uint64_t fuzz_extreme(uint32_t value)
{
    static const uint64_t base[] = {0,         UINT64_MAX, UINT32_MAX, UINT64_C(1) << 40,
                                    INT32_MAX, MIB,        PAGE,       UINT64_C(1) << 52};

    return base[value % CHM_COUNT(base)] + (value >> 8) % 5 - 2;
}

static inline void fuzz_edit(const struct fuzz_image *m, const uint8_t e[8])
{
    uint8_t *page = fuzz_page(m, e[0]);
    uint32_t at = (uint32_t)(e[1] | e[2] << 8) % PAGE, value;

    memcpy(&value, e + 4, sizeof(value));
    switch (e[3] % 8) {
    case 0:
        page[at] ^= (uint8_t)(value ? value : 1);
        break;
    case 1:
        page[at] = (uint8_t)value;
        break;
    case 2:
        fuzz_store(page, at, value, 4);
        break;
    case 3:
        fuzz_store(page, at, fuzz_extreme(value), 8);
        break;
    case 4: /* one of 64 bytes (an entry) over another */
        memmove(page + at / 64 * 64, fuzz_page(m, value & 0xff) + (value >> 8) % 64 * 64, 64);
        break;
    case 5: /* a whole page over another: an older one comes back */
        memmove(page, fuzz_page(m, value), PAGE);
        break;
    case 6:
        memset(page + at, 0, chm_min(value % PAGE, PAGE - at));
        break;
    default:
        fuzz_store(page, at, value % 256, 4); /* small numbers: entries, namespaces, counts */
    }
}

/* ---- sums */

static inline uint64_t fuzz_seed(const struct chm_store *s, uint32_t number)
{
    uint64_t a, b;

    memcpy(&a, s->super.id, 8);
    memcpy(&b, s->super.id + 8, 8);
    return a ^ (b << 1) ^ (uint64_t)number << 17;
}

static inline void fuzz_seal_entry(const struct chm_store *s, uint32_t number,
                                   struct chm_kv_entry *e)
{
    e->children = 0;
    e->children = (uint32_t)chm_sum_once(e, sizeof(*e), fuzz_seed(s, number));
}

/* A page may be of any kind now: only what the areas say counts. */
static inline void fuzz_seal_page(struct chm_kv_page *p)
{
    p->head.sum = chm_sum_once((uint8_t *)p + 8, PAGE - 8, 0);
}

static inline void fuzz_seal_index(const struct fuzz_image *m)
{
    const struct chm_kv_super *p = &m->s.super;

    for (uint32_t n = 0; n < 2 * p->index_pages; n++) {
        struct chm_kv_page *page = (void *)(m->bytes + p->index_off + (uint64_t)n * PAGE);

        for (uint32_t i = 0; page->head.sum != 0 && i < CHM_KV_INDEX_ENTRIES; i++) {
            fuzz_seal_entry(&m->s, n / 2 * CHM_KV_INDEX_ENTRIES + i, &page->entry[i]);
        }
        if (page->head.sum != 0) {
            fuzz_seal_page(page);
        }
    }
    for (uint32_t n = 0; n < p->order_pages; n++) {
        fuzz_seal_page((void *)(m->bytes + p->order_off + (uint64_t)n * PAGE));
    }
}

static inline void fuzz_seal_names(const struct fuzz_image *m)
{
    const struct chm_kv_super *p = &m->s.super;

    for (uint32_t n = 0; n < 2 * p->names_pages; n++) {
        struct chm_kv_page *page = (void *)(m->bytes + p->names_off + (uint64_t)n * PAGE);

        for (uint32_t i = 0; i < CHM_KV_NAMES_RECORDS; i++) {
            chm_kv_name_seal(&m->s, n / 2 * CHM_KV_NAMES_RECORDS + i, &page->name[i]);
        }
        fuzz_seal_page(page);
    }
}

/* The body behind a record; returns where the next one is. */
static inline uint32_t fuzz_seal_record(const struct fuzz_image *m, struct chm_kv_page *p,
                                        uint32_t at)
{
    struct chm_kv_record r;
    uint8_t *body = p->bytes + at + sizeof(r);
    struct chm_kv_entry e;
    struct chm_kv_name_record name;
    uint64_t seq = p->head.seq, sum, left = sizeof(p->bytes) - at - sizeof(r);

    memcpy(&r, p->bytes + at, sizeof(r));
    if (r.kind == CHM_KV_PUT && left >= sizeof(e)) {
        memcpy(&e, body, sizeof(e));
        e.prev = (uint32_t)seq;
        fuzz_seal_entry(&m->s, r.number, &e);
        memcpy(body, &e, sizeof(e));
        return at + sizeof(r) + sizeof(e);
    }
    if (r.kind == CHM_KV_DELETE && left >= sizeof(sum)) {
        sum = chm_kv_record_sum(&m->s, r.number, seq, "", 0);
        memcpy(body, &sum, sizeof(sum));
        return at + sizeof(r) + sizeof(sum);
    }
    if (r.kind == CHM_KV_NAME && left >= sizeof(name)) {
        memcpy(&name, body, sizeof(name));
        chm_kv_name_seal(&m->s, r.number, &name.name);
        name.sum = chm_kv_record_sum(&m->s, r.number, seq, &name.name, sizeof(name.name));
        memcpy(body, &name, sizeof(name));
        return at + sizeof(r) + sizeof(name);
    }
    return at + 8;
}

/* Records, pages, and the chain of pages from the tail on. */
static inline void fuzz_seal_journal(const struct fuzz_image *m)
{
    const struct chm_kv_super *p = &m->s.super;
    uint64_t before = p->journal_tail_sum;

    for (uint32_t n = 0; n < p->journal_pages; n++) {
        uint64_t place = (p->journal_tail + n) % p->journal_pages;
        struct chm_kv_page *page = (void *)(m->bytes + p->journal_off + place * PAGE);

        if (page->head.kind != CHM_KV_JOURNAL || page->head.seq != p->journal_tail + n) {
            return;
        }
        for (uint32_t at = 0; at + sizeof(struct chm_kv_record) <= sizeof(page->bytes);) {
            at = fuzz_seal_record(m, page, at);
        }
        page->head.round = before;
        fuzz_seal_page(page);
        before = page->head.sum;
    }
}

static inline void fuzz_seal(const struct fuzz_image *m, uint32_t targets)
{
    if (targets & FUZZ_SUPER) {
        for (int i = 0; i < 2; i++) {
            struct chm_kv_super *p = (void *)(m->bytes + (uint64_t)i * CHM_KV_SUPER_STEP);

            p->sum = chm_sum_once((uint8_t *)p + 8, PAGE - 8, 0);
        }
    }
    if (targets & FUZZ_JOURNAL) {
        fuzz_seal_journal(m);
    }
    if (targets & FUZZ_INDEX) {
        fuzz_seal_index(m);
    }
    if (targets & FUZZ_NAMES) {
        fuzz_seal_names(m);
    }
}

/* What the input says, done to the image. */
static inline void fuzz_damage(const struct fuzz_image *m, uint32_t targets, const uint8_t *data,
                               size_t size)
{
    for (size_t i = 0; i < FUZZ_EDITS_MAX && 2 + (i + 1) * 8 <= size; i++) {
        fuzz_edit(m, data + 2 + i * 8);
    }
    if (size > 0 && data[0] % 2 == 1) {
        fuzz_seal(m, targets);
    }
}

#endif
