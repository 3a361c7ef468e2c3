/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing.c - making, opening and locking the files or block devices that members are (backing.h).
 *
 *     path -> open -> locked -> probed (block and alignment) -> in use -> closed
 *
 * backing_lock.c has the lock and the header page. Drives are opened O_EXCL besides, so that one
 * that is mounted or open under another device node is refused too.
 */
#define _GNU_SOURCE
#include "media/backing.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "media/backing_lock.h"
#include "media/media.h"
#include "util/util.h"

/* Newer than the C library of the oldest system that we build on. */
#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x2000U
#endif

enum {
    BLOCK_MIN = 512,
    BLOCK_DEFAULT = 4096, /* where nobody says: right for nearly every drive, wrong for none */
};

/* ------------------------------------------------------------------ open, probe */

static int no_direct(const char *path, struct chm_error *err)
{
    return chm_media_fail(
        err, -EOPNOTSUPP,
        "%s: its file system does not do direct I/O (O_DIRECT); put it on another "
        "one, or allow the page cache (buffered)",
        path);
}

/* Block size and memory alignment that direct I/O needs. 512 at least, whatever the kernel says. */
static int probe_blocks(struct chm_backing *b, const char *path, struct chm_error *err)
{
    struct statx sx = {0};
    int sector = 0;

    b->block_bytes = b->align_bytes = BLOCK_DEFAULT;
    if (statx(b->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 &&
        (sx.stx_mask & STATX_DIOALIGN)) {
        if (sx.stx_dio_offset_align == 0) {
            return b->direct ? no_direct(path, err) : 0;
        }
        b->block_bytes = (uint32_t)chm_max(sx.stx_dio_offset_align, BLOCK_MIN);
        b->align_bytes = (uint32_t)chm_max(sx.stx_dio_mem_align, BLOCK_MIN);
    } else if (b->block_device && ioctl(b->fd, BLKSSZGET, &sector) == 0 && sector > 0) {
        b->block_bytes = b->align_bytes = (uint32_t)chm_max((uint64_t)sector, BLOCK_MIN);
    }
    return 0;
}

/* Looked at before open(2), which would wait for ever on some kinds of file. */
static int probe_kind(struct chm_backing *b, const char *path, struct chm_error *err)
{
    struct stat st;

    if (stat(path, &st) != 0) {
        return 0; /* open(2) knows why, or makes it */
    }
    b->block_device = S_ISBLK(st.st_mode);
    if (!b->block_device && !S_ISREG(st.st_mode)) {
        return chm_media_fail(err, -EINVAL, "%s is neither a file nor a block device", path);
    }
    return 0;
}

static int probe_size(struct chm_backing *b, const char *path, struct chm_error *err)
{
    struct stat st;
    int rc = fstat(b->fd, &st);

    if (rc == 0) {
        b->size_bytes = (uint64_t)st.st_size; /* 0 for a device */
        b->block_device = S_ISBLK(st.st_mode);
    }
    if (rc == 0 && b->block_device) {
        rc = ioctl(b->fd, BLKGETSIZE64, &b->size_bytes);
    }
    return rc ? chm_media_fail(err, -errno, "%s: %s", path, strerror(errno)) : 0;
}

static int open_failed(const char *path, bool buffered, int code, struct chm_error *err)
{
    if (code == -EINVAL && !buffered) {
        return no_direct(path, err);
    }
    if (code == -EBUSY) {
        return chm_media_fail(err, code, "%s is in use: mounted, or held by another program", path);
    }
    return chm_media_fail(err, code, "%s: %s", path, strerror(-code));
}

/* Open, probe, lock. flags: more flags for open(2). On failure nothing stays open. */
static int backing_open(const char *path, int flags, bool buffered, struct chm_backing *b,
                        struct chm_error *err)
{
    int rc;

    *b = (struct chm_backing){.direct = !buffered};
    rc = probe_kind(b, path, err);
    if (rc) {
        return rc;
    }
    flags |= O_RDWR | O_CLOEXEC | (buffered ? 0 : O_DIRECT) | (b->block_device ? O_EXCL : 0);
    b->fd = open(path, flags, 0600);
    if (b->fd < 0) {
        return open_failed(path, buffered, -errno, err);
    }
    rc = probe_size(b, path, err);
    if (rc == 0) {
        rc = probe_blocks(b, path, err);
    }
    if (rc == 0) {
        rc = chm_backing_lock(b, path, err);
    }
    if (rc) {
        close(b->fd);
    }
    return rc;
}

int chm_backing_open(const char *path, bool buffered, struct chm_backing *out,
                     struct chm_error *err)
{
    struct chm_backing b;
    int rc = backing_open(path, 0, buffered, &b, err);

    if (rc == 0) {
        *out = b;
    }
    return rc;
}

void chm_backing_close(struct chm_backing *b)
{
    chm_backing_unlock(b);
    close(b->fd);
    b->fd = -1;
}

uint64_t chm_backing_size(const char *path)
{
    struct chm_backing b = {.fd = -1};
    int rc = probe_kind(&b, path, NULL);

    b.fd = rc ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (b.fd < 0) {
        return 0;
    }
    rc = probe_size(&b, path, NULL);
    close(b.fd);
    return rc ? 0 : b.size_bytes;
}

/* ------------------------------------------------------------------ create */

static int no_space(const char *path, uint64_t need, uint64_t free_bytes, struct chm_error *err)
{
    return chm_media_fail(err, -ENOSPC, "%s needs %llu bytes more, its file system has %llu free",
                          path, (unsigned long long)need, (unsigned long long)free_bytes);
}

static uint64_t free_space(int fd)
{
    struct statvfs vfs;

    return fstatvfs(fd, &vfs) == 0 ? (uint64_t)vfs.f_bavail * vfs.f_frsize : UINT64_MAX;
}

/* Bytes that the file does not own yet. */
static uint64_t bytes_missing(int fd, uint64_t size_bytes)
{
    struct stat st;
    uint64_t owned = fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;

    return owned < size_bytes ? size_bytes - owned : 0;
}

/* Give the file all of its blocks now, so that no later write can lack space. */
static int preallocate(struct chm_backing *b, const char *path, uint64_t size_bytes,
                       struct chm_error *err)
{
    uint64_t need = bytes_missing(b->fd, size_bytes), have = free_space(b->fd);

    if (size_bytes > INT64_MAX) {
        return chm_media_fail(err, -EFBIG, "%s: no file can have %llu bytes", path,
                              (unsigned long long)size_bytes);
    }
    if (need > have) {
        return no_space(path, need, have, err);
    }
    if (fallocate(b->fd, 0, 0, (off_t)size_bytes) != 0) {
        int code = -errno;
        int undone = ftruncate(b->fd, (off_t)b->size_bytes); /* what was there stays as it was */
        (void)undone;
        if (code == -ENOSPC) {
            return no_space(path, need, have, err);
        }
        return chm_media_fail(err, code, "%s: cannot preallocate %llu bytes: %s", path,
                              (unsigned long long)size_bytes, strerror(-code));
    }
    b->size_bytes = chm_max(b->size_bytes, size_bytes);
    return 0;
}

/* A new name is durable when its directory is. */
static int directory_sync(const char *path)
{
    char copy[PATH_MAX];
    int fd, rc;

    (void)snprintf(copy, sizeof(copy), "%s", path);
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    rc = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return rc;
}

static int file_prepare(struct chm_backing *b, const char *path, uint64_t size_bytes, bool made,
                        struct chm_error *err)
{
    int rc;

    CHM_ASSERT(b->fd >= 0);
    rc = preallocate(b, path, size_bytes, err);
    if (rc == 0 && made) {
        rc = fsync(b->fd) == 0 ? directory_sync(path) : -errno;
        if (rc) {
            return chm_media_fail(err, rc, "%s: sync: %s", path, strerror(-rc));
        }
    }
    return rc;
}

int chm_backing_create(const char *path, uint64_t size_bytes, bool buffered,
                       struct chm_backing *out, struct chm_error *err)
{
    struct chm_backing b;
    bool made = access(path, F_OK) != 0;
    int rc = backing_open(path, made ? O_CREAT | O_EXCL : 0, buffered, &b, err);

    if (rc == -EEXIST) {
        made = false; /* somebody else made it meanwhile */
        rc = backing_open(path, 0, buffered, &b, err);
    }
    if (rc) {
        if (made && rc == -EOPNOTSUPP) {
            unlink(path); /* some kernels make the file before they refuse O_DIRECT */
        }
        return rc;
    }
    if (!b.block_device) {
        rc = file_prepare(&b, path, size_bytes, made, err);
    } else if (b.size_bytes < size_bytes) {
        rc = chm_media_fail(err, -ENOSPC, "%s has %llu bytes, %llu are needed", path,
                            (unsigned long long)b.size_bytes, (unsigned long long)size_bytes);
    }
    if (rc) {
        if (made) {
            unlink(path);
        }
        close(b.fd);
        return rc;
    }
    *out = b;
    return 0;
}
