/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - see device.h. Making the firmware, stepping it, ending it. */
#include "fw/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fw/request.h"
#include "util/util.h"

enum {
    REAP_MAX = 64,
    BARRIER_IOS = CHM_MEMBERS_MAX, /* set aside, so that a barrier never waits for a free I/O */
    BOUNCE_SHARE = 8,              /* demand reserve: an eighth of the window */
    BOUNCE_MAX = 8 << 20,          /* but not more than this */
};

/* ---- one block for all tables */

static void carve_tables(struct chm_fw *fw, struct chm_carve *c)
{
    struct chm_window *w = &fw->window;
    uint64_t frames = w->bytes / w->frame_bytes, per = w->frame_bytes / fw->granule;
    uint64_t bounce = fw->bounce.units, wpages = fw->wbuf.bytes / fw->granule;

    fw->reqs = chm_carve(c, fw->opts.requests_max * sizeof(*fw->reqs));
    fw->ended = chm_carve(c, 2 * sizeof(*fw->ended) * fw->opts.requests_max);
    fw->freed = chm_carve(c, fw->opts.requests_max * sizeof(*fw->freed));
    fw->timer_heap = chm_carve(c, fw->opts.requests_max * sizeof(*fw->timer_heap));
    fw->sched.fios = chm_carve(c, fw->sched.fios_max * sizeof(*fw->sched.fios));
    fw->holes = chm_carve(c, 2 * sizeof(*fw->holes) * fw->opts.writes_max);
    fw->wbuf.exts = chm_carve(c, fw->wbuf.exts_max * sizeof(*fw->wbuf.exts));
    w->slots = chm_carve(c, w->slots_max * sizeof(*w->slots));
    w->reserves = chm_carve(c, fw->opts.requests_max * sizeof(*w->reserves));
    w->shared_used = chm_carve(c, frames * sizeof(*w->shared_used));
    w->frames.words = chm_carve(c, chm_runs_bytes(frames));
    w->granules.words = chm_carve(c, chm_runs_bytes(frames * per));
    fw->bounce.words = chm_carve(c, chm_runs_bytes(bounce));
    fw->wbuf.runs.words = chm_carve(c, chm_runs_bytes(wpages));
    chm_cache_carve(fw, c);
}

/* ---- sizes, from the arguments */

uint32_t chm_fw_depth(const struct chm_options *o)
{
    const struct chm_policy *p = chm_policy_find(o->policy);

    return o->read_depth + o->flush_depth + o->flush_depth_reads +
           (p->replace ? o->line_fills : 0) + BARRIER_IOS + 1;
}

static void set_window_sizes(struct chm_fw *fw, const struct chm_fw_args *a)
{
    struct chm_window *w = &fw->window;
    uint64_t g = fw->granule;
    uint64_t bounce = chm_min(a->window_bytes / BOUNCE_SHARE, BOUNCE_MAX) / g * g;

    bounce = chm_max(bounce, g);
    w->bytes =
        (a->window_bytes - chm_min(bounce, a->window_bytes)) / w->frame_bytes * w->frame_bytes;
    w->slots_max = (uint32_t)chm_min(fw->opts.requests_max, w->bytes / g);
    /* What the window loses to whole frames goes to the demand reserve. */
    fw->bounce_base = w->bytes;
    fw->bounce.units = (a->window_bytes - w->bytes) / g;
}

/* Under a policy with lines the window and its demand reserve are empty. */
static void set_sizes(struct chm_fw *fw, const struct chm_fw_args *a)
{
    struct chm_window *w = &fw->window;
    uint64_t g = fw->granule;

    w->frame_bytes = a->frame_bytes;
    w->granule = g;
    if (!fw->cache.replace) {
        set_window_sizes(fw, a);
    }
    fw->sched.fios_max = chm_fw_depth(&fw->opts);
    fw->wbuf.base = a->window_bytes / g * g; /* the drive may want more than whole pages */
    fw->wbuf.bytes = a->write_buffer_bytes / g * g;
    fw->wbuf.granule = g;
    fw->wbuf.exts_aside = fw->sched.fios_max;
    fw->wbuf.exts_max = fw->opts.writes_max * 2 + 2 + fw->wbuf.exts_aside;
}

static int check_sizes(struct chm_fw *fw, uint64_t window_bytes, struct chm_error *err)
{
    if (fw->cache.replace && fw->wbuf.bytes >= 2 * fw->granule) {
        return chm_cache_shape(fw, window_bytes, err);
    }
    if (fw->window.bytes < fw->window.frame_bytes || fw->wbuf.bytes < 2 * fw->granule) {
        strcpy(err->text,
               "the DRAM budget is too small: the window needs two frames (64 KiB, or 2 MiB with "
               "huge pages) and the write buffer two pages");
        return -EINVAL;
    }
    return 0;
}

