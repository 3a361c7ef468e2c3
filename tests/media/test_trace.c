/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces: what is recorded, that a replay repeats it, and that a different run is noticed.
 */
#include "rig.h"

#include <errno.h>

#include "media/trace_file.h"

enum { MEMBER_BYTES = 4 << 20, LEN = 8192, RUN = 60 };

static char trace[256], second_trace[256];

/* What one run of the workload saw. */
struct seen {
    uint32_t order[RUN]; /* which I/O came back when */
    int32_t res[RUN];
    uint64_t latency_ns[RUN];
    uint64_t done_ns[RUN];
    uint32_t count;
};

/* RUN I/Os, six at a time, some of them of every kind; the next ones depend on what came back. */
static void workload(struct rig *r, struct seen *seen)
{
    struct chm_io io[RUN];
    unsigned sent = 0;

    memset(seen, 0, sizeof(*seen));
    while (seen->count < RUN) {
        struct chm_io *out[4];
        for (; sent < RUN && sent < seen->count + 6; sent++) {
            uint64_t slot = sent % 16;
            io[sent] = rig_io(r, (enum chm_io_kind)(sent % 7 % 4), slot * LEN, LEN, slot * LEN);
            io[sent].flags = sent % 14 == 1 ? CHM_IO_FUA : 0;
            CHECK_EQ(rig_submit(r, &io[sent]), 1);
        }
        int n = chm_medium_reap(r->m, out, 4, CHM_FOREVER_NS);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            uint32_t which = (uint32_t)(out[i] - io);
            seen->order[seen->count++] = which;
            seen->res[which] = out[i]->res;
            seen->latency_ns[which] = out[i]->done_ns - out[i]->submit_ns;
            seen->done_ns[which] = out[i]->done_ns;
        }
    }
}

static const char *const faults =
    "3 read err 5\n4 read short 4096\n9 read swap\n6 any late 300000\n"
    "2 write err 28\n2 barrier err 5\n";

static void record(const char *medium, struct seen *seen)
{
    struct rig r;

    rig_init(&r, medium);
    r.opt.fault.script = faults;
    r.opt.trace_record = trace;
    rig_open(&r, MEMBER_BYTES);
    workload(&r, seen);
    rig_close(&r);
}

static void open_replay(struct rig *r, const char *medium)
{
    rig_init(r, medium);
    r->opt.trace_replay = trace;
    if (strcmp(medium, "sim") == 0) { /* must not be slower than what was recorded */
        r->opt.sim.read_latency_ns = r->opt.sim.write_latency_ns = r->opt.sim.barrier_ns = 1;
        r->opt.sim.read_rate = r->opt.sim.write_rate = UINT64_C(1000000000000000);
    }
    rig_open(r, MEMBER_BYTES);
}

/* On the simulator a replay repeats everything, to the nanosecond, and makes the same
 * trace again. */
static void check_exact_replay(void)
{
    static struct seen first, again;
    char a[512], b[512];
    struct rig r;

    record("sim", &first);
    open_replay(&r, "sim");
    CHECK_EQ(chm_medium_close(r.m, CHM_FOREVER_NS), 0);
    r.opt.trace_record = second_trace;
    CHECK_EQ(chm_media_open(&r.args, &r.m, &r.err), 0);
    workload(&r, &again);
    rig_close(&r);
    CHECK_EQ(first.count, again.count);
    for (unsigned i = 0; i < RUN; i++) {
        CHECK_EQ(first.order[i], again.order[i]);
        CHECK_EQ(first.res[i], again.res[i]);
        CHECK_EQ(first.done_ns[i], again.done_ns[i]);
    }
    FILE *one = fopen(trace, "re"), *two = fopen(second_trace, "re");
    CHECK(one && two);
    while (fgets(a, sizeof(a), one)) {
        CHECK(fgets(b, sizeof(b), two) && strcmp(a, b) == 0);
    }
    CHECK(fgets(b, sizeof(b), two) == NULL);
    fclose(one);
    fclose(two);
    unlink(second_trace);
}

