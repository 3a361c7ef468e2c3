/* SPDX-License-Identifier: Apache-2.0 */
/* wbuf.c - see wbuf.h. */
#include "fw/wbuf.h"

#include <errno.h>

#include "fw/device.h"
#include "util/util.h"

enum {
    TAKE_LOOK_MAX = 64, /* dirty extents looked at for one that may go */
    LOST_MAX = 64,      /* lost extents after which the device is degraded */
};

static struct chm_ext *ext_new(struct chm_wbuf *b)
{
    struct chm_link *link = chm_list_first(&b->free);
    struct chm_ext *e;

    CHM_ASSERT(link);
    e = CHM_CONTAINER(link, struct chm_ext, pending);
    chm_list_remove(link);
    b->exts_free--;
    CHM_ASSERT(e->state == EXT_FREE && !e->range.linked);
    *e = (struct chm_ext){.state = EXT_OPEN};
    chm_list_init(&e->pending);
    chm_list_init(&e->dirty);
    return e;
}

static bool ext_has_bytes(const struct chm_ext *e)
{
    return !e->trim && e->state != EXT_LOST;
}

/* Give buffer bytes back; poisoned when tests want to see who still looks at them. */
static void ext_give(struct chm_fw *fw, uint64_t off, uint64_t len)
{
    struct chm_wbuf *b = &fw->wbuf;

    if (fw->opts.poison) {
        __builtin_memset(fw->memory + off, 0xA5, len);
    }
    chm_runs_give(&b->runs, (off - b->base) / b->granule, len / b->granule);
}

static void ext_free(struct chm_fw *fw, struct chm_ext *e)
{
    struct chm_wbuf *b = &fw->wbuf;

    CHM_ASSERT(e->unit_next == NULL && e->state != EXT_FREE);
    if (ext_has_bytes(e)) {
        ext_give(fw, e->off, chm_ext_len(e));
    }
    if (e->state == EXT_LOST) {
        b->lost--;
    }
    chm_tree_remove(&b->map, &e->range);
    chm_list_remove(&e->pending);
    chm_list_remove(&e->dirty);
    e->state = EXT_FREE;
    chm_list_push(&b->free, &e->pending);
    b->exts_free++;
}

static void ext_set_range(struct chm_ext *e, uint64_t start, uint64_t end)
{
    e->range.start = start;
    e->range.end = end;
    e->range.aug = end;
}

int chm_wbuf_begin(struct chm_fw *fw, uint64_t addr, uint64_t len, struct chm_ext **out)
{
    struct chm_wbuf *b = &fw->wbuf;
    struct chm_ext *e;
    uint64_t at;

    /* A commit may split one older extent: what it needs is set aside at begin. */
    if (b->exts_free < b->open + b->exts_aside + 2) {
        return -EAGAIN;
    }
    at = chm_runs_take(&b->runs, len / b->granule, b->cursor);
    if (at == CHM_RUNS_NONE) {
        return -EAGAIN;
    }
    b->cursor = at + len / b->granule;
    b->peak_bytes = chm_max(b->peak_bytes, b->runs.used * b->granule);
    e = ext_new(b);
    ext_set_range(e, addr, addr + len);
    e->off = b->base + at * b->granule;
    b->open++;
    *out = e;
    return 0;
}

void chm_wbuf_abort(struct chm_fw *fw, struct chm_ext *e)
{
    CHM_ASSERT(e->state == EXT_OPEN);
    fw->wbuf.open--;
    ext_free(fw, e);
}

/* What is left of `e` behind `start`, as an extent of its own, in the places that e has on the
 * lists. */
static void ext_split_tail(struct chm_wbuf *b, struct chm_ext *e, uint64_t start)
{
    struct chm_ext *tail = ext_new(b);

    tail->state = e->state;
    tail->trim = e->trim;
    tail->seq = e->seq;
    tail->reads_before = e->reads_before;
    tail->commit_ns = e->commit_ns;
    tail->off = e->off + (start - e->range.start);
    ext_set_range(tail, start, e->range.end);
    chm_tree_insert(&b->map, &tail->range);
    chm_list_insert_before(e->pending.next, &tail->pending);
    if (e->state == EXT_DIRTY) {
        chm_list_insert_before(e->dirty.next, &tail->dirty);
    } else {
        b->lost++;
    }
}

