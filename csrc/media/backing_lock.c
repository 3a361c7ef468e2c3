/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backing_lock.c - the header page of a member, and who holds the member (backing.h).
 *
 * The lock is an open-file-description lock on the whole inode: it is refused to every other open
 * of the same file, also by this process and under other names, it does not vanish when some other
 * descriptor of the file is closed, and it dies with its owner (and children that the owner forked,
 * which share it).
 *
 * A header page that chm_backing_write_header wrote ends in a stamp: a mark, and the pid of whoever
 * holds the lock. The stamp is only ever renewed where the mark is found, so that opening a foreign
 * file changes nothing in it. Callers of read and write never see the stamp: it reads as zeros.
 */
#define _GNU_SOURCE
#include "media/backing_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "media/media.h"
#include "util/util.h"

enum {
    PAGE_ALIGN = 4096,
    STAMP_AT = 4088,
    DEAD_NAP_NS = 5000000, /* how often and how many times a dead owner's lock is tried */
    DEAD_NAPS = 1000,
};

/* The last eight bytes of the header page. */
struct stamp {
    uint32_t mark;
    uint32_t pid;
};

static const uint32_t stamp_mark = 0x6b6c4843; /* "CHlk" */

/* ------------------------------------------------------------------ header page */

/* Bytes at the start of the member that are moved to get at the header page. */
static size_t page_bytes(const struct chm_backing *b)
{
    return (size_t)chm_round_up(CHM_HEADER_BYTES, b->block_bytes);
}

/* Read (or write) the start of the member into (from) an aligned buffer, whole or -EIO. */
static int page_move(const struct chm_backing *b, uint8_t *buf, bool to_file)
{
    size_t want = page_bytes(b);
    ssize_t n = to_file ? pwrite(b->fd, buf, want, 0) : pread(b->fd, buf, want, 0);

    if (n < 0) {
        return -errno;
    }
    return (size_t)n == want ? 0 : -EIO;
}

static uint8_t *page_alloc(const struct chm_backing *b)
{
    size_t align = (size_t)chm_max(b->align_bytes, PAGE_ALIGN);
    void *p = NULL;

    return posix_memalign(&p, align, page_bytes(b)) == 0 ? p : NULL;
}

int chm_backing_read_header(const struct chm_backing *b, void *page)
{
    uint8_t *buf = page_alloc(b);
    int rc;

    if (!buf) {
        return -ENOMEM;
    }
    rc = page_move(b, buf, false);
    if (rc == 0) {
        memset(buf + STAMP_AT, 0, sizeof(struct stamp));
        memcpy(page, buf, CHM_HEADER_BYTES);
    }
    free(buf);
    return rc;
}

static void stamp_put(uint8_t *buf)
{
    struct stamp s = {.mark = stamp_mark, .pid = (uint32_t)getpid()};

    memcpy(buf + STAMP_AT, &s, sizeof(s));
}

int chm_backing_write_header(const struct chm_backing *b, const void *page)
{
    uint8_t *buf = page_alloc(b);
    int rc = 0;

    if (!buf) {
        return -ENOMEM;
    }
    if (page_bytes(b) > CHM_HEADER_BYTES) {
        rc = page_move(b, buf, false); /* what shares the block stays as it is */
    }
    memcpy(buf, page, CHM_HEADER_BYTES);
    stamp_put(buf);
    if (rc == 0) {
        rc = page_move(b, buf, true);
    }
    if (rc == 0 && fdatasync(b->fd) != 0) {
        rc = -errno;
    }
    free(buf);
    return rc;
}

/* Say in the header page that we hold the lock now. Does nothing in a page that is not ours, or in
 * a member too short to have one. Not durable: it matters only while we live. */
static int stamp_renew(const struct chm_backing *b)
{
    uint8_t *buf = page_alloc(b);
    struct stamp s;
    int rc;

    if (b->size_bytes < page_bytes(b)) {
        free(buf);
        return 0;
    }
    if (!buf) {
        return -ENOMEM;
    }
    rc = page_move(b, buf, false);
    if (rc == 0) {
        memcpy(&s, buf + STAMP_AT, sizeof(s));
        if (s.mark == stamp_mark) {
            stamp_put(buf);
            rc = page_move(b, buf, true);
        }
    }
    free(buf);
    return rc;
}

