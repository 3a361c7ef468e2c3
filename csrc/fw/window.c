/* SPDX-License-Identifier: Apache-2.0 */
/* window.c - see window.h. */
#include "fw/window.h"

#include "util/util.h"

uint64_t chm_window_cost(const struct chm_window *w, uint64_t len)
{
    return chm_round_up(len, len >= w->frame_bytes ? w->frame_bytes : w->granule);
}

static void window_count(struct chm_window *w, uint64_t bytes)
{
    w->used_bytes += bytes;
    w->peak_bytes = chm_max(w->peak_bytes, w->used_bytes);
}

static uint64_t window_take_frames(struct chm_window *w, uint64_t len)
{
    uint64_t frames = chm_round_up(len, w->frame_bytes) / w->frame_bytes;
    uint64_t at = chm_runs_take(&w->frames, frames, 0);

    if (at == CHM_RUNS_NONE) {
        return CHM_RUNS_NONE;
    }
    window_count(w, frames * w->frame_bytes);
    return w->base + at * w->frame_bytes;
}

/* A run of n granules within frame, which is shared or becomes so. The bitmap of granules is cut to
 * the frame, so that a run never leaves it. */
static uint64_t window_take_within(struct chm_window *w, uint64_t frame, uint64_t n)
{
    uint64_t per = w->frame_bytes / w->granule;
    uint64_t end = (frame + 1) * per;

    for (uint64_t at = frame * per; at < end;) {
        uint64_t stop;

        at = chm_bits_next_clear(w->granules.words, at, end);
        stop = chm_bits_next_set(w->granules.words, at, end);
        if (stop - at >= n) {
            chm_runs_claim(&w->granules, at, n);
            w->shared_used[frame] += (uint32_t)n;
            return w->base + at * w->granule;
        }
        at = stop;
    }
    return CHM_RUNS_NONE;
}

static uint64_t window_take_shared(struct chm_window *w, uint64_t len)
{
    uint64_t n = chm_round_up(len, w->granule) / w->granule;
    uint64_t per = w->frame_bytes / w->granule;
    uint64_t off = CHM_RUNS_NONE, frame;

    for (frame = 0; frame < w->frames.units && off == CHM_RUNS_NONE; frame++) {
        if (w->shared_used[frame] && w->shared_used[frame] + n <= per) {
            off = window_take_within(w, frame, n);
        }
    }
    if (off == CHM_RUNS_NONE) {
        frame = chm_runs_take(&w->frames, 1, 0);
        if (frame == CHM_RUNS_NONE) {
            return CHM_RUNS_NONE;
        }
        off = window_take_within(w, frame, n);
    }
    window_count(w, n * w->granule);
    return off;
}

uint64_t chm_window_take(struct chm_window *w, uint64_t len)
{
    return len >= w->frame_bytes ? window_take_frames(w, len) : window_take_shared(w, len);
}

void chm_window_give(struct chm_window *w, uint64_t off, uint64_t len)
{
    uint64_t frame = (off - w->base) / w->frame_bytes;

    w->used_bytes -= chm_window_cost(w, len);
    if (len >= w->frame_bytes) {
        chm_runs_give(&w->frames, frame, chm_round_up(len, w->frame_bytes) / w->frame_bytes);
        return;
    }
    uint64_t n = chm_round_up(len, w->granule) / w->granule;

    chm_runs_give(&w->granules, (off - w->base) / w->granule, n);
    w->shared_used[frame] -= (uint32_t)n;
    if (w->shared_used[frame] == 0) {
        chm_runs_give(&w->frames, frame, 1);
    }
}

uint64_t chm_window_largest(const struct chm_window *w)
{
    return chm_runs_largest(&w->frames) * w->frame_bytes;
}

static bool slot_in_reserve(struct chm_slot *s, struct chm_reserve *r, uint64_t len)
{
    if (r->closing || len > r->run_bytes) {
        return false;
    }
    for (uint32_t i = 0; i < r->runs; i++) {
        if (!(r->busy & (1u << i))) {
            r->busy |= 1u << i;
            s->reserve = r;
            s->reserve_run = i;
            s->off = r->run[i];
            s->bytes = r->run_bytes;
            return true;
        }
    }
    return false;
}

