/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_flush_policy.c - the flush policies beside each other, in virtual time: what each lets to
 * the drive while reads go on without a pause, when they pause, and when somebody asks.
 */
#include "device/rig.h"
#include "host/door.h"

static const uint64_t LONG = 60ull * CHM_SECOND;
enum { OBJECT = 64 * KIB };

static void open_with(struct rig *r, const char *flush_policy, uint32_t fcfs)
{
    rig_sim(r);
    r->opt.flush_policy = flush_policy;
    r->opt.fcfs = fcfs;
    r->opt.durability = CHM_DURABILITY_NONE;
    rig_open(r);
}

/* Reads without a pause for ns of the device's time: four objects on their way at any time. */
static void read_on(struct rig *r, uint64_t ns)
{
    uint64_t end = chm_now(r->dev) + ns, req[4], n = 0;

    for (; n < 4; n++) {
        req[n] = rig_issue(r, n * OBJECT, OBJECT);
    }
    for (; chm_now(r->dev) < end; n++) {
        CHECK_IS(chm_wait(r->dev, req[n % 4], LONG), 0);
        CHECK_IS(chm_release(r->dev, req[n % 4]), 0);
        req[n % 4] = rig_issue(r, n % 40 * OBJECT, OBJECT);
    }
    for (n = 0; n < 4; n++) {
        CHECK_IS(chm_release(r->dev, req[n]), 0);
    }
}

static void check_read_first(void)
{
    struct rig r;

    open_with(&r, "read-first", 0);
    CHECK(strcmp(r.info.flush_policy, "read-first") == 0);
    rig_write(&r, 8 * MIB, OBJECT, 1);
    read_on(&r, 900 * MS);
    CHECK_EQ(rig_stats(&r)->flush_units, 0);
    read_on(&r, 200 * MS); /* too old to wait for a pause */
    CHECK_EQ(rig_stats(&r)->flush_units, 1);
    rig_close(&r);
}

/* However old, what is written waits for a pause, or a full buffer, or somebody who asks. */
static void check_idle_only(void)
{
    struct rig r;
    struct chm_cmd flush = {.op = CHM_OP_FLUSH};
    uint64_t handle;

    open_with(&r, "idle-only", 0);
    CHECK(strcmp(r.info.flush_policy, "idle-only") == 0);
    rig_write(&r, 8 * MIB, OBJECT, 1);
    read_on(&r, 5ull * CHM_SECOND);
    CHECK_EQ(rig_stats(&r)->flush_units, 0);
    rig_run(&r, 10 * MS); /* a pause */
    CHECK_EQ(rig_stats(&r)->flush_units, 1);
    CHECK_EQ(r.stats.buffer_used_bytes, 0);

    read_on(&r, MS);                             /* no pause is that short */
    rig_write(&r, 8 * MIB, 512 * KIB - PAGE, 2); /* of 1 MiB, under the mark of a half */
    read_on(&r, 100 * MS);
    CHECK_EQ(rig_stats(&r)->flush_units, 1);
    rig_write(&r, 9 * MIB, PAGE, 3); /* at the mark */
    read_on(&r, 100 * MS);
    CHECK(rig_stats(&r)->flush_units > 1);
    CHECK_EQ(r.stats.flush_inflight_at_read_max, r.opt.flush_depth_reads);
    CHECK_IS(chm_flush(r.dev, LONG), 0);

    read_on(&r, MS);
    rig_write(&r, 10 * MIB, PAGE, 4);
    CHECK_IS(chm_cell_new(r.dev, CHM_OP_FLUSH, 0, &flush.cell, &handle), 0);
    chm_door_send(r.dev, &flush);
    read_on(&r, 10 * MS); /* without a pause, and asked for all the same */
    CHECK(chm_cell_has_ended(atomic_load(&chm_cell_of(r.dev, handle)->state)));
    CHECK_IS(chm_door_end(r.dev, handle, CHM_OP_RELEASE), 0);
    rig_expect(&r, 8 * MIB, 512 * KIB - PAGE, 2);
    rig_close(&r);
}

