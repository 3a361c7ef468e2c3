/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media_fault.c - a wrapper that misbehaves on purpose, from a script or a seed (chm.h,
 * struct chm_fault_options; fault_plan.c decides which I/O gets what).
 *
 *     err, lost, short 0, torn 0    not forwarded; handed back at once
 *     short, torn                   forwarded cut down to the bytes that are to move
 *     late, swap                    forwarded whole; handed back later
 *     never                         not forwarded; kept until close()
 *
 * Transfers move whole blocks: a short write is rounded down to them; a short read moves the rest
 * of its last block too but reports exactly the bytes asked for. A swapped I/O is held back until
 * another one has been given, or nothing is left that could be.
 */
#include <errno.h>
#include <stdlib.h>

#include "media/fault_plan.h"
#include "media/wrap.h"
#include "util/util.h"

struct chm_faulty {
    struct chm_wrap w;
    struct chm_fault_plan plan;
    struct chm_io_fifo swapped; /* shadows held back by "swap" */
};

static struct chm_faulty *faulty_of(struct chm_wrap *w)
{
    return CHM_CONTAINER(w, struct chm_faulty, w);
}

/* Give s, and behind it whatever was to be handed back after the next one. */
static void give(struct chm_faulty *f, struct chm_shadow *s, uint64_t at_ns)
{
    struct chm_io *held;

    chm_wrap_give(&f->w, s, at_ns);
    while ((held = chm_io_fifo_pop(&f->swapped)) != NULL) {
        uint64_t done_ns = chm_max(held->done_ns, at_ns);
        chm_wrap_give(&f->w, CHM_CONTAINER(held, struct chm_shadow, io), done_ns);
    }
}

static void give_now(struct chm_faulty *f, struct chm_shadow *s, int32_t res)
{
    s->io.res = res;
    give(f, s, s->io.submit_ns);
}

/* Forward the first `bytes` of a transfer; what is reported in the end is in s->arg. */
static void forward_part(struct chm_faulty *f, struct chm_shadow *s, uint64_t bytes,
                         uint64_t report)
{
    s->arg = report;
    if (bytes == 0) {
        give_now(f, s, (int32_t)report);
        return;
    }
    s->io.len = (uint32_t)bytes;
    chm_wrap_forward(&f->w, s);
}

static void forward_short(struct chm_faulty *f, struct chm_shadow *s, uint64_t bytes)
{
    uint32_t block = f->w.m.caps.block_bytes;
    uint64_t whole = bytes - bytes % block;

    if (s->io.kind == CHM_IO_WRITE) {
        forward_part(f, s, whole, whole);
    } else {
        forward_part(f, s, chm_round_up(bytes, block), bytes);
    }
}

static void forward_torn(struct chm_faulty *f, struct chm_shadow *s, uint64_t bytes)
{
    forward_part(f, s, bytes - bytes % f->w.m.caps.block_bytes, s->io.len);
}

static void dispatch(struct chm_faulty *f, struct chm_shadow *s, struct chm_fault_verdict v)
{
    bool cuts = v.fault == CHM_FAULT_SHORT || v.fault == CHM_FAULT_TORN;

    s->tag = cuts && v.arg >= s->io.len ? CHM_FAULT_NONE : (uint32_t)v.fault;
    s->arg = v.arg;
    switch (s->tag) {
    case CHM_FAULT_ERR:
        give_now(f, s, -(int32_t)v.arg);
        break;
    case CHM_FAULT_SHORT:
        forward_short(f, s, v.arg);
        break;
    case CHM_FAULT_TORN:
        forward_torn(f, s, v.arg);
        break;
    case CHM_FAULT_LOST:
        give_now(f, s, (int32_t)s->io.len);
        break;
    case CHM_FAULT_NEVER:
        break;
    default:
        chm_wrap_forward(&f->w, s);
        break;
    }
}

static unsigned fault_submit(struct chm_medium *m, struct chm_io *const *ios, unsigned n)
{
    struct chm_faulty *f = faulty_of(CHM_CONTAINER(m, struct chm_wrap, m));
    uint64_t now_ns = chm_medium_now(m);
    unsigned i;

    for (i = 0; i < n; i++) {
        struct chm_fault_verdict v = {.fault = CHM_FAULT_NONE};
        struct chm_shadow *s = chm_wrap_take(&f->w, ios[i], now_ns);
        if (!s) {
            break;
        }
        if (chm_io_check(&m->caps, &s->io) == 0) {
            v = chm_fault_plan_next(&f->plan, &s->io, m->caps.block_bytes);
        }
        dispatch(f, s, v);
    }
    chm_wrap_flush(&f->w);
    return i;
}

/* Hold a swapped I/O back if another one is still to come; behind the next of those that wait for
 * their time, if there are any. */
static void finish_swapped(struct chm_faulty *f, struct chm_shadow *s)
{
    if (f->w.ready.count > 0) {
        chm_wrap_give(&f->w, s, chm_max(s->io.done_ns, chm_io_heap_next(&f->w.ready)));
    } else if (f->w.inner_held > 0) {
        chm_io_fifo_push(&f->swapped, &s->io);
    } else {
        give(f, s, s->io.done_ns);
    }
}

static void fault_finished(struct chm_wrap *w, struct chm_shadow *s)
{
    struct chm_faulty *f = faulty_of(w);
    bool cut = s->tag == CHM_FAULT_SHORT || s->tag == CHM_FAULT_TORN;

    if (cut && s->io.res >= 0) {
        s->io.res = (int32_t)s->arg;
    }
    if (s->tag == CHM_FAULT_SWAP) {
        finish_swapped(f, s);
    } else {
        uint64_t late_ns = s->tag == CHM_FAULT_LATE ? s->arg : 0;
        give(f, s, chm_sat_add(s->io.done_ns, late_ns));
    }
}

/* What was never handed back needs no waiting for: nobody has it. */
static int fault_close(struct chm_medium *m, uint64_t deadline_ns)
{
    struct chm_faulty *f = faulty_of(CHM_CONTAINER(m, struct chm_wrap, m));
    int rc = chm_wrap_close(&f->w, deadline_ns);

    if (rc == 0) {
        chm_fault_plan_close(&f->plan);
        free(f);
    }
    return rc;
}

static const struct chm_medium_ops fault_ops = {
    .submit = fault_submit,
    .reap = chm_wrap_reap,
    .now = chm_wrap_now,
    .wake = chm_wrap_wake,
    .close = fault_close,
};

int chm_media_fault_open(const struct chm_media_args *args, struct chm_medium *inner,
                         struct chm_medium **out, struct chm_error *err)
{
    struct chm_faulty *f = calloc(1, sizeof(*f));
    int rc;

    if (!f) {
        return chm_media_fail(err, -ENOMEM, "no memory for the fault wrapper");
    }
    rc = chm_fault_plan_open(&f->plan, &args->opts->fault, err);
    if (rc) {
        goto fail;
    }
    rc = chm_wrap_open(&f->w, inner, &fault_ops, fault_finished, "fault");
    if (rc) {
        rc = chm_media_fail(err, rc, "no memory for the fault wrapper");
        goto fail_plan;
    }
    *out = &f->w.m;
    return 0;
fail_plan:
    chm_fault_plan_close(&f->plan);
fail:
    free(f);
    return rc;
}
