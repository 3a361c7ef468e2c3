/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cache.c - the transparent line cache as its users see it: bytes, order, what it refuses, how
 * fast misses go, and how often the drive is asked.
 */
#include "device/cache_rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

/* ------------------------------------------------------------------ bytes */

/* A read that was issued after a commit gives the new bytes, whatever state the line is in. */
static void check_read_your_writes(void)
{
    struct rig r;
    uint8_t *a = rig_alloc(LINE), *b = rig_alloc(LINE), *c = rig_alloc(LINE);

    lines_sim(&r, "lru", 8, 0);
    rig_open(&r);
    rig_write(&r, 0, LINE, 1);
    lines_push_out(&r, MIB);
    struct chm_read before = {.addr = 0, .len = LINE, .buf = a}, after = {.len = LINE, .buf = b};
    CHECK_IS(chm_read_issue(r.dev, &before, 1), 1);
    rig_write(&r, PAGE, PAGE, 2); /* waits for the same fill, and so does the next read */
    CHECK_IS(chm_read_issue(r.dev, &after, 1), 1);
    CHECK_IS(chm_wait(r.dev, before.req, LONG), 0);
    CHECK_IS(chm_wait(r.dev, after.req, LONG), 0);
    CHECK_HOLDS(a, 0, LINE, 1);
    CHECK_HOLDS(b, 0, PAGE, 1);
    CHECK_HOLDS(b + PAGE, PAGE, PAGE, 2);
    CHECK_HOLDS(b + 2 * PAGE, 2 * PAGE, LINE - 2 * PAGE, 1);
    CHECK_EQ(rig_stats(&r)->cache_shared, 2);
    /* While a flush writes the line: reads are served, stores wait for its end. */
    struct chm_cmd flush = {.op = CHM_OP_FLUSH};
    uint64_t handle;
    CHECK_IS(chm_cell_new(r.dev, CHM_OP_FLUSH, 0, &flush.cell, &handle), 0);
    chm_door_send(r.dev, &flush);
    CHECK(chm_step(r.dev, 0) >= 0);
    CHECK_EQ(r.dev->fw->cache.cleans, 1);
    rig_expect(&r, PAGE, PAGE, 2);
    CHECK_EQ(r.dev->fw->cache.cleans, 1);
    rig_write(&r, 0, LINE, 3);
    CHECK(rig_stats(&r)->buffer_used_bytes == LINE);
    CHECK_IS(rig_read(&r, 0, LINE, c), 0);
    CHECK_HOLDS(c, 0, LINE, 3);
    CHECK_EQ(r.dev->fw->cache.cleans, 0);
    CHECK_IS(chm_door_end(r.dev, handle, CHM_OP_RELEASE), 0);
    CHECK_IS(chm_release(r.dev, before.req), 0);
    CHECK_IS(chm_release(r.dev, after.req), 0);
    lines_push_out(&r, MIB);
    rig_expect(&r, 0, LINE, 3);
    lines_check_idle(&r);
    rig_close(&r);
    munmap(a, LINE), munmap(b, LINE), munmap(c, LINE);
}

/* Any alignment, objects larger than the cache, the end of the device. */
static void check_shapes(void)
{
    struct rig r;

    lines_sim(&r, "fifo", 5, 0);
    r.opt.npaths = 3; /* lines cross from one member to the next */
    r.opt.line_bytes = 32 * KIB;
    r.opt.force_transfer_max = 12 * KIB;
    r.opt.dram_bytes = MIB + 5 * 32 * KIB;
    rig_open(&r);
    rig_lay(&r, 0, 4 * MIB, 1);
    rig_expect(&r, 0, 4 * MIB, 1);
    rig_expect(&r, 3 * MIB - 5, 100001, 1);
    rig_expect(&r, 17, 1, 1);
    rig_lay(&r, r.info.capacity_bytes - 64 * KIB, 64 * KIB, 2);
    rig_expect(&r, r.info.capacity_bytes - 4097, 4097, 2);
    uint8_t byte;
    CHECK_IS(rig_read(&r, r.info.capacity_bytes - 1, 2, &byte), -ERANGE);
    CHECK_EQ(rig_stats(&r)->read_bytes, r.stats.cache_fills * 32 * KIB);
    CHECK(r.stats.read_ios >= 3 * r.stats.cache_fills); /* 12 + 12 + 8 KiB */
    lines_check_idle(&r);
    rig_close(&r);
}

