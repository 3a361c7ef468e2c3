/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_links.c - what hangs on what, across closes and crashes.
 *
 * An object whose parent was removed still names the number of that parent, on the device too. The
 * number must not go to another object before that has changed: it would take a stranger for its
 * parent, and, if the stranger is put behind it, the two would hang on each other.
 */
#include "store/kv_rig.h"

enum { ROOT = 1, CHILD = 2, NEXT = 3, FILL = 70 /* so that their entries are in two pages */ };

/* The numbers of entries decide who may be taken for whose parent. */
static void options(struct kv *k)
{
    kv_options(k);
    k->r.opt.sim.capacity_bytes = 8 * MIB;
    k->r.opt.poison = 0;
    k->f.max_objects = 128;
}

static void put_behind(struct kv *k, uint64_t number, uint64_t parent)
{
    uint8_t bytes[PAGE];
    struct chm_key key = kv_key(number), before = kv_key(parent);
    struct chm_part part = {.data = bytes, .len = sizeof(bytes)};
    int32_t status = 1;
    struct chm_store_job job = {.op = CHM_STORE_PUT,
                                .n = 1,
                                .keys = &key,
                                .parent = &before,
                                .parts = &part,
                                .status = &status};

    kv_fill(bytes, sizeof(bytes), kv_seed(number, 1));
    kv_run(k, &job);
    CHECK_IS(status, 0);
}

static void again(struct kv *k, bool crash)
{
    if (crash) {
        kv_crash(k);
        kv_device(k);
        kv_open_store(k);
    } else {
        kv_reopen(k);
    }
}

static uint32_t children_of(struct kv *k, uint64_t number, bool *has_parent)
{
    static struct chm_store_object o[128];
    struct chm_key key = kv_key(number);
    uint64_t cursor = 0;
    int n = chm_store_list(k->s, &cursor, o, CHM_COUNT(o));

    for (int i = 0; i < n; i++) {
        if (memcmp(&o[i].key, &key, sizeof(key)) == 0) {
            *has_parent = o[i].has_parent;
            return o[i].children;
        }
    }
    CHECK(!"the object is there");
    return 0;
}

struct plan {
    bool first, second; /* crashes, else clean closes */
    bool behind;        /* the new one is a child of the child */
};

/* The root goes. What comes next may not take its number, since its child names that. */
static void check_stranger(const struct plan *p)
{
    struct kv k;
    struct chm_key keys[] = {kv_key(CHILD), kv_key(NEXT)};
    bool has_parent;

    options(&k);
    kv_start(&k);
    CHECK_IS(kv_put(&k, ROOT, PAGE, 1), 0);
    for (uint64_t i = 0; i < FILL; i++) {
        CHECK_IS(kv_put(&k, 100 + i, 100, 1), 0);
    }
    put_behind(&k, CHILD, ROOT);
    kv_sync(&k);
    CHECK_IS(kv_delete(&k, ROOT), 0);
    kv_sync(&k);
    again(&k, p->first);
    if (p->behind) {
        put_behind(&k, NEXT, CHILD);
    } else {
        CHECK_IS(kv_put(&k, NEXT, PAGE, 1), 0);
    }
    kv_sync(&k);
    for (int i = 0; i < 2; i++) {
        again(&k, p->second);
        CHECK_EQ(children_of(&k, CHILD, &has_parent), p->behind);
        CHECK(!has_parent);
        CHECK_EQ(children_of(&k, NEXT, &has_parent), 0);
        CHECK_EQ(has_parent, p->behind);
        CHECK_IS(chm_store_exists(k.s, k.ns, keys, 2, CHM_STORE_TOUCH, NULL, NULL), 2);
    }
    CHECK_IS(chm_store_evict(k.s, k.ns, UINT64_MAX), FILL + 2);
    kv_recount(&k);
    kv_sync(&k);
    for (uint64_t i = 0; i < 128 - 2; i++) { /* numbers are to be had again */
        CHECK_IS(kv_put(&k, 1000 + i, 100, 1), 0);
    }
    kv_stop(&k);
}

static uint32_t number_of(const struct kv *k, uint64_t number)
{
    struct chm_key key = kv_key(number);

    return chm_kv_find(k->s, k->ns, &key);
}

/* The child goes too, but that is not durable yet: what is on the drive names the root's number. */
static void check_removed_child(void)
{
    struct kv k;
    uint32_t root;

    options(&k);
    kv_start(&k);
    CHECK_IS(kv_put(&k, ROOT, PAGE, 1), 0);
    root = number_of(&k, ROOT);
    put_behind(&k, CHILD, ROOT);
    kv_sync(&k);
    CHECK_IS(kv_delete(&k, ROOT), 0);
    kv_sync(&k);
    CHECK_IS(kv_delete(&k, CHILD), 0);
    CHECK_IS(kv_put(&k, NEXT, PAGE, 1), 0);
    CHECK(number_of(&k, NEXT) != root);
    kv_sync(&k);
    CHECK_IS(kv_put(&k, ROOT, PAGE, 2), 0);
    CHECK_IS(kv_put(&k, CHILD, PAGE, 2), 0);
    CHECK(number_of(&k, ROOT) == root || number_of(&k, CHILD) == root);
    kv_stop(&k);
}

int main(void)
{
    check_removed_child();
    for (int i = 0; i < 8; i++) {
        check_stranger(&(struct plan){.first = i & 1, .second = i & 2, .behind = i & 4});
    }
    return 0;
}
