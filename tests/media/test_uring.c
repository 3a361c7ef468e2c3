/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is special about io_uring: kernels that refuse it, or parts of it, or take less than they
 * were offered; and memory that is registered piece by piece.
 */
#include "rig.h"
#include "seccomp.h"

#include <dirent.h>
#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>

#include "media/media_uring.h"
#include "media/wrap.h"

enum { MEMBER_BYTES = 4 << 20, IOS = 256 };

static struct chm_uring *uring(struct rig *r)
{
    CHECK(strcmp(r->m->caps.name, "uring") == 0);
    return CHM_CONTAINER(r->m, struct chm_uring, m);
}

/* Whether this machine lets us have a ring at all. */
static bool ring_is_allowed(void)
{
    struct io_uring ring;
    int rc = io_uring_queue_init(2, &ring, 0);

    if (rc == 0) {
        io_uring_queue_exit(&ring);
    }
    return rc == 0;
}

/* Write and read back IOS blocks; every one must come back exactly once, whole. */
static void check_works(struct rig *r)
{
    static struct chm_io io[IOS], *in[IOS], *out[IOS];

    for (int pass = 0; pass < 2; pass++) {
        enum chm_io_kind kind = pass ? CHM_IO_READ : CHM_IO_WRITE;
        unsigned sent = 0, seen = 0;
        for (unsigned i = 0; i < IOS; i++) {
            io[i] = rig_io(r, kind, (uint64_t)i * RIG_BLOCK, RIG_BLOCK, (uint64_t)i * RIG_BLOCK);
            in[i] = &io[i];
        }
        if (pass) {
            memset(r->memory, 0xA5, (size_t)IOS * RIG_BLOCK);
        } else {
            fill(r->memory, (uint64_t)IOS * RIG_BLOCK, 11);
        }
        while (seen < IOS) {
            sent += chm_medium_submit(r->m, in + sent, IOS - sent);
            int n = chm_medium_reap(r->m, out, IOS, CHM_FOREVER_NS);
            CHECK(n > 0);
            for (int i = 0; i < n; i++) {
                CHECK_EQ(out[i]->res, RIG_BLOCK);
                CHECK(out[i]->owner == NULL);
                out[i]->owner = r;
            }
            seen += (unsigned)n;
        }
        CHECK_EQ(seen, IOS);
    }
    CHECK(is_filled(r->memory, (uint64_t)IOS * RIG_BLOCK, 11));
}

static bool has(const char *text, const char *word)
{
    if (strstr(text, word)) {
        return true;
    }
    fprintf(stderr, "\"%s\" does not say \"%s\"\n", text, word);
    return false;
}

/* ------------------------------------------------------------------ F62: no ring */

static void check_fallback(struct rig *r, int code, const char *cure)
{
    struct chm_medium *m = NULL;
    char number[32];

    (void)snprintf(number, sizeof(number), "errno %d", code);
    r->opt.media = "auto";
    rig_open(r, MEMBER_BYTES);
    CHECK(strcmp(r->m->caps.name, "threads") == 0);
    CHECK(has(r->m->caps.note, number) && has(r->m->caps.note, "io_uring_disabled"));
    CHECK(has(r->m->caps.note, cure));
    check_works(r);
    r->opt.media = "uring";
    CHECK_EQ(chm_media_open(&r->args, &m, &r->err), -code);
    CHECK(m == NULL);
    CHECK(has(r->err.text, number) && has(r->err.text, cure));
    rig_close(r);
}

static const char *cure_of(int code)
{
    return code == ENOMEM ? "ulimit -l" : code == EPERM ? "seccomp" : "sandbox";
}

static void refused_by_seccomp(int code)
{
    struct rig r;

    rig_init(&r, "auto");
    refuse_call(SYS_io_uring_setup, ANY_ARGUMENT, code);
    check_fallback(&r, code, cure_of(code));
}

static void refused_by_hook(int code)
{
    struct rig r;

    rig_init(&r, "auto");
    r.opt.force_ring_errno = (uint32_t)code;
    check_fallback(&r, code, cure_of(code));
}

/* ------------------------------------------------------------------ F64: no registered buffers */

