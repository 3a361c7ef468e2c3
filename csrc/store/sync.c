/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sync.c - the order in which things become durable: data, then the record of it.
 *
 *   fresh    --flush begins-->  flushing  --flush landed-->  ready  --record made-->  recording
 *   dying    --record made---------------------------------------------------------> recording
 *   recording --page written-->  logged  --flush begins-->  logging  --flush landed-->  durable
 *   (LIVE, or RETIRED)
 *
 * A round of durability is begun by time, amount or somebody who waits, and is two flushes: the
 * bytes, then the records of them. A flush that is begun for space alone is one: what is removed
 * has been recorded before it, and the records that it leaves wait for the next flush of any kind,
 * at most until the next round.
 *
 * One flush of the device is in flight at a time and serves both rows: the bytes of objects that
 * were admitted before it began, and the journal pages that were written before. So a put record
 * enters the journal only when the bytes it speaks of are durable, and space is given back only
 * when the record that frees it is.
 *
 * A flush that fails tells that something was lost, not what: the objects it covered are dropped,
 * and the journal pages it covered are written again in place. After FAILURES_MAX in a row the
 * store is degraded: it reads, and takes nothing new.
 *
 * Called by the worker with the lock held; writing a page lets go of it meanwhile.
 */
#include <errno.h>

#include "store/kv.h"

enum {
    FAILURES_MAX = 4,
    DYING_MAX = 512, /* deletions that are recorded without waiting for the interval */
};

static void degrade(struct chm_store *s)
{
    s->degraded = true;
}

/* ---- a flush has landed */

static void drop_unsure(struct chm_store *s, uint32_t number)
{
    if (chm_kv_visible(chm_kv_at(s, number))) {
        s->stats.dropped++;
        chm_kv_entry_remove(s, number);
    }
    chm_kv_entry_retire(s, number);
}

static void land_bad(struct chm_store *s)
{
    struct chm_kv_sync *y = &s->sync;
    uint32_t number;

    s->stats.sync_errors++;
    y->losses += y->flushing.count > 0;
    while ((number = chm_kv_list_pop(s, &y->flushing)) != CHM_KV_NONE) {
        drop_unsure(s, number);
    }
    chm_kv_list_join(s, &y->logged, &y->logging);
    chm_kv_journal_failed(s);
    if (++y->failures >= FAILURES_MAX) {
        degrade(s);
    }
}

/* Its record is durable. */
static void land_record(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);

    chm_kv_table_mark(s, 0, number / CHM_KV_INDEX_ENTRIES);
    switch (chm_kv_state_of(e)) {
    case KV_LOGGED:
        e->state = (uint16_t)((e->state & ~KV_STATE_MASK) | KV_LIVE);
        break;
    case KV_DOOMED:
        e->state = KV_DYING;
        chm_kv_list_push(s, &s->sync.dying, number);
        break;
    default:
        chm_kv_entry_retire(s, number);
    }
}

static void land_good(struct chm_store *s)
{
    struct chm_kv_sync *y = &s->sync;
    uint32_t number;

    if (y->flushing.count + y->logging.count > 0) {
        y->failures = 0; /* a flush of nothing proves nothing */
    }
    chm_kv_list_join(s, &y->ready, &y->flushing);
    while ((number = chm_kv_list_pop(s, &y->logging)) != CHM_KV_NONE) {
        land_record(s, number);
    }
    s->journal.durable = s->journal.flushing;
    y->durable = y->covers;
}

static void land(struct chm_store *s, int rc)
{
    struct chm_kv_sync *y = &s->sync;

    y->flush = 0;
    y->hurry = false; /* of before it landed; who still wants space asks again */
    y->landed = y->began;
    s->stats.syncs++;
    chm_hist_add(&s->stats.sync_ns, chm_now(s->dev) - y->begun_ns);
    if (rc < 0) {
        land_bad(s);
    } else {
        land_good(s);
    }
    chm_kv_check_flushed(s, y->landed, rc == 0);
}

/* ---- records */

/* False: the page is full. */
static bool record_put(struct chm_store *s, uint32_t number)
{
    struct chm_kv_entry *e = chm_kv_at(s, number), image;

    if (chm_kv_state_of(e) == KV_STALE) {
        chm_kv_list_pop(s, &s->sync.ready);
        chm_kv_entry_retire(s, number);
        return true;
    }
    chm_kv_image(s, number, true, s->journal.next, &image);
    if (!chm_kv_journal_add(s, CHM_KV_PUT, number, &image, sizeof(image))) {
        return false;
    }
    chm_kv_list_pop(s, &s->sync.ready);
    e->state = (uint16_t)((e->state & ~KV_STATE_MASK) | KV_LOGGED);
    chm_kv_list_push(s, &s->sync.recording, number);
    return true;
}

static bool record_delete(struct chm_store *s, uint32_t number)
{
    uint64_t sum = chm_kv_record_sum(s, number, s->journal.next, "", 0);

    if (!chm_kv_journal_add(s, CHM_KV_DELETE, number, &sum, sizeof(sum))) {
        return false;
    }
    chm_kv_list_pop(s, &s->sync.dying);
    chm_kv_at(s, number)->state = KV_GONE;
    chm_kv_list_push(s, &s->sync.recording, number);
    return true;
}

static bool record_name(struct chm_store *s, uint32_t number)
{
    struct chm_kv_space *space = &s->spaces[number];
    struct chm_kv_name_record r = {.name = space->name};

    chm_kv_name_seal(s, number, &r.name);
    r.sum = chm_kv_record_sum(s, number, s->journal.next, &r.name, sizeof(r.name));
    if (!chm_kv_journal_add(s, CHM_KV_NAME, number, &r, sizeof(r))) {
        return false;
    }
    space->logged = true;
    return true;
}

