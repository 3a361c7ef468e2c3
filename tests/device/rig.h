/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig.h - what the device tests share: a small device on the simulated medium or on real files,
 * bytes that say where they belong, and calls that do one thing and check it.
 *
 * A byte pattern is a function of device address and a seed, so that any part of any range can be
 * checked alone and a byte in the wrong place never passes. Seed 0 means zeros: never written.
 */
#ifndef CHM_TESTS_DEVICE_RIG_H
#define CHM_TESTS_DEVICE_RIG_H

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "chm.h"
#include "util/check.h"
#include "util/util.h"

enum {
    RIG_SKIP = 77,
    RIG_PATH_MAX = 256,
    PAGE = CHM_PAGE_BYTES,
    KIB = 1 << 10,
    MIB = 1 << 20,
    MS = 1000000, /* nanoseconds */
    US = 1000,
    POISON = 0xA5,
};

/* Like CHECK_EQ, for values that may be -errno. */
#define CHECK_IS(got, expected)                                                                    \
    do {                                                                                           \
        int64_t got_ = (int64_t)(got), expected_ = (int64_t)(expected);                            \
        if (got_ != expected_) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s: expected %" PRId64 ", got %" PRId64 "\n", __FILE__,    \
                    __LINE__, __func__, #got, expected_, got_);                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct rig {
    struct chm_options opt;
    struct chm_error err;
    chm_dev *dev;
    struct chm_info info;
    struct chm_stats stats; /* as of the last rig_stats */
    uint32_t files;
    char path[CHM_MEMBERS_MAX][RIG_PATH_MAX];
    const char *paths[CHM_MEMBERS_MAX];
};

/* ------------------------------------------------------------------ making a device */

/* Scratch directory of this test. */
static inline const char *rig_dir(void)
{
    const char *dir = getenv("CHM_TEST_DIR");

    return dir ? dir : "/tmp";
}

/* Options of a small device: 4 MiB of DRAM, a quarter of it write buffer, memory poisoned when it
 * is given back, no helper thread. */
static inline void rig_options(struct rig *r, const char *media)
{
    *r = (struct rig){0};
    chm_options_init(&r->opt);
    r->opt.media = media;
    r->opt.dram_bytes = 4 * MIB;
    r->opt.write_buffer_bytes = 1 * MIB;
    r->opt.huge_pages = 1;
    r->opt.prefault = 2;
    r->opt.poison = 1;
}

/* The simulated medium: 15 MiB of address space (the first MiB of a member is set aside). */
static inline void rig_sim(struct rig *r)
{
    rig_options(r, "sim");
    r->opt.sim.capacity_bytes = 16 * MIB;
}

static inline void rig_name_files(struct rig *r, const char *name, uint32_t n)
{
    r->files = n;
    for (uint32_t i = 0; i < n; i++) {
        CHECK(snprintf(r->path[i], RIG_PATH_MAX, "%s/%s-%d-%u", rig_dir(), name, (int)getpid(), i) <
              RIG_PATH_MAX);
        r->paths[i] = r->path[i];
    }
    r->opt.paths = r->paths;
    r->opt.npaths = n;
}

static inline void rig_format(struct rig *r, uint64_t capacity_bytes)
{
    struct chm_format_options f;

    chm_format_options_init(&f);
    f.paths = r->paths;
    f.npaths = r->files;
    f.capacity_bytes = capacity_bytes;
    int rc = chm_format(&f, &r->err);
    if (rc == -EOPNOTSUPP) {
        printf("the test directory has no direct I/O: %s\n", r->err.text);
        exit(RIG_SKIP);
    }
    if (rc != 0) {
        fprintf(stderr, "format: %d, %s\n", rc, r->err.text);
        exit(1);
    }
}

/* A real medium over fresh files. */
static inline void rig_files(struct rig *r, const char *media, uint32_t members,
                             uint64_t capacity_bytes)
{
    rig_options(r, media);
    rig_name_files(r, "device", members);
    rig_format(r, capacity_bytes);
}

static inline void rig_unlink(struct rig *r)
{
    for (uint32_t i = 0; i < r->files; i++) {
        CHECK_IS(unlink(r->path[i]), 0);
    }
    r->files = 0;
}

/* False: this host refuses the medium (io_uring behind a container profile). */
static inline bool rig_try_open(struct rig *r)
{
    int rc = chm_open(&r->opt, &r->dev, &r->err);

    if (rc == -EOPNOTSUPP && strcmp(r->opt.media, "uring") == 0) {
        return false;
    }
    if (rc != 0) {
        fprintf(stderr, "open on %s: %d, %s\n", r->opt.media, rc, r->err.text);
        exit(1);
    }
    CHECK_IS(chm_info(r->dev, &r->info), 0);
    return true;
}

static inline void rig_open(struct rig *r)
{
    if (!rig_try_open(r)) {
        printf("io_uring is refused here: %s\n", r->err.text);
        rig_unlink(r);
        exit(RIG_SKIP);
    }
}