/* The last line of a device may be cut short: whole is what there is of it. */
static void check_short_line(void)
{
    struct rig r;

    lines_sim(&r, "lru", 4, 0);
    r.opt.line_bytes = 2 * MIB;
    r.opt.dram_bytes = 9 * MIB;
    rig_open(&r);
    CHECK_EQ(r.info.capacity_bytes, 15 * MIB);
    rig_write(&r, 14 * MIB, 512 * KIB, 1);
    rig_expect(&r, 14 * MIB, 512 * KIB, 1);
    rig_expect(&r, 14 * MIB + 512 * KIB, 512 * KIB, 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_EQ(rig_stats(&r)->write_bytes, MIB);
    CHECK_EQ(r.stats.read_bytes, MIB);
    lines_check_idle(&r);
    rig_close(&r);
}

/* A part of a line is fetched before it is stored to; all of it only if asked for. */
static void check_stores(bool fill_on_write)
{
    struct rig r;

    lines_sim(&r, "lru", 8, 0);
    r.opt.fill_on_write = fill_on_write;
    rig_open(&r);
    rig_write(&r, 0, LINE, 1);
    rig_run(&r, MS);
    CHECK_EQ(rig_stats(&r)->read_ios, fill_on_write);
    rig_write(&r, 3 * LINE - PAGE, LINE + 2 * PAGE, 2); /* part, all, part */
    rig_run(&r, MS);
    CHECK_EQ(rig_stats(&r)->read_ios, fill_on_write ? 4 : 2);
    CHECK_EQ(r.stats.cache_fills, r.stats.read_ios);
    CHECK_EQ(r.stats.cache_unfetched, fill_on_write ? 0 : 2);
    CHECK_EQ(r.stats.cache_dirty_lines, 4);
    CHECK_EQ(r.stats.write_ios, 0); /* nobody asked for it, and there is room */
    rig_expect(&r, 2 * LINE, LINE - PAGE, 0);
    rig_expect(&r, 3 * LINE - PAGE, LINE + 2 * PAGE, 2);
    rig_expect(&r, 4 * LINE + PAGE, LINE - PAGE, 0);
    lines_check_idle(&r);
    rig_close(&r);
}

/* ------------------------------------------------------------------ order and time */

/* A dirty line is written, and that has ended, before its frame is asked to be filled. */
static void check_evict_before_fill(void)
{
    struct rig r;
    struct chm_trace t;
    char path[RIG_PATH_MAX];
    uint8_t *buf = rig_alloc(LINE);

    snprintf(path, sizeof(path), "%s/evict.trace", rig_dir());
    lines_sim(&r, "lru", 1, 0);
    r.opt.trace_record = path;
    rig_open(&r);
    for (uint64_t i = 0; i < 20; i++) {
        rig_write(&r, i * LINE, LINE, i + 1);
        CHECK_IS(rig_read(&r, (i + 100) * LINE, LINE, buf), 0);
    }
    CHECK_EQ(rig_stats(&r)->cache_writebacks, 20);
    CHECK_EQ(r.stats.cache_writeback_ns, r.stats.write_io_ns.sum);
    CHECK_EQ(r.stats.cache_fill_ns, r.stats.read_io_ns.sum);
    lines_check_idle(&r);
    rig_close(&r);
    lines_trace(&r, path, &t);
    CHECK_EQ(t.lines, 40);
    for (uint64_t i = 0; i < 20; i++) {
        CHECK_EQ(t.line[2 * i].kind, CHM_IO_WRITE);
        CHECK_EQ(t.line[2 * i + 1].kind, CHM_IO_READ);
        CHECK_EQ(t.line[2 * i + 1].submit_ns, t.line[2 * i].done_ns);
    }
    free(t.line);
    CHECK_IS(unlink(path), 0);
    munmap(buf, LINE);
}

/* Virtual time of reading n absent lines with `fills` misses in flight. */
static uint64_t miss_time(uint32_t fills, uint64_t n)
{
    struct rig r;
    uint8_t *buf = rig_alloc(n * LINE);
    uint64_t begin;

    lines_sim(&r, "lru", 256, 0);
    r.opt.line_fills = fills;
    r.opt.sim.read_rate = UINT64_C(16384000000);
    r.opt.sim.read_latency_ns = 99 * US;
    rig_open(&r);
    begin = chm_now(r.dev);
    CHECK_IS(rig_read(&r, 0, n * LINE, buf), 0);
    begin = chm_now(r.dev) - begin;
    CHECK_EQ(rig_stats(&r)->cache_fills, n);
    CHECK_EQ(r.stats.cache_fill_ns, r.stats.read_io_ns.sum);
    rig_close(&r);
    munmap(buf, n * LINE);
    return begin;
}

/* Misses per second are the smaller of the drive's rate and of what is in flight over latency. */
static void check_fill_rate(void)
{
    CHECK_EQ(miss_time(1, 100), 100 * 100 * US);
    CHECK_EQ(miss_time(4, 100), 25 * 100 * US + 3 * US);
    CHECK_EQ(miss_time(14, 140), 10 * 100 * US + 13 * US);
    CHECK_EQ(miss_time(128, 200), 200 * US + 99 * US);
}

/* Several accesses to one line share its fill, and are served in order. */
static void check_shared_fill(void)
{
    enum { N = 12 };
    struct rig r;
    struct chm_read items[N];
    uint8_t *buf = rig_alloc(N * PAGE);

    lines_sim(&r, "lru", 8, 0);
    rig_open(&r);
    for (uint64_t i = 0; i < N; i++) {
        items[i] = (struct chm_read){.addr = i % 4 * PAGE, .len = PAGE, .buf = buf + i * PAGE};
    }
    CHECK_IS(chm_read(r.dev, items, N, LONG), N);
    CHECK_EQ(rig_stats(&r)->read_ios, 1);
    CHECK_EQ(r.stats.cache_fills, 1);
    CHECK_EQ(r.stats.cache_shared, N - 1);
    CHECK_EQ(r.stats.cache_hits, 0);
    lines_check_idle(&r);
    rig_close(&r);
    munmap(buf, N * PAGE);
}

/* More of one set at once than it has lines: the rest waits, nothing is lost. */
static void check_full_set(void)
{
    enum { N = 32 };
    struct rig r;
    struct chm_read items[N];
    uint8_t *buf = rig_alloc(N * LINE);

    lines_sim(&r, "clock", 2, 2);
    rig_open(&r);
    rig_lay(&r, 0, N * LINE, 4);
    for (uint64_t i = 0; i < N; i++) {
        items[i] = (struct chm_read){.addr = i * LINE, .len = LINE, .buf = buf + i * LINE};
        if (i % 3 == 0) {
            rig_write(&r, i * LINE, PAGE, 5);
        }
    }
    CHECK_IS(chm_read(r.dev, items, N, LONG), N);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_HOLDS(buf + i * LINE, i * LINE, PAGE, i % 3 == 0 ? 5 : 4);
        CHECK_HOLDS(buf + i * LINE + PAGE, i * LINE + PAGE, LINE - PAGE, 4);
    }
    lines_check_idle(&r);
    rig_close(&r);
    munmap(buf, N * LINE);
}

