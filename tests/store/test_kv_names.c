/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_names.c - namespaces and their quotas on the device: durable when a sync says so.
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

int main(void)
{
    check_sync(true);
    check_sync(false);
    return 0;
}