/* ------------------------------------------------------------------ lock */

/* Pid of the last one who held the lock, or 0 if it is not known. */
static uint32_t stamp_pid(const struct chm_backing *b)
{
    uint8_t *buf = page_alloc(b);
    struct stamp s = {0};

    if (buf && b->size_bytes >= page_bytes(b) && page_move(b, buf, false) == 0) {
        memcpy(&s, buf + STAMP_AT, sizeof(s));
    }
    free(buf);
    return s.mark == stamp_mark ? s.pid : 0;
}

/* A process that ended counts as dead also while nobody has waited for it. */
static bool is_dead(uint32_t pid)
{
    char path[64], line[256] = "";
    const char *state;
    ssize_t n;
    int fd;

    if (pid == 0) {
        return false;
    }
    if (kill((pid_t)pid, 0) != 0) {
        return errno == ESRCH;
    }
    (void)snprintf(path, sizeof(path), "/proc/%u/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? 0 : read(fd, line, sizeof(line) - 1);
    line[n > 0 ? n : 0] = '\0';
    if (fd >= 0) {
        close(fd);
    }
    state = strrchr(line, ')'); /* the state follows the name: "PID (NAME) S ..." */
    return state && (state[2] == 'Z' || state[2] == 'X');
}

static int backing_busy(const char *path, uint32_t pid, struct chm_error *err)
{
    if (pid == 0) {
        return chm_media_fail(err, -EBUSY, "%s is in use by another open device", path);
    }
    if (pid == (uint32_t)getpid()) {
        return chm_media_fail(err, -EBUSY, "%s is open already in this process (pid %u)", path,
                              pid);
    }
    if (is_dead(pid)) {
        return chm_media_fail(err, -EBUSY,
                              "%s was opened by process %u, which is dead, but a child "
                              "that it forked still holds it",
                              path, pid);
    }
    return chm_media_fail(err, -EBUSY, "%s is in use by process %u: close it there first", path,
                          pid);
}

/*
 * The kernel keeps a file open, and so locked, until the last I/O on it has ended, also when the
 * process that started it is dead: no late write of a dead owner can hit a new one. That takes a
 * moment after a kill, which is waited for.
 */
int chm_backing_lock(const struct chm_backing *b, const char *path, struct chm_error *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct timespec nap = {.tv_nsec = DEAD_NAP_NS};
    int rc;

    for (int i = 0; fcntl(b->fd, F_OFD_SETLK, &whole) != 0; i++) {
        if (errno != EAGAIN && errno != EACCES) {
            return chm_media_fail(err, -errno, "%s: cannot lock: %s", path, strerror(errno));
        }
        uint32_t pid = stamp_pid(b);
        if (i == DEAD_NAPS || !is_dead(pid)) {
            return backing_busy(path, pid, err);
        }
        (void)nanosleep(&nap, NULL);
    }
    rc = stamp_renew(b);
    return rc ? chm_media_fail(err, rc, "%s: first page: %s", path, strerror(-rc)) : 0;
}

/* Explicit, because the kernel may hold on to the file a little longer though no I/O is left. */
void chm_backing_unlock(const struct chm_backing *b)
{
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

    (void)fcntl(b->fd, F_OFD_SETLK, &whole);
}

/* ------------------------------------------------------------------ from outside */

/* Through the page cache, so that any buffer does. */
int chm_backing_look(const char *path, void *page, bool *locked, uint32_t *pid)
{
    struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    uint8_t *bytes = page;
    struct stamp s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n;
    int rc;

    if (fd < 0) {
        return -errno;
    }
    rc = fcntl(fd, F_OFD_GETLK, &whole) == 0 ? 0 : -errno;
    n = pread(fd, bytes, CHM_HEADER_BYTES, 0);
    rc = rc < 0 ? rc : n < 0 ? -errno : n < CHM_HEADER_BYTES ? -EBADMSG : 0;
    close(fd);
    if (rc == 0) {
        memcpy(&s, bytes + STAMP_AT, sizeof(s));
        memset(bytes + STAMP_AT, 0, sizeof(s));
        *pid = s.mark == stamp_mark ? s.pid : 0;
        *locked = whole.l_type != F_UNLCK && !is_dead(*pid);
    }
    return rc;
}