struct chm_slot *chm_slot_new(struct chm_window *w, struct chm_reserve *r, uint64_t len)
{
    struct chm_link *link = chm_list_first(&w->free_slots);
    struct chm_slot *s;

    if (!link) {
        return NULL;
    }
    s = CHM_CONTAINER(link, struct chm_slot, link);
    CHM_ASSERT(s->state == SLOT_FREE && s->refs == 0 && !s->find.linked && !s->fetch.active);
    s->reserve = NULL;
    if (r) {
        if (!slot_in_reserve(s, r, len)) {
            return NULL;
        }
    } else {
        s->off = chm_window_take(w, len);
        s->bytes = len;
        if (s->off == CHM_RUNS_NONE) {
            return NULL;
        }
    }
    chm_list_remove(link);
    chm_list_init(&s->requests);
    w->pinned_bytes += chm_window_cost(w, s->bytes);
    s->state = SLOT_READING;
    return s;
}

static void reserve_free_run(struct chm_window *w, struct chm_reserve *r, uint32_t i)
{
    chm_window_give(w, r->run[i], r->run_bytes);
    w->reserved_bytes -= chm_window_cost(w, r->run_bytes);
}

void chm_slot_free(struct chm_window *w, struct chm_slot *s)
{
    struct chm_reserve *r = s->reserve;

    CHM_ASSERT(s->refs == 0 && s->state != SLOT_FREE);
    CHM_ASSERT(!s->fetch.active && s->fetch.ios == 0 && chm_list_empty(&s->requests));
    chm_tree_remove(&w->findable, &s->find);
    w->pinned_bytes -= chm_window_cost(w, s->bytes);
    if (!r) {
        chm_window_give(w, s->off, s->bytes);
    } else {
        r->busy &= ~(1u << s->reserve_run);
        if (r->closing) {
            reserve_free_run(w, r, s->reserve_run);
            if (r->busy == 0) {
                chm_list_push(&w->free_reserves, &r->free_link);
            }
        }
    }
    s->state = SLOT_FREE;
    chm_list_push(&w->free_slots, &s->link);
}

struct chm_slot *chm_slot_find(struct chm_window *w, uint64_t addr, uint64_t len)
{
    for (struct chm_node *n = chm_tree_overlap(&w->findable, addr, addr + 1); n;
         n = chm_tree_overlap_next(n, addr, addr + 1)) {
        struct chm_slot *s = CHM_CONTAINER(n, struct chm_slot, find);

        /* One whose read has failed already, but not ended, would pass its error on. */
        if (n->start <= addr && n->end >= addr + len && s->fetch.err == 0) {
            return s;
        }
    }
    return NULL;
}

void chm_window_forget(struct chm_window *w, uint64_t addr, uint64_t len)
{
    struct chm_node *n;

    while ((n = chm_tree_overlap(&w->findable, addr, addr + len)) != NULL) {
        chm_tree_remove(&w->findable, n);
    }
}

struct chm_reserve *chm_reserve_new(struct chm_window *w, uint64_t run_bytes, uint32_t n)
{
    struct chm_link *link = chm_list_first(&w->free_reserves);
    struct chm_reserve *r;

    if (!link) {
        return NULL;
    }
    r = CHM_CONTAINER(link, struct chm_reserve, free_link);
    for (uint32_t i = 0; i < n; i++) {
        r->run[i] = chm_window_take(w, run_bytes);
        if (r->run[i] == CHM_RUNS_NONE) {
            while (i-- > 0) {
                chm_window_give(w, r->run[i], run_bytes);
            }
            return NULL;
        }
    }
    chm_list_remove(link);
    r->run_bytes = run_bytes;
    r->runs = n;
    r->busy = 0;
    r->closing = false;
    w->reserved_bytes += n * chm_window_cost(w, run_bytes);
    return r;
}

void chm_reserve_close(struct chm_window *w, struct chm_reserve *r)
{
    CHM_ASSERT(!r->closing);
    r->closing = true;
    for (uint32_t i = 0; i < r->runs; i++) {
        if (!(r->busy & (1u << i))) {
            reserve_free_run(w, r, i);
        }
    }
    if (r->busy == 0) {
        chm_list_push(&w->free_reserves, &r->free_link);
    }
}
