/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caps.c - what a medium over backing files can do, and whether an I/O keeps to it.
 *
 * Called at open (chm_media_caps, chm_media_force) and for every I/O (chm_io_check). With several
 * members the pickiest decides, so that whoever is above needs to know one set of rules.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "media/backing.h"
#include "media/media.h"
#include "util/util.h"

enum {
    INFLIGHT_DEFAULT = 128,
    BLOCK_MIN = 512,
};

int chm_media_fail(struct chm_error *err, int code, const char *format, ...)
{
    va_list ap;

    if (err) {
        err->code = code;
        va_start(ap, format);
        (void)vsnprintf(err->text, sizeof(err->text), format, ap);
        va_end(ap);
    }
    return code;
}

uint32_t chm_media_inflight(const struct chm_media_args *args)
{
    return args->inflight_max ? args->inflight_max : INFLIGHT_DEFAULT;
}

/* First line of a file in /sys, or "" if it is not there. */
static void sysfs_read(const char *path, char *line, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, line, size - 1);

    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (fd >= 0) {
        close(fd);
    }
}

/* An attribute of the request queue under a member; a partition's is that of its whole drive. */
static void queue_read(const struct chm_backing *b, const char *attribute, char *line, size_t size)
{
    static const char *const place[] = {"queue", "../queue"};
    struct stat st;

    line[0] = '\0';
    if (fstat(b->fd, &st) != 0) {
        return;
    }
    dev_t dev = b->block_device ? st.st_rdev : st.st_dev;
    for (size_t i = 0; i < CHM_COUNT(place) && line[0] == '\0'; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s/%s", major(dev), minor(dev),
                       place[i], attribute);
        sysfs_read(path, line, size);
    }
}

/* Only a bare drive that says so keeps writes without a barrier: a file also has metadata. */
static bool cache_is_volatile(const struct chm_backing *b)
{
    char line[32];

    queue_read(b, "write_cache", line, sizeof(line));
    return !b->block_device || strcmp(line, "write through") != 0;
}

static bool fua_is_cheap(const struct chm_backing *b)
{
    char line[32];

    queue_read(b, "fua", line, sizeof(line));
    return strcmp(line, "1") == 0;
}

/* Punching beyond the end changes nothing and tells whether the file system can. Drives always
 * can: the kernel writes zeros itself if it has to. */
static bool can_trim(const struct chm_backing *b)
{
    off_t beyond = (off_t)chm_round_up(b->size_bytes, b->block_bytes);
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

    return b->block_device || fallocate(b->fd, mode, beyond, b->block_bytes) == 0;
}

void chm_media_force(const struct chm_options *opts, struct chm_medium_caps *caps)
{
    if (opts->force_align > caps->block_bytes) {
        caps->block_bytes = opts->force_align;
    }
    if (opts->force_align > caps->align_bytes) {
        caps->align_bytes = opts->force_align;
    }
    if (opts->force_transfer_max) {
        caps->transfer_max = (uint32_t)chm_min(caps->transfer_max, opts->force_transfer_max);
    }
    caps->transfer_max -= caps->transfer_max % caps->block_bytes;
    if (caps->transfer_max == 0) {
        caps->transfer_max = caps->block_bytes;
    }
}

void chm_media_caps(const struct chm_media_args *args, const char *name,
                    struct chm_medium_caps *caps)
{
    *caps = (struct chm_medium_caps){
        .members = args->members,
        .block_bytes = BLOCK_MIN,
        .align_bytes = BLOCK_MIN,
        .transfer_max = CHM_REGION_CHUNK, /* so that every I/O fits a registered chunk */
        .inflight_max = chm_media_inflight(args),
        .fua_cheap = true,
        .trim = true,
        .contents = true,
        .direct = true,
        .event_fd = -1,
    };
    (void)snprintf(caps->name, sizeof(caps->name), "%s", name);
    for (uint32_t i = 0; i < args->members; i++) {
        const struct chm_backing *b = &args->backings[i];
        caps->block_bytes = (uint32_t)chm_max(caps->block_bytes, b->block_bytes);
        caps->align_bytes = (uint32_t)chm_max(caps->align_bytes, b->align_bytes);
        caps->volatile_cache = caps->volatile_cache || cache_is_volatile(b);
        caps->fua_cheap = caps->fua_cheap && fua_is_cheap(b);
        caps->trim = caps->trim && can_trim(b);
        caps->direct = caps->direct && b->direct;
        caps->size_bytes[i] = b->size_bytes;
    }
    chm_media_force(args->opts, caps);
}

int chm_io_check(const struct chm_medium_caps *caps, const struct chm_io *io)
{
    uint64_t mask = caps->block_bytes - 1;

    if (io->member >= caps->members || io->kind > CHM_IO_TRIM) {
        return -EINVAL;
    }
    if (io->kind == CHM_IO_BARRIER) {
        return 0;
    }
    if (io->len == 0 || ((io->off | io->len) & mask) != 0 || io->len > caps->transfer_max) {
        return -EINVAL;
    }
    if (io->off > (uint64_t)INT64_MAX - io->len) {
        return -EINVAL;
    }
    if (io->kind == CHM_IO_TRIM && !caps->trim) {
        return -EOPNOTSUPP;
    }
    if (io->kind != CHM_IO_TRIM &&
        (!io->buf || ((uintptr_t)io->buf & (caps->align_bytes - 1)) != 0)) {
        return -EINVAL;
    }
    if (io->kind != CHM_IO_READ && io->off + io->len > caps->size_bytes[io->member]) {
        return -ENOSPC;
    }
    return 0;
}
