/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - the key-value store: look-ups, memory and reopening with an index of 10 TiB of objects,
 * and puts and gets against the bare device in the same process.
 *
 * The index rows are on a simulated device of 11 TiB that keeps what is written to it: 655,360
 * objects of 16 MiB are entered without their bytes, through the store's own insides, so that the
 * index, the journal and checkpoints are real and 10 TiB are not written. Reopening reads the index
 * at the speed of memory: what is measured is what the store makes of it.
 *
 * Publishing counters is counted by itself, without a namespace and with 256.
 *
 * The others are on a file: half of the device is a store, the other half is used bare. Objects of
 * 16 MiB, a segment of one way beside a segment of the other, with checksums on; durable writes,
 * and direct reads into memory of the caller, as many in flight on both sides.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "disk.h"
#include "media/sim_image.h"
#include "store/kv.h"

enum {
    OBJECTS = 655360,
    BATCH = 32,
    INFLIGHT = 8,    /* objects asked for at once */
    PUBLISHED = 256, /* namespaces */
};

static const uint64_t OBJECT = 16 * BENCH_MIB, SIM_BYTES = 11ull << 40;
static const uint64_t SEGMENT = 256 * BENCH_MIB, HALF = BENCH_GIB, HALF_QUICK = 384 * BENCH_MIB;

static struct chm_key key_of(uint64_t number)
{
    struct chm_key key;
    uint64_t state = number, a = bench_random(&state);

    memcpy(key.bytes, &a, 8);
    memcpy(key.bytes + 8, &number, 8);
    return key;
}

/* ---- the index */

struct world {
    struct chm_sim_keep keep;
    chm_dev *dev;
    chm_store *store;
    uint32_t ns;
};

static void device_open(struct world *w)
{
    struct chm_options o;
    struct chm_error err;

    chm_options_init(&o);
    o.media = "sim";
    o.sim.capacity_bytes = SIM_BYTES;
    o.sim.keep = &w->keep;
    o.dram_bytes = 128 * BENCH_MIB;
    o.prefault = 1;
    if (chm_open(&o, &w->dev, &err) < 0) {
        bench_die("open: %s", err.text);
    }
}

static double store_open(struct world *w)
{
    struct chm_error err;
    struct bench_span span = bench_start();

    if (chm_store_open(w->dev, NULL, &w->store, &err) < 0) {
        bench_die("store open: %s", err.text);
    }
    span = bench_since(span);
    bench_check(chm_store_namespace(w->store, "bench", 5, 0, &w->ns), "namespace");
    return span.cpu;
}

/* An object without bytes. */
static void enter(struct world *w, uint64_t number)
{
    struct chm_store *s = w->store;
    struct chm_kv_entry *e;
    uint32_t entry;

    pthread_mutex_lock(&s->lock);
    entry = chm_kv_entry_take(s);
    if (entry == CHM_KV_NONE) {
        bench_die("no entry left at object %llu", (unsigned long long)number);
    }
    e = chm_kv_at(s, entry);
    e->key = key_of(number);
    e->ns = w->ns;
    e->len = (uint32_t)OBJECT;
    bench_check(chm_kv_place_take(s, entry), "space");
    e->state = KV_PUTTING;
    chm_kv_directory_add(s, entry);
    s->spaces[w->ns].used_bytes += chm_kv_space_bytes(s, e);
    s->stats.used_bytes += chm_kv_space_bytes(s, e);
    chm_kv_entry_publish(s, entry);
    pthread_mutex_unlock(&s->lock);
}

static void enter_all(struct world *w)
{
    struct chm_store_format_options f;
    struct chm_error err;

    chm_store_format_options_init(&f);
    f.max_objects = OBJECTS;
    if (chm_store_format(w->dev, &f, &err) < 0) {
        bench_die("format: %s", err.text);
    }
    store_open(w);
    w->store->opt.free_percent = 0; /* every entry is used */
    for (uint64_t i = 0; i < OBJECTS; i++) {
        enter(w, i);
        if (i % 4096 == 4095) {
            bench_check(chm_store_sync(w->store, CHM_SECOND * 600ull), "sync");
        }
    }
    bench_check(chm_store_sync(w->store, CHM_SECOND * 600ull), "sync");
}

