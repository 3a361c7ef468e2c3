/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cache_durability.c - what of the line cache is on the drive, and when: flush, strict,
 * periodic, close, a power cut, and trims in the midst of it. The drive is looked at past the
 * cache.
 */
#include "device/cache_rig.h"
#include "fw/map.h"
#include "media/media_sim.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

/* What the drive holds; nothing is in flight. */
static void drive_expect(struct rig *r, uint64_t addr, uint64_t len, uint64_t seed)
{
    uint8_t *buf = rig_alloc(len);
    struct chm_io io = {.kind = CHM_IO_READ, .region = CHM_NO_REGION, .buf = buf};
    struct chm_io *ios[1] = {&io};

    io.off = CHM_DATA_OFFSET + addr;
    io.len = (uint32_t)len;
    CHECK(!chm_fw_in_flight(r->dev->fw));
    CHECK_EQ(chm_medium_submit(r->dev->medium, ios, 1), 1);
    CHECK_IS(chm_medium_reap(r->dev->medium, ios, 1, CHM_FOREVER_NS), 1);
    CHECK_IS(io.res, len);
    CHECK_HOLDS(buf, addr, len, seed);
    munmap(buf, len);
}

static void open_volatile(struct rig *r, uint32_t durability)
{
    lines_sim(r, "lru", 32, 4);
    r->opt.sim.volatile_cache = 1;
    r->opt.durability = durability;
    rig_open(r);
}

/* A flush writes the lines that are dirty, and no others, once, and then makes a barrier. */
static void check_flush(void)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct rig r;

        open_volatile(&r, CHM_DURABILITY_NONE);
        rig_write(&r, 0, 5 * LINE, 1);
        rig_write(&r, 64 * LINE + PAGE, PAGE, 2);
        rig_expect(&r, 40 * LINE, 2 * LINE, 0);
        CHECK_EQ(rig_stats(&r)->cache_dirty_lines, 6);
        CHECK_EQ(r.stats.write_ios, 0);
        CHECK_IS(chm_flush(r.dev, LONG), 0);
        CHECK_EQ(rig_stats(&r)->write_ios, 6);
        CHECK_EQ(r.stats.cache_writebacks, 6);
        CHECK_EQ(r.stats.flushed_bytes, 6 * LINE);
        CHECK_EQ(r.stats.barriers, 1);
        CHECK_EQ(r.stats.cache_dirty_lines, 0);
        rig_write(&r, 0, LINE, 3); /* not promised */
        chm_sim_power_cut(r.dev->medium, seed);
        drive_expect(&r, 0, 5 * LINE, 1);
        drive_expect(&r, 64 * LINE + PAGE, PAGE, 2);
        rig_expect(&r, 0, LINE, 3);
        CHECK_IS(chm_flush(r.dev, LONG), 0);
        CHECK_EQ(rig_stats(&r)->write_ios, 7);
        CHECK_IS(chm_flush(r.dev, LONG), 0); /* nothing new: nothing to do */
        CHECK_EQ(rig_stats(&r)->write_ios, 7);
        CHECK_EQ(r.stats.barriers, 2);
        drive_expect(&r, 0, LINE, 3);
        lines_check_idle(&r);
        rig_close(&r);
    }
}

