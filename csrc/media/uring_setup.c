/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uring_setup.c - getting a ring out of the kernel, or a useful reason why not.
 *
 * Called at open only. Newer set-up flags are tried first and given up one level at a time; what
 * the kernel refuses outright ends in a text that names the errno, the sysctl and the cure.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "media/media_uring.h"
#include "util/util.h"

/* Flags newer than the headers of the oldest system that we build on; the kernel tells. */
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

enum {
    RING_ENTRIES_MIN = 2,
    WORKERS_MAX = 4, /* kernel threads for what cannot be done without blocking: barriers, trims,
                        buffered writes */
};

/* Set-up flags, best first. The first level needs one issuing thread, the last works everywhere.
 * COOP_TASKRUN: a completion does not interrupt the thread, it waits for its next system call. */
static const unsigned ring_flags[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
        IORING_SETUP_SUBMIT_ALL,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,
    0,
};

/* Value of kernel.io_uring_disabled, or -1 where there is no such setting. */
static int sysctl_disabled(void)
{
    char c = 0;
    int fd = open("/proc/sys/kernel/io_uring_disabled", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, &c, 1);

    if (fd >= 0) {
        close(fd);
    }
    return n == 1 && c >= '0' && c <= '9' ? c - '0' : -1;
}

static const char *refusal_cure(int code, int disabled)
{
    if (code == -ENOMEM) {
        return "raise the locked-memory limit (ulimit -l)";
    }
    if (code == -EPERM && disabled > 0) {
        return "sysctl kernel.io_uring_disabled=0";
    }
    if (code == -EPERM) {
        return "a sandbox forbids it: allow io_uring_* in its seccomp profile";
    }
    if (code == -ENOSYS) {
        return "a sandbox hides it or the kernel lacks it (5.11 or newer needed)";
    }
    return "see io_uring_setup(2)";
}

static int refusal(struct chm_error *err, int code)
{
    int disabled = sysctl_disabled();
    char value[16] = "absent";

    if (disabled >= 0) {
        (void)snprintf(value, sizeof(value), "%d", disabled);
    }
    return chm_media_fail(err, code, "io_uring refused: %s (errno %d), io_uring_disabled=%s; %s",
                          strerror(-code), -code, value, refusal_cure(code, disabled));
}

/* One attempt; the CQ gets room for everything that may be in flight, so that it never
 * overflows. */
static int ring_try(struct chm_uring *u, const struct chm_media_args *args, unsigned flags)
{
    uint32_t want = u->m.caps.inflight_max + CHM_URING_RESERVE;
    uint32_t sq = (uint32_t)chm_min(want, CHM_URING_SQ_MAX);
    struct io_uring_params p = {
        .flags = flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
        .cq_entries = (uint32_t)chm_min(want, CHM_URING_CQ_MAX),
    };
    int rc;

    if (args->opts->force_ring_errno) {
        return -(int)args->opts->force_ring_errno;
    }
    if (args->opts->force_ring_entries) {
        sq = (uint32_t)chm_max(args->opts->force_ring_entries, RING_ENTRIES_MIN);
        p.cq_entries = 2 * sq;
    }
    p.cq_entries = (uint32_t)chm_max(p.cq_entries, sq);
    rc = io_uring_queue_init_params(sq, &u->ring, &p);
    if (rc == 0) {
        u->ring_max = p.cq_entries - CHM_URING_RESERVE;
    }
    return rc;
}

int chm_uring_setup(struct chm_uring *u, const struct chm_media_args *args, struct chm_error *err)
{
    unsigned need = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;
    size_t first = args->one_thread ? 0 : 1;
    size_t level = args->opts->force_plain_ring ? CHM_COUNT(ring_flags) - 1 : first;
    int rc = ring_try(u, args, ring_flags[level]);

    while (rc == -EINVAL && level + 1 < CHM_COUNT(ring_flags)) {
        level++;
        rc = ring_try(u, args, ring_flags[level]);
    }
    if (rc) {
        return refusal(err, rc);
    }
    if ((u->ring.features & need) != need) {
        io_uring_queue_exit(&u->ring);
        return chm_media_fail(err, -EOPNOTSUPP, "io_uring of this kernel is too old: 5.11 needed");
    }
    if (level > first) {
        (void)snprintf(u->m.caps.note, sizeof(u->m.caps.note), "ring set up with flags 0x%x only",
                       ring_flags[level]);
    }
    /* poll() finds the ring's own fd readable while completions wait, at no cost. Not so where
     * completions are deferred: nobody is told of them before the thread enters the kernel. */
    if ((ring_flags[level] & IORING_SETUP_DEFER_TASKRUN) == 0) {
        u->m.caps.event_fd = u->ring.ring_fd;
    }
    /* A child that inherited the mappings could write into the ring. Not fatal where
     * unsupported. */
    (void)io_uring_ring_dontfork(&u->ring);
    return 0;
}

/* Append to caps.note. */
static void note_add(struct chm_uring *u, const char *text)
{
    char *note = u->m.caps.note;
    size_t used = strlen(note);

    (void)snprintf(note + used, sizeof(u->m.caps.note) - used, "%s%s", used ? "; " : "", text);
}

void chm_uring_note_refusal(struct chm_uring *u, int rc)
{
    char text[160];
    struct rlimit limit = {0};

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (rc == -ENOMEM || rc == -EPERM) {
        (void)snprintf(text, sizeof(text),
                       "plain reads: locked-memory limit is %llu KiB; raise it (ulimit -l) to "
                       "register buffers",
                       (unsigned long long)limit.rlim_cur / 1024);
    } else {
        (void)snprintf(text, sizeof(text), "plain reads: buffer registration refused (%s)",
                       strerror(-rc));
    }
    note_add(u, text);
}

/* CAP_IPC_LOCK lifts the limit of locked memory. */
static bool may_lock_all(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};

    return syscall(SYS_capget, &head, data) == 0 && (data[0].effective & (1u << CAP_IPC_LOCK)) != 0;
}

/* Bytes that the owner of the table wants registered, as far as known at open. */
static uint64_t table_bytes(struct chm_regions *table)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < CHM_REGIONS_MAX; i++) {
        sum += atomic_load(&table->at[i].len);
    }
    return sum;
}

/*
 * Whether it is worth trying. The limit is compared here, and not left to the first chunk to hit,
 * so that caps says at open what will be: a table that does not fit the limit stays plain as a
 * whole.
 */
static int regions_refused(const struct chm_media_args *args)
{
    struct rlimit limit = {0};
    uint64_t bytes = chm_max(table_bytes(args->regions), 1);

    if (args->opts->force_no_register) {
        return -EOPNOTSUPP;
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < bytes && !may_lock_all()) {
        return -ENOMEM;
    }
    return 0;
}

void chm_uring_register(struct chm_uring *u, const struct chm_media_args *args)
{
    unsigned workers[2] = {WORKERS_MAX, WORKERS_MAX};
    int rc;

    (void)io_uring_register_iowq_max_workers(&u->ring, workers); /* older kernels: no bound */
    u->fixed_files = io_uring_register_files(&u->ring, u->fd, args->members) == 0;
    if (!args->regions) {
        return;
    }
    rc = regions_refused(args);
    if (rc == 0) {
        rc = chm_uring_regions_open(&u->regions, &u->ring, args->regions);
    }
    u->m.caps.fixed_buffers = rc == 0;
    if (rc) {
        chm_uring_note_refusal(u, rc);
    }
}
