/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_grow.c - a device and the store on it become larger (chm_grow, option grow): what is
 * there stays, the new space is used, and what is not the device is refused with nothing changed.
 */
#include "store/kv_rig.h"

enum { MEMBERS = 2, LEN = 300 * KIB };

static void start(struct kv *k)
{
    struct rig r;

    kv_options(k);
    rig_files(&r, "sync", MEMBERS, 8 * MIB);
    k->r = r;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        k->r.paths[i] = k->r.path[i];
    }
    k->r.opt.paths = k->r.paths;
    k->o.free_percent = 0;
    kv_start(k);
}

static int grow(struct kv *k, const char *const *paths, uint32_t n, uint64_t capacity)
{
    struct chm_format_options f;
    int rc;

    chm_format_options_init(&f);
    f.paths = paths;
    f.npaths = n;
    f.capacity_bytes = capacity;
    rc = chm_grow(&f, &k->err);
    CHECK_IS(k->err.code, rc);
    CHECK(rc == 0 || k->err.text[0]);
    return rc;
}

/* Puts until eviction begins. Returns how many objects there are. */
static uint64_t put_until_full(struct kv *k, uint64_t n)
{
    while (kv_stats(k)->free_bytes >= LEN + 64 * KIB) {
        CHECK_IS(kv_put(k, n++, LEN, 1), 0);
    }
    CHECK_EQ(k->stats.evicted, 0);
    return n;
}

static void get_all(struct kv *k, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        CHECK_IS(kv_get(k, i, LEN, 1), 0);
    }
}

static void check_refused(struct kv *k)
{
    const char *swapped[] = {k->r.path[1], k->r.path[0]};

    CHECK_IS(grow(k, k->r.paths, MEMBERS, 16 * MIB), -EBUSY); /* open */
    kv_close_store(k);
    kv_close_device(k);
    CHECK_IS(grow(k, k->r.paths, MEMBERS, 4 * MIB), -EINVAL); /* smaller */
    CHECK_IS(grow(k, swapped, MEMBERS, 16 * MIB), -EXDEV);
    CHECK_IS(grow(k, k->r.paths, 1, 16 * MIB), -EXDEV);
    CHECK_IS(chm_grow(NULL, &k->err), -EINVAL);
    kv_device(k);
    CHECK_EQ(k->r.info.capacity_bytes, 8 * MIB);
    kv_open_store(k);
}

static void check_grow(bool crash)
{
    struct kv k;
    struct chm_store_info before, after;
    uint64_t few, many;

    start(&k);
    few = put_until_full(&k, 0);
    check_refused(&k);
    get_all(&k, few);
    CHECK_IS(chm_store_info(k.s, &before), 0);
    if (crash) {
        kv_sync(&k);
        k.s->crashed = true;
    }
    kv_close_store(&k);
    kv_close_device(&k);
    CHECK_IS(grow(&k, k.r.paths, MEMBERS, 16 * MIB + 5), 0); /* whole stripe rows of it */
    kv_device(&k);
    CHECK_EQ(k.r.info.capacity_bytes, 16 * MIB);
    CHECK_IS(chm_store_open(k.r.dev, &k.o, &k.s, &k.err), -EXDEV);
    CHECK(strstr(k.err.text, "grow"));
    k.o.grow = 1;
    kv_open_store(&k);
    k.o.grow = 0;
    CHECK_IS(chm_store_info(k.s, &after), 0);
    CHECK_EQ(after.data_bytes, before.data_bytes + 8 * MIB);
    CHECK_EQ(after.data_base, before.data_base);
    CHECK_EQ(after.recovered_objects, few);
    get_all(&k, few);
    many = put_until_full(&k, few);
    CHECK(many >= few + 8 * MIB / (LEN + 64 * KIB));
    get_all(&k, many);
    kv_recount(&k);
    kv_reopen(&k); /* it says so itself from now on */
    get_all(&k, many);
    kv_close_store(&k);
    kv_close_device(&k);
    CHECK_IS(grow(&k, k.r.paths, MEMBERS, 0), 0); /* as large as the files: nothing to do */
    kv_device(&k);
    CHECK_EQ(k.r.info.capacity_bytes, 16 * MIB);
    kv_open_store(&k);
    kv_close_store(&k);
    kv_close_device(&k);
    rig_unlink(&k.r);
}

int main(void)
{
    check_grow(false);
    check_grow(true);
    return 0;
}