/* Commits that come after a flush are not its business, even while it goes on. */
static void check_flush_while_writing(void)
{
    struct rig r;
    struct chm_cmd flush = {.op = CHM_OP_FLUSH};
    struct chm_cell *cell;
    uint64_t handle, writes;

    open_volatile(&r, CHM_DURABILITY_NONE);
    rig_write(&r, 0, 10 * LINE, 1);
    rig_run(&r, MS);
    CHECK_IS(chm_cell_new(r.dev, CHM_OP_FLUSH, 0, &flush.cell, &handle), 0);
    chm_door_send(r.dev, &flush);
    cell = chm_cell_of(r.dev, handle);
    for (uint64_t i = 0; !chm_cell_has_ended(atomic_load(&cell->state)); i++) {
        CHECK(i < 100);
        rig_write(&r, (50 + i) * LINE, LINE, 2);
        CHECK(chm_step(r.dev, chm_now(r.dev) + 20 * US) >= 0);
    }
    writes = rig_stats(&r)->cache_writebacks;
    CHECK(writes >= 10 && r.stats.cache_dirty_lines > 0);
    rig_run(&r, MS); /* a cut forgets I/Os in flight: let them end, which makes nothing safe */
    chm_sim_power_cut(r.dev->medium, 3);
    drive_expect(&r, 0, 10 * LINE, 1);
    CHECK_IS(chm_door_end(r.dev, handle, CHM_OP_RELEASE), 0);
    rig_close(&r);
}

/* A strict commit returns when its bytes are safe, though they stay in the cache. */
static void check_strict(void)
{
    struct rig r;

    open_volatile(&r, CHM_DURABILITY_STRICT);
    for (uint64_t i = 0; i < 60; i++) {
        rig_write(&r, i * 2 * LINE + PAGE, LINE, i + 1); /* parts of two lines */
        CHECK_EQ(rig_stats(&r)->cache_dirty_lines, 0);
        chm_sim_power_cut(r.dev->medium, i);
        drive_expect(&r, i * 2 * LINE + PAGE, LINE, i + 1);
    }
    lines_check_idle(&r);
    rig_close(&r);
}

/* By time or by amount all that is dirty is written, and a barrier made. */
static void check_periodic(void)
{
    struct rig r;

    open_volatile(&r, CHM_DURABILITY_PERIODIC);
    rig_run(&r, 10ull * CHM_SECOND);
    CHECK_EQ(rig_stats(&r)->barriers, 0);
    rig_write(&r, 0, 3 * LINE, 1);
    rig_run(&r, CHM_SECOND + 100 * MS);
    CHECK_EQ(rig_stats(&r)->barriers, 1);
    CHECK_EQ(r.stats.cache_writebacks, 3);
    chm_sim_power_cut(r.dev->medium, 1);
    drive_expect(&r, 0, 3 * LINE, 1);
    rig_run(&r, 10ull * CHM_SECOND);
    CHECK_EQ(rig_stats(&r)->barriers, 1);
    CHECK_EQ(r.stats.cache_writebacks, 3);
    rig_close(&r);

    lines_sim(&r, "lru", 32, 0);
    r.opt.sim.volatile_cache = 1;
    r.opt.durability = CHM_DURABILITY_PERIODIC;
    r.opt.barrier_bytes = 8 * LINE;
    rig_open(&r);
    for (uint64_t i = 0; i < 24; i++) {
        rig_write(&r, i % 4 * LINE, LINE, 1);
        rig_run(&r, MS);
    }
    CHECK_EQ(rig_stats(&r)->barriers, 3);
    CHECK_EQ(r.stats.cache_writebacks, 12); /* four lines, three times */
    rig_close(&r);
}

/* A trim drops what is dirty, cuts what it covers in part, and stands between what was before and
 * what comes after. */
