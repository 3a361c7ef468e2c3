/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_threads.c - many threads on one store over a device with a thread, on a real file: get,
 * put, delete, lease and exists on few keys, with space for about half of them.
 *
 * Every object's bytes follow from its key and a version in its first word, so that one that is
 * mixed of two, or of another key, is seen.
 *
 * Field reports: F09 (two writers on one key), F15 (evicted between look-up and fetch: a miss), F19
 * (remove races get and insert under eviction), F47, F50.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

#include "store/kv_rig.h"

enum { THREADS = 4, KEYS = 64, ROUNDS = 250, LEN_MAX = 600 * KIB };

struct shared {
    struct kv k;
    _Atomic uint64_t version;
    _Atomic uint64_t hits, misses, puts, duplicates, leases;
    pthread_mutex_t drain; /* each drains whatever has ended and tells its owner */
    _Atomic uint32_t ended[THREADS];
};

struct worker {
    struct shared *s;
    uint32_t number;
    uint64_t random;
    uint8_t *buf;
};

static uint64_t len_of(uint64_t key)
{
    return 4 * KIB + key * 7919 * 3 % LEN_MAX;
}

static void object_fill(uint8_t *p, uint64_t key, uint64_t version)
{
    kv_fill(p, len_of(key), kv_seed(key, version));
    memcpy(p, &version, sizeof(version));
}

static void object_check(const uint8_t *p, uint64_t key)
{
    uint64_t version;

    memcpy(&version, p, sizeof(version));
    CHECK(version > 0);
    CHECK(first_wrong(p + 8, 8, len_of(key) - 8, kv_seed(key, version)) == len_of(key) - 8);
}

/* Jobs of all threads come out of one place. */
static void wait_for(struct worker *w)
{
    struct chm_store_done done[8];
    struct pollfd fd = {.fd = chm_store_event_fd(w->s->k.s), .events = POLLIN};

    while (atomic_load(&w->s->ended[w->number]) == 0) {
        int n;

        if (w->number % 2) {
            poll(&fd, 1, 10);
            n = chm_store_drain(w->s->k.s, done, 8, 0);
        } else {
            n = chm_store_drain(w->s->k.s, done, 8, 10 * MS);
        }
        CHECK(n >= 0);
        for (int i = 0; i < n; i++) {
            CHECK(done[i].cookie < THREADS);
            CHECK_EQ(atomic_fetch_add(&w->s->ended[done[i].cookie], 1), 0); /* once */
        }
    }
    atomic_fetch_sub(&w->s->ended[w->number], 1);
}

static int32_t run(struct worker *w, uint32_t op, uint64_t key, struct chm_store_lease *lease)
{
    struct chm_key name = kv_key(key);
    struct chm_part part = {.data = w->buf, .len = len_of(key)};
    int32_t status = 12345;
    uint64_t id;
    struct chm_store_job job = {.op = op,
                                .flags = op == CHM_STORE_PUT ? CHM_STORE_WAIT : 0,
                                .ns = w->s->k.ns,
                                .n = 1,
                                .keys = &name,
                                .parts = &part,
                                .leases = lease,
                                .status = &status,
                                .timeout_ns = KV_LONG,
                                .cookie = w->number};

    CHECK_IS(chm_store_submit(w->s->k.s, &job, &id), 0);
    wait_for(w);
    return status;
}

static void put(struct worker *w, uint64_t key)
{
    int32_t rc;

    object_fill(w->buf, key, atomic_fetch_add(&w->s->version, 1) + 1);
    rc = run(w, CHM_STORE_PUT, key, NULL);
    CHECK(rc == 0 || rc == CHM_STORE_DUPLICATE);
    atomic_fetch_add(rc == 0 ? &w->s->puts : &w->s->duplicates, 1);
}

static void get(struct worker *w, uint64_t key)
{
    int32_t rc = run(w, CHM_STORE_GET, key, NULL);

    CHECK(rc == 0 || rc == -ENOENT);
    if (rc == 0) {
        object_check(w->buf, key);
    }
    atomic_fetch_add(rc == 0 ? &w->s->hits : &w->s->misses, 1);
}

static void take_lease(struct worker *w, uint64_t key)
{
    struct chm_store_lease lease;
    int32_t rc = run(w, CHM_STORE_LEASE, key, &lease);

    CHECK(rc == 0 || rc == -ENOENT);
    if (rc == 0) {
        uint64_t at = 0;

        for (uint32_t i = 0; i < lease.pieces; at += lease.piece[i++].len) {
            memcpy(w->buf + at, lease.piece[i].data, lease.piece[i].len);
        }
        CHECK_EQ(at, len_of(key));
        object_check(w->buf, key);
        CHECK_IS(chm_store_release(w->s->k.s, &lease.id, 1), 1);
        atomic_fetch_add(&w->s->leases, 1);
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t x = chm_random(&w->random), key = x / 16 % KEYS;

        switch (x % 8) {
        case 0:
            run(w, CHM_STORE_DELETE, key, NULL);
            break;
        case 1:
            take_lease(w, key);
            break;
        case 2:
        case 3:
            get(w, key);
            break;
        case 4:
            kv_has(&w->s->k, key);
            break;
        default:
            put(w, key);
        }
    }
    return NULL;
}

static void check(bool close_clean)
{
    struct shared s = {0};
    struct worker w[THREADS];
    pthread_t thread[THREADS];

    kv_options(&s.k);
    rig_files(&s.k.r, "threads", 1, 10 * MIB);
    s.k.r.opt.dram_bytes = 8 * MIB;
    s.k.r.opt.thread = 1;
    for (uint32_t i = 0; i < s.k.r.files; i++) {
        s.k.r.paths[i] = s.k.r.path[i];
    }
    s.k.r.opt.paths = s.k.r.paths;
    kv_start(&s.k);
    for (uint32_t i = 0; i < THREADS; i++) {
        w[i] = (struct worker){.s = &s, .number = i, .random = i + 1, .buf = rig_alloc(MIB)};
        CHECK_IS(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
    }
    CHECK_IS(chm_store_sync(s.k.s, KV_LONG), 0);
    kv_recount(&s.k);
    CHECK_EQ(s.k.stats.pins, 0);
    CHECK(s.hits > 0 && s.puts > 0 && s.leases > 0 && s.k.stats.evicted > 0);
    if (close_clean) {
        kv_reopen(&s.k);
    } else { /* as after kill: nothing is written any more */
        s.k.s->crashed = true;
        kv_close_store(&s.k);
        kv_open_store(&s.k);
    }
    for (uint64_t key = 0; key < KEYS; key++) {
        struct chm_key name = kv_key(key);
        int32_t status = 1;
        struct chm_part part = {.data = w[0].buf, .len = len_of(key)};
        struct chm_store_job job = {
            .op = CHM_STORE_GET, .n = 1, .keys = &name, .parts = &part, .status = &status};

        kv_run(&s.k, &job);
        CHECK(status == 0 || status == -ENOENT);
        if (status == 0) {
            object_check(w[0].buf, key);
        }
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        munmap(w[i].buf, MIB);
    }
    kv_stop(&s.k);
}

int main(void)
{
    check(true);
    check(false);
    return 0;
}