/* ------------------------------------------------------------------ what it refuses */

static void check_refuses(void)
{
    struct rig r;
    struct chm_issue item = {.len = PAGE};
    struct chm_range range = {.len = PAGE};
    struct chm_stream *s = NULL;

    lines_sim(&r, "lru", 8, 0);
    rig_open(&r);
    CHECK_IS(chm_issue(r.dev, &item, 1, NULL), -EOPNOTSUPP);
    CHECK_IS(item.status, -EOPNOTSUPP);
    CHECK_IS(chm_prefetch_object(chm_ptr_of(r.dev, 0), PAGE).status, -EOPNOTSUPP);
    CHECK_IS(chm_stream_open(r.dev, &range, 1, NULL, &s), -EOPNOTSUPP);
    CHECK_EQ(r.info.window_bytes, 0);
    CHECK(strcmp(r.info.policy, "lru") == 0);
    CHECK(strcmp(r.info.flush_policy, "read-first") == 0);
    rig_close(&r);
}

static void check_bad(struct rig *r, const char *word)
{
    r->dev = NULL;
    CHECK_IS(chm_open(&r->opt, &r->dev, &r->err), -EINVAL);
    CHECK(r->dev == NULL);
    if (!strstr(r->err.text, word)) {
        fprintf(stderr, "no \"%s\" in: %s\n", word, r->err.text);
        exit(1);
    }
}

