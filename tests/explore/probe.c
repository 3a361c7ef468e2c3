/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c - watches the medium, and cuts the power (explore.h).
 *
 *     firmware -> above -> faults (if the plan has some) -> below -> simulated medium
 *
 * Below sees what really reaches the drive: the first word of every page it writes names the
 * version. Above sees what the firmware is told. When a write is reported as done and the drive
 * holds other bytes, the drive lied, and the model has to know.
 *
 * A power cut happens at a write, while it is on its way or when it has landed but nobody knows:
 * from then on the medium above answers -ENODEV. The simulated medium itself stays with the run,
 * and the next device is opened over it.
 */
#include "explore/explore.h"
#include "media/media_sim.h"
#include "media/wrap.h"

enum { REAPS_MAX = 400000 /* of one run: more is a loop that waits in vain */ };

static struct probe *probe_of(struct chm_medium *m)
{
    return CHM_CONTAINER(m, struct probe, m);
}

/* ------------------------------------------------------------------ what is where */

static uint64_t page_of(const struct run *r, uint32_t member, uint64_t off)
{
    uint64_t at = off - MIB, stripe = r->info.stripe_bytes;

    return ((at / stripe * r->info.members + member) * stripe + at % stripe) / PAGE;
}

static uint64_t first_word(const struct chm_io *io, uint64_t at)
{
    uint64_t word = 0;

    if (io->kind == CHM_IO_WRITE) {
        memcpy(&word, (const uint8_t *)io->buf + at, sizeof(word));
    }
    return word;
}

static uint64_t changed_bytes(const struct chm_io *io)
{
    if (io->res < 0 || (io->kind != CHM_IO_WRITE && io->kind != CHM_IO_TRIM)) {
        return 0;
    }
    return io->kind == CHM_IO_TRIM ? io->len : chm_min((uint32_t)io->res, io->len);
}

/* The drive has these bytes now. */
static void drive_changed(struct run *r, const struct chm_io *io)
{
    uint64_t len = changed_bytes(io);

    for (uint64_t at = chm_round_up(io->off, PAGE) - io->off; at + 8 <= len; at += PAGE) {
        r->model.page[page_of(r, io->member, io->off + at)].drive = first_word(io, at);
    }
}

/* The firmware is told that the drive has these bytes. A lie is over when the drive has the newest
 * ones: a line cache may read what an old lie left there, and write that back honestly. */
static void drive_told(struct run *r, const struct chm_io *io)
{
    uint64_t len = changed_bytes(io);

    for (uint64_t at = chm_round_up(io->off, PAGE) - io->off; at + PAGE <= len; at += PAGE) {
        struct page *pg = &r->model.page[page_of(r, io->member, io->off + at)];
        uint64_t word = first_word(io, at);
        if (pg->drive != word) {
            pg->lied = true;
        } else if (pg->lied && word == r->model.versions[pg->newest].key) {
            pg->lied = false;
            pg->lied_until = r->model.changes;
        }
    }
}

/* ------------------------------------------------------------------ below the faults */

static unsigned below_submit(struct chm_medium *m, struct chm_io *const *ios, unsigned n)
{
    return chm_medium_submit(probe_of(m)->inner, ios, n);
}

static int below_reap(struct chm_medium *m, struct chm_io **out, unsigned max, uint64_t deadline_ns)
{
    struct probe *p = probe_of(m);
    int n = chm_medium_reap(p->inner, out, max, deadline_ns);

    for (int i = 0; i < n; i++) {
        drive_changed(p->run, out[i]);
    }
    return n;
}

static uint64_t probe_now(struct chm_medium *m)
{
    return chm_medium_now(probe_of(m)->inner);
}

static void probe_wake(struct chm_medium *m)
{
    chm_medium_wake(probe_of(m)->inner);
}

/* The bytes outlive the device that wrote them. */
static int below_close(struct chm_medium *m, uint64_t deadline_ns)
{
    struct run *r = probe_of(m)->run;

    if (r->keep_medium) {
        return 0;
    }
    r->sim = NULL;
    return chm_medium_close(probe_of(m)->inner, deadline_ns);
}

