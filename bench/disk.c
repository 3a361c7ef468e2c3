/* SPDX-License-Identifier: Apache-2.0 */
/* disk.c - see disk.h. */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    DATA_OFFSET = 1 << 20, /* docs/spec.md: data of a member begins here */
    EXTENTS = 128,         /* looked at per call */
    FILL_BYTES = 8 << 20,
};

static const uint64_t RESERVE = 1 * BENCH_GIB; /* left free for everybody else */
static const uint64_t BYTES_MAX = 8 * BENCH_GIB;

/* For atexit: one disk per program. */
static char made_path[512];

static void remove_made(void)
{
    if (made_path[0]) {
        unlink(made_path);
    }
}

static void check_space(const char *dir, uint64_t bytes)
{
    struct statvfs fs;

    if (statvfs(dir, &fs) < 0) {
        bench_die("%s: %s", dir, strerror(errno));
    }
    uint64_t left = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (bytes > BYTES_MAX || left < bytes + RESERVE) {
        bench_die("%s: %llu MiB free; %llu and a reserve of %llu needed", dir,
                  (unsigned long long)(left >> 20), (unsigned long long)(bytes >> 20),
                  (unsigned long long)(RESERVE >> 20));
    }
}

void bench_disk_make(struct bench_disk *d, const struct bench_args *a, uint64_t bytes)
{
    struct chm_format_options f;
    struct chm_error err = {0};
    const char *path = d->path;

    check_space(a->dir, bytes);
    snprintf(d->path, sizeof(d->path), "%s/chm-bench-%d.dev", a->dir, (int)getpid());
    d->bytes = bytes;
    bench_content_open(&d->content, a->seed);
    if (!made_path[0]) {
        atexit(remove_made);
    }
    memcpy(made_path, d->path, sizeof(made_path));
    chm_format_options_init(&f);
    f.paths = &path;
    f.npaths = 1;
    f.capacity_bytes = bytes;
    f.force = 1;
    if (chm_format(&f, &err) < 0) {
        bench_die("format %s: %s", path, err.text);
    }
}

void bench_disk_fill(struct bench_disk *d)
{
    void *buf = aligned_alloc(BENCH_PAGE, FILL_BYTES);
    int fd = open(d->path, O_WRONLY | O_DIRECT | O_CLOEXEC);

    if (!buf || fd < 0) {
        bench_die("fill %s: %s", d->path, strerror(errno));
    }
    for (uint64_t at = 0; at < d->bytes; at += FILL_BYTES) {
        uint64_t len = d->bytes - at < FILL_BYTES ? d->bytes - at : FILL_BYTES;

        bench_content_fill(&d->content, at, buf, len);
        if (pwrite(fd, buf, len, (off_t)bench_disk_offset(at)) != (ssize_t)len) {
            bench_die("fill %s: %s", d->path, strerror(errno));
        }
    }
    if (fdatasync(fd) < 0 || close(fd) < 0) {
        bench_die("fill %s: %s", d->path, strerror(errno));
    }
    free(buf);
    bench_disk_refuse_unwritten(d, d->bytes);
}

/* The extents from `from` on; returns how far they cover the file without a hole. */
static uint64_t written_until(int fd, struct fiemap *map, uint64_t from, uint64_t end)
{
    memset(map, 0, sizeof(*map));
    map->fm_start = from;
    map->fm_length = end - from;
    map->fm_flags = FIEMAP_FLAG_SYNC;
    map->fm_extent_count = EXTENTS;
    if (ioctl(fd, FS_IOC_FIEMAP, map) < 0) {
        bench_die("this file system does not tell which extents were written (FIEMAP: %s)",
                  strerror(errno));
    }
    for (uint32_t i = 0; i < map->fm_mapped_extents && from < end; i++) {
        const struct fiemap_extent *e = &map->fm_extents[i];

        if (e->fe_logical > from || (e->fe_flags & FIEMAP_EXTENT_UNWRITTEN)) {
            break;
        }
        from = e->fe_logical + e->fe_length;
    }
    return from;
}

void bench_disk_refuse_unwritten(const struct bench_disk *d, uint64_t bytes)
{
    struct fiemap *map =
        bench_alloc(sizeof(struct fiemap) + EXTENTS * sizeof(struct fiemap_extent));
    uint64_t from = bench_disk_offset(0), end = from + bytes;
    int fd = open(d->path, O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && from < end) {
        uint64_t next = written_until(fd, map, from, end);

        if (next == from) {
            bench_die("%s: never written at offset %llu: a figure from there is one of memory",
                      d->path, (unsigned long long)from);
        }
        from = next;
    }
    if (fd < 0) {
        bench_die("%s: %s", d->path, strerror(errno));
    }
    close(fd);
    free(map);
}

void bench_disk_remove(struct bench_disk *d)
{
    unlink(d->path);
    made_path[0] = 0;
    bench_content_close(&d->content);
}

uint64_t bench_disk_offset(uint64_t addr)
{
    return DATA_OFFSET + addr;
}

/* ---- the device on it */

/* The device keeps an eighth of what is not write buffer, at most 8 MiB, for demand reads. */
static uint64_t budget_of(uint64_t window, uint64_t buffer)
{
    uint64_t reserve = 8 * BENCH_MIB;

    if (window / 7 < reserve) {
        reserve = (window / 7 + BENCH_PAGE - 1) / BENCH_PAGE * BENCH_PAGE;
    }
    return window + reserve + buffer;
}

void bench_disk_options(const struct bench_disk *d, struct chm_options *o, uint64_t window,
                        uint64_t buffer)
{
    static const char *paths[1];

    paths[0] = d->path;
    chm_options_init(o);
    o->paths = paths;
    o->npaths = 1;
    o->dram_bytes = budget_of(window, buffer);
    o->write_buffer_bytes = buffer;
    o->prefault = 1;
}

chm_dev *bench_dev_open(const struct chm_options *o)
{
    struct chm_error err = {0};
    chm_dev *dev;

    if (chm_open(o, &dev, &err) < 0) {
        bench_die("open: %s", err.text);
    }
    return dev;
}

void bench_dev_close(chm_dev *dev)
{
    bench_check(chm_close(dev, 30ull * CHM_SECOND), "close");
}

uint8_t *bench_dev_memory(chm_dev *dev, uint64_t *bytes)
{
    struct chm_issue item = {.addr = 0, .len = BENCH_PAGE};
    struct chm_info info;
    struct chm_view view;

    bench_check(chm_info(dev, &info), "info");
    if (chm_issue(dev, &item, 1, NULL) != 1) {
        bench_check(item.status, "issue");
    }
    bench_check(chm_wait(dev, item.req, CHM_SECOND), "wait");
    bench_check(chm_view(dev, item.req, &view), "view");
    bench_check(chm_release(dev, item.req), "release");
    *bytes = info.dram_bytes;
    return (uint8_t *)view.data - view.offset;
}