static void lookups(struct world *w, const struct bench_args *a, uint64_t offset, const char *name)
{
    uint64_t rounds = a->quick ? 20000 : 100000, n = rounds * BATCH;
    uint64_t *order = bench_shuffled(OBJECTS, a->seed);
    struct chm_key *keys = bench_alloc(OBJECTS * sizeof(*keys));
    struct bench_samples rate = {0};

    for (uint64_t i = 0; i < OBJECTS; i++) {
        keys[i] = key_of(order[i] + offset);
    }
    for (uint32_t k = 0; k < a->segments; k++) {
        struct bench_span span = bench_start();
        uint64_t hits = 0;

        for (uint64_t i = 0; i < rounds; i++) {
            hits +=
                (uint64_t)chm_store_exists(w->store, w->ns, keys + i * BATCH % (OBJECTS - BATCH),
                                           BATCH, 0, NULL, NULL);
        }
        span = bench_since(span);
        if (hits != (offset ? 0 : n)) {
            bench_die("%s: %llu hits", name, (unsigned long long)hits);
        }
        bench_add(&rate, (double)n / span.cpu / 1e6);
    }
    bench_row(name);
    bench_num("million_per_cpu_s", bench_median(&rate));
    bench_num("min", bench_quantile(&rate, 0));
    bench_num("max", bench_quantile(&rate, 1));
    bench_row_end();
    bench_clear(&rate);
    free(order);
    free(keys);
}

static void memory_row(const struct world *w)
{
    struct chm_store_info info;

    bench_check(chm_store_info(w->store, &info), "info");
    bench_row("store.memory");
    bench_num("entries_bytes", (double)info.memory_entries_bytes);
    bench_num("directory_bytes", (double)info.memory_directory_bytes);
    bench_num("other_bytes", (double)info.memory_other_bytes);
    bench_num("total_mib", (double)(info.memory_entries_bytes + info.memory_directory_bytes +
                                    info.memory_other_bytes) /
                               (double)BENCH_MIB);
    bench_row_end();
}

static void reopen(struct world *w, const char *name, bool crash)
{
    struct chm_store_info info;
    double seconds;

    w->store->crashed = crash;
    bench_check(chm_store_close(w->store, CHM_SECOND * 600ull), "close");
    bench_check(chm_close(w->dev, UINT64_MAX), "device close");
    device_open(w);
    seconds = store_open(w);
    bench_check(chm_store_info(w->store, &info), "info");
    if (info.recovered_objects != OBJECTS || info.clean == crash) {
        bench_die("%s: %llu objects came back", name, (unsigned long long)info.recovered_objects);
    }
    bench_row(name);
    bench_num("cpu_s", seconds);
    bench_num("objects", (double)info.recovered_objects);
    bench_num("records", (double)info.recovered_records);
    bench_row_end();
}

/* Fill the journal behind the last checkpoint with records of objects that go and come. */
static void churn(struct world *w)
{
    w->store->opt.free_percent = 0;
    for (uint64_t i = 0; i < 400000 && w->store->check.state == KV_CHECK_IDLE; i += 4096) {
        struct chm_key keys[4096];
        int32_t status[4096];
        struct chm_store_done done;
        uint64_t id;
        struct chm_store_job job = {
            .op = CHM_STORE_DELETE, .ns = w->ns, .n = 4096, .keys = keys, .status = status};

        for (uint64_t k = 0; k < 4096; k++) {
            keys[k] = key_of(i + k);
        }
        bench_check(chm_store_submit(w->store, &job, &id), "submit");
        bench_check(chm_store_drain(w->store, &done, 1, UINT64_MAX), "drain");
        bench_check(chm_store_sync(w->store, CHM_SECOND * 600ull), "sync");
        for (uint64_t k = 0; k < 4096; k++) {
            enter(w, i + k);
        }
        bench_check(chm_store_sync(w->store, CHM_SECOND * 600ull), "sync");
    }
}

static void index_rows(const struct bench_args *a)
{
    struct world *w = bench_alloc(sizeof(*w));

    memset(w, 0, sizeof(*w));
    device_open(w);
    enter_all(w);
    memory_row(w);
    lookups(w, a, 0, "store.lookup.hits");
    lookups(w, a, OBJECTS, "store.lookup.misses");
    reopen(w, "store.reopen.clean", false);
    churn(w);
    reopen(w, "store.reopen.crash", true);
    bench_check(chm_store_close(w->store, CHM_SECOND * 600ull), "close");
    bench_check(chm_close(w->dev, UINT64_MAX), "device close");
    chm_sim_keep_free(&w->keep);
    free(w);
}