/* On a real medium results and order repeat, and nothing comes earlier than it did. */
static void check_real_replay(const char *from, const char *on)
{
    static struct seen first, again;
    struct rig r;

    record(from, &first);
    open_replay(&r, on);
    workload(&r, &again);
    rig_close(&r);
    for (unsigned i = 0; i < RUN; i++) {
        CHECK_EQ(first.order[i], again.order[i]);
        CHECK_EQ(first.res[i], again.res[i]);
        CHECK(again.latency_ns[i] >= first.latency_ns[i]);
    }
}

static void check_file(void)
{
    struct chm_medium_caps caps = {.members = 1, .block_bytes = 4096};
    static struct seen seen;
    struct chm_trace t;
    struct chm_error err;
    unsigned errors = 0;

    record("sim", &seen);
    CHECK_EQ(chm_trace_load(trace, &caps, &t, &err), 0);
    CHECK_EQ(t.lines, RUN);
    for (uint64_t i = 0; i < t.lines; i++) {
        const struct chm_trace_line *l = &t.line[i];
        CHECK_EQ(l->seq, seen.order[i]);
        CHECK_EQ(l->res, seen.res[l->seq]);
        CHECK_EQ(l->done_ns, seen.done_ns[l->seq]);
        CHECK_EQ(l->kind, l->seq % 7 % 4);
        CHECK_EQ(l->flags, l->seq % 14 == 1 ? CHM_IO_FUA : 0);
        errors += l->res < 0;
    }
    CHECK_EQ(errors, 3);
    free(t.line);
    caps.members = 2;
    CHECK_EQ(chm_trace_load(trace, &caps, &t, &err), -EXDEV);
    caps = (struct chm_medium_caps){.members = 1, .block_bytes = 65536};
    CHECK_EQ(chm_trace_load(trace, &caps, &t, &err), -EXDEV);
}

/* The first I/O that is not in the trace gets -EILSEQ, and so does all after it; those
 * before end. */
static void check_divergence(void)
{
    static struct seen seen;
    struct chm_io io[8], *out[8];
    struct rig r;

    record("sim", &seen);
    for (int how = 0; how < 4; how++) {
        open_replay(&r, "sim");
        for (unsigned i = 0; i < 8; i++) {
            io[i] = rig_io(&r, (enum chm_io_kind)(i % 7 % 4), i * LEN, LEN, (uint64_t)i * LEN);
            io[i].flags = i == 1 ? CHM_IO_FUA : 0;
        }
        io[5].off += how == 0 ? LEN : 0;
        io[5].len /= how == 1 ? 2 : 1;
        io[5].kind = how == 2 ? CHM_IO_READ : io[5].kind;
        io[5].flags = how == 3 ? CHM_IO_FUA : 0;
        for (unsigned i = 0; i < 8; i++) {
            CHECK_EQ(rig_submit(&r, &io[i]), 1);
        }
        rig_reap(&r, out, 8);
        for (unsigned i = 0; i < 8; i++) {
            CHECK_EQ(io[i].res, i < 5 ? seen.res[i] : -EILSEQ);
        }
        rig_close(&r);
    }
}

/* More I/Os than the trace has. */
static void check_end_of_trace(void)
{
    static struct seen seen;
    struct chm_io io;
    struct rig r;

    record("sim", &seen);
    open_replay(&r, "sim");
    workload(&r, &seen);
    io = rig_io(&r, CHM_IO_READ, 0, LEN, 0);
    CHECK_EQ(rig_do(&r, io), -EILSEQ);
    rig_close(&r);
}

