/* SPDX-License-Identifier: Apache-2.0 */
/*
 * posix_io.c - one I/O carried out by plain system calls. Blocks for as long as it takes.
 *
 * Trim prefers FALLOC_FL_ZERO_RANGE, which keeps the blocks allocated: a hole would have to be
 * allocated again by a later write, which could then fail for want of space.
 */
#define _GNU_SOURCE
#include "media/posix_io.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/uio.h>
#include <unistd.h>

#include "media/backing.h"

enum { INTERRUPTS_MAX = 100 };

void chm_posix_init(struct chm_posix *p, const struct chm_media_args *args)
{
    for (uint32_t i = 0; i < args->members; i++) {
        p->fd[i] = args->backings[i].fd;
        atomic_init(&p->punch[i], false);
    }
}

static int posix_trim(struct chm_posix *p, const struct chm_io *io)
{
    int fd = p->fd[io->member];
    off_t off = (off_t)io->off, len = (off_t)io->len;

    if (!atomic_load(&p->punch[io->member])) {
        int rc = fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, off, len);
        if (rc == 0 || errno != EOPNOTSUPP) {
            return rc;
        }
        atomic_store(&p->punch[io->member], true);
    }
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len);
}

static ssize_t posix_call(struct chm_posix *p, const struct chm_io *io)
{
    int fd = p->fd[io->member];
    struct iovec iov = {.iov_base = io->buf, .iov_len = io->len};

    switch (io->kind) {
    case CHM_IO_READ:
        return pread(fd, io->buf, io->len, (off_t)io->off);
    case CHM_IO_WRITE:
        return pwritev2(fd, &iov, 1, (off_t)io->off, io->flags & CHM_IO_FUA ? RWF_DSYNC : 0);
    case CHM_IO_BARRIER:
        return fdatasync(fd);
    default:
        return posix_trim(p, io);
    }
}

int32_t chm_posix_run(struct chm_posix *p, const struct chm_io *io)
{
    for (int i = 0; i < INTERRUPTS_MAX; i++) {
        ssize_t n = posix_call(p, io);
        if (n >= 0) {
            return (int32_t)n;
        }
        if (errno != EINTR) {
            return -errno;
        }
    }
    return -EINTR;
}