/* ---- checksums */

static void sum_row(const struct bench_args *a)
{
    uint8_t *p = bench_alloc(SEGMENT);
    struct bench_samples cold = {0}, warm = {0};
    volatile uint64_t sink = 0;

    memset(p, 1, SEGMENT);
    for (uint32_t k = 0; k < a->segments; k++) {
        struct bench_span span = bench_start();

        for (uint64_t at = 0; at < SEGMENT; at += BENCH_MIB) {
            sink += chm_sum_once(p + at, BENCH_MIB, at);
        }
        bench_add(&cold, bench_since(span).cpu * (double)BENCH_GIB / (double)SEGMENT);
        span = bench_start();
        for (uint64_t at = 0; at < SEGMENT; at += 64 * BENCH_KIB) {
            sink += chm_sum_once(p, 64 * BENCH_KIB, at);
        }
        bench_add(&warm, bench_since(span).cpu * (double)BENCH_GIB / (double)SEGMENT);
    }
    bench_row("store.sum");
    bench_num("cold_cpu_s_per_gib", bench_median(&cold));
    bench_num("warm_cpu_s_per_gib", bench_median(&warm));
    bench_row_end();
    bench_clear(&cold);
    bench_clear(&warm);
    free(p);
}

/* ---- publishing counters */

static double publish_ns(const struct bench_args *a, chm_store *s)
{
    enum { TURNS = 500 };
    struct bench_samples ns = {0};
    double out;

    for (uint32_t k = 0; k < a->segments; k++) {
        struct bench_span span = bench_start();

        for (int i = 0; i < TURNS; i++) {
            s->publish.next_ns = 0;
            chm_kv_publish_step(s);
        }
        bench_add(&ns, bench_since(span).cpu / TURNS * 1e9);
    }
    out = bench_median(&ns);
    bench_clear(&ns);
    return out;
}

/* The device is stepped, so that nobody else publishes. */
static void publish_row(const struct bench_args *a)
{
    static struct bench_disk disk;
    struct chm_options o;
    struct chm_error err = {0};
    chm_dev *dev;
    chm_store *s;
    double one;

    bench_disk_make(&disk, a, 64 * BENCH_MIB);
    bench_disk_options(&disk, &o, 8 * BENCH_MIB, 8 * BENCH_MIB);
    dev = bench_dev_open(&o);
    if (chm_store_format(dev, NULL, &err) < 0 || chm_store_open(dev, NULL, &s, &err) < 0) {
        bench_die("store: %s", err.text);
    }
    if (s->publish.fd < 0) {
        bench_die("nothing is published here");
    }
    one = publish_ns(a, s);
    for (uint32_t i = 0; i < PUBLISHED; i++) {
        uint32_t ns;

        bench_check(chm_store_namespace(s, &i, sizeof(i), 0, &ns), "namespace");
    }
    bench_row("store.publish");
    bench_num("cpu_ns", one);
    bench_num("cpu_ns_256_namespaces", publish_ns(a, s));
    bench_row_end();
    bench_check(chm_store_close(s, UINT64_MAX), "close");
    bench_dev_close(dev);
    bench_disk_remove(&disk);
}

/* ---- puts and gets */

struct run {
    const struct bench_args *args;
    chm_dev *dev;
    chm_store *store;
    uint32_t ns;
    uint64_t half, n; /* objects of a segment */
    uint64_t at, next;
    uint8_t *memory; /* a segment */
};

/* The same bytes to the bare half. */
static struct bench_span bare_put(struct run *r)
{
    struct bench_span span = bench_start();

    for (uint64_t at = 0; at < SEGMENT; at += BENCH_MIB) {
        int rc;

        while ((rc = chm_write(r->dev, r->at + at, r->memory + at, BENCH_MIB)) == -EAGAIN) {
            usleep(200);
        }
        bench_check(rc, "write");
    }
    bench_check(chm_flush(r->dev, UINT64_MAX), "flush");
    r->at = r->at + 2 * SEGMENT > r->half ? 0 : r->at + SEGMENT;
    return bench_since(span);
}

static struct bench_span bare_get(struct run *r)
{
    struct chm_read items[INFLIGHT * 16];
    struct bench_span span = bench_start();
    uint64_t step = sizeof(items) / sizeof(items[0]);

