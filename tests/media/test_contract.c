/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of medium.h, one suite for every medium and for stacks of wrappers. What differs
 * between them by contract (virtual time, trim) is asked from caps; nothing else may.
 */
#include "rig.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>

enum { MEMBER_BYTES = 4 << 20, MANY = 4096 };

struct stack {
    const char *name;
    const char *media;
    bool any_thread, plain_ring, buffered, paced, faulty, traced;
};

static const struct stack stacks[] = {
    {.name = "sync", .media = "sync"},
    {.name = "threads", .media = "threads"},
    {.name = "uring", .media = "uring"},
    {.name = "uring, any thread", .media = "uring", .any_thread = true},
    {.name = "uring, plain ring", .media = "uring", .plain_ring = true},
    {.name = "uring, buffered", .media = "uring", .buffered = true},
    {.name = "auto", .media = "auto"},
    {.name = "sim", .media = "sim"},
    {.name = "pace+uring", .media = "uring", .paced = true},
    {.name = "pace+threads", .media = "threads", .paced = true},
    {.name = "pace+sim", .media = "sim", .paced = true},
    {.name = "fault+sync", .media = "sync", .faulty = true},
    {.name = "fault+sim", .media = "sim", .faulty = true},
    {.name = "trace+uring", .media = "uring", .traced = true},
    {.name = "trace+sim", .media = "sim", .traced = true},
    {.name = "all+uring", .media = "uring", .paced = true, .faulty = true, .traced = true},
    {.name = "all+sim", .media = "sim", .paced = true, .faulty = true, .traced = true},
};

static char trace_path[256];

static void setup(struct rig *r, const struct stack *s)
{
    rig_init(r, s->media);
    r->args.members = 2;
    r->args.one_thread = !s->any_thread;
    r->opt.force_plain_ring = s->plain_ring;
    r->opt.buffered = s->buffered;
    if (s->paced) {
        r->opt.pace.rate = UINT64_C(20000000000);
        r->opt.pace.latency_ns = 1000;
    }
    if (s->faulty) {
        r->opt.fault.script = "# no faults\n";
    }
    if (s->traced) {
        r->opt.trace_record = trace_path;
    }
}

/* ------------------------------------------------------------------ bytes and results */

static void check_round_trip(struct rig *r)
{
    for (uint16_t member = 0; member < 2; member++) {
        for (uint64_t i = 0; i < 8; i++) {
            struct chm_io io = rig_io(r, CHM_IO_WRITE, i * 65536, 65536, i * 65536);
            io.member = member;
            io.region = i % 2 ? 0 : CHM_NO_REGION;
            fill(io.buf, io.len, i + 100u * member);
            CHECK_EQ(rig_do(r, io), 65536);
        }
    }
    for (uint16_t member = 0; member < 2; member++) {
        for (uint64_t i = 0; i < 8; i++) {
            struct chm_io io = rig_io(r, CHM_IO_READ, i * 65536, 65536, (8 + i) * 65536);
            io.member = member;
            io.region = i % 2 ? CHM_NO_REGION : 0;
            memset(io.buf, 0xA5, io.len);
            CHECK_EQ(rig_do(r, io), 65536);
            CHECK(is_filled(io.buf, io.len, i + 100u * member));
        }
    }
}

static void check_barrier_and_fua(struct rig *r)
{
    struct chm_io write = rig_io(r, CHM_IO_WRITE, 0, RIG_BLOCK, 0);
    struct chm_io barrier = {.kind = CHM_IO_BARRIER, .member = 1};

    write.flags = CHM_IO_FUA;
    CHECK_EQ(rig_do(r, write), RIG_BLOCK);
    CHECK_EQ(rig_do(r, barrier), 0);
}

static void check_trim(struct rig *r)
{
    struct chm_io trim = {.kind = CHM_IO_TRIM, .off = 65536, .len = 65536};

    fill(r->memory, 3 * 65536, 7);
    CHECK_EQ(rig_do(r, rig_io(r, CHM_IO_WRITE, 0, 3 * 65536, 0)), 3 * 65536);
    if (!r->m->caps.trim) {
        CHECK_EQ(rig_do(r, trim), -EOPNOTSUPP);
        return;
    }
    CHECK_EQ(rig_do(r, trim), 0);
    memset(r->memory + (1 << 20), 0xA5, 3 * 65536);
    CHECK_EQ(rig_do(r, rig_io(r, CHM_IO_READ, 0, 3 * 65536, 1 << 20)), 3 * 65536);
    CHECK(memcmp(r->memory, r->memory + (1 << 20), 65536) == 0);
    CHECK(is_byte(r->memory + (1 << 20) + 65536, 65536, 0));
    CHECK(memcmp(r->memory + 2 * 65536, r->memory + (1 << 20) + 2 * 65536, 65536) == 0);
}

