/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writes.c - durable writes against the raw writer.
 *
 * A segment is a list of objects, written from the first begin until chm_flush has returned: all of
 * them durable. The yardstick writes the same bytes from the same memory to the same blocks, then
 * calls fdatasync. Objects are "made in place": the producer has them in the write buffer already;
 * only the first page of each MiB is stamped, so that a lost unit would show. What a copy of the
 * caller costs comes on top and has rows of its own.
 *
 * Before anything is timed one untimed round writes full contents and reads them back past the
 * device; after the timed ones the stamps are looked at.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "disk.h"
#include "ref.h"

static const uint64_t WINDOW = 64 * BENCH_MIB, BUFFER = 64 * BENCH_MIB;
static const uint64_t SEGMENT = 256 * BENCH_MIB, SEGMENT_QUICK = 128 * BENCH_MIB;
static const uint64_t DISK = 2 * BENCH_GIB, DISK_QUICK = 512 * BENCH_MIB;

enum { BATCH = 8 /* objects of 1 MiB that are begun together */ };

enum way { IN_PLACE, COPIED };

struct kase {
    const char *name;
    enum way way;
    uint64_t object_bytes;
    uint32_t thread;
    uint32_t first_fill; /* 1: extents that were never written; one pass over the disk */
};

static const struct kase KASES[] = {
    {"writes.first-fill.16m", IN_PLACE, 16 << 20, 1, 1},
    {"writes.in-place.16m", IN_PLACE, 16 << 20, 1, 0},
    {"writes.in-place.1m", IN_PLACE, 1 << 20, 1, 0},
    {"writes.copied.16m", COPIED, 16 << 20, 1, 0},
    {"writes.copied.1m", COPIED, 1 << 20, 1, 0},
    {"writes.stepped.16m", IN_PLACE, 16 << 20, 0, 0},
    {"writes.stepped.1m", IN_PLACE, 1 << 20, 0, 0},
};

struct run {
    const struct bench_args *args;
    struct bench_disk *disk;
    const struct kase *kase;
    chm_dev *dev;
    struct bench_ref *ref;
    uint8_t *source; /* what COPIED copies from: one object */
    struct ref_io *log;
    uint64_t n; /* objects of a segment */
    uint64_t at;
    uint64_t round, refused;
    uint64_t pause_ns; /* in which the disk writes a quarter of the write buffer */
    struct bench_samples ratio, cpu, ref_cpu, rate;
};

/* ---- stamps: which page it is and in which round it was written */

static void stamp(const struct run *r, uint64_t addr, uint8_t *data, uint64_t len)
{
    for (uint64_t at = 0; at < len; at += BENCH_MIB) {
        ((uint64_t *)(data + at))[0] = addr + at;
        ((uint64_t *)(data + at))[1] = r->round;
    }
}

/* ---- writing through the device */

/* The write buffer is full: come back when a quarter of it is free, so that neither the disk nor
 * the processor is kept busy by asking. */
static void give_way(struct run *r)
{
    r->refused++;
    if (r->kase->thread) {
        nanosleep(&(struct timespec){.tv_nsec = (long)r->pause_ns}, NULL);
    } else {
        bench_check(chm_step(r->dev, chm_now(r->dev) + r->pause_ns), "step");
    }
}

/* Room for n objects, all of them at last; tries again for those that were refused. */
static void begin(struct run *r, struct chm_write *w, uint32_t n)
{
    uint32_t done = 0;

    while (done < n) {
        int rc = bench_check(chm_write_begin(r->dev, w + done, n - done), "write_begin");

        done += (uint32_t)rc;
        if (done < n) {
            bench_check(w[done].status == -EAGAIN ? 0 : w[done].status, "write_begin");
            give_way(r);
        }
    }
}

static void produce(struct run *r, const struct chm_write *w, const struct bench_content *full)
{
    if (full) {
        bench_content_fill(full, w->addr, w->data, w->len);
        return;
    }
    if (r->kase->way == COPIED) {
        memcpy(w->data, r->source, w->len);
    }
    stamp(r, w->addr, w->data, w->len);
}

