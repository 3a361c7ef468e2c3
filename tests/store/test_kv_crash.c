/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_crash.c - power cuts: at random writes of random histories, one after the other on the
 * same device, and at every write of one short history. The drive has a volatile cache, of which
 * any page may or may not make it.
 *
 * Chains and single objects, two namespaces of which one has a quota that changes, deletes,
 * evictions under all policies, objects of one chunk and of several, and openings that are cut off
 * too.
 *
 * Field reports: F42 (what was flushed is there after a restart), F43 (whole and right or a miss; a
 * second recovery finds the same), F48 (a put that was cut off leaves nothing behind).
 *
 * CHM_KV_CUTS is how many cuts are made at random (default 400), CHM_KV_SEED the first seed.
 */
#include "store/kv_crash.h"

enum { CUTS = 400, ROUNDS = 12, STEPS = 120 };

struct total {
    uint64_t cuts, clean, checked, found, promised, reopened;
};

static void add(struct total *t, const struct crash *c)
{
    t->cuts += c->cuts;
    t->clean += c->clean;
    t->checked += c->checked;
    t->found += c->found;
    t->promised += c->promised;
    t->reopened += c->reopened;
}

static uint64_t number_of(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 0) : fallback;
}

static void run_seed(uint64_t seed, struct total *t)
{
    static const char *const policies[] = {NULL, NULL, "lru", "fifo"};
    struct crash c = {.random = seed};

    crash_options(&c);
    c.random = seed;
    c.large = seed % 2;
    c.k.o.eviction = policies[seed / 2 % CHM_COUNT(policies)];
    crash_start(&c);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t at = 1 + chm_random(&c.random) % (i % 3 == 0 ? 12 : 90);

        crash_round(&c, at, chm_random(&c.random), STEPS);
    }
    add(t, &c);
    crash_end(&c);
}

static void check_random(void)
{
    uint64_t cuts = number_of("CHM_KV_CUTS", CUTS), seed = number_of("CHM_KV_SEED", 1);
    struct total t = {0};

    for (; t.cuts < cuts; seed++) {
        if (getenv("CHM_KV_SEED")) {
            fprintf(stderr, "seed %" PRIu64 "\n", seed);
        }
        run_seed(seed, &t);
    }
    printf("%" PRIu64 " power cuts and %" PRIu64 " clean closes at random; %" PRIu64
           " keys looked at, %" PRIu64 " found whole, %" PRIu64 " of them promised; %" PRIu64
           " openings cut off\n",
           t.cuts, t.clean, t.checked, t.found, t.promised, t.reopened);
    CHECK(t.promised > t.cuts); /* the promises are not empty */
}

/* The same short history, cut at write n. False: it ended before. */
static bool run_short(uint64_t n, uint64_t seed, struct total *t)
{
    struct crash c = {0};
    bool cut;

    crash_options(&c);
    c.random = 77;
    crash_start(&c);
    for (uint64_t i = 0; i < 4; i++) {
        crash_put(&c, i);
    }
    crash_sync(&c);
    chm_sim_keep_restore(&c.k.keep);
    crash_round(&c, n, seed, 24);
    cut = c.cuts > 0;
    add(t, &c);
    kv_crash(&c.k); /* recovery itself is cut off: the next one finds the same */
    kv_device(&c.k);
    crash_open(&c);
    for (uint64_t i = 0; i < CRASH_KEYS; i++) {
        CHECK_EQ(crash_look(&c, i), c.key[i].shown);
    }
    crash_end(&c);
    return cut;
}

static void check_every_write(void)
{
    struct total t = {0};
    uint64_t n = 1;

    while (run_short(n, 1, &t) && run_short(n, 2, &t) && run_short(n, 3, &t)) {
        n++;
    }
    printf("%" PRIu64 " writes of a short history, each cut three ways: %" PRIu64
           " keys looked at, %" PRIu64 " found whole, %" PRIu64 " of them promised\n",
           n - 1, t.checked, t.found, t.promised);
    CHECK(n > 20);
}

int main(void)
{
    check_every_write();
    check_random();
    return 0;
}
