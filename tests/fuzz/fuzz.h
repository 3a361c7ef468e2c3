/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - a damaged store is opened, looked at, read, written to and closed.
 *
 * What has to hold: no crash, no hang, counters that close, and bytes that are right whenever a get
 * says so. Objects put after opening are there, whole, after a clean close. Everything runs on the
 * simulated medium in virtual time, so an input does the same each time.
 *
 * The images are made once: a store closed clean, one that crashed with records in its journal,
 * and one with a split object and free space in pieces.
 */
#ifndef CHM_TESTS_FUZZ_H
#define CHM_TESTS_FUZZ_H

#include "fuzz/fuzz_edit.h"

enum {
    FUZZ_IMAGES = 3,
    FUZZ_BYTES = 6 * MIB,
    FUZZ_KEYS = 40,  /* in the image */
    FUZZ_NEW = 12,   /* put later */
    FUZZ_SPLIT = 90, /* key of the split object */
    FUZZ_LEN_MAX = 2 * MIB,
};

struct fuzz {
    struct fuzz_image image[FUZZ_IMAGES];
    uint8_t *saved[FUZZ_IMAGES];
    bool used[FUZZ_IMAGES][FUZZ_BYTES / PAGE]; /* pages that are not zero */
    uint8_t *buf;                              /* what is read */
    struct kv k;
    uint64_t runs, opened, found;
};

static inline uint64_t fuzz_len(uint64_t number)
{
    return number == FUZZ_SPLIT || number % 16 == 7 ? MIB + number * 100 : 300 + number * 311;
}

static inline void fuzz_options(struct kv *k)
{
    kv_options(k);
    k->r.opt.sim.capacity_bytes = FUZZ_BYTES;
    k->r.opt.sim.volatile_cache = 0;
    k->r.opt.dram_bytes = 2 * MIB;
    k->r.opt.write_buffer_bytes = MIB;
    k->r.opt.poison = 0;
    k->f.max_objects = 100;
    k->f.max_namespaces = 20;
    k->f.journal_bytes = 16 * PAGE;
    k->o.jobs_max = 8;
    k->o.keys_max = 64;
    k->o.reads_max = 64;
    k->o.leases_max = 8;
    k->o.sync_interval_ns = 5 * MS;
}

/* ---- images */

static inline void fuzz_put_chain(struct kv *k, uint64_t first, uint32_t n)
{
    uint64_t lens[KV_N_MAX];
    int32_t status[KV_N_MAX];

    for (uint32_t i = 0; i < n; i++) {
        lens[i] = fuzz_len(first + i);
    }
    CHECK_EQ(kv_put_many(k, first, n, lens, 1, CHM_STORE_WAIT, status), n);
}

static inline void fuzz_make(struct kv *k, uint32_t which)
{
    uint32_t other;

    for (uint64_t i = 0; i < 20; i += 5) {
        fuzz_put_chain(k, i, 5);
    }
    CHECK_IS(chm_store_namespace(k->s, "other", 5, 3 * MIB, &other), 0);
    kv_sync(k);
    CHECK_IS(kv_delete(k, 1), 0);
    CHECK_IS(kv_delete(k, 12), 0);
    kv_sync(k);
    kv_reopen(k);
    fuzz_put_chain(k, 24, 6);
    kv_sync(k);
    fuzz_put_chain(k, 32, 6);
    CHECK_IS(kv_delete(k, 25), 0);
    kv_sync(k);
    if (which == 2) {
        /* Fill up with small ones, let every second go: what is long then goes in pieces. */
        uint64_t n = 0;

        while (n < 30 && kv_put(k, 200 + n, 60 * KIB, 1) == 0) {
            n++;
        }
        for (uint64_t i = 0; i < n; i += 2) {
            (void)kv_delete(k, 200 + i);
        }
        kv_sync(k);
        (void)kv_put(k, FUZZ_SPLIT, fuzz_len(FUZZ_SPLIT), 1);
        kv_sync(k);
    }
}

static inline void fuzz_build(struct fuzz *f, uint32_t which, uint32_t targets)
{
    struct fuzz_image *m = &f->image[which];
    struct kv k;

    fuzz_options(&k);
    kv_start(&k);
    fuzz_make(&k, which);
    if (which == 0) {
        kv_close_store(&k);
        kv_close_device(&k);
    } else {
        kv_crash(&k);
    }
    f->saved[which] = malloc(FUZZ_BYTES);
    CHECK(f->saved[which]);
    memcpy(f->saved[which], k.keep.image.live, FUZZ_BYTES);
    chm_sim_keep_free(&k.keep);
    for (uint64_t at = 0; at < FUZZ_BYTES; at += PAGE) {
        f->used[which][at / PAGE] = !is_byte(f->saved[which] + at, PAGE, 0);
    }
    m->bytes = f->saved[which] + MIB;
    memcpy(&m->s.super, m->bytes, sizeof(m->s.super));
    if (m->s.super.generation % 2 == 0) { /* the newer of the two */
        struct chm_kv_super other;

        memcpy(&other, m->bytes + CHM_KV_SUPER_STEP, sizeof(other));
        m->s.super = other.generation > m->s.super.generation ? other : m->s.super;
    }
    fuzz_areas(m, targets, 256);
}

static inline void fuzz_begin(struct fuzz *f, uint32_t targets)
{
    *f = (struct fuzz){0};
    for (uint32_t i = 0; i < FUZZ_IMAGES; i++) {
        fuzz_build(f, i, targets);
    }
    f->buf = rig_alloc(FUZZ_LEN_MAX);
    fuzz_options(&f->k);
    kv_device(&f->k); /* makes the bytes that every run uses */
    kv_close_device(&f->k);
}

