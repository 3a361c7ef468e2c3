/* SPDX-License-Identifier: Apache-2.0 */
/*
 * priority.c - what reads keep, and what writes get, when both want one drive.
 *
 * The drive is one resource that reads and writes share: simulated (virtual time, exact), and a
 * real file under the pace wrapper, at a rate well below what the disk can do. Loads: reads alone,
 * writes alone, both with the device's scheduler, both first come first served. Reads are a stream
 * of 16 MiB objects with the window kept full, or single demand reads of 1 MiB one after the other.
 * Writes are as many 1 MiB objects as the write buffer admits, always.
 *
 * One thread does both, so that the simulated and the real run are the same program: it takes the
 * next object, then fills the write buffer up, and so on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "disk.h"

enum { OBJECT = 16 << 20, UNIT = 1 << 20, AHEAD = 8 };

static const uint64_t WINDOW = 128 * BENCH_MIB, BUFFER = 64 * BENCH_MIB, DISK = 1 * BENCH_GIB;
static const uint64_t TIMEOUT_NS = 60ull * CHM_SECOND;

struct medium {
    const char *name;
    uint64_t rate; /* bytes/s, reads and writes together */
    bool sim;
};

struct load {
    const struct medium *medium;
    const struct bench_disk *disk; /* NULL: simulated */
    bool reads, demand, writes, fcfs;
    bool no_barriers; /* durable at the end only */
    double seconds;   /* on the device's clock */
    uint64_t seed;
};

struct result {
    double read_rate, write_rate; /* bytes/s on the medium */
    double p50_ms, p99_ms;        /* of one object, or of one demand read */
    double flush_at_read_p99, flush_at_read_max;
};

struct worker {
    chm_dev *dev;
    const struct load *load;
    uint64_t capacity, write_at, state;
    uint64_t req[AHEAD], at_ns[AHEAD];
    uint64_t issued, taken;
    void *buf;
    struct bench_samples ms;
};

static chm_dev *open_device(const struct load *l)
{
    struct chm_options o;
    static const struct bench_disk NONE;

    bench_disk_options(l->disk ? l->disk : &NONE, &o, WINDOW, BUFFER);
    o.fcfs = l->fcfs;
    o.durability = l->no_barriers ? CHM_DURABILITY_NONE : CHM_DURABILITY_PERIODIC;
    if (l->medium->sim) {
        o.media = "sim";
        o.sim.capacity_bytes = DISK + 2 * BENCH_MIB;
        o.sim.read_rate = o.sim.write_rate = l->medium->rate;
        o.sim.no_contents = 1;
    } else {
        o.thread = 1;
        o.pace.rate = l->medium->rate;
    }
    return bench_dev_open(&o);
}

/* ---- writes: the upper half of the device, in order */

static void fill_buffer(struct worker *w)
{
    for (;;) {
        uint64_t half = w->capacity / 2;
        struct chm_write item = {.addr = half + w->write_at, .len = UNIT};
        int32_t status = 0;

        if (chm_write_begin(w->dev, &item, 1) != 1) {
            bench_check(item.status == -EAGAIN ? 0 : item.status, "write_begin");
            return;
        }
        if (!w->load->medium->sim) {
            bench_content_fill(&w->load->disk->content, item.addr, item.data, BENCH_PAGE);
        }
        if (chm_write_commit(w->dev, &item.id, 1, &status) != 1) {
            bench_check(status, "write_commit");
        }
        w->write_at = (w->write_at + UNIT) % half;
    }
}

/* ---- reads: random objects of the lower half */

static uint64_t read_addr(struct worker *w, uint64_t bytes)
{
    return bench_random(&w->state) % (w->capacity / 2 / bytes) * bytes;
}

static void issue_next(struct worker *w)
{
    struct chm_issue item = {.addr = read_addr(w, OBJECT), .len = OBJECT};

    if (chm_issue(w->dev, &item, 1, NULL) != 1) {
        bench_check(item.status, "issue");
    }
    w->at_ns[w->issued % AHEAD] = chm_now(w->dev);
    w->req[w->issued++ % AHEAD] = item.req;
}

static void take_next(struct worker *w)
{
    uint64_t i = w->taken++ % AHEAD;

    bench_check(chm_wait(w->dev, w->req[i], TIMEOUT_NS), "wait");
    bench_add(&w->ms, (double)(chm_now(w->dev) - w->at_ns[i]) * 1e-6);
    bench_check(chm_release(w->dev, w->req[i]), "release");
}

static void read_demand(struct worker *w)
{
    struct chm_read r = {.addr = read_addr(w, UNIT), .len = UNIT, .buf = w->buf};
    uint64_t at_ns = chm_now(w->dev);

    if (chm_read(w->dev, &r, 1, TIMEOUT_NS) != 1) {
        bench_check(r.status, "read");
    }
    bench_add(&w->ms, (double)(chm_now(w->dev) - at_ns) * 1e-6);
}

/* ---- a load */