/* F93: nothing read is 0, not success; members never grow. */
static void check_end_of_member(struct rig *r)
{
    uint64_t end = r->m->caps.size_bytes[0];

    CHECK_EQ(end, MEMBER_BYTES);
    CHECK_EQ(rig_do(r, rig_io(r, CHM_IO_READ, end - 8192, 65536, 0)), 8192);
    CHECK_EQ(rig_do(r, rig_io(r, CHM_IO_READ, end, 65536, 0)), 0);
    CHECK_EQ(rig_do(r, rig_io(r, CHM_IO_READ, end + (1 << 20), 65536, 0)), 0);
    CHECK_EQ(rig_do(r, rig_io(r, CHM_IO_WRITE, end - 8192, 65536, 0)), -ENOSPC);
    CHECK_EQ(rig_do(r, rig_io(r, CHM_IO_WRITE, end, 4096, 0)), -ENOSPC);
    CHECK_EQ(rig_do(r, rig_io(r, CHM_IO_WRITE, end - 4096, 4096, 0)), 4096);
    if (r->args.backings) {
        CHECK_EQ(chm_backing_size(r->path[0]), MEMBER_BYTES);
    }
}

static void check_malformed(struct rig *r)
{
    uint32_t block = r->m->caps.block_bytes, align = r->m->caps.align_bytes;
    struct chm_io good = rig_io(r, CHM_IO_READ, 0, RIG_BLOCK, 0);
    struct chm_io bad[9];

    for (size_t i = 0; i < CHM_COUNT(bad); i++) {
        bad[i] = good;
    }
    bad[0].off = block / 2;
    bad[1].len = RIG_BLOCK + block / 2;
    bad[2].len = 0;
    bad[3].len = r->m->caps.transfer_max + block;
    bad[4].buf = r->memory + align / 2;
    bad[5].member = 2;
    bad[6].kind = CHM_IO_TRIM + 1;
    bad[7].buf = NULL;
    bad[8].off = UINT64_MAX - RIG_BLOCK + 1;
    for (size_t i = 0; i < CHM_COUNT(bad); i++) {
        CHECK_EQ(rig_do(r, bad[i]), -EINVAL);
        CHECK_EQ(rig_do(r, good), RIG_BLOCK);
    }
}

/* ------------------------------------------------------------------ submit and reap */

static void check_exactly_once(struct rig *r)
{
    struct chm_io io[200], *in[200], *out[200];
    unsigned sent = 0, seen = 0;
    uint64_t last_ns = 0;

    for (unsigned i = 0; i < 200; i++) {
        enum chm_io_kind kind = i % 5 ? CHM_IO_READ : CHM_IO_WRITE;
        io[i] = rig_io(r, kind, (uint64_t)i * 8192, 4096u * (1 + i % 2), (uint64_t)i * 8192);
        io[i].owner = NULL;
        in[i] = &io[i];
    }
    while (seen < 200) {
        sent += chm_medium_submit(r->m, in + sent, 200 - sent);
        int n = chm_medium_reap(r->m, out, 7, CHM_FOREVER_NS);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            CHECK(out[i]->owner == NULL); /* not reaped before */
            out[i]->owner = r;
            CHECK_EQ(out[i]->res, out[i]->len);
            CHECK(out[i]->done_ns >= last_ns); /* completion order */
            CHECK(out[i]->done_ns <= chm_medium_now(r->m));
            last_ns = out[i]->done_ns;
        }
        seen += (unsigned)n;
    }
    CHECK_EQ(sent, 200);
    CHECK_EQ(chm_medium_reap(r->m, out, 200, 0), 0);
}

