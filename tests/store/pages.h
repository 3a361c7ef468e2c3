/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.h - which bytes a page of a device may show, for tests that write while they read.
 *
 * Commits and trims are numbered. A page says which commit wrote it, in a code that depends on its
 * address; the rest of its bytes follows from that number. Who reads a range remembers how new each
 * of its pages was when it asked: anything as new as that, or newer, is right.
 */
#ifndef CHM_TESTS_STORE_PAGES_H
#define CHM_TESTS_STORE_PAGES_H

#include "device/rig.h"

enum {
    CAPACITY = 128 * MIB,
    PAGES = CAPACITY / PAGE,
    COMMITS_MAX = 4096,
};

struct pages {
    uint32_t newest[PAGES]; /* number of the commit or trim that a page shows; 0: never written */
    uint32_t zero[PAGES];   /* number of the last trim of it */
    struct chm_range commit[COMMITS_MAX];
    uint32_t commits;
    uint64_t random;
};

/* A range that was asked for, and how new each of its pages was at that time. */
struct asked {
    uint64_t addr, len;
    uint32_t *oldest;
};

static inline bool pages_are_full(const struct pages *m)
{
    return m->commits == COMMITS_MAX - 1;
}

static inline uint64_t pages_code(uint64_t addr)
{
    return word_at(addr, UINT64_C(0xC0DE));
}

/* The next commit writes [addr, addr + len), whose bytes will be at data: fill them. */
static inline void pages_write(struct pages *m, uint64_t addr, uint64_t len, uint8_t *data)
{
    uint32_t number = ++m->commits;

    m->commit[number] = (struct chm_range){.addr = addr, .len = len};
    for (uint64_t at = 0; at < len; at += PAGE) {
        uint64_t head = pages_code(addr + at) ^ number;

        fill(data + at, addr + at, PAGE, number);
        memcpy(data + at, &head, sizeof(head));
        m->newest[(addr + at) / PAGE] = number;
    }
}

static inline void pages_trim(struct pages *m, uint64_t addr, uint64_t len)
{
    uint32_t number = ++m->commits;

    for (uint64_t i = addr / PAGE; i < (addr + len) / PAGE; i++) {
        m->newest[i] = m->zero[i] = number;
    }
}

static inline struct asked pages_ask(const struct pages *m, uint64_t addr, uint64_t len)
{
    struct asked a = {.addr = addr, .len = len};

    a.oldest = malloc(len / PAGE * sizeof(*a.oldest));
    CHECK(a.oldest);
    memcpy(a.oldest, m->newest + addr / PAGE, len / PAGE * sizeof(*a.oldest));
    return a;
}

static inline void pages_forget(struct asked *a)
{
    free(a->oldest);
    *a = (struct asked){0};
}

/* The head, a word somewhere, and the last one. */
static inline void pages_check_one(struct pages *m, const uint8_t *p, uint64_t addr,
                                   uint32_t oldest)
{
    uint64_t probe = 8 * (1 + chm_random(&m->random) % (PAGE / 8 - 1)), head, number;

    memcpy(&head, p, sizeof(head));
    number = head ^ pages_code(addr);
    if (head == 0) {
        CHECK(m->zero[addr / PAGE] >= oldest);
        CHECK(is_byte(p + probe, 8, 0) && is_byte(p + PAGE - 8, 8, 0));
        return;
    }
    CHECK(number <= m->commits && number >= oldest);
    CHECK(addr - m->commit[number].addr < m->commit[number].len);
    CHECK_HOLDS(p + probe, addr + probe, 8, number);
    CHECK_HOLDS(p + PAGE - 8, addr + PAGE - 8, 8, number);
}

/* data holds [offset, offset + len) of what was asked for. */
static inline void pages_check(struct pages *m, const void *data, const struct asked *a,
                               uint64_t offset, uint64_t len)
{
    for (uint64_t at = offset; at < offset + len; at += PAGE) {
        pages_check_one(m, (const uint8_t *)data + (at - offset), a->addr + at,
                        a->oldest[at / PAGE]);
    }
}

#endif
