/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media_uring.c - real I/O through io_uring, O_DIRECT unless the member was opened buffered.
 *
 * The way of an I/O, and where it is meanwhile:
 *
 *     submit() -> pending (our FIFO) -> in the ring (SQE, kernel, CQE) -> reap()
 *
 * It gets exactly one SQE. An SQE that the kernel did not take (EAGAIN, EBUSY, EINTR, ENOMEM, or
 * fewer than offered) stays in the SQ and is offered again, so nothing is lost or done twice.
 * in_ring never exceeds ring_max, so the CQ cannot overflow, whatever the size of the ring; the
 * rest waits in `pending`. An I/O that fails before the kernel is asked goes through the ring as a
 * NOP with its result in io->res: one path for all, and the ring's fd is readable for it too.
 *
 * wake(): a poll of an eventfd is always in the ring (a poll and not a read, so that the kernel
 * never has a buffer of ours when the ring is closed). Called by one thread at a time; wake() by
 * anybody.
 */
#define _GNU_SOURCE
#include "media/media_uring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "media/backing.h"
#include "media/clock.h"
#include "util/util.h"

/* user_data that is not the address of an I/O. */
enum { TAG_WAKE = 1, TAG_CANCEL = 2 };

/* chm_io.priv: */
enum { PRIV_FAILED = 1 /* a NOP; io->res is the result */ };

enum {
    REAP_BATCH = 64,
    RETRY_NS = 1000000, /* pause before asking a kernel that is short of memory again */
};

static struct chm_uring *uring_of(struct chm_medium *m)
{
    return CHM_CONTAINER(m, struct chm_uring, m);
}

/* ------------------------------------------------------------------ into the ring */

/* Present in builds with the address sanitizer, which cannot see what the kernel writes. */
void *__asan_region_is_poisoned(void *base, size_t size) __attribute__((weak));

static void assert_buffer_alive(const struct chm_io *io)
{
    CHM_ASSERT(!__asan_region_is_poisoned || !__asan_region_is_poisoned(io->buf, io->len));
}

static void prep_transfer(struct chm_uring *u, struct io_uring_sqe *sqe, const struct chm_io *io,
                          int fd)
{
    int slot = chm_uring_regions_slot(&u->regions, io);

    assert_buffer_alive(io);
    if (io->kind == CHM_IO_READ) {
        io_uring_prep_read(sqe, fd, io->buf, io->len, io->off);
        sqe->opcode = slot < 0 ? IORING_OP_READ : IORING_OP_READ_FIXED;
    } else {
        io_uring_prep_write(sqe, fd, io->buf, io->len, io->off);
        sqe->opcode = slot < 0 ? IORING_OP_WRITE : IORING_OP_WRITE_FIXED;
        sqe->rw_flags = io->flags & CHM_IO_FUA ? RWF_DSYNC : 0;
    }
    sqe->buf_index = (__u16)(slot < 0 ? 0 : slot);
}

/* Zeroing keeps the blocks; a hole would have to be allocated again by a later write. */
static int trim_mode(const struct chm_uring *u, const struct chm_io *io)
{
    int how = u->punch[io->member] ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE;

    return how | FALLOC_FL_KEEP_SIZE;
}

static void prep_io(struct chm_uring *u, struct io_uring_sqe *sqe, struct chm_io *io)
{
    if (io->priv & PRIV_FAILED) {
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data(sqe, io);
        return;
    }
    int fd = u->fixed_files ? (int)io->member : u->fd[io->member];
    switch (io->kind) {
    case CHM_IO_BARRIER:
        io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
        break;
    case CHM_IO_TRIM:
        io_uring_prep_fallocate(sqe, fd, trim_mode(u, io), (off_t)io->off, (off_t)io->len);
        break;
    default:
        prep_transfer(u, sqe, io, fd);
        break;
    }
    sqe->flags |= u->fixed_files ? IOSQE_FIXED_FILE : 0;
    io_uring_sqe_set_data(sqe, io);
}

static void arm_wake(struct chm_uring *u)
{
    struct io_uring_sqe *sqe = u->wake_armed ? NULL : io_uring_get_sqe(&u->ring);

    if (sqe) {
        io_uring_prep_poll_add(sqe, u->wake_fd, POLLIN);
        io_uring_sqe_set_data64(sqe, TAG_WAKE);
        u->wake_armed = true;
    }
}

/* Move from pending to the SQ what the SQ and the CQ have room for. */
static void fill_sq(struct chm_uring *u)
{
    arm_wake(u);
    while (u->pending.head && u->in_ring < u->ring_max) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
        if (!sqe) {
            return;
        }
        prep_io(u, sqe, chm_io_fifo_pop(&u->pending));
        u->in_ring++;
    }
}

