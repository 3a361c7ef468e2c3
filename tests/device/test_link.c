/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_link.c - the host link, against closed forms, exactly, in virtual time. With a drive of rate
 * a and a link of rate b, objects read one after the other (no prefetch) come at 1/(1/a + 1/b);
 * staged ahead they come at min(a, b).
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;
enum { LEN = MIB / 2, N = 64, AHEAD = 4 };

static void open_linked(struct rig *r, uint64_t drive, uint64_t link, uint64_t link_latency)
{
    rig_sim(r);
    r->opt.sim.capacity_bytes = 64 * MIB;
    r->opt.sim.read_rate = drive;
    r->opt.sim.read_latency_ns = 80 * US;
    r->opt.link_rate = link;
    r->opt.link_latency_ns = link_latency;
    rig_open(r);
    CHECK_EQ(r->info.link_rate, link);
}

static uint64_t times(uint64_t bytes, uint64_t rate)
{
    return bytes * CHM_SECOND / rate;
}

/* One after the other: exactly the sum of both, N times. */
static void check_off(uint64_t drive, uint64_t link)
{
    struct rig r;

    open_linked(&r, drive, link, 3 * US);
    for (uint64_t i = 0; i < N; i++) {
        uint64_t begin = chm_now(r.dev), req = rig_issue(&r, i * LEN, LEN);
        CHECK_IS(chm_wait(r.dev, req, LONG), 0);
        CHECK_EQ(chm_now(r.dev) - begin,
                 times(LEN, drive) + r.opt.sim.read_latency_ns + times(LEN, link) + 3 * US);
        CHECK_IS(chm_release(r.dev, req), 0);
    }
    CHECK_EQ(rig_stats(&r)->delivered_bytes, N * LEN);
    rig_close(&r);
}

/* A few ahead: the slower of the two sets the pace, and the whole takes N of its times and, once,
 * the way of the first (or last) object through the other. */
static void check_on(uint64_t drive, uint64_t link)
{
    struct rig r;
    uint64_t req[N + AHEAD] = {0}, begin, took, slower = chm_min(drive, link);

    open_linked(&r, drive, link, 0);
    begin = chm_now(r.dev);
    for (uint64_t i = 0; i < AHEAD; i++) {
        req[i] = rig_issue(&r, i * LEN, LEN);
    }
    for (uint64_t i = 0; i < N; i++) {
        CHECK_IS(chm_wait(r.dev, req[i], LONG), 0);
        CHECK_IS(chm_release(r.dev, req[i]), 0);
        if (i + AHEAD < N) {
            req[i + AHEAD] = rig_issue(&r, (i + AHEAD) * LEN, LEN);
        }
    }
    took = chm_now(r.dev) - begin;
    CHECK_EQ(took, N * times(LEN, slower) + times(LEN, chm_max(drive, link)) + 80 * US);
    rig_close(&r);
}

/* A request is delivered once, however often it is waited for; a timeout may end the way over the
 * link, which goes on. */
static void check_once(void)
{
    struct rig r;
    uint64_t req, begin;

    open_linked(&r, 1000000000, 1000000000, 0);
    begin = chm_now(r.dev);
    req = rig_issue(&r, 0, LEN);
    CHECK_IS(chm_wait(r.dev, req, 700 * US), -ETIMEDOUT); /* staged, half way over the link */
    CHECK_EQ(chm_now(r.dev), begin + 700 * US);
    CHECK_IS(chm_wait(r.dev, req, LONG), 0);
    CHECK_EQ(chm_now(r.dev), begin + 2 * times(LEN, 1000000000) + 80 * US);
    CHECK_IS(chm_wait(r.dev, req, 0), 0);
    CHECK_EQ(rig_stats(&r)->delivered_bytes, LEN);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

/* Demand reads go over the link too; without one nothing is added. */
static void check_demand(void)
{
    struct rig r;
    uint8_t *buf = rig_alloc(LEN);
    uint64_t begin;

    open_linked(&r, 1000000000, 500000000, 1000);
    begin = chm_now(r.dev);
    CHECK_IS(rig_read(&r, 0, LEN, buf), 0);
    CHECK_EQ(chm_now(r.dev) - begin,
             times(LEN, 1000000000) + 80 * US + times(LEN, 500000000) + 1000);
    rig_close(&r);
    open_linked(&r, 1000000000, 0, 0);
    begin = chm_now(r.dev);
    CHECK_IS(rig_read(&r, 0, LEN, buf), 0);
    CHECK_EQ(chm_now(r.dev) - begin, times(LEN, 1000000000) + 80 * US);
    rig_close(&r);
    munmap(buf, LEN);
}

int main(void)
{
    check_off(2000000000, 2000000000);
    check_off(1000000000, 4000000000);
    check_off(4000000000, 1000000000);
    check_on(2000000000, 2000000000);
    check_on(1000000000, 4000000000);
    check_on(4000000000, 1000000000);
    check_once();
    check_demand();
    return 0;
}
