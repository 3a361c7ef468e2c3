/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.c - how many simulated I/Os there are per second of CPU, all of it on one core.
 *
 * A flash drive of 64 dies without contents, so that no bytes move. Alone: random 4 KiB reads and
 * sequential reads of 1 MiB, submitted and reaped in batches, 64 and 256 in flight. Through the
 * firmware: demand reads (chm_read_issue) and staging (chm_issue) of 4 KiB in batches, and staging
 * of objects of 1 MiB. `virtual_s` is how long the same I/O took the simulated drive.
 */
#include <stdlib.h>

#include "bench.h"
#include "disk.h"
#include "media/medium.h"

enum { INFLIGHT_MAX = 256, BATCH = 64, BUF_ALIGN = 4096 };

static const uint64_t SPACE = 1024 * BENCH_GIB;

static void drive_options(struct chm_options *o)
{
    static const struct bench_disk NONE;

    bench_disk_options(&NONE, o, 128 * BENCH_MIB, 16 * BENCH_MIB);
    o->media = "sim";
    o->sim.capacity_bytes = SPACE;
    o->sim.no_contents = 1;
    o->sim.dies = 64;
    o->sim.channels = 16;
    o->sim.planes = 2;
    o->sim.page_read_ns[0] = 40000;
    o->sim.page_read_ns[1] = 60000;
    o->sim.page_read_ns[2] = 80000;
    o->sim.erase_ns = 3000000;
    o->sim.cache_bytes = 64 * BENCH_MIB;
    o->sim.command_ns = 15000;
    o->sim.read_rate = 12000000000;
    o->sim.write_rate = 9000000000;
}

static void row(const char *name, uint64_t ios, double cpu, uint64_t virtual_ns)
{
    bench_row(name);
    bench_num("mios_per_s", (double)ios / cpu / 1e6);
    bench_num("ns_per_io", cpu * 1e9 / (double)ios);
    bench_num("virtual_s", (double)virtual_ns / 1e9);
    bench_row_end();
}

/* ------------------------------------------------------------------ the medium alone */

struct load {
    uint32_t bytes;
    uint64_t seed, at; /* random if there is a seed, else sequential */
};

static void next_read(struct load *l, struct chm_io *io)
{
    l->at = l->seed ? bench_random(&l->seed) : l->at + l->bytes;
    io->off = l->at % (SPACE / 2) / l->bytes * l->bytes;
    io->len = l->bytes;
}

/* n reads, `depth` of them in flight; returns the virtual time that it took. */
static uint64_t read_medium(struct chm_medium *m, struct load *l, void *buf, uint32_t depth,
                            uint64_t n)
{
    struct chm_io io[INFLIGHT_MAX] = {0}, *ready[INFLIGHT_MAX];
    uint64_t began = chm_medium_now(m);
    unsigned free = depth;

    for (uint32_t i = 0; i < depth; i++) {
        io[i].buf = buf;
        io[i].region = CHM_NO_REGION;
        ready[i] = &io[i];
    }
    for (uint64_t done = 0; done < n; done += free) {
        for (unsigned i = 0; i < free; i++) {
            next_read(l, ready[i]);
        }
        if (chm_medium_submit(m, ready, free) != free) {
            bench_die("submit");
        }
        free = (unsigned)bench_check(chm_medium_reap(m, ready, BATCH, CHM_FOREVER_NS), "reap");
    }
    while (chm_medium_reap(m, ready, BATCH, CHM_FOREVER_NS) > 0) {
    }
    return chm_medium_now(m) - began;
}

static void run_medium(const char *name, uint32_t bytes, uint64_t seed, uint32_t depth, uint64_t n)
{
    struct chm_options o;
    struct chm_media_args args = {.opts = &o, .members = 1, .inflight_max = INFLIGHT_MAX};
    struct chm_error err;
    struct chm_medium *m;
    struct load l = {.bytes = bytes, .seed = seed};
    void *buf = bench_alloc(BENCH_MIB + BUF_ALIGN);

    drive_options(&o);
    if (chm_media_open(&args, &m, &err)) {
        bench_die("open: %s", err.text);
    }
    struct bench_span start = bench_start();
    uint64_t took_ns =
        read_medium(m, &l, (void *)(((uintptr_t)buf + BUF_ALIGN - 1) & ~(uintptr_t)(BUF_ALIGN - 1)),
                    depth, n);
    row(name, n, bench_since(start).cpu, took_ns);
    bench_check(chm_medium_close(m, CHM_FOREVER_NS), "close");
    free(buf);
}

/* ------------------------------------------------------------------ through the firmware */

