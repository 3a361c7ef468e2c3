/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_names.c - namespaces and their quotas on the device: durable when a sync says so, and
 * both slots of their page hold the same, also if a quota changes between the writing of the two.
 * What just fits a quota is taken.
 */
#include "store/kv_rig.h"

static void options(struct kv *k)
{
    kv_options(k);
    k->r.opt.sim.capacity_bytes = 8 * MIB;
    k->r.opt.poison = 0;
    k->f.max_objects = 100;
    k->o.sync_interval_ns = 5 * MS;
}

static void set_quota(struct kv *k, uint64_t quota)
{
    uint32_t ns;

    CHECK_IS(chm_store_namespace(k->s, "model", 5, quota, &ns), 0);
    CHECK_EQ(ns, k->ns);
}

static uint64_t quota_of(struct kv *k)
{
    struct chm_store_namespace_info info;

    CHECK_IS(chm_store_namespace_info(k->s, k->ns, &info), 0);
    return info.quota_bytes;
}

/* Nothing but a quota has changed, and its record is written, but not durable, when sync is called.
 * Without a sync it becomes durable too, after the interval. */
static void check_sync(bool sync)
{
    struct kv k;

    options(&k);
    kv_start(&k);
    kv_sync(&k);
    set_quota(&k, 3 * MIB);
    CHECK(chm_store_step(k.s, chm_now(k.r.dev) + 6 * MS) >= 0);
    if (sync) {
        kv_sync(&k);
    } else {
        CHECK(chm_store_step(k.s, chm_now(k.r.dev) + 20 * MS) >= 0);
        CHECK(chm_store_step(k.s, chm_now(k.r.dev) + 20 * MS) >= 0);
    }
    CHECK_EQ(k.s->journal.durable, k.s->journal.next - 1);
    kv_crash(&k);
    kv_device(&k);
    kv_open_store(&k);
    CHECK_EQ(quota_of(&k), 3 * MIB);
    kv_stop(&k);
}

/* On until the namespace page is written once and not yet durable. */
static void begin_checkpoint(struct kv *k)
{
    k->s->check.wanted = true;
    while (k->s->check.state != KV_CHECK_FLUSH) {
        (void)chm_kv_pump(k->s);
    }
}

static void check_slots(void)
{
    struct kv k;
    struct chm_kv_page page[2];
    uint64_t off;

    options(&k);
    kv_start(&k);
    set_quota(&k, 2 * MIB);
    kv_sync(&k);
    begin_checkpoint(&k);
    set_quota(&k, 3 * MIB);
    off = k.s->super.names_off;
    kv_sync(&k);
    while (k.s->check.state != KV_CHECK_IDLE) {
        CHECK(chm_store_step(k.s, chm_now(k.r.dev) + MS) >= 0);
    }
    CHECK_IS(chm_flush(k.r.dev, KV_LONG), 0);
    for (uint64_t i = 0; i < 2; i++) {
        struct chm_read item = {.addr = off + i * PAGE, .len = PAGE, .buf = &page[i]};

        CHECK_IS(chm_read(k.r.dev, &item, 1, KV_LONG), 1);
        CHECK_EQ(page[i].name[k.ns].quota_bytes, 3 * MIB);
    }
    CHECK_EQ(page[0].head.round, page[1].head.round);
    kv_stop(&k);
}

static int put_now(struct kv *k, uint64_t number, uint64_t len)
{
    int32_t status;

    kv_put_many(k, number, 1, &len, 1, 0, &status);
    return status;
}

static uint64_t used_of(struct kv *k)
{
    struct chm_store_namespace_info info;

    CHECK_IS(chm_store_namespace_info(k->s, k->ns, &info), 0);
    CHECK(info.used_bytes <= info.quota_bytes);
    return info.used_bytes;
}

/* What just fits a quota does, header included where there is one. */
static void check_exact_quota(void)
{
    struct kv k;

    options(&k);
    k.r.opt.dram_bytes = 8 * MIB;
    k.r.opt.write_buffer_bytes = 4 * MIB;
    kv_start(&k);
    set_quota(&k, PAGE);
    CHECK_IS(put_now(&k, 1, PAGE), 0);
    CHECK_EQ(used_of(&k), PAGE);
    CHECK_IS(put_now(&k, 2, 1), 0); /* the first one gives way */
    CHECK_EQ(used_of(&k), PAGE);
    CHECK_IS(put_now(&k, 3, PAGE + 1), -EDQUOT);
    CHECK(kv_has(&k, 2));
    set_quota(&k, MIB);
    CHECK_IS(put_now(&k, 4, MIB), 0);
    CHECK_EQ(used_of(&k), MIB);
    set_quota(&k, MIB + PAGE);
    CHECK_IS(put_now(&k, 5, MIB + 1), -EDQUOT);
    set_quota(&k, MIB + 2 * PAGE);
    CHECK_IS(put_now(&k, 5, MIB + 1), 0);
    CHECK_EQ(used_of(&k), MIB + 2 * PAGE);
    kv_recount(&k);
    kv_stop(&k);
}

/* An object of one chunk has a header when it is split: that counts too. */
static void check_quota_of_split(void)
{
    struct kv k;
    uint64_t n = 0;
    uint32_t own;

    options(&k);
    k.o.free_percent = 0;
    kv_start(&k);
    own = k.ns;
    while (kv_stats(&k)->free_bytes >= 64 * KIB) {
        CHECK_IS(kv_put(&k, n++, 64 * KIB, 1), 0);
    }
    for (uint64_t i = 0; i < n; i += 2) {
        CHECK_IS(kv_delete(&k, i), 0);
    }
    kv_sync(&k);
    CHECK_IS(chm_store_namespace(k.s, "small", 5, 128 * KIB, &k.ns), 0);
    CHECK_IS(put_now(&k, 1000, 128 * KIB), -EDQUOT);
    CHECK_EQ(used_of(&k), 0);
    CHECK_EQ(kv_stats(&k)->split_objects, 0);
    CHECK_IS(chm_store_namespace(k.s, "small", 5, 128 * KIB + PAGE, &k.ns), 0);
    CHECK_IS(put_now(&k, 1000, 128 * KIB), 0);
    CHECK_EQ(used_of(&k), 128 * KIB + PAGE);
    CHECK_EQ(kv_stats(&k)->split_objects, 1);
    k.ns = own;
    kv_recount(&k);
    kv_stop(&k);
}

int main(void)
{
    check_exact_quota();
    check_quota_of_split();
    check_sync(true);
    check_sync(false);
    check_slots();
    return 0;
}
