/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - streaming reads against the raw reader.
 *
 * A segment is a list of objects from all over the footprint. It is read four times: by the device,
 * untimed, every byte checked; by the yardstick; by the device, timed; by the yardstick again. The
 * yardstick replays the very list of the device's run before it: same blocks, same memory, same
 * order. A ratio is device / mean of the two yardsticks; quoted is the median over the segments.
 * CPU is of the whole process, so it has the device thread in it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "disk.h"
#include "lane.h"

enum { STREAMS_MAX = 8, HUGE = 2 << 20 };

static const uint64_t WINDOW = 128 * BENCH_MIB, BUFFER = 16 * BENCH_MIB;
static const uint64_t SEGMENT = 512 * BENCH_MIB, SEGMENT_QUICK = 128 * BENCH_MIB;

struct kase {
    const char *name;
    enum lane_way way;
    uint64_t object_bytes;
    uint32_t streams;
    uint32_t thread;    /* 1: device thread, 0: stepped by the consumer */
    uint32_t footprint; /* times the DRAM budget */
    uint32_t plain;     /* 1: registration refused */
};

#define M16 (16 << 20)
#define M1 (1 << 20)

static const struct kase KASES[] = {
    {"stream.staged.16m.s1", LANE_STAGED, M16, 1, 1, 8, 0},
    {"stream.staged.16m.s8", LANE_STAGED, M16, 8, 1, 8, 0},
    {"stream.staged.1m.s1", LANE_STAGED, M1, 1, 1, 8, 0},
    {"stream.staged.1m.s8", LANE_STAGED, M1, 8, 1, 8, 0},
    {"stream.stream.16m.s1", LANE_STREAM, M16, 1, 1, 8, 0},
    {"stream.stream.16m.s8", LANE_STREAM, M16, 8, 1, 8, 0},
    {"stream.stream.1m.s1", LANE_STREAM, M1, 1, 1, 8, 0},
    {"stream.stream.1m.s8", LANE_STREAM, M1, 8, 1, 8, 0},
    {"stream.stepped.16m.s1", LANE_STAGED, M16, 1, 0, 8, 0},
    {"stream.stepped.16m.s8", LANE_STAGED, M16, 8, 0, 8, 0},
    {"stream.stepped.1m.s1", LANE_STAGED, M1, 1, 0, 8, 0},
    {"stream.stepped.1m.s8", LANE_STAGED, M1, 8, 0, 8, 0},
    {"stream.direct.16m.s1", LANE_DIRECT, M16, 1, 1, 8, 0},
    {"stream.direct.1m.s1", LANE_DIRECT, M1, 1, 1, 8, 0},
    {"stream.copied.16m.s1", LANE_COPIED, M16, 1, 1, 8, 0},
    {"stream.copied.1m.s1", LANE_COPIED, M1, 1, 1, 8, 0},
    {"stream.plain.16m.s1", LANE_STAGED, M16, 1, 1, 8, 1},
    {"stream.plain.1m.s1", LANE_STAGED, M1, 1, 1, 8, 1},
    {"stream.footprint.2x", LANE_STAGED, M16, 1, 1, 2, 0},
    {"stream.footprint.32x", LANE_STAGED, M16, 1, 1, 32, 0},
};

struct run {
    const struct bench_args *args;
    const struct bench_disk *disk;
    const struct kase *kase;
    chm_dev *dev;
    struct bench_ref *ref;
    uint8_t *arena;
    uint64_t arena_bytes;
    struct lane lane[STREAMS_MAX];
    struct ref_io *log; /* of all lanes, in order of time */
    size_t logged;
    uint64_t *order; /* the objects of the footprint, shuffled */
    uint64_t objects, at, per_segment;
    struct bench_samples ratio, cpu, rate, ref_cpu, ms;
    struct bench_samples lane_ms[STREAMS_MAX];
};

/* ---- one pass of the device over a segment */

static void *lane_main(void *arg)
{
    struct lane *l = arg;

    lane_begin(l);
    while (lane_turn(l)) {
    }
    lane_end(l);
    return NULL;
}

static void run_threads(struct run *r)
{
    pthread_t thread[STREAMS_MAX];

    for (uint32_t i = 1; i < r->kase->streams; i++) {
        bench_check(-pthread_create(&thread[i], NULL, lane_main, &r->lane[i]), "thread");
    }
    lane_main(&r->lane[0]);
    for (uint32_t i = 1; i < r->kase->streams; i++) {
        pthread_join(thread[i], NULL);
    }
}