/* ---- lists and pools */

static void init_requests(struct chm_fw *fw)
{
    chm_list_init(&fw->queued);
    chm_list_init(&fw->quiesce);
    chm_list_init(&fw->finished);
    chm_list_init(&fw->durable.waiters);
    chm_tree_init(&fw->reading);
    chm_timers_init(&fw->timers, fw->timer_heap, fw->opts.requests_max);
    for (uint32_t i = 0; i < fw->opts.requests_max; i++) {
        chm_list_init(&fw->reqs[i].link);
    }
    for (uint32_t i = 0; i < 2 * fw->opts.writes_max; i++) {
        fw->holes[i].next = fw->holes_free;
        fw->holes_free = &fw->holes[i];
    }
}

static void init_window(struct chm_fw *fw)
{
    struct chm_window *w = &fw->window;
    uint64_t frames = w->bytes / w->frame_bytes;

    chm_runs_init(&w->frames, w->frames.words, frames);
    chm_runs_init(&w->granules, w->granules.words, frames * (w->frame_bytes / w->granule));
    chm_runs_init(&fw->bounce, fw->bounce.words, fw->bounce.units);
    chm_tree_init(&w->findable);
    chm_list_init(&w->free_slots);
    chm_list_init(&w->free_reserves);
    for (uint32_t i = 0; i < w->slots_max; i++) {
        chm_list_push(&w->free_slots, &w->slots[i].link);
    }
    for (uint32_t i = 0; i < fw->opts.requests_max; i++) {
        chm_list_push(&w->free_reserves, &w->reserves[i].free_link);
    }
}

static void init_wbuf(struct chm_fw *fw)
{
    struct chm_wbuf *b = &fw->wbuf;

    chm_runs_init(&b->runs, b->runs.words, b->bytes / b->granule);
    chm_tree_init(&b->map);
    chm_list_init(&b->free);
    chm_list_init(&b->pending);
    chm_list_init(&b->dirty);
    chm_list_init(&b->lost_list);
    for (uint32_t i = 0; i < b->exts_max; i++) {
        chm_list_push(&b->free, &b->exts[i].pending);
    }
    b->exts_free = b->exts_max;
}

static void init_sched(struct chm_fw *fw)
{
    struct chm_sched *s = &fw->sched;

    chm_list_init(&s->demand);
    chm_list_init(&s->stage);
    chm_list_init(&s->lines);
    chm_list_init(&s->free);
    chm_list_init(&s->backlog);
    for (uint32_t i = 0; i < s->fios_max; i++) {
        chm_list_init(&s->fios[i].back);
        chm_list_push(&s->free, &s->fios[i].link);
    }
}

int chm_fw_open(const struct chm_fw_args *args, struct chm_fw **out, struct chm_error *err)
{
    struct chm_fw *fw = calloc(1, sizeof(*fw));
    struct chm_carve count = {0}, real = {0};
    int rc = -ENOMEM;

    if (!fw) {
        return -ENOMEM;
    }
    fw->opts = *args->opts;
    fw->medium = args->medium;
    fw->regions = args->regions;
    fw->memory = args->memory;
    fw->map = args->map;
    fw->cells = args->cells;
    fw->policy = chm_policy_find(fw->opts.policy);
    fw->flush_ops = chm_flush_policy_find(fw->opts.flush_policy);
    fw->cache.replace = fw->policy->replace;
    fw->granule = chm_max(CHM_PAGE_BYTES,
                          chm_max(fw->medium->caps.block_bytes, fw->medium->caps.align_bytes));
    set_sizes(fw, args);
    rc = check_sizes(fw, args->window_bytes, err);
    if (rc < 0) {
        goto fail;
    }
    carve_tables(fw, &count);
    fw->block_bytes = count.at;
    fw->block = aligned_alloc(64, chm_round_up(count.at, 64));
    if (!fw->block) {
        rc = -ENOMEM;
        goto fail;
    }
    memset(fw->block, 0, count.at);
    real.base = fw->block;
    carve_tables(fw, &real);
    init_requests(fw);
    init_window(fw);
    init_wbuf(fw);
    init_sched(fw);
    chm_cache_init(fw);
    fw->now_ns = chm_medium_now(fw->medium);
    fw->durable.last_ns = fw->now_ns;
    *out = fw;
    return 0;
fail:
    free(fw);
    return rc;
}

void chm_fw_free(struct chm_fw *fw)
{
    free(fw->block);
    free(fw);
}

int32_t chm_fw_region(const struct chm_fw *fw, const uint8_t *buf, uint64_t len)
{
    if (!fw->medium->caps.fixed_buffers) {
        return CHM_NO_REGION; /* the medium would not look, and looking costs */
    }
    for (int32_t i = 1; i < CHM_REGIONS_MAX; i++) {
        const struct chm_region *r = &fw->regions->at[i];
        const uint8_t *base = atomic_load_explicit(&r->base, memory_order_relaxed);
        uint64_t size = atomic_load_explicit(&r->len, memory_order_relaxed);

        if (base && buf >= base && len <= size && (uint64_t)(buf - base) <= size - len) {
            return i;
        }
    }
    return CHM_NO_REGION;
}