static const struct chm_medium_ops below_ops = {
    .submit = below_submit,
    .reap = below_reap,
    .now = probe_now,
    .wake = probe_wake,
    .close = below_close,
};

/* ------------------------------------------------------------------ above the faults */

void probe_cut(struct run *r)
{
    if (!r->cut) {
        r->cut = true;
        r->cuts++;
        chm_sim_power_cut(r->sim, r->c->seed + r->writes);
        run_note(r, r->writes);
        run_say(r, "        power cut at write %" PRIu64 "%s\n", r->writes,
                r->cut_late ? ", when it had landed" : "");
    }
}

static unsigned above_submit(struct chm_medium *m, struct chm_io *const *ios, unsigned n)
{
    struct run *r = probe_of(m)->run;
    unsigned i = 0;

    for (i = 0; i < n && !r->cut; i++) {
        if (chm_medium_submit(probe_of(m)->inner, &ios[i], 1) != 1) {
            return i;
        }
        r->writes += ios[i]->kind == CHM_IO_WRITE;
        if (r->writes == r->cut_at && ios[i]->kind == CHM_IO_WRITE && !r->cut_late) {
            probe_cut(r);
        }
    }
    return r->cut ? n : i; /* without power nothing comes back */
}

static void above_watch(struct run *r, const struct chm_io *io)
{
    drive_told(r, io);
    run_note(r, (uint64_t)io->kind << 32 ^ (uint64_t)(int64_t)io->res);
    run_note(r, io->off ^ io->done_ns << 20);
    if (io->kind == CHM_IO_WRITE && r->cut_late && r->cut_at && r->writes >= r->cut_at) {
        probe_cut(r);
    }
}

static int above_reap(struct chm_medium *m, struct chm_io **out, unsigned max, uint64_t deadline_ns)
{
    struct probe *p = probe_of(m);
    struct run *r = p->run;
    int n;

    if (++r->reaps > REAPS_MAX) {
        run_fail(r, "hang", "the firmware asked the medium %d times for nothing", REAPS_MAX);
    }
    if (r->cut) {
        return -ENODEV;
    }
    n = chm_medium_reap(p->inner, out, max, deadline_ns);
    for (int i = 0; i < n && !r->cut; i++) {
        above_watch(r, out[i]);
    }
    return r->cut ? -ENODEV : n;
}

static int above_close(struct chm_medium *m, uint64_t deadline_ns)
{
    return chm_medium_close(probe_of(m)->inner, deadline_ns);
}

static const struct chm_medium_ops above_ops = {
    .submit = above_submit,
    .reap = above_reap,
    .now = probe_now,
    .wake = probe_wake,
    .close = above_close,
};

/* ------------------------------------------------------------------ between the two */

static void probe_over(struct probe *p, struct chm_medium *inner, const struct chm_medium_ops *ops,
                       struct run *r)
{
    *p = (struct probe){.m = {.ops = ops, .caps = inner->caps}, .inner = inner, .run = r};
}

/* Put the probes into a device that was just opened. It brings a medium of its own: where the run
 * has one already, that goes in its place. */
void probe_attach(struct run *r)
{
    struct chm_medium *top = r->dev->medium;
    bool faults = strncmp(top->caps.name, "fault+", 6) == 0;
    struct chm_wrap *wrap = faults ? CHM_CONTAINER(top, struct chm_wrap, m) : NULL;
    struct chm_medium *fresh = faults ? wrap->inner : top;

    if (r->sim) {
        chm_medium_close(fresh, 0);
    } else {
        r->sim = fresh;
    }
    probe_over(&r->below, r->sim, &below_ops, r);
    if (faults) {
        wrap->inner = &r->below.m;
        wrap->m.caps.events = r->sim->caps.events; /* those of the fresh one are gone with it */
        wrap->m.caps.dram = r->sim->caps.dram;
    }
    probe_over(&r->above, faults ? top : &r->below.m, &above_ops, r);
    r->dev->medium = &r->above.m;
    r->dev->fw->medium = &r->above.m;
    r->dev->link.dram = r->sim->caps.dram;
    chm_fw_tick(r->dev->fw);
    r->cut = false;
}
