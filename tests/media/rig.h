/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig.h - what the media tests share: a medium of any kind over fresh members, memory for its
 * buffers, and calls that do one I/O and wait for it.
 */
#ifndef CHM_TESTS_MEDIA_RIG_H
#define CHM_TESTS_MEDIA_RIG_H

#include <string.h>
#include <sys/mman.h>

#include "media/backing.h"
#include "media/clock.h"
#include "media/medium.h"
#include "util/check.h"
#include "util/util.h"

enum {
    RIG_MEMBERS_MAX = 2,
    RIG_MEMORY = 16 << 20,
    RIG_BLOCK = 4096, /* a multiple of what any medium here asks for, unless forced */
};

struct rig {
    struct chm_options opt;
    struct chm_media_args args;
    struct chm_backing backing[RIG_MEMBERS_MAX];
    char path[RIG_MEMBERS_MAX][256];
    struct chm_regions regions;
    uint8_t *memory; /* RIG_MEMORY bytes, region 0 */
    struct chm_medium *m;
    struct chm_error err;
};

/* The scratch directory of this test. */
static inline const char *rig_dir(void)
{
    const char *dir = getenv("CHM_TEST_DIR");

    return dir ? dir : "/tmp";
}

static inline void rig_path(char *to, size_t size, const char *name)
{
    CHECK(snprintf(to, size, "%s/%s-%d", rig_dir(), name, (int)getpid()) < (int)size);
}

/* A rig for a medium of this name; change r->opt and r->args before rig_open. */
static inline void rig_init(struct rig *r, const char *media)
{
    memset(r, 0, sizeof(*r));
    r->opt.size = sizeof(r->opt);
    r->opt.media = media;
    r->args = (struct chm_media_args){
        .opts = &r->opt,
        .backings = r->backing,
        .members = 1,
        .regions = &r->regions,
        .inflight_max = 64,
        .one_thread = true,
    };
    r->memory = mmap(NULL, RIG_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(r->memory != MAP_FAILED);
    atomic_store(&r->regions.at[0].base, r->memory);
    atomic_store(&r->regions.at[0].len, RIG_MEMORY);
    atomic_store(&r->regions.at[0].ready, RIG_MEMORY);
}

/* Create the members (files named by this process, unless the medium is simulated). */
static inline void rig_make(struct rig *r, uint64_t member_bytes)
{
    r->opt.sim.capacity_bytes = member_bytes;
    if (r->opt.media && strcmp(r->opt.media, "sim") == 0) {
        r->args.backings = NULL;
        return;
    }
    for (uint32_t i = 0; i < r->args.members; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "member%u", i);
        rig_path(r->path[i], sizeof(r->path[i]), name);
        int rc = chm_backing_create(r->path[i], member_bytes, r->opt.buffered != 0, &r->backing[i],
                                    &r->err);
        if (rc) {
            fprintf(stderr, "create %s: %s\n", r->path[i], r->err.text);
            exit(1);
        }
    }
}

static inline void rig_open(struct rig *r, uint64_t member_bytes)
{
    rig_make(r, member_bytes);
    int rc = chm_media_open(&r->args, &r->m, &r->err);
    if (rc) {
        fprintf(stderr, "open %s: %d, %s\n", r->opt.media, rc, r->err.text);
        exit(1);
    }
}

/* Remove the members and the memory; the medium is closed already or never was. */
static inline void rig_remove(struct rig *r)
{
    for (uint32_t i = 0; i < r->args.members && r->args.backings; i++) {
        chm_backing_close(&r->backing[i]);
        CHECK_EQ(unlink(r->path[i]), 0);
    }
    munmap(r->memory, RIG_MEMORY);
}

static inline void rig_close(struct rig *r)
{
    CHECK_EQ(chm_medium_close(r->m, CHM_FOREVER_NS), 0);
    rig_remove(r);
}

/* ------------------------------------------------------------------ I/O */

static inline struct chm_io rig_io(struct rig *r, enum chm_io_kind kind, uint64_t off, uint32_t len,
                                   uint64_t at)
{
    CHECK(at + len <= RIG_MEMORY);
    return (struct chm_io){
        .kind = (uint8_t)kind,
        .off = off,
        .len = len,
        .buf = r->memory + at,
    };
}

static inline unsigned rig_submit(struct rig *r, struct chm_io *io)
{
    return chm_medium_submit(r->m, &io, 1);
}

/* Reap exactly n I/Os, in order, however many calls it takes. */
static inline void rig_reap(struct rig *r, struct chm_io **out, unsigned n)
{
    unsigned have = 0;

    while (have < n) {
        int got = chm_medium_reap(r->m, out + have, n - have, CHM_FOREVER_NS);
        CHECK(got >= 0);
        have += (unsigned)got;
    }
}

/* Do one I/O and return its res. */
static inline int32_t rig_do(struct rig *r, struct chm_io io)
{
    struct chm_io *back = NULL;

    io.owner = r;
    CHECK_EQ(rig_submit(r, &io), 1);
    rig_reap(r, &back, 1);
    CHECK(back == &io);
    CHECK(io.owner == r);
    CHECK(io.submit_ns <= io.done_ns);
    return io.res;
}

/* Bytes that differ from block to block and from seed to seed. */
static inline void fill(uint8_t *p, uint64_t len, uint64_t seed)
{
    for (uint64_t i = 0; i + sizeof(uint64_t) <= len; i += sizeof(uint64_t)) {
        uint64_t v = chm_random(&seed);
        memcpy(p + i, &v, sizeof(v));
    }
}

static inline bool is_filled(const uint8_t *p, uint64_t len, uint64_t seed)
{
    for (uint64_t i = 0; i + sizeof(uint64_t) <= len; i += sizeof(uint64_t)) {
        uint64_t v = chm_random(&seed);
        if (memcmp(p + i, &v, sizeof(v)) != 0) {
            return false;
        }
    }
    return true;
}

static inline bool is_byte(const uint8_t *p, uint64_t len, uint8_t byte)
{
    for (uint64_t i = 0; i < len; i++) {
        if (p[i] != byte) {
            return false;
        }
    }
    return true;
}

#endif