static void idle_a_little(struct worker *w)
{
    if (w->load->medium->sim) {
        bench_check(chm_step(w->dev, chm_now(w->dev) + 1000000), "step");
    } else {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void turn(struct worker *w)
{
    if (w->load->writes) {
        fill_buffer(w);
    }
    if (w->load->demand) {
        read_demand(w);
    } else if (w->load->reads) {
        while (w->issued - w->taken < AHEAD) {
            issue_next(w);
        }
        take_next(w);
    } else {
        idle_a_little(w);
    }
}

static void give_up_rest(struct worker *w)
{
    while (w->taken < w->issued) {
        bench_check(chm_release(w->dev, w->req[w->taken++ % AHEAD]), "release");
    }
    bench_check(chm_quiesce(w->dev, TIMEOUT_NS), "quiesce");
}

static struct result measure(struct worker *w)
{
    static struct chm_stats before, after;
    uint64_t begin_ns, warm_ns = chm_now(w->dev) + (uint64_t)(w->load->seconds * 0.2e9);
    double took;

    while (chm_now(w->dev) < warm_ns) {
        turn(w);
    }
    w->ms.n = 0;
    bench_check(chm_stats(w->dev, &before), "stats");
    begin_ns = chm_now(w->dev);
    while (chm_now(w->dev) < begin_ns + (uint64_t)(w->load->seconds * 1e9)) {
        turn(w);
    }
    bench_check(chm_stats(w->dev, &after), "stats");
    took = (double)(chm_now(w->dev) - begin_ns) * 1e-9;
    return (struct result){
        .read_rate = (double)(after.read_bytes - before.read_bytes) / took,
        .write_rate = (double)(after.write_bytes - before.write_bytes) / took,
        .p50_ms = bench_quantile(&w->ms, 0.5),
        .p99_ms = bench_quantile(&w->ms, 0.99),
        .flush_at_read_p99 = (double)chm_hist_quantile(&after.flush_at_read, 0.99),
        .flush_at_read_max = (double)after.flush_inflight_at_read_max,
    };
}

static struct result run_load(const struct load *l)
{
    struct worker w = {.load = l, .capacity = DISK, .state = l->seed};
    struct result res;

    w.buf = aligned_alloc(BENCH_PAGE, UNIT);
    if (!w.buf) {
        bench_die("no memory");
    }
    memset(w.buf, 0, UNIT);
    w.dev = open_device(l);
    res = measure(&w);
    give_up_rest(&w);
    bench_dev_close(w.dev);
    bench_clear(&w.ms);
    free(w.buf);
    return res;
}

/* ---- what is reported */

static void bandwidth(const struct load *base, const char *name)
{
    struct load l = *base;
    struct result alone, writes, both, fcfs;

    l.reads = true;
    alone = run_load(&l);
    l.writes = true;
    both = run_load(&l);
    l.fcfs = true;
    fcfs = run_load(&l);
    l.fcfs = l.reads = false;
    writes = run_load(&l);
    bench_row(name);
    bench_num("read_share", both.read_rate / alone.read_rate);
    bench_num("write_share", both.write_rate / writes.write_rate);
    bench_num("fcfs_read_share", fcfs.read_rate / alone.read_rate);
    bench_num("fcfs_write_share", fcfs.write_rate / writes.write_rate);
    bench_num("read_gb_per_s", alone.read_rate / 1e9);
    bench_num("write_gb_per_s", writes.write_rate / 1e9);
    bench_num("object_p99_ms_alone", alone.p99_ms);
    bench_num("object_p99_ms", both.p99_ms);
    bench_num("fcfs_object_p99_ms", fcfs.p99_ms);
    bench_row_end();
}

/* The bound: what a read finds in flight on the write side when it arrives, one unit each. */
static void latency(const struct load *base, const char *name)
{
    struct load l = *base;
    struct result alone, both, bare, fcfs;
    double unit_ms = (double)UNIT / (double)base->medium->rate * 1e3;

    l.reads = l.demand = true;
    alone = run_load(&l);
    l.writes = true;
    both = run_load(&l);
    l.no_barriers = true;
    bare = run_load(&l);
    l.no_barriers = false;
    l.fcfs = true;
    fcfs = run_load(&l);
    bench_row(name);
    bench_num("p99_ms_alone", alone.p99_ms);
    bench_num("p99_ms", both.p99_ms);
    bench_num("fcfs_p99_ms", fcfs.p99_ms);
    bench_num("no_barriers_p99_ms", bare.p99_ms);
    bench_num("no_barriers_over_bound_units",
              (bare.p99_ms - alone.p99_ms) / unit_ms - bare.flush_at_read_p99);
    bench_num("unit_ms", unit_ms);
    bench_num("flush_units_at_arrival_p99", both.flush_at_read_p99);
    bench_num("flush_units_at_arrival_max", both.flush_at_read_max);
    bench_num("units_above_alone", (both.p99_ms - alone.p99_ms) / unit_ms);
    bench_num("over_bound_units", (both.p99_ms - alone.p99_ms) / unit_ms - both.flush_at_read_p99);
    bench_num("p50_ms_alone", alone.p50_ms);
    bench_num("p50_ms", both.p50_ms);
    bench_row_end();
}

int main(int argc, char **argv)
{
    static const struct medium SIM = {"sim", 2000000000, true}, PACED = {"paced", 200000000, false};
    static struct bench_disk disk;
    struct bench_args a;
    struct load l = {0};

    bench_args(&a, argc, argv, 1);
    l.seed = a.seed;
    l.seconds = a.quick ? 2 : 8;
    l.medium = &SIM;
    if (bench_wanted(&a, "priority.sim.bandwidth")) {
        bandwidth(&l, "priority.sim.bandwidth");
    }
    if (bench_wanted(&a, "priority.sim.demand")) {
        latency(&l, "priority.sim.demand");
    }
    if (!bench_wanted(&a, "priority.paced.bandwidth") &&
        !bench_wanted(&a, "priority.paced.demand")) {
        return 0;
    }
    bench_disk_make(&disk, &a, DISK);
    bench_disk_fill(&disk);
    l.medium = &PACED;
    l.disk = &disk;
    if (bench_wanted(&a, "priority.paced.bandwidth")) {
        bandwidth(&l, "priority.paced.bandwidth");
    }
    if (bench_wanted(&a, "priority.paced.demand")) {
        latency(&l, "priority.paced.demand");
    }
    bench_disk_remove(&disk);
    return 0;
}
