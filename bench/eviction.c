/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eviction.c - a trace of requests through a store that is too small for it (eviction.py).
 *
 *     eviction POLICY CAPACITY_OBJECTS < REQUESTS
 *
 * Each request asks for its blocks in order, uses the leading run of hits, and puts the others
 * behind it, as a chain. A block is an object of one page on a simulated device: what is evicted
 * depends on how many objects fit, not on their size. Requests are binary: bucket, number of
 * blocks (u32 each), block ids (u64 each). One line of JSON per bucket comes out: blocks asked for,
 * blocks in leading runs, blocks that were there at all.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "chm.h"

enum { BUCKETS = 64, PAYLOAD = 64, BLOCKS_MAX = 32768 };

struct bucket {
    uint64_t requests, blocks, usable, resident;
};

struct run {
    chm_dev *dev;
    chm_store *store;
    uint32_t ns;
    struct bucket bucket[BUCKETS];
    struct chm_key key[BLOCKS_MAX];
    struct chm_part part[BLOCKS_MAX];
    int32_t status[BLOCKS_MAX];
    uint8_t found[BLOCKS_MAX];
    uint64_t id[BLOCKS_MAX];
    uint8_t payload[PAYLOAD];
};

/* Twice the space: what was evicted is in the way until that is durable. */
static void open_store(struct run *r, const char *policy, uint64_t objects)
{
    struct chm_options o;
    struct chm_store_format_options f;
    struct chm_store_options so;
    struct chm_error err;
    uint64_t meta = 8 * BENCH_MIB + objects * 300;

    chm_options_init(&o);
    o.media = "sim";
    o.dram_bytes = 64 * BENCH_MIB;
    o.write_buffer_bytes = 32 * BENCH_MIB;
    o.huge_pages = 1;
    o.prefault = 2;
    o.sim.capacity_bytes = BENCH_MIB + meta + 2 * objects * BENCH_PAGE;
    o.sim.capacity_bytes += BENCH_MIB - o.sim.capacity_bytes % BENCH_MIB;
    bench_check(chm_open(&o, &r->dev, &err), err.text);
    chm_store_format_options_init(&f);
    f.max_objects = (uint32_t)(2 * objects);
    bench_check(chm_store_format(r->dev, &f, &err), err.text);
    chm_store_options_init(&so);
    so.eviction = policy;
    bench_check(chm_store_open(r->dev, &so, &r->store, &err), err.text);
    /* The quota is the capacity. */
    bench_check(chm_store_namespace(r->store, "trace", 5, objects * BENCH_PAGE, &r->ns),
                "namespace");
}

static void put_rest(struct run *r, uint32_t n, uint32_t have)
{
    struct chm_store_job job = {
        .op = CHM_STORE_PUT,
        .flags = CHM_STORE_WAIT,
        .ns = r->ns,
        .n = n - have,
        .keys = r->key + have,
        .parent = have > 0 ? &r->key[have - 1] : NULL,
        .parts = r->part,
        .status = r->status,
        .timeout_ns = 1000ull * CHM_SECOND,
    };
    struct chm_store_done done;
    uint64_t id;

    bench_check(chm_store_submit(r->store, &job, &id), "submit");
    bench_check(chm_store_drain(r->store, &done, 1, UINT64_MAX) - 1, "drain");
}

static void request(struct run *r, uint32_t bucket, uint32_t n)
{
    struct bucket *b = &r->bucket[bucket];
    int have;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t state = r->id[i], mixed = bench_random(&state);

        memcpy(r->key[i].bytes, &mixed, 8);
        memcpy(r->key[i].bytes + 8, &r->id[i], 8);
    }
    have = chm_store_exists(r->store, r->ns, r->key, n, CHM_STORE_TOUCH, r->found, NULL);
    bench_check(have, "exists");
    b->requests++;
    b->blocks += n;
    b->usable += (uint64_t)have;
    for (uint32_t i = 0; i < n; i++) {
        b->resident += r->found[i];
    }
    if ((uint32_t)have < n) {
        put_rest(r, n, (uint32_t)have);
    }
}

static void tell(const struct run *r)
{
    for (uint32_t i = 0; i < BUCKETS; i++) {
        const struct bucket *b = &r->bucket[i];

        if (b->requests > 0) {
            printf("{\"bucket\": %u, \"requests\": %" PRIu64 ", \"blocks\": %" PRIu64
                   ", \"usable\": %" PRIu64 ", \"resident\": %" PRIu64 "}\n",
                   i, b->requests, b->blocks, b->usable, b->resident);
        }
    }
}

int main(int argc, char **argv)
{
    struct run *r = calloc(1, sizeof(*r));
    uint32_t head[2];

    if (argc != 3 || !r) {
        bench_die("usage: eviction POLICY CAPACITY_OBJECTS < REQUESTS");
    }
    open_store(r, argv[1], strtoull(argv[2], NULL, 10));
    for (uint32_t i = 0; i < BLOCKS_MAX; i++) {
        r->part[i] = (struct chm_part){.data = r->payload, .len = PAYLOAD};
    }
    while (fread(head, sizeof(head), 1, stdin) == 1) {
        if (head[0] >= BUCKETS || head[1] > BLOCKS_MAX ||
            fread(r->id, sizeof(r->id[0]), head[1], stdin) != head[1]) {
            bench_die("the requests are cut off, or one is too long");
        }
        if (head[1] > 0) {
            request(r, head[0], head[1]);
        }
    }
    bench_check(chm_store_close(r->store, 60ull * CHM_SECOND), "close");
    bench_check(chm_close(r->dev, 60ull * CHM_SECOND), "close");
    tell(r);
    free(r);
    return 0;
}