static void check_trim(void)
{
    struct rig r;
    uint8_t *a = rig_alloc(4 * LINE), *b = rig_alloc(4 * LINE);

    open_volatile(&r, CHM_DURABILITY_NONE);
    rig_lay(&r, 0, 4 * LINE, 1);
    rig_write(&r, 0, 4 * LINE, 2);
    struct chm_read before = {.len = 4 * LINE, .buf = a}, after = {.len = 4 * LINE, .buf = b};
    CHECK_IS(chm_read_issue(r.dev, &before, 1), 1);
    CHECK_IS(chm_trim(r.dev, PAGE, 2 * LINE), 0);
    CHECK_IS(chm_read_issue(r.dev, &after, 1), 1);
    CHECK_IS(chm_wait(r.dev, before.req, LONG), 0);
    CHECK_IS(chm_wait(r.dev, after.req, LONG), 0);
    CHECK_HOLDS(a, 0, 4 * LINE, 2);
    CHECK_HOLDS(b, 0, PAGE, 2);
    CHECK_HOLDS(b + PAGE, PAGE, 2 * LINE, 0);
    CHECK_HOLDS(b + PAGE + 2 * LINE, PAGE + 2 * LINE, 2 * LINE - PAGE, 2);
    CHECK_EQ(rig_stats(&r)->cache_dirty_lines, 3); /* the one in the middle is gone */
    CHECK_EQ(r.stats.trimmed_bytes, 2 * LINE);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    drive_expect(&r, PAGE, 2 * LINE, 0);
    drive_expect(&r, 0, PAGE, 2);
    rig_write(&r, PAGE, PAGE, 3); /* a commit, a trim of it, a commit */
    CHECK_IS(chm_trim(r.dev, 0, 4 * LINE), 0);
    rig_write(&r, 2 * PAGE, PAGE, 4);
    rig_expect(&r, 0, 2 * PAGE, 0);
    rig_expect(&r, 2 * PAGE, PAGE, 4);
    rig_expect(&r, 3 * PAGE, 4 * LINE - 3 * PAGE, 0);
    CHECK_IS(chm_release(r.dev, before.req), 0);
    CHECK_IS(chm_release(r.dev, after.req), 0);
    CHECK_IS(chm_trim(r.dev, 0, r.info.capacity_bytes), 0); /* more lines than there are */
    rig_expect(&r, 0, MIB, 0);
    CHECK_EQ(rig_stats(&r)->cache_dirty_lines, 0);
    lines_check_idle(&r);
    rig_close(&r);
    munmap(a, 4 * LINE), munmap(b, 4 * LINE);
}

/* A trim waits for a flush on its way, and no write-back of what was trimmed comes after. */
static void check_trim_during_flush(void)
{
    struct rig r;
    struct chm_cmd flush = {.op = CHM_OP_FLUSH};
    uint64_t handle;

    open_volatile(&r, CHM_DURABILITY_NONE);
    rig_write(&r, 0, 20 * LINE, 1);
    CHECK_IS(chm_cell_new(r.dev, CHM_OP_FLUSH, 0, &flush.cell, &handle), 0);
    chm_door_send(r.dev, &flush);
    CHECK(chm_step(r.dev, 0) >= 0);
    CHECK(r.dev->fw->cache.cleans > 0);
    CHECK_IS(chm_trim(r.dev, 0, 20 * LINE), 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    CHECK_IS(chm_cell_result(chm_cell_of(r.dev, handle)), 0);
    CHECK_IS(chm_door_end(r.dev, handle, CHM_OP_RELEASE), 0);
    rig_run(&r, MS);
    CHECK(rig_stats(&r)->cache_writebacks < 20);
    drive_expect(&r, 0, 20 * LINE, 0);
    rig_expect(&r, 0, 20 * LINE, 0);
    lines_check_idle(&r);
    rig_close(&r);
}

static void check_trim_error(void)
{
    struct rig r;
    uint8_t byte;

    lines_sim(&r, "lru", 8, 0);
    rig_open_faulty(&r, "0 trim err 5\n");
    rig_write(&r, 0, 2 * LINE, 1);
    CHECK_IS(chm_trim(r.dev, 0, LINE), 0);
    CHECK_IS(chm_flush(r.dev, LONG), -EIO);
    CHECK_IS(rig_read(&r, 5, 1, &byte), -EIO);
    rig_expect(&r, LINE, LINE, 1);
    CHECK_IS(chm_trim(r.dev, 0, LINE), 0);
    rig_expect(&r, 0, LINE, 0);
    rig_close(&r);
}

int main(void)
{
    check_flush();
    check_flush_while_writing();
    check_strict();
    check_periodic();
    check_trim();
    check_trim_during_flush();
    check_trim_error();
    return 0;
}
