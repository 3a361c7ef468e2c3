/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_journal.c - many small objects: more records than may be on their way at once, a journal
 * that goes round many times, checkpoints under load, entries that are all used.
 *
 * Field report: F47 (metadata of fixed size that is full never skips a checkpoint).
 */
#include "store/kv_rig.h"

enum { MANY = 6000, BATCH = 50 };

static void put_all(struct kv *k, uint64_t from, uint64_t to, uint64_t version, bool sync)
{
    uint64_t len[BATCH];
    int32_t status[BATCH];

    for (uint64_t i = from; i < to; i += BATCH) {
        for (uint64_t n = 0; n < BATCH; n++) {
            len[n] = 100 + (i + n) % 3000;
        }
        CHECK_EQ(kv_put_many(k, i, BATCH, len, version, CHM_STORE_WAIT | CHM_STORE_ALONE, status),
                 BATCH);
        if (sync && i % 400 == 0) {
            kv_sync(k);
        }
    }
}

static void check_all(struct kv *k, uint64_t to, uint64_t version)
{
    for (uint64_t i = 0; i < to; i += 7) {
        CHECK_IS(kv_get(k, i, 100 + i % 3000, version), 0);
    }
    for (uint64_t i = 0; i < to; i++) {
        CHECK(kv_has(k, i));
    }
}

static void start(struct kv *k, uint64_t journal_pages)
{
    kv_options(k);
    k->r.opt.sim.capacity_bytes = 40 * MIB;
    k->r.opt.dram_bytes = 16 * MIB;
    k->r.opt.write_buffer_bytes = 8 * MIB;
    k->r.opt.poison = 0;
    k->f.max_objects = MANY + 200;
    k->f.journal_bytes = journal_pages * PAGE;
    kv_start(k);
}

/* One sync for all of them. */
static void check_burst(void)
{
    struct kv k;

    start(&k, 512);
    k.o.sync_interval_ns = UINT64_MAX;
    kv_reopen(&k);
    put_all(&k, 0, MANY, 1, false);
    kv_sync(&k);
    CHECK(kv_stats(&k)->records >= MANY);
    kv_crash(&k);
    kv_device(&k);
    kv_open_store(&k);
    check_all(&k, MANY, 1);
    kv_recount(&k);
    kv_stop(&k);
}

/* A journal of 16 pages for 6000 records and as many deletions, twice over. */
static void check_wrap(bool crash)
{
    struct kv k;
    struct chm_store_info info;

    start(&k, 16);
    for (uint64_t version = 1; version <= 2; version++) {
        put_all(&k, 0, MANY, version, true);
        kv_sync(&k);
        CHECK(kv_stats(&k)->checkpoints > 5);
        if (crash) {
            kv_crash(&k);
            kv_device(&k);
            kv_open_store(&k);
        } else {
            kv_reopen(&k);
        }
        CHECK_IS(chm_store_info(k.s, &info), 0);
        CHECK_EQ(info.clean, !crash);
        CHECK_EQ(info.recovered_objects, MANY);
        CHECK_EQ(info.recovered_damaged + info.recovered_dropped, 0);
        CHECK(crash || info.recovered_records == 0);
        check_all(&k, MANY, version);
        for (uint64_t i = 0; version == 1 && i < MANY; i++) {
            CHECK_IS(kv_delete(&k, i), 0);
        }
    }
    kv_recount(&k);
    kv_stop(&k);
}

/* ------------------------------------------------------------------ images */

struct image {
    uint8_t *live, *durable;
    uint64_t bytes;
};

static struct image image_save(const struct kv *k)
{
    struct image m = {.bytes = k->keep.image.bytes};

    m.live = malloc(m.bytes);
    m.durable = malloc(m.bytes);
    memcpy(m.live, k->keep.image.live, m.bytes);
    memcpy(m.durable, k->keep.image.durable, m.bytes);
    return m;
}

static void image_restore(struct kv *k, const struct image *m)
{
    memcpy(k->keep.image.live, m->live, m->bytes);
    memcpy(k->keep.image.durable, m->durable, m->bytes);
}

static void image_free(struct image *m)
{
    free(m->live);
    free(m->durable);
}

/* Put what one sync has more records of than the journal has pages for, and stop when it is full
 * and durable, before the checkpoint that makes room has ended. */
static void fill_journal(struct kv *k, uint64_t from)
{
    k->s->opt.sync_interval_ns = UINT64_MAX;
    put_all(k, from, from + 2500, 1, false);
    k->s->opt.sync_interval_ns = 0;
    while (chm_kv_journal_room(k->s) > 2 || k->s->journal.durable < k->s->journal.next - 1) {
        CHECK(kv_stats(k)->not_durable > 0);
        CHECK_IS(chm_store_step(k->s, chm_now(k->r.dev) + 1), 0);
    }
}

/* After many checkpoints either superblock alone is enough: the journal keeps what both need, also
 * when it is full. */
static void check_either_superblock(void)
{
    struct kv k;
    struct image m;

    start(&k, 16);
    put_all(&k, 0, 3000, 1, true);
    kv_sync(&k);
    fill_journal(&k, 3000);
    kv_crash(&k);
    m = image_save(&k);
    for (uint64_t i = 0; i < 2; i++) {
        image_restore(&k, &m);
        k.keep.image.live[MIB + i * MIB + 100] ^= 4; /* a member's first MiB is its own */
        k.keep.image.durable[MIB + i * MIB + 100] ^= 4;
        kv_device(&k);
        kv_open_store(&k);
        check_all(&k, 3000, 1);
        kv_recount(&k);
        kv_crash(&k);
    }
    image_free(&m);
    chm_sim_keep_free(&k.keep);
}

/* F43: a page of a time line that a crash cut off lies where the next page would be. It has the
 * right number and a right sum, but it does not follow. */
static void check_cut_off_page(void)
{
    enum { FIRST = 50, SECOND = 150 };
    struct kv k;
    struct image before, other;
    uint64_t at, next;

    start(&k, 64);
    kv_sync(&k);
    kv_close_store(&k);
    kv_close_device(&k);
    before = image_save(&k);
    kv_device(&k);
    kv_open_store(&k);
    next = k.s->journal.next;
    at = MIB + k.s->super.journal_off + (next + 1) * PAGE;
    k.o.sync_interval_ns = UINT64_MAX;
    put_all(&k, 0, SECOND, 1, false); /* three pages */
    kv_sync(&k);
    CHECK(k.s->journal.next >= next + 3);
    kv_crash(&k);
    other = image_save(&k);

    image_restore(&k, &before);
    kv_device(&k);
    kv_open_store(&k);
    put_all(&k, 1000, 1000 + FIRST, 1, false); /* one page */
    kv_sync(&k);
    CHECK_EQ(k.s->journal.next, next + 1);
    kv_crash(&k);
    memcpy(k.keep.image.live + at, other.live + at, PAGE);
    memcpy(k.keep.image.durable + at, other.live + at, PAGE);
    kv_device(&k);
    kv_open_store(&k);
    CHECK_EQ(k.s->journal.next, next + 1);
    CHECK_EQ(kv_stats(&k)->objects, FIRST);
    for (uint64_t i = 0; i < SECOND; i++) {
        CHECK(!kv_has(&k, i));
    }
    image_free(&before);
    image_free(&other);
    kv_stop(&k);
}

int main(void)
{
    check_either_superblock();
    check_cut_off_page();
    check_burst();
    check_wrap(false);
    check_wrap(true);
    return 0;
}