static bool is_passing(int rc)
{
    return rc == -EAGAIN || rc == -EBUSY || rc == -EINTR || rc == -ENOMEM;
}

/* May say no too often (a poll that waits in the SQ counts against it), never yes. */
static bool kernel_has_io(const struct chm_uring *u)
{
    return u->in_ring > io_uring_sq_ready(&u->ring);
}

/* Offer all that fits. Ends because each turn hands entries to the kernel or is the last one. */
static void offer(struct chm_uring *u)
{
    for (;;) {
        fill_sq(u);
        if (io_uring_sq_ready(&u->ring) == 0) {
            return;
        }
        int rc = u->submit(&u->ring);
        if (rc < 0 && !is_passing(rc)) {
            u->dead = rc;
        }
        if (rc <= 0) {
            return;
        }
    }
}

static unsigned uring_submit(struct chm_medium *m, struct chm_io *const *ios, unsigned n)
{
    struct chm_uring *u = uring_of(m);
    uint64_t now = chm_clock_now();
    int rc = chm_uring_regions_update(&u->regions);
    unsigned i;

    if (rc) {
        chm_uring_note_refusal(u, rc);
    }
    for (i = 0; i < n && u->held < m->caps.inflight_max; i++) {
        struct chm_io *io = ios[i];
        io->submit_ns = now;
        io->res = chm_io_check(&m->caps, io);
        io->priv = io->res ? PRIV_FAILED : 0;
        chm_io_fifo_push(&u->pending, io);
        u->held++;
    }
    if (i > 0) {
        offer(u);
    }
    return i;
}

/* ------------------------------------------------------------------ out of the ring */

/* Take the result over. False if the I/O has to go round once more. */
static bool finish(struct chm_uring *u, struct chm_io *io, int res, uint64_t now)
{
    u->in_ring--;
    if (io->priv & PRIV_FAILED) {
        res = io->res;
    } else if (io->kind == CHM_IO_TRIM && res == -EOPNOTSUPP && !u->punch[io->member]) {
        u->punch[io->member] = true;
        chm_io_fifo_push(&u->pending, io);
        return false;
    }
    io->res = res;
    io->done_ns = now;
    u->held--;
    return true;
}

/* The poll of the eventfd ended: true if because of wake(), false if it was cancelled, which
 * happens when the thread that armed it ends. */
static bool wake_seen(struct chm_uring *u, int res)
{
    uint64_t count;
    ssize_t n = res < 0 ? 0 : read(u->wake_fd, &count, sizeof(count));

    (void)n;
    u->wake_armed = false;
    return res >= 0;
}

/* Collect completions that are there. *woken: wake() was called. */
static unsigned harvest(struct chm_uring *u, struct chm_io **out, unsigned max, bool *woken)
{
    struct io_uring_cqe *cqes[REAP_BATCH];
    uint64_t now = 0;
    unsigned n = 0, got;

    while (n < max) {
        got = io_uring_peek_batch_cqe(&u->ring, cqes, (unsigned)chm_min(max - n, REAP_BATCH));
        if (got == 0) {
            break;
        }
        now = now ? now : chm_clock_now();
        for (unsigned i = 0; i < got; i++) {
            uint64_t data = io_uring_cqe_get_data64(cqes[i]);
            if (data == TAG_WAKE) {
                *woken = wake_seen(u, cqes[i]->res) || *woken;
            } else if (data != TAG_CANCEL) {
                struct chm_io *io = io_uring_cqe_get_data(cqes[i]);
                if (finish(u, io, cqes[i]->res, now)) {
                    out[n++] = io;
                }
            }
        }
        io_uring_cq_advance(&u->ring, got);
    }
    return n;
}

/* The kernel takes nothing and has nothing to give: look again a little later, or when woken. */
static void pause_briefly(const struct chm_uring *u, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = u->wake_fd, .events = POLLIN};
    uint64_t now = chm_clock_now();
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    struct timespec ts = {.tv_nsec = (long)chm_min(left, RETRY_NS)};

    (void)ppoll(&p, 1, &ts, NULL);
}

