/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_crash.h - what a store may show after power cuts: a model of every key, and the check of it.
 *
 * Each put of a key has the next version, from which its length and its bytes follow. A sync that
 * ended before the cut promises: what was there then, and is there still when the power fails, is
 * there after recovery; what was gone then stays gone. Whatever else is found has to be some whole
 * version that was put since.
 */
#ifndef CHM_TESTS_STORE_KV_CRASH_H
#define CHM_TESTS_STORE_KV_CRASH_H

#include "store/kv_rig.h"

enum { CRASH_KEYS = 24 };

struct crash_key {
    uint64_t newest;   /* version put last */
    uint64_t floor;    /* no version before this may be found */
    uint64_t promised; /* this one has to be found unless it went before the cut; 0: none */
    uint64_t shown;    /* version that is visible now, 0: none that is known of */
};

struct crash {
    struct kv k;
    struct crash_key key[CRASH_KEYS];
    uint64_t random;
    uint64_t cuts, clean, checked, found, promised; /* counted over all rounds */
    bool large;                                     /* some objects are longer than a chunk */
};

static inline uint64_t crash_len(const struct crash *c, uint64_t number, uint64_t version)
{
    uint64_t x = number * UINT64_C(1000003) + version * UINT64_C(7919);

    x = chm_random(&x);
    if (c->large && x % 8 == 0) {
        return MIB + x / 8 % (MIB / 2);
    }
    return 1 + x / 8 % (x % 3 == 0 ? 200 * KIB : 20 * KIB);
}

static inline void crash_options(struct crash *c)
{
    kv_options(&c->k);
    c->k.r.opt.sim.capacity_bytes = 8 * MIB;
    c->k.r.opt.dram_bytes = 2 * MIB;
    c->k.r.opt.write_buffer_bytes = MIB;
    c->k.r.opt.poison = 0;
    c->k.f.max_objects = 256;
    c->k.f.max_namespaces = 4;
    c->k.f.journal_bytes = 16 * PAGE;
    c->k.o.sync_interval_ns = 5 * MS;
}

static inline void crash_put(struct crash *c, uint64_t number)
{
    struct crash_key *key = &c->key[number];
    uint64_t version = key->newest + 1;
    int rc = kv_put(&c->k, number, crash_len(c, number, version), version);

    CHECK(rc == 0 || rc == CHM_STORE_DUPLICATE || rc == -ENOSPC || rc == -EIO || rc == -ETIME);
    if (rc == 0) {
        key->newest = key->shown = version;
        key->promised = 0; /* the one before had gone */
    }
}

/* Which version is it? 0: a miss. Anything else fails. */
static inline uint64_t crash_look(struct crash *c, uint64_t number)
{
    const struct crash_key *key = &c->key[number];
    struct chm_key name = kv_key(number);
    uint64_t len = 0, version;
    uint8_t *buf;
    int32_t status = 1;
    struct chm_part part;
    struct chm_store_job job = {
        .op = CHM_STORE_GET, .n = 1, .keys = &name, .parts = &part, .status = &status};

    c->checked++;
    if (chm_store_exists(c->k.s, c->k.ns, &name, 1, 0, NULL, &len) == 0) {
        return 0;
    }
    buf = rig_alloc(chm_round_up(len, PAGE));
    part = (struct chm_part){.data = buf, .len = len};
    kv_run(&c->k, &job);
    for (version = key->newest; status == 0 && version > 0; version--) {
        if (crash_len(c, number, version) == len && kv_holds(buf, len, kv_seed(number, version))) {
            break;
        }
    }
    munmap(buf, chm_round_up(len, PAGE));
    if (c->k.keep.cut) {
        return 0; /* the power failed meanwhile: what the device reads is no longer what it wrote */
    }
    CHECK_IS(status, 0); /* the order of writes alone sees to that: no record before its bytes */
    CHECK(version > 0);  /* else: bytes that nobody put there */
    c->found++;
    return version;
}

/* Everything is as the model allows. From now on what is found is known. */
static inline void crash_check(struct crash *c)
{
    for (uint64_t i = 0; i < CRASH_KEYS; i++) {
        struct crash_key *key = &c->key[i];
        uint64_t version = crash_look(c, i);

        if (version > 0 && version < key->floor) {
            fprintf(stderr,
                    "key %" PRIu64 ": version %" PRIu64 " came back, %" PRIu64 " was promised\n", i,
                    version, key->floor);
            exit(1);
        }
        if (key->promised && version < key->promised) {
            fprintf(stderr,
                    "key %" PRIu64 ": version %" PRIu64 " was promised, %" PRIu64 " is there\n", i,
                    key->promised, version);
            exit(1);
        }
        c->promised += key->promised != 0;
        key->shown = version;
        key->promised = 0;
    }
    kv_recount(&c->k);
}

static inline void crash_sync(struct crash *c)
{
    int rc = chm_store_sync(c->k.s, KV_LONG);

    CHECK_IS(rc, 0);
    if (c->k.keep.cut) {
        return;
    }
    for (uint64_t i = 0; i < CRASH_KEYS; i++) {
        struct crash_key *key = &c->key[i];

        if (kv_has(&c->k, i)) {
            key->floor = key->promised = key->shown;
        } else {
            key->floor = key->newest + 1;
            key->promised = 0;
        }
    }
}

static inline void crash_delete(struct crash *c, uint64_t number)
{
    kv_delete(&c->k, number);
    c->key[number].promised = c->key[number].shown = 0;
}

/* One random step. */
static inline void crash_step(struct crash *c)
{
    uint64_t x = chm_random(&c->random), number = x / 16 % CRASH_KEYS;

    switch (x % 16) {
    case 0:
    case 1:
        crash_delete(c, number);
        break;
    case 2:
        crash_sync(c);
        break;
    case 3:
        chm_store_step(c->k.s, chm_now(c->k.r.dev) + 10 * MS);
        break;
    case 4:
        crash_look(c, number);
        break;
    default:
        crash_put(c, number);
    }
}

/* What was promised and has gone since (evicted, dropped) is promised no more. */
static inline void crash_before_end(struct crash *c)
{
    for (uint64_t i = 0; i < CRASH_KEYS; i++) {
        if (c->key[i].promised && !kv_has(&c->k, i)) {
            c->key[i].promised = 0;
        }
    }
}

static inline void crash_start(struct crash *c)
{
    kv_device(&c->k);
    kv_format(&c->k);
    kv_open_store(&c->k);
}

/* Steps until the power fails at write `cut_at` from now, or `steps` are done and it is closed
 * clean; then reopen and check. */
static inline void crash_round(struct crash *c, uint64_t cut_at, uint64_t seed, uint32_t steps)
{
    struct kv *k = &c->k;
    bool cut;

    chm_sim_keep_restore(&k->keep);
    k->keep.cut_at = cut_at;
    k->keep.seed = seed;
    for (uint32_t i = 0; i < steps && !k->keep.cut; i++) {
        crash_step(c);
    }
    crash_before_end(c);
    if (!k->keep.cut) {
        kv_close_store(k); /* it may be cut in here too */
    } else {
        k->s->crashed = true;
        kv_close_store(k);
    }
    cut = k->keep.cut;
    (void)chm_close(k->r.dev, KV_LONG);
    k->r.dev = NULL;
    c->cuts += cut;
    c->clean += !cut;
    chm_sim_keep_restore(&k->keep);
    kv_device(k);
    kv_open_store(k);
    crash_check(c);
}

static inline void crash_end(struct crash *c)
{
    kv_stop(&c->k);
}

#endif