/* One record. False: there is none to write, or (*full) no room in the page. Namespaces come before
 * the objects in them. */
static bool record_one(struct chm_store *s, bool *full)
{
    bool done = false;

    for (uint32_t i = s->names_logged; i < s->space_count; i++) {
        if (!s->spaces[i].logged) {
            done = record_name(s, i);
            *full = !done;
            return done;
        }
        s->names_logged = i + 1;
    }
    if (s->sync.ready.count > 0) {
        done = record_put(s, s->sync.ready.first);
    } else if (s->sync.dying.count > 0) {
        done = record_delete(s, s->sync.dying.first);
    } else {
        return false;
    }
    *full = !done;
    return done;
}

static bool names_wait(const struct chm_store *s)
{
    return s->names_logged < s->space_count;
}

/* Records that are not durable. Those of namespaces are on no list. */
static bool journal_waits(const struct chm_store *s)
{
    return s->journal.page.head.count > 0 || s->journal.next - 1 > s->journal.durable;
}

static bool all_recorded(const struct chm_store *s)
{
    return s->sync.ready.count == 0 && s->sync.dying.count == 0 && !names_wait(s) &&
           s->journal.page.head.count == 0 && s->journal.rewrite == UINT64_MAX;
}

/* Write records until there are no more or there is no room. */
static bool record_all(struct chm_store *s)
{
    bool progress = false, full = true;

    while (full) {
        full = false;
        while (record_one(s, &full)) {
            progress = true;
        }
        if (chm_kv_journal_write(s) < 0) {
            return progress;
        }
        chm_kv_list_join(s, &s->sync.logged, &s->sync.recording);
    }
    return progress;
}

/* ---- a flush begins */

static bool has_work(const struct chm_store *s)
{
    const struct chm_kv_sync *y = &s->sync;

    return y->fresh.count > 0 || y->dying.count > 0 || y->recording.count > 0 ||
           y->logged.count > 0 || names_wait(s) || journal_waits(s);
}

/* Time, amount, or somebody who waits: what is not durable has to become so, records and all. */
static bool round_is_due(const struct chm_store *s)
{
    const struct chm_kv_sync *y = &s->sync;

    if (y->wanted > y->durable) {
        return true;
    }
    return has_work(s) && (atomic_load(&s->stopping) || y->fresh_bytes >= s->opt.sync_bytes ||
                           chm_now(s->dev) >= chm_sat_add(y->last_ns, s->opt.sync_interval_ns));
}

static bool is_due(const struct chm_store *s)
{
    const struct chm_kv_sync *y = &s->sync;

    return round_is_due(s) || chm_kv_check_waits(s) ||
           (has_work(s) && (y->hurry || y->dying.count >= DYING_MAX));
}

/* The next flush makes the records durable that the first one of a round left. */
static bool closes_round(const struct chm_store *s)
{
    return s->sync.round && s->sync.logged.count > 0;
}

static bool begin(struct chm_store *s)
{
    struct chm_kv_sync *y = &s->sync;
    bool whole = s->journal.rewrite == UINT64_MAX; /* all pages are written, again if need be */
    bool round = !closes_round(s) && round_is_due(s);

    if (chm_door_flush_begin(s->dev, &y->flush) < 0) {
        y->flush = 0;
        return false;
    }
    y->began++;
    y->begun_ns = chm_now(s->dev);
    y->hurry = false;
    y->round = round;
    if (round) {
        y->last_ns = y->begun_ns;
        y->fresh_bytes = 0;
    }
    chm_kv_list_join(s, &y->flushing, &y->fresh);
    s->journal.flushing = s->journal.durable;
    if (whole) {
        chm_kv_list_join(s, &y->logging, &y->logged);
        s->journal.flushing = s->journal.next - 1;
    }
    y->covers = all_recorded(s) ? y->landed : y->durable;
    return true;
}

bool chm_kv_sync_step(struct chm_store *s)
{
    struct chm_kv_sync *y = &s->sync;
    bool progress = false;
    int rc = 0;

    if (y->flush && chm_door_poll(s->dev, y->flush, &rc)) {
        land(s, rc);
        progress = true;
    }
    if (s->degraded) {
        return progress;
    }
    if (y->ready.count > 0 || s->journal.rewrite != UINT64_MAX || s->journal.page.head.count > 0 ||
        (!y->flush && is_due(s))) {
        progress = record_all(s) || progress;
    }
    if (!y->flush && !has_work(s)) {
        y->last_ns = chm_now(s->dev); /* the interval is that of work that waits */
    }
    if (!y->flush && !s->degraded && (closes_round(s) || is_due(s))) {
        progress = begin(s) || progress;
    }
    return progress;
}

uint64_t chm_kv_sync_want(struct chm_store *s)
{
    struct chm_kv_sync *y = &s->sync;

    if (!has_work(s) && y->ready.count == 0 && !y->flush) {
        return 0;
    }
    y->wanted = y->began + 1;
    return y->wanted;
}

bool chm_kv_sync_idle(const struct chm_store *s)
{
    return !has_work(s) && s->sync.ready.count == 0 && !s->sync.flush;
}

uint64_t chm_kv_sync_next_ns(const struct chm_store *s)
{
    if (s->sync.flush || s->degraded || !has_work(s)) {
        return UINT64_MAX;
    }
    return chm_sat_add(s->sync.last_ns, s->opt.sync_interval_ns);
}