/* Wait for a completion, offering what is in the SQ on the way. */
static void await(struct chm_uring *u, uint64_t deadline_ns)
{
    uint64_t now = chm_clock_now();
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    struct __kernel_timespec ts = {
        .tv_sec = (int64_t)(left / 1000000000u),
        .tv_nsec = (long long)(left % 1000000000u),
    };
    struct __kernel_timespec *limit = deadline_ns == CHM_FOREVER_NS ? NULL : &ts;
    struct io_uring_cqe *cqe;
    int rc = u->wait(&u->ring, &cqe, 1, limit, NULL);

    if (rc >= 0 || rc == -ETIME || rc == -EINTR) {
        return;
    }
    if (!is_passing(rc)) {
        u->dead = rc;
    } else if (kernel_has_io(u)) {
        /* The kernel is short of something: let it finish what it has, offer again after that. */
        (void)io_uring_wait_cqes(&u->ring, &cqe, 1, limit, NULL);
    } else {
        pause_briefly(u, deadline_ns);
    }
}

static int uring_reap(struct chm_medium *m, struct chm_io **out, unsigned max, uint64_t deadline_ns)
{
    struct chm_uring *u = uring_of(m);
    bool woken = false;
    unsigned n;

    CHM_ASSERT(max > 0);
    for (;;) {
        n = harvest(u, out, max, &woken);
        if (u->pending.head || io_uring_sq_ready(&u->ring) > 0 || !u->wake_armed) {
            offer(u);
        }
        if (n > 0 || woken) {
            return (int)n;
        }
        if (u->dead) {
            return u->dead;
        }
        if (io_uring_cq_ready(&u->ring) > 0) {
            continue; /* offering brought something at once */
        }
        if (deadline_ns == 0 || chm_clock_now() >= deadline_ns) {
            return 0;
        }
        await(u, deadline_ns);
    }
}

static uint64_t uring_now(struct chm_medium *m)
{
    (void)m;
    return chm_clock_now();
}

static void uring_wake(struct chm_medium *m)
{
    int saved = errno; /* this may run in a signal handler */
    uint64_t one = 1;
    ssize_t n = write(uring_of(m)->wake_fd, &one, sizeof(one));

    (void)n;
    errno = saved;
}

/* ------------------------------------------------------------------ the ends */

/* Ask the kernel to give up what it has not started. */
static void cancel_all(struct chm_uring *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

    if (sqe) {
        io_uring_prep_cancel(sqe, NULL, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
        io_uring_sqe_set_data64(sqe, TAG_CANCEL);
        (void)u->submit(&u->ring);
    }
}

/*
 * What was accepted but never reached the ring is simply forgotten. The poll of the eventfd ends
 * with the ring.
 */
static int uring_close(struct chm_medium *m, uint64_t deadline_ns)
{
    struct chm_uring *u = uring_of(m);
    struct chm_io *out[REAP_BATCH];

    u->pending = (struct chm_io_fifo){0};
    if (u->in_ring > 0) {
        cancel_all(u);
    }
    while (u->in_ring > 0 && !u->dead) {
        bool woken = false;
        (void)harvest(u, out, REAP_BATCH, &woken);
        u->pending = (struct chm_io_fifo){0};
        if (u->in_ring == 0 || chm_clock_now() >= deadline_ns) {
            break;
        }
        await(u, deadline_ns);
    }
    if (u->in_ring > 0) {
        return -ETIMEDOUT; /* the ring stays: the kernel may still write through it */
    }
    if (u->fixed_files) {
        (void)io_uring_unregister_files(
            &u->ring); /* the ring itself goes later, in the background */
    }
    io_uring_queue_exit(&u->ring);
    chm_uring_regions_close(&u->regions);
    close(u->wake_fd);
    free(u);
    return 0;
}

static const struct chm_medium_ops uring_ops = {
    .submit = uring_submit,
    .reap = uring_reap,
    .now = uring_now,
    .wake = uring_wake,
    .close = uring_close,
};

int chm_media_uring_open(const struct chm_media_args *args, struct chm_medium **out,
                         struct chm_error *err)
{
    struct chm_uring *u = calloc(1, sizeof(*u));
    int rc;

    if (!u) {
        return chm_media_fail(err, -ENOMEM, "no memory for the io_uring medium");
    }
    u->m.ops = &uring_ops;
    u->submit = io_uring_submit;
    u->wait = io_uring_submit_and_wait_timeout;
    chm_media_caps(args, "uring", &u->m.caps);
    u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->wake_fd < 0) {
        rc = chm_media_fail(err, -errno, "eventfd: %s", strerror(errno));
        goto fail;
    }
    rc = chm_uring_setup(u, args, err);
    if (rc) {
        goto fail_fd;
    }
    for (uint32_t i = 0; i < args->members; i++) {
        u->fd[i] = args->backings[i].fd;
    }
    chm_uring_register(u, args);
    *out = &u->m;
    return 0;
fail_fd:
    close(u->wake_fd);
fail:
    free(u);
    return rc;
}
