/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.c - where objects lie: one run of the data space, or, when no run is long enough, up to 16.
 *
 * An object of one chunk in one run has no header; any other begins with one, whole units long. The
 * extents of a split object are kept in a small table as long as it lives, and in its header on the
 * device; those of all others follow from place and length.
 */
#include <errno.h>

#include "store/kv.h"

enum { RUNS_SLACK = 1024 };

uint64_t chm_kv_seed(const struct chm_kv_entry *e)
{
    uint64_t a, b, x;

    memcpy(&a, e->key.bytes, 8);
    memcpy(&b, e->key.bytes + 8, 8);
    x = a ^ (b << 1 | b >> 63) ^ (uint64_t)e->ns << 32 ^ e->len;
    return (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
}

uint64_t chm_kv_head_bytes(const struct chm_store *s, uint64_t len)
{
    uint64_t chunks = (len + CHM_STORE_CHUNK_BYTES - 1) / CHM_STORE_CHUNK_BYTES;
    uint64_t bytes = CHM_KV_HEAD_SUMS + chunks * sizeof(uint64_t);

    return chm_round_up(chm_round_up(bytes, CHM_KV_PAGE), s->unit);
}

uint64_t chm_kv_whole_bytes(const struct chm_store *s, uint64_t len)
{
    uint64_t head = len > CHM_STORE_CHUNK_BYTES ? chm_kv_head_bytes(s, len) : 0;

    return head + chm_round_up(len, s->unit);
}

uint64_t chm_kv_space_bytes(const struct chm_store *s, const struct chm_kv_entry *e)
{
    uint64_t head = e->place & CHM_KV_HAS_HEAD ? chm_kv_head_bytes(s, e->len) : 0;

    return head + chm_round_up(e->len, s->unit);
}

static uint64_t addr_of(const struct chm_store *s, uint64_t page)
{
    return s->data + page * CHM_KV_PAGE;
}

static uint64_t page_of(const struct chm_store *s, uint64_t addr)
{
    return (addr - s->data) / CHM_KV_PAGE;
}

/* ---- split objects */

static struct chm_kv_split *split_of(const struct chm_store *s, uint32_t number)
{
    for (uint32_t i = 0; i < KV_SPLITS; i++) {
        if (s->splits[i].entry == number) {
            return &s->splits[i];
        }
    }
    return NULL;
}

/* Take whole runs, the longest first, as many as it needs. On failure nothing is taken. */
static int take_split(struct chm_store *s, uint32_t number, uint64_t bytes)
{
    struct chm_kv_split *p = split_of(s, CHM_KV_NONE);
    uint64_t left = bytes, first = chm_kv_head_bytes(s, chm_kv_at(s, number)->len);

    if (!p || s->runs + CHM_STORE_EXTENTS_MAX > s->extents.max - RUNS_SLACK) {
        return -ENOSPC;
    }
    p->extents = 0;
    while (left > 0 && p->extents < CHM_STORE_EXTENTS_MAX) {
        uint64_t len = chm_min(chm_extents_largest(&s->extents), left), addr;

        if (len == 0 || (p->extents == 0 && len < first) ||
            chm_extents_take(&s->extents, len, &addr) < 0) {
            break;
        }
        p->extent[p->extents++] =
            (struct chm_kv_extent){.page = page_of(s, addr), .pages = len / CHM_KV_PAGE};
        left -= len;
    }
    for (uint32_t i = 0; left > 0 && i < p->extents; i++) {
        chm_extents_give(&s->extents, addr_of(s, p->extent[i].page),
                         p->extent[i].pages * CHM_KV_PAGE);
    }
    if (left > 0) {
        return -ENOSPC;
    }
    p->entry = number;
    s->split_count++;
    s->runs += p->extents;
    chm_kv_at(s, number)->place = p->extent[0].page | CHM_KV_HAS_HEAD | CHM_KV_SPLIT;
    return 0;
}

/* ---- take and give */

int chm_kv_place_take(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);
    bool head = e->len > CHM_STORE_CHUNK_BYTES;
    uint64_t addr;

    if (chm_extents_take(&s->extents, chm_kv_whole_bytes(s, e->len), &addr) == 0) {
        e->place = page_of(s, addr) | (head ? CHM_KV_HAS_HEAD : 0);
        s->runs++;
        return 0;
    }
    return take_split(s, number, chm_kv_head_bytes(s, e->len) + chm_round_up(e->len, s->unit));
}