enum { REGISTER_TABLE = 15, REGISTER_UPDATE = 16 }; /* opcodes of io_uring_register */

static void check_plain(struct rig *r, const char *why)
{
    check_works(r);
    CHECK(has(r->m->caps.note, why));
    CHECK_EQ(uring(r)->regions.at[0].registered, 0);
    rig_close(r);
}

static void table_refused(int code)
{
    struct rig r;

    rig_init(&r, "uring");
    refuse_call(SYS_io_uring_register, REGISTER_TABLE, code);
    rig_open(&r, MEMBER_BYTES);
    CHECK(!r.m->caps.fixed_buffers);
    check_plain(&r, "plain");
}

static void chunk_refused(int code)
{
    struct rig r;

    rig_init(&r, "uring");
    refuse_call(SYS_io_uring_register, REGISTER_UPDATE, code);
    rig_open(&r, MEMBER_BYTES);
    check_plain(&r, "plain");
}

static void registering_off(int code)
{
    struct rig r;

    (void)code;
    rig_init(&r, "uring");
    r.opt.force_no_register = 1;
    rig_open(&r, MEMBER_BYTES);
    CHECK(!r.m->caps.fixed_buffers);
    check_plain(&r, "plain");
}

/* An ordinary user has 8 MiB of locked memory, and more than that to register. */
static void limit_too_low(int code)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    struct rlimit limit = {.rlim_cur = 8 << 20, .rlim_max = 8 << 20};
    struct rig r;

    (void)code;
    rig_init(&r, "uring");
    CHECK_EQ(syscall(SYS_capset, &head, none), 0);
    CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    rig_open(&r, MEMBER_BYTES);
    CHECK(!r.m->caps.fixed_buffers);
    check_plain(&r, "8192 KiB");
}

/* ------------------------------------------------------------------ registered regions */

static void region_set(struct rig *r, unsigned i, uint8_t *base, uint64_t len, uint64_t ready)
{
    atomic_store(&r->regions.at[i].base, base);
    atomic_store(&r->regions.at[i].ready, ready);
    atomic_store(&r->regions.at[i].len, len);
    atomic_fetch_add(&r->regions.version, 1);
}

static int slot_of(struct rig *r, int32_t region, void *buf, uint32_t len)
{
    struct chm_io io = {.region = region, .buf = buf, .len = len};

    return chm_uring_regions_slot(&uring(r)->regions, &io);
}

static void check_regions_grow(struct rig *r)
{
    uint64_t size = CHM_REGION_CHUNK + (2 << 20);
    uint8_t *big = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *seam = big + CHM_REGION_CHUNK;
    struct chm_io io = {.kind = CHM_IO_READ, .len = 8192, .region = 5};

    CHECK(big != MAP_FAILED);
    region_set(r, 5, big, size, CHM_REGION_CHUNK - 1);
    CHECK_EQ(chm_medium_submit(r->m, NULL, 0), 0);
    CHECK_EQ(slot_of(r, 5, big, 4096), -1); /* not ready: no chunk is whole */
    atomic_store(&r->regions.at[5].ready, CHM_REGION_CHUNK);
    CHECK_EQ(chm_medium_submit(r->m, NULL, 0), 0);
    CHECK(slot_of(r, 5, big, 4096) >= 0);
    CHECK_EQ(slot_of(r, 5, seam, 4096), -1);
    atomic_store(&r->regions.at[5].ready, size);
    CHECK_EQ(chm_medium_submit(r->m, NULL, 0), 0);
    CHECK_EQ(slot_of(r, 5, seam, 2 << 20), slot_of(r, 5, seam - 4096, 4096) + 1);
    CHECK_EQ(slot_of(r, 5, seam - 4096, 8192), -1); /* across the seam: plain */
    CHECK_EQ(slot_of(r, 5, seam, (2 << 20) + 1), -1);
    CHECK_EQ(slot_of(r, 5, big - 4096, 4096), -1);
    CHECK_EQ(slot_of(r, CHM_NO_REGION, big, 4096), -1);
    for (int i = -1; i <= 1; i++) {
        io.buf = seam + i * 4096;
        io.off = (uint64_t)(i + 1) * RIG_BLOCK;
        CHECK_EQ(rig_do(r, io), 8192);
        CHECK(memcmp(io.buf, r->memory + io.off, 8192) == 0);
    }
    region_set(r, 5, NULL, 0, 0);
    CHECK_EQ(chm_medium_submit(r->m, NULL, 0), 0);
    CHECK_EQ(slot_of(r, 5, big, 4096), -1);
    munmap(big, size);
}

