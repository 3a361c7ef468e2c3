/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - checkpoints: write the dirty pages, then let the journal's tail move up.
 *
 *   IDLE -> PAGES (write each dirty page once) -> FLUSH (wait for one that began after the last;
 *   namespace pages: then back to PAGES, for their other slot) -> SUPER (write the superblock with
 *   the new tail, wait for a flush) -> IDLE
 *
 * What the journal held as durable when it began is in the pages when it ends, so recovery needs
 * only what comes after. A flush that fails on the way makes the pages dirty again and starts it
 * over; nothing was promised. A closing checkpoint ends with a superblock that says clean.
 *
 * Called by the worker with the lock held; writing a page lets go of it meanwhile.
 */
#include <errno.h>

#include "store/kv.h"
#include "util/runs.h"

enum { PAGES_TURN = 16 /* written in one turn */ };

static void check_begin(struct chm_store *s)
{
    struct chm_kv_check *c = &s->check;

    c->state = KV_CHECK_PAGES;
    c->wanted = false;
    c->table = c->cursor = 0;
    c->pages_good = false;
    c->round = ++c->last_round;
    c->covers = s->journal.durable;
    for (uint32_t i = 0; i < CHM_COUNT(s->table); i++) {
        memset(s->table[i].writing, 0, (s->table[i].pages / 64 + 1) * sizeof(uint64_t));
    }
}

/* Write one dirty page. 0, 1: there is none, or why not. */
static int write_one(struct chm_store *s)
{
    struct chm_kv_check *c = &s->check;
    struct chm_kv_table *t = &s->table[c->table];
    struct chm_kv_page page;
    uint64_t off;
    int rc;

    c->cursor = (uint32_t)chm_bits_next_set(t->dirty, c->cursor, t->pages);
    if (c->cursor >= t->pages) {
        c->cursor = 0;
        c->table++;
        return c->table == CHM_COUNT(s->table);
    }
    if (c->table == 0 && c->cursor >= s->super.index_high) {
        s->super.index_high = c->cursor + 1;
    }
    chm_kv_table_build(s, c->table, c->cursor, &page);
    off =
        chm_kv_table_off(s, c->table, c->cursor, !(t->slot[c->cursor / 64] >> c->cursor % 64 & 1));
    chm_bits_clear(t->dirty, c->cursor, 1);
    pthread_mutex_unlock(&s->lock);
    rc = chm_kv_write_page(s, off, &page);
    pthread_mutex_lock(&s->lock);
    if (rc < 0) {
        chm_bits_set(t->dirty, c->cursor, 1);
        return rc;
    }
    chm_bits_set(t->writing, c->cursor++, 1);
    s->stats.index_pages++;
    s->stats.metadata_bytes += s->unit;
    return 0;
}

static void super_fill(struct chm_store *s)
{
    const struct chm_kv_journal *j = &s->journal;
    struct chm_kv_super *p = &s->super;

    p->journal_tail = s->check.covers + 1;
    p->journal_tail_sum = s->check.covers ? j->sums[s->check.covers % p->journal_pages] : 0;
    p->stamp = s->stamp;
    p->round = s->check.round;
    p->clean = s->check.closing;
}

static bool super_write(struct chm_store *s)
{
    super_fill(s);
    if (chm_kv_super_write(s, false) < 0) {
        return false;
    }
    s->check.ticket = s->sync.began + 1;
    s->check.state = KV_CHECK_SUPER;
    return true;
}

bool chm_kv_check_step(struct chm_store *s)
{
    struct chm_kv_check *c = &s->check;
    int rc = 0;

    if (s->degraded) {
        return false;
    }
    if (c->state == KV_CHECK_IDLE && c->wanted) {
        check_begin(s);
    }
    if (c->state == KV_CHECK_PAGES) {
        for (int i = 0; i < PAGES_TURN && rc == 0; i++) {
            rc = write_one(s);
        }
        if (rc == 1) {
            c->ticket = s->sync.began + 1;
            c->state = KV_CHECK_FLUSH;
        }
        return rc >= 0;
    }
    if (c->state == KV_CHECK_FLUSH && c->pages_good) {
        c->pages_good = !super_write(s);
        return !c->pages_good;
    }
    return false;
}

bool chm_kv_check_waits(const struct chm_store *s)
{
    return (s->check.state == KV_CHECK_FLUSH && !s->check.pages_good) ||
           s->check.state == KV_CHECK_SUPER;
}

/* The pages written last hold the newest durable state. What is to be written twice is dirty until
 * the second time, and begins anew if it changed since: both slots carry the same round, so they
 * have to hold the same. */
static void turn_slots(struct chm_store *s)
{
    for (uint32_t i = 0; i < CHM_COUNT(s->table); i++) {
        struct chm_kv_table *t = &s->table[i];

        for (uint32_t w = 0; w < t->pages / 64 + 1; w++) {
            uint64_t changed = t->twice ? t->dirty[w] : 0;
            uint64_t second = t->twice ? t->writing[w] & t->again[w] & ~changed : t->writing[w];

            t->slot[w] ^= t->writing[w];
            t->dirty[w] |= t->writing[w] & ~second;
            t->again[w] = (t->again[w] | t->writing[w]) & ~second & ~changed;
            t->writing[w] = 0;
        }
    }
}

/* On to the superblock, or first to the other slots of pages that are written twice. */
static void second_slots(struct chm_store *s)
{
    struct chm_kv_check *c = &s->check;
    const struct chm_kv_table *t = &s->table[1];

    c->pages_good = chm_bits_next_set(t->dirty, 0, t->pages) == t->pages;
    if (!c->pages_good) {
        c->state = KV_CHECK_PAGES;
        c->table = 1;
        c->cursor = 0;
    }
}

static void start_over(struct chm_store *s)
{
    for (uint32_t i = 0; i < CHM_COUNT(s->table); i++) {
        struct chm_kv_table *t = &s->table[i];

        for (uint32_t w = 0; w < t->pages / 64 + 1; w++) {
            t->dirty[w] |= t->writing[w];
            t->writing[w] = 0;
        }
    }
    s->check.state = KV_CHECK_IDLE;
    s->check.wanted = true;
}

static void check_done(struct chm_store *s)
{
    s->check.state = KV_CHECK_IDLE;
    s->stats.checkpoints++;
    s->journal.safe_tail = s->journal.tail;
    s->journal.tail = s->super.journal_tail;
}

void chm_kv_check_flushed(struct chm_store *s, uint64_t flush, bool good)
{
    struct chm_kv_check *c = &s->check;

    if (c->state == KV_CHECK_PAGES && !good) {
        start_over(s); /* some of the pages may be among what was lost */
    } else if (c->state == KV_CHECK_FLUSH && !c->pages_good && flush >= c->ticket) {
        if (good) {
            turn_slots(s);
            second_slots(s);
        } else {
            start_over(s);
        }
    } else if (c->state == KV_CHECK_SUPER) {
        if (!good) {
            /* The same slot again: the other one holds the good one. */
            s->super.generation--;
            c->pages_good = true;
            c->state = KV_CHECK_FLUSH;
        } else if (flush >= c->ticket) {
            check_done(s);
        }
    }
}
