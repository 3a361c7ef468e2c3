/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fault wrapper: each fault does what chm.h says and nothing more, and the same script or seed
 * gives the same faults.
 */
#include "rig.h"

#include <errno.h>

enum { MEMBER_BYTES = 4 << 20, LEN = 16384 };

static const char *const media[] = {"sim", "sync", "uring"};

static void start(struct rig *r, const char *medium, const char *script)
{
    rig_init(r, medium);
    r->opt.fault.script = script;
    rig_open(r, MEMBER_BYTES);
}

static int32_t read_at(struct rig *r, uint64_t off)
{
    memset(r->memory, 0xA5, LEN);
    return rig_do(r, rig_io(r, CHM_IO_READ, off, LEN, 0));
}

static int32_t write_at(struct rig *r, uint64_t off, uint64_t seed)
{
    fill(r->memory, LEN, seed);
    return rig_do(r, rig_io(r, CHM_IO_WRITE, off, LEN, 0));
}

/* ------------------------------------------------------------------ each fault */

/* F01: a short read is short, and what it did not read stays as it was. */
static void check_err_and_short(const char *medium)
{
    struct rig r;

    start(&r, medium,
          "1 read err 5\n"
          "2 read short 4096\n"
          "  3  read  short  5000  \n"
          "4 read short 0\n"
          "# a comment\n"
          "\n"
          "5 read short 99999999\n"
          "1 barrier err 61\n"
          "0 write short 9000");
    CHECK_EQ(write_at(&r, 0, 1), 9000 - 9000 % r.m->caps.block_bytes);
    CHECK_EQ(write_at(&r, 0, 1), LEN);
    CHECK_EQ(read_at(&r, 0), LEN);
    CHECK_EQ(read_at(&r, 0), -EIO);
    CHECK(is_byte(r.memory, LEN, 0xA5)); /* the inner medium was not asked */
    CHECK_EQ(read_at(&r, 0), 4096);
    CHECK(is_filled(r.memory, 4096, 1) && is_byte(r.memory + 4096, LEN - 4096, 0xA5));
    CHECK_EQ(read_at(&r, 0), 5000);
    CHECK(is_filled(r.memory, 5000, 1) && is_byte(r.memory + 8192, LEN - 8192, 0xA5));
    CHECK_EQ(read_at(&r, 0), 0);
    CHECK(is_byte(r.memory, LEN, 0xA5));
    CHECK_EQ(read_at(&r, 0), LEN);
    CHECK(is_filled(r.memory, LEN, 1));
    CHECK_EQ(rig_do(&r, (struct chm_io){.kind = CHM_IO_BARRIER}), 0);
    CHECK_EQ(rig_do(&r, (struct chm_io){.kind = CHM_IO_BARRIER}), -ENODATA);
    rig_close(&r);
}

static void check_torn_and_lost(const char *medium)
{
    struct rig r;

    start(&r, medium, "1 write torn 4096\n2 write lost\n3 write torn 0\n");
    for (uint64_t i = 0; i < 4; i++) {
        CHECK_EQ(write_at(&r, i * LEN, 100), LEN); /* the first one only is honest */
    }
    CHECK_EQ(read_at(&r, 0), LEN);
    CHECK(is_filled(r.memory, LEN, 100));
    CHECK_EQ(read_at(&r, LEN), LEN);
    CHECK(is_filled(r.memory, 4096, 100) && is_byte(r.memory + 4096, LEN - 4096, 0));
    for (uint64_t i = 2; i < 4; i++) {
        CHECK_EQ(read_at(&r, i * LEN), LEN);
        CHECK(is_byte(r.memory, LEN, 0));
    }
    rig_close(&r);
}

static void submit_reads(struct rig *r, struct chm_io *io, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        io[i] = rig_io(r, CHM_IO_READ, (uint64_t)i * LEN, LEN, (uint64_t)i * LEN);
        CHECK_EQ(rig_submit(r, &io[i]), 1);
    }
}

