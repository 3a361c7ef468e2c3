/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_arrival.c - chm_arrival: known when the bytes are on the device and on their way, the same
 * time that a wait ends at, and an answer, not a wait, in every other state.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;
enum { LEN = MIB / 2, RATE = 1000000000, LATENCY = 3 * US };

static void open_linked(struct rig *r, uint64_t link)
{
    rig_sim(r);
    r->opt.sim.capacity_bytes = 64 * MIB;
    r->opt.sim.read_rate = RATE;
    r->opt.sim.read_latency_ns = 80 * US;
    r->opt.link_rate = link;
    r->opt.link_latency_ns = link ? LATENCY : 0;
    rig_open(r);
}

/* A demand read leaves by itself; nobody has to wait for it. */
static void check_demand(void)
{
    static uint8_t buf[LEN] __attribute__((aligned(4096)));
    struct chm_read item = {.addr = 0, .len = LEN, .buf = buf};
    const uint64_t on_device = LEN + 80 * US;
    struct rig r;

    open_linked(&r, RATE);
    CHECK_IS(chm_read_issue(r.dev, &item, 1), 1);
    CHECK_IS(chm_arrival(r.dev, item.req), -EAGAIN);
    while (chm_now(r.dev) < on_device) {
        CHECK_IS(chm_arrival(r.dev, item.req), -EAGAIN);
        CHECK(chm_step(r.dev, on_device) >= 0);
    }
    CHECK_IS(chm_arrival(r.dev, item.req), on_device + LEN + LATENCY);
    CHECK_EQ(chm_now(r.dev), on_device);
    CHECK_IS(chm_wait(r.dev, item.req, LONG), 0);
    CHECK_IS(chm_arrival(r.dev, item.req), (int64_t)chm_now(r.dev));
    CHECK_IS(chm_release(r.dev, item.req), 0);
    CHECK_IS(chm_arrival(r.dev, item.req), -ESTALE);
    rig_close(&r);
}

/* A staged object stays until somebody asks for it. */
static void check_staged(void)
{
    struct rig r;
    uint64_t req, begin;

    open_linked(&r, RATE);
    req = rig_issue(&r, 0, LEN);
    begin = LEN + 90 * US;
    while (chm_now(r.dev) < begin) {
        CHECK(chm_step(r.dev, begin) >= 0);
    }
    CHECK_IS(chm_arrival(r.dev, req), -EAGAIN);
    CHECK_IS(chm_wait(r.dev, req, 0), -ETIMEDOUT);
    CHECK_IS(chm_arrival(r.dev, req), begin + LEN + LATENCY);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

static void check_failed(void)
{
    struct rig r;
    uint64_t req;

    rig_sim(&r);
    r.opt.link_rate = RATE;
    r.opt.fault.script = "0- read err 5";
    rig_open(&r);
    req = rig_issue(&r, 0, LEN);
    CHECK_IS(chm_wait(r.dev, req, LONG), -EIO);
    CHECK_IS(chm_arrival(r.dev, req), -EIO);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

static void check_no_link(void)
{
    struct rig r;
    uint64_t req;

    open_linked(&r, 0);
    req = rig_issue(&r, 0, LEN);
    CHECK_IS(chm_wait(r.dev, req, LONG), 0);
    CHECK_IS(chm_arrival(r.dev, req), -EOPNOTSUPP);
    CHECK_IS(chm_release(r.dev, req), 0);
    rig_close(&r);
}

int main(void)
{
    check_demand();
    check_staged();
    check_failed();
    check_no_link();
    return 0;
}
