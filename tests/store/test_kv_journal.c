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

int main(void)
{
    check_burst();
    check_wrap(false);
    check_wrap(true);
    return 0;
}
