/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resident.c - issue + wait + release of an object that is in the window already.
 *
 * A holder keeps the object staged, so that nothing is read. Stepped, it is a few table look-ups;
 * with a device thread it is a queue and a hand-over between two cores: while that thread is awake,
 * and from when it has gone to sleep (every use then pays a wake-up). CPU is of the whole process.
 */
#include <stdlib.h>
#include <time.h>

#include "bench.h"
#include "disk.h"

enum { OBJECT = 1 << 20, ROUND = 2000, ROUNDS = 101, ASLEEP = 2000, BATCH = 32 };

static const uint64_t TIMEOUT_NS = 10ull * CHM_SECOND;

static void use_once(chm_dev *dev)
{
    struct chm_issue item = {.addr = 0, .len = OBJECT};

    if (chm_issue(dev, &item, 1, NULL) != 1) {
        bench_check(item.status, "issue");
    }
    bench_check(chm_wait(dev, item.req, TIMEOUT_NS), "wait");
    bench_check(chm_release(dev, item.req), "release");
}

static void use_batch(chm_dev *dev)
{
    struct chm_issue items[BATCH];
    uint64_t reqs[BATCH];
    int32_t status[BATCH];

    for (int i = 0; i < BATCH; i++) {
        items[i] = (struct chm_issue){.addr = 0, .len = OBJECT};
    }
    if (chm_issue(dev, items, BATCH, NULL) != BATCH) {
        bench_die("issue: refused");
    }
    for (int i = 0; i < BATCH; i++) {
        reqs[i] = items[i].req;
    }
    if (chm_wait_many(dev, reqs, BATCH, TIMEOUT_NS, status) != BATCH) {
        bench_die("wait_many: not all are ready");
    }
    chm_release_many(dev, reqs, BATCH, NULL);
}

/* Rounds back to back; the median of their means. */
static void back_to_back(const char *name, chm_dev *dev, void (*use)(chm_dev *dev))
{
    struct bench_samples us = {0};
    struct bench_span start = bench_start(), span;

    for (int k = 0; k < ROUNDS; k++) {
        double begin = bench_now();

        for (int i = 0; i < ROUND; i++) {
            use(dev);
        }
        bench_add(&us, (bench_now() - begin) / ROUND * 1e6);
    }
    span = bench_since(start);
    bench_row(name);
    bench_num("us", bench_median(&us));
    bench_num("us_min", bench_quantile(&us, 0));
    bench_num("us_p10", bench_quantile(&us, 0.1));
    bench_num("us_p90", bench_quantile(&us, 0.9));
    bench_num("cpu_us", span.cpu / (ROUNDS * (double)ROUND) * 1e6);
    bench_row_end();
    bench_clear(&us);
}

/* One use at a time, each long after the device thread has gone to sleep. */
static void from_asleep(const char *name, chm_dev *dev)
{
    struct bench_samples us = {0};
    struct bench_span start = bench_start(), span;

    for (int i = 0; i < ASLEEP; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        double begin = bench_now();

        use_once(dev);
        bench_add(&us, (bench_now() - begin) * 1e6);
    }
    span = bench_since(start);
    bench_row(name);
    bench_num("us", bench_quantile(&us, 0.5));
    bench_num("us_p99", bench_quantile(&us, 0.99));
    bench_num("cpu_us", span.cpu / ASLEEP * 1e6);
    bench_row_end();
    bench_clear(&us);
}

static void run(const struct bench_args *a, const struct bench_disk *disk, uint32_t thread)
{
    struct chm_issue hold = {.addr = 0, .len = OBJECT};
    struct chm_options o;
    chm_dev *dev;

    bench_disk_options(disk, &o, 16 * BENCH_MIB, 16 * BENCH_MIB);
    o.thread = thread;
    dev = bench_dev_open(&o);
    if (chm_issue(dev, &hold, 1, NULL) != 1) {
        bench_check(hold.status, "issue");
    }
    bench_check(chm_wait(dev, hold.req, TIMEOUT_NS), "wait");
    if (bench_wanted(a, thread ? "resident.awake" : "resident.stepped")) {
        back_to_back(thread ? "resident.awake" : "resident.stepped", dev, use_once);
    }
    if (bench_wanted(a, thread ? "resident.awake.batch32" : "resident.stepped.batch32")) {
        back_to_back(thread ? "resident.awake.batch32" : "resident.stepped.batch32", dev,
                     use_batch);
    }
    if (thread && bench_wanted(a, "resident.asleep")) {
        from_asleep("resident.asleep", dev);
    }
    bench_check(chm_release(dev, hold.req), "release");
    bench_dev_close(dev);
}

int main(int argc, char **argv)
{
    static struct bench_disk disk;
    struct bench_args a;

    bench_args(&a, argc, argv, 1);
    bench_disk_make(&disk, &a, 16 * BENCH_MIB);
    bench_disk_fill(&disk);
    run(&a, &disk, 0);
    run(&a, &disk, 1);
    bench_disk_remove(&disk);
    return 0;
}
