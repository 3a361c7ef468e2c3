/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.c - what every page may read as (explore.h).
 *
 * A page has a chain of versions, newest first, each with the number of the change that made it.
 * Keys differ from version to version and from page to page, so bytes of another page, of another
 * object or of an older time never pass for the right ones. After a power cut a page may be any
 * version from the newest promised one on; where the drive lied, any version it ever had.
 */
#include "explore/explore.h"

#include <stdio.h>

static const uint64_t STEP = UINT64_C(0x9E3779B97F4A7C15);

enum { MOMENT_WORDS = CHANGES_MAX / 64 };

struct moments {
    uint64_t word[MOMENT_WORDS]; /* bit n: the moment number from + n is possible */
};

/* ------------------------------------------------------------------ bytes */

uint64_t pattern_key(uint64_t seed, uint64_t page)
{
    uint64_t state = seed ^ (page + 1) * STEP;

    return chm_random(&state) | 1;
}

static uint8_t pattern_byte(uint64_t key, uint64_t at)
{
    return (uint8_t)((key + at / 8 * STEP) >> (8 * (at % 8)));
}

void pattern_fill(uint8_t *p, uint64_t key, uint64_t off, uint64_t len)
{
    uint64_t at = 0;

    for (; at < len && (off + at) % 8 != 0; at++) {
        p[at] = pattern_byte(key, off + at);
    }
    for (uint64_t word = key + (off + at) / 8 * STEP; at + 8 <= len; at += 8, word += STEP) {
        memcpy(p + at, &word, 8);
    }
    for (; at < len; at++) {
        p[at] = pattern_byte(key, off + at);
    }
}

static bool is_zero(const uint8_t *p, uint64_t len)
{
    return len == 0 || (p[0] == 0 && memcmp(p, p + 1, len - 1) == 0);
}

static bool is_pattern(const uint8_t *p, uint64_t key, uint64_t off, uint64_t len)
{
    uint64_t at = 0, got;

    for (; at < len && (off + at) % 8 != 0; at++) {
        if (p[at] != pattern_byte(key, off + at)) {
            return false;
        }
    }
    for (uint64_t word = key + (off + at) / 8 * STEP; at + 8 <= len; at += 8, word += STEP) {
        memcpy(&got, p + at, 8);
        if (got != word) {
            return false;
        }
    }
    for (; at < len; at++) {
        if (p[at] != pattern_byte(key, off + at)) {
            return false;
        }
    }
    return true;
}

/* Is [off, off + len) of a page with this version at p? */
static bool version_at(const struct version *v, const uint8_t *p, uint64_t off, uint64_t len)
{
    uint64_t n = v->key && off < v->bytes ? chm_min(len, v->bytes - off) : 0;

    return is_pattern(p, v->key, off, n) && is_zero(p + n, len - n);
}

/* ------------------------------------------------------------------ changes */

void model_reset(struct model *m, uint64_t pages)
{
    memset(m->page, 0, pages * sizeof(m->page[0]));
    m->pages_count = pages;
    m->versions[0] = (struct version){0};
    m->versions_count = 1;
    m->changes = 0;
}

void model_begin(struct model *m)
{
    CHM_ASSERT(m->changes + 1 < CHANGES_MAX);
    m->changes++;
}

void model_set(struct model *m, uint64_t page, uint64_t key, uint32_t bytes)
{
    struct version v = {
        .key = key, .bytes = bytes, .since = m->changes, .prev = m->page[page].newest};

    CHM_ASSERT(m->versions_count < VERSIONS_MAX && page < m->pages_count);
    m->versions[m->versions_count] = v;
    m->page[page].newest = m->versions_count++;
}

/* ------------------------------------------------------------------ reading */

/* May it show any of its versions? */
static bool page_is_free(const struct model *m, uint64_t page, struct span span)
{
    const struct page *pg = &m->page[page];

    return pg->wild || pg->lied || (pg->lied_until && span.from <= pg->lied_until);
}

static bool any_version_at(const struct model *m, uint64_t page, const uint8_t *p, uint64_t off,
                           uint64_t len)
{
    for (uint32_t i = m->page[page].newest;; i = m->versions[i].prev) {
        if (m->page[page].wild || version_at(&m->versions[i], p, off, len)) {
            return true;
        }
        if (i == 0) {
            return false;
        }
    }
}

static void moments_add(struct moments *set, uint32_t first, uint32_t last)
{
    for (uint32_t n = first; n <= last; n++) {
        set->word[n / 64] |= UINT64_C(1) << n % 64;
    }
}

