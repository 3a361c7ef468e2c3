/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ram.c - how much bandwidth the device's bookkeeping could keep up with.
 *
 * The simulated medium without contents moves no bytes and its clock costs nothing, so wall time is
 * what the firmware needs: commands, window, scheduler, completions, and a little for the medium.
 * 1 MiB I/Os, as objects of 16 MiB and of 1 MiB, with the window kept full.
 */
#include "bench.h"
#include "disk.h"

enum { AHEAD_MAX = 128 };

static const uint64_t WINDOW = 128 * BENCH_MIB, BUFFER = 16 * BENCH_MIB, SPACE = 64 * BENCH_GIB;

static void take_and_issue(chm_dev *dev, uint64_t *req, uint64_t addr, uint64_t len)
{
    struct chm_issue item = {.addr = addr, .len = len};

    if (*req) {
        bench_check(chm_wait(dev, *req, UINT64_MAX), "wait");
        bench_check(chm_release(dev, *req), "release");
    }
    if (chm_issue(dev, &item, 1, NULL) != 1) {
        bench_check(item.status, "issue");
    }
    *req = item.req;
}

static void run(const char *name, uint64_t object_bytes, uint64_t bytes)
{
    static const struct bench_disk NONE;
    uint64_t req[AHEAD_MAX] = {0}, ahead = WINDOW / object_bytes;
    struct bench_span took, start;
    struct chm_options o;
    chm_dev *dev;

    bench_disk_options(&NONE, &o, WINDOW, BUFFER);
    o.media = "sim";
    o.sim.capacity_bytes = SPACE;
    o.sim.no_contents = 1;
    dev = bench_dev_open(&o);
    start = bench_start();
    for (uint64_t i = 0; i < bytes / object_bytes; i++) {
        take_and_issue(dev, &req[i % ahead], i * object_bytes % (SPACE / 2), object_bytes);
    }
    took = bench_since(start);
    for (uint64_t i = 0; i < ahead; i++) {
        bench_check(chm_release(dev, req[i]), "release");
    }
    bench_dev_close(dev);
    bench_row(name);
    bench_num("gb_per_s", (double)bytes / took.wall / 1e9);
    bench_num("us_per_io", took.wall * 1e6 / ((double)bytes / (double)BENCH_MIB));
    bench_row_end();
}

int main(int argc, char **argv)
{
    struct bench_args a;
    uint64_t bytes;

    bench_args(&a, argc, argv, 1);
    bytes = (a.quick ? 64 : 1024) * BENCH_GIB;
    if (bench_wanted(&a, "ram.16m")) {
        run("ram.16m", 16 * BENCH_MIB, bytes);
    }
    if (bench_wanted(&a, "ram.1m")) {
        run("ram.1m", BENCH_MIB, bytes);
    }
    return 0;
}