static inline void rig_close(struct rig *r)
{
    CHECK_IS(chm_close(r->dev, 60ull * CHM_SECOND), 0);
    r->dev = NULL;
    rig_unlink(r);
}

/* A simulated device with the given fault script. */
static inline void rig_open_faulty(struct rig *r, const char *script)
{
    r->opt.fault.script = script;
    rig_open(r);
}

/* Run fn in a child and check that it succeeds. For tests in which close keeps memory that the
 * drive might still write to: to a leak checker that is a leak, so the child leaves past it. */
static inline void rig_in_child(void (*fn)(const char *), const char *arg)
{
    int status = 0;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        fn(arg);
        syscall(SYS_exit_group, 0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    CHECK_IS(WEXITSTATUS(status), 0);
}

/* ------------------------------------------------------------------ bytes */

/* The eight bytes at addr, a multiple of 8. */
static inline uint64_t word_at(uint64_t addr, uint64_t seed)
{
    uint64_t x = (addr + 1) * UINT64_C(0x9E3779B97F4A7C15) ^ seed * UINT64_C(0xD1342543DE82EF95);

    x = (x ^ (x >> 29)) * UINT64_C(0xBF58476D1CE4E5B9);
    return seed ? x ^ (x >> 32) : 0;
}

static inline uint8_t byte_at(uint64_t addr, uint64_t seed)
{
    return (uint8_t)(word_at(addr & ~UINT64_C(7), seed) >> (8 * (addr & 7)));
}

/* addr and len are multiples of 8. */
static inline void fill(void *p, uint64_t addr, uint64_t len, uint64_t seed)
{
    for (uint64_t at = 0; at < len; at += 8) {
        uint64_t w = word_at(addr + at, seed);
        memcpy((uint8_t *)p + at, &w, 8);
    }
}

/* Offset of the first byte that is not as the pattern says, or len. Any alignment. */
static inline uint64_t first_wrong(const void *p, uint64_t addr, uint64_t len, uint64_t seed)
{
    const uint8_t *b = p;
    uint64_t at = 0, w;

    for (; at < len && (addr + at) % 8 != 0; at++) {
        if (b[at] != byte_at(addr + at, seed)) {
            return at;
        }
    }
    for (; at + 8 <= len; at += 8) {
        w = word_at(addr + at, seed);
        if (memcmp(b + at, &w, 8) != 0) {
            break;
        }
    }
    for (; at < len; at++) {
        if (b[at] != byte_at(addr + at, seed)) {
            return at;
        }
    }
    return len;
}

static inline bool holds(const void *p, uint64_t addr, uint64_t len, uint64_t seed)
{
    return first_wrong(p, addr, len, seed) == len;
}

#define CHECK_HOLDS(p, addr, len, seed)                                                            \
    do {                                                                                           \
        uint64_t len_ = (len), at_ = first_wrong(p, addr, len_, seed);                             \
        if (at_ != len_) {                                                                         \
            fprintf(stderr,                                                                        \
                    "%s:%d: %s: address %" PRIu64 " + %" PRIu64                                    \
                    ": expected the bytes of seed %" PRIu64 ", got 0x%02x\n",                      \
                    __FILE__, __LINE__, __func__, (uint64_t)(addr), at_, (uint64_t)(seed),         \
                    ((const uint8_t *)(p))[at_]);                                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline bool is_byte(const void *p, uint64_t len, uint8_t byte)
{
    const uint8_t *b = p;

    for (uint64_t i = 0; i < len; i++) {
        if (b[i] != byte) {
            return false;
        }
    }
    return true;
}

/* Page-aligned memory of its own. */
static inline void *rig_alloc(uint64_t len)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

/* ------------------------------------------------------------------ one thing at a time */

static inline const struct chm_stats *rig_stats(struct rig *r)
{
    CHECK_IS(chm_stats(r->dev, &r->stats), 0);
    return &r->stats;
}

/* Room for a write, filled; not committed. */
static inline struct chm_write rig_begin(struct rig *r, uint64_t addr, uint64_t len, uint64_t seed)
{
    struct chm_write w = {.addr = addr, .len = len};

    CHECK_IS(chm_write_begin(r->dev, &w, 1), 1);
    CHECK_IS(w.status, 0);
    CHECK(w.id != 0);
    fill(w.data, addr, len, seed);
    return w;
}

static inline void rig_commit(struct rig *r, const struct chm_write *w)
{
    int32_t status = 1;

    CHECK_IS(chm_write_commit(r->dev, &w->id, 1, &status), 1);
    CHECK_IS(status, 0);
}

static inline void rig_write(struct rig *r, uint64_t addr, uint64_t len, uint64_t seed)
{
    struct chm_write w = rig_begin(r, addr, len, seed);

    rig_commit(r, &w);
}

/* Write a range that may be larger than the buffer, so that it lies on the medium afterwards. */
static inline void rig_lay(struct rig *r, uint64_t addr, uint64_t len, uint64_t seed)
{
    uint64_t piece = r->info.write_buffer_bytes / 2;

    for (uint64_t at = 0; at < len; at += piece) {
        rig_write(r, addr + at, chm_min(piece, len - at), seed);
        CHECK_IS(chm_flush(r->dev, 60ull * CHM_SECOND), 0);
    }
}

/* One demand read into buf; the status of the item. */
static inline int rig_read(struct rig *r, uint64_t addr, uint64_t len, void *buf)
{
    struct chm_read item = {.addr = addr, .len = len, .buf = buf, .status = 1};
    int n = chm_read(r->dev, &item, 1, 60ull * CHM_SECOND);

    CHECK(n < 0 || n == (item.status == 0));
    return n < 0 ? n : item.status;
}

/* What a demand read gives is what seed says. */
static inline void rig_expect(struct rig *r, uint64_t addr, uint64_t len, uint64_t seed)
{
    uint8_t *buf = rig_alloc(len);

    memset(buf, 0x5A, len);
    CHECK_IS(rig_read(r, addr, len, buf), 0);
    CHECK_HOLDS(buf, addr, len, seed);
    munmap(buf, len);
}

static inline struct chm_issue rig_issue_with(struct rig *r, uint64_t addr, uint64_t len,
                                              const struct chm_issue_options *o)
{
    struct chm_issue item = {.addr = addr, .len = len, .status = 1};
    int n = chm_issue(r->dev, &item, 1, o);

    CHECK_IS(n, item.status == 0);
    return item;
}

/* The handle of a request that must be accepted. */
static inline uint64_t rig_issue(struct rig *r, uint64_t addr, uint64_t len)
{
    struct chm_issue item = rig_issue_with(r, addr, len, NULL);

    CHECK_IS(item.status, 0);
    CHECK(item.req != 0);
    return item.req;
}

static inline void *rig_view(struct rig *r, uint64_t req, uint64_t len)
{
    struct chm_view view;

    CHECK_IS(chm_view(r->dev, req, &view), 0);
    CHECK_EQ(view.len, len);
    return view.data;
}

/* Wait for a request and look at all of it. */
static inline void rig_expect_staged(struct rig *r, uint64_t req, uint64_t addr, uint64_t len,
                                     uint64_t seed)
{
    CHECK_IS(chm_wait(r->dev, req, 60ull * CHM_SECOND), 0);
    CHECK_IS(chm_progress(r->dev, req), len);
    CHECK_HOLDS(rig_view(r, req, len), addr, len, seed);
}

/* Let the device's clock run for ns; whatever comes due is done. Stepped devices. */
static inline void rig_run(struct rig *r, uint64_t ns)
{
    uint64_t until = chm_now(r->dev) + ns;

    do {
        CHECK(chm_step(r->dev, until) >= 0);
    } while (chm_now(r->dev) < until);
}

/* Threaded devices: return when all that was asked for before has been begun. Commands are carried
 * out in order, and a step after that submits. */
static inline void rig_begun(struct rig *r)
{
    uint64_t steps = rig_stats(r)->steps;

    while (rig_stats(r)->steps == steps) {
    }
}

/* The equations of struct chm_stats, and the budget. */
static inline void rig_check_counters(struct rig *r)
{
    const struct chm_stats *s = rig_stats(r);

    CHECK_EQ(s->issued, s->ready + s->failed + s->expired + s->cancelled + s->open);
    CHECK_EQ(s->begun, s->committed + s->aborted + s->open_writes);
    CHECK(s->window_peak_bytes + s->buffer_peak_bytes <= r->info.dram_bytes);
    CHECK(s->window_used_bytes <= s->window_peak_bytes);
    CHECK(s->window_used_bytes <= r->info.window_bytes);
    CHECK(s->buffer_used_bytes <= s->buffer_peak_bytes);
    CHECK(s->buffer_dirty_bytes <= s->buffer_used_bytes);
    CHECK(s->window_pinned_bytes <= s->window_used_bytes);
    CHECK(s->window_used_bytes + s->window_largest_free <= r->info.window_bytes);
}

/* Nothing is held and nothing is on its way: all counts of it are zero. */
static inline void rig_check_idle(struct rig *r)
{
    rig_check_counters(r);
    CHECK_EQ(r->stats.open, 0);
    CHECK_EQ(r->stats.open_writes, 0);
    CHECK_EQ(r->stats.window_used_bytes, 0);
    CHECK_EQ(r->stats.window_pinned_bytes, 0);
    CHECK_EQ(r->stats.window_waiting, 0);
    CHECK_EQ(r->stats.window_largest_free, r->info.window_bytes);
    CHECK_EQ(r->stats.buffer_used_bytes, 0);
    CHECK_EQ(r->stats.buffer_dirty_bytes, 0);
}

#endif