/* A region that changes its place must not keep the pages of the old one. */
static void check_region_moves(struct rig *r)
{
    uint8_t *a = r->memory + (8 << 20), *b = a + (1 << 20);
    struct chm_io io = {.kind = CHM_IO_READ, .len = RIG_BLOCK, .region = 6};

    region_set(r, 6, a, 1 << 20, 1 << 20);
    CHECK_EQ(chm_medium_submit(r->m, NULL, 0), 0);
    CHECK(slot_of(r, 6, a, 4096) >= 0);
    region_set(r, 6, b, 1 << 20, 1 << 20);
    memset(a, 0xA5, 2 << 20);
    io.buf = b;
    CHECK_EQ(rig_do(r, io), RIG_BLOCK);
    CHECK(memcmp(b, r->memory, RIG_BLOCK) == 0);
    CHECK(is_byte(a, 1 << 20, 0xA5));
    CHECK_EQ(slot_of(r, 6, a, 4096), -1);
    region_set(r, 6, NULL, 0, 0);
    CHECK_EQ(chm_medium_submit(r->m, NULL, 0), 0);
    CHECK_EQ(uring(r)->regions.slots.used, 1); /* region 0 is left */
}

static void check_regions(void)
{
    struct rig r;

    rig_init(&r, "uring");
    rig_open(&r, MEMBER_BYTES);
    if (!r.m->caps.fixed_buffers) {
        check_plain(&r, "plain");
        return;
    }
    check_works(&r);
    CHECK_EQ(uring(&r)->regions.at[0].registered, 1);
    check_regions_grow(&r);
    check_region_moves(&r);
    CHECK(strcmp(r.m->caps.note, "") == 0);
    rig_close(&r);
}

/* What is dropped must be dropped at the next submit, also an empty one, and through wrappers. */
static void check_wrapped_drop(void)
{
    struct chm_medium *wrapper;
    struct rig r;

    rig_init(&r, "uring");
    r.opt.pace.latency_ns = 1;
    rig_open(&r, MEMBER_BYTES);
    wrapper = r.m;
    r.m = CHM_CONTAINER(wrapper, struct chm_wrap, m)->inner;
    if (r.m->caps.fixed_buffers) {
        CHECK_EQ(chm_medium_submit(wrapper, NULL, 0), 0);
        CHECK(slot_of(&r, 0, r.memory, 4096) >= 0);
        region_set(&r, 0, NULL, 0, 0);
        CHECK_EQ(chm_medium_submit(wrapper, NULL, 0), 0);
        CHECK_EQ(uring(&r)->regions.slots.used, 0);
    }
    r.m = wrapper;
    rig_close(&r);
}

/* ------------------------------------------------------------------ F65: flags and threads */

static void *in_thread(void *arg)
{
    check_works(arg);
    return NULL;
}

static void *close_in_thread(void *arg)
{
    CHECK_EQ(chm_medium_close(arg, CHM_FOREVER_NS), 0);
    return NULL;
}

static void run_thread(void *(*fn)(void *), void *arg)
{
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, fn, arg), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* Opened here, used by threads that come and go, closed by another. */
static void check_threads(bool plain)
{
    struct rig r;

    rig_init(&r, "uring");
    r.args.one_thread = false;
    r.opt.force_plain_ring = plain;
    rig_open(&r, MEMBER_BYTES);
    CHECK(!plain || has(r.m->caps.note, "flags"));
    CHECK(!plain || (uring(&r)->ring.flags & IORING_SETUP_COOP_TASKRUN) == 0);
    for (int i = 0; i < 3; i++) {
        run_thread(in_thread, &r);
        check_works(&r);
    }
    run_thread(close_in_thread, r.m);
    rig_remove(&r);
}

/* ------------------------------------------------------------------ F68: a kernel that balks */