void chm_kv_place_where(const struct chm_store *s, uint32_t number, struct chm_kv_where *w)
{
    const struct chm_kv_entry *e = chm_kv_at(s, number);
    const struct chm_kv_split *p = e->place & CHM_KV_SPLIT ? split_of(s, number) : NULL;

    if (!p) {
        uint64_t page = e->place & ((UINT64_C(1) << CHM_KV_PLACE_BITS) - 1);

        w->extents = 1;
        w->extent[0] =
            (struct chm_range){.addr = addr_of(s, page), .len = chm_kv_space_bytes(s, e)};
        return;
    }
    w->extents = p->extents;
    for (uint32_t i = 0; i < p->extents; i++) {
        w->extent[i] = (struct chm_range){.addr = addr_of(s, p->extent[i].page),
                                          .len = p->extent[i].pages * CHM_KV_PAGE};
    }
}

void chm_kv_place_give(struct chm_store *s, uint32_t number)
{
    struct chm_kv_where w;
    struct chm_kv_entry *e = chm_kv_at(s, number);

    chm_kv_place_where(s, number, &w);
    for (uint32_t i = 0; i < w.extents; i++) {
        chm_extents_give(&s->extents, w.extent[i].addr, w.extent[i].len);
    }
    s->runs -= w.extents;
    if (e->place & CHM_KV_SPLIT) {
        split_of(s, number)->entry = CHM_KV_NONE;
        s->split_count--;
    }
    e->place = 0;
}

/* ---- recovery */

static bool is_inside(const struct chm_store *s, uint64_t page, uint64_t bytes)
{
    uint64_t all = s->super.data_bytes;

    return bytes > 0 && bytes <= all && page <= (all - bytes) / CHM_KV_PAGE &&
           page * CHM_KV_PAGE % s->unit == 0 && bytes % s->unit == 0;
}

static bool claim_split(struct chm_store *s, uint32_t number, const struct chm_kv_object_head *h)
{
    struct chm_kv_split *p = split_of(s, CHM_KV_NONE);
    uint64_t bytes = 0;
    uint32_t n = 0;

    if (!p || h->extents < 1 || h->extents > CHM_STORE_EXTENTS_MAX) {
        return false;
    }
    for (; n < h->extents; n++) {
        const struct chm_kv_extent *x = &h->extent[n];

        if (x->pages > s->super.data_bytes / CHM_KV_PAGE ||
            !is_inside(s, x->page, x->pages * CHM_KV_PAGE) ||
            !chm_extents_claim(&s->extents, addr_of(s, x->page), x->pages * CHM_KV_PAGE)) {
            break;
        }
        p->extent[n] = *x;
        bytes += x->pages * CHM_KV_PAGE;
    }
    if (n == h->extents && bytes == chm_kv_space_bytes(s, chm_kv_at(s, number)) &&
        h->extent[0].page ==
            (chm_kv_at(s, number)->place & ((UINT64_C(1) << CHM_KV_PLACE_BITS) - 1))) {
        p->entry = number;
        p->extents = n;
        s->split_count++;
        s->runs += n;
        return true;
    }
    while (n-- > 0) {
        chm_extents_give(&s->extents, addr_of(s, p->extent[n].page),
                         p->extent[n].pages * CHM_KV_PAGE);
    }
    return false;
}

bool chm_kv_place_claim(struct chm_store *s, uint32_t number, const struct chm_kv_object_head *h)
{
    const struct chm_kv_entry *e = chm_kv_at(s, number);
    uint64_t page = e->place & ((UINT64_C(1) << CHM_KV_PLACE_BITS) - 1);
    uint64_t bytes = chm_kv_space_bytes(s, e);

    if (e->place & CHM_KV_SPLIT) {
        return h && claim_split(s, number, h);
    }
    if (!is_inside(s, page, bytes) || !chm_extents_claim(&s->extents, addr_of(s, page), bytes)) {
        return false;
    }
    s->runs++;
    return true;
}

/* ---- open */

int chm_kv_place_open(struct chm_store *s)
{
    uint64_t max = 2 * ((uint64_t)s->max + RUNS_SLACK);
    int rc = chm_extents_open(&s->extents, s->data, s->super.data_bytes, max);

    if (rc < 0) {
        return rc;
    }
    s->splits = chm_kv_map(s, KV_SPLITS * sizeof(*s->splits));
    if (!s->splits) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < KV_SPLITS; i++) {
        s->splits[i].entry = CHM_KV_NONE;
    }
    return 0;
}

void chm_kv_place_close(struct chm_store *s)
{
    if (s->extents.pool) {
        chm_extents_close(&s->extents);
    }
}