/* The moments of the span at which this part of a page read as it does. */
static void page_moments(const struct model *m, uint64_t page, const uint8_t *p, uint64_t off,
                         uint64_t len, struct span span, struct moments *set)
{
    uint32_t next = UINT32_MAX;

    for (uint32_t i = m->page[page].newest;; i = m->versions[i].prev) {
        const struct version *v = &m->versions[i];
        if (next <= span.from) {
            return;
        }
        if (v->since <= span.to && version_at(v, p, off, len)) {
            moments_add(set, (uint32_t)chm_max(v->since, span.from) - span.from,
                        (uint32_t)chm_min(next - 1, span.to) - span.from);
        }
        if (i == 0) {
            return;
        }
        next = v->since;
    }
}

bool model_matches(const struct model *m, const uint8_t *p, uint64_t addr, uint64_t len,
                   struct span span)
{
    struct moments possible;
    uint64_t words = (span.to - span.from) / 64 + 1, left = 1;

    memset(&possible, 0xFF, words * sizeof(possible.word[0]));
    for (uint64_t done = 0, n; done < len && left; done += n) {
        uint64_t page = (addr + done) / PAGE, off = (addr + done) % PAGE;
        struct moments here;
        n = chm_min(len - done, PAGE - off);
        if (page_is_free(m, page, span) && any_version_at(m, page, p + done, off, n)) {
            continue;
        }
        memset(&here, 0, words * sizeof(here.word[0]));
        page_moments(m, page, p + done, off, n, span, &here);
        left = 0;
        for (uint64_t i = 0; i < words; i++) {
            possible.word[i] &= here.word[i];
            left |= possible.word[i];
        }
    }
    return left != 0;
}

void model_describe(const struct model *m, uint64_t page, const uint8_t *p, char *text, size_t size)
{
    const struct page *pg = &m->page[page];
    int n = 0;

    for (uint32_t i = pg->newest; n == 0; i = m->versions[i].prev) {
        if (version_at(&m->versions[i], p, 0, PAGE)) {
            n = snprintf(text, size, "the bytes of change %u%s", m->versions[i].since,
                         i == pg->newest ? " (newest)" : "");
        }
        if (i == 0) {
            break;
        }
    }
    if (n == 0) {
        uint64_t word;
        memcpy(&word, p, sizeof(word));
        n = snprintf(text, size, "no bytes it ever had (first word %016" PRIx64 ")", word);
    }
    (void)snprintf(text + n, size - (size_t)n, "; newest is change %u, promised is change %u",
                   m->versions[pg->newest].since, pg->floor);
}

/* ------------------------------------------------------------------ promises */

static void page_promise(struct model *m, struct page *pg, uint32_t upto)
{
    uint32_t i = pg->newest;

    while (i != 0 && m->versions[i].since > upto) {
        i = m->versions[i].prev;
    }
    if (pg->lied) { /* nobody can promise that; what is written honestly later is a new matter */
        pg->doubt = (uint32_t)chm_max(pg->doubt, m->versions[i].since);
    } else if (!pg->wild && m->versions[i].since > pg->doubt) {
        pg->floor = (uint32_t)chm_max(pg->floor, m->versions[i].since);
    }
}

void model_promise(struct model *m, uint32_t upto)
{
    for (uint64_t p = 0; p < m->pages_count; p++) {
        if (m->page[p].newest) {
            page_promise(m, &m->page[p], upto);
        }
    }
}

void model_promise_range(struct model *m, uint64_t addr, uint64_t len, uint32_t upto)
{
    for (uint64_t p = addr / PAGE; p < (addr + len) / PAGE; p++) {
        page_promise(m, &m->page[p], upto);
    }
}

void model_told(struct model *m)
{
    for (uint64_t p = 0; p < m->pages_count; p++) {
        struct page *pg = &m->page[p];
        uint32_t newest = m->versions[pg->newest].since;
        if (newest > pg->floor) {
            pg->doubt = newest;
        }
    }
}

bool model_rebase(struct model *m, uint64_t page, const uint8_t *p, bool cut)
{
    struct page *pg = &m->page[page];
    uint32_t i = pg->newest;

    while (!version_at(&m->versions[i], p, 0, PAGE)) {
        if (i == 0 || (m->versions[i].since <= pg->floor && !pg->lied && !pg->wild)) {
            return pg->wild; /* it stays so */
        }
        i = m->versions[i].prev;
    }
    if (i != pg->newest) {
        struct version now = m->versions[i];
        model_set(m, page, now.key, now.bytes);
    }
    if (cut) {
        pg->floor = m->versions[pg->newest].since;
        pg->doubt = 0;
    } else if (m->versions[pg->newest].since > pg->floor) {
        pg->doubt = m->versions[pg->newest].since; /* nobody will promise it any more */
    }
    pg->lied = false;
    pg->lied_until = 0;
    return true;
}
