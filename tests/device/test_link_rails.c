/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_link_rails.c - rails, jitter and the way to the device, exactly, and the published sizes.
 *
 * The arithmetic is checked on the port alone, and what callers see of it on a device in virtual
 * time, whose clock ends where the closed form says.
 */
#include <pthread.h>
#include <stdlib.h>

#include "device/rig.h"
#include "host/link.h"

static const uint64_t LONG = 60ull * CHM_SECOND, GB = 1000000000;
enum { LEN = MIB / 2, N = 8, LATENCY = 3 * US, DRAWS = 100000 };

static uint64_t times(uint64_t bytes, uint64_t rate)
{
    return (uint64_t)((unsigned __int128)bytes * CHM_SECOND / rate);
}

/* ---- the port alone */

static void make_port(struct chm_link_port *port, uint64_t rate, uint32_t rails, uint32_t split)
{
    struct chm_options o;

    chm_options_init(&o);
    o.link_rate = o.link_write_rate = rate;
    o.link_rails = rails;
    o.link_split_bytes = split;
    o.link_latency_ns = LATENCY;
    *port = (struct chm_link_port){0};
    chm_link_init(port, &o);
}

static void check_one_rail(void)
{
    struct chm_link_port p;

    make_port(&p, GB, 1, 0);
    CHECK_EQ(chm_link_deliver(&p, 100, 1000), 100 + 1000 + LATENCY);
    CHECK_EQ(chm_link_deliver(&p, 200, 1000), 100 + 2000 + LATENCY); /* behind the first */
    CHECK_EQ(chm_link_deliver(&p, 9000, 10), 9000 + 10 + LATENCY);   /* it was idle meanwhile */
}

/* Long ones go half over each rail, short ones over the rail that is free first. */
static void check_two_rails(void)
{
    struct chm_link_port p;

    make_port(&p, GB, 2, 4096);
    CHECK_EQ(chm_link_deliver(&p, 0, 4096), 2048 + LATENCY);
    CHECK_EQ(chm_link_deliver(&p, 0, 1001), 2048 + 1001 + LATENCY); /* first rail: a tie */
    CHECK_EQ(chm_link_deliver(&p, 0, 500), 2048 + 500 + LATENCY);   /* second */
    CHECK_EQ(chm_link_deliver(&p, 0, 500), 2048 + 1000 + LATENCY);  /* second: still earlier */
    /* Half over each, the first rail being 1 ns behind the second. */
    CHECK_EQ(chm_link_deliver(&p, 0, 5001), 2048 + 1001 + 2501 + LATENCY);
    CHECK_EQ(chm_link_deliver(&p, 0, 4095), 2048 + 1000 + 2500 + 4095 + LATENCY);
}

/* Either way has its own rails, and a rate of its own. */
static void check_duplex(void)
{
    struct chm_link_port p;

    make_port(&p, GB, 1, 0);
    p.write.rate = GB / 2;
    CHECK_EQ(chm_link_deliver(&p, 0, 1000), 1000 + LATENCY);
    CHECK_EQ(chm_link_take(&p, 0, 1000), 2000 + LATENCY);
    CHECK_EQ(chm_link_deliver(&p, 0, 1000), 2000 + LATENCY);
    CHECK_EQ(chm_link_take(&p, 0, 1000), 4000 + LATENCY);
}

/* Deliveries hold the device's DRAM port: whichever is slower counts, and both directions share
 * it. */
