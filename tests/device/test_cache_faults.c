/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cache_faults.c - the line cache when the drive fails, hangs, or the caller leaves: an error
 * is told to those whom it concerns and to nobody else, and nothing is kept that is not true.
 */
#include "device/cache_rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

/* A fill fails: its readers are told, all of them, and the next one tries again. */
static void check_fill_error(void)
{
    struct rig r;
    struct chm_read items[3];
    uint8_t *buf = rig_alloc(3 * LINE);

    lines_sim(&r, "lru", 8, 0);
    rig_open_faulty(&r, "1 read err 5\n");
    items[0] = (struct chm_read){.addr = 0, .len = LINE, .buf = buf};
    items[1] = (struct chm_read){.addr = LINE, .len = LINE, .buf = buf + LINE};
    items[2] = (struct chm_read){.addr = LINE + 5, .len = 7, .buf = buf + 2 * LINE};
    CHECK_IS(chm_read(r.dev, items, 3, LONG), 1);
    CHECK_IS(items[0].status, 0);
    CHECK_IS(items[1].status, -EIO);
    CHECK_IS(items[2].status, -EIO);
    lines_check_idle(&r);
    rig_expect(&r, 0, 3 * LINE, 0);
    CHECK_EQ(rig_stats(&r)->cache_fills, 4);
    CHECK_EQ(r.stats.demand_failed, 2);
    CHECK_EQ(r.stats.lost_bytes, 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_close(&r);
    munmap(buf, 3 * LINE);
}

/* One of the I/Os of a long line fails: it is the whole line's. */
static void check_fill_error_in_part(void)
{
    struct rig r;
    uint8_t byte;

    lines_sim(&r, "lru", 8, 0);
    r.opt.force_transfer_max = PAGE;
    rig_open_faulty(&r, "2 read err 61\n");
    CHECK_IS(rig_read(&r, 0, 1, &byte), -61);
    CHECK_IS(rig_read(&r, 0, 1, &byte), 0);
    lines_check_idle(&r);
    rig_close(&r);
}

/* A store of a part of a line whose rest cannot be fetched is lost: its pages cannot be read, the
 * flush says so once, and a store makes them good. A store of all of the line needs no fetch. */
static void check_store_fill_error(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(LINE);

    lines_sim(&r, "lru", 8, 0);
    rig_open_faulty(&r, "0 read err 5\n2 read err 5\n");
    rig_write(&r, PAGE, PAGE, 1);
    rig_run(&r, MS);
    CHECK_EQ(rig_stats(&r)->lost_bytes, PAGE);
    CHECK_EQ(r.stats.buffer_used_bytes, 0);
    CHECK_IS(rig_read(&r, PAGE + 100, 1, buf), -EIO); /* read 1 */
    CHECK_IS(rig_read(&r, 0, LINE, buf), -EIO);
    rig_expect(&r, 2 * PAGE, 2 * PAGE, 0); /* the rest is as it was */
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_write(&r, PAGE, PAGE, 2);
    rig_expect(&r, PAGE, PAGE, 2);
    rig_expect(&r, 2 * PAGE, 2 * PAGE, 0);
    CHECK_EQ(rig_stats(&r)->read_ios, 2);

    /* read 2 fails; behind it wait a read, a store of all, and a read */
    struct chm_read first = {.addr = 4 * LINE, .len = PAGE, .buf = buf};
    CHECK_IS(chm_read_issue(r.dev, &first, 1), 1);
    rig_write(&r, 4 * LINE, LINE, 3);
    rig_expect(&r, 4 * LINE, LINE, 3);
    CHECK_IS(chm_wait(r.dev, first.req, LONG), -EIO);
    CHECK_IS(chm_release(r.dev, first.req), 0);
    CHECK_EQ(rig_stats(&r)->lost_bytes, PAGE);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    lines_check_idle(&r);
    rig_close(&r);
    munmap(buf, LINE);
}

/* A line that gives way cannot be written: it is lost, the one that takes its place is not. */
static void check_evict_error(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(LINE);

    lines_sim(&r, "fifo", 2, 0);
    rig_open_faulty(&r, "0-3 write err 5\n");
    rig_write(&r, 0, LINE, 1);
    rig_write(&r, LINE, LINE, 2);
    rig_expect(&r, 8 * LINE, LINE, 0); /* pushes line 0 out */
    CHECK_EQ(rig_stats(&r)->lost_bytes, LINE);
    CHECK_EQ(r.stats.flush_retries, 3);
    CHECK_EQ(r.stats.cache_writebacks, 0);
    CHECK_EQ(r.stats.cache_dirty_lines, 1);
    rig_expect(&r, LINE, LINE, 2);
    CHECK_IS(rig_read(&r, LINE - 1, 1, buf), -EIO);
    CHECK_IS(rig_read(&r, LINE - 1, 2, buf), -EIO);
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_IS(rig_read(&r, 0, 1, buf), -EIO);
    rig_write(&r, 0, PAGE, 3); /* a page is good again, the rest is not */
    rig_expect(&r, 0, PAGE, 3);
    CHECK_IS(rig_read(&r, PAGE, 1, buf), -EIO);
    CHECK_IS(chm_trim(r.dev, 0, LINE), 0);
    rig_expect(&r, 0, LINE, 0);
    rig_expect(&r, LINE, LINE, 2);
    lines_check_idle(&r);
    rig_close(&r);
    munmap(buf, LINE);
}

/* A retry that works leaves no trace but the counter. */
static void check_evict_retry(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(LINE);

    lines_sim(&r, "lru", 1, 0);
    rig_open_faulty(&r, "0-2 write err 5\n3 write short 4096\n");
    rig_write(&r, 0, LINE, 1);
    CHECK_IS(rig_read(&r, LINE, LINE, buf), 0);
    CHECK_EQ(rig_stats(&r)->flush_retries, 3);
    CHECK_EQ(r.stats.short_ios, 1);
    rig_expect(&r, 0, LINE, 1);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_close(&r);
    munmap(buf, LINE);
}

/* The same for a flush: what is on its way into the line meanwhile is not lost. */
static void check_flush_error(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(LINE);

    lines_sim(&r, "lru", 4, 0);
    rig_open_faulty(&r, "0 write err 5\n2-4 write err 5\n");
    rig_write(&r, 0, LINE, 1);
    rig_write(&r, LINE, LINE, 2);
    struct chm_cmd flush = {.op = CHM_OP_FLUSH};
    uint64_t handle;
    CHECK_IS(chm_cell_new(r.dev, CHM_OP_FLUSH, 0, &flush.cell, &handle), 0);
    chm_door_send(r.dev, &flush);
    CHECK(chm_step(r.dev, 0) >= 0);
    rig_write(&r, PAGE, PAGE, 3); /* waits for the end of the write of line 0 */
    struct chm_cell *cell = chm_cell_of(r.dev, handle);
    CHECK_IS(chm_door_wait_ended(r.dev, cell, LONG), 0);
    CHECK_IS(chm_cell_result(cell), -EIO);
    CHECK_IS(chm_door_end(r.dev, handle, CHM_OP_RELEASE), 0);
    CHECK_EQ(rig_stats(&r)->lost_bytes, LINE); /* write 1 is that of the other line */
    rig_expect(&r, PAGE, PAGE, 3);
    CHECK_IS(rig_read(&r, 0, PAGE, buf), -EIO);
    CHECK_IS(rig_read(&r, 2 * PAGE, PAGE, buf), -EIO);
    rig_expect(&r, LINE, LINE, 2);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    lines_check_idle(&r);
    rig_close(&r);
    munmap(buf, LINE);
}

/* One line, so that it is known which write fails. */
static void check_flush_lost(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(LINE);

    lines_sim(&r, "lru", 4, 0);
    rig_open_faulty(&r, "0-3 write err 5\n");
    rig_write(&r, 0, LINE, 1);
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    CHECK_EQ(rig_stats(&r)->lost_bytes, LINE);
    CHECK_IS(rig_read(&r, 0, LINE, buf), -EIO);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_write(&r, 0, LINE, 2);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, 0, LINE, 2);
    lines_check_idle(&r);
    rig_close(&r);
    munmap(buf, LINE);
}