/* Objects first .. first + n - 1 of the segment. */
static void write_objects(struct run *r, uint64_t first, uint32_t n,
                          const struct bench_content *full)
{
    struct chm_write w[BATCH];
    uint64_t ids[BATCH];
    int32_t status[BATCH];

    for (uint32_t k = 0; k < n; k++) {
        uint64_t addr = r->at + (first + k) * r->kase->object_bytes;

        w[k] = (struct chm_write){.addr = addr, .len = r->kase->object_bytes};
    }
    begin(r, w, n);
    for (uint32_t k = 0; k < n; k++) {
        produce(r, &w[k], full);
        ids[k] = w[k].id;
        r->log[first + k] =
            (struct ref_io){.off = bench_disk_offset(w[k].addr), .buf = w[k].data, .len = w[k].len};
    }
    if (chm_write_commit(r->dev, ids, n, status) != (int)n) {
        bench_die("write_commit: not all of %u objects were taken", n);
    }
}

static struct bench_span device_pass(struct run *r, const struct bench_content *full)
{
    uint32_t batch = r->kase->object_bytes == BENCH_MIB ? BATCH : 1;
    struct bench_span start = bench_start();

    r->round++;
    for (uint64_t i = 0; i < r->n; i += batch) {
        write_objects(r, i, batch, full);
    }
    bench_check(chm_flush(r->dev, UINT64_MAX), "flush");
    return bench_since(start);
}

/* ---- looking at what is on the disk, past the device */

static void read_raw(const struct run *r, int fd, uint64_t addr, void *buf, uint64_t len)
{
    if (pread(fd, buf, len, (off_t)bench_disk_offset(addr)) != (ssize_t)len) {
        bench_die("%s: %s", r->disk->path, strerror(errno));
    }
}

static void check_segment(const struct run *r, const struct bench_content *full)
{
    uint64_t *buf = aligned_alloc(BENCH_PAGE, BENCH_MIB);
    int fd = open(r->disk->path, O_RDONLY | O_DIRECT | O_CLOEXEC);

    if (!buf || fd < 0) {
        bench_die("%s: %s", r->disk->path, strerror(errno));
    }
    for (uint64_t i = 0; i < r->n * r->kase->object_bytes; i += BENCH_MIB) {
        read_raw(r, fd, r->at + i, buf, BENCH_MIB);
        if (full) {
            bench_content_check(full, r->at + i, buf, BENCH_MIB, "disk after flush");
        } else if (buf[0] != r->at + i || buf[1] != r->round) {
            bench_die("disk after flush: the unit at device address %llu is not what was written",
                      (unsigned long long)(r->at + i));
        }
    }
    close(fd);
    free(buf);
}

/* ---- segments */

/* For the yardstick before ours: the blocks of this segment, from the memory of the pass before. */
static void note_segment(struct run *r)
{
    for (uint64_t i = 0; i < r->n; i++) {
        r->log[i].off = bench_disk_offset(r->at + i * r->kase->object_bytes);
    }
}

static void segment(struct run *r)
{
    uint64_t bytes = r->n * r->kase->object_bytes;
    double gib = (double)bytes / (double)BENCH_GIB;
    struct bench_span before, ours, after;

    if (r->at + bytes > r->disk->bytes) {
        r->at = 0;
    }
    if (r->round == 0) {
        device_pass(r, &r->disk->content);
        check_segment(r, &r->disk->content);
    }
    note_segment(r);
    before = bench_ref_write(r->ref, r->log, r->n);
    r->pause_ns = (uint64_t)(before.wall * 1e9 * ((double)BUFFER / 4) / (double)bytes);
    ours = device_pass(r, NULL);
    check_segment(r, NULL);
    after = bench_ref_write(r->ref, r->log, r->n);
    bench_add(&r->ratio, (1 / ours.wall) / ((1 / before.wall + 1 / after.wall) / 2));
    bench_add(&r->cpu, ours.cpu / gib);
    bench_add(&r->ref_cpu, (before.cpu + after.cpu) / 2 / gib);
    bench_add(&r->rate, (double)bytes / ours.wall / 1e9);
    r->at += bytes;
}