static void check_late(const char *medium)
{
    struct chm_io io[3], *out[3];
    struct rig r;

    start(&r, medium, "0 read late 5000000\n");
    submit_reads(&r, io, 3);
    rig_reap(&r, out, 3);
    CHECK(out[2] == &io[0]);
    CHECK(io[0].done_ns - io[0].submit_ns >= 5000000);
    CHECK_EQ(io[0].res, LEN);
    CHECK(chm_medium_now(r.m) >= io[0].done_ns);
    rig_close(&r);
}

/* F96: it never comes back, nothing else waits for it, and close() does not either. */
static void check_never(const char *medium)
{
    struct chm_io io[3], *out[3];
    struct rig r;

    start(&r, medium, "1 any never\n");
    submit_reads(&r, io, 3);
    rig_reap(&r, out, 2);
    CHECK((out[0] == &io[0] && out[1] == &io[2]) || (out[0] == &io[2] && out[1] == &io[0]));
    CHECK_EQ(chm_medium_reap(r.m, out, 3, chm_medium_now(r.m) + 1000000), 0);
    if (r.m->caps.virtual_time) {
        CHECK_EQ(chm_medium_reap(r.m, out, 3, CHM_FOREVER_NS), 0);
    }
    rig_close(&r);
}

static void check_swap(const char *medium)
{
    struct chm_io io[4], *out[4];
    struct rig r;

    start(&r, medium, "0 read swap\n3 read swap\n");
    submit_reads(&r, io, 4);
    rig_reap(&r, out, 4);
    CHECK(out[0] != &io[0]);
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(io[i].res, LEN);
    }
    rig_close(&r);

    start(&r, medium, "0- any swap\n"); /* each waits for the next one; the last must not hang */
    submit_reads(&r, io, 4);
    rig_reap(&r, out, 4);
    CHECK_EQ(read_at(&r, 0), LEN);
    rig_close(&r);
}

/* On the simulator completion order is known, so the swapped order is too. */
static void check_swap_order(void)
{
    struct chm_io io[4], *out[4];
    struct rig r;

    start(&r, "sim", "1 read swap\n");
    submit_reads(&r, io, 4);
    rig_reap(&r, out, 4);
    CHECK(out[0] == &io[0] && out[1] == &io[2] && out[2] == &io[1] && out[3] == &io[3]);
    CHECK_EQ(io[1].done_ns, io[2].done_ns);
    rig_close(&r);
}

/* ------------------------------------------------------------------ scripts */

static void check_ranges(void)
{
    struct rig r;

    start(&r, "sim", "2-3 read err 1\n1 any err 2\n6- any err 3\n");
    CHECK_EQ(read_at(&r, 0), LEN);
    CHECK_EQ(read_at(&r, 0), -2);
    CHECK_EQ(read_at(&r, 0), -1);
    CHECK_EQ(write_at(&r, 0, 0), LEN);
    CHECK_EQ(read_at(&r, 0), -1);
    CHECK_EQ(read_at(&r, 0), LEN);
    CHECK_EQ(read_at(&r, 0), -3);
    CHECK_EQ(write_at(&r, 0, 0), -3);
    rig_close(&r);
}

static void check_bad_scripts(void)
{
    static const char *const bad[] = {
        "read err 5",
        "0 read",
        "0 read err",
        "0 read err x",
        "0 read err 0",
        "0 read lost 5",
        "0 reads err 5",
        "0 read fail 5",
        "x read err 5",
        "3-2 read err 5",
        "-1 read err 5",
        "0 read err -5",
        "0 read late 1 2",
        "0 read err 5000",
        "0 read err 5extra",
        "0-1-2 read err 5",
        "0 read err 99999999999999999999999",
    };
    struct chm_medium *m = NULL;
    struct rig r;

    rig_init(&r, "sim");
    rig_make(&r, MEMBER_BYTES);
    for (size_t i = 0; i < CHM_COUNT(bad); i++) {
        char script[128];
        (void)snprintf(script, sizeof(script), "0 read err 5\n%s\n", bad[i]);
        r.opt.fault.script = script;
        CHECK_EQ(chm_media_open(&r.args, &m, &r.err), -EINVAL);
        CHECK(m == NULL);
        CHECK(strstr(r.err.text, "line 2") != NULL);
    }
    rig_remove(&r);
}

