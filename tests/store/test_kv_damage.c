/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_damage.c - one flipped bit in each structure, and stores that are refused.
 *
 * Field reports: F98 (that object is a miss and is dropped, a new put heals it, all others still
 * hit; nothing needs manual work), F46 (another geometry, version or size is refused, with the
 * differing thing named, and nothing is touched).
 */
#include "store/kv_rig.h"

enum { SMALL = 36, OBJECTS = SMALL + 2, DELETED = 4, FLIPS = 16, BYTES = 8 * MIB };

struct image {
    uint8_t *live, *durable;
};

static uint64_t len_of(uint64_t number)
{
    return number < SMALL ? 1000 + number * 777 : MIB + number * 5000;
}

static void options(struct kv *k)
{
    kv_options(k);
    k->r.opt.sim.capacity_bytes = BYTES;
    k->r.opt.poison = 0;
    k->f.max_objects = 100;
}

/* Objects, some of which are deleted again, in two sessions; the second ends with a clean close or
 * a crash. */
static void make(struct kv *k, bool clean)
{
    options(k);
    kv_start(k);
    for (uint64_t i = 0; i < OBJECTS / 2; i++) {
        CHECK_IS(kv_put(k, i, len_of(i), 1), 0);
    }
    for (uint64_t i = 0; i < DELETED; i++) {
        CHECK_IS(kv_put(k, 100 + i, PAGE, 1), 0);
    }
    kv_reopen(k);
    for (uint64_t i = OBJECTS / 2; i < OBJECTS; i++) {
        CHECK_IS(kv_put(k, i, len_of(i), 1), 0);
        if (i % 6 == 0) {
            kv_sync(k); /* several journal pages */
        }
    }
    for (uint64_t i = 0; i < DELETED; i++) {
        CHECK_IS(kv_delete(k, 100 + i), 0);
    }
    kv_sync(k);
    if (clean) {
        kv_close_store(k);
        kv_close_device(k);
    } else {
        kv_crash(k);
    }
}

static struct image save(const struct kv *k)
{
    struct image m = {.live = malloc(BYTES), .durable = malloc(BYTES)};

    memcpy(m.live, k->keep.image.live, BYTES);
    memcpy(m.durable, k->keep.image.durable, BYTES);
    return m;
}

static void restore(struct kv *k, const struct image *m)
{
    memcpy(k->keep.image.live, m->live, BYTES);
    memcpy(k->keep.image.durable, m->durable, BYTES);
}

static void flip(struct kv *k, uint64_t addr, uint32_t bit)
{
    uint64_t at = MIB + addr;

    k->keep.image.live[at] ^= (uint8_t)(1u << bit);
    k->keep.image.durable[at] ^= (uint8_t)(1u << bit);
}

/* How many objects are not as they were; those lost are put again, and all is as it was. */
static uint32_t open_and_heal(struct kv *k)
{
    uint32_t lost = 0;

    kv_device(k);
    kv_open_store(k);
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < OBJECTS; i++) {
            int rc = kv_get(k, i, len_of(i), 1);

            if (rc != 0) {
                CHECK(rc == -ENOENT || rc == -EBADMSG);
                CHECK_EQ(round, 0);
                CHECK(!kv_has(k, i)); /* a miss from now on */
                CHECK_IS(kv_put(k, i, len_of(i), 1), 0);
                lost++;
            }
        }
    }
    for (uint64_t i = 0; i < DELETED; i++) {
        if (kv_has(k, 100 + i)) { /* the record of its end is what was damaged: it is whole again */
            CHECK_IS(kv_get(k, 100 + i, PAGE, 1), 0);
            lost++;
        }
    }
    kv_recount(k);
    k->s->crashed = true;
    kv_close_store(k);
    (void)chm_close(k->r.dev, KV_LONG);
    return lost;
}

struct target {
    const char *name;
    uint64_t addr, len;
    uint32_t lost_min, lost_max;
};