/* Never-written extents can be written once: the yardstick has to take others of the same file. */
static void segment_first_fill(struct run *r)
{
    uint64_t bytes = r->n * r->kase->object_bytes;
    double gib = (double)bytes / (double)BENCH_GIB;
    struct bench_span ours, ref;

    if (r->at + 2 * bytes > r->disk->bytes) {
        return;
    }
    ours = device_pass(r, NULL);
    check_segment(r, NULL);
    r->at += bytes;
    for (uint64_t i = 0; i < r->n; i++) {
        r->log[i].off += bytes;
    }
    ref = bench_ref_write(r->ref, r->log, r->n);
    r->at += bytes;
    bench_add(&r->ratio, ref.wall / ours.wall);
    bench_add(&r->cpu, ours.cpu / gib);
    bench_add(&r->ref_cpu, ref.cpu / gib);
    bench_add(&r->rate, (double)bytes / ours.wall / 1e9);
}

/* ---- a case */

static void open_run(struct run *r)
{
    uint64_t bytes, segment_bytes = r->args->quick ? SEGMENT_QUICK : SEGMENT;
    struct chm_options o;
    uint8_t *memory;

    r->pause_ns = 8000000;
    segment_bytes = r->kase->first_fill ? SEGMENT_QUICK : segment_bytes;
    r->n = segment_bytes / r->kase->object_bytes;
    r->log = bench_alloc(r->n * sizeof(*r->log));
    r->source = bench_alloc(r->kase->object_bytes);
    bench_content_fill(&r->disk->content, 0, r->source, r->kase->object_bytes);
    bench_disk_options(r->disk, &o, WINDOW, BUFFER);
    o.thread = r->kase->thread;
    r->dev = bench_dev_open(&o);
    memory = bench_dev_memory(r->dev, &bytes);
    bench_ref_open(&r->ref, r->disk->path, memory, bytes);
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
    bench_num("segments", (double)r->ratio.n);
    bench_num("refused_per_object", (double)r->refused / (double)(r->n * r->round));
    bench_num("unit_mib", (double)stats.write_bytes / (double)stats.write_ios / (double)BENCH_MIB);
    bench_num("barriers", (double)stats.barriers);
    bench_row_end();
}

static void close_run(struct run *r)
{
    bench_ref_close(r->ref);
    bench_dev_close(r->dev);
    free(r->log);
    free(r->source);
    bench_clear(&r->ratio);
    bench_clear(&r->cpu);
    bench_clear(&r->ref_cpu);
    bench_clear(&r->rate);
}

static void run_case(const struct bench_args *a, struct bench_disk *disk, const struct kase *k)
{
    struct run *r = bench_alloc(sizeof(*r));

    r->args = a;
    r->disk = disk;
    r->kase = k;
    open_run(r);
    for (uint32_t i = 0; i < a->segments; i++) {
        if (k->first_fill) {
            segment_first_fill(r);
        } else {
            segment(r);
        }
    }
    report(r);
    close_run(r);
    free(r);
}

int main(int argc, char **argv)
{
    static struct bench_disk disk;
    struct bench_args a;

    bench_args(&a, argc, argv, 12);
    for (size_t i = 0; i < sizeof(KASES) / sizeof(KASES[0]); i++) {
        const struct kase *k = &KASES[i];

        if (bench_wanted(&a, k->name)) {
            bench_disk_make(&disk, &a, a.quick ? DISK_QUICK : DISK);
            if (!k->first_fill) {
                bench_disk_fill(&disk);
            }
            run_case(&a, &disk, k);
            bench_disk_remove(&disk);
        }
    }
    return 0;
}