/* ------------------------------------------------------------------ rates and seeds */

enum { RUN = 4000 };

struct outcome {
    uint64_t digest;
    unsigned errors, shorts, late, never;
};

static void count(struct outcome *o, const struct chm_io *io)
{
    uint64_t state = o->digest ^ (uint64_t)(uint32_t)io->res ^ (io->done_ns << 20) ^ io->off;

    o->digest = chm_random(&state);
    o->errors += io->res == -EIO;
    o->shorts += io->res >= 0 && (uint32_t)io->res < io->len;
    o->late += io->done_ns - io->submit_ns >= 10000000;
}

static struct outcome run_seed(uint64_t seed)
{
    struct outcome o = {0};
    struct rig r;

    rig_init(&r, "sim");
    r.args.inflight_max = RUN;
    r.opt.fault = (struct chm_fault_options){
        .seed = seed,
        .eio_ppm = 20000,
        .short_ppm = 20000,
        .torn_ppm = 20000,
        .lost_ppm = 20000,
        .late_ppm = 20000,
        .never_ppm = 5000,
        .swap_ppm = 20000,
    };
    rig_open(&r, MEMBER_BYTES);
    for (unsigned i = 0; i < RUN; i += 8) {
        struct chm_io io[8], *out[8];
        int n;
        for (unsigned k = 0; k < 8; k++) {
            uint64_t off = (uint64_t)(i + k) % 200 * LEN;
            io[k] = rig_io(&r, k % 2 ? CHM_IO_READ : CHM_IO_WRITE, off, LEN, (uint64_t)k * LEN);
            CHECK_EQ(rig_submit(&r, &io[k]), 1);
        }
        unsigned seen = 0;
        while ((n = chm_medium_reap(r.m, out, 8, CHM_FOREVER_NS)) > 0) {
            for (int k = 0; k < n; k++) {
                count(&o, out[k]);
            }
            seen += (unsigned)n;
        }
        o.never += 8 - seen;
    }
    rig_close(&r);
    return o;
}

static void check_seeds(void)
{
    struct outcome a = run_seed(1), again = run_seed(1), b = run_seed(2);

    CHECK_EQ(a.digest, again.digest);
    CHECK(a.digest != b.digest);
    /* 4000 I/Os at 2 %: 80 expected, and 20 never; 5 standard deviations either way */
    CHECK(a.errors > 36 && a.errors < 124);
    CHECK(a.shorts > 36 && a.shorts < 124);
    CHECK(a.late > 10);
    CHECK(a.never > 0 && a.never < 43);
}

int main(void)
{
    for (size_t i = 0; i < CHM_COUNT(media); i++) {
        printf("%s\n", media[i]);
        struct chm_medium *probe = NULL;
        struct rig r;
        rig_init(&r, media[i]);
        rig_make(&r, MEMBER_BYTES);
        int rc = chm_media_open(&r.args, &probe, &r.err);
        if (rc == 0) {
            CHECK_EQ(chm_medium_close(probe, CHM_FOREVER_NS), 0);
        }
        rig_remove(&r);
        if (rc) {
            printf("%s is not to be had: %s\n", media[i], r.err.text);
            continue;
        }
        check_err_and_short(media[i]);
        check_torn_and_lost(media[i]);
        check_late(media[i]);
        check_never(media[i]);
        check_swap(media[i]);
    }
    check_swap_order();
    check_ranges();
    check_bad_scripts();
    check_seeds();
    return 0;
}