static void check_flips(bool clean)
{
    struct kv k;
    struct image m;
    struct chm_kv_super p;
    uint64_t random = 3;

    make(&k, clean);
    m = save(&k);
    memcpy(&p, m.live + MIB, sizeof(p));
    CHECK_EQ(open_and_heal(&k), 0);
    const struct target targets[] = {
        {"superblock 0", 0, PAGE, 0, 0},
        {"superblock 1", MIB, PAGE, 0, 0},
        {"names, slot 0", p.names_off, PAGE, 0, 0},
        {"names, slot 1", p.names_off + PAGE, PAGE, 0, 0},
        {"index, slot 0", p.index_off, PAGE, 0, 1},
        {"index, slot 1", p.index_off + PAGE, PAGE, 0, 1},
        {"index heads", p.index_off + PAGE, 64, 0, 0},
        {"order", p.order_off, PAGE, 0, 0},
        {"journal", p.journal_off, (uint64_t)PAGE * 12, 0, 1},
        {"payload", p.data_off + 4 * PAGE, 12 * PAGE, 0, 1},
    };
    for (size_t t = 0; t < CHM_COUNT(targets); t++) {
        uint32_t most = 0, all = 0;

        for (int i = 0; i < FLIPS; i++) {
            uint64_t x = chm_random(&random);
            uint32_t lost;

            restore(&k, &m);
            flip(&k, targets[t].addr + x / 8 % targets[t].len, x % 8);
            lost = open_and_heal(&k);
            if (lost > targets[t].lost_max) {
                fprintf(stderr, "%s, byte %" PRIu64 " bit %u: %u objects lost\n", targets[t].name,
                        x / 8 % targets[t].len, (unsigned)(x % 8), lost);
                exit(1);
            }
            most = lost > most ? lost : most;
            all += lost;
        }
        printf("%s store, a bit of the %s: %u of %d flips lost an object\n",
               clean ? "clean" : "crashed", targets[t].name, all, FLIPS);
    }
    free(m.live);
    free(m.durable);
    chm_sim_keep_free(&k.keep);
}

/* A bit of the header, and of each chunk, of an object that has one. */
static void check_header(void)
{
    struct kv k;
    struct image m;
    uint64_t addr;

    make(&k, true);
    m = save(&k);
    kv_device(&k);
    kv_open_store(&k);
    struct chm_key key = kv_key(SMALL);
    struct chm_kv_where w;
    chm_kv_place_where(k.s, chm_kv_find(k.s, k.ns, &key), &w);
    addr = w.extent[0].addr;
    kv_close_store(&k);
    kv_close_device(&k);
    for (uint64_t at = 0; at < w.extent[0].len; at += 40000) {
        restore(&k, &m);
        flip(&k, addr + at, 3);
        CHECK_EQ(open_and_heal(&k), 1);
    }
    restore(&k, &m);
    flip(&k, addr + CHM_KV_HEAD_SUMS + 8, 0); /* the sum of the second chunk */
    CHECK_EQ(open_and_heal(&k), 1);
    free(m.live);
    free(m.durable);
    chm_sim_keep_free(&k.keep);
}

/* ------------------------------------------------------------------ refusals */

static void refuse(struct kv *k, int want, const char *words)
{
    chm_store *s = NULL;

    CHECK_IS(chm_store_open(k->r.dev, &k->o, &s, &k->err), want);
    CHECK(s == NULL);
    if (!strstr(k->err.text, words)) {
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", k->err.text, words);
        exit(1);
    }
}

static void super_edit(struct kv *k, void (*edit)(struct chm_kv_super *), bool seal)
{
    for (int i = 0; i < 2; i++) {
        struct chm_kv_super p;
        struct chm_read item = {.addr = (uint64_t)i * MIB, .len = PAGE, .buf = &p};

        CHECK_IS(chm_read(k->r.dev, &item, 1, KV_LONG), 1);
        edit(&p);
        if (seal) {
            chm_kv_super_seal(&p);
        }
        CHECK_IS(chm_write(k->r.dev, (uint64_t)i * MIB, &p, PAGE), 0);
    }
}

static void newer(struct chm_kv_super *p)
{
    p->version = 9;
}