static unsigned turn; /* of the script below */

/* In turn: three errors that pass, half of what was offered, all of it. */
static int balk(struct io_uring *ring, int *rc)
{
    static const int passing[] = {-EAGAIN, -EBUSY, -EINTR, -ENOMEM};
    unsigned tail = ring->sq.sqe_tail, ready = io_uring_sq_ready(ring);

    turn++;
    if (turn % 3 == 0 && ready > 1) {
        ring->sq.sqe_tail = tail - ready / 2; /* the kernel sees only the first half */
        *rc = io_uring_submit(ring);
        ring->sq.sqe_tail = tail;
        return 1;
    }
    *rc = passing[turn % CHM_COUNT(passing)];
    return turn % 5 != 0;
}

static int balking_submit(struct io_uring *ring)
{
    int rc;

    return balk(ring, &rc) ? rc : io_uring_submit(ring);
}

static int balking_wait(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned n,
                        struct __kernel_timespec *ts, sigset_t *mask)
{
    int rc;

    if (balk(ring, &rc)) {
        return rc;
    }
    return io_uring_submit_and_wait_timeout(ring, cqe, n, ts, mask);
}

static void check_balking_kernel(uint32_t entries)
{
    struct rig r;

    rig_init(&r, "uring");
    r.opt.force_ring_entries = entries;
    rig_open(&r, MEMBER_BYTES);
    uring(&r)->submit = balking_submit;
    uring(&r)->wait = balking_wait;
    for (int i = 0; i < 4; i++) {
        check_works(&r);
    }
    uring(&r)->submit = io_uring_submit;
    uring(&r)->wait = io_uring_submit_and_wait_timeout;
    check_works(&r);
    rig_close(&r);
}

static int dead_submit(struct io_uring *ring)
{
    (void)ring;
    return -EBADF;
}

/* A ring that is broken for good says so, and close() does not free what may be in use. */
static void check_dead_ring(void)
{
    struct chm_io io, *out;
    struct rig r;

    rig_init(&r, "uring");
    rig_open(&r, MEMBER_BYTES);
    check_works(&r);
    uring(&r)->submit = dead_submit;
    io = rig_io(&r, CHM_IO_READ, 0, RIG_BLOCK, 0);
    CHECK_EQ(rig_submit(&r, &io), 1);
    CHECK_EQ(chm_medium_reap(r.m, &out, 1, CHM_FOREVER_NS), -EBADF);
    CHECK_EQ(chm_medium_close(r.m, chm_clock_now()), -ETIMEDOUT);
    uring(&r)->dead = 0; /* it was a play: take the ring down after all, so that nothing leaks */
    uring(&r)->submit = io_uring_submit;
    rig_close(&r);
}

/* F66: more in flight than the CQ holds must wait on our side, or the kernel has to keep
 * completions for us and may refuse to go on. */
static void check_no_overflow(void)
{
    static struct chm_io io[IOS], *in[IOS], *out[IOS];
    struct rig r;

    rig_init(&r, "uring");
    r.args.inflight_max = IOS;
    r.opt.force_ring_entries = 8;
    rig_open(&r, MEMBER_BYTES);
    for (unsigned i = 0; i < IOS; i++) {
        io[i] =
            rig_io(&r, CHM_IO_READ, (uint64_t)i * RIG_BLOCK, RIG_BLOCK, (uint64_t)i * RIG_BLOCK);
        in[i] = &io[i];
    }
    CHECK_EQ(chm_medium_submit(r.m, in, IOS), IOS);
    for (unsigned i = 0; i < IOS; i++) {
        CHECK(!io_uring_cq_has_overflow(&uring(&r)->ring));
        rig_reap(&r, out, 1);
        CHECK_EQ(out[0]->res, RIG_BLOCK);
    }
    rig_close(&r);
}

/* ------------------------------------------------------------------ F59, F09: pickier media */