    for (uint64_t at = 0; at < SEGMENT; at += step * BENCH_MIB) {
        for (uint64_t i = 0; i < step; i++) {
            items[i] = (struct chm_read){.addr = at + i * BENCH_MIB,
                                         .len = BENCH_MIB,
                                         .buf = r->memory + at + i * BENCH_MIB};
        }
        bench_check(chm_read(r->dev, items, (uint32_t)step, UINT64_MAX), "read");
    }
    return bench_since(span);
}

static void run_job(struct run *r, uint32_t op, uint64_t first)
{
    struct chm_key keys[64];
    struct chm_part parts[64];
    int32_t status[64];
    struct chm_store_job job = {.op = op,
                                .flags = op == CHM_STORE_PUT ? CHM_STORE_WAIT : 0,
                                .ns = r->ns,
                                .n = INFLIGHT,
                                .keys = keys,
                                .parts = parts,
                                .status = status,
                                .timeout_ns = UINT64_MAX};
    uint64_t id;

    for (uint64_t at = 0; at < r->n; at += INFLIGHT) {
        struct chm_store_done done;

        for (uint64_t i = 0; i < INFLIGHT; i++) {
            keys[i] = key_of(first + at + i);
            parts[i] = (struct chm_part){.data = r->memory + (at + i) * OBJECT, .len = OBJECT};
        }
        bench_check(chm_store_submit(r->store, &job, &id), "submit");
        while (bench_check(chm_store_drain(r->store, &done, 1, UINT64_MAX), "drain") == 0) {
        }
        bench_check(done.result, "job");
    }
}

static struct bench_span store_put(struct run *r)
{
    struct bench_span span = bench_start();

    run_job(r, CHM_STORE_PUT, r->next);
    bench_check(chm_store_sync(r->store, UINT64_MAX), "sync");
    r->next += r->n;
    return bench_since(span);
}

static struct bench_span store_get(struct run *r)
{
    struct bench_span span = bench_start();

    run_job(r, CHM_STORE_GET, r->next - r->n);
    return bench_since(span);
}

static void compare(struct run *r, const char *name, struct bench_span (*bare)(struct run *),
                    struct bench_span (*ours)(struct run *))
{
    struct bench_samples ratio = {0}, cpu = {0}, bare_cpu = {0}, rate = {0};
    double gib = (double)SEGMENT / (double)BENCH_GIB;

    for (uint32_t k = 0; k < r->args->segments; k++) {
        struct bench_span before = bare(r), mine = ours(r), after = bare(r);

        bench_add(&ratio, (1 / mine.wall) / ((1 / before.wall + 1 / after.wall) / 2));
        bench_add(&cpu, mine.cpu / gib);
        bench_add(&bare_cpu, (before.cpu + after.cpu) / 2 / gib);
        bench_add(&rate, (double)SEGMENT / mine.wall / 1e9);
    }
    bench_row(name);
    bench_num("ratio", bench_median(&ratio));
    bench_num("ratio_min", bench_quantile(&ratio, 0));
    bench_num("ratio_max", bench_quantile(&ratio, 1));
    bench_num("cpu_s_per_gib", bench_median(&cpu));
    bench_num("device_cpu_s_per_gib", bench_median(&bare_cpu));
    bench_num("gb_per_s", bench_median(&rate));
    bench_row_end();
    bench_clear(&ratio);
    bench_clear(&cpu);
    bench_clear(&bare_cpu);
    bench_clear(&rate);
}

/* A store behind the bare part of the device. */
static void store_make(struct run *r, uint64_t base)
{
    struct chm_store_format_options f;
    struct chm_store_options so;
    struct chm_error err = {0};

    chm_store_format_options_init(&f);
    chm_store_options_init(&so);
    f.base = so.base = base;
    if (chm_store_format(r->dev, &f, &err) < 0 ||
        chm_store_open(r->dev, &so, &r->store, &err) < 0) {
        bench_die("store: %s", err.text);
    }
    bench_check(chm_store_namespace(r->store, "bench", 5, 0, &r->ns), "namespace");
}

