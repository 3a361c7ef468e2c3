/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peek.c - reading what the owner of a store publishes (publish.c), from any process.
 *
 * Three facts make a page good: its checksum is right; the device is locked by a living process, so
 * somebody has it open; and that is who wrote the page, by the pid beside the lock. So a page that
 * an owner left behind when it was killed is never taken for news, whoever uses its pid now.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fw/header.h"
#include "store/kv.h"

enum { TRIES = 64 /* the owner writes a page in about 0.1 ms, every 250 ms */ };

static int refuse(struct chm_error *err, int rc, const char *path, const char *why)
{
    err->code = rc;
    snprintf(err->text, sizeof(err->text), "%.100s: %s", path, why);
    return rc;
}

static int open_page(const uint8_t device_id[16], uint64_t base)
{
    char path[96];
    int fd = -1, first = -ENOENT;

    for (uint32_t i = 0; fd < 0 && chm_kv_publish_path(i, device_id, base, path, sizeof(path));
         i++) {
        fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        first = fd < 0 && errno != ENOENT ? -errno : first;
    }
    return fd >= 0 ? fd : first;
}

/* Somebody else could have put a file of that name there. */
static bool is_trusted(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 022) == 0 &&
           (st.st_uid == geteuid() || geteuid() == 0);
}

/* One look. 0; -EAGAIN: it is being written; -EPROTO. */
static int read_page(int fd, struct chm_store_page *out, struct chm_store_namespace_info *ns,
                     uint32_t max)
{
    uint64_t off = sizeof(*out);
    struct chm_store_namespace_info one;
    struct chm_sum sum;

    if (pread(fd, out, sizeof(*out), 0) != (ssize_t)sizeof(*out)) {
        return -EAGAIN;
    }
    if (memcmp(out->magic, "CHMPAGE\n", sizeof(out->magic)) != 0 ||
        out->version != CHM_STORE_PAGE_VERSION || out->bytes != sizeof(*out)) {
        return -EPROTO;
    }
    chm_sum_begin(&sum, 0);
    chm_sum_add(&sum, (const uint8_t *)out + 16, sizeof(*out) - 16);
    for (uint32_t i = 0; i < out->namespaces; i++, off += sizeof(one)) {
        if (pread(fd, &one, sizeof(one), (off_t)off) != (ssize_t)sizeof(one)) {
            return -EAGAIN;
        }
        chm_sum_add(&sum, (const uint8_t *)&one, sizeof(one));
        if (ns && i < max) {
            ns[i] = one;
        }
    }
    return chm_sum_end(&sum) == out->sum ? 0 : -EAGAIN;
}

static int read_retrying(int fd, struct chm_store_page *out, struct chm_store_namespace_info *ns,
                         uint32_t max)
{
    int rc = is_trusted(fd) ? -EAGAIN : -ENOENT;

    for (int i = 0; i < TRIES && rc == -EAGAIN; i++) {
        rc = read_page(fd, out, ns, max);
    }
    return rc;
}

/* Somebody has it open, and there is no page of theirs: say who, and why. */
static int no_page(const char *path, uint32_t pid, int rc, struct chm_error *err)
{
    const char *why = rc == -EPROTO ? "with another version of this library"
                      : rc == -EACCES || rc == -EPERM
                          ? "as another user: look at it as that user, or as root"
                          : "and publishes no counters";

    snprintf(err->text, sizeof(err->text), "%.100s is in use by process %u, %s", path, pid, why);
    err->code = rc == -EPROTO || rc == -EACCES ? rc : -EBUSY;
    return err->code;
}

int chm_store_peek(const char *path, uint64_t base, struct chm_store_page *out,
                   struct chm_store_namespace_info *ns, uint32_t max, struct chm_error *err)
{
    uint8_t head[CHM_HEADER_BYTES];
    struct chm_header h;
    struct chm_error ignored;
    bool locked = false;
    uint32_t pid = 0;
    int fd, rc;

    err = err ? err : &ignored;
    *err = (struct chm_error){0};
    if (!path || !out) {
        return -EINVAL;
    }
    rc = chm_backing_look(path, head, &locked, &pid);
    if (rc < 0) {
        return refuse(err, rc, path, rc == -EBADMSG ? "no chm device: too short" : strerror(-rc));
    }
    if (chm_header_decode(head, &h, err) < 0) {
        return refuse(err, -EBADMSG, path, "no chm device, or its header is damaged");
    }
    if (!locked) {
        return refuse(err, -ESRCH, path, "no process has it open");
    }
    fd = open_page(h.device_id, base);
    rc = fd < 0 ? fd : read_retrying(fd, out, ns, max);
    if (fd >= 0) {
        close(fd);
    }
    rc = rc == 0 && out->pid != pid ? -ENOENT : rc;
    return rc < 0 ? no_page(path, pid, rc, err) : 0;
}