/* [start, end) of a DIRTY or LOST extent is out of date. */
static void ext_cut(struct chm_fw *fw, struct chm_ext *e, uint64_t start, uint64_t end)
{
    struct chm_wbuf *b = &fw->wbuf;
    uint64_t from = chm_max(start, e->range.start), to = chm_min(end, e->range.end);

    if (e->state == EXT_DIRTY && !e->trim) {
        fw->stats.superseded_bytes += to - from;
        b->dirty_bytes -= to - from;
    }
    if (from == e->range.start && to == e->range.end) {
        ext_free(fw, e);
        return;
    }
    if (from > e->range.start && to < e->range.end) {
        ext_split_tail(b, e, to);
        ext_set_range(e, e->range.start, to);
        chm_tree_refresh(&e->range);
    }
    if (ext_has_bytes(e)) {
        ext_give(fw, e->off + (from - e->range.start), to - from);
    }
    if (from > e->range.start) {
        ext_set_range(e, e->range.start, from);
        chm_tree_refresh(&e->range);
        return;
    }
    chm_tree_remove(&b->map, &e->range);
    e->off += to - e->range.start;
    ext_set_range(e, to, e->range.end);
    chm_tree_insert(&b->map, &e->range);
}

/* Everything older in [start, end) that no I/O carries yet. */
static void wbuf_supersede(struct chm_fw *fw, uint64_t start, uint64_t end)
{
    struct chm_node *n = chm_tree_overlap(&fw->wbuf.map, start, end);

    while (n) {
        struct chm_ext *e = CHM_CONTAINER(n, struct chm_ext, range);

        n = chm_tree_overlap_next(n, start, end);
        if (e->state == EXT_DIRTY || e->state == EXT_LOST) {
            ext_cut(fw, e, start, end);
        }
    }
}

static void wbuf_enter(struct chm_fw *fw, struct chm_ext *e)
{
    struct chm_wbuf *b = &fw->wbuf;

    wbuf_supersede(fw, e->range.start, e->range.end);
    chm_window_forget(&fw->window, e->range.start, chm_ext_len(e));
    e->state = EXT_DIRTY;
    e->seq = ++b->seq;
    e->reads_before = fw->seq;
    e->commit_ns = fw->now_ns;
    chm_tree_insert(&b->map, &e->range);
    chm_list_push(&b->pending, &e->pending);
    chm_list_push(&b->dirty, &e->dirty);
}

void chm_wbuf_commit(struct chm_fw *fw, struct chm_ext *e)
{
    CHM_ASSERT(e->state == EXT_OPEN);
    fw->wbuf.open--;
    fw->wbuf.dirty_bytes += chm_ext_len(e);
    wbuf_enter(fw, e);
}

int chm_wbuf_trim(struct chm_fw *fw, uint64_t addr, uint64_t len)
{
    struct chm_wbuf *b = &fw->wbuf;
    struct chm_ext *e;

    if (b->exts_free < b->open + b->exts_aside + 2) {
        return -EAGAIN;
    }
    e = ext_new(b);
    e->trim = true;
    ext_set_range(e, addr, addr + len);
    wbuf_enter(fw, e);
    return 0;
}

/* Some read still needs what the drive holds there, or an older flush of it is under way. A read
 * that began after the commit has copied these bytes and needs nothing: else reads that follow each
 * other without a gap would keep a flush off for ever. */
static bool ext_blocked(struct chm_fw *fw, const struct chm_ext *e)
{
    uint64_t start = e->range.start, end = e->range.end;

    for (struct chm_node *n = chm_tree_overlap(&fw->reading, start, end); n;
         n = chm_tree_overlap_next(n, start, end)) {
        if (CHM_CONTAINER(n, struct chm_fetch, range)->seq <= e->reads_before) {
            return true;
        }
    }
    for (struct chm_node *n = chm_tree_overlap(&fw->wbuf.map, start, end); n;
         n = chm_tree_overlap_next(n, start, end)) {
        if (CHM_CONTAINER(n, struct chm_ext, range)->state == EXT_FLUSHING) {
            return true;
        }
    }
    return false;
}

/* The oldest dirty extent that may go. */
static struct chm_ext *wbuf_pick(struct chm_fw *fw)
{
    struct chm_wbuf *b = &fw->wbuf;
    struct chm_link *link = chm_list_first(&b->dirty);

    for (int looked = 0; link && looked < TAKE_LOOK_MAX; looked++) {
        struct chm_ext *e = CHM_CONTAINER(link, struct chm_ext, dirty);

        if (!ext_blocked(fw, e)) {
            return e;
        }
        link = chm_list_next(&b->dirty, link);
    }
    return NULL;
}

static void ext_start(struct chm_fw *fw, struct chm_ext *e)
{
    CHM_ASSERT(e->state == EXT_DIRTY);
    e->state = EXT_FLUSHING;
    e->unit_next = NULL;
    chm_list_remove(&e->dirty);
    if (!e->trim) {
        fw->wbuf.dirty_bytes -= chm_ext_len(e);
    }
}

