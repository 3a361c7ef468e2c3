/* SPDX-License-Identifier: Apache-2.0 */
/* durable.c - see durable.h. */
#include "fw/durable.h"

#include <errno.h>

#include "fw/device.h"
#include "util/util.h"

void chm_durable_wait(struct chm_fw *fw, struct chm_fwreq *req)
{
    struct chm_durable *d = &fw->durable;

    req->state = REQ_WAITING;
    req->lost = req->cmd.op == CHM_OP_FLUSH && d->untold;
    d->untold = d->untold && !req->lost;
    chm_list_push(&d->waiters, &req->link);
}

void chm_durable_unwait(struct chm_fw *fw, struct chm_fwreq *req)
{
    chm_list_remove(&req->link);
    fw->durable.untold = fw->durable.untold || req->lost;
    req->lost = false;
}

void chm_durable_note_loss(struct chm_fw *fw, uint64_t first, uint64_t last)
{
    struct chm_link *waiters = &fw->durable.waiters;
    bool told = false;

    for (struct chm_link *l = chm_list_first(waiters); l; l = chm_list_next(waiters, l)) {
        struct chm_fwreq *req = CHM_CONTAINER(l, struct chm_fwreq, link);
        bool flush = req->cmd.op == CHM_OP_FLUSH;

        if (req->target >= first && (flush || req->target <= last)) {
            req->lost = told = true;
        }
    }
    fw->durable.untold = fw->durable.untold || !told;
}

uint64_t chm_durable_wanted(const struct chm_durable *d)
{
    /* Targets only grow, so the last waiter wants most. */
    if (d->waiters.next == &d->waiters) {
        return 0;
    }
    return CHM_CONTAINER(d->waiters.prev, struct chm_fwreq, link)->target;
}

/* End the waiters whose commits are durable. */
static void durable_end_waiters(struct chm_fw *fw)
{
    struct chm_durable *d = &fw->durable;
    struct chm_link *link;

    while ((link = chm_list_first(&d->waiters)) != NULL) {
        struct chm_fwreq *req = CHM_CONTAINER(link, struct chm_fwreq, link);

        if (req->target > d->durable_seq) {
            break;
        }
        chm_list_remove(link);
        chm_fwreq_end(fw, req, req->lost ? -EIO : 0);
    }
}

static uint64_t settled_now(const struct chm_fw *fw)
{
    return fw->policy->cache->settled(fw);
}

static bool durable_due(const struct chm_fw *fw)
{
    const struct chm_durable *d = &fw->durable;
    uint64_t settled = settled_now(fw);

    if (settled <= d->durable_seq) {
        return false;
    }
    if (d->waiters.next != &d->waiters &&
        CHM_CONTAINER(d->waiters.next, struct chm_fwreq, link)->target <= settled) {
        return true;
    }
    if (fw->opts.durability != CHM_DURABILITY_PERIODIC) {
        return false;
    }
    if (fw->cache.replace) { /* lines are written because it was time: when they are, it is due */
        return fw->cache.target > d->durable_seq && settled >= fw->cache.target;
    }
    return d->settled_bytes >= fw->opts.barrier_bytes ||
           fw->now_ns >= chm_sat_add(d->last_ns, fw->opts.barrier_interval_ns);
}

static void durable_round_done(struct chm_fw *fw)
{
    struct chm_durable *d = &fw->durable;

    /* After a failed barrier nobody knows what is on the drive: what it covered counts as lost, is
     * told once, and is not promised again. */
    if (d->err < 0) {
        chm_durable_note_loss(fw, d->durable_seq + 1, d->covers);
    }
    d->durable_seq = d->covers;
    durable_end_waiters(fw);
}

static void durable_begin(struct chm_fw *fw)
{
    struct chm_durable *d = &fw->durable;

    d->covers = settled_now(fw);
    d->settled_bytes = 0;
    d->last_ns = fw->now_ns;
    d->err = 0;
    if (!fw->medium->caps.volatile_cache) {
        durable_round_done(fw);
        return;
    }
    for (uint32_t m = 0; m < fw->map.members; m++) {
        CHM_ASSERT(chm_sched_barrier(fw, m));
        d->inflight++;
    }
    fw->stats.barriers++;
}

void chm_durable_run(struct chm_fw *fw)
{
    struct chm_durable *d = &fw->durable;

    if (d->inflight > 0) {
        return;
    }
    durable_end_waiters(fw);
    chm_cache_aim(fw);
    if (durable_due(fw)) {
        durable_begin(fw);
    }
}

void chm_durable_landed(struct chm_fw *fw, int32_t res)
{
    struct chm_durable *d = &fw->durable;

    if (res < 0) {
        d->err = res;
        fw->stats.barrier_errors++;
    }
    if (--d->inflight == 0) {
        durable_round_done(fw);
    }
}

uint64_t chm_durable_next_ns(const struct chm_fw *fw)
{
    const struct chm_durable *d = &fw->durable;

    if (fw->opts.durability != CHM_DURABILITY_PERIODIC || d->inflight > 0) {
        return UINT64_MAX;
    }
    if (fw->cache.replace ? fw->wbuf.seq <= d->durable_seq || fw->cache.target > d->durable_seq
                          : settled_now(fw) <= d->durable_seq) {
        return UINT64_MAX;
    }
    return chm_sat_add(d->last_ns, fw->opts.barrier_interval_ns);
}
