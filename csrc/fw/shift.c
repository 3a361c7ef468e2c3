/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shift.c - see shift.h.
 *
 * Invariants: in_start <= moved <= in_end; bytes before `moved` lie where they belong, and no I/O
 * writes to where they lie; tails are kept only while moved < in_end. Whenever an I/O has landed,
 * all that it made contiguous is moved: so what has landed from the front is in its place.
 */
#include "fw/shift.h"

#include <string.h>

#include "fw/device.h"
#include "util/util.h"

/* Below, copying costs less than the further I/Os that the ends take. */
enum { INNER_MIN = 256 << 10 };

void chm_shift_forget(struct chm_fetch *f)
{
    f->in_start = f->in_end = f->moved = f->addr;
    f->shift = 0;
}

void chm_shift_plan(struct chm_fw *fw, struct chm_fetch *f)
{
    uint64_t g = fw->granule, align = fw->medium->caps.align_bytes;
    uint64_t start = chm_round_up(f->user_addr, g), end = f->user_addr + f->user_len;
    uint64_t head = start - f->user_addr, shift;

    chm_shift_forget(f);
    if (f->user_len < INNER_MIN) {
        return;
    }
    shift = (align - (uintptr_t)(f->user + head) % align) % align;
    if (head + shift >= f->user_len) {
        return;
    }
    end = start + (end - start - shift) / g * g;
    if (end - start < INNER_MIN || (f->addr + f->len - end) / g > CHM_SHIFT_TAILS) {
        return;
    }
    f->in_start = f->moved = start;
    f->in_end = end;
    f->shift = shift;
    f->place = f->user + head + shift;
    f->region = chm_fw_region(fw, f->place, end - start);
}

uint8_t *chm_shift_target(const struct chm_fetch *f, uint64_t *len)
{
    uint64_t at = f->holes->start, n = f->holes->end - at;
    uint8_t *to = NULL;

    if (f->dest) {
        to = f->dest + (at - f->addr);
    } else if (at < f->in_start) {
        n = chm_min(n, f->in_start - at);
    } else if (at < f->in_end) {
        n = chm_min(n, f->in_end - at);
        to = f->place + (at - f->in_start);
    }
    *len = chm_min(*len, n);
    return to;
}

static void keep_tail(struct chm_fetch *f, struct chm_fio *fio, uint64_t start)
{
    CHM_ASSERT(f->tails < CHM_SHIFT_TAILS);
    f->tail[f->tails++] = (struct chm_tail){.start = start,
                                            .len = fio->unit_bytes,
                                            .bounce = fio->bounce,
                                            .bounce_bytes = (uint32_t)fio->bounce_bytes};
    fio->bounce = CHM_RUNS_NONE; /* not to be given back with the I/O */
}

static void move_down(struct chm_fw *fw, struct chm_fetch *f)
{
    uint64_t front = chm_min(chm_fetch_landed_to(f), f->in_end);

    if (front > f->moved) {
        memmove(f->user + (f->moved - f->user_addr), f->place + (f->moved - f->in_start),
                front - f->moved);
        f->moved = front;
    }
    if (f->moved == f->in_end) {
        for (uint32_t i = 0; i < f->tails; i++) {
            chm_fetch_put(f, f->tail[i].start, f->tail[i].start + f->tail[i].len,
                          fw->memory + f->tail[i].bounce);
        }
        chm_shift_end(fw, f);
    }
}

void chm_shift_landed(struct chm_fw *fw, struct chm_fetch *f, struct chm_fio *fio, uint64_t start)
{
    if (fio->bounce != CHM_RUNS_NONE) {
        if (f->moved < f->in_end && f->shift > 0 && start >= f->in_end) {
            keep_tail(f, fio, start);
        } else {
            chm_fetch_put(f, start, start + fio->unit_bytes, fw->memory + fio->bounce);
        }
    }
    if (f->shift > 0) {
        move_down(fw, f);
    }
}

void chm_shift_end(struct chm_fw *fw, struct chm_fetch *f)
{
    while (f->tails > 0) {
        struct chm_tail *t = &f->tail[--f->tails];

        chm_sched_bounce_give(fw, t->bounce, t->bounce_bytes);
    }
}
