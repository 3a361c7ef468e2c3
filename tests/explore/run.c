/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - one run from open to close (explore.h).
 *
 * After a power cut the device that was using the drive is closed, as a process would die; what the
 * drive holds is compared page by page with what was promised, and becomes what the model knows.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "explore/explore.h"

/* ------------------------------------------------------------------ saying and checking */

void run_say(const struct run *r, const char *format, ...)
{
    va_list args;

    if (r->c->verbose) {
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
    }
}

void run_note(struct run *r, uint64_t v)
{
    r->digest = (r->digest ^ v) * UINT64_C(0x9E3779B97F4A7C15);
    r->digest ^= r->digest >> 29;
}

uint64_t run_random(struct run *r, uint64_t below)
{
    return chm_random(&r->rng) % below;
}

bool run_error_allowed(const struct run *r, int rc)
{
    uint32_t flags = r->c->plan->flags;

    if (r->cut && rc == -ENODEV) {
        return true;
    }
    if (flags & PLAN_HANGS && rc == -ETIMEDOUT) {
        return true;
    }
    if (rc == -EOPNOTSUPP && strcmp(r->c->policy, "window") != 0) {
        return true; /* there is no prefetch call */
    }
    return flags & PLAN_ERRORS && (rc == -EIO || rc == -ENODATA);
}

void run_check_time(struct run *r, uint64_t begin_ns, uint64_t timeout_ns)
{
    if (!r->files && chm_now(r->dev) > chm_sat_add(begin_ns, timeout_ns)) {
        run_fail(r, "late", "a call with a timeout of %" PRIu64 " ns took %" PRIu64 " ns",
                 timeout_ns, chm_now(r->dev) - begin_ns);
    }
}

/* The first page that no moment of the span explains, for the message. */
static uint64_t wrong_page(struct run *r, const uint8_t *p, uint64_t addr, uint64_t len,
                           struct span span)
{
    for (uint64_t at = 0; at < len; at += PAGE) {
        if (!model_matches(&r->model, p + at, addr + at, chm_min(PAGE, len - at), span)) {
            return at;
        }
    }
    return len;
}

void run_check_bytes(struct run *r, const uint8_t *p, uint64_t addr, uint64_t len, struct span span)
{
    char text[TEXT_MAX] = "";
    uint64_t at;

    span.to = (uint32_t)chm_min(span.to, r->model.changes);
    if (model_matches(&r->model, p, addr, len, span)) {
        return;
    }
    at = wrong_page(r, p, addr, len, span);
    if (at == len) {
        run_fail(r, "mixed", "%" PRIu64 " + %" PRIu64 " shows no single moment of %u .. %u", addr,
                 len, span.from, span.to);
    }
    if ((addr + at) % PAGE == 0 && len - at >= PAGE) {
        model_describe(&r->model, (addr + at) / PAGE, p + at, text, sizeof(text));
    }
    run_fail(r, "wrong-bytes",
             "%" PRIu64 " + %" PRIu64 ": page %" PRIu64 " is not of change %u .. %u; %s", addr, len,
             (addr + at) / PAGE, span.from, span.to, text);
}

static void check(struct run *r, bool fine, const char *kind, const char *what)
{
    if (!fine) {
        run_fail(r, kind, "%s", what);
    }
}

void run_check_counters(struct run *r)
{
    struct chm_stats *s = &r->stats;
    int rc = chm_stats(r->dev, s);

    if (rc != 0) {
        check(r, r->cut, "status", "the statistics cannot be had");
        return;
    }
    check(r, s->issued == s->ready + s->failed + s->expired + s->cancelled + s->open, "counters",
          "issued = ready + failed + expired + cancelled + open does not hold");
    check(r, s->begun == s->committed + s->aborted + s->open_writes, "counters",
          "begun = committed + aborted + open_writes does not hold");
    check(r, s->window_peak_bytes + s->buffer_peak_bytes <= r->info.dram_bytes, "counters",
          "the budget was exceeded");
    check(r,
          s->window_used_bytes <= s->window_peak_bytes &&
              s->window_pinned_bytes <= s->window_used_bytes &&
              s->window_used_bytes + s->window_largest_free <= r->info.window_bytes,
          "counters", "the window's numbers do not fit each other");
    check(r,
          s->buffer_used_bytes <= s->buffer_peak_bytes &&
              s->buffer_dirty_bytes <= s->buffer_used_bytes,
          "counters", "the buffer's numbers do not fit each other");
    for (size_t i = 0; i < offsetof(struct chm_stats, stage_ns) / sizeof(uint64_t); i++) {
        run_note(r, ((const uint64_t *)(const void *)s)[i]);
    }
}

