/* SPDX-License-Identifier: Apache-2.0 */
/* content.c - see content.h. */
#include "content.h"

#include <stdbool.h>
#include <stdlib.h>

#include "bench.h"

enum { WORDS = BENCH_PAGE / sizeof(uint64_t) };

void bench_content_open(struct bench_content *c, uint64_t seed)
{
    uint64_t state = seed;

    *c = (struct bench_content){.seed = seed, .base = bench_alloc(BENCH_PAGE)};
    for (int i = 0; i < WORDS; i++) {
        c->base[i] = bench_random(&state);
    }
}

void bench_content_close(struct bench_content *c)
{
    free(c->base);
    c->base = NULL;
}

static uint64_t key_of(const struct bench_content *c, uint64_t page)
{
    uint64_t state = c->seed ^ page * UINT64_C(0xd1342543de82ef95) ^ c->version << 48;

    return bench_random(&state);
}

void bench_content_fill(const struct bench_content *c, uint64_t addr, void *buf, uint64_t len)
{
    for (uint64_t at = 0; at < len; at += BENCH_PAGE) {
        uint64_t key = key_of(c, (addr + at) / BENCH_PAGE);
        uint64_t *to = (uint64_t *)((uint8_t *)buf + at);

        for (int i = 0; i < WORDS; i++) {
            to[i] = c->base[i] ^ key;
        }
    }
}

static bool page_is(const struct bench_content *c, const uint64_t *page, uint64_t key)
{
    uint64_t wrong = 0;

    for (int i = 0; i < WORDS; i++) {
        wrong |= page[i] ^ c->base[i] ^ key;
    }
    return wrong == 0;
}

void bench_content_check(const struct bench_content *c, uint64_t addr, const void *buf,
                         uint64_t len, const char *where)
{
    for (uint64_t at = 0; at < len; at += BENCH_PAGE) {
        const void *page = (const uint8_t *)buf + at;

        if (!page_is(c, page, key_of(c, (addr + at) / BENCH_PAGE))) {
            bench_die("%s: wrong bytes in the page at device address %llu", where,
                      (unsigned long long)(addr + at));
        }
    }
}
