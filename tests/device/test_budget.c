/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_budget.c - the device never holds more payload in DRAM than its budget, and everything else
 * it uses is counted apart and bounded.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

/* Bytes of memory this process has in DRAM. */
static uint64_t resident(void)
{
    unsigned long pages = 0, total = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    CHECK(f && fscanf(f, "%lu %lu", &total, &pages) == 2);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void check_sizes(uint64_t dram, uint64_t buffer, uint64_t expected_buffer)
{
    struct rig r;

    rig_sim(&r);
    r.opt.dram_bytes = dram;
    r.opt.write_buffer_bytes = buffer;
    rig_open(&r);
    CHECK_EQ(r.info.dram_bytes, dram);
    CHECK_EQ(r.info.write_buffer_bytes, expected_buffer);
    CHECK(r.info.window_bytes + r.info.write_buffer_bytes <= dram);
    CHECK(r.info.window_bytes % r.info.frame_bytes == 0);
    CHECK(r.info.metadata_bytes > 0);
    rig_close(&r);
}

/* Whatever is asked of it, in any mixture, for a long time. */
static void check_never_above(uint64_t dram, uint64_t seed)
{
    struct rig r;
    uint64_t held[32] = {0};
    uint8_t *buf = rig_alloc(MIB);

    rig_sim(&r);
    r.opt.sim.capacity_bytes = 64 * MIB;
    r.opt.dram_bytes = dram;
    r.opt.write_buffer_bytes = 0;
    rig_open(&r);
    for (int i = 0; i < 5000; i++) {
        uint64_t *h = &held[chm_random(&seed) % 32];
        uint64_t len = (1 + chm_random(&seed) % 100) * PAGE;
        uint64_t addr = chm_random(&seed) % 10000 * PAGE;
        int rc = chm_write(r.dev, addr, buf, chm_min(len, r.info.write_buffer_bytes / 2));
        CHECK(rc == 0 || rc == -EAGAIN);
        if (*h) {
            CHECK_IS(chm_release(r.dev, *h), 0);
            *h = 0;
        } else {
            *h = rig_issue(&r, addr, len);
        }
        if (i % 16 == 0) {
            CHECK(chm_step(r.dev, chm_now(r.dev) + chm_random(&seed) % MS) >= 0);
            rig_check_counters(&r);
        }
    }
    CHECK(r.stats.window_waits > 0 && r.stats.write_refused > 0); /* it was pressed hard */
    for (int i = 0; i < 32; i++) {
        CHECK(!held[i] || chm_release(r.dev, held[i]) == 0);
    }
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_IS(chm_quiesce(r.dev, LONG), 0);
    rig_check_idle(&r);
    rig_close(&r);
    munmap(buf, MIB);
}

/* Memory of the process: the budget, and what info calls metadata; no more however much is read and
 * written. On a real file, so that the medium holds no bytes. */
static void check_resident(void)
{
    enum { SLACK = 24 * MIB };
    struct rig r;
    uint64_t before, after;

    rig_options(&r, "sync");
    rig_name_files(&r, "budget", 1);
    rig_format(&r, 64 * MIB);
    before = resident();
    r.opt.dram_bytes = 32 * MIB;
    r.opt.write_buffer_bytes = 0;
    r.opt.poison = 0;
    r.opt.prefault = 1;
    rig_open(&r);
    CHECK_EQ(r.info.prefaulted_bytes, 32 * MIB);
    CHECK_EQ(r.info.write_buffer_bytes, 16 * MIB);
    rig_lay(&r, 0, 64 * MIB, 1);
    for (uint64_t at = 0; at < 64 * MIB; at += 8 * MIB) {
        uint64_t req = rig_issue(&r, at, 8 * MIB);
        rig_expect_staged(&r, req, at, 8 * MIB, 1);
        CHECK_IS(chm_release(r.dev, req), 0);
    }
    after = resident();
    CHECK(after >= before + 32 * MIB);
#ifndef __SANITIZE_THREAD__ /* its shadow memory is resident too */
    CHECK(after <= before + 32 * MIB + r.info.metadata_bytes + SLACK);
#endif
    rig_close(&r);
}

/* Prefaulting in the background says how far it is, and may be closed in the middle. */
static void check_prefault(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.dram_bytes = 64 * MIB;
    r.opt.prefault = 0;
    rig_open(&r);
    CHECK(r.info.prefaulted_bytes <= 64 * MIB);
    rig_close(&r);
    rig_sim(&r);
    r.opt.dram_bytes = 64 * MIB;
    r.opt.prefault = 1;
    rig_open(&r);
    CHECK_EQ(r.info.prefaulted_bytes, 64 * MIB);
    CHECK(r.info.prefault_ns > 0);
    rig_close(&r);
}

int main(void)
{
    check_sizes(4 * MIB, MIB, MIB);
    check_sizes(8 * MIB, 0, 4 * MIB);            /* at most half */
    check_sizes(40 * MIB, 0, 16 * MIB);          /* at least 16 MiB */
    check_sizes(128ull * MIB, 0, 32 * MIB);      /* a quarter */
    check_sizes(4096ull * MIB, 0, 512ull * MIB); /* at most 512 MiB */
    check_never_above(2 * MIB, 1);
    check_never_above(5 * MIB + PAGE, 2);
    check_resident();
    check_prefault();
    return 0;
}