static void check_options(void)
{
    struct rig r;

    lines_sim(&r, "lfu", 8, 0);
    check_bad(&r, "window, lru, fifo, clock");
    lines_sim(&r, "lru", 8, 0);
    r.opt.flush_policy = "never";
    check_bad(&r, "read-first, fcfs, idle-only");
    r.opt.flush_policy = "idle-only";
    r.opt.fcfs = 1;
    check_bad(&r, "exclude");
    lines_sim(&r, "lru", 8, 0);
    r.opt.line_bytes = 12288;
    check_bad(&r, "power of two");
    r.opt.line_bytes = 32 * MIB;
    check_bad(&r, "power of two");
    lines_sim(&r, "lru", 8, 16);
    check_bad(&r, "8 usable lines");
    lines_sim(&r, "lru", 8, 0);
    r.opt.effective_percent = 101;
    check_bad(&r, "effective_percent");
    r.opt.effective_percent = 5;
    check_bad(&r, "usable lines");
    lines_sim(&r, "lru", 8, 0);
    r.opt.force_align = 64 * KIB;
    check_bad(&r, "line_bytes");
}

static void check_names(void)
{
    const char *policies[] = {"window", "lru", "fifo", "clock"};

    for (uint32_t i = 0; i < 4; i++) {
        CHECK(strcmp(chm_policy_name(i), policies[i]) == 0);
    }
    CHECK(chm_policy_name(4) == NULL && chm_policy_name(UINT32_MAX) == NULL);
    CHECK(strcmp(chm_flush_policy_name(0), "read-first") == 0);
    CHECK(chm_flush_policy_name(3) == NULL);
}

/* Without contents nothing is copied and no memory of the cache is touched: more than any machine
 * has will do. */
static void check_no_contents(void)
{
    struct rig r;
    uint8_t byte = 7;

    lines_sim(&r, "lru", 8, 16);
    r.opt.sim.no_contents = 1;
    r.opt.sim.capacity_bytes = UINT64_C(1) << 44;
    r.opt.line_bytes = 16 * MIB;
    r.opt.dram_bytes = UINT64_C(1) << 42;
    r.opt.prefault = 1;
    rig_open(&r);
    CHECK_EQ(rig_stats(&r)->cache_lines, ((UINT64_C(1) << 42) - MIB) / (16 * MIB) / 16 * 16);
    struct chm_read item = {.len = UINT64_C(1) << 35, .buf = &byte};
    CHECK_IS(chm_read(r.dev, &item, 1, UINT64_MAX), 1);
    CHECK_EQ(rig_stats(&r)->cache_fills, 2048);
    CHECK_EQ(byte, 7);
    rig_write(&r, 0, 512 * KIB, 1);
    rig_run(&r, MS);
    CHECK_EQ(rig_stats(&r)->cache_hits, 1);
    lines_check_idle(&r);
    rig_close(&r);
}

int main(void)
{
    check_read_your_writes();
    check_shapes();
    check_short_line();
    check_stores(false);
    check_stores(true);
    check_evict_before_fill();
    check_fill_rate();
    check_shared_fill();
    check_full_set();
    check_refuses();
    check_options();
    check_names();
    check_no_contents();
    return 0;
}