/* Nothing is asked for any more: nothing may be held. */
static void check_idle(struct run *r, bool settled)
{
    const struct chm_fw *fw = r->dev->fw;
    const struct chm_wbuf *b = &fw->wbuf;

    run_check_counters(r);
    check(r, fw->zombies == 0 && !chm_fw_in_flight(fw), "leak", "I/O is in flight");
    check(r, r->stats.open == 0 && r->stats.open_writes == 0, "leak", "requests are open");
    check(r, fw->window.used_bytes == 0 && fw->window.pinned_bytes == 0, "leak",
          "window space is taken");
    check(r, fw->window.reserved_bytes == 0, "leak", "a reservation is held");
    check(r, fw->bounce.used == 0, "leak", "bounce pages are taken");
    check(r, atomic_load(&r->dev->requests) == 0, "leak", "cells are taken");
    check(r, fw->reading.root == NULL, "leak", "a fetch is registered");
    if (settled) {
        check(r, b->runs.used == 0 && b->dirty_bytes == 0, "leak", "buffer space is taken");
        check(r, b->exts_free + b->lost == b->exts_max, "leak", "extents are taken");
    }
}

/* ------------------------------------------------------------------ what the drive holds */

/* One page from the medium itself. */
static void drive_read(struct run *r, uint64_t page, uint8_t *buf)
{
    struct chm_map map = {.members = r->info.members,
                          .stripe_bytes = r->info.stripe_bytes,
                          .capacity_bytes = r->info.capacity_bytes};
    struct chm_spot spot = chm_map_spot(&map, page * PAGE, PAGE);
    struct chm_io io = {.kind = CHM_IO_READ,
                        .member = (uint16_t)spot.member,
                        .region = CHM_NO_REGION,
                        .off = spot.off,
                        .len = PAGE,
                        .buf = buf};
    struct chm_io *out = &io;

    if (chm_medium_submit(r->sim, &out, 1) != 1 ||
        chm_medium_reap(r->sim, &out, 1, CHM_FOREVER_NS) != 1 || io.res != PAGE) {
        run_fail(r, "medium", "page %" PRIu64 " cannot be read from the medium", page);
    }
}

/* Compare every page that was ever written with what was promised; from here on the model knows
 * which version each of them is. */
static void drive_check(struct run *r)
{
    uint8_t *buf = read_spare(r);
    char text[TEXT_MAX];

    model_begin(&r->model);
    for (uint64_t p = 0; p < r->pages; p++) {
        struct page *pg = &r->model.page[p];
        if (pg->newest == 0 && pg->drive == 0) {
            continue;
        }
        drive_read(r, p, buf);
        if (!model_rebase(&r->model, p, buf, r->cut)) {
            model_describe(&r->model, p, buf, text, sizeof(text));
            run_fail(r, r->cut ? "durability" : "lost-at-close", "page %" PRIu64 ": %s", p, text);
        }
        memcpy(&pg->drive, buf, sizeof(pg->drive));
        run_note(r, pg->drive);
    }
}

/* ------------------------------------------------------------------ open, close, cut */

static void forget_handles(struct run *r)
{
    memset(r->write, 0, sizeof(r->write));
    memset(r->req, 0, sizeof(r->req));
    memset(r->read, 0, sizeof(r->read));
    memset(r->stream, 0, sizeof(r->stream));
}

static void close_checked(struct run *r)
{
    uint32_t upto = r->model.changes;
    int rc = setup_close(r);

    run_say(r, " close -> %d", rc);
    run_note(r, (uint64_t)rc);
    if (rc == 0 && !r->cut) {
        model_promise(&r->model, upto);
    } else if (rc != 0 && rc != -EIO && !run_error_allowed(r, rc)) {
        run_fail(r, "status", "close: %d", rc);
    } else if (rc == -EIO && !r->cut && !run_error_allowed(r, rc)) {
        run_fail(r, "status", "close says that data was lost");
    }
}

/* The process dies; the next one finds what the drive has. */
static void recover(struct run *r)
{
    stream_end_all(r);
    object_end_all(r);
    r->keep_medium = true;
    close_checked(r);
    forget_handles(r);
    drive_check(r);
}

