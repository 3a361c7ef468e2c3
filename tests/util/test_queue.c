/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue: exactly once, in order per producer, full and empty, sleeping without a lost wake-up,
 * and without pointers (two mappings of one memory). Made to run under the thread sanitiser.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "check.h"
#include "host/queue.h"
#include "util/util.h"

enum {
    PRODUCERS = 4,
    PER_PRODUCER = 100000,
    ROUNDS = 30000,
    MEETINGS = 200000,
    LOST_MS = 60000 /* no measure of speed: a lost wake-up would sleep for ever */
};

/* One queue as the two sides see it: two mappings of the same memory, or twice the same one. */
struct shared {
    struct chm_queue *produce, *consume;
    uint64_t bytes;
    int wake_fd;
};

struct producer {
    pthread_t thread;
    struct shared *shared;
    uint64_t id;
};

static struct chm_queue *map(int fd, uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

static void shared_open(struct shared *s, uint32_t entries, bool twice)
{
    int fd = memfd_create("test_queue", 0);

    CHECK(fd >= 0);
    s->bytes = chm_queue_bytes(entries);
    CHECK(ftruncate(fd, (off_t)s->bytes) == 0);
    s->consume = map(fd, s->bytes);
    s->produce = twice ? map(fd, s->bytes) : s->consume;
    close(fd);
    chm_queue_init(s->consume, entries);
    s->wake_fd = eventfd(0, 0);
    CHECK(s->wake_fd >= 0);
}

static void shared_close(struct shared *s)
{
    close(s->wake_fd);
    if (s->produce != s->consume) {
        munmap(s->produce, s->bytes);
    }
    munmap(s->consume, s->bytes);
}

static void fill(uint64_t body[7], uint64_t id, uint64_t number)
{
    uint64_t state = id << 32 | number;

    body[0] = id;
    body[1] = number;
    for (uint32_t i = 2; i < 7; i++) {
        body[i] = chm_random(&state);
    }
}

static void push(struct shared *s, const uint64_t body[7])
{
    while (!chm_queue_push(s->produce, body)) {
        sched_yield();
    }
    if (chm_queue_must_wake(s->produce, true)) {
        CHECK(eventfd_write(s->wake_fd, 1) == 0);
    }
}

/* The consumer's loop as it is meant to be: look, say that you will sleep, sleep, look again. */
static void pop(struct shared *s, uint64_t body[7])
{
    while (!chm_queue_pop(s->consume, body)) {
        struct pollfd p = {.fd = s->wake_fd, .events = POLLIN};
        eventfd_t woken;
        int rc;

        if (!chm_queue_sleep(s->consume, true)) {
            continue;
        }
        do {
            rc = poll(&p, 1, LOST_MS);
        } while (rc < 0 && errno == EINTR);
        CHECK_EQ(rc, 1); /* 0: a wake-up was lost */
        CHECK(eventfd_read(s->wake_fd, &woken) == 0);
        chm_queue_awake(s->consume);
    }
}

static void *produce(void *arg)
{
    struct producer *p = arg;

    for (uint64_t i = 0; i < PER_PRODUCER; i++) {
        uint64_t body[7];

        fill(body, p->id, i);
        push(p->shared, body);
    }
    return NULL;
}

/* Many against one: each entry once, whole, and in the order of its producer. */
static void test_threads(uint32_t entries, bool twice)
{
    struct shared s;
    struct producer p[PRODUCERS];
    uint64_t next[PRODUCERS] = {0}, got[7], expected[7];

    shared_open(&s, entries, twice);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        p[i] = (struct producer){.shared = &s, .id = i};
        CHECK(pthread_create(&p[i].thread, NULL, produce, &p[i]) == 0);
    }
    for (uint64_t n = 0; n < (uint64_t)PRODUCERS * PER_PRODUCER; n++) {
        pop(&s, got);
        CHECK(got[0] < PRODUCERS);
        fill(expected, got[0], next[got[0]]++);
        CHECK_EQ(got[1], expected[1]);
        CHECK(memcmp(got, expected, sizeof(got)) == 0);
    }
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        CHECK(pthread_join(p[i].thread, NULL) == 0);
        CHECK_EQ(next[i], PER_PRODUCER);
    }
    CHECK(!chm_queue_pop(s.consume, got));
    CHECK_EQ(atomic_load(&s.consume->head), atomic_load(&s.consume->tail));
    shared_close(&s);
}

/* Two queues, one request at a time: both sides go to sleep each round. */
struct pair {
    struct shared there, back;
};

static void *echo(void *arg)
{
    struct pair *pair = arg;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t body[7];

        pop(&pair->there, body);
        push(&pair->back, body);
    }
    return NULL;
}

static void test_sleep_and_wake(void)
{
    struct pair pair;
    pthread_t thread;

    shared_open(&pair.there, 2, true);
    shared_open(&pair.back, 2, true);
    CHECK(pthread_create(&thread, NULL, echo, &pair) == 0);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t body[7], got[7];

        fill(body, 0, i);
        push(&pair.there, body);
        pop(&pair.back, got);
        CHECK(memcmp(got, body, sizeof(got)) == 0);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    shared_close(&pair.there);
    shared_close(&pair.back);
}

