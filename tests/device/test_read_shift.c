/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_read_shift.c - long demand reads that are not aligned: most of the bytes go straight into
 * the caller's buffer and are moved to their place within it. All offsets, write buffer overlaps,
 * progress, errors and cancels; and never a byte outside of what was asked for.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

enum { LEN = 600 * KIB, ROOM = 1 * MIB, CANARY = 0x3C };

/* Read into buf + PAGE + skew and check all of buf. */
static void read_exactly(struct rig *r, uint8_t *buf, uint64_t addr, uint64_t len, uint64_t skew,
                         uint64_t seed)
{
    uint8_t *to = buf + PAGE + skew;

    memset(buf, CANARY, ROOM);
    CHECK_IS(rig_read(r, addr, len, to), 0);
    CHECK_HOLDS(to, addr, len, seed);
    CHECK(is_byte(buf, PAGE + skew, CANARY));
    CHECK(is_byte(to + len, ROOM - PAGE - skew - len, CANARY));
}

static void check_offsets(struct rig *r)
{
    static const uint64_t odd[] = {0, 1, 64, 511, 512, 513, 4095};
    uint8_t *buf = rig_alloc(ROOM);

    rig_lay(r, 0, 2 * ROOM, 1);
    for (size_t a = 0; a < CHM_COUNT(odd); a++) {
        for (size_t s = 0; s < CHM_COUNT(odd); s++) {
            read_exactly(r, buf, odd[a], LEN, odd[s], 1);
            read_exactly(r, buf, 64 * KIB + odd[a], LEN + odd[s], odd[s], 1);
            read_exactly(r, buf, odd[a], LEN - odd[a] + odd[s], odd[s], 1);
        }
    }
    rig_check_idle(r);
    munmap(buf, ROOM);
}

/* One member, and several with stripes so short that a tail lies on two of them. */
static void check_media(const char *media, uint32_t members, uint32_t align)
{
    struct rig r;

    rig_options(&r, media);
    rig_name_files(&r, "shift", members);
    if (strcmp(media, "sim") == 0) {
        r.files = 0;
        r.opt.paths = NULL;
        r.opt.sim.capacity_bytes = 8 * MIB;
    } else {
        rig_format(&r, 8 * MIB);
    }
    r.opt.force_align = align;
    if (!rig_try_open(&r)) {
        rig_unlink(&r);
        return;
    }
    check_offsets(&r);
    rig_close(&r);
}

static void check_stripes(void)
{
    struct chm_format_options f;
    struct rig r;

    rig_options(&r, "sync");
    rig_name_files(&r, "stripes", 2);
    chm_format_options_init(&f);
    f.paths = r.paths;
    f.npaths = 2;
    f.capacity_bytes = 8 * MIB;
    f.stripe_bytes = PAGE;
    if (chm_format(&f, &r.err) == -EINVAL) { /* the shortest stripe is longer than a page */
        f.stripe_bytes = 64 * KIB;
        CHECK_IS(chm_format(&f, &r.err), 0);
    }
    rig_open(&r);
    check_offsets(&r);
    rig_close(&r);
}

/* What is not copied is not counted as copied. */
static void check_counters(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(ROOM);

    rig_sim(&r);
    rig_open(&r);
    rig_lay(&r, 0, ROOM, 2);
    read_exactly(&r, buf, 100, LEN, 100, 2); /* the same offset within a page */
    CHECK_EQ(rig_stats(&r)->demand_copied_bytes, PAGE);
    read_exactly(&r, buf, 0, LEN, 64, 2);
    CHECK_EQ(rig_stats(&r)->demand_copied_bytes, PAGE + LEN);
    CHECK_EQ(r.stats.demand_bytes, 2 * LEN);
    rig_close(&r);
    munmap(buf, ROOM);
}

/* Bytes that are in the write buffer, at the front, in the middle and at the end of the read. */
static void check_buffered(void)
{
    static const uint64_t at[] = {0, 17, LEN / PAGE - 1, LEN / PAGE};
    struct rig r;
    uint8_t *buf = rig_alloc(ROOM);

    rig_sim(&r);
    r.opt.flush_idle_ns = LONG;
    r.opt.flush_age_ns = LONG;
    rig_open(&r);
    for (size_t i = 0; i < CHM_COUNT(at); i++) {
        for (uint64_t skew = 0; skew < 100; skew += 33) {
            uint64_t page = at[i] * PAGE, addr = skew == 66 ? 0 : 66;
            uint8_t *to = buf + skew;

            rig_lay(&r, 0, ROOM, 3);
            rig_write(&r, page, PAGE, 4);
            CHECK_IS(rig_read(&r, addr, LEN + PAGE / 2, to), 0);
            if (page > addr) {
                CHECK_HOLDS(to, addr, page - addr, 3);
            }
            for (uint64_t b = chm_max(page, addr); b < page + PAGE; b++) {
                if (b < addr + LEN + PAGE / 2) {
                    CHECK_EQ(to[b - addr], byte_at(b, 4));
                }
            }
            if (page + PAGE < addr + LEN) {
                CHECK_HOLDS(to + page + PAGE - addr, page + PAGE, addr + LEN - page - PAGE, 3);
            }
        }
    }
    rig_close(&r);
    munmap(buf, ROOM);
}

