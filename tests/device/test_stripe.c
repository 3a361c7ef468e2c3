/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stripe.c - one device over several members: where bytes lie, how fast they come, and what a
 * member that fails takes with it.
 */
#include "device/rig.h"
#include "fw/map.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

/* A request over n members takes the time of its part on one. */
static void check_speed(uint32_t members)
{
    struct rig r;
    uint64_t begin, len = members * MIB;
    uint8_t *buf = rig_alloc(len);

    rig_sim(&r);
    r.opt.npaths = members;
    rig_open(&r);
    CHECK_EQ(r.info.members, members);
    CHECK_EQ(r.info.stripe_bytes, MIB);
    CHECK_EQ(r.info.capacity_bytes, members * 15 * MIB);
    rig_lay(&r, 0, 2 * len, 1);
    begin = chm_now(r.dev);
    CHECK_IS(rig_read(&r, 0, len, buf), 0);
    CHECK_EQ(chm_now(r.dev) - begin,
             MIB * (uint64_t)CHM_SECOND / r.opt.sim.read_rate + r.opt.sim.read_latency_ns);
    CHECK_HOLDS(buf, 0, len, 1);
    rig_expect(&r, MIB - PAGE, 2 * PAGE, 1);
    rig_expect(&r, MIB / 2, len, 1);
    rig_expect(&r, 2 * len, r.info.capacity_bytes - 2 * len, 0);
    munmap(buf, len);
    rig_close(&r);
}

/* Stripe unit u lies on member u % n, one row after the other behind what is set aside. */
static void check_layout(uint32_t members, uint32_t stripe)
{
    struct chm_format_options f;
    struct rig r;
    uint8_t *buf = rig_alloc(stripe);

    rig_options(&r, "sync");
    rig_name_files(&r, "stripe", members);
    chm_format_options_init(&f);
    f.paths = r.paths;
    f.npaths = members;
    f.stripe_bytes = stripe;
    f.capacity_bytes = 3ull * members * stripe + 12345; /* rounded down to whole rows */
    CHECK_IS(chm_format(&f, &r.err), 0);
    rig_open(&r);
    CHECK_EQ(r.info.capacity_bytes, 3ull * members * stripe);
    CHECK_EQ(r.info.stripe_bytes, stripe);
    rig_lay(&r, 0, r.info.capacity_bytes, 9);
    rig_expect(&r, 0, r.info.capacity_bytes, 9);
    CHECK_IS(chm_close(r.dev, LONG), 0);
    for (uint32_t m = 0; m < members; m++) {
        int fd = open(r.path[m], O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0);
        for (uint64_t row = 0; row < 3; row++) {
            uint64_t off = CHM_DATA_OFFSET + row * stripe;
            CHECK_IS(pread(fd, buf, stripe, (off_t)off), stripe);
            CHECK_HOLDS(buf, (row * members + m) * stripe, stripe, 9);
        }
        close(fd);
    }
    munmap(buf, stripe);
    rig_unlink(&r);
}

/* One I/O of several fails: the request over it fails, its neighbours do not. */
static void check_one_fails(void)
{
    struct rig r;
    uint64_t req;

    rig_sim(&r);
    r.opt.npaths = 4;
    rig_open_faulty(&r, "2 read err 5\n");
    rig_lay(&r, 0, 2 * MIB, 1);
    req = rig_issue(&r, 0, 2 * MIB + PAGE); /* three members: the third fails */
    CHECK_IS(chm_wait(r.dev, req, LONG), -EIO);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_expect(&r, 0, 2 * MIB, 1);
    rig_expect(&r, 2 * MIB, PAGE, 0);
    rig_close(&r);
}

/* A member file is truncated by somebody else while it is open (F41): an error of the ranges on it,
 * never a signal, and the rest goes on. */
static void check_truncated_under_us(const char *media)
{
    struct rig r;
    uint8_t *buf = rig_alloc(MIB);

    rig_files(&r, media, 2, 8 * MIB);
    rig_open(&r);
    rig_lay(&r, 0, 8 * MIB, 3);
    CHECK_IS(truncate(r.path[1], CHM_DATA_OFFSET), 0);
    rig_expect(&r, 0, MIB, 3);
    CHECK_IS(rig_read(&r, MIB, MIB, buf), -EIO);
    CHECK_IS(rig_read(&r, 3 * MIB + PAGE, 2 * PAGE, buf), -EIO);
    rig_expect(&r, 2 * MIB, MIB, 3);
    munmap(buf, MIB);
    rig_close(&r);
}

int main(void)
{
    for (uint32_t n = 1; n <= 4; n++) {
        check_speed(n);
    }
    check_layout(1, 64 * KIB);
    check_layout(2, MIB);
    check_layout(3, 64 * KIB);
    check_layout(4, PAGE);
    check_one_fails();
    check_truncated_under_us("sync");
    check_truncated_under_us("threads");
    return 0;
}