/*
 * The moment itself, many times: one thread goes to sleep just when the other pushes. It must not
 * happen that the one sleeps and the other sees no reason to wake it. Without a fence on either
 * side the processor lets that happen once in some thousand meetings.
 */
struct meeting {
    struct shared shared;
    _Atomic uint32_t go, done; /* number of the round that may begin, that the producer has ended */
    bool wakes;
};

static void wait_for(_Atomic uint32_t *at, uint32_t value)
{
    for (uint32_t spins = 0; atomic_load_explicit(at, memory_order_acquire) != value; spins++) {
        if (spins > 1000) { /* the other may need this processor */
            sched_yield();
            spins = 0;
        }
    }
}

static void *meet(void *arg)
{
    struct meeting *m = arg;
    uint64_t body[7] = {0};

    for (uint32_t i = 1; i <= MEETINGS; i++) {
        wait_for(&m->go, i);
        CHECK(chm_queue_push(m->shared.produce, body));
        m->wakes = chm_queue_must_wake(m->shared.produce, true);
        atomic_store_explicit(&m->done, i, memory_order_release);
    }
    return NULL;
}

static void test_no_wake_up_lost(void)
{
    struct meeting m = {.wakes = false};
    uint64_t body[7];
    pthread_t thread;

    shared_open(&m.shared, 2, false);
    CHECK(pthread_create(&thread, NULL, meet, &m) == 0);
    for (uint32_t i = 1; i <= MEETINGS; i++) {
        bool sleeps;

        atomic_store_explicit(&m.go, i, memory_order_release);
        /* So that the two meet at every offset; with 512 either fence was missed when taken out. */
        for (uint32_t delay = i % 512; delay > 0; delay--) {
            atomic_signal_fence(memory_order_seq_cst);
        }
        sleeps = chm_queue_sleep(m.shared.consume, true);
        wait_for(&m.done, i);
        CHECK(!sleeps || m.wakes);
        chm_queue_awake(m.shared.consume);
        CHECK(chm_queue_pop(m.shared.consume, body));
    }
    CHECK(pthread_join(thread, NULL) == 0);
    shared_close(&m.shared);
}

/* The protocol step by step, without threads. */
static void test_sleep_protocol(void)
{
    struct shared s;
    uint64_t body[7] = {1};

    shared_open(&s, 4, false);
    CHECK(!chm_queue_must_wake(s.produce, false)); /* a new consumer is awake */
    CHECK(chm_queue_sleep(s.consume, false));
    CHECK(chm_queue_push(s.produce, body));
    CHECK(chm_queue_must_wake(s.produce, false));
    chm_queue_awake(s.consume);
    CHECK(!chm_queue_must_wake(s.produce, false));
    CHECK(!chm_queue_sleep(s.consume, false));     /* something is there */
    CHECK(!chm_queue_must_wake(s.produce, false)); /* and it does not count as asleep */
    CHECK(chm_queue_pop(s.consume, body));
    CHECK(chm_queue_sleep(s.consume, false));
    shared_close(&s);
}

static void test_full(uint32_t entries)
{
    struct shared s;
    uint64_t body[7], got[7], pushed = 0, popped = 0;

    shared_open(&s, entries, true);
    CHECK(!chm_queue_pop(s.consume, got));
    for (uint32_t lap = 0; lap < 5; lap++) {
        for (; pushed - popped < entries; pushed++) {
            fill(body, 9, pushed);
            CHECK(chm_queue_push(s.produce, body));
        }
        CHECK(!chm_queue_push(s.produce, body));
        CHECK(!chm_queue_push(s.produce, body)); /* and saying no changes nothing */
        /* Leave some in, so that laps do not begin at entry 0. */
        for (; pushed - popped > entries / 3; popped++) {
            CHECK(chm_queue_pop(s.consume, got));
            fill(body, 9, popped);
            CHECK(memcmp(got, body, sizeof(got)) == 0);
        }
    }
    CHECK_EQ(atomic_load(&s.consume->head), pushed);
    CHECK_EQ(atomic_load(&s.consume->tail), popped);
    shared_close(&s);
}

static void test_layout(void)
{
    CHECK_EQ(sizeof(struct chm_queue_entry), 64);
    CHECK_EQ(offsetof(struct chm_queue, head), 64);
    CHECK_EQ(offsetof(struct chm_queue, tail), 128);
    CHECK_EQ(offsetof(struct chm_queue, sleeping), 192);
    CHECK_EQ(chm_queue_bytes(8), 256 + 8 * 64);
}

static void init_with(uint32_t entries)
{
    struct chm_queue *q = calloc(1, chm_queue_bytes(8));

    chm_queue_init(q, entries);
}

static void init_with_one(void)
{
    init_with(1);
}

static void init_with_three(void)
{
    init_with(3);
}

int main(void)
{
    check_aborts(init_with_one); /* first: fork before there are threads */
    check_aborts(init_with_three);
    test_layout();
    test_full(2);
    test_full(64);
    test_sleep_protocol();
    test_sleep_and_wake();
    test_no_wake_up_lost();
    test_threads(256, false);
    test_threads(8, true);
    return 0;
}