/* What nobody has flushed, close tells of. Many lines that are lost degrade the device. */
static void check_close_tells(void)
{
    struct rig r;

    lines_sim(&r, "lru", 100, 0);
    rig_open_faulty(&r, "0- write err 5\n");
    for (uint64_t i = 0; i < 80; i++) {
        rig_write(&r, i * LINE, LINE, 1);
        rig_run(&r, MS);
    }
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    CHECK_IS(chm_info(r.dev, &r.info), 0);
    CHECK_EQ(r.info.degraded, 1);
    struct chm_write w = {.len = LINE};
    CHECK_IS(chm_write_begin(r.dev, &w, 1), 0);
    CHECK_IS(w.status, -EIO);
    CHECK_IS(chm_close(r.dev, LONG), 0); /* told already */

    lines_sim(&r, "lru", 100, 0);
    rig_open_faulty(&r, "0- write err 5\n");
    rig_write(&r, 0, LINE, 1);
    CHECK_IS(chm_close(r.dev, LONG), -EIO);
}

/* A read that was given up while its line is filled writes nowhere; others that wait for the line
 * get it; quiesce ends when the fill has. */
static void check_release_during_fill(void)
{
    struct rig r;
    uint8_t *a = rig_alloc(LINE), *b = rig_alloc(LINE);

    lines_sim(&r, "lru", 8, 0);
    rig_open_faulty(&r, "8 read late 50000000\n");
    rig_write(&r, 0, LINE, 1);
    lines_push_out(&r, MIB);
    memset(a, 0x5A, LINE);
    struct chm_read gone = {.len = LINE, .buf = a}, stays = {.len = LINE, .buf = b};
    CHECK_IS(chm_read_issue(r.dev, &gone, 1), 1);
    CHECK_IS(chm_read_issue(r.dev, &stays, 1), 1);
    CHECK_IS(chm_wait(r.dev, gone.req, US), -ETIMEDOUT);
    CHECK_IS(chm_release(r.dev, gone.req), 0);
    CHECK_IS(chm_wait(r.dev, gone.req, 0), -ESTALE);
    CHECK_IS(chm_quiesce(r.dev, US), -ETIMEDOUT);
    CHECK_IS(chm_wait(r.dev, stays.req, LONG), 0);
    CHECK_IS(chm_quiesce(r.dev, LONG), 0);
    CHECK_HOLDS(b, 0, LINE, 1);
    CHECK(is_byte(a, LINE, 0x5A));
    CHECK_IS(chm_release(r.dev, stays.req), 0);
    lines_check_idle(&r);

    /* One that is still in the queue is gone at once, and does not hold up what is behind it. */
    struct chm_read items[3];
    for (uint64_t i = 0; i < 3; i++) {
        items[i] =
            (struct chm_read){.addr = 4 * MIB, .len = 200 * LINE, .buf = rig_alloc(200 * LINE)};
        items[i].addr += i * 200 * LINE;
    }
    CHECK_IS(chm_read_issue(r.dev, items, 3), 3);
    CHECK_IS(chm_release(r.dev, items[1].req), 0);
    CHECK_IS(chm_release(r.dev, items[0].req), 0);
    CHECK_IS(chm_wait(r.dev, items[2].req, LONG), 0);
    CHECK_EQ(rig_stats(&r)->read_ios, 8 + 1 + 8 + 200);
    CHECK_IS(chm_release(r.dev, items[2].req), 0);
    lines_check_idle(&r);
    rig_close(&r);
    for (int i = 0; i < 3; i++) {
        munmap(items[i].buf, 200 * LINE);
    }
    munmap(a, LINE), munmap(b, LINE);
}