static void check_full(struct rig *r)
{
    uint32_t max = r->m->caps.inflight_max;
    struct chm_io io[70], *in[70], *out[70];

    CHECK_EQ(max, 64);
    for (unsigned i = 0; i < 70; i++) {
        io[i] = rig_io(r, CHM_IO_READ, (uint64_t)i * 4096, 4096, (uint64_t)i * 4096);
        in[i] = &io[i];
    }
    CHECK_EQ(chm_medium_submit(r->m, in, 70), max);
    CHECK_EQ(chm_medium_submit(r->m, in + max, 70 - max), 0);
    rig_reap(r, out, 2);
    CHECK_EQ(chm_medium_submit(r->m, in + max, 70 - max), 2);
    rig_reap(r, out, max);
    CHECK_EQ(chm_medium_submit(r->m, in + max + 2, 70 - max - 2), 70 - max - 2);
    rig_reap(r, out, 70 - max - 2);
    CHECK_EQ(chm_medium_submit(r->m, in, 0), 0);
}

static void check_deadline(struct rig *r)
{
    struct chm_io *out[4];
    uint64_t start = chm_medium_now(r->m), deadline = start + 2000000;

    CHECK_EQ(chm_medium_reap(r->m, out, 4, 0), 0);
    if (r->m->caps.virtual_time) {
        CHECK_EQ(chm_medium_reap(r->m, out, 4, CHM_FOREVER_NS), 0);
        CHECK_EQ(chm_medium_now(r->m), start); /* polling and waiting for nothing take no time */
    }
    CHECK_EQ(chm_medium_reap(r->m, out, 4, deadline), 0);
    CHECK(chm_medium_now(r->m) >= deadline);
    if (r->m->caps.virtual_time) {
        CHECK_EQ(chm_medium_now(r->m), deadline);
    }
    CHECK_EQ(chm_medium_reap(r->m, out, 4, start), 0); /* a deadline in the past polls */
}

static void check_event_fd(struct rig *r)
{
    struct pollfd p = {.fd = r->m->caps.event_fd, .events = POLLIN};
    struct chm_io io = rig_io(r, CHM_IO_READ, 0, RIG_BLOCK, 0), more[8], *out;

    if (p.fd < 0) {
        return;
    }
    CHECK_EQ(chm_medium_reap(r->m, &out, 1, 0), 0);
    CHECK_EQ(poll(&p, 1, 0), 0);
    for (int i = 0; i < 3; i++) {
        io.len = i == 1 ? 1 : RIG_BLOCK; /* one that is refused at once */
        CHECK_EQ(rig_submit(r, &io), 1);
        CHECK_EQ(poll(&p, 1, -1), 1);
        rig_reap(r, &out, 1);
        CHECK_EQ(io.res, i == 1 ? -EINVAL : RIG_BLOCK);
        CHECK_EQ(chm_medium_reap(r->m, &out, 1, 0), 0);
        CHECK_EQ(poll(&p, 1, 0), 0);
    }
    for (int i = 0; i < 8; i++) {
        more[i] = rig_io(r, CHM_IO_READ, 0, RIG_BLOCK, (uint64_t)i * RIG_BLOCK);
        CHECK_EQ(rig_submit(r, &more[i]), 1);
    }
    for (int i = 0; i < 8; i++) { /* readable until the last one is reaped */
        CHECK_EQ(poll(&p, 1, -1), 1);
        rig_reap(r, &out, 1);
    }
    CHECK_EQ(chm_medium_reap(r->m, &out, 1, 0), 0);
    CHECK_EQ(poll(&p, 1, 0), 0);
}

/* ------------------------------------------------------------------ wake */

static void *waker(void *arg)
{
    chm_medium_wake(arg);
    return NULL;
}

