/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - what prefetching is worth when the way to the host is as slow as the drive.
 *
 * Without it, an object is read from the drive and then sent over the link, one after the other;
 * with it the next objects are read meanwhile. At equal rates the closed form says 2: 1/d + 1/l
 * against max(1/d, 1/l). Measured on the simulated drive (virtual time), on a real file paced to a
 * steady rate, and on the bare file with the link set to the rate that the raw reader has there.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "disk.h"
#include "ref.h"

enum { OBJECT = 16 << 20, AHEAD = 7 };

static const uint64_t WINDOW = 128 * BENCH_MIB, BUFFER = 16 * BENCH_MIB, DISK = 1280 * BENCH_MIB;
static const uint64_t TIMEOUT_NS = 60ull * CHM_SECOND;

struct setup {
    const struct bench_disk *disk;  /* NULL: simulated */
    uint64_t link_rate, drive_rate; /* drive_rate 0: as it is */
    uint64_t objects;
};

static chm_dev *open_device(const struct setup *s)
{
    static const struct bench_disk NONE;
    struct chm_options o;

    bench_disk_options(s->disk ? s->disk : &NONE, &o, WINDOW, BUFFER);
    o.link_rate = s->link_rate;
    if (!s->disk) {
        o.media = "sim";
        o.sim.capacity_bytes = DISK + 2 * BENCH_MIB;
        o.sim.read_rate = s->drive_rate;
        o.sim.no_contents = 1;
    } else {
        o.thread = 1;
        o.pace.rate = s->drive_rate;
    }
    return bench_dev_open(&o);
}

static uint64_t issue(chm_dev *dev, const uint64_t *order, uint64_t i)
{
    struct chm_issue item = {.addr = order[i] * OBJECT, .len = OBJECT};

    if (chm_issue(dev, &item, 1, NULL) != 1) {
        bench_check(item.status, "issue");
    }
    return item.req;
}

/* All objects in order, `ahead` of them on their way while one is waited for. Seconds on the
 * device's clock. */
static double consume(const struct setup *s, const uint64_t *order, uint64_t ahead,
                      const struct bench_content *check)
{
    chm_dev *dev = open_device(s);
    uint64_t req[AHEAD + 1], issued = 0, begin_ns = chm_now(dev);
    double took;

    for (uint64_t taken = 0; taken < s->objects; taken++) {
        struct chm_view view;

        while (issued < s->objects && issued <= taken + ahead) {
            req[issued % (AHEAD + 1)] = issue(dev, order, issued);
            issued++;
        }
        bench_check(chm_wait(dev, req[taken % (AHEAD + 1)], TIMEOUT_NS), "wait");
        bench_check(chm_view(dev, req[taken % (AHEAD + 1)], &view), "view");
        if (check) {
            bench_content_check(check, order[taken] * OBJECT, view.data, OBJECT, "device");
        }
        bench_check(chm_release(dev, req[taken % (AHEAD + 1)]), "release");
    }
    took = (double)(chm_now(dev) - begin_ns) * 1e-9;
    bench_dev_close(dev);
    return took;
}

/* The rate of the raw reader on the same objects, bytes/s. */
static uint64_t drive_rate(const struct setup *s, const uint64_t *order)
{
    struct ref_io *list = bench_alloc(s->objects * sizeof(*list));
    chm_dev *dev = open_device(s);
    uint64_t bytes;
    uint8_t *memory = bench_dev_memory(dev, &bytes);
    struct bench_ref *ref;
    double took;

    for (uint64_t i = 0; i < s->objects; i++) {
        list[i] = (struct ref_io){.off = bench_disk_offset(order[i] * OBJECT),
                                  .buf = memory + i % (WINDOW / OBJECT) * OBJECT,
                                  .len = OBJECT};
    }
    bench_ref_open(&ref, s->disk->path, memory, bytes);
    took = bench_ref_read(ref, list, s->objects).wall;
    bench_ref_close(ref);
    bench_dev_close(dev);
    free(list);
    return (uint64_t)((double)(s->objects * OBJECT) / took);
}

static void compare(const struct bench_args *a, const char *name, struct setup s, uint32_t rounds)
{
    uint64_t *order = bench_shuffled(DISK / OBJECT, a->seed);
    struct bench_samples gain = {0}, on = {0}, rate = {0};
    bool bare = s.drive_rate == 0;

    if (s.disk) {
        consume(&s, order, AHEAD, &s.disk->content);
    }
    for (uint32_t i = 0; i < rounds; i++) {
        double off_s, on_s;

        s.link_rate = bare ? 0 : s.link_rate;
        s.link_rate = bare ? drive_rate(&s, order) : s.link_rate;
        off_s = consume(&s, order, 0, NULL);
        on_s = consume(&s, order, AHEAD, NULL);
        bench_add(&gain, off_s / on_s);
        bench_add(&on, (double)(s.objects * OBJECT) / on_s / 1e9);
        bench_add(&rate, (double)s.link_rate / 1e9);
    }
    bench_row(name);
    bench_num("gain", bench_median(&gain));
    bench_num("gain_min", bench_quantile(&gain, 0));
    bench_num("gain_max", bench_quantile(&gain, 1));
    bench_num("on_gb_per_s", bench_median(&on));
    bench_num("link_gb_per_s", bench_median(&rate));
    bench_row_end();
    bench_clear(&gain);
    bench_clear(&on);
    bench_clear(&rate);
    free(order);
}

int main(int argc, char **argv)
{
    static struct bench_disk disk;
    struct setup sim = {.link_rate = 2000000000, .drive_rate = 2000000000, .objects = 64};
    struct setup paced = {.disk = &disk, .link_rate = 200000000, .drive_rate = 200000000};
    struct setup bare = {.disk = &disk};
    struct bench_args a;

    bench_args(&a, argc, argv, 5);
    paced.objects = a.quick ? 16 : 32;
    bare.objects = a.quick ? 32 : 64;
    if (bench_wanted(&a, "link.sim")) {
        compare(&a, "link.sim", sim, 1);
    }
    if (!bench_wanted(&a, "link.paced") && !bench_wanted(&a, "link.bare")) {
        return 0;
    }
    bench_disk_make(&disk, &a, DISK);
    bench_disk_fill(&disk);
    if (bench_wanted(&a, "link.paced")) {
        compare(&a, "link.paced", paced, a.quick ? 1 : 3);
    }
    if (bench_wanted(&a, "link.bare")) {
        compare(&a, "link.bare", bare, a.segments);
    }
    bench_disk_remove(&disk);
    return 0;
}