/* ns that the drive takes for a segment without a store. */
static uint64_t sim_bare(struct run *r)
{
    uint64_t begin = chm_now(r->dev);

    for (uint64_t at = 0; at < SEGMENT; at += BENCH_MIB) {
        int rc;

        while ((rc = chm_write(r->dev, at, r->memory + at, BENCH_MIB)) == -EAGAIN) {
            chm_step(r->dev, chm_now(r->dev) + 200000);
        }
        bench_check(rc, "write");
    }
    bench_check(chm_flush(r->dev, UINT64_MAX), "flush");
    return chm_now(r->dev) - begin;
}

/* Puts into a full store in virtual time, where only the drive takes any: what is lost is barriers
 * and waiting for space. Every figure repeats exactly. */
static void sim_put_row(const struct bench_args *a)
{
    struct run r = {.args = a, .n = SEGMENT / OBJECT};
    struct chm_stats before, after;
    struct chm_options o;
    uint64_t bare = 0, ours = 0, full = HALF / SEGMENT + 1, n = 4;

    chm_options_init(&o);
    o.media = "sim";
    o.sim.capacity_bytes = HALF + SEGMENT + BENCH_MIB;
    o.sim.volatile_cache = 1;
    o.sim.barrier_ns = 300000;
    o.dram_bytes = 136 * BENCH_MIB;
    o.write_buffer_bytes = 64 * BENCH_MIB;
    r.dev = bench_dev_open(&o);
    r.memory = bench_alloc(SEGMENT);
    memset(r.memory, 1, SEGMENT);
    store_make(&r, SEGMENT);
    for (uint64_t k = 0; k < full; k++) {
        store_put(&r);
    }
    bench_check(chm_stats(r.dev, &before), "stats");
    for (uint64_t k = 0; k < n; k++) {
        uint64_t begin = chm_now(r.dev);

        store_put(&r);
        ours += chm_now(r.dev) - begin;
    }
    bench_check(chm_stats(r.dev, &after), "stats");
    for (uint64_t k = 0; k < n; k++) {
        bare += sim_bare(&r);
    }
    bench_row("store.put.sim");
    bench_num("ratio", (double)bare / (double)ours);
    bench_num("barriers_per_gib", (double)(after.barriers - before.barriers) * (double)BENCH_GIB /
                                      (double)(n * SEGMENT));
    bench_row_end();
    bench_check(chm_store_close(r.store, UINT64_MAX), "close");
    bench_dev_close(r.dev);
    free(r.memory);
}

static void io_rows(const struct bench_args *a)
{
    static struct bench_disk disk;
    struct run r = {.args = a, .half = a->quick ? HALF_QUICK : HALF, .n = SEGMENT / OBJECT};
    struct chm_options o;

    bench_disk_make(&disk, a, 2 * r.half);
    bench_disk_fill(&disk);
    bench_disk_options(&disk, &o, 64 * BENCH_MIB, 64 * BENCH_MIB);
    o.thread = 1;
    r.dev = bench_dev_open(&o);
    r.memory = bench_alloc(SEGMENT);
    for (uint64_t at = 0; at < SEGMENT; at += BENCH_PAGE) {
        bench_content_fill(&disk.content, at, r.memory + at, BENCH_PAGE);
    }
    store_make(&r, r.half);
    compare(&r, "store.put.16m", bare_put, store_put);
    compare(&r, "store.get.16m", bare_get, store_get);
    bench_check(chm_store_close(r.store, UINT64_MAX), "close");
    bench_dev_close(r.dev);
    bench_disk_remove(&disk);
    free(r.memory);
}

static bool any_wanted(const struct bench_args *a, const char *const *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bench_wanted(a, rows[i])) {
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    static const char *const index[] = {"store.memory", "store.lookup.hits", "store.lookup.misses",
                                        "store.reopen.clean", "store.reopen.crash"};
    static const char *const io[] = {"store.put.16m", "store.get.16m"};
    struct bench_args a;

    bench_args(&a, argc, argv, 8);
    if (bench_wanted(&a, "store.sum")) {
        sum_row(&a);
    }
    if (bench_wanted(&a, "store.publish")) {
        publish_row(&a);
    }
    if (bench_wanted(&a, "store.put.sim")) {
        sim_put_row(&a);
    }
    if (any_wanted(&a, index, sizeof(index) / sizeof(index[0]))) {
        index_rows(&a);
    }
    if (any_wanted(&a, io, sizeof(io) / sizeof(io[0]))) {
        io_rows(&a);
    }
    return 0;
}
