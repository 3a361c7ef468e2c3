/* SPDX-License-Identifier: Apache-2.0 */
/* cache_rig.h - a small device with a line cache, and what its tests share. */
#ifndef CHM_TESTS_DEVICE_CACHE_RIG_H
#define CHM_TESTS_DEVICE_CACHE_RIG_H

#include "device/rig.h"
#include "host/door.h"
#include "media/trace_file.h"

enum { LINE = 16 * KIB };

/* Lines of 16 KiB on the simulated medium: `lines` of them beside 1 MiB of write buffer. */
static inline void lines_sim(struct rig *r, const char *policy, uint32_t lines, uint32_t ways)
{
    rig_sim(r);
    r->opt.policy = policy;
    r->opt.line_bytes = LINE;
    r->opt.ways = ways;
    r->opt.dram_bytes = MIB + lines * LINE;
    r->opt.durability = CHM_DURABILITY_NONE;
}

/* Dirty lines go to the drive, and lines from `from` on take the place of all that are here. */
static inline void lines_push_out(struct rig *r, uint64_t from)
{
    uint8_t *buf = rig_alloc(LINE);

    CHECK_IS(chm_flush(r->dev, 60ull * CHM_SECOND), 0);
    for (uint64_t i = 0; i < rig_stats(r)->cache_lines; i++) {
        CHECK_IS(rig_read(r, from + i * LINE, LINE, buf), 0);
    }
    munmap(buf, LINE);
}

/* The identities of the counters, and that nothing is on its way. */
static inline void lines_check_idle(struct rig *r)
{
    const struct chm_stats *s = rig_stats(r);
    const struct chm_cache *c = &r->dev->fw->cache;
    uint32_t held = 0, dirty = 0;

    CHECK_EQ(s->cache_misses, s->cache_fills + s->cache_shared + s->cache_unfetched);
    CHECK_EQ(s->buffer_used_bytes, 0);
    CHECK_EQ(s->buffer_dirty_bytes, 0);
    CHECK_EQ(s->window_used_bytes, 0);
    CHECK_EQ(c->fills + c->cleans + c->trims, 0);
    CHECK(chm_list_empty(&c->jobs) && chm_list_empty(&c->evicting));
    for (uint32_t i = 0; i < c->lines_max; i++) {
        held += c->lines[i].state != LINE_FREE;
        dirty += c->lines[i].state == LINE_DIRTY;
        CHECK(c->lines[i].state != LINE_FILLING && c->lines[i].state != LINE_WRITING);
        CHECK_EQ(c->lines[i].waiters, 0);
    }
    CHECK_EQ(s->cache_dirty_lines, dirty);
    CHECK(held <= s->cache_lines);
    CHECK(r->info.cache_bytes + r->info.write_buffer_bytes <= r->info.dram_bytes);
    rig_check_counters(r);
}

/* The trace of a device that was closed, in order of ending. free(out->line) it. */
static inline void lines_trace(const struct rig *r, const char *path, struct chm_trace *out)
{
    struct chm_medium_caps caps = {.members = r->info.members, .block_bytes = PAGE};
    struct chm_error err = {0};

    CHECK_IS(chm_trace_load(path, &caps, out, &err), 0);
}

#endif