/* The option and its short form are one thing; reads and flushes take turns. */
static void check_fcfs(void)
{
    struct rig a, b, c;

    open_with(&a, "fcfs", 0);
    open_with(&b, "read-first", 1);
    open_with(&c, "read-first", 0);
    CHECK(strcmp(a.info.flush_policy, "fcfs") == 0 && strcmp(b.info.flush_policy, "fcfs") == 0);
    struct rig *all[] = {&a, &b, &c};
    for (unsigned i = 0; i < 3; i++) {
        for (uint64_t k = 0; k < 8; k++) {
            struct chm_write w = rig_begin(all[i], 8 * MIB + 2 * k * PAGE, PAGE, 1);
            rig_commit(all[i], &w);
        }
        read_on(all[i], 10 * MS);
        rig_stats(all[i]);
    }
    CHECK_EQ(a.stats.flush_units, 8);
    CHECK_EQ(b.stats.flush_units, 8);
    CHECK_EQ(c.stats.flush_units, 0);
    CHECK_EQ(a.stats.read_ios, b.stats.read_ios);
    CHECK_EQ(a.stats.write_io_ns.sum, b.stats.write_io_ns.sum);
    rig_close(&a);
    rig_close(&b);
    rig_close(&c);
}

/* Whose turn it is shows when both stand ready: with one I/O at a time they alternate. */
static void check_turns(void)
{
    struct chm_options o = {.read_depth = 1, .read_depth_pressed = 1};
    struct chm_flush_view v = {.opts = &o};
    const struct chm_flush_ops *fcfs = chm_flush_policy_find("fcfs");
    const struct chm_flush_ops *first = chm_flush_policy_find("read-first");

    CHECK(!fcfs->flush_first(&v) && !first->flush_first(&v));
    CHECK_EQ(fcfs->reads(&v) + fcfs->flushes(&v), 2); /* either, but not both: */
    v.reads = 1;
    CHECK_EQ(fcfs->flushes(&v), 0);
    v.reads = 0, v.flushes = 1;
    CHECK_EQ(fcfs->reads(&v), 0);
    v.turn = true;
    CHECK(fcfs->flush_first(&v) && !first->flush_first(&v));
    CHECK_IS(fcfs->admit(&v, 0, PAGE), 0);
    CHECK(chm_flush_policy_find("") == NULL && chm_policy_find("LRU") == NULL);
}

static int admit_small(const struct chm_flush_view *v, uint64_t addr, uint64_t len)
{
    (void)addr;
    return len <= PAGE && v->filled == 0 ? 0 : -EAGAIN;
}

/* What a policy does not admit is refused like what has no room: counted, and nothing is held. */
static void check_admission(const char *policy)
{
    struct chm_flush_ops small = chm_flush_read_first;
    struct rig r;
    struct chm_write w[3] = {{.len = 2 * PAGE}, {.len = PAGE}, {.len = PAGE}};

    small.admit = admit_small;
    rig_sim(&r);
    r.opt.policy = policy;
    rig_open(&r);
    r.dev->fw->flush_ops = &small;
    CHECK_IS(chm_write_begin(r.dev, &w[0], 1), 0);
    CHECK_IS(w[0].status, -EAGAIN);
    CHECK_IS(chm_write_begin(r.dev, &w[1], 2), 1);
    CHECK_IS(w[1].status, 0);
    CHECK_IS(w[2].status, -EAGAIN);
    CHECK_EQ(rig_stats(&r)->write_refused, 2);
    CHECK_EQ(r.stats.buffer_used_bytes, PAGE);
    CHECK_IS(chm_write_abort(r.dev, &w[1].id, 1, NULL), 1);
    CHECK_EQ(rig_stats(&r)->buffer_used_bytes, 0);
    rig_close(&r);
}

int main(void)
{
    check_admission("window");
    check_admission("lru");
    check_read_first();
    check_idle_only();
    check_fcfs();
    check_turns();
    return 0;
}
