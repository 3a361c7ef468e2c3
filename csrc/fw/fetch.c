/* SPDX-License-Identifier: Apache-2.0 */
/* fetch.c - see fetch.h. */
#include "fw/fetch.h"

#include <errno.h>
#include <string.h>

#include "fw/device.h"
#include "util/util.h"

static struct chm_hole *hole_new(struct chm_fw *fw)
{
    struct chm_hole *h = fw->holes_free;

    if (h) {
        fw->holes_free = h->next;
    }
    return h;
}

static void hole_free(struct chm_fw *fw, struct chm_fetch *f, struct chm_hole *h)
{
    if (h != &f->inline_hole) {
        h->next = fw->holes_free;
        fw->holes_free = h;
    }
}

static void fetch_drop_holes(struct chm_fw *fw, struct chm_fetch *f)
{
    while (f->holes) {
        struct chm_hole *h = f->holes;

        f->holes = h->next;
        hole_free(fw, f, h);
    }
    chm_list_remove(&f->queue);
}

/* Append [start, end) to the list that *tail ends. */
static int fetch_add_hole(struct chm_fw *fw, struct chm_fetch *f, struct chm_hole **tail,
                          uint64_t start, uint64_t end)
{
    struct chm_hole *h = f->holes ? hole_new(fw) : &f->inline_hole;

    if (!h) {
        return -EAGAIN;
    }
    *h = (struct chm_hole){.start = start, .end = end};
    if (*tail) {
        (*tail)->next = h;
    } else {
        f->holes = h;
    }
    *tail = h;
    return 0;
}

/* What the write buffer does not hold of the range. Extents come in order of start and may overlap.
 */
static int fetch_find_holes(struct chm_fw *fw, struct chm_fetch *f)
{
    uint64_t at = f->addr, end = f->addr + f->len;
    struct chm_hole *tail = NULL;
    int rc = 0;

    for (struct chm_node *n = chm_tree_overlap(&fw->wbuf.map, at, end); n && rc == 0;
         n = chm_tree_overlap_next(n, f->addr, end)) {
        if (CHM_CONTAINER(n, struct chm_ext, range)->state == EXT_LOST) {
            return -EIO;
        }
        if (n->start > at) {
            rc = fetch_add_hole(fw, f, &tail, at, n->start);
        }
        at = chm_max(at, n->end);
    }
    if (rc == 0 && at < end) {
        rc = fetch_add_hole(fw, f, &tail, at, end);
    }
    return rc;
}

void chm_fetch_put(struct chm_fetch *f, uint64_t start, uint64_t end, const uint8_t *src)
{
    uint8_t *to;

    if (f->dest) {
        to = f->dest + (start - f->addr);
    } else {
        uint64_t from = chm_max(start, f->user_addr);

        end = chm_min(end, f->user_addr + f->user_len);
        if (from >= end) {
            return;
        }
        src = src ? src + (from - start) : NULL;
        start = from;
        to = f->user + (start - f->user_addr);
    }
    if (src) {
        memcpy(to, src, end - start);
    } else {
        memset(to, 0, end - start);
    }
}

/* One layer of the write buffer: extents in the given state. */
static void fetch_copy_layer(struct chm_fw *fw, struct chm_fetch *f, uint8_t state)
{
    uint64_t end = f->addr + f->len;

    for (struct chm_node *n = chm_tree_overlap(&fw->wbuf.map, f->addr, end); n;
         n = chm_tree_overlap_next(n, f->addr, end)) {
        struct chm_ext *e = CHM_CONTAINER(n, struct chm_ext, range);
        uint64_t from = chm_max(n->start, f->addr);
        uint64_t to = chm_min(n->end, end);

        if (e->state == state) {
            chm_fetch_put(f, from, to, e->trim ? NULL : fw->memory + e->off + (from - n->start));
            fw->stats.buffered_bytes += to - from;
        }
    }
}

