/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_lines.c - the tables of the transparent device cache: index, sets, dirty list.
 *
 * One index for both shapes: a hash table of lines by number. Fully associative is one set of all
 * lines; else lines i * ways .. belong to set i, and a number belongs to the set that its hash
 * says.
 *
 * The dirty list is in order of stamp: a line is stamped, when it becomes dirty, with the oldest
 * commit that is not in lines yet (its own or an older one), which only ever grows.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fw/device.h"
#include "util/util.h"

enum { ACCESSES_PER_FILL = 8, ACCESSES_MIN = 256 };

/* ---- shape */

static int shape_fail(struct chm_error *err, const char *text)
{
    snprintf(err->text, sizeof(err->text), "%s", text);
    return -EINVAL;
}

static uint32_t power_above(uint32_t n)
{
    uint32_t p = 1;

    while (p < n) {
        p *= 2;
    }
    return p;
}

static int shape_sets(struct chm_fw *fw, uint64_t lines, struct chm_error *err)
{
    struct chm_cache *c = &fw->cache;
    uint64_t usable = lines * fw->opts.effective_percent / 100;

    c->ways = fw->opts.ways ? fw->opts.ways : (uint32_t)usable;
    if (usable == 0 || usable < c->ways) {
        snprintf(err->text, sizeof(err->text),
                 "the DRAM budget has %llu usable lines of %u bytes, less than one set of %u: more "
                 "dram_bytes, or smaller line_bytes or ways",
                 (unsigned long long)usable, fw->opts.line_bytes, c->ways ? c->ways : 1);
        return -EINVAL;
    }
    c->sets_max = (uint32_t)(usable / c->ways);
    c->lines_max = c->sets_max * c->ways;
    c->bucket_mask = power_above(c->lines_max) - 1;
    return 0;
}

int chm_cache_shape(struct chm_fw *fw, uint64_t bytes, struct chm_error *err)
{
    struct chm_cache *c = &fw->cache;
    uint64_t lines = bytes / fw->opts.line_bytes;

    c->line_bytes = fw->opts.line_bytes;
    c->shift = (uint32_t)__builtin_ctzll(c->line_bytes);
    c->copies = fw->medium->caps.contents;
    c->fills_max = fw->opts.line_fills;
    c->moves_max = c->fills_max + fw->opts.flush_depth + fw->opts.flush_depth_reads + 2;
    c->accesses_max = c->fills_max * ACCESSES_PER_FILL + ACCESSES_MIN;
    if (c->line_bytes % fw->granule != 0) {
        return shape_fail(err, "line_bytes is smaller than a block of the drive: make it larger");
    }
    if (lines >= UINT32_MAX / 2) {
        return shape_fail(err, "more than 2^31 lines: make line_bytes larger");
    }
    return shape_sets(fw, lines, err);
}

void chm_cache_carve(struct chm_fw *fw, struct chm_carve *k)
{
    struct chm_cache *c = &fw->cache;

    if (!c->replace) {
        return;
    }
    c->lines = chm_carve(k, c->lines_max * sizeof(*c->lines));
    c->sets = chm_carve(k, c->sets_max * sizeof(*c->sets));
    c->buckets = chm_carve(k, (c->bucket_mask + 1ull) * sizeof(*c->buckets));
    c->reads = chm_carve(k, fw->opts.requests_max * sizeof(*c->reads));
    c->stores = chm_carve(k, fw->wbuf.exts_max * sizeof(*c->stores));
    c->accesses = chm_carve(k, c->accesses_max * sizeof(*c->accesses));
    c->moves = chm_carve(k, c->moves_max * sizeof(*c->moves));
}

static void init_lines(struct chm_cache *c)
{
    for (uint32_t i = 0; i < c->sets_max; i++) {
        chm_list_init(&c->sets[i].order);
        chm_list_init(&c->sets[i].free);
    }
    for (uint32_t i = 0; i < c->lines_max; i++) {
        chm_list_init(&c->lines[i].dirty);
        chm_list_push(&c->sets[i / c->ways].free, &c->lines[i].order);
    }
}

