/* SPDX-License-Identifier: Apache-2.0 */
/* cache.c - jobs: the queue, starting, serving, ending. What and why: cache.h. */
#include "fw/cache.h"

#include <errno.h>
#include <string.h>

#include "fw/device.h"
#include "fw/request.h"
#include "util/util.h"

/* ---- jobs */

static struct chm_ext *ext_of(struct chm_fw *fw, const struct chm_job *job)
{
    return &fw->wbuf.exts[job - fw->cache.stores];
}

static struct chm_fwreq *req_of(struct chm_fw *fw, const struct chm_job *job)
{
    return &fw->reqs[job - fw->cache.reads];
}

static void job_queue(struct chm_fw *fw, struct chm_job *job, uint8_t kind, uint64_t addr,
                      uint64_t len)
{
    job->addr = job->at = addr;
    job->end = addr + len;
    job->waiting = 0;
    job->err = 0;
    job->kind = kind;
    job->cancelled = false;
    chm_list_init(&job->link);
    chm_list_push(&fw->cache.jobs, &job->link);
    fw->cache.changed = true;
}

/* All of it is done, whether well or not. */
static void job_over(struct chm_fw *fw, struct chm_job *job)
{
    if (job->kind == JOB_READ) {
        chm_request_read_done(fw, req_of(fw, job), job->err);
    } else {
        chm_wbuf_drop(fw, ext_of(fw, job));
    }
}

static void access_over(struct chm_fw *fw, struct chm_job *job)
{
    job->waiting--;
    if (job->waiting > 0) {
        return;
    }
    if (chm_list_empty(&job->link)) {
        job_over(fw, job);
    } else if (job->kind == JOB_READ && job->err == 0) {
        chm_request_read_moved(fw, req_of(fw, job), job->at - job->addr);
    }
}

/* ---- serving */

static void serve_store(struct chm_fw *fw, struct chm_line *line, struct chm_job *job,
                        uint64_t from, uint64_t to)
{
    uint8_t *at = chm_line_memory(fw, line) + (from - chm_line_addr(&fw->cache, line));

    chm_wbuf_forgive(fw, from, to);
    if (fw->cache.copies) {
        memcpy(at, job->bytes + (from - job->addr), to - from);
    }
    chm_line_dirty(fw, line, ext_of(fw, job)->seq);
}

static void serve_read(struct chm_fw *fw, struct chm_line *line, struct chm_job *job, uint64_t from,
                       uint64_t to)
{
    const uint8_t *at = chm_line_memory(fw, line) + (from - chm_line_addr(&fw->cache, line));

    if (chm_wbuf_is_lost(fw, from, to)) {
        job->err = job->err ? job->err : -EIO;
    } else if (fw->cache.copies && !job->cancelled) {
        memcpy(job->bytes + (from - job->addr), at, to - from);
    }
}

/* The line holds its bytes: do the job's part of it. */
static void serve(struct chm_fw *fw, struct chm_line *line, struct chm_job *job, uint64_t from,
                  uint64_t to)
{
    if (job->kind == JOB_READ) {
        serve_read(fw, line, job, from, to);
    } else {
        serve_store(fw, line, job, from, to);
    }
}

/* The line's bytes are not to be had. A store that needed them is lost with them: it was promised,
 * and half a line cannot be kept. */
static void serve_failed(struct chm_fw *fw, struct chm_access *a, int32_t err)
{
    if (a->job->kind == JOB_READ) {
        a->job->err = a->job->err ? a->job->err : err;
    } else {
        uint64_t seq = ext_of(fw, a->job)->seq;

        chm_wbuf_lose(fw, a->from, a->to, seq, seq);
    }
}

static bool is_whole(const struct chm_fw *fw, uint64_t from, uint64_t to)
{
    uint64_t number = from >> fw->cache.shift;

    return from == number << fw->cache.shift && to == chm_cache_end_of(fw, number);
}

/* ---- accesses that wait */

static void access_wait(struct chm_cache *c, struct chm_line *line, struct chm_job *job,
                        uint64_t from, uint64_t to)
{
    uint32_t i = c->accesses_free;
    struct chm_access *a = &c->accesses[i - 1];

    CHM_ASSERT(i);
    c->accesses_free = a->next;
    a->job = job;
    a->from = from;
    a->to = to;
    a->next = i;
    if (line->waiters) {
        struct chm_access *last = &c->accesses[line->waiters - 1];

        a->next = last->next;
        last->next = i;
    }
    line->waiters = i;
    job->waiting++;
}

/* The first that waits for the line, no longer in its ring; NULL: none. */
static struct chm_access *access_first(struct chm_cache *c, struct chm_line *line)
{
    struct chm_access *last, *first;

