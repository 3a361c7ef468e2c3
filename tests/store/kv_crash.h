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

enum {
    CRASH_KEYS = 32,
    CRASH_CHAIN = 8,  /* the first are a chain, and only its end is deleted */
    CRASH_OTHER = 20, /* from here on they are in a namespace with a quota */
};

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
    uint64_t reopened;                              /* opens cut off */
    uint32_t ns[2];
    uint64_t quota, quota_promised; /* set last; none before may be found */
    bool large;                     /* some objects are longer than a chunk */
    bool loose;                     /* a middle of the chain went: it is no prefix any more */
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

/* Helpers work on the namespace that a key lies in. */
static inline void crash_turn_to(struct crash *c, uint64_t number)
{
    c->k.ns = c->ns[number >= CRASH_OTHER];
}

static inline void crash_open(struct crash *c)
{
    kv_open_store(&c->k);
    c->ns[0] = c->k.ns;
    CHECK_IS(chm_store_namespace(c->k.s, "other", 5, CHM_STORE_QUOTA_KEEP, &c->ns[1]), 0);
}

static inline bool crash_has(struct crash *c, uint64_t number)
{
    crash_turn_to(c, number);
    return kv_has(&c->k, number);
}

/* Quotas only grow, so that it can be told which one was found. */
static inline void crash_quota(struct crash *c)
{
    uint32_t ns;

    c->quota += 100 * KIB;
    CHECK_IS(chm_store_namespace(c->k.s, "other", 5, c->quota, &ns), 0);
}

static inline uint64_t crash_quota_found(struct crash *c)
{
    struct chm_store_namespace_info info;

    CHECK_IS(chm_store_namespace_info(c->k.s, c->ns[1], &info), 0);
    return info.quota_bytes == UINT64_MAX ? 0 : info.quota_bytes;
}

/* The chain, as far as it is not there. */
static inline void crash_put_chain(struct crash *c, uint32_t n)
{
    uint64_t len[CRASH_CHAIN], version[CRASH_CHAIN];
    int32_t status[CRASH_CHAIN];
    struct chm_key keys[CRASH_CHAIN];
    struct chm_part parts[CRASH_CHAIN];
    struct chm_store_job job = {.op = CHM_STORE_PUT,
                                .flags = CHM_STORE_WAIT,
                                .n = n,
                                .keys = keys,
                                .parts = parts,
                                .status = status};

    crash_turn_to(c, 0);
    for (uint32_t i = 0; i < n; i++) {
        version[i] = c->key[i].newest + 1;
        len[i] = crash_len(c, i, version[i]);
        keys[i] = kv_key(i);
        parts[i] = (struct chm_part){.data = malloc(len[i]), .len = len[i]};
        kv_fill(parts[i].data, len[i], kv_seed(i, version[i]));
    }
    kv_run(&c->k, &job);
    for (uint32_t i = 0; i < n; i++) {
        if (status[i] == 0) {
            c->key[i].newest = c->key[i].shown = version[i];
            c->key[i].promised = 0;
        }
        free(parts[i].data);
    }
}

static inline void crash_put(struct crash *c, uint64_t number)
{
    struct crash_key *key = &c->key[number];
    uint64_t version = key->newest + 1;
    int rc;

    if (number < CRASH_CHAIN) {
        crash_put_chain(c, (uint32_t)number + 1);
        return;
    }
    crash_turn_to(c, number);
    rc = kv_put(&c->k, number, crash_len(c, number, version), version);

    CHECK(rc == 0 || rc == CHM_STORE_DUPLICATE || rc == -ENOSPC || rc == -EDQUOT || rc == -EIO ||
          rc == -ETIME);
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
    crash_turn_to(c, number);
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
    if (c->k.keep.cut && (status != 0 || version == 0)) {
        /* A drive without power loses what it is told to write. Else nothing is damaged. */
        c->loose = c->loose || number < CRASH_CHAIN;
        return 0;
    }
    CHECK_IS(status, 0); /* the order of writes alone sees to that: no record before its bytes */
    CHECK(version > 0);  /* else: bytes that nobody put there */
    c->found++;
    return version;
}