/* A stepped device belongs to one thread: the streams take turns. */
static void run_turns(struct run *r)
{
    bool more = true;

    for (uint32_t i = 0; i < r->kase->streams; i++) {
        lane_begin(&r->lane[i]);
    }
    while (more) {
        more = false;
        for (uint32_t i = 0; i < r->kase->streams; i++) {
            more = lane_turn(&r->lane[i]) || more;
        }
    }
    for (uint32_t i = 0; i < r->kase->streams; i++) {
        lane_end(&r->lane[i]);
    }
}

/* The log of all lanes in order of time, and their latencies if they are wanted. */
static void gather(struct run *r, bool timed)
{
    r->logged = 0;
    for (uint32_t i = 0; i < r->kase->streams; i++) {
        struct lane *l = &r->lane[i];

        memcpy(r->log + r->logged, l->log, l->logged * sizeof(*l->log));
        r->logged += l->logged;
        for (size_t k = 0; timed && k < l->ms->n; k++) {
            bench_add(&r->ms, l->ms->at[k]);
        }
        l->ms->n = 0;
    }
    bench_ref_sort(r->log, r->logged);
}

static struct bench_span device_pass(struct run *r, const struct bench_content *check)
{
    struct bench_span start, span;

    for (uint32_t i = 0; i < r->kase->streams; i++) {
        r->lane[i].check = check;
    }
    start = bench_start();
    if (r->kase->thread) {
        run_threads(r);
    } else {
        run_turns(r);
    }
    span = bench_since(start);
    gather(r, check == NULL);
    return span;
}

/* ---- segments */

/* Give the next objects of the footprint out to the lanes. */
static void next_segment(struct run *r)
{
    uint64_t each = r->per_segment / r->kase->streams;

    if (r->at + r->per_segment > r->objects) {
        r->at = 0;
    }
    for (uint32_t i = 0; i < r->kase->streams; i++) {
        r->lane[i].objects = r->order + r->at + i * each;
        r->lane[i].n = each;
    }
    r->at += r->per_segment;
}

static void segment(struct run *r)
{
    uint64_t bytes = r->per_segment * r->kase->object_bytes;
    double gib = (double)bytes / (double)BENCH_GIB;
    struct bench_span before, ours, after;

    next_segment(r);
    device_pass(r, &r->disk->content);
    before = bench_ref_read(r->ref, r->log, r->logged);
    ours = device_pass(r, NULL);
    after = bench_ref_read(r->ref, r->log, r->logged);
    bench_add(&r->ratio, (1 / ours.wall) / ((1 / before.wall + 1 / after.wall) / 2));
    bench_add(&r->cpu, ours.cpu / gib);
    bench_add(&r->ref_cpu, (before.cpu + after.cpu) / 2 / gib);
    bench_add(&r->rate, (double)bytes / ours.wall / 1e9);
}

/* ---- a case */

static void open_device(struct run *r)
{
    const struct kase *k = r->kase;
    struct chm_options o;

    bench_disk_options(r->disk, &o, WINDOW, BUFFER);
    o.thread = k->thread;
    o.force_no_register = k->plain;
    r->dev = bench_dev_open(&o);
}

/* Memory of the caller, of huge pages where the system gives them, as engines allocate it, and
 * touched. */
static uint8_t *map_arena(uint64_t bytes)
{
    uint8_t *map =
        mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *base = map + (HUGE - (uintptr_t)map % HUGE) % HUGE;

    if (map == MAP_FAILED) {
        bench_die("no memory for %llu bytes of buffers", (unsigned long long)bytes);
    }
    madvise(base, bytes, MADV_HUGEPAGE);
    memset(base, 0, bytes);
    munmap(map, (size_t)(base - map));
    munmap(base + bytes, (size_t)(map + HUGE - base));
    return base;
}

static void open_memory(struct run *r, uint32_t ahead)
{
    const struct kase *k = r->kase;
    bool own = k->way == LANE_DIRECT || k->way == LANE_COPIED;
    uint64_t bytes;
    uint8_t *base = bench_dev_memory(r->dev, &bytes);

    if (own) {
        bytes = ahead * k->streams * lane_stride(k->way, k->object_bytes);
        base = map_arena(bytes);
        r->arena = base;
        r->arena_bytes = bytes;
        bench_check(chm_memory_register(r->dev, base, bytes), "register");
    }
    bench_ref_open(&r->ref, r->disk->path, base, bytes);
}