/* The dirty extent that continues e both in address and in buffer, whole within max bytes; or NULL.
 */
static struct chm_ext *ext_neighbour(struct chm_fw *fw, struct chm_ext *e, uint64_t max)
{
    uint64_t end = e->range.end;
    struct chm_node *n = chm_tree_overlap(&fw->wbuf.map, end, end + 1);
    struct chm_ext *next;

    if (!n || n->start != end) {
        return NULL;
    }
    next = CHM_CONTAINER(n, struct chm_ext, range);
    if (next->state != EXT_DIRTY || next->trim || chm_ext_len(next) > max ||
        next->off != e->off + chm_ext_len(e) || ext_blocked(fw, next)) {
        return NULL;
    }
    return next;
}

/* Add whole neighbours to a unit that ends with e, up to max more bytes; returns how many. */
static uint64_t unit_extend(struct chm_fw *fw, struct chm_ext *e, uint64_t max)
{
    uint64_t added = 0;
    struct chm_ext *next;

    while ((next = ext_neighbour(fw, e, max - added)) != NULL) {
        ext_start(fw, next);
        e->unit_next = next;
        added += chm_ext_len(next);
        e = next;
    }
    return added;
}

/* Make e no longer than len: what is behind stays dirty, an extent of its own, so that each unit
 * gives its buffer space back as soon as it is written. Extents for as many units as may be in
 * flight are set aside. */
static void ext_shorten(struct chm_wbuf *b, struct chm_ext *e, uint64_t len)
{
    if (len < chm_ext_len(e)) {
        ext_split_tail(b, e, e->range.start + len);
        ext_set_range(e, e->range.start, e->range.start + len);
        chm_tree_refresh(&e->range);
    }
}

bool chm_wbuf_take(struct chm_fw *fw, struct chm_fio *fio, uint64_t max)
{
    struct chm_ext *e = wbuf_pick(fw);
    struct chm_spot spot;
    uint64_t addr;

    if (!e) {
        return false;
    }
    addr = e->range.start;
    if (e->trim) {
        max = fw->medium->caps.transfer_max / fw->granule * fw->granule;
    }
    spot = chm_map_spot(&fw->map, addr, chm_min(fw->map.capacity_bytes - addr, max));
    ext_shorten(&fw->wbuf, e, spot.len);
    ext_start(fw, e);
    fio->exts = e;
    fio->addr = addr;
    fio->io.kind = e->trim ? CHM_IO_TRIM : CHM_IO_WRITE;
    fio->io.member = (uint16_t)spot.member;
    fio->io.off = spot.off;
    fio->io.buf = e->trim ? NULL : fw->memory + e->off;
    fio->io.region = 0;
    fio->io.len = (uint32_t)chm_ext_len(e);
    if (!e->trim) {
        fio->io.len += (uint32_t)unit_extend(fw, e, spot.len - fio->io.len);
    }
    fio->unit_bytes = fio->io.len;
    return true;
}

/* The first dirty extent that touches [start, end), or NULL. */
static struct chm_ext *wbuf_first_dirty(struct chm_wbuf *b, uint64_t start, uint64_t end)
{
    struct chm_node *n = start < end ? chm_tree_overlap(&b->map, start, end) : NULL;

    while (n && CHM_CONTAINER(n, struct chm_ext, range)->state != EXT_DIRTY) {
        n = chm_tree_overlap_next(n, start, end);
    }
    return n ? CHM_CONTAINER(n, struct chm_ext, range) : NULL;
}

/* Lost extents no longer count in [start, end), which was written since. Where the table is too
 * full to cut one, it stays whole: reads fail there until it is written again, which is safe. */
static void wbuf_cut_lost(struct chm_fw *fw, uint64_t start, uint64_t end)
{
    struct chm_node *n = chm_tree_overlap(&fw->wbuf.map, start, end);

    while (n && fw->wbuf.exts_free > fw->wbuf.open + fw->wbuf.exts_aside) {
        struct chm_ext *e = CHM_CONTAINER(n, struct chm_ext, range);

        n = chm_tree_overlap_next(n, start, end);
        if (e->state == EXT_LOST) {
            ext_cut(fw, e, start, end);
        }
    }
}

static void wbuf_check_degraded(struct chm_fw *fw)
{
    fw->degraded = fw->degraded || fw->wbuf.lost > LOST_MAX || fw->wbuf.lost_all;
}

