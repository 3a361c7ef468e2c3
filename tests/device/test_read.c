/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_read.c - demand reads: straight into aligned memory of the caller or copied, any address and
 * length, any number at once, without the window.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

/* All alignments of address, length and memory; not a byte beyond what was asked for (F08). */
static void check_any_alignment(struct rig *r)
{
    static const uint64_t odd[] = {0, 1, 8, 511, 512, 4095, 4096, 4097, 65535, 65536, 65537};
    uint8_t *buf = rig_alloc(MIB);

    rig_lay(r, 0, MIB, 1);
    for (size_t a = 0; a < CHM_COUNT(odd); a++) {
        for (size_t l = 1; l < CHM_COUNT(odd); l++) {
            for (size_t s = 0; s < 5; s++) {
                uint8_t *to = buf + PAGE + odd[s];
                memset(buf, 0x3C, 4 * PAGE + odd[l]);
                CHECK_IS(rig_read(r, odd[a], odd[l], to), 0);
                CHECK_HOLDS(to, odd[a], odd[l], 1);
                CHECK(is_byte(buf, PAGE + odd[s], 0x3C));
                CHECK(is_byte(to + odd[l], PAGE, 0x3C));
            }
        }
    }
    munmap(buf, MIB);
}

static void check_media(const char *media, bool registered)
{
    struct rig r;
    uint8_t *mem = rig_alloc(MIB);

    rig_files(&r, media, 1, 8 * MIB);
    if (!rig_try_open(&r)) {
        rig_unlink(&r);
        munmap(mem, MIB);
        return;
    }
    memset(mem, 1, MIB);
    if (registered) {
        CHECK_IS(chm_memory_register(r.dev, mem, MIB), 0);
    }
    check_any_alignment(&r);
    for (uint64_t i = 0; i < 16; i++) {
        CHECK_IS(rig_read(&r, i * 64 * KIB, 64 * KIB, mem + i * 64 * KIB), 0);
    }
    CHECK_HOLDS(mem, 0, MIB, 1);
    if (registered) {
        CHECK_IS(chm_memory_unregister(r.dev, mem), 0);
        CHECK_IS(chm_memory_unregister(r.dev, mem), -ENOENT);
    }
    rig_check_idle(&r);
    rig_close(&r);
    munmap(mem, MIB);
}

/* Aligned goes straight; everything else is copied, and counted. Shifted by 64 or by 512 is not
 * aligned where the drive wants 4096 (F58). */
static void check_direct_or_copied(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(64 * KIB);

    rig_sim(&r);
    rig_open(&r);
    CHECK_EQ(r.info.align_bytes, 4096);
    rig_lay(&r, 0, MIB, 2);
    CHECK_IS(rig_read(&r, 0, 8 * PAGE, buf), 0);
    CHECK_EQ(rig_stats(&r)->demand_copied_bytes, 0);
    CHECK_IS(rig_read(&r, 0, 8 * PAGE, buf + 64), 0);
    CHECK_EQ(rig_stats(&r)->demand_copied_bytes, 8 * PAGE);
    CHECK_HOLDS(buf + 64, 0, 8 * PAGE, 2);
    CHECK_IS(rig_read(&r, 0, 8 * PAGE, buf + 512), 0);
    CHECK_EQ(rig_stats(&r)->demand_copied_bytes, 16 * PAGE);
    CHECK_IS(rig_read(&r, 512, PAGE, buf), 0);
    CHECK_EQ(rig_stats(&r)->demand_copied_bytes, 17 * PAGE);
    CHECK_EQ(r.stats.demand_reads, 4);
    CHECK_EQ(r.stats.demand_bytes, 25 * PAGE);
    CHECK_EQ(r.stats.window_peak_bytes, 0); /* the window is not used */
    rig_close(&r);
    munmap(buf, 64 * KIB);
}

/* Copied reads far larger than what is set aside for copying, several at once, with the window full
 * of held objects all the while. */
static void check_larger_than_reserve(void)
{
    enum { N = 4, LEN = 3 * MIB };
    struct rig r;
    struct chm_read items[N];
    uint64_t all;

    rig_sim(&r);
    rig_open(&r);
    rig_lay(&r, 0, 4 * MIB, 3);
    all = rig_issue(&r, 0, r.info.window_bytes);
    CHECK_IS(chm_wait(r.dev, all, LONG), 0);
    for (uint64_t i = 0; i < N; i++) {
        items[i] = (struct chm_read){.addr = 100 + i, .len = LEN, .buf = malloc(LEN)};
    }
    CHECK_IS(chm_read(r.dev, items, N, LONG), N);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_HOLDS(items[i].buf, 100 + i, LEN, 3);
        free(items[i].buf);
    }
    CHECK_IS(chm_release(r.dev, all), 0);
    rig_check_idle(&r);
    rig_close(&r);
}

