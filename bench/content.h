/* SPDX-License-Identifier: Apache-2.0 */
/*
 * content.h - bytes that nothing can compress, deduplicate or confuse.
 *
 * Every page of a device is a pure function of (seed, version, page number): random words, XORed
 * with a 64-bit key of that page. A page from another place, or of another version, is wrong in
 * every word.
 */
#ifndef BENCH_CONTENT_H
#define BENCH_CONTENT_H

#include <stdint.h>

struct bench_content {
    uint64_t seed, version;
    uint64_t *base; /* one page of random words */
};

void bench_content_open(struct bench_content *c, uint64_t seed);
void bench_content_close(struct bench_content *c);

/* What device range [addr, addr + len) holds; whole pages. */
void bench_content_fill(const struct bench_content *c, uint64_t addr, void *buf, uint64_t len);
/* Dies with the place of the first word that is not as filled. */
void bench_content_check(const struct bench_content *c, uint64_t addr, const void *buf,
                         uint64_t len, const char *where);

#endif