/* Nothing left to read and nothing in flight: it is done, which chm_fetch_finish_all will tell. */
static void fetch_check_done(struct chm_fw *fw, struct chm_fetch *f)
{
    if (f->active && !f->done && f->ios == 0 && !f->holes) {
        f->done = true;
        chm_list_push(&fw->finished, &f->queue);
    }
}

int chm_fetch_begin(struct chm_fw *fw, struct chm_fetch *f)
{
    int rc;

    f->holes = NULL;
    f->ios = 0;
    f->err = 0;
    f->done = false;
    chm_list_init(&f->queue);
    chm_list_init(&f->inflight);
    rc = fetch_find_holes(fw, f);
    if (rc < 0) {
        fetch_drop_holes(fw, f);
        return rc;
    }
    if (f->shift > 0 && (!f->holes || f->holes->end - f->holes->start < f->len)) {
        chm_shift_forget(f); /* what the write buffer gives would be in the way */
    }
    fetch_copy_layer(fw, f, EXT_FLUSHING);
    fetch_copy_layer(fw, f, EXT_DIRTY);
    f->seq = ++fw->seq;
    f->active = true;
    f->range =
        (struct chm_node){.start = f->addr, .end = f->addr + f->len, .aug = f->addr + f->len};
    chm_tree_insert(&fw->reading, &f->range);
    if (f->holes) {
        chm_sched_queue(fw, f);
    }
    fetch_check_done(fw, f);
    return 0;
}

void chm_fetch_finish_all(struct chm_fw *fw)
{
    struct chm_link *link;

    while ((link = chm_list_first(&fw->finished)) != NULL) {
        struct chm_fetch *f = CHM_CONTAINER(link, struct chm_fetch, queue);

        chm_list_remove(link);
        f->active = false;
        chm_shift_end(fw, f);
        chm_tree_remove(&fw->reading, &f->range);
        chm_fetch_finished(fw, f);
    }
}

void chm_fetch_cancel(struct chm_fw *fw, struct chm_fetch *f, int32_t err)
{
    if (f->active && !f->done) {
        f->err = f->err ? f->err : err;
        fetch_drop_holes(fw, f);
        fetch_check_done(fw, f);
    }
}

uint64_t chm_fetch_landed_to(const struct chm_fetch *f)
{
    uint64_t at = f->addr + f->len;

    if (f->holes) {
        at = f->holes->start;
    }
    if (f->inflight.next != &f->inflight) {
        at = chm_min(at, CHM_CONTAINER(f->inflight.next, struct chm_fio, link)->addr);
    }
    return at;
}

uint64_t chm_fetch_front(const struct chm_fetch *f)
{
    uint64_t at = chm_fetch_landed_to(f);

    if (f->dest) {
        return at - f->addr;
    }
    return at <= f->user_addr ? 0 : chm_min(at - f->user_addr, f->user_len);
}

uint64_t chm_fetch_take(struct chm_fw *fw, struct chm_fetch *f, uint64_t max, uint64_t *addr)
{
    struct chm_hole *h = f->holes;
    struct chm_spot spot = chm_map_spot(&fw->map, h->start, chm_min(h->end - h->start, max));

    *addr = h->start;
    h->start += spot.len;
    if (h->start == h->end) {
        f->holes = h->next;
        hole_free(fw, f, h);
    }
    if (!f->holes) {
        chm_list_remove(&f->queue);
    }
    return spot.len;
}

void chm_fetch_landed(struct chm_fw *fw, struct chm_fetch *f, struct chm_fio *fio)
{
    uint64_t start = fio->addr + fio->io.len - fio->unit_bytes;

    f->ios--;
    if (fio->io.res < 0 && f->err == 0) {
        f->err = fio->io.res;
        fetch_drop_holes(fw, f);
    }
    if (f->err == 0) {
        if (!f->dest) {
            chm_shift_landed(fw, f, fio, start);
        }
        chm_fetch_moved(fw, f);
    }
    fetch_check_done(fw, f);
}