/* Batches of 4 KiB, read into memory of the caller, two batches in flight. */
static void read_4k(chm_dev *dev, uint64_t n, uint64_t seed, uint8_t *buf)
{
    struct chm_read item[2][BATCH] = {0};
    uint64_t req[BATCH];
    int32_t status[BATCH];

    for (uint64_t round = 0; round < n / BATCH; round++) {
        struct chm_read *now = item[round % 2];
        for (unsigned i = 0; i < BATCH && round >= 2; i++) {
            req[i] = now[i].req;
        }
        if (round >= 2 && (chm_wait_many(dev, req, BATCH, UINT64_MAX, status) != BATCH ||
                           chm_release_many(dev, req, BATCH, NULL) != BATCH)) {
            bench_die("wait and release");
        }
        for (unsigned i = 0; i < BATCH; i++) {
            now[i] = (struct chm_read){.addr = bench_random(&seed) % (SPACE / 2) / 4096 * 4096,
                                       .len = 4096,
                                       .buf = buf + (size_t)i * 4096};
        }
        if (chm_read_issue(dev, now, BATCH) != BATCH) {
            bench_die("read_issue: %d", now[0].status);
        }
    }
    bench_check(chm_quiesce(dev, UINT64_MAX), "quiesce");
}

/* Objects of `bytes` staged in batches, `batches` of them ahead. */
static void stage(chm_dev *dev, uint64_t n, uint64_t seed, uint64_t bytes, uint32_t batch)
{
    struct chm_issue item[2][BATCH] = {0};
    uint64_t req[BATCH];
    int32_t status[BATCH];

    for (uint64_t round = 0; round < n / batch; round++) {
        struct chm_issue *now = item[round % 2];
        for (unsigned i = 0; i < batch && round >= 2; i++) {
            req[i] = now[i].req;
        }
        if (round >= 2 && (chm_wait_many(dev, req, batch, UINT64_MAX, status) != (int)batch ||
                           chm_release_many(dev, req, batch, NULL) != (int)batch)) {
            bench_die("wait and release");
        }
        for (unsigned i = 0; i < batch; i++) {
            uint64_t addr = bench_random(&seed) % (SPACE / 2) / bytes * bytes;
            now[i] = (struct chm_issue){.addr = addr, .len = bytes};
        }
        if (chm_issue(dev, now, batch, NULL) != (int)batch) {
            bench_die("issue: %d", now[0].status);
        }
    }
    bench_check(chm_quiesce(dev, UINT64_MAX), "quiesce");
}

static void run_firmware(const char *name, uint64_t n, uint64_t seed, uint64_t bytes, bool demand)
{
    static struct chm_stats stats;
    void *memory = bench_alloc((size_t)BATCH * 4096 + BUF_ALIGN);
    uint8_t *buf = (uint8_t *)(((uintptr_t)memory + BUF_ALIGN - 1) & ~(uintptr_t)(BUF_ALIGN - 1));
    struct chm_options o;
    chm_dev *dev;

    drive_options(&o);
    dev = bench_dev_open(&o);
    uint64_t start_ns = chm_now(dev);
    struct bench_span start = bench_start();
    if (demand) {
        read_4k(dev, n, seed, buf);
    } else {
        stage(dev, n, seed, bytes, bytes < BENCH_MIB ? BATCH : 32);
    }
    double cpu = bench_since(start).cpu;
    bench_check(chm_stats(dev, &stats), "stats");
    row(name, stats.sim_ios, cpu, chm_now(dev) - start_ns);
    bench_dev_close(dev);
    free(memory);
}

int main(int argc, char **argv)
{
    struct bench_args a;
    uint64_t n;

    bench_args(&a, argc, argv, 1);
    n = a.quick ? 2000000 : 20000000;
    if (bench_wanted(&a, "sim.4k.d64")) {
        run_medium("sim.4k.d64", 4096, a.seed, 64, n);
    }
    if (bench_wanted(&a, "sim.4k.d256")) {
        run_medium("sim.4k.d256", 4096, a.seed, 256, n);
    }
    if (bench_wanted(&a, "sim.1m.d64")) {
        run_medium("sim.1m.d64", 1 << 20, 0, 64, n / 4);
    }
    if (bench_wanted(&a, "sim.read.4k")) {
        run_firmware("sim.read.4k", n / 2, a.seed, 4096, true);
    }
    if (bench_wanted(&a, "sim.stage.4k")) {
        run_firmware("sim.stage.4k", n / 2, a.seed, 4096, false);
    }
    if (bench_wanted(&a, "sim.stage.1m")) {
        run_firmware("sim.stage.1m", n / 4, a.seed, BENCH_MIB, false);
    }
    return 0;
}
