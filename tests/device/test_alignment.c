/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_alignment.c - every I/O meets the alignment of the medium, whatever that is (F58, F59).
 * The medium refuses what does not, so a misaligned I/O shows as an error; the trace of all I/Os is
 * looked at as well.
 */
#include "device/rig.h"
#include "media/trace_file.h"

static const uint64_t LONG = 60ull * CHM_SECOND;
enum { ROUNDS = 10000 };

/* The unit in which staging and writing go: a page, or a block of the drive if that is larger. */
static uint64_t unit_of(const struct rig *r)
{
    return chm_max(PAGE, chm_max(r->info.block_bytes, r->info.align_bytes));
}

static void random_part(struct rig *r, uint64_t *seed, uint64_t *addr, uint64_t *len)
{
    uint64_t unit = unit_of(r);
    uint64_t most = chm_max(1, 256 * KIB / unit);

    *len = (1 + chm_random(seed) % most) * unit;
    *addr = chm_random(seed) % ((r->info.capacity_bytes - *len) / unit + 1) * unit;
}

/* Views, write buffers, odd and even reads, of all sizes. */
static void one_round(struct rig *r, uint64_t *seed, uint8_t *buf)
{
    uint64_t addr, len, req, skew;
    struct chm_write w;
    struct chm_view view;

    random_part(r, seed, &addr, &len);
    switch (chm_random(seed) % 3) {
    case 0:
        w = (struct chm_write){.addr = addr, .len = len};
        while (chm_write_begin(r->dev, &w, 1) != 1) {
            CHECK_IS(w.status, -EAGAIN);
            CHECK_IS(chm_flush(r->dev, LONG), 0);
        }
        CHECK_EQ((uintptr_t)w.data % unit_of(r), 0);
        fill(w.data, addr, len, 1);
        rig_commit(r, &w);
        break;
    case 1:
        req = rig_issue(r, addr, len);
        CHECK_IS(chm_wait(r->dev, req, LONG), 0);
        CHECK_IS(chm_view(r->dev, req, &view), 0);
        CHECK_EQ((uintptr_t)view.data % unit_of(r), 0);
        CHECK_EQ(view.offset % unit_of(r), 0);
        CHECK_IS(chm_release(r->dev, req), 0);
        break;
    default:
        skew = chm_random(seed) % 3 == 0 ? 0 : chm_random(seed) % PAGE;
        len -= skew ? chm_random(seed) % PAGE : 0;
        CHECK_IS(rig_read(r, addr, len, buf + skew), 0);
    }
}

static void check_trace(struct rig *r, const char *path)
{
    struct chm_medium_caps caps = {.members = r->info.members, .block_bytes = 512};
    struct chm_trace trace;
    uint64_t transfers = 0;

    if (chm_trace_load(path, &caps, &trace, &r->err) != 0) {
        fprintf(stderr, "%s\n", r->err.text);
        exit(1);
    }
    for (uint64_t i = 0; i < trace.lines; i++) {
        const struct chm_trace_line *l = &trace.line[i];
        CHECK(l->res >= 0);
        CHECK_EQ(l->off % r->info.block_bytes, 0);
        CHECK_EQ(l->len % r->info.block_bytes, 0);
        CHECK(l->len <= r->info.transfer_max);
        transfers += l->len > 0;
    }
    CHECK(transfers > ROUNDS / 4);
    free(trace.line);
}

static void check_align(uint32_t align, uint32_t members)
{
    struct rig r;
    char path[RIG_PATH_MAX];
    uint8_t *buf = rig_alloc(MIB);
    uint64_t seed = align;

    snprintf(path, sizeof(path), "%s/align-%u.trace", rig_dir(), align);
    rig_sim(&r);
    r.opt.npaths = members;
    r.opt.dram_bytes = 4 * MIB + PAGE; /* no multiple of the largest alignment */
    r.opt.write_buffer_bytes = MIB + PAGE;
    r.opt.force_align = align;
    r.opt.force_transfer_max = 128 * KIB;
    r.opt.trace_record = path;
    rig_open(&r);
    CHECK_EQ(r.info.block_bytes, align);
    CHECK_EQ(r.info.align_bytes, align);
    for (int i = 0; i < ROUNDS; i++) {
        one_round(&r, &seed, buf);
    }
    CHECK_EQ(rig_stats(&r)->io_errors, 0);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_check_idle(&r);
    rig_close(&r);
    check_trace(&r, path);
    CHECK_IS(unlink(path), 0);
    munmap(buf, MIB);
}

/* On a drive with large blocks, what is not whole blocks is refused with a clear answer, and demand
 * reads of any bytes work all the same. */
static void check_large_blocks(void)
{
    struct rig r;

    rig_sim(&r);
    r.opt.force_align = 65536;
    rig_open(&r);
    CHECK_IS(rig_issue_with(&r, PAGE, 64 * KIB, NULL).status, -EINVAL);
    rig_lay(&r, 0, 128 * KIB, 2);
    rig_expect(&r, 5, 70000, 2);
    rig_close(&r);
}

/* Real files, as picky as that. */
static void check_real(const char *media, uint32_t align)
{
    struct rig r;
    uint8_t *buf = rig_alloc(MIB);
    uint64_t seed = align;

    rig_files(&r, media, 2, 8 * MIB);
    r.opt.force_align = align;
    if (rig_try_open(&r)) {
        for (int i = 0; i < 300; i++) {
            one_round(&r, &seed, buf);
        }
        CHECK_EQ(rig_stats(&r)->io_errors, 0);
        CHECK_IS(chm_close(r.dev, LONG), 0);
    }
    rig_unlink(&r);
    munmap(buf, MIB);
}

int main(void)
{
    static const uint32_t aligns[] = {512, 4096, 65536};

    for (size_t i = 0; i < CHM_COUNT(aligns); i++) {
        check_align(aligns[i], 1 + (uint32_t)i);
        check_real("sync", aligns[i]);
        check_real("uring", aligns[i]);
    }
    check_large_blocks();
    return 0;
}
