/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush_idle.c - idle-only: what is written waits for a pause in the reads, however old it gets,
 * unless the buffer is filled above its high mark or somebody asks for it.
 *
 * The worked example of docs/policies.md. It shows a device that trades the age of what is not safe
 * yet for undisturbed reads.
 */
#include "fw/flush.h"

#include "util/util.h"

static bool above_mark(const struct chm_flush_view *v)
{
    return v->filled * 100 >= v->buffer_bytes * v->opts->flush_high_percent;
}

static uint64_t idle_at(const struct chm_flush_view *v)
{
    return chm_sat_add(v->last_read_ns, v->opts->flush_idle_ns);
}

static uint32_t idle_flushes(const struct chm_flush_view *v)
{
    if (v->asked || above_mark(v)) {
        return (uint32_t)chm_max(v->reads_wait ? v->opts->flush_depth_reads : v->opts->flush_depth,
                                 1);
    }
    return !v->reads_wait && v->now_ns >= idle_at(v) ? v->opts->flush_depth : 0;
}

static uint64_t idle_next_ns(const struct chm_flush_view *v)
{
    return v->reads_wait ? UINT64_MAX : idle_at(v);
}

const struct chm_flush_ops chm_flush_idle_only = {
    .name = "idle-only",
    .admit = chm_flush_admit_all,
    .reads = chm_flush_read_depth,
    .flushes = idle_flushes,
    .flush_first = chm_flush_never_first,
    .next_ns = idle_next_ns,
};