/* The bytes of e are gone. What newer commits cover is fine; the rest cannot be read any more. */
static void ext_lose(struct chm_fw *fw, struct chm_ext *e)
{
    struct chm_wbuf *b = &fw->wbuf;
    uint64_t start = e->range.start, end = e->range.end;
    struct chm_ext *newer;

    fw->stats.lost_bytes += chm_ext_len(e);
    chm_durable_note_loss(fw, e->seq, e->seq);
    if (!e->trim) {
        ext_give(fw, e->off, chm_ext_len(e));
    }
    e->state = EXT_LOST;
    chm_list_remove(&e->pending);
    chm_list_push(&b->lost_list, &e->pending);
    b->lost++;
    for (uint64_t at = start; (newer = wbuf_first_dirty(b, at, end)) != NULL;
         at = newer->range.end) {
        wbuf_cut_lost(fw, newer->range.start, newer->range.end);
    }
    wbuf_check_degraded(fw);
}

static void ext_written(struct chm_fw *fw, struct chm_ext *e)
{
    chm_hist_add(&fw->stats.flush_age_ns, fw->now_ns - chm_min(fw->now_ns, e->commit_ns));
    if (e->trim) {
        fw->stats.trimmed_bytes += chm_ext_len(e);
    } else {
        fw->stats.flushed_bytes += chm_ext_len(e);
        fw->durable.settled_bytes += chm_ext_len(e);
    }
    ext_free(fw, e);
}

void chm_wbuf_landed(struct chm_fw *fw, struct chm_fio *fio, int32_t res)
{
    struct chm_ext *e = fio->exts;

    fio->exts = NULL;
    while (e) {
        struct chm_ext *next = e->unit_next;

        e->unit_next = NULL;
        if (res < 0) {
            ext_lose(fw, e);
        } else {
            ext_written(fw, e);
        }
        e = next;
    }
}

/* ---- under a transparent cache */

static void wbuf_take_over(struct chm_fw *fw, struct chm_ext *e)
{
    struct chm_wbuf *b = &fw->wbuf;

    e->state = EXT_LANDED;
    e->seq = ++b->seq;
    e->commit_ns = fw->now_ns;
    chm_list_push(&b->pending, &e->pending);
}

void chm_wbuf_land(struct chm_fw *fw, struct chm_ext *e)
{
    CHM_ASSERT(e->state == EXT_OPEN);
    fw->wbuf.open--;
    fw->wbuf.dirty_bytes += chm_ext_len(e);
    wbuf_take_over(fw, e);
}

int chm_wbuf_land_trim(struct chm_fw *fw, uint64_t addr, uint64_t len, struct chm_ext **out)
{
    struct chm_wbuf *b = &fw->wbuf;

    if (b->exts_free < b->open + b->exts_aside + 2) {
        return -EAGAIN;
    }
    *out = ext_new(b);
    (*out)->trim = true;
    ext_set_range(*out, addr, addr + len);
    wbuf_take_over(fw, *out);
    return 0;
}

void chm_wbuf_drop(struct chm_fw *fw, struct chm_ext *e)
{
    CHM_ASSERT(e->state == EXT_LANDED);
    fw->wbuf.dirty_bytes -= e->trim ? 0 : chm_ext_len(e);
    ext_free(fw, e);
}

void chm_wbuf_lose(struct chm_fw *fw, uint64_t start, uint64_t end, uint64_t first, uint64_t last)
{
    struct chm_wbuf *b = &fw->wbuf;

    fw->stats.lost_bytes += end - start;
    chm_durable_note_loss(fw, first, last);
    chm_wbuf_forgive(fw, start, end); /* lost extents do not overlap */
    if (b->exts_free == 0) {
        b->lost_all = true;
    } else {
        struct chm_ext *e = ext_new(b);

        e->state = EXT_LOST;
        ext_set_range(e, start, end);
        chm_tree_insert(&b->map, &e->range);
        chm_list_push(&b->lost_list, &e->pending);
        b->lost++;
    }
    wbuf_check_degraded(fw);
}

void chm_wbuf_forgive(struct chm_fw *fw, uint64_t start, uint64_t end)
{
    if (fw->wbuf.lost) {
        wbuf_cut_lost(fw, start, end);
    }
}

bool chm_wbuf_is_lost(struct chm_fw *fw, uint64_t start, uint64_t end)
{
    return fw->wbuf.lost_all ||
           (fw->wbuf.lost && chm_tree_overlap(&fw->wbuf.map, start, end) != NULL);
}

uint64_t chm_wbuf_settled(const struct chm_wbuf *b)
{
    if (b->pending.next == &b->pending) {
        return b->seq;
    }
    return CHM_CONTAINER(b->pending.next, struct chm_ext, pending)->seq - 1;
}

uint64_t chm_wbuf_oldest_ns(const struct chm_wbuf *b)
{
    if (b->pending.next == &b->pending) {
        return UINT64_MAX;
    }
    return CHM_CONTAINER(b->pending.next, struct chm_ext, pending)->commit_ns;
}