static void check_dram_port(void)
{
    struct chm_port dram = {.rate = GB};
    struct chm_link_port p;

    make_port(&p, 2 * GB, 1, 0);
    p.dram = &dram;
    CHECK_EQ(chm_link_deliver(&p, 0, 1000), 1000 + LATENCY);
    CHECK_EQ(chm_link_take(&p, 0, 1000), 2000 + LATENCY);
    CHECK_EQ(chm_link_deliver(&p, 5000, 1000), 6000 + LATENCY);
    dram.rate = 4 * GB;
    dram.known_bytes = 0;
    CHECK_EQ(chm_link_deliver(&p, 9000, 1000), 9500 + LATENCY);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Latencies of DRAWS transfers of nothing. */
static uint64_t *draw(uint64_t seed)
{
    static const uint32_t JITTER[] = {1000, 3000, 4000, 9000};
    uint64_t *seen = calloc(DRAWS, sizeof(*seen));
    struct chm_options o;
    struct chm_link_port p = {0};

    CHECK(seen);
    chm_options_init(&o);
    o.link_rate = GB;
    o.link_latency_ns = LATENCY;
    memcpy(o.link_jitter_ns, JITTER, sizeof(JITTER));
    o.sim.seed = seed;
    chm_link_init(&p, &o);
    for (uint64_t i = 0; i < DRAWS; i++) {
        seen[i] = chm_link_deliver(&p, 0, 0) - LATENCY;
    }
    return seen;
}

/* A quantile of DRAWS draws strays by 1/sqrt(DRAWS) of the whole at most a few times. */
static void check_jitter(void)
{
    static const struct {
        uint32_t percent, ns;
    } AT[] = {{25, 500}, {50, 1000}, {60, 1800}, {75, 3000}, {90, 4000}, {95, 6500}, {99, 8500}};
    uint64_t *a = draw(1), *b = draw(1), *c = draw(2);

    CHECK(memcmp(a, b, DRAWS * sizeof(*a)) == 0);
    CHECK(memcmp(a, c, DRAWS * sizeof(*a)) != 0);
    qsort(a, DRAWS, sizeof(*a), by_value);
    for (size_t i = 0; i < CHM_COUNT(AT); i++) {
        uint64_t got = a[(uint64_t)DRAWS * AT[i].percent / 100];
        CHECK(got + AT[i].ns / 50 + 20 > AT[i].ns && got < AT[i].ns + AT[i].ns / 50 + 20);
    }
    CHECK(a[0] < 10 && a[DRAWS - 1] < 9000 && a[DRAWS - 1] > 8900);
    free(a);
    free(b);
    free(c);
}

/* ---- a device */

static void open_with(struct rig *r, uint64_t read_rate, uint64_t write_rate)
{
    rig_sim(r);
    r->opt.dram_bytes = 16 * MIB;
    r->opt.write_buffer_bytes = 4 * MIB;
    r->opt.sim.capacity_bytes = 64 * MIB;
    r->opt.sim.read_rate = GB;
    r->opt.sim.read_latency_ns = 80 * US;
    r->opt.link_rate = read_rate;
    r->opt.link_write_rate = write_rate;
    r->opt.link_latency_ns = read_rate ? LATENCY : 0;
    rig_open(r);
}

/* A batch of demand reads: each crosses the link when its bytes are on the device, so that the
 * drive, the slower of the two, sets the pace, and the link adds the way of the last one. */
static void check_demand_batch(void)
{
    struct rig r;
    struct chm_read items[N] = {0};
    uint8_t *buf = rig_alloc((uint64_t)N * LEN);
    uint64_t begin;

    open_with(&r, 2 * GB, 0);
    for (uint64_t i = 0; i < N; i++) {
        items[i] = (struct chm_read){.addr = i * LEN, .len = LEN, .buf = buf + i * LEN};
    }
    begin = chm_now(r.dev);
    CHECK_IS(chm_read(r.dev, items, N, LONG), N);
    CHECK_EQ(chm_now(r.dev) - begin, N * times(LEN, GB) + 80 * US + times(LEN, 2 * GB) + LATENCY);
    CHECK_EQ(rig_stats(&r)->delivered_bytes, (uint64_t)N * LEN);
    rig_close(&r);
    munmap(buf, (uint64_t)N * LEN);
}

/* A read that nobody waits for in time has crossed the link meanwhile. */
static void check_demand_late(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(LEN);
    struct chm_read item = {.addr = 0, .len = LEN, .buf = buf};
    uint64_t begin;

    open_with(&r, GB, 0);
    begin = chm_now(r.dev);
    CHECK_IS(chm_read_issue(r.dev, &item, 1), 1);
    rig_run(&r, 10 * MS);
    CHECK_IS(chm_wait(r.dev, item.req, LONG), 0);
    CHECK_EQ(chm_now(r.dev), begin + 10 * MS);
    CHECK_IS(chm_release(r.dev, item.req), 0);
    rig_close(&r);
    munmap(buf, LEN);
}

/* Staged already: of a batch all are on their way at once, and only one latency is seen. */
static void check_wait_many(void)
{
    struct rig r;
    uint64_t req[N], begin;
    int32_t status[N];

    open_with(&r, GB, 0);
    begin = chm_now(r.dev);
    for (uint64_t i = 0; i < N; i++) {
        req[i] = rig_issue(&r, i * LEN, LEN);
    }
    rig_run(&r, 100 * MS);
    CHECK_IS(chm_wait_many(r.dev, req, N, LONG, status), N);
    CHECK_EQ(chm_now(r.dev) - begin, 100 * MS + N * times(LEN, GB) + LATENCY);
    CHECK_IS(chm_release_many(r.dev, req, N, NULL), N);
    rig_close(&r);
}

/* The port of a simulated device slows its deliveries down. */
static void check_dram_device(void)
{
    struct rig r;
    uint64_t req, begin;

    rig_sim(&r);
    r.opt.sim.dram_rate = GB / 4;
    r.opt.link_rate = GB;
    rig_open(&r);
    req = rig_issue(&r, 0, LEN);
    rig_run(&r, 100 * MS);
    begin = chm_now(r.dev);
    CHECK_IS(chm_wait(r.dev, req, LONG), 0);
    CHECK_EQ(chm_now(r.dev) - begin, times(LEN, GB / 4));
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

static void begin_writes(struct rig *r, struct chm_write *w, uint64_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        w[i] = (struct chm_write){.addr = (uint64_t)i * LEN, .len = LEN};
    }
    CHECK_IS(chm_write_begin(r->dev, w, n), n);
    for (uint32_t i = 0; i < n; i++) {
        fill(w[i].data, w[i].addr, LEN, 7);
        ids[i] = w[i].id;
    }
}

/* A commit ends when the last of its bytes is on the device, and they are right. */
static void check_writes(uint64_t write_rate)
{
    struct rig r;
    struct chm_write w[N];
    uint64_t ids[N], begin;
    int32_t status[N];
    uint8_t *buf = rig_alloc(4 * (uint64_t)LEN);

    open_with(&r, GB, write_rate);
    CHECK_EQ(r.info.link_write_rate, write_rate ? write_rate : GB);
    begin_writes(&r, w, ids, 4);
    begin = chm_now(r.dev);
    CHECK_IS(chm_write_commit(r.dev, ids, 4, status), 4);
    CHECK_EQ(chm_now(r.dev) - begin, 4 * times(LEN, write_rate ? write_rate : GB) + LATENCY);
    CHECK_IS(chm_write_commit(r.dev, ids, 4, status), 0); /* dead handles travel nowhere */
    CHECK_EQ(chm_now(r.dev) - begin, 4 * times(LEN, write_rate ? write_rate : GB) + LATENCY);
    CHECK_IS(rig_read(&r, 0, 4 * (uint64_t)LEN, buf), 0);
    CHECK_EQ(first_wrong(buf, 0, 4 * (uint64_t)LEN, 7), 4 * (uint64_t)LEN);
    rig_close(&r);
    munmap(buf, 4 * (uint64_t)LEN);
}

/* Reads on their way do not slow a commit down, nor the other way round. */
static void check_full_duplex(void)
{
    struct rig r;
    struct chm_write w;
    uint64_t id, req, begin, staged = times(LEN, GB) + 80 * US;
    int32_t status;

    open_with(&r, GB / 4, GB / 2);
    begin_writes(&r, &w, &id, 1);
    begin = chm_now(r.dev);
    req = rig_issue(&r, 32 * MIB, LEN);
    CHECK_IS(chm_wait(r.dev, req, staged + 1000), -ETIMEDOUT); /* it is on its way */
    CHECK_IS(chm_write_commit(r.dev, &id, 1, &status), 1);
    CHECK_EQ(chm_now(r.dev) - begin, staged + 1000 + times(LEN, GB / 2) + LATENCY);
    CHECK_IS(chm_wait(r.dev, req, LONG), 0);
    CHECK_EQ(chm_now(r.dev) - begin, staged + times(LEN, GB / 4) + LATENCY);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* When some reads and writes are done, without a link. */
static uint64_t run_unlinked(uint32_t rails, uint64_t latency_ns)
{
    struct rig r;
    struct chm_write w[2];
    uint64_t ids[2], req, now;
    int32_t status[2];
    uint8_t *buf = rig_alloc(LEN);

    rig_sim(&r);
    r.opt.dram_bytes = 16 * MIB;
    r.opt.sim.capacity_bytes = 64 * MIB;
    r.opt.link_rails = rails;
    r.opt.link_latency_ns = latency_ns;
    rig_open(&r);
    begin_writes(&r, w, ids, 2);
    now = chm_now(r.dev);
    CHECK_IS(chm_write_commit(r.dev, ids, 2, status), 2);
    CHECK_EQ(chm_now(r.dev), now); /* no link: a commit takes no time */
    req = rig_issue(&r, 32 * MIB, LEN);
    CHECK_IS(chm_wait(r.dev, req, LONG), 0);
    CHECK_IS(rig_read(&r, 0, LEN, buf), 0);
    CHECK_IS(chm_release(r.dev, req), 0);
    now = chm_now(r.dev);
    rig_close(&r);
    munmap(buf, LEN);
    return now;
}

/* ---- a device with a thread */

enum { THREADS = 4, ROUNDS = 50 };

struct client {
    struct rig *r;
    uint64_t req; /* all wait for the same */
    uint64_t at;  /* its own part of the device */
};

static void *client_run(void *arg)
{
    struct client *c = arg;
    uint8_t *buf = rig_alloc(PAGE);

    CHECK_IS(chm_wait(c->r->dev, c->req, LONG), 0);
    for (int i = 0; i < ROUNDS; i++) {
        struct chm_read item = {.addr = c->at, .len = PAGE, .buf = buf};
        fill(buf, c->at, PAGE, 9);
        CHECK_IS(chm_write(c->r->dev, c->at, buf, PAGE), 0);
        CHECK_IS(chm_read(c->r->dev, &item, 1, LONG), 1);
        CHECK_EQ(first_wrong(buf, c->at, PAGE, 9), PAGE);
    }
    munmap(buf, PAGE);
    return NULL;
}

/* Waiters and the device thread meet at each cell: everything crosses the link once. */
static void check_threads(void)
{
    struct rig r;
    struct client c[THREADS];
    pthread_t id[THREADS];
    uint64_t req;

    rig_files(&r, "threads", 1, 8 * MIB);
    r.opt.thread = 1;
    r.opt.link_rate = 100 * GB;
    r.opt.link_rails = 2;
    r.opt.link_latency_ns = 1;
    rig_open(&r);
    req = rig_issue(&r, 0, MIB);
    for (uint64_t i = 0; i < THREADS; i++) {
        c[i] = (struct client){&r, req, (i + 2) * MIB};
        CHECK_IS(pthread_create(&id[i], NULL, client_run, &c[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK_IS(pthread_join(id[i], NULL), 0);
    }
    CHECK_EQ(rig_stats(&r)->delivered_bytes, MIB + THREADS * ROUNDS * PAGE);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* ---- published sizes: RDMA reads over one and two ports of 100 Gb/s, GB/s */

static double rate_of(uint64_t bytes, uint32_t rails)
{
    struct chm_link_port p;

    make_port(&p, 12250000000, rails, 128 * KIB);
    p.latency_ns = 12 * US;
    return (double)bytes / (double)chm_link_deliver(&p, 0, bytes);
}

static void check_sizes(void)
{
    static const struct {
        uint64_t mib;
        double rate[2];
    } ROWS[] = {{1, {10.95, 19.1}}, {16, {12.16, 24.1}}, {64, {12.23, 24.4}}};

    for (size_t i = 0; i < CHM_COUNT(ROWS); i++) {
        for (uint32_t rails = 1; rails <= 2; rails++) {
            double got = rate_of(ROWS[i].mib * MIB, rails) / ROWS[i].rate[rails - 1];
            CHECK(got > 0.93 && got < 1.07);
        }
    }
    /* Between and below the rows: the fit t = 13 us + n / 24.5 GB/s for two. */
    for (uint64_t n = 256 * KIB; n <= 64 * MIB; n *= 2) {
        double fit = (double)n / (13000 + (double)n / 24.5);
        CHECK(rate_of(n, 2) > 0.93 * fit && rate_of(n, 2) < 1.07 * fit);
    }
}

static void check_refused(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.link_write_rate = GB;
    CHECK_IS(chm_open(&r.opt, &r.dev, &r.err), -EINVAL);
    CHECK(strstr(r.err.text, "link_write_rate"));
    rig_sim(&r);
    r.opt.link_rate = GB;
    r.opt.link_rails = 3;
    CHECK_IS(chm_open(&r.opt, &r.dev, &r.err), -EINVAL);
    CHECK(strstr(r.err.text, "link_rails"));
    for (uint32_t i = 0; i + 1 < CHM_LINK_QUANTILES; i++) {
        rig_sim(&r);
        r.opt.link_rate = GB;
        r.opt.link_jitter_ns[i] = 5;
        CHECK_IS(chm_open(&r.opt, &r.dev, &r.err), -EINVAL);
        CHECK(strstr(r.err.text, "must not fall"));
    }
}

int main(void)
{
    check_one_rail();
    check_two_rails();
    check_duplex();
    check_dram_port();
    check_jitter();
    check_demand_batch();
    check_demand_late();
    check_wait_many();
    check_dram_device();
    check_writes(0);
    check_writes(GB / 4);
    check_full_duplex();
    CHECK_EQ(run_unlinked(1, 0), run_unlinked(2, 5 * US));
    check_threads();
    check_sizes();
    check_refused();
    return 0;
}