/* What progress covers lies in its place, also when I/Os end out of order. */
static void check_progress(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(ROOM);
    struct chm_read item = {.addr = 10, .len = LEN, .buf = buf + 64};
    int64_t last = 0;
    int steps = 0;

    rig_sim(&r);
    r.opt.read_unit = 64 * KIB;
    rig_open_faulty(&r, "5 read late 100000\n8 read late 40000\n");
    rig_lay(&r, 0, ROOM, 5);
    CHECK_IS(chm_read_issue(r.dev, &item, 1), 1);
    while (last < LEN) {
        CHECK(chm_step(r.dev, UINT64_MAX) >= 0);
        CHECK(chm_progress(r.dev, item.req) >= last);
        steps += chm_progress(r.dev, item.req) > last;
        last = chm_progress(r.dev, item.req);
        CHECK_HOLDS(buf + 64, 10, (uint64_t)last, 5);
    }
    CHECK(steps > 3);
    CHECK_IS(chm_wait(r.dev, item.req, 0), 0);
    CHECK_IS(chm_release(r.dev, item.req), 0);
    rig_close(&r);
    munmap(buf, ROOM);
}

/* An error in any of its 12 I/Os fails the read, and others can be read afterwards. */
static void check_errors(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(ROOM);

    for (int nth = 0; nth < 12; nth++) {
        char script[64];

        (void)snprintf(script, sizeof(script), "%d read err 5\n", nth);
        rig_sim(&r);
        r.opt.read_unit = 64 * KIB;
        rig_open_faulty(&r, script);
        rig_lay(&r, 0, ROOM, 6);
        memset(buf, CANARY, ROOM);
        CHECK_IS(rig_read(&r, 10, LEN, buf + PAGE + 64), -EIO);
        CHECK(is_byte(buf, PAGE + 64, CANARY));
        CHECK(is_byte(buf + PAGE + 64 + LEN, ROOM - PAGE - 64 - LEN, CANARY));
        for (int i = 0; i < 3; i++) {
            read_exactly(&r, buf, 10, LEN, 64, 6);
        }
        rig_check_idle(&r);
        rig_close(&r);
    }
    munmap(buf, ROOM);
}

/* Released in flight, at every moment: the buffer is the caller's again after quiesce, and not
 * touched any more; pages that were kept come back. */
static void check_cancel(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(ROOM);

    rig_sim(&r);
    r.opt.read_unit = 64 * KIB;
    r.opt.fault = (struct chm_fault_options){.seed = 1, .late_ppm = 200000, .late_ns = 1 * MS};
    rig_open(&r);
    rig_lay(&r, 0, ROOM, 7);
    for (uint64_t ns = 0; ns < 800 * US; ns += 2 * US) {
        struct chm_read item = {.addr = 10, .len = LEN, .buf = buf + 64};

        CHECK_IS(chm_read_issue(r.dev, &item, 1), 1);
        CHECK(chm_wait(r.dev, item.req, ns) <= 0);
        CHECK_IS(chm_release(r.dev, item.req), 0);
        CHECK_IS(chm_quiesce(r.dev, LONG), 0);
        memset(buf, CANARY, ROOM);
        CHECK(chm_step(r.dev, chm_now(r.dev) + 5 * MS) >= 0);
        CHECK(is_byte(buf, ROOM, CANARY));
    }
    read_exactly(&r, buf, 10, LEN, 64, 7);
    rig_check_idle(&r);
    rig_close(&r);
    munmap(buf, ROOM);
}

/* Far more reads at once than there are bounce pages, from the smallest reserve. */
static void check_many(void)
{
    enum { N = 200 };
    struct rig r;
    static struct chm_read items[N];
    uint8_t *buf = rig_alloc((uint64_t)N * ROOM);

    rig_sim(&r);
    r.opt.read_unit = 64 * KIB;
    rig_open(&r);
    rig_lay(&r, 0, 2 * ROOM, 8);
    for (uint64_t i = 0; i < N; i++) {
        items[i] =
            (struct chm_read){.addr = 7 * i, .len = LEN + 4000, .buf = buf + i * ROOM + 16 + i};
    }
    CHECK_IS(chm_read(r.dev, items, N, LONG), N);
    for (uint64_t i = 0; i < N; i++) {
        CHECK_HOLDS(items[i].buf, items[i].addr, items[i].len, 8);
    }
    rig_check_idle(&r);
    rig_close(&r);
    munmap(buf, (uint64_t)N * ROOM);
}

int main(void)
{
    check_media("sim", 1, 0);
    check_media("sim", 1, 512);
    check_media("sync", 1, 65536);
    check_media("uring", 1, 0);
    check_media("threads", 2, 0);
    check_stripes();
    check_counters();
    check_buffered();
    check_progress();
    check_errors();
    check_cancel();
    check_many();
    return 0;
}
