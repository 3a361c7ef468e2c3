/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover_journal.c - the journal, from its tail to its end, as open finds it.
 *
 * A page belongs to the chain if its number is the next one and it carries the sum of the page
 * before. If its own sum is wrong, but all of that is right, it is damaged or torn: each record has
 * a sum of its own, tied to this page, and those that are right were true when they were written,
 * so they are used. If
 * only what chains it is damaged, putting that right makes its sum right.
 */
#include "store/recover.h"

enum verdict { PAGE_WHOLE, PAGE_DAMAGED, PAGE_NONE };

/* ---- records */

static bool record_is_good(const struct chm_store *s, const struct chm_kv_record *r,
                           const uint8_t *body, uint64_t seq)
{
    struct chm_kv_entry entry;
    struct chm_kv_name_record name;
    uint64_t sum;

    switch (r->kind) {
    case CHM_KV_PUT:
        memcpy(&entry, body, sizeof(entry));
        return r->number < s->max && entry.prev == (uint32_t)seq &&
               chm_kv_image_is_good(s, r->number, &entry);
    case CHM_KV_DELETE:
        memcpy(&sum, body, sizeof(sum));
        return r->number < s->max && sum == chm_kv_record_sum(s, r->number, seq, "", 0);
    default:
        memcpy(&name, body, sizeof(name));
        return r->number < s->super.max_namespaces &&
               name.sum == chm_kv_record_sum(s, r->number, seq, &name.name, sizeof(name.name));
    }
}

static uint32_t bytes_of(uint16_t kind)
{
    switch (kind) {
    case CHM_KV_PUT:
        return sizeof(struct chm_kv_record) + sizeof(struct chm_kv_entry);
    case CHM_KV_DELETE:
        return sizeof(struct chm_kv_record) + sizeof(uint64_t);
    case CHM_KV_NAME:
        return sizeof(struct chm_kv_record) + sizeof(struct chm_kv_name_record);
    default:
        return 0;
    }
}

static void apply(struct chm_store *s, const struct chm_kv_record *r, const uint8_t *body)
{
    struct chm_kv_name name;
    struct chm_kv_entry *e;

    s->info.recovered_records++;
    if (r->kind == CHM_KV_NAME) {
        memcpy(&name, body, sizeof(name));
        chm_kv_recover_name(s, r->number, &name);
        chm_kv_table_mark(s, 1, r->number / CHM_KV_NAMES_RECORDS);
        return;
    }
    e = chm_kv_at(s, r->number);
    chm_kv_table_mark(s, 0, r->number / CHM_KV_INDEX_ENTRIES);
    if (r->kind == CHM_KV_PUT) {
        memcpy(e, body, sizeof(*e));
        e->state = RANK_JOURNAL;
        s->touched = (uint32_t)chm_max(s->touched, r->number + 1);
    } else {
        e->state = RANK_NONE;
    }
}

/* Every record that is right. In a damaged page the next one is looked for in steps of 8 bytes. */
static void replay(struct chm_store *s, const struct chm_kv_page *p)
{
    struct chm_kv_record r;
    uint32_t at = 0;

    while (at + sizeof(r) <= sizeof(p->bytes)) {
        uint32_t bytes;

        memcpy(&r, p->bytes + at, sizeof(r));
        bytes = bytes_of(r.kind);
        if (bytes > 0 && bytes <= sizeof(p->bytes) - at &&
            record_is_good(s, &r, p->bytes + at + sizeof(r), p->head.seq)) {
            apply(s, &r, p->bytes + at + sizeof(r));
            at += bytes;
        } else {
            at += 8;
        }
    }
}

/* ---- pages */

struct chain {
    uint64_t next;
    uint64_t sum;   /* of the page before */
    uint64_t other; /* the same, if that page is damaged and its sum may be the damage */
};

static bool is_linked(const struct chm_store *s, const struct chain *c, const struct chm_kv_page *p)
{
    return p->head.kind == CHM_KV_JOURNAL && p->head.seq == c->next &&
           memcmp(p->head.id, s->super.id, sizeof(p->head.id)) == 0 &&
           (p->head.round == c->sum || p->head.round == c->other);
}

static uint64_t sum_of(const struct chm_kv_page *p)
{
    return chm_sum_once((const uint8_t *)p + 8, sizeof(*p) - 8, 0);
}

static enum verdict page_look(const struct chm_store *s, const struct chain *c,
                              struct chm_kv_page *p)
{
    struct chm_kv_page as_meant = *p;

    if (is_linked(s, c, p)) {
        return sum_of(p) == p->head.sum ? PAGE_WHOLE : PAGE_DAMAGED;
    }
    as_meant.head.kind = CHM_KV_JOURNAL;
    as_meant.head.seq = c->next;
    as_meant.head.round = c->sum;
    memcpy(as_meant.head.id, s->super.id, sizeof(as_meant.head.id));
    if (sum_of(&as_meant) != p->head.sum) {
        return PAGE_NONE;
    }
    *p = as_meant;
    return PAGE_DAMAGED;
}

void chm_kv_recover_journal(struct chm_store *s, uint8_t *buf)
{
    struct chm_kv_journal *j = &s->journal;
    struct chm_kv_page *p = (void *)buf;
    struct chain c = {.next = s->super.journal_tail,
                      .sum = s->super.journal_tail_sum,
                      .other = s->super.journal_tail_sum};

    j->sums[(c.next - 1) % s->super.journal_pages] = c.sum;
    for (uint32_t i = 0; i < s->super.journal_pages && !s->info.clean; i++) {
        uint64_t place = c.next % s->super.journal_pages;
        enum verdict v;

        if (chm_kv_read(s, s->base + s->super.journal_off + place * s->unit, buf, s->unit) < 0) {
            break;
        }
        v = page_look(s, &c, p);
        if (v == PAGE_NONE) {
            break;
        }
        s->info.recovered_damaged += v == PAGE_DAMAGED;
        replay(s, p);
        s->super.epoch = (uint32_t)chm_max(s->super.epoch, p->head.number);
        c = (struct chain){.next = c.next + 1, .sum = p->head.sum, .other = sum_of(p)};
        j->sums[place] = c.sum;
    }
    j->next = c.next;
    j->prev_sum = c.sum;
    j->durable = j->flushing = j->next - 1;
}