    if (!line->waiters) {
        return NULL;
    }
    last = &c->accesses[line->waiters - 1];
    first = &c->accesses[last->next - 1];
    last->next = first->next;
    if (first == last) {
        line->waiters = 0;
    }
    return first;
}

static void access_free(struct chm_cache *c, struct chm_access *a)
{
    a->next = c->accesses_free;
    c->accesses_free = (uint32_t)(a - c->accesses) + 1;
}

void chm_cache_serve_waiters(struct chm_fw *fw, struct chm_line *line, int32_t err)
{
    struct chm_cache *c = &fw->cache;
    struct chm_access *a;
    bool there = err == 0;

    line->state = LINE_CLEAN;
    while ((a = access_first(c, line)) != NULL) {
        /* A store of all of it needs nothing of what was there. */
        there = there || (a->job->kind == JOB_STORE && is_whole(fw, a->from, a->to));
        if (there) {
            serve(fw, line, a->job, a->from, a->to);
        } else {
            serve_failed(fw, a, err);
        }
        access_over(fw, a->job);
        access_free(c, a);
    }
    if (!there) {
        chm_line_free(fw, line);
    }
}

/* ---- starting */

/* A frame for a line of that number, out of all lists. *victim: it held this, dirty; else
 * UINT64_MAX. NULL: all lines of the set are on the move. */
static struct chm_line *take_frame(struct chm_fw *fw, uint64_t number, uint64_t *victim)
{
    struct chm_cache *c = &fw->cache;
    struct chm_set *set = &c->sets[chm_cache_set_of(c, number)];
    struct chm_link *link = chm_list_first(&set->free);
    struct chm_line *line;

    *victim = UINT64_MAX;
    if (link) {
        chm_list_remove(link);
        return CHM_CONTAINER(link, struct chm_line, order);
    }
    line = c->replace->victim(set);
    if (line) {
        CHM_ASSERT(chm_line_may_go(line) && line->waiters == 0);
        *victim = line->state == LINE_DIRTY ? line->number : UINT64_MAX;
        chm_line_unname(c, line);
        fw->stats.cache_evictions++;
    }
    return line;
}

/* Nothing of the line is there. False: it has to wait. */
static bool start_miss(struct chm_fw *fw, struct chm_job *job, uint64_t number, uint64_t to)
{
    struct chm_cache *c = &fw->cache;
    bool fetch = job->kind == JOB_READ || !is_whole(fw, job->at, to) || fw->opts.fill_on_write;
    struct chm_line *line = NULL;
    uint64_t victim;

    if (chm_cache_may_miss(c) && c->accesses_free && !chm_cache_leaving(c, number)) {
        line = take_frame(fw, number, &victim);
    }
    if (!line) {
        return false;
    }
    fw->stats.cache_misses++;
    fw->stats.cache_fills += fetch;
    fw->stats.cache_unfetched += !fetch;
    chm_line_name(c, line, number);
    line->state = LINE_FILLING;
    if (victim != UINT64_MAX) {
        chm_move_evict(fw, line, victim, fetch);
    } else if (fetch) {
        chm_move_fill(fw, line);
    } else {
        serve(fw, line, job, job->at, to);
        return true;
    }
    access_wait(c, line, job, job->at, to);
    return true;
}

/* The line is there, or on its way. */
static bool start_found(struct chm_fw *fw, struct chm_job *job, struct chm_line *line, uint64_t to)
{
    struct chm_cache *c = &fw->cache;
    bool filling = line->state == LINE_FILLING;
    bool stable = line->state == LINE_WRITING && line->waiters == 0 && job->kind == JOB_READ;

    if (chm_line_may_go(line) || stable) {
        fw->stats.cache_hits++;
        c->replace->touch(chm_line_set(c, line), line);
        serve(fw, line, job, job->at, to);
        return true;
    }
    if (!c->accesses_free) {
        return false;
    }
    fw->stats.cache_hits += !filling;
    fw->stats.cache_misses += filling;
    fw->stats.cache_shared += filling;
    c->replace->touch(chm_line_set(c, line), line);
    access_wait(c, line, job, job->at, to);
    return true;
}

/* The next line of a job. False: it has to wait, and so has all that is queued behind it. */
static bool start_line(struct chm_fw *fw, struct chm_job *job)
{
    struct chm_cache *c = &fw->cache;
    uint64_t number = job->at >> c->shift;
    uint64_t to = chm_min((number + 1) << c->shift, job->end);
    struct chm_line *line = chm_cache_find(c, number);

    if (line ? !start_found(fw, job, line, to) : !start_miss(fw, job, number, to)) {
        return false;
    }
    job->at = to;
    return true;
}

/* ---- trim */

/* [from, to) of a line that is here reads as zeros; all of it: it is not here any more. The line is
 * not on the move. */
