/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.c - a ring of pages of records.
 *
 * Page n lies at place n mod pages and carries n and the sum of page n - 1, so that a page of an
 * older lap, or of a time line that a crash cut off, is never taken for the next one. Each page is
 * written once (a flush that failed has it written again, the same bytes).
 *
 *     safe_tail <= tail <= durable + 1 <= flushing + 1 <= next
 *
 * Pages from safe_tail on are never written over: each of the two superblocks names a tail, and
 * recovery may have to do with the older one.
 */
#include <errno.h>

#include "store/kv.h"

enum { EMPTY = 0 };

int chm_kv_journal_open(struct chm_store *s)
{
    struct chm_kv_journal *j = &s->journal;

    j->sums = chm_kv_map(s, s->super.journal_pages * sizeof(*j->sums));
    j->unsafe = chm_kv_map(s, KV_UNSAFE * sizeof(*j->unsafe));
    j->rewrite = UINT64_MAX;
    return j->sums && j->unsafe ? 0 : -ENOMEM;
}

uint64_t chm_kv_journal_room(const struct chm_store *s)
{
    return s->super.journal_pages - (s->journal.next - s->journal.safe_tail);
}

bool chm_kv_journal_add(struct chm_store *s, uint16_t kind, uint32_t number, const void *body,
                        uint16_t bytes)
{
    struct chm_kv_page *p = &s->journal.page;
    struct chm_kv_record r = {.kind = kind,
                              .bytes = (uint16_t)(sizeof(r) + bytes),
                              .number = number};

    if (p->head.count + r.bytes > sizeof(p->bytes)) {
        return false;
    }
    memcpy(p->bytes + p->head.count, &r, sizeof(r));
    if (bytes > 0) {
        memcpy(p->bytes + p->head.count + sizeof(r), body, bytes);
    }
    p->head.count += r.bytes;
    s->stats.records++;
    return true;
}

static uint64_t page_off(const struct chm_store *s, uint64_t number)
{
    return s->super.journal_off + number % s->super.journal_pages * s->unit;
}

/* Without the lock: nobody else writes, or looks at the pages that are not durable. */
static int page_write(struct chm_store *s, uint64_t number)
{
    int rc;

    pthread_mutex_unlock(&s->lock);
    rc = chm_kv_write_page(s, page_off(s, number), &s->journal.unsafe[number % KV_UNSAFE]);
    pthread_mutex_lock(&s->lock);
    s->stats.journal_pages += rc == 0;
    s->stats.metadata_bytes += rc == 0 ? s->unit : 0;
    if (rc < 0 && rc != -EAGAIN && rc != -EBUSY) {
        s->degraded = true;
    }
    return rc;
}

/* The pages that a failed flush covered, once more. */
static int rewrite(struct chm_store *s)
{
    struct chm_kv_journal *j = &s->journal;
    int rc = 0;

    while (j->rewrite < j->next && rc == 0) {
        rc = page_write(s, j->rewrite);
        j->rewrite += rc == 0;
    }
    j->rewrite = rc == 0 ? UINT64_MAX : j->rewrite;
    return rc;
}

int chm_kv_journal_write(struct chm_store *s)
{
    struct chm_kv_journal *j = &s->journal;
    struct chm_kv_page *p = &j->unsafe[j->next % KV_UNSAFE];
    int rc = j->rewrite == UINT64_MAX ? 0 : rewrite(s);

    if (rc < 0 || j->page.head.count == EMPTY) {
        return rc;
    }
    if (j->next - j->durable > KV_UNSAFE - 1) {
        return -EAGAIN;
    }
    if (chm_kv_journal_room(s) <= 1) {
        s->check.wanted = true;
        return -ENOSPC;
    }
    *p = j->page;
    p->head.seq = j->next;
    p->head.round = j->prev_sum;
    chm_kv_page_seal(s, p, CHM_KV_JOURNAL, s->super.epoch);
    rc = page_write(s, j->next);
    if (rc == 0) {
        j->prev_sum = p->head.sum;
        j->sums[j->next % s->super.journal_pages] = p->head.sum;
        j->next++;
        memset(&j->page, 0, sizeof(j->page));
        s->check.wanted = s->check.wanted || j->next - j->tail >= s->super.journal_pages / 3;
    }
    return rc;
}

void chm_kv_journal_failed(struct chm_store *s)
{
    struct chm_kv_journal *j = &s->journal;

    if (j->flushing > j->durable) {
        j->rewrite = j->durable + 1;
    }
}