static void check_forced(uint32_t align, uint32_t transfer_max)
{
    struct chm_io good, bad;
    struct rig r;

    rig_init(&r, "uring");
    r.opt.force_align = align;
    r.opt.force_transfer_max = transfer_max;
    rig_open(&r, MEMBER_BYTES);
    CHECK_EQ(r.m->caps.block_bytes, chm_max(align, r.backing[0].block_bytes));
    CHECK_EQ(r.m->caps.align_bytes, chm_max(align, r.backing[0].align_bytes));
    CHECK_EQ(r.m->caps.transfer_max % r.m->caps.block_bytes, 0);
    align = r.m->caps.block_bytes;
    good = bad = rig_io(&r, CHM_IO_WRITE, align, align, align);
    CHECK_EQ(rig_do(&r, good), align);
    bad.off = align / 2;
    CHECK_EQ(rig_do(&r, bad), -EINVAL);
    bad = good;
    bad.len = align + align / 2;
    CHECK_EQ(rig_do(&r, bad), -EINVAL);
    bad = good;
    bad.buf = r.memory + align / 2;
    CHECK_EQ(rig_do(&r, bad), -EINVAL);
    good.off = 0;
    good.len = r.m->caps.transfer_max;
    if (transfer_max) {
        CHECK_EQ(r.m->caps.transfer_max, chm_max(transfer_max / align * align, align));
        CHECK_EQ(rig_do(&r, good), good.len);
        good.len += align;
        CHECK_EQ(rig_do(&r, good), -EINVAL);
    }
    rig_close(&r);
}

/* ------------------------------------------------------------------ F69: kernel threads */

static unsigned count_threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    unsigned n = 0;

    CHECK(dir != NULL);
    while (readdir(dir)) {
        n++;
    }
    closedir(dir);
    return n - 2; /* "." and ".." */
}

/* Buffered writes, barriers and trims, 64 at a time: what must block does so on few threads. */
static void check_thread_count(void)
{
    static struct chm_io io[64], *in[64], *out[64];
    unsigned before = count_threads(), most = 0, limits[2] = {0, 0};
    struct rig r;

    rig_init(&r, "uring");
    r.opt.buffered = 1;
    rig_open(&r, RIG_MEMORY);
    CHECK(!r.m->caps.direct);
    if (io_uring_register_iowq_max_workers(&uring(&r)->ring, limits) == 0) {
        CHECK(limits[0] <= 4 && limits[1] <= 4); /* zeros ask what is in force */
    }
    for (unsigned round = 0; round < 16; round++) {
        for (unsigned i = 0; i < 64; i++) {
            uint64_t at = (uint64_t)i * 262144;
            io[i] = rig_io(&r, i % 4 ? CHM_IO_BARRIER : CHM_IO_WRITE, at, 262144, at);
            in[i] = &io[i];
        }
        CHECK_EQ(chm_medium_submit(r.m, in, 64), 64);
        for (unsigned seen = 0; seen < 64; seen++) {
            most = (unsigned)chm_max(most, count_threads());
            rig_reap(&r, out, 1);
            CHECK(out[0]->res >= 0);
        }
    }
    printf("at most %u threads more\n", most - before);
    CHECK(most - before <= 8);
    rig_close(&r);
}

int main(void)
{
    static const int refusals[] = {EOPNOTSUPP, EFAULT, EINVAL, ENOMEM, EPERM};

    in_child(refused_by_seccomp, EPERM);
    in_child(refused_by_seccomp, ENOSYS);
    in_child(refused_by_hook, EPERM);
    in_child(refused_by_hook, ENOSYS);
    in_child(refused_by_hook, ENOMEM);
    if (!ring_is_allowed()) {
        printf("io_uring is refused here: only the refusals were tested\n");
        return 77;
    }
    for (size_t i = 0; i < CHM_COUNT(refusals); i++) {
        in_child(table_refused, refusals[i]);
        in_child(chunk_refused, refusals[i]);
    }
    in_child(registering_off, 0);
    in_child(limit_too_low, 0);
    check_regions();
    check_wrapped_drop();
    check_threads(false);
    check_threads(true);
    check_balking_kernel(0);
    check_balking_kernel(8);
    check_dead_ring();
    check_no_overflow();
    check_forced(512, 0);
    check_forced(4096, 1 << 20);
    check_forced(65536, 100000);
    check_forced(65536, 4096);
    check_thread_count();
    return 0;
}
