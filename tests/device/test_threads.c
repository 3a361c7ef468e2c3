/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_threads.c - one threaded device, many callers: bytes against a model, and wake-ups that are
 * never lost. On real files, for every real medium; run under the thread sanitizer too.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "device/rig.h"

enum {
    THREADS = 8,
    OWN_PAGES = 128, /* each thread has a part of the device for itself */
    ROUNDS = 100,
    RANGE_PAGES = 24,
};

static const uint64_t LONG = 60ull * CHM_SECOND;

static void open_threaded(struct rig *r, const char *media, const char *script)
{
    rig_files(r, media, 2, 8 * MIB);
    r->opt.thread = 1;
    r->opt.fault.script = script;
    rig_open(r);
    CHECK_EQ(r->info.threaded, 1);
    CHECK_IS(chm_step(r->dev, 0), -EPERM);
}

static void start(pthread_t *t, void *(*fn)(void *), void *arg)
{
    CHECK_IS(pthread_create(t, NULL, fn, arg), 0);
}

/* ------------------------------------------------------------------ put, get, trim */

struct worker {
    struct rig *rig;
    uint64_t base, random;
    uint64_t seeds[OWN_PAGES]; /* what each page reads as */
    uint8_t *buf;
    pthread_t thread;
};

static uint64_t dice(struct worker *w, uint64_t below)
{
    return chm_random(&w->random) % below;
}

static void worker_check(struct worker *w, const uint8_t *p, uint64_t first, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        CHECK_HOLDS(p + i * PAGE, w->base + (first + i) * PAGE, PAGE, w->seeds[first + i]);
    }
}

static void worker_write(struct worker *w, uint64_t first, uint64_t n)
{
    struct chm_write x = {.addr = w->base + first * PAGE, .len = n * PAGE};
    uint64_t seed = chm_random(&w->random) | 1;
    bool keep = dice(w, 4) > 0;
    int32_t status;

    while (chm_write_begin(w->rig->dev, &x, 1) != 1) {
        CHECK_IS(x.status, -EAGAIN);
        CHECK_IS(chm_flush(w->rig->dev, LONG), 0);
    }
    fill(x.data, x.addr, x.len, seed);
    if (!keep) {
        CHECK_IS(chm_write_abort(w->rig->dev, &x.id, 1, &status), 1);
        return;
    }
    CHECK_IS(chm_write_commit(w->rig->dev, &x.id, 1, &status), 1);
    for (uint64_t i = first; i < first + n; i++) {
        w->seeds[i] = seed;
    }
}

static void worker_trim(struct worker *w, uint64_t first, uint64_t n)
{
    while (chm_trim(w->rig->dev, w->base + first * PAGE, n * PAGE) == -EAGAIN) {
        CHECK_IS(chm_flush(w->rig->dev, LONG), 0);
    }
    for (uint64_t i = first; i < first + n; i++) {
        w->seeds[i] = 0;
    }
}

static void worker_stage(struct worker *w, uint64_t first, uint64_t n)
{
    struct chm_issue item = {.addr = w->base + first * PAGE, .len = n * PAGE};
    struct chm_view view;

    CHECK_IS(chm_issue(w->rig->dev, &item, 1, NULL), 1);
    if (dice(w, 4) > 0) {
        CHECK_IS(chm_wait(w->rig->dev, item.req, UINT64_MAX), 0);
        CHECK_IS(chm_view(w->rig->dev, item.req, &view), 0);
        worker_check(w, view.data, first, n);
    }
    CHECK_IS(chm_release(w->rig->dev, item.req), 0);
    CHECK_IS(chm_wait(w->rig->dev, item.req, 0), -ESTALE);
}

static void worker_read(struct worker *w, uint64_t first, uint64_t n)
{
    struct chm_read item = {.addr = w->base + first * PAGE, .len = n * PAGE, .buf = w->buf};

    if (dice(w, 2)) {
        item.buf = w->buf + 8; /* copied */
    }
    CHECK_IS(chm_read(w->rig->dev, &item, 1, UINT64_MAX), 1);
    worker_check(w, item.buf, first, n);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t n = 1 + dice(w, RANGE_PAGES), first = dice(w, OWN_PAGES - n + 1);
        switch (dice(w, 8)) {
        case 0:
        case 1:
        case 2:
            worker_write(w, first, n);
            break;
        case 3:
            worker_trim(w, first, n);
            break;
        case 4:
        case 5:
            worker_read(w, first, n);
            break;
        default:
            worker_stage(w, first, n);
        }
    }
    return NULL;
}