static void check_refused(void)
{
    struct rig r;
    uint8_t page[PAGE];
    struct chm_read items[] = {
        {.addr = 0, .len = 10, .buf = page},          {.addr = 0, .len = 0, .buf = page},
        {.addr = 0, .len = 10, .buf = NULL},          {.addr = 0, .len = 2, .buf = page},
        {.addr = UINT64_MAX, .len = 10, .buf = page}, {.addr = 1, .len = UINT64_MAX, .buf = page},
    };
    static const int expected[] = {0, -EINVAL, -EINVAL, -ERANGE, -ERANGE, -ERANGE};

    rig_sim(&r);
    rig_open(&r);
    items[3].addr = r.info.capacity_bytes - 1;
    CHECK_IS(chm_read(r.dev, items, CHM_COUNT(items), LONG), 1);
    for (size_t i = 0; i < CHM_COUNT(items); i++) {
        CHECK_IS(items[i].status, expected[i]);
    }
    CHECK_EQ(rig_stats(&r)->refused, 3);
    CHECK_IS(rig_read(&r, r.info.capacity_bytes - 1, 1, page), 0);
    CHECK_IS(chm_read(r.dev, NULL, 0, 0), 0);
    CHECK_IS(chm_read(r.dev, NULL, 1, 0), -EINVAL);
    CHECK_IS(chm_read_issue(r.dev, NULL, 1), -EINVAL);
    CHECK_IS(chm_memory_register(r.dev, NULL, PAGE), -EINVAL);
    CHECK_IS(chm_memory_register(r.dev, page + 1, PAGE), -EINVAL);
    CHECK_IS(chm_memory_unregister(r.dev, page), -ENOENT);
    rig_close(&r);
}

/* Handles of reads work like others: wait, progress, reap; there is no view of them. */
static void check_handles(void)
{
    struct rig r;
    struct chm_view view;
    uint8_t *buf = rig_alloc(MIB);
    struct chm_read item = {.addr = 0, .len = MIB, .buf = buf};
    uint64_t ids[2];
    int64_t last = 0;

    rig_sim(&r);
    r.opt.read_unit = 64 * KIB;
    rig_open(&r);
    rig_lay(&r, 0, MIB, 4);
    CHECK_IS(chm_reap(r.dev, ids, 2), 0);
    CHECK_IS(chm_read_issue(r.dev, &item, 1), 1);
    CHECK_IS(chm_view(r.dev, item.req, &view), -EINVAL);
    while (last < MIB) {
        CHECK(chm_step(r.dev, UINT64_MAX) >= 0);
        CHECK(chm_progress(r.dev, item.req) >= last);
        last = chm_progress(r.dev, item.req);
        CHECK_HOLDS(buf, 0, (uint64_t)last, 4);
    }
    CHECK_IS(chm_wait(r.dev, item.req, 0), 0);
    CHECK_IS(chm_reap(r.dev, ids, 2), 1);
    CHECK_EQ(ids[0], item.req);
    CHECK_IS(chm_release(r.dev, item.req), 0);
    CHECK_IS(chm_wait(r.dev, item.req, 0), -ESTALE);
    rig_close(&r);
    munmap(buf, MIB);
}

/* The table of registered memory is bounded. */
static void check_register_full(void)
{
    struct rig r;
    uint8_t *mem = rig_alloc(200 * PAGE);
    int rc = 0, n = 0;

    rig_files(&r, "sync", 1, 4 * MIB);
    rig_open(&r);
    for (; rc == 0 && n < 200; n++) {
        rc = chm_memory_register(r.dev, mem + n * PAGE, PAGE);
    }
    CHECK_IS(rc, -ENOSPC);
    CHECK_IS(chm_memory_unregister(r.dev, mem), 0);
    CHECK_IS(chm_memory_register(r.dev, mem, PAGE), 0);
    rig_close(&r);
    munmap(mem, 200 * PAGE);
}

int main(void)
{
    check_direct_or_copied();
    check_larger_than_reserve();
    check_refused();
    check_handles();
    check_register_full();
    check_media("sync", false);
    check_media("uring", false);
    check_media("uring", true);
    check_media("threads", true);
    return 0;
}