void chm_cache_init(struct chm_fw *fw)
{
    struct chm_cache *c = &fw->cache;

    chm_list_init(&c->jobs);
    chm_list_init(&c->dirty);
    chm_list_init(&c->moves_free);
    chm_list_init(&c->evicting);
    if (!c->replace) {
        return;
    }
    init_lines(c);
    for (uint32_t i = 0; i < c->accesses_max; i++) {
        c->accesses[i].next = c->accesses_free;
        c->accesses_free = i + 1;
    }
    for (uint32_t i = 0; i < c->moves_max; i++) {
        chm_list_init(&c->moves[i].evicting);
        chm_list_push(&c->moves_free, &c->moves[i].link);
    }
}

/* ---- index */

/* Every bit of the number changes about half of the bits of this. */
static uint64_t line_hash(uint64_t number)
{
    uint64_t x = number + UINT64_C(0x9E3779B97F4A7C15);

    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint32_t chm_cache_set_of(const struct chm_cache *c, uint64_t number)
{
    return c->sets_max == 1 ? 0 : (uint32_t)((line_hash(number) >> 32) * c->sets_max >> 32);
}

struct chm_set *chm_line_set(struct chm_cache *c, const struct chm_line *line)
{
    return &c->sets[c->sets_max == 1 ? 0 : (uint32_t)(line - c->lines) / c->ways];
}

static uint32_t *bucket_of(struct chm_cache *c, uint64_t number)
{
    return &c->buckets[line_hash(number) & c->bucket_mask];
}

struct chm_line *chm_cache_find(struct chm_cache *c, uint64_t number)
{
    for (uint32_t i = *bucket_of(c, number); i; i = c->lines[i - 1].chain) {
        if (c->lines[i - 1].number == number) {
            return &c->lines[i - 1];
        }
    }
    return NULL;
}

void chm_line_name(struct chm_cache *c, struct chm_line *line, uint64_t number)
{
    uint32_t *bucket = bucket_of(c, number);

    line->number = number;
    line->chain = *bucket;
    *bucket = (uint32_t)(line - c->lines) + 1;
    c->replace->enter(chm_line_set(c, line), line);
}

void chm_line_unname(struct chm_cache *c, struct chm_line *line)
{
    uint32_t *at = bucket_of(c, line->number), own = (uint32_t)(line - c->lines) + 1;

    while (*at != own) {
        CHM_ASSERT(*at);
        at = &c->lines[*at - 1].chain;
    }
    *at = line->chain;
    chm_list_remove(&line->order);
}

/* ---- lines */

uint64_t chm_line_addr(const struct chm_cache *c, const struct chm_line *line)
{
    return line->number << c->shift;
}

uint64_t chm_cache_end_of(const struct chm_fw *fw, uint64_t number)
{
    return chm_min((number + 1) << fw->cache.shift, fw->map.capacity_bytes);
}

uint8_t *chm_line_memory(const struct chm_fw *fw, const struct chm_line *line)
{
    return fw->memory + ((uint64_t)(line - fw->cache.lines) << fw->cache.shift);
}

void chm_line_free(struct chm_fw *fw, struct chm_line *line)
{
    struct chm_cache *c = &fw->cache;

    CHM_ASSERT(line->state != LINE_FREE && line->waiters == 0 && chm_list_empty(&line->dirty));
    chm_line_unname(c, line);
    line->state = LINE_FREE;
    chm_list_push(&chm_line_set(c, line)->free, &line->order);
    if (fw->opts.poison && c->copies) {
        memset(chm_line_memory(fw, line), 0xA5, c->line_bytes);
    }
}

void chm_line_dirty(struct chm_fw *fw, struct chm_line *line, uint64_t seq)
{
    struct chm_cache *c = &fw->cache;

    line->state = LINE_DIRTY;
    if (chm_list_empty(&line->dirty)) {
        /* The store itself is still on the list of what is pending. */
        line->stamp = chm_wbuf_settled(&fw->wbuf) + 1;
        line->span = 0;
        chm_list_push(&c->dirty, &line->dirty);
        c->dirty_lines++;
    }
    CHM_ASSERT(line->stamp <= seq);
    line->span = (uint32_t)chm_max(line->span, chm_min(seq - line->stamp, UINT32_MAX));
}

void chm_line_clean(struct chm_cache *c, struct chm_line *line)
{
    chm_list_remove(&line->dirty);
    c->dirty_lines--;
}
