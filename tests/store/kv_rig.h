/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_rig.h - what the tests of the key-value store share: a store on a small simulated device whose
 * bytes outlive it, objects whose bytes say which key and which version they are of, and calls that
 * run one job and check that it is told once.
 */
#ifndef CHM_TESTS_STORE_KV_RIG_H
#define CHM_TESTS_STORE_KV_RIG_H

#include "device/rig.h"
#include "media/sim_image.h"
#include "store/kv.h"

enum { KV_N_MAX = 64 /* keys of one job of the helpers */ };

static const uint64_t KV_LONG = 60ull * CHM_SECOND;

struct kv {
    struct rig r;
    struct chm_sim_keep keep;
    struct chm_store_format_options f;
    struct chm_store_options o;
    struct chm_error err;
    chm_store *s;
    uint32_t ns;
    uint64_t jobs; /* submitted by helpers: cookies */
    struct chm_store_stats stats;
};

/* ------------------------------------------------------------------ bytes and keys */

static inline struct chm_key kv_key(uint64_t number)
{
    struct chm_key key;
    uint64_t a = word_at(number * 8, UINT64_C(0x6B65)), b = number;

    memcpy(key.bytes, &a, 8);
    memcpy(key.bytes + 8, &b, 8);
    return key;
}

static inline uint64_t kv_number(const struct chm_key *key)
{
    uint64_t b;

    memcpy(&b, key->bytes + 8, 8);
    return b;
}

/* Seed of the bytes of a version (from 1) of a key. */
static inline uint64_t kv_seed(uint64_t number, uint64_t version)
{
    return (number + 1) * UINT64_C(0x10001) + version;
}

static inline void kv_fill(uint8_t *p, uint64_t len, uint64_t seed)
{
    fill(p, 0, len & ~UINT64_C(7), seed);
    for (uint64_t i = len & ~UINT64_C(7); i < len; i++) {
        p[i] = byte_at(i, seed);
    }
}

static inline bool kv_holds(const uint8_t *p, uint64_t len, uint64_t seed)
{
    return holds(p, 0, len, seed);
}

/* ------------------------------------------------------------------ device and store */

static inline void kv_options(struct kv *k)
{
    *k = (struct kv){0};
    rig_sim(&k->r);
    k->r.opt.sim.volatile_cache = 1;
    k->r.opt.sim.keep = &k->keep;
    chm_store_format_options_init(&k->f);
    k->f.max_objects = 1024;
    chm_store_options_init(&k->o);
    k->o.jobs_max = 16; /* small, so that opening it many times is quick */
    k->o.keys_max = 512;
    k->o.leases_max = 64;
}

static inline void kv_device(struct kv *k)
{
    k->r.opt.sim.keep = k->r.files ? NULL : &k->keep;
    rig_open(&k->r);
}

static inline void kv_format(struct kv *k)
{
    int rc = chm_store_format(k->r.dev, &k->f, &k->err);

    if (rc != 0) {
        fprintf(stderr, "format: %d, %s\n", rc, k->err.text);
        exit(1);
    }
}

static inline void kv_open_store(struct kv *k)
{
    int rc = chm_store_open(k->r.dev, &k->o, &k->s, &k->err);

    if (rc != 0) {
        fprintf(stderr, "store open: %d, %s\n", rc, k->err.text);
        exit(1);
    }
    CHECK_IS(chm_store_namespace(k->s, "model", 5, CHM_STORE_QUOTA_KEEP, &k->ns), 0);
}

/* A device, a store, both open. */
static inline void kv_start(struct kv *k)
{
    kv_device(k);
    kv_format(k);
    kv_open_store(k);
}

/* The counters close, and add up to what is there. */
static inline const struct chm_store_stats *kv_stats(struct kv *k)
{
    struct chm_store_stats *t = &k->stats;
    struct chm_store_info info;

    CHECK_IS(chm_store_stats(k->s, t), 0);
    CHECK_IS(chm_store_info(k->s, &info), 0);
    CHECK_EQ(t->put_keys, t->admitted + t->skipped + t->duplicate + t->put_failed + t->put_open);
    CHECK_EQ(t->skipped, t->skipped_buffer + t->skipped_space + t->skipped_quota +
                             t->skipped_objects + t->skipped_chain);
    CHECK_EQ(t->lookups, t->lookup_hits + t->lookup_misses);
    CHECK_EQ(t->gets, t->hits + t->misses + t->get_errors + t->get_open);
    CHECK_EQ(t->get_errors, t->errors_io + t->errors_checksum + t->errors_late + t->errors_size +
                                t->errors_cancelled + t->errors_room);
    CHECK_EQ(t->used_bytes + t->free_bytes + t->limbo_bytes, info.data_bytes);
    return t;
}

/* Counters against a recount of the entries. Only when nothing runs. */
static inline void kv_recount(struct kv *k)
{
    static struct chm_store_object o[256];
    const struct chm_store_stats *t = kv_stats(k);
    uint64_t cursor = 0, objects = 0, payload = 0, used = 0;
    int n;

    while ((n = chm_store_list(k->s, &cursor, o, CHM_COUNT(o))) > 0) {
        for (int i = 0; i < n; i++) {
            objects++;
            payload += o[i].len;
            used += o[i].used_bytes;
        }
    }
    CHECK_EQ(t->objects, objects);
    CHECK_EQ(t->payload_bytes, payload);
    CHECK_EQ(t->used_bytes, used);
}

