/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.h - the device file of one program: made, filled, looked at, removed.
 *
 * It is filled past the device, by raw direct writes, so that what the device reads was put there
 * by somebody else; and it is refused if an extent was never written, because such extents read as
 * zeros at the speed of memory.
 */
#ifndef BENCH_DISK_H
#define BENCH_DISK_H

#include <stdint.h>

#include "bench.h"
#include "content.h"

struct bench_disk {
    char path[512];
    uint64_t bytes; /* capacity of the device */
    struct bench_content content;
};

/* Make a device of `bytes` in a->dir. Dies when the folder has not got that and a reserve free.
 * It is removed when the program ends, however that happens, unless it is killed. */
void bench_disk_make(struct bench_disk *d, const struct bench_args *a, uint64_t bytes);
/* Write all of it, and be sure of it. */
void bench_disk_fill(struct bench_disk *d);
/* Die if any of the first `bytes` was never written. */
void bench_disk_refuse_unwritten(const struct bench_disk *d, uint64_t bytes);
void bench_disk_remove(struct bench_disk *d);

/* Where device address addr lies in the file. */
uint64_t bench_disk_offset(uint64_t addr);

/* Options for a device on d with `window` bytes to stage in and `buffer` bytes of write buffer;
 * pre-faulted, so that no first touch is timed. */
void bench_disk_options(const struct bench_disk *d, struct chm_options *o, uint64_t window,
                        uint64_t buffer);
/* Open, or die. */
chm_dev *bench_dev_open(const struct chm_options *o);
void bench_dev_close(chm_dev *dev);
/* The device's DRAM, as it is mapped here. */
uint8_t *bench_dev_memory(chm_dev *dev, uint64_t *bytes);

#endif