static void next_cut(struct run *r)
{
    if (r->c->plan->flags & PLAN_CUT_SOME) {
        uint64_t rng = r->c->seed + r->cuts * 977 + 13;
        r->cut_at = r->writes + 1 + chm_random(&rng) % 40;
        r->cut_late = chm_random(&rng) & 1;
    }
}

void run_reopen(struct run *r)
{
    read_end_all(r);
    stream_end_all(r);
    object_end_all(r);
    if (r->cut) {
        return;
    }
    r->keep_medium = true;
    close_checked(r);
    forget_handles(r);
    if (!r->files) {
        drive_check(r);
    }
    r->cut = false;
    setup_open(r);
}

/* ------------------------------------------------------------------ the last look */

/* What the device says it holds, in ranges of pages that were written. */
static void look_at_all(struct run *r)
{
    uint32_t now = r->model.changes;

    for (uint64_t p = 0, n; p < r->pages && !r->cut; p += n) {
        const uint8_t *buf;
        for (n = 0; n < IO_PAGES_MAX && p + n < r->pages && r->model.page[p + n].newest; n++) {
        }
        if (n == 0) {
            n = 1;
            continue;
        }
        buf = read_plain(r, p * PAGE, n * PAGE);
        if (buf) {
            run_check_bytes(r, buf, p * PAGE, n * PAGE, (struct span){now, now});
        }
        for (uint64_t at = 0; buf && at < n * PAGE; at += 1021) {
            r->bytes = (r->bytes ^ buf[at]) * UINT64_C(0x9E3779B97F4A7C15);
        }
    }
}

/* Give everything up; then nothing may be held, and all bytes be right. */
static void finish(struct run *r)
{
    bool hangs = r->c->plan->flags & PLAN_HANGS;
    int rc;

    r->rng = r->c->seed;
    r->doing = "end";
    run_say(r, " end:");
    stream_end_all(r);
    object_end_all(r);
    stage_end_unexpired(r);
    read_end_all(r);
    write_end_all(r);
    rc = r->cut ? 0 : write_flush(r, LONG_NS);
    if (rc == -EIO && !r->cut && write_flush(r, LONG_NS) != 0 && !r->cut) {
        run_fail(r, "status", "a loss was told twice");
    }
    if (!r->cut && !hangs) {
        rc = chm_quiesce(r->dev, LONG_NS);
        check(r, rc == 0 || r->cut, "hang", "the device does not come to rest");
    }
    check(r, r->cut || hangs || r->dev->fw->window.used_bytes == 0, "leak",
          "what has expired holds window space");
    stage_end_all(r);
    if (!r->cut && !hangs) {
        check_idle(r, true);
    }
    look_at_all(r);
    if (!r->cut && !hangs) {
        check_idle(r, true);
    }
}

/* ------------------------------------------------------------------ one run */

static void prepare(struct run *r, const struct plan_case *c)
{
    struct version *versions = r->model.versions;
    uint8_t *buffers = r->buffers;

    if (!versions) {
        versions = calloc(VERSIONS_MAX, sizeof(*versions));
        buffers = mmap(NULL, (READS + 1) * BUFFER_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHM_ASSERT(versions && buffers != MAP_FAILED);
    }
    memset(r, 0, sizeof(*r));
    r->model.versions = versions;
    r->buffers = buffers;
    r->c = c;
    r->doing = "open";
    r->cut_at = c->cut;
    r->cut_late = (c->seed + c->cut) & 1;
    setup_options(r);
}

/* False: the run ends here. */
static bool after_cut(struct run *r)
{
    recover(r);
    if (r->c->plan->flags & PLAN_CUT_EACH) {
        return false;
    }
    next_cut(r);
    r->cut = false;
    setup_open(r);
    return true;
}

uint64_t run_case(struct run *r, const struct plan_case *c)
{
    bool goes_on;

    prepare(r, c);
    if (!setup_open(r)) {
        return UINT64_MAX;
    }
    model_reset(&r->model, r->pages);
    next_cut(r);
    goes_on = true;
    for (uint32_t i = 0; i < c->ops && goes_on; i++) {
        if (!c->skip_op || !c->skip_op[i]) {
            ops_run(r, i);
        }
        goes_on = !r->cut || after_cut(r);
    }
    if (goes_on) {
        finish(r);
        goes_on = !r->cut || after_cut(r);
    }
    if (goes_on) {
        r->keep_medium = true;
        stream_end_all(r);
        object_end_all(r);
        close_checked(r);
        if (!r->files) {
            drive_check(r);
        }
    }
    setup_discard(r);
    run_say(r, "\n");
    return r->writes;
}