/* A fill that never ends keeps its line and its place among the misses, and nothing else; close
 * does not wait for ever. */
static void check_never(const char *unused)
{
    struct rig r;
    uint8_t *buf = rig_alloc(LINE);

    (void)unused;
    lines_sim(&r, "lru", 8, 0);
    r.opt.line_fills = 2;
    rig_open_faulty(&r, "0 read never\n");
    struct chm_read gone = {.len = LINE, .buf = buf};
    CHECK_IS(chm_read_issue(r.dev, &gone, 1), 1);
    CHECK_IS(chm_wait(r.dev, gone.req, CHM_SECOND), -ETIMEDOUT);
    CHECK_IS(chm_release(r.dev, gone.req), 0);
    rig_expect(&r, MIB, 20 * LINE, 0);
    rig_write(&r, MIB, LINE, 1);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_IS(chm_quiesce(r.dev, CHM_SECOND), -ETIMEDOUT);
    CHECK_IS(chm_close(r.dev, CHM_SECOND), -ETIMEDOUT);
    munmap(buf, LINE);
}

/* Close with everything on its way: reads are given up, commits are not. */
static void check_close_in_flight(void)
{
    struct rig r;
    struct chm_read items[4];
    uint8_t *buf = rig_alloc(4 * LINE);

    rig_files(&r, "threads", 1, 8 * MIB);
    r.opt.policy = "lru";
    r.opt.line_bytes = LINE;
    r.opt.dram_bytes = MIB + 6 * LINE;
    rig_open(&r);
    for (uint64_t i = 0; i < 4; i++) {
        items[i] =
            (struct chm_read){.addr = 4 * MIB + i * LINE, .len = LINE, .buf = buf + i * LINE};
    }
    for (uint64_t i = 0; i < 20; i++) {
        rig_write(&r, i * LINE + PAGE, PAGE, i + 1); /* more dirty lines than fit */
    }
    CHECK_IS(chm_read_issue(r.dev, items, 4), 4);
    CHECK_IS(chm_close(r.dev, LONG), 0);
    r.opt.policy = "window";
    rig_open(&r);
    for (uint64_t i = 0; i < 20; i++) {
        rig_expect(&r, i * LINE + PAGE, PAGE, i + 1);
        rig_expect(&r, i * LINE, PAGE, 0);
    }
    rig_close(&r);
    munmap(buf, 4 * LINE);
}

int main(void)
{
    check_fill_error();
    check_fill_error_in_part();
    check_store_fill_error();
    check_evict_error();
    check_evict_retry();
    check_flush_error();
    check_flush_lost();
    check_close_tells();
    check_release_during_fill();
    rig_in_child(check_never, NULL);
    check_close_in_flight();
    return 0;
}