static void check_mix(const char *media, uint32_t durability)
{
    static struct worker workers[THREADS];
    struct rig r;

    rig_files(&r, media, 2, 8 * MIB);
    r.opt.thread = 1;
    r.opt.durability = durability;
    r.opt.read_unit = 32 * KIB;
    r.opt.flush_unit = 32 * KIB;
    rig_open(&r);
    for (uint64_t t = 0; t < THREADS; t++) {
        workers[t] = (struct worker){
            .rig = &r, .base = t * OWN_PAGES * PAGE, .random = t + 1, .buf = rig_alloc(MIB)};
        start(&workers[t].thread, worker_main, &workers[t]);
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(workers[t].thread, NULL);
    }
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    for (int t = 0; t < THREADS; t++) {
        worker_read(&workers[t], 0, OWN_PAGES);
    }
    CHECK_IS(chm_quiesce(r.dev, LONG), 0);
    rig_check_idle(&r);
    CHECK_IS(chm_close(r.dev, LONG), 0);
    rig_open(&r); /* and it is all on the drive */
    for (int t = 0; t < THREADS; t++) {
        worker_read(&workers[t], 0, OWN_PAGES);
        munmap(workers[t].buf, MIB);
    }
    rig_close(&r);
}

/* Everybody stages and releases the same few ranges, which are written all the time: each page is
 * of one version, and versions never go back for one caller. */
struct reader {
    struct rig *rig;
    pthread_t thread;
    _Atomic uint64_t *written; /* seed of the last write that was committed */
};

static void *reader_main(void *arg)
{
    struct reader *x = arg;
    uint64_t seen = 1;

    for (int i = 0; i < 400; i++) {
        uint64_t at_least = atomic_load(x->written), at_most, seed;
        uint64_t req = rig_issue(x->rig, 0, 16 * PAGE);
        uint8_t *p;
        CHECK_IS(chm_wait(x->rig->dev, req, UINT64_MAX), 0);
        at_most = atomic_load(x->written) + 1;
        p = rig_view(x->rig, req, 16 * PAGE);
        for (seed = at_least; seed <= at_most && !holds(p, 0, PAGE, seed); seed++) {
        }
        CHECK(seed <= at_most && seed >= seen);
        seen = seed;
        CHECK_HOLDS(p, 0, 16 * PAGE, seed);
        CHECK_IS(chm_release(x->rig->dev, req), 0);
    }
    return NULL;
}

static void check_overwritten_under_readers(const char *media)
{
    struct reader readers[3];
    _Atomic uint64_t written = 1;
    struct rig r;

    open_threaded(&r, media, NULL);
    rig_write(&r, 0, 16 * PAGE, 1);
    for (int i = 0; i < 3; i++) {
        readers[i] = (struct reader){.rig = &r, .written = &written};
        start(&readers[i].thread, reader_main, &readers[i]);
    }
    for (uint64_t v = 2; v < 300; v++) {
        struct chm_write w = {.addr = 0, .len = 16 * PAGE};
        while (chm_write_begin(r.dev, &w, 1) != 1) {
            CHECK_IS(chm_flush(r.dev, LONG), 0);
        }
        fill(w.data, 0, 16 * PAGE, v);
        rig_commit(&r, &w);
        atomic_store(&written, v);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(readers[i].thread, NULL);
    }
    rig_close(&r);
}

/* ------------------------------------------------------------------ wake-ups */

static void *asker_main(void *arg)
{
    struct rig *r = arg;
    struct chm_stats s;

    for (int i = 0; i < 1000; i++) {
        CHECK_IS(chm_stats(r->dev, &s), 0);
    }
    return NULL;
}

/* An I/O that does not end must not make the device deaf: every command is answered. A lost wake-up
 * shows as a test that does not end. */
static void check_commands_while_io_hangs(const char *media)
{
    pthread_t threads[3];
    struct rig r;
    uint64_t req;

    open_threaded(&r, media, "0 read late 20000000000\n"); /* 20 s, as good as never */
    req = rig_issue(&r, 0, PAGE);
    rig_begun(&r);
    for (int i = 0; i < 3; i++) {
        start(&threads[i], asker_main, &r);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK_IS(chm_wait(r.dev, req, 0), -ETIMEDOUT); /* that it did not take the 20 s */
    CHECK_IS(chm_close(r.dev, MS), -ETIMEDOUT);
    rig_unlink(&r);
}

static void readable(int fd, bool expected)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    CHECK_IS(poll(&p, 1, expected ? -1 : 0), expected);
}

/* 500 handles, one descriptor, one call (F26). */
static void check_reap_many(const char *media)
{
    enum { N = 500 };
    struct chm_issue items[N];
    uint64_t ids[64];
    bool told[N] = {false};
    struct rig r;
    int fd, left = N;

    open_threaded(&r, media, "7 read err 5\n300 read err 5\n");
    for (uint64_t i = 0; i < N; i++) {
        items[i] = (struct chm_issue){.addr = i * 2 * PAGE, .len = PAGE};
    }
    fd = chm_event_fd(r.dev);
    CHECK(fd >= 0);
    readable(fd, false);
    CHECK_IS(chm_issue(r.dev, items, N, NULL), N);
    while (left > 0) {
        int n;
        readable(fd, true);
        n = chm_reap(r.dev, ids, CHM_COUNT(ids));
        CHECK(n >= 0);
        for (int i = 0; i < n; i++) {
            int k = 0;
            while (k < N && items[k].req != ids[i]) {
                k++;
            }
            CHECK(k < N && !told[k]);
            told[k] = true;
            int rc = chm_wait(r.dev, ids[i], 0); /* told means ended */
            CHECK(rc == 0 || rc == -EIO);
        }
        left -= n;
    }
    CHECK_IS(chm_reap(r.dev, ids, CHM_COUNT(ids)), 0);
    readable(fd, false);
    CHECK_EQ(rig_stats(&r)->failed, 2);
    for (int i = 0; i < N; i++) {
        CHECK_IS(chm_release(r.dev, items[i].req), 0);
    }
    rig_close(&r);
}