static void check_wake(struct rig *r)
{
    struct chm_io *out, io = rig_io(r, CHM_IO_READ, 0, RIG_BLOCK, 0);
    uint64_t before = chm_medium_now(r->m);
    pthread_t thread;

    chm_medium_wake(r->m);
    CHECK_EQ(chm_medium_reap(r->m, &out, 1, CHM_FOREVER_NS), 0);
    CHECK(!r->m->caps.virtual_time || chm_medium_now(r->m) == before);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(pthread_create(&thread, NULL, waker, r->m), 0);
        CHECK_EQ(chm_medium_reap(r->m, &out, 1, CHM_FOREVER_NS), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
    while (chm_medium_reap(r->m, &out, 1, chm_medium_now(r->m)) != 0) {
    }
    CHECK_EQ(rig_do(r, io), RIG_BLOCK); /* no I/O was lost on the way */
}

/* The thread sanitizer delays a signal until the thread calls into the C library; a thread that is
 * on its way into the ring, which is a bare system call, then sleeps through it. */
#ifdef __SANITIZE_THREAD__
enum { SIGNALS_ARE_DELAYED = 1 };
#else
enum { SIGNALS_ARE_DELAYED = 0 };
#endif

static struct chm_medium *signal_medium;

static void on_signal(int number)
{
    (void)number;
    chm_medium_wake(signal_medium);
}

static void *killer(void *arg)
{
    CHECK_EQ(pthread_kill(*(pthread_t *)arg, SIGUSR1), 0);
    return NULL;
}

static void check_wake_from_signal(struct rig *r)
{
    struct sigaction action = {.sa_handler = on_signal}, old;
    pthread_t self = pthread_self(), thread;
    struct chm_io *out;

    if (r->m->caps.virtual_time) {
        return; /* never waits */
    }
    if (SIGNALS_ARE_DELAYED && strcmp(r->opt.media, "sync") && strcmp(r->opt.media, "threads")) {
        return;
    }
    signal_medium = r->m;
    CHECK_EQ(sigaction(SIGUSR1, &action, &old), 0);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(pthread_create(&thread, NULL, killer, &self), 0);
        CHECK_EQ(chm_medium_reap(r->m, &out, 1, CHM_FOREVER_NS), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
    CHECK_EQ(sigaction(SIGUSR1, &old, NULL), 0);
}

/* ------------------------------------------------------------------ runs */

static const struct {
    const char *name;
    void (*run)(struct rig *r);
} checks[] = {
    {"round trip", check_round_trip},
    {"barrier and FUA", check_barrier_and_fua},
    {"trim", check_trim},
    {"end of member", check_end_of_member},
    {"malformed", check_malformed},
    {"exactly once", check_exactly_once},
    {"full", check_full},
    {"deadline", check_deadline},
    {"event fd", check_event_fd},
    {"wake", check_wake},
    {"wake from a signal", check_wake_from_signal},
};

static void run_checks(const struct stack *s)
{
    struct rig r;

    setup(&r, s);
    rig_open(&r, MEMBER_BYTES);
    for (size_t i = 0; i < CHM_COUNT(checks); i++) {
        printf("  %s\n", checks[i].name);
        checks[i].run(&r);
    }
    rig_close(&r);
}

static void run_close_in_flight(const struct stack *s)
{
    struct chm_io io[64], *in[64];
    struct rig r;

    setup(&r, s);
    rig_open(&r, MEMBER_BYTES);
    for (unsigned i = 0; i < 64; i++) {
        io[i] = rig_io(&r, CHM_IO_READ, (uint64_t)i * 65536, 65536, (uint64_t)i * 65536);
        in[i] = &io[i];
    }
    CHECK_EQ(chm_medium_submit(r.m, in, 64), 64);
    rig_close(&r); /* and the memory is gone: the sanitizer would see a late write by a thread */
}

/* F66: a ring of 8, 4096 I/Os issued before the first wait, and a reaper that takes few
 * at a time. */
static void run_many(const struct stack *s)
{
    static struct chm_io io[MANY], *in[MANY];
    unsigned seen = 0;
    struct rig r;

    setup(&r, s);
    r.args.inflight_max = MANY;
    r.opt.force_ring_entries = 8;
    rig_open(&r, MEMBER_BYTES);
    for (unsigned i = 0; i < MANY; i++) {
        io[i] = rig_io(&r, i < 512 ? CHM_IO_WRITE : CHM_IO_READ, (uint64_t)i % 1024 * 4096, 4096,
                       (uint64_t)i * 4096);
        in[i] = &io[i];
    }
    CHECK_EQ(chm_medium_submit(r.m, in, MANY), MANY);
    while (seen < MANY) {
        struct chm_io *out[5];
        int n = chm_medium_reap(r.m, out, 5, CHM_FOREVER_NS);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            CHECK_EQ(out[i]->res, 4096);
            CHECK(out[i]->owner == NULL);
            out[i]->owner = &r;
        }
        seen += (unsigned)n;
    }
    CHECK_EQ(seen, MANY);
    rig_close(&r);
}

int main(void)
{
    rig_path(trace_path, sizeof(trace_path), "trace");
    for (size_t i = 0; i < CHM_COUNT(stacks); i++) {
        printf("%s\n", stacks[i].name);
        (void)fflush(stdout);
        run_checks(&stacks[i]);
        run_close_in_flight(&stacks[i]);
        run_many(&stacks[i]);
    }
    unlink(trace_path);
    return 0;
}