/* With prefix-tail what is there of the chain is a prefix. */
static inline void crash_check_chain(struct crash *c)
{
    struct chm_key keys[CRASH_CHAIN];
    uint8_t found[CRASH_CHAIN];
    int run, hits = 0;

    if (c->k.o.eviction || c->loose) {
        return;
    }
    for (uint32_t i = 0; i < CRASH_CHAIN; i++) {
        keys[i] = kv_key(i);
    }
    run = chm_store_exists(c->k.s, c->ns[0], keys, CRASH_CHAIN, CHM_STORE_TOUCH, found, NULL);
    for (uint32_t i = 0; i < CRASH_CHAIN; i++) {
        hits += found[i];
    }
    CHECK_EQ(run, hits);
}

/* Everything is as the model allows. From now on what is found is known. */
static inline void crash_check(struct crash *c)
{
    uint64_t quota = crash_quota_found(c);

    if (quota < c->quota_promised || quota > c->quota) {
        fprintf(stderr, "quota %" PRIu64 ", promised %" PRIu64 ", set %" PRIu64 "\n", quota,
                c->quota_promised, c->quota);
        exit(1);
    }
    c->quota = c->quota_promised = quota;
    crash_check_chain(c);
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
    c->quota_promised = c->quota;
    for (uint64_t i = 0; i < CRASH_KEYS; i++) {
        struct crash_key *key = &c->key[i];

        if (crash_has(c, i)) {
            key->floor = key->promised = key->shown;
        } else {
            key->floor = key->newest + 1;
            key->promised = 0;
        }
    }
}

static inline void crash_delete(struct crash *c, uint64_t number)
{
    if (number < CRASH_CHAIN) { /* its end, whichever that is now */
        number = CRASH_CHAIN - 1;
        while (number > 0 && !crash_has(c, number)) {
            number--;
        }
    }
    crash_turn_to(c, number);
    kv_delete(&c->k, number);
    c->key[number].promised = c->key[number].shown = 0;
}

/* What goes is promised no more: crash_before_end looks. */
static inline void crash_evict(struct crash *c, uint64_t number)
{
    CHECK(chm_store_evict(c->k.s, number % 2 ? UINT32_MAX : c->ns[0], 150 * KIB) >= 0);
}

/* One random step. */
static inline void crash_step(struct crash *c)
{
    uint64_t x = chm_random(&c->random), number = x / 16 % CRASH_KEYS;

    switch (x % 16) {
    case 5:
        if (x / 1024 % 2) {
            crash_evict(c, number);
        } else {
            crash_quota(c);
        }
        break;
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
        if (c->key[i].promised && !crash_has(c, i)) {
            c->key[i].promised = 0;
        }
    }
}

static inline void crash_start(struct crash *c)
{
    kv_device(&c->k);
    kv_format(&c->k);
    crash_open(c);
}

/* An opening that is cut off on its way: the next one finds the same. */
static inline void crash_reopen_cut(struct crash *c, uint64_t seed)
{
    struct kv *k = &c->k;

    k->keep.cut_at = 1 + seed % 4;
    k->keep.seed = seed;
    kv_device(k);
    if (chm_store_open(k->r.dev, &k->o, &k->s, &k->err) == 0) {
        (void)chm_store_step(k->s, chm_now(k->r.dev) + MS);
        k->s->crashed = true;
        kv_close_store(k);
    }
    k->keep.cut = true;
    (void)chm_close(k->r.dev, KV_LONG);
    chm_sim_keep_restore(&k->keep);
    c->reopened++;
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
    if (seed % 4 == 0) {
        crash_reopen_cut(c, seed / 4);
    }
    kv_device(k);
    crash_open(c);
    crash_check(c);
}

static inline void crash_end(struct crash *c)
{
    kv_stop(&c->k);
}

#endif
