/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_image.c - the bytes of a simulated medium (sim_image.h).
 *
 * A page with its bit in `dirty` set is volatile: durable has its old bytes, live its new ones. A
 * barrier copies live over durable; a power cut tosses a coin and copies one over the other. All
 * other pages are equal in both images. Called by media_sim.c only.
 */
#define _GNU_SOURCE
#include "media/sim_image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "util/runs.h"
#include "util/util.h"

enum { SECTOR = 512 };

/* Zeros that take memory only when written, however large. */
static uint8_t *image_map(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

int chm_sim_image_open(struct chm_sim_image *s, uint32_t members, uint64_t member_bytes,
                       bool contents, bool volatile_cache)
{
    *s = (struct chm_sim_image){.stride = chm_round_up(member_bytes, CHM_SIM_PAGE)};
    s->bytes = s->stride * members;
    if (!contents) {
        return 0;
    }
    s->live = image_map(s->bytes);
    if (s->live && volatile_cache) {
        s->durable = image_map(s->bytes);
        s->dirty = calloc(s->bytes / CHM_SIM_PAGE / 64 + 1, sizeof(*s->dirty));
    }
    if (!s->live || (volatile_cache && (!s->durable || !s->dirty))) {
        chm_sim_image_close(s);
        return -ENOMEM;
    }
    return 0;
}

void chm_sim_image_share(struct chm_sim_image *s, struct chm_sim_keep *keep)
{
    if (keep->image.live) {
        chm_sim_image_close(s);
        *s = keep->image;
        keep->image = (struct chm_sim_image){0};
    }
    s->keep = keep;
}

void chm_sim_keep_restore(struct chm_sim_keep *keep)
{
    keep->cut = false;
    keep->writes = keep->cut_at = 0;
}

void chm_sim_keep_free(struct chm_sim_keep *keep)
{
    chm_sim_image_close(&keep->image);
    keep->image = (struct chm_sim_image){0};
}

void chm_sim_image_close(struct chm_sim_image *s)
{
    if (s->keep) {
        s->keep->image = *s;
        s->keep->image.keep = NULL;
        return;
    }
    if (s->live) {
        munmap(s->live, s->bytes);
    }
    if (s->durable) {
        munmap(s->durable, s->bytes);
    }
    free(s->dirty);
}

void chm_sim_image_read(const struct chm_sim_image *s, uint32_t member, uint64_t off, void *buf,
                        uint64_t len)
{
    if (s->live && len > 0) {
        memcpy(buf, s->live + member * s->stride + off, len);
    }
}

static bool is_cut(const struct chm_sim_image *s)
{
    return s->keep && s->keep->cut;
}

static void mark_dirty(struct chm_sim_image *s, uint64_t at, uint64_t len)
{
    if (s->durable) {
        uint64_t first = at / CHM_SIM_PAGE;
        chm_bits_set(s->dirty, first, (at + len - 1) / CHM_SIM_PAGE - first + 1);
    }
}

void chm_sim_image_write(struct chm_sim_image *s, uint32_t member, uint64_t off, const void *buf,
                         uint64_t len, bool fua)
{
    uint64_t at = member * s->stride + off;

    if (!s->live || len == 0 || is_cut(s)) {
        return;
    }
    memcpy(s->live + at, buf, len);
    if (fua && s->durable) {
        /* A page that was dirty stays so: whichever image wins a power cut, it has these bytes. */
        memcpy(s->durable + at, buf, len);
    } else {
        mark_dirty(s, at, len);
    }
}

void chm_sim_image_zero(struct chm_sim_image *s, uint32_t member, uint64_t off, uint64_t len)
{
    uint64_t at = member * s->stride + off, end = at + len;
    uint64_t first = chm_round_up(at, CHM_SIM_PAGE), last = end - end % CHM_SIM_PAGE;

    if (!s->live || len == 0 || is_cut(s)) {
        return;
    }
    if (first < last && madvise(s->live + first, last - first, MADV_DONTNEED) == 0) {
        memset(s->live + at, 0, first - at);
        memset(s->live + last, 0, end - last);
    } else {
        memset(s->live + at, 0, len);
    }
    mark_dirty(s, at, len);
}

void chm_sim_image_barrier(struct chm_sim_image *s, uint32_t member)
{
    uint64_t page = member * s->stride / CHM_SIM_PAGE, end = page + s->stride / CHM_SIM_PAGE;

    if (!s->durable || is_cut(s)) {
        return;
    }
    for (;;) {
        page = chm_bits_next_set(s->dirty, page, end);
        if (page >= end) {
            return;
        }
        memcpy(s->durable + page * CHM_SIM_PAGE, s->live + page * CHM_SIM_PAGE, CHM_SIM_PAGE);
        chm_bits_clear(s->dirty, page, 1);
    }
}

static void cut_part(struct chm_sim_image *s, uint64_t at, uint64_t len, uint64_t *seed)
{
    if (chm_random(seed) & 1) {
        memcpy(s->durable + at, s->live + at, len);
    } else {
        memcpy(s->live + at, s->durable + at, len);
    }
}

void chm_sim_image_cut(struct chm_sim_image *s, uint64_t *seed)
{
    uint64_t page = 0, end = s->bytes / CHM_SIM_PAGE;

    /* Kept images may tear pages: of one in four, each sector has a coin of its own. */
    while (s->durable && (page = chm_bits_next_set(s->dirty, page, end)) < end) {
        uint64_t step = s->keep && chm_random(seed) % 4 == 0 ? SECTOR : CHM_SIM_PAGE;

        for (uint64_t at = 0; at < CHM_SIM_PAGE; at += step) {
            cut_part(s, page * CHM_SIM_PAGE + at, step, seed);
        }
        chm_bits_clear(s->dirty, page, 1);
    }
}