static inline void fuzz_end(struct fuzz *f)
{
    for (uint32_t i = 0; i < FUZZ_IMAGES; i++) {
        free(f->saved[i]);
    }
    munmap(f->buf, FUZZ_LEN_MAX);
    chm_sim_keep_free(&f->k.keep);
}

/* ---- one run */

/* Whatever is told to be there has the bytes that were put under that key. */
static inline bool fuzz_look(struct fuzz *f, uint64_t number)
{
    struct kv *k = &f->k;
    struct chm_key key = kv_key(number);
    uint64_t len = 0;
    struct chm_part part = {.data = f->buf};
    int32_t status = 1;
    struct chm_store_job job = {
        .op = CHM_STORE_GET, .n = 1, .keys = &key, .parts = &part, .status = &status};

    if (chm_store_exists(k->s, k->ns, &key, 1, CHM_STORE_TOUCH, NULL, &len) == 0) {
        return false;
    }
    if (len > FUZZ_LEN_MAX) {
        return false; /* its length was damaged, and this is no place to read it to */
    }
    part.len = len;
    kv_run(k, &job);
    if (status != 0) {
        CHECK(!kv_has(k, number)); /* found out late; gone from now on */
        return false;
    }
    CHECK_EQ(len, number < 200 ? fuzz_len(number) : 60 * KIB);
    CHECK(kv_holds(f->buf, len, kv_seed(number, 1)));
    f->found++;
    return true;
}

static inline void fuzz_look_all(struct fuzz *f)
{
    for (uint64_t i = 0; i < FUZZ_KEYS; i++) {
        fuzz_look(f, i);
    }
    fuzz_look(f, FUZZ_SPLIT);
    for (uint64_t i = 200; i < 208; i++) {
        fuzz_look(f, i);
    }
}

/* False: refused, in words. */
static inline bool fuzz_open(struct fuzz *f)
{
    struct kv *k = &f->k;
    int rc;

    kv_device(k);
    k->err = (struct chm_error){0};
    rc = chm_store_open(k->r.dev, &k->o, &k->s, &k->err);
    if (rc < 0) {
        CHECK(k->err.text[0] && k->err.code == rc);
    } else {
        rc = chm_store_namespace(k->s, "model", 5, CHM_STORE_QUOTA_KEEP, &k->ns);
        CHECK(rc == 0 || rc == -ENOSPC);
        if (rc < 0) {
            kv_close_store(k);
        }
    }
    if (rc < 0) {
        kv_close_device(k);
    }
    return rc == 0;
}

/* Put, delete, evict; returns which of the new ones are there, as bits. */
static inline uint32_t fuzz_write(struct fuzz *f)
{
    struct kv *k = &f->k;
    struct chm_key keys[FUZZ_KEYS];
    uint32_t there = 0;

    for (uint64_t i = 0; i < FUZZ_KEYS; i++) {
        keys[i] = kv_key(i);
    }
    CHECK(chm_store_exists(k->s, k->ns, keys, FUZZ_KEYS, CHM_STORE_TOUCH, NULL, NULL) >= 0);
    CHECK(chm_store_evict(k->s, k->ns, MIB) >= 0);
    for (uint64_t i = 0; i < FUZZ_NEW; i++) {
        int rc = kv_put(k, 100 + i, fuzz_len(100 + i), 1);

        CHECK(rc == 0 || rc == -ENOSPC || rc == -EDQUOT || rc == -EMFILE || rc == -ETIME);
        there |= (uint32_t)(rc == 0) << i;
    }
    (void)kv_delete(k, 100);
    kv_sync(k);
    for (uint64_t i = 0; i < FUZZ_NEW; i++) {
        bool now = fuzz_look(f, 100 + i);

        CHECK(!now || there >> i & 1); /* it may have been evicted since */
        there = (there & ~(1u << i)) | (uint32_t)now << i;
    }
    return there;
}

/* Only what is not zero, which is little. */
static inline void fuzz_restore(struct fuzz *f, uint32_t which)
{
    uint8_t *live = f->k.keep.image.live;

    CHECK_IS(madvise(live, FUZZ_BYTES, MADV_DONTNEED), 0);
    for (uint64_t at = 0; at < FUZZ_BYTES; at += PAGE) {
        if (f->used[which][at / PAGE]) {
            memcpy(live + at, f->saved[which] + at, PAGE);
        }
    }
}

static inline void fuzz_run(struct fuzz *f, uint32_t targets, const uint8_t *data, size_t size)
{
    struct kv *k = &f->k;
    uint32_t which = size > 1 ? data[1] % FUZZ_IMAGES : 0, there;
    struct fuzz_image m = f->image[which];

    /* A superblock, page or entry that says, under a right sum, that it is of another round than it
     * is: what is written later may lose against it. Bytes are right all the same. */
    bool lies = (targets & (FUZZ_SUPER | FUZZ_INDEX | FUZZ_NAMES)) && size > 0 && data[0] % 2 == 1;

    f->runs++;
    fuzz_restore(f, which);
    m.bytes = k->keep.image.live + MIB;
    fuzz_damage(&m, targets, data, size);
    if (!fuzz_open(f)) {
        return;
    }
    f->opened++;
    kv_recount(k);
    fuzz_look_all(f);
    there = fuzz_write(f);
    kv_recount(k);
    kv_close_store(k);
    kv_close_device(k);
    CHECK(fuzz_open(f));
    for (uint64_t i = 0; i < FUZZ_NEW; i++) {
        bool now = fuzz_look(f, 100 + i);

        CHECK(lies || now == (there >> i & 1));
    }
    fuzz_look_all(f);
    kv_recount(k);
    kv_close_store(k);
    kv_close_device(k);
}

#endif