/* ---- stepping */

void chm_fw_tick(struct chm_fw *fw)
{
    fw->now_ns = chm_medium_now(fw->medium);
}

static void run_timers(struct chm_fw *fw)
{
    struct chm_timer *timer;

    while ((timer = chm_timers_pop(&fw->timers, fw->now_ns)) != NULL) {
        chm_request_timer(fw, timer);
    }
}

/* All that can be decided now, until nothing changes any more. */
static void settle(struct chm_fw *fw)
{
    run_timers(fw);
    chm_fetch_finish_all(fw);
    while (fw->window_changed) {
        chm_request_serve_queue(fw);
        chm_fetch_finish_all(fw);
    }
    fw->policy->cache->run(fw);
    chm_durable_run(fw);
    chm_sched_run(fw);
}

static uint64_t next_event_ns(const struct chm_fw *fw)
{
    uint64_t at = chm_timers_next(&fw->timers);

    at = chm_min(at, chm_sched_next_ns(fw));
    return chm_min(at, chm_durable_next_ns(fw));
}

bool chm_fw_in_flight(const struct chm_fw *fw)
{
    return fw->sched.reads + fw->sched.flushes + fw->sched.others > 0;
}

/* Hand back everything that has ended; waits until deadline_ns for the first. Returns how many. */
static int reap(struct chm_fw *fw, uint64_t deadline_ns)
{
    struct chm_io *done[REAP_MAX];
    int n = chm_medium_reap(fw->medium, done, REAP_MAX, deadline_ns);

    chm_fw_tick(fw);
    if (n < 0) {
        fw->dead = n;
        return n;
    }
    for (int i = 0; i < n; i++) {
        chm_sched_landed(fw, done[i]->owner);
    }
    return n;
}

/* One reap, whether it waits or not: a second one would sleep through a wake-up that the first has
 * taken. */
static int reap_once(struct chm_fw *fw, uint64_t until_ns)
{
    if (fw->ended_count == 0 && until_ns > fw->now_ns) {
        fw->stats.sleeps++;
        return reap(fw, chm_min(until_ns, next_event_ns(fw)));
    }
    return chm_fw_in_flight(fw) ? reap(fw, 0) : 0;
}

int chm_fw_step(struct chm_fw *fw, uint64_t until_ns)
{
    uint32_t rounds = fw->sched.fios_max; /* a step ends, even if the medium never runs dry */
    int n;

    fw->stats.steps++;
    chm_fw_tick(fw);
    settle(fw);
    n = reap_once(fw, until_ns);
    while (n == REAP_MAX && rounds-- > 0) {
        n = reap(fw, 0);
    }
    settle(fw);
    return (int)fw->ended_count;
}

bool chm_fw_stuck(const struct chm_fw *fw)
{
    return !chm_fw_in_flight(fw) && next_event_ns(fw) == UINT64_MAX;
}

/* ---- ending */

static void give_up_all(struct chm_fw *fw)
{
    for (uint32_t i = 0; i < fw->opts.requests_max; i++) {
        struct chm_fwreq *req = &fw->reqs[i];

        if (req->state != REQ_FREE && req->state != REQ_ZOMBIE) {
            chm_request_release(fw, req);
        }
    }
    chm_fetch_finish_all(fw);
}

static bool all_quiet(const struct chm_fw *fw)
{
    return fw->zombies == 0 && !chm_fw_in_flight(fw) &&
           fw->policy->cache->settled(fw) == fw->wbuf.seq &&
           fw->durable.durable_seq == fw->wbuf.seq;
}

int chm_fw_shutdown(struct chm_fw *fw, uint64_t deadline_ns)
{
    fw->closing = true;
    give_up_all(fw);
    /* A last barrier is due whatever the policy says. */
    fw->opts.durability = CHM_DURABILITY_PERIODIC;
    fw->opts.barrier_interval_ns = 0;
    fw->freed_count = fw->ended_count = 0;
    while (!all_quiet(fw) && !fw->dead) {
        uint64_t before = fw->now_ns;

        chm_fw_step(fw, deadline_ns);
        fw->freed_count = fw->ended_count = 0;
        if (fw->now_ns >= deadline_ns || (chm_fw_stuck(fw) && fw->now_ns == before)) {
            break;
        }
    }
    if (fw->dead) {
        return -EIO;
    }
    if (!all_quiet(fw)) {
        return -ETIMEDOUT;
    }
    return fw->durable.untold ? -EIO : 0;
}
