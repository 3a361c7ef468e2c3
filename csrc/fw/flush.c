/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.c - the built-in flush policies.
 *
 * read-first: reads go before flushes. While reads wait, flush_depth_reads units are in flight if
 * the buffer presses, else none; while none waits, flush_depth, once the buffer presses or reads
 * have been idle for flush_idle_ns.
 *
 * fcfs: first come first served, for contrast. Reads and flushes take turns and share one depth.
 */
#include "fw/flush.h"

#include "util/util.h"

/* ---- shared */

int chm_flush_admit_all(const struct chm_flush_view *v, uint64_t addr, uint64_t len)
{
    (void)v;
    (void)addr;
    (void)len;
    return 0;
}

uint32_t chm_flush_read_depth(const struct chm_flush_view *v)
{
    return v->pressing ? v->opts->read_depth_pressed : v->opts->read_depth;
}

bool chm_flush_never_first(const struct chm_flush_view *v)
{
    (void)v;
    return false;
}

uint64_t chm_flush_when_idle_ns(const struct chm_flush_view *v)
{
    if (v->reads_wait) {
        return v->pressing ? UINT64_MAX : chm_sat_add(v->oldest_ns, v->opts->flush_age_ns);
    }
    return chm_sat_add(v->last_read_ns, v->opts->flush_idle_ns);
}

/* ---- read-first */

static uint32_t read_first_flushes(const struct chm_flush_view *v)
{
    if (v->reads_wait) {
        return v->pressing ? v->opts->flush_depth_reads : 0;
    }
    if (v->pressing || v->now_ns >= chm_sat_add(v->last_read_ns, v->opts->flush_idle_ns)) {
        return v->opts->flush_depth;
    }
    return 0;
}

const struct chm_flush_ops chm_flush_read_first = {
    .name = "read-first",
    .admit = chm_flush_admit_all,
    .reads = chm_flush_read_depth,
    .flushes = read_first_flushes,
    .flush_first = chm_flush_never_first,
    .next_ns = chm_flush_when_idle_ns,
};

/* ---- fcfs */

static uint32_t left_of_depth(const struct chm_flush_view *v, uint32_t taken)
{
    return v->opts->read_depth - (uint32_t)chm_min(taken, v->opts->read_depth);
}

static uint32_t fcfs_reads(const struct chm_flush_view *v)
{
    return (uint32_t)chm_min(chm_flush_read_depth(v), left_of_depth(v, v->flushes));
}

static uint32_t fcfs_flushes(const struct chm_flush_view *v)
{
    return left_of_depth(v, v->reads);
}

static bool fcfs_flush_first(const struct chm_flush_view *v)
{
    return v->turn;
}

const struct chm_flush_ops chm_flush_fcfs = {
    .name = "fcfs",
    .admit = chm_flush_admit_all,
    .reads = fcfs_reads,
    .flushes = fcfs_flushes,
    .flush_first = fcfs_flush_first,
    .next_ns = chm_flush_when_idle_ns,
};