/* What ended before anybody asked for the descriptor makes it readable too; writes never do. */
static void check_event_fd_late(const char *media)
{
    struct chm_write w;
    struct rig r;
    uint64_t req, ids[4];
    int fd;

    open_threaded(&r, media, NULL);
    req = rig_issue(&r, 0, PAGE);
    CHECK_IS(chm_wait(r.dev, req, LONG), 0);
    fd = chm_event_fd(r.dev);
    readable(fd, true);
    CHECK_IS(chm_reap(r.dev, ids, 4), 1);
    CHECK_EQ(ids[0], req);
    w = rig_begin(&r, MIB, PAGE, 1);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    readable(fd, false);
    CHECK_IS(chm_reap(r.dev, ids, 4), 0);
    rig_commit(&r, &w);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* The only request fails, and nothing else happens: the waiter and the descriptor know (F29). */
static void check_failure_wakes(const char *media)
{
    struct rig r;
    uint64_t req, ids[4];
    int fd;

    open_threaded(&r, media, "0 read err 5\n");
    fd = chm_event_fd(r.dev);
    req = rig_issue(&r, 0, PAGE);
    CHECK_IS(chm_wait(r.dev, req, UINT64_MAX), -EIO);
    readable(fd, true);
    CHECK_IS(chm_reap(r.dev, ids, 4), 1);
    CHECK_EQ(ids[0], req);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* ------------------------------------------------------------------ one request, many threads */

struct waiter {
    struct rig *rig;
    uint64_t req;
    _Atomic int waiting;
    int rc;
    pthread_t thread;
};

static void *waiter_main(void *arg)
{
    struct waiter *w = arg;

    atomic_store(&w->waiting, 1);
    w->rc = chm_wait(w->rig->dev, w->req, UINT64_MAX);
    return NULL;
}

/* All who wait for a request are woken when it ends, and when it is released under them: then it is
 * stale, and they never get the answer of the next request in its place. */
static void check_waiters(const char *media, bool release)
{
    struct waiter waiters[4];
    struct rig r;
    uint64_t req, next;

    rig_files(&r, media, 2, 8 * MIB);
    r.opt.thread = 1;
    r.opt.flush_idle_ns = r.opt.flush_age_ns = UINT64_MAX;
    r.opt.fault.script = release ? "0- read never\n" : "0 read late 30000000\n";
    rig_open(&r);
    rig_write(&r, MIB, PAGE, 1); /* stays in the buffer, so that it can be staged all the same */
    req = rig_issue(&r, 0, PAGE);
    rig_begun(&r);
    for (int i = 0; i < 4; i++) {
        waiters[i] = (struct waiter){.rig = &r, .req = req};
        start(&waiters[i].thread, waiter_main, &waiters[i]);
    }
    for (int i = 0; i < 4; i++) {
        while (!atomic_load(&waiters[i].waiting)) {
        }
    }
    if (release) {
        CHECK_IS(chm_release(r.dev, req), 0);
        for (int i = 0; i < 100; i++) {
            next = rig_issue(&r, MIB, PAGE);
            CHECK_IS(chm_wait(r.dev, next, UINT64_MAX), 0);
            CHECK_IS(chm_release(r.dev, next), 0);
        }
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(waiters[i].thread, NULL);
        CHECK_IS(waiters[i].rc, release ? -ESTALE : 0);
    }
    if (release) {
        CHECK_IS(chm_close(r.dev, MS), -ETIMEDOUT);
        rig_unlink(&r);
        return;
    }
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

static void check_released_under_waiters(const char *media)
{
    check_waiters(media, true);
}

static bool have(const char *media)
{
    struct rig r;
    bool ok;

    rig_files(&r, media, 1, 4 * MIB);
    ok = rig_try_open(&r);
    if (ok) {
        CHECK_IS(chm_close(r.dev, LONG), 0);
    }
    rig_unlink(&r);
    return ok;
}

int main(void)
{
    static const char *const media[] = {"sync", "threads", "uring"};

    for (size_t i = 0; i < CHM_COUNT(media); i++) {
        const char *m = media[i];
        if (!have(m)) {
            continue;
        }
        check_mix(m, CHM_DURABILITY_PERIODIC);
        check_overwritten_under_readers(m);
        check_reap_many(m);
        check_event_fd_late(m);
        check_failure_wakes(m);
        check_waiters(m, false);
        rig_in_child(check_commands_while_io_hangs, m);
        rig_in_child(check_released_under_waiters, m);
    }
    check_mix("sync", CHM_DURABILITY_STRICT);
    return 0;
}