static void trim_line(struct chm_fw *fw, struct chm_line *line, uint64_t from, uint64_t to)
{
    struct chm_cache *c = &fw->cache;
    uint64_t addr = chm_line_addr(c, line);

    from = chm_max(from, addr);
    to = chm_min(to, chm_cache_end_of(fw, line->number));
    if (is_whole(fw, from, to)) {
        if (line->state == LINE_DIRTY) {
            chm_line_clean(c, line);
        }
        chm_line_free(fw, line);
    } else if (c->copies) {
        memset(chm_line_memory(fw, line) + (from - addr), 0, to - from);
    }
}

static void trim_lines(struct chm_fw *fw, uint64_t from, uint64_t to)
{
    struct chm_cache *c = &fw->cache;
    uint64_t first = from >> c->shift, last = (to - 1) >> c->shift;
    struct chm_line *line;

    if (last - first < c->lines_max) {
        for (uint64_t n = first; n <= last; n++) {
            if ((line = chm_cache_find(c, n)) != NULL) {
                trim_line(fw, line, from, to);
            }
        }
        return;
    }
    for (line = c->lines; line < c->lines + c->lines_max; line++) {
        if (line->state != LINE_FREE && line->number >= first && line->number <= last) {
            trim_line(fw, line, from, to);
        }
    }
}

/* A trim begins when nothing is on the move, and all that came later waits for its end. */
static void start_trim(struct chm_fw *fw, struct chm_job *job)
{
    struct chm_cache *c = &fw->cache;

    c->trim_waits = true;
    if (job->waiting == 0 && c->fills + c->cleans == 0) {
        job->waiting = 1;
        trim_lines(fw, job->addr, job->end);
        chm_wbuf_forgive(fw, job->addr, job->end);
        chm_move_trim(fw, job);
    }
}

void chm_cache_trimmed(struct chm_fw *fw, struct chm_job *job, int32_t err)
{
    struct chm_ext *e = ext_of(fw, job);

    if (err < 0) {
        chm_wbuf_lose(fw, job->addr, job->end, e->seq, e->seq);
    } else {
        fw->stats.trimmed_bytes += job->end - job->addr;
    }
    fw->cache.trim_waits = false;
    chm_list_remove(&job->link);
    job_over(fw, job);
}

/* ---- the queue */

/* True: it is started to its end. */
static bool job_start(struct chm_fw *fw, struct chm_job *job)
{
    if (job->kind == JOB_TRIM) {
        start_trim(fw, job);
        return false;
    }
    while (job->at < job->end && job->err == 0) {
        if (!start_line(fw, job)) {
            if (job->waiting == 0 && job->kind == JOB_READ) {
                chm_request_read_moved(fw, req_of(fw, job), job->at - job->addr);
            }
            return false;
        }
    }
    chm_list_remove(&job->link);
    if (job->waiting == 0) {
        job_over(fw, job);
    }
    return true;
}

void chm_cache_run(struct chm_fw *fw)
{
    struct chm_cache *c = &fw->cache;
    struct chm_link *link;

    if (!c->changed) {
        return;
    }
    c->changed = false;
    while ((link = chm_list_first(&c->jobs)) != NULL &&
           job_start(fw, CHM_CONTAINER(link, struct chm_job, link))) {
    }
}

/* ---- from commands */

void chm_cache_read(struct chm_fw *fw, struct chm_fwreq *req)
{
    struct chm_job *job = &fw->cache.reads[chm_request_cell(fw, req)];

    chm_request_read_begun(fw, req);
    fw->stats.demand_copied_bytes += req->cmd.len;
    job->bytes = (uint8_t *)(uintptr_t)req->cmd.ptr;
    job_queue(fw, job, JOB_READ, req->cmd.addr, req->cmd.len);
    chm_cache_run(fw);
}

bool chm_cache_cancel(struct chm_fw *fw, struct chm_fwreq *req)
{
    struct chm_job *job = &fw->cache.reads[chm_request_cell(fw, req)];

    job->cancelled = true;
    chm_list_remove(&job->link);
    fw->cache.changed = true;
    return job->waiting == 0;
}

void chm_cache_commit(struct chm_fw *fw, struct chm_ext *e)
{
    struct chm_job *job = &fw->cache.stores[e - fw->wbuf.exts];

    chm_wbuf_land(fw, e);
    fw->cache.landing_bytes += chm_ext_len(e);
    job->bytes = fw->memory + e->off;
    job_queue(fw, job, JOB_STORE, e->range.start, chm_ext_len(e));
    chm_cache_run(fw);
}

int chm_cache_trim(struct chm_fw *fw, uint64_t addr, uint64_t len)
{
    struct chm_ext *e;
    int rc = chm_wbuf_land_trim(fw, addr, len, &e);

    if (rc == 0) {
        job_queue(fw, &fw->cache.stores[e - fw->wbuf.exts], JOB_TRIM, addr, len);
        chm_cache_run(fw);
    }
    return rc;
}