static inline void kv_close_store(struct kv *k)
{
    CHECK_IS(chm_store_close(k->s, KV_LONG), 0);
    k->s = NULL;
}

static inline void kv_close_device(struct kv *k)
{
    CHECK_IS(chm_close(k->r.dev, KV_LONG), 0);
    k->r.dev = NULL;
}

/* The process dies: nothing more is written by the store. */
static inline void kv_crash(struct kv *k)
{
    k->s->crashed = true;
    kv_close_store(k);
    k->keep.cut = true;
    (void)chm_close(k->r.dev, KV_LONG);
    k->r.dev = NULL;
    chm_sim_keep_restore(&k->keep);
}

static inline void kv_reopen(struct kv *k)
{
    kv_close_store(k);
    kv_close_device(k);
    kv_device(k);
    kv_open_store(k);
}

static inline void kv_stop(struct kv *k)
{
    kv_close_store(k);
    kv_close_device(k);
    chm_sim_keep_free(&k->keep);
    rig_unlink(&k->r);
}

/* ------------------------------------------------------------------ jobs */

static inline uint64_t kv_submit(struct kv *k, struct chm_store_job *job)
{
    uint64_t id = 0;

    job->ns = k->ns;
    job->cookie = ++k->jobs;
    CHECK_IS(chm_store_submit(k->s, job, &id), 0);
    CHECK(id != 0);
    return id;
}

/* Run a job to its end, the only one. Its number of good keys. */
static inline struct chm_store_done kv_run(struct kv *k, struct chm_store_job *job)
{
    struct chm_store_done done[2];
    uint64_t id = kv_submit(k, job);
    int n;

    do {
        n = chm_store_drain(k->s, done, 2, KV_LONG);
    } while (n == -EINTR);
    CHECK_IS(n, 1);
    CHECK_EQ(done[0].id, id);
    CHECK_EQ(done[0].cookie, job->cookie);
    CHECK_EQ(done[0].n, job->n);
    return done[0];
}

/* Put n objects, key first + i with len[i] bytes of a version; a chain unless flags say so. */
static inline uint32_t kv_put_many(struct kv *k, uint64_t first, uint32_t n, const uint64_t *lens,
                                   uint64_t version, uint32_t flags, int32_t *status)
{
    struct chm_key keys[KV_N_MAX];
    struct chm_part parts[KV_N_MAX];
    struct chm_store_job job = {.op = CHM_STORE_PUT,
                                .flags = flags,
                                .n = n,
                                .keys = keys,
                                .parts = parts,
                                .status = status};
    uint32_t ok;

    CHECK(n <= KV_N_MAX);
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = kv_key(first + i);
        parts[i] = (struct chm_part){.data = malloc(lens[i] + 1), .len = lens[i]};
        kv_fill(parts[i].data, lens[i], kv_seed(first + i, version));
        status[i] = 12345;
    }
    ok = kv_run(k, &job).ok;
    for (uint32_t i = 0; i < n; i++) {
        free(parts[i].data);
    }
    return ok;
}

/* One object, waiting for room. Its status. */
static inline int kv_put(struct kv *k, uint64_t number, uint64_t len, uint64_t version)
{
    int32_t status;

    kv_put_many(k, number, 1, &len, version, CHM_STORE_WAIT, &status);
    return status;
}

/* Get an object into page-aligned memory, or, with an odd skew, into memory that has to be copied
 * to. What lies behind it is untouched. */
static inline int kv_get_at(struct kv *k, uint64_t number, uint64_t len, uint64_t version,
                            uint64_t skew, uint32_t flags)
{
    uint64_t room = chm_round_up(len + skew + PAGE, PAGE);
    uint8_t *buf = rig_alloc(room);
    struct chm_key key = kv_key(number);
    struct chm_part part = {.data = buf + skew, .len = len};
    int32_t status = 12345;
    struct chm_store_job job = {.op = CHM_STORE_GET,
                                .flags = flags,
                                .n = 1,
                                .keys = &key,
                                .parts = &part,
                                .status = &status};

    memset(buf, 0x5A, room);
    kv_run(k, &job);
    CHECK(is_byte(buf, skew, 0x5A));
    CHECK(is_byte(buf + skew + len, room - skew - len, 0x5A));
    if (status == 0 && !kv_holds(part.data, len, kv_seed(number, version))) {
        fprintf(stderr, "key %" PRIu64 ": got other bytes than version %" PRIu64 "\n", number,
                version);
        exit(1);
    }
    munmap(buf, room);
    return status;
}

static inline int kv_get(struct kv *k, uint64_t number, uint64_t len, uint64_t version)
{
    return kv_get_at(k, number, len, version, 0, 0);
}

static inline int kv_delete(struct kv *k, uint64_t number)
{
    struct chm_key key = kv_key(number);
    int32_t status = 12345;
    struct chm_store_job job = {.op = CHM_STORE_DELETE, .n = 1, .keys = &key, .status = &status};

    kv_run(k, &job);
    return status;
}

static inline bool kv_has(struct kv *k, uint64_t number)
{
    struct chm_key key = kv_key(number);
    uint8_t found = 2;
    int run = chm_store_exists(k->s, k->ns, &key, 1, 0, &found, NULL);

    CHECK_IS(run, found);
    return found;
}

static inline void kv_sync(struct kv *k)
{
    CHECK_IS(chm_store_sync(k->s, KV_LONG), 0);
}

#endif
