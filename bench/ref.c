/* SPDX-License-Identifier: Apache-2.0 */
/* ref.c - see ref.h. */
#include "ref.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

enum { REGISTER_CHUNK = 64 << 20, CHUNKS_MAX = 64 };

struct bench_ref {
    struct io_uring ring;
    int fd;
    uint8_t *base;
    bool fixed;
    /* of the list being replayed */
    const struct ref_io *list;
    size_t n, item;
    uint64_t within; /* bytes of list[item] that were submitted */
    bool write;
};

static void register_memory(struct bench_ref *r, uint8_t *base, uint64_t len)
{
    struct iovec iov[CHUNKS_MAX];
    unsigned n = 0;

    for (uint64_t at = 0; at < len; at += REGISTER_CHUNK) {
        if (n == CHUNKS_MAX) {
            bench_die("ref: more than %d chunks of memory", CHUNKS_MAX);
        }
        iov[n].iov_base = base + at;
        iov[n].iov_len = len - at < REGISTER_CHUNK ? len - at : REGISTER_CHUNK;
        n++;
    }
    r->base = base;
    r->fixed = io_uring_register_buffers(&r->ring, iov, n) == 0;
}

void bench_ref_open(struct bench_ref **out, const char *path, void *base, uint64_t len)
{
    struct bench_ref *r = bench_alloc(sizeof(*r));
    unsigned flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

    r->fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (r->fd < 0) {
        bench_die("%s: %s", path, strerror(errno));
    }
    if (io_uring_queue_init(2 * REF_DEPTH, &r->ring, flags) < 0) {
        bench_check(io_uring_queue_init(2 * REF_DEPTH, &r->ring, 0), "ref: io_uring");
    }
    register_memory(r, base, len);
    *out = r;
}

void bench_ref_close(struct bench_ref *r)
{
    io_uring_queue_exit(&r->ring);
    close(r->fd);
    free(r);
}

bool bench_ref_fixed(const struct bench_ref *r)
{
    return r->fixed;
}

/* The next unit of the list into the ring. A unit never crosses the end of a registered chunk,
 * because those are multiples of it and so are slots of the window; buffers that are not aligned
 * so are cut there. */
static void submit_unit(struct bench_ref *r)
{
    const struct ref_io *io = &r->list[r->item];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
    uint8_t *buf = io->buf + r->within;
    uint64_t from = (uint64_t)(buf - r->base);
    uint64_t len = io->len - r->within < REF_UNIT ? io->len - r->within : REF_UNIT;

    if (r->fixed && from % REGISTER_CHUNK + len > REGISTER_CHUNK) {
        len = REGISTER_CHUNK - from % REGISTER_CHUNK;
    }
    if (r->write) {
        io_uring_prep_write(sqe, r->fd, buf, (unsigned)len, io->off + r->within);
        sqe->opcode = r->fixed ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE;
    } else {
        io_uring_prep_read(sqe, r->fd, buf, (unsigned)len, io->off + r->within);
        sqe->opcode = r->fixed ? IORING_OP_READ_FIXED : IORING_OP_READ;
    }
    sqe->buf_index = (uint16_t)(r->fixed ? from / REGISTER_CHUNK : 0);
    io_uring_sqe_set_data64(sqe, len);
    r->within += len;
    if (r->within == io->len) {
        r->item++;
        r->within = 0;
    }
}

/* All completions that are there; dies on one that is not whole. */
static unsigned reap(struct bench_ref *r)
{
    struct io_uring_cqe *cqe;
    unsigned head, n = 0;

    io_uring_for_each_cqe(&r->ring, head, cqe)
    {
        if (cqe->res < 0 || (uint64_t)cqe->res != io_uring_cqe_get_data64(cqe)) {
            bench_die("ref: I/O ended with %d", cqe->res);
        }
        n++;
    }
    io_uring_cq_advance(&r->ring, n);
    return n;
}

static void replay(struct bench_ref *r, bool write, const struct ref_io *list, size_t n)
{
    unsigned flying = 0;

    r->list = list;
    r->n = n;
    r->item = 0;
    r->within = 0;
    r->write = write;
    while (r->item < n || flying > 0) {
        while (r->item < n && flying < REF_DEPTH) {
            submit_unit(r);
            flying++;
        }
        bench_check(io_uring_submit_and_wait(&r->ring, 1), "ref: io_uring_enter");
        flying -= reap(r);
    }
}

struct bench_span bench_ref_read(struct bench_ref *r, const struct ref_io *list, size_t n)
{
    struct bench_span start = bench_start();

    replay(r, false, list, n);
    return bench_since(start);
}

struct bench_span bench_ref_write(struct bench_ref *r, const struct ref_io *list, size_t n)
{
    struct bench_span start = bench_start();

    replay(r, true, list, n);
    if (fdatasync(r->fd) < 0) {
        bench_die("ref: fdatasync: %s", strerror(errno));
    }
    return bench_since(start);
}

static int earlier(const void *a, const void *b)
{
    double x = ((const struct ref_io *)a)->at, y = ((const struct ref_io *)b)->at;

    return (x > y) - (x < y);
}

void bench_ref_sort(struct ref_io *list, size_t n)
{
    qsort(list, n, sizeof(*list), earlier);
}
