/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_rounds.c - how often the store flushes the device: two times for a round of durability,
 * once for the space of many objects, and not at all for nothing.
 */
#include "store/kv_rig.h"

static uint64_t syncs(struct kv *k)
{
    return kv_stats(k)->syncs;
}

static void pass(struct kv *k, uint64_t ns)
{
    uint64_t until = chm_now(k->r.dev) + ns;

    while (chm_now(k->r.dev) < until) {
        CHECK(chm_store_step(k->s, until) >= 0);
    }
}

/* Puts that do not pause do not make one flush follow the other. */
static void test_steady_puts(void)
{
    struct kv k;
    uint64_t begin, rounds;

    kv_options(&k);
    k.o.sync_interval_ns = 50 * MS;
    kv_start(&k);
    begin = chm_now(k.r.dev);
    for (uint32_t i = 0; i < 400; i++) {
        CHECK_IS(kv_put(&k, i, PAGE, 1), 0);
        pass(&k, MS / 2);
    }
    rounds = (chm_now(k.r.dev) - begin) / (50 * MS);
    CHECK(rounds >= 4);
    CHECK(syncs(&k) >= 2 * (rounds - 1));
    CHECK(syncs(&k) <= 2 * (rounds + 1));
    pass(&k, 60 * MS); /* the last one is durable an interval later, with two flushes of 1 ms */
    CHECK_EQ(kv_stats(&k)->not_durable, 0);
    kv_stop(&k);
}

/* The interval begins with the first object that waits, however long nothing was done before. */
static void test_after_a_rest(void)
{
    struct kv k;
    uint64_t before;

    kv_options(&k);
    k.o.sync_interval_ns = 50 * MS;
    kv_start(&k);
    CHECK_IS(kv_put(&k, 1, PAGE, 1), 0);
    kv_sync(&k);
    before = syncs(&k);
    pass(&k, 500 * MS);
    CHECK_EQ(syncs(&k), before);
    CHECK_IS(kv_put(&k, 2, PAGE, 1), 0);
    pass(&k, 40 * MS);
    CHECK_EQ(syncs(&k), before);
    pass(&k, 20 * MS);
    CHECK_EQ(syncs(&k), before + 2);
    CHECK_EQ(kv_stats(&k)->not_durable, 0);
    kv_stop(&k);
}

/* In a full store one flush gives back the space of several objects. */
static void test_full_store(void)
{
    enum { OBJECTS = 512 };
    struct kv k;

    kv_options(&k);
    kv_start(&k);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        CHECK_IS(kv_put(&k, i, 256 * KIB, 1), 0);
    }
    CHECK(kv_stats(&k)->evicted > OBJECTS / 2);
    CHECK(k.stats.syncs * 5 <= k.stats.evicted * 2);
    kv_stop(&k);
}

int main(void)
{
    test_steady_puts();
    test_after_a_rest();
    test_full_store();
    return 0;
}