/* An I/O that was never handed back has no line, and is not handed back in the replay. */
static void check_never(void)
{
    struct chm_io io[3], *out[3];
    struct rig r;

    for (int replay = 0; replay < 2; replay++) {
        if (replay) {
            open_replay(&r, "sim");
        } else {
            rig_init(&r, "sim");
            r.opt.fault.script = "1 read never\n";
            r.opt.trace_record = trace;
            rig_open(&r, MEMBER_BYTES);
        }
        for (unsigned i = 0; i < 3; i++) {
            io[i] = rig_io(&r, CHM_IO_READ, (uint64_t)i * LEN, LEN, 0);
            CHECK_EQ(rig_submit(&r, &io[i]), 1);
        }
        rig_reap(&r, out, 2);
        CHECK(out[0] == &io[0] && out[1] == &io[2]);
        CHECK_EQ(chm_medium_reap(r.m, out, 3, CHM_FOREVER_NS), 0);
        rig_close(&r);
    }
}

static void put(const char *text)
{
    FILE *file = fopen(trace, "we");

    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

#define HEAD "{\"chm_trace\":1,\"members\":1,\"block_bytes\":4096}\n"
#define LINE                                                                                       \
    "{\"seq\":0,\"submit_ns\":0,\"done_ns\":5,\"kind\":\"read\",\"member\":0,\"off\":0,"           \
    "\"len\":4096,\"res\":4096,\"fua\":0}\n"

static void check_damaged(void)
{
    static const char *const bad[] = {
        "",
        "nonsense\n",
        "{\"chm_trace\":2,\"members\":1,\"block_bytes\":4096}\n",
        HEAD "nonsense\n",
        HEAD LINE LINE, /* one seq twice */
        HEAD "{\"seq\":0,\"submit_ns\":9,\"done_ns\":5,\"kind\":\"read\",\"member\":0,\"off\":0,"
             "\"len\":4096,\"res\":4096,\"fua\":0}\n",
        HEAD "{\"seq\":18446744073709551615,\"submit_ns\":0,\"done_ns\":5,\"kind\":\"read\","
             "\"member\":0,\"off\":0,\"len\":4096,\"res\":4096,\"fua\":0}\n",
        HEAD "{\"seq\":0,\"submit_ns\":0,\"done_ns\":5,\"kind\":\"read\",\"member\":0,\"off\":0,"
             "\"len\":4096,\"re",
    };
    struct chm_medium *m = NULL;
    struct rig r;

    rig_init(&r, "sim");
    rig_make(&r, MEMBER_BYTES);
    r.opt.trace_replay = trace;
    put(HEAD LINE);
    CHECK_EQ(chm_media_open(&r.args, &m, &r.err), 0);
    CHECK_EQ(chm_medium_close(m, CHM_FOREVER_NS), 0);
    m = NULL;
    for (size_t i = 0; i < CHM_COUNT(bad); i++) {
        put(bad[i]);
        CHECK_EQ(chm_media_open(&r.args, &m, &r.err), -EINVAL);
        CHECK(m == NULL && strstr(r.err.text, trace) != NULL);
    }
    unlink(trace);
    CHECK_EQ(chm_media_open(&r.args, &m, &r.err), -ENOENT);
    r.opt.trace_replay = NULL;
    r.opt.trace_record = "/nowhere/trace";
    CHECK_EQ(chm_media_open(&r.args, &m, &r.err), -ENOENT);
    rig_remove(&r);
}

/* A trace that could not be written whole is told at close. */
static void check_full_disk(void)
{
    static struct seen seen;
    struct rig r;

    rig_init(&r, "sim");
    r.opt.trace_record = "/dev/full";
    rig_open(&r, MEMBER_BYTES);
    workload(&r, &seen);
    CHECK_EQ(chm_medium_close(r.m, CHM_FOREVER_NS), -ENOSPC);
    rig_remove(&r);
}

int main(void)
{
    rig_path(trace, sizeof(trace), "trace");
    rig_path(second_trace, sizeof(second_trace), "second-trace");
    check_exact_replay();
    check_real_replay("sync", "sync");
    check_real_replay("auto", "threads");
    check_real_replay("sim", "auto");
    check_file();
    check_divergence();
    check_end_of_trace();
    check_never();
    check_damaged();
    check_full_disk();
    unlink(trace);
    return 0;
}
