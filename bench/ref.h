/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref.h - the yardstick: a raw io_uring reader and writer, O_DIRECT, registered buffers.
 *
 * It replays a list of (file offset, buffer, length) that the device has just worked through, in
 * that order, in requests of 1 MiB with up to `depth` of them in flight, and nothing else: no
 * window, no queue, no other thread. The same blocks into the same memory, so that what is left
 * of the difference is the device.
 */
#ifndef BENCH_REF_H
#define BENCH_REF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"

enum { REF_UNIT = 1 << 20, REF_DEPTH = 128 };

struct ref_io {
    uint64_t off; /* in the file */
    uint8_t *buf;
    uint64_t len;
    double at; /* when the device's side began it; for bench_ref_sort */
};

struct bench_ref;

/* [base, base + len) is registered with the ring (bench_ref_fixed says whether that worked); all
 * buffers of a list lie in it. */
void bench_ref_open(struct bench_ref **out, const char *path, void *base, uint64_t len);
void bench_ref_close(struct bench_ref *r);
bool bench_ref_fixed(const struct bench_ref *r);

/* Read, or write and fdatasync, all of the list. Dies on an error or a short transfer. */
struct bench_span bench_ref_read(struct bench_ref *r, const struct ref_io *list, size_t n);
struct bench_span bench_ref_write(struct bench_ref *r, const struct ref_io *list, size_t n);

/* Put a list in the order of `at`. */
void bench_ref_sort(struct ref_io *list, size_t n);

#endif