static void open_lanes(struct run *r, uint32_t ahead)
{
    const struct kase *k = r->kase;
    uint64_t each = r->per_segment / k->streams;
    uint64_t pieces = each * (k->object_bytes / BENCH_MIB);

    r->log = bench_alloc(r->per_segment * (k->object_bytes / BENCH_MIB) * sizeof(*r->log));
    for (uint32_t i = 0; i < k->streams; i++) {
        r->lane[i] = (struct lane){
            .dev = r->dev,
            .way = k->way,
            .object_bytes = k->object_bytes,
            .ahead = ahead,
            .log = bench_alloc(pieces * sizeof(struct ref_io)),
            .ms = &r->lane_ms[i],
        };
        if (r->arena) {
            r->lane[i].arena = r->arena + i * ahead * lane_stride(k->way, k->object_bytes);
        }
    }
}

static void open_run(struct run *r)
{
    const struct kase *k = r->kase;
    uint64_t budget = WINDOW + 8 * BENCH_MIB + BUFFER;
    uint64_t footprint = k->footprint * budget;
    uint64_t ahead = WINDOW / k->object_bytes / k->streams;
    uint64_t segment_bytes = r->args->quick ? SEGMENT_QUICK : SEGMENT;

    segment_bytes = segment_bytes < footprint ? segment_bytes
                                              : footprint / (256 * BENCH_MIB) * (256 * BENCH_MIB);
    r->objects = footprint / k->object_bytes;
    r->per_segment = segment_bytes / k->object_bytes;
    r->order = bench_shuffled(r->objects, r->args->seed);
    open_device(r);
    open_memory(r, (uint32_t)ahead);
    open_lanes(r, (uint32_t)ahead);
}

static void close_run(struct run *r)
{
    for (uint32_t i = 0; i < r->kase->streams; i++) {
        free(r->lane[i].log);
        bench_clear(&r->lane_ms[i]);
    }
    bench_ref_close(r->ref);
    if (r->arena) {
        bench_check(chm_memory_unregister(r->dev, r->arena), "unregister");
        munmap(r->arena, r->arena_bytes);
    }
    bench_dev_close(r->dev);
    free(r->order);
    free(r->log);
    bench_clear(&r->ratio);
    bench_clear(&r->cpu);
    bench_clear(&r->ref_cpu);
    bench_clear(&r->rate);
    bench_clear(&r->ms);
}

static void report(struct run *r)
{
    static struct chm_stats stats;

    bench_check(chm_stats(r->dev, &stats), "stats");
    bench_row(r->kase->name);
    bench_num("ratio", bench_median(&r->ratio));
    bench_num("ratio_min", bench_quantile(&r->ratio, 0));
    bench_num("ratio_max", bench_quantile(&r->ratio, 1));
    bench_num("cpu_s_per_gib", bench_median(&r->cpu));
    bench_num("ref_cpu_s_per_gib", bench_median(&r->ref_cpu));
    bench_num("gb_per_s", bench_median(&r->rate));
    bench_num("p50_ms", bench_quantile(&r->ms, 0.5));
    bench_num("p99_ms", bench_quantile(&r->ms, 0.99));
    bench_num("segments", (double)r->ratio.n);
    bench_num("sleeps_per_io", (double)stats.sleeps / (double)(stats.read_ios + 1));
    bench_row_end();
}

static void run_case(const struct bench_args *a, const struct bench_disk *disk,
                     const struct kase *k)
{
    struct run *r = bench_alloc(sizeof(*r));

    r->args = a;
    r->disk = disk;
    r->kase = k;
    open_run(r);
    for (uint32_t i = 0; i < a->segments; i++) {
        segment(r);
    }
    report(r);
    close_run(r);
    free(r);
}

int main(int argc, char **argv)
{
    static struct bench_disk disk;
    struct bench_args a;
    uint32_t most = 0;

    bench_args(&a, argc, argv, 12);
    for (size_t i = 0; i < sizeof(KASES) / sizeof(KASES[0]); i++) {
        if (bench_wanted(&a, KASES[i].name) && KASES[i].footprint > most) {
            most = KASES[i].footprint;
        }
    }
    bench_disk_make(&disk, &a, most * (WINDOW + 8 * BENCH_MIB + BUFFER));
    bench_disk_fill(&disk);
    for (size_t i = 0; i < sizeof(KASES) / sizeof(KASES[0]); i++) {
        if (bench_wanted(&a, KASES[i].name)) {
            run_case(&a, &disk, &KASES[i]);
        }
    }
    bench_disk_remove(&disk);
    return 0;
}
