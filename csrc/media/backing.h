/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing.h - the files or block devices that members are: making, opening, locking them.
 *
 * With memory.h, clock.h and the media themselves the only place that touches files. A member is
 * locked for as long as it is open (an open-file-description lock on the inode, so other names of
 * the same file do not get past it), and the owner's pid is kept where a refused second opener can
 * read it (the owner field of the header page is not used for that: a pid is written to bytes
 * 4088..4095 of the header page).
 */
#ifndef CHM_BACKING_H
#define CHM_BACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "chm.h"

struct chm_backing {
    int fd;      /* O_DIRECT unless buffered */
    bool direct; /* O_DIRECT is in force */
    bool block_device;
    uint64_t size_bytes;
    uint32_t block_bytes; /* offsets and lengths; from statx(STATX_DIOALIGN), BLKSSZGET, or 4096 */
    uint32_t align_bytes; /* memory */
};

/* Open and lock an existing member. -EBUSY: locked by somebody; err names the pid. -EOPNOTSUPP:
 * O_DIRECT refused and !buffered. */
int chm_backing_open(const char *path, bool buffered, struct chm_backing *out,
                     struct chm_error *err);
/* Make the file if it is not there (0600), lock it, preallocate size_bytes (fallocate; refuses with
 * -ENOSPC and both numbers, and leaves no file behind that it made). For a block device checks the
 * size. Not zeroed. */
int chm_backing_create(const char *path, uint64_t size_bytes, bool buffered,
                       struct chm_backing *out, struct chm_error *err);
/* Look at a member without opening it as one: its header page, whether a living process has it
 * locked, and the pid of whoever had it last (0: not known). Changes nothing. 0 or -errno. */
int chm_backing_look(const char *path, void *page, bool *locked, uint32_t *pid);
/* Size of an existing file or block device, or 0 if there is none. */
uint64_t chm_backing_size(const char *path);
/* Read or write the header page (CHM_HEADER_BYTES at offset 0), whole or -EIO; write is durable on
 * return. page need not be aligned. */
int chm_backing_read_header(const struct chm_backing *b, void *page);
int chm_backing_write_header(const struct chm_backing *b, const void *page);
void chm_backing_close(struct chm_backing *b);

#endif