static void feature(struct chm_kv_super *p)
{
    p->version = 1;
    p->features = 4;
}

/* Sizes that no format makes, under a sum that is right. */
static void no_unit(struct chm_kv_super *p)
{
    p->features = 0;
    p->unit_bytes = 0;
}

static void other_pages(struct chm_kv_super *p)
{
    p->unit_bytes = PAGE;
    p->index_pages += 5;
}

static void damaged(struct chm_kv_super *p)
{
    p->index_pages -= 5;
    p->len++;
}

static void check_refusals(void)
{
    struct kv k;
    chm_store *other;

    options(&k);
    kv_device(&k);
    refuse(&k, -ENOENT, "format it first");
    kv_format(&k);
    CHECK_IS(chm_store_format(k.r.dev, &k.f, &k.err), -EEXIST);
    k.f.force = 1;
    kv_format(&k);
    kv_open_store(&k);
    CHECK_IS(chm_store_open(k.r.dev, &k.o, &other, &k.err), -EBUSY);
    CHECK_IS(chm_store_format(k.r.dev, &k.f, &k.err), -EBUSY);
    CHECK_IS(chm_close(k.r.dev, 0), -EBUSY);
    kv_close_store(&k);
    k.o.len = 4 * MIB;
    refuse(&k, -EXDEV, "formatted for");
    k.o.len = 0;
    k.o.base = MIB;
    refuse(&k, -EXDEV, "formatted at base 0"); /* its second superblock says so */
    k.o.base = 0;
    k.o.eviction = "clever";
    refuse(&k, -EINVAL, "prefix-tail, lru or fifo");
    k.o.eviction = NULL;
    super_edit(&k, newer, true);
    refuse(&k, -EPROTO, "version 9");
    super_edit(&k, feature, true);
    refuse(&k, -EPROTO, "features 0x4");
    super_edit(&k, no_unit, true);
    refuse(&k, -EBADMSG, "do not fit together");
    super_edit(&k, other_pages, true);
    refuse(&k, -EBADMSG, "do not fit together");
    super_edit(&k, damaged, false);
    refuse(&k, -EBADMSG, "damaged");
    k.f.max_objects = 1000000;
    CHECK_IS(chm_store_format(k.r.dev, &k.f, &k.err), -ENOSPC);
    kv_close_device(&k);
    chm_sim_keep_free(&k.keep);
}

/* A forced format of which only one superblock arrived. What is left of the old store is its older
 * superblock, which says clean; but it was opened since. */
static void check_half_format(void)
{
    struct kv k;
    struct chm_kv_super p;
    struct chm_store_info info;
    uint64_t older;

    make(&k, true);
    kv_device(&k);
    kv_open_store(&k); /* writes over the older of the two */
    CHECK_IS(kv_delete(&k, 0), 0);
    CHECK_IS(kv_put(&k, 200, PAGE, 1), 0);
    kv_sync(&k);
    older = k.s->super.generation - 1;
    CHECK_EQ(older % 2, (k.s->super.generation + 1) % 2);
    kv_crash(&k);
    memcpy(&p, k.keep.image.live + MIB + (older + 1) % 2 * MIB, sizeof(p));
    CHECK_EQ(p.generation, older + 1);
    p.id[0] ^= 1;
    p.generation = 1 + older % 2;
    p.journal_tail = 1;
    chm_kv_super_seal(&p);
    memcpy(k.keep.image.live + MIB + (older + 1) % 2 * MIB, &p, sizeof(p));
    memcpy(k.keep.image.durable + MIB + (older + 1) % 2 * MIB, &p, sizeof(p));
    kv_device(&k);
    kv_open_store(&k);
    CHECK_IS(chm_store_info(k.s, &info), 0);
    CHECK_EQ(info.clean, 0);
    CHECK(!kv_has(&k, 0)); /* the journal was read */
    CHECK_IS(kv_get(&k, 200, PAGE, 1), 0);
    kv_stop(&k);
}

int main(void)
{
    check_half_format();
    check_refusals();
    check_header();
    check_flips(true);
    check_flips(false);
    return 0;
}
