/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same stream of I/Os gives the same results and the same bytes on every medium. sync is the
 * reference; a model in memory is the reference of sync.
 *
 * Argument: a seed. Without one a few are run; a failure prints the one that replays it.
 */
#include "rig.h"

#include <errno.h>

enum {
    MEMBERS = 2,
    MEMBER_BYTES = (1 << 20) + 8192, /* no multiple of the largest I/O */
    DEPTH = 8,
    ROUNDS = 60,
    LEN_MAX = 131072,
    STREAM_AT = DEPTH * LEN_MAX, /* in the rig's memory, behind the buffers: what is expected */
};

struct result {
    uint64_t digest; /* of every res, and of all bytes read */
    uint8_t image[MEMBERS][MEMBER_BYTES];
};

static uint64_t below(uint64_t *seed, uint64_t n)
{
    return chm_random(seed) % n;
}

static void digest_add(uint64_t *digest, const void *p, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++) {
        *digest = (*digest ^ ((const uint8_t *)p)[i]) * UINT64_C(1099511628211);
    }
}

/* A random I/O that touches only its own eighth of a member, so that order does not matter. */
static struct chm_io draw(struct rig *r, uint64_t *seed, unsigned lane)
{
    static const uint8_t kinds[] = {CHM_IO_READ,    CHM_IO_READ, CHM_IO_WRITE, CHM_IO_WRITE,
                                    CHM_IO_BARRIER, CHM_IO_TRIM, CHM_IO_WRITE, CHM_IO_READ};
    uint8_t kind = kinds[below(seed, CHM_COUNT(kinds))];
    uint64_t lane_bytes = MEMBER_BYTES / DEPTH / RIG_BLOCK * RIG_BLOCK, base = lane * lane_bytes;
    uint64_t off = below(seed, lane_bytes / RIG_BLOCK) * RIG_BLOCK;
    uint64_t len = (1 + below(seed, LEN_MAX / RIG_BLOCK)) * RIG_BLOCK;
    struct chm_io io;

    if (lane == DEPTH - 1 && below(seed, 4) == 0) {
        off += 2 * RIG_BLOCK; /* the last lane also goes across the end, and beyond */
        lane_bytes += LEN_MAX;
    }
    len = chm_min(len, lane_bytes > off ? lane_bytes - off : RIG_BLOCK);
    io = rig_io(r, kind, base + off, (uint32_t)len, (uint64_t)lane * LEN_MAX);
    io.member = (uint16_t)below(seed, MEMBERS);
    io.flags = kind == CHM_IO_WRITE && below(seed, 4) == 0 ? CHM_IO_FUA : 0;
    fill(io.buf, LEN_MAX, kind == CHM_IO_WRITE ? chm_random(seed) : 0);
    return io;
}

/* What the I/O must give, by the model; applies it. */
static int32_t model(uint8_t image[MEMBERS][MEMBER_BYTES], const struct chm_io *io, uint8_t *bytes)
{
    uint8_t *at = image[io->member] + io->off;
    bool fits = io->off + io->len <= MEMBER_BYTES;

    switch (io->kind) {
    case CHM_IO_READ: {
        uint64_t n = io->off >= MEMBER_BYTES ? 0 : chm_min(io->len, MEMBER_BYTES - io->off);
        if (n) {
            memcpy(bytes, at, n);
        }
        return (int32_t)n;
    }
    case CHM_IO_WRITE:
        if (fits) {
            memcpy(at, io->buf, io->len);
        }
        return fits ? (int32_t)io->len : -ENOSPC;
    case CHM_IO_TRIM:
        if (fits) {
            memset(at, 0, io->len);
        }
        return fits ? 0 : -ENOSPC;
    default:
        return 0;
    }
}

static void run_round(struct rig *r, uint64_t *seed, struct result *result)
{
    struct chm_io io[DEPTH], *in[DEPTH], *out[DEPTH];
    uint8_t *expected = r->memory + STREAM_AT;
    int32_t res[DEPTH];

    for (unsigned lane = 0; lane < DEPTH; lane++) {
        io[lane] = draw(r, seed, lane);
        in[lane] = &io[lane];
        res[lane] = model(result->image, &io[lane], expected + (size_t)lane * LEN_MAX);
    }
    CHECK_EQ(chm_medium_submit(r->m, in, DEPTH), DEPTH);
    rig_reap(r, out, DEPTH);
    for (unsigned lane = 0; lane < DEPTH; lane++) {
        CHECK_EQ(io[lane].res, res[lane]);
        digest_add(&result->digest, &io[lane].res, sizeof(io[lane].res));
        if (io[lane].kind == CHM_IO_READ && res[lane] > 0) {
            CHECK(memcmp(io[lane].buf, expected + (size_t)lane * LEN_MAX, (size_t)res[lane]) == 0);
            digest_add(&result->digest, io[lane].buf, (uint64_t)res[lane]);
        }
    }
}

/* Read everything back in the end. */
static void check_image(struct rig *r, struct result *result)
{
    for (uint16_t member = 0; member < MEMBERS; member++) {
        struct chm_io io = rig_io(r, CHM_IO_READ, 0, MEMBER_BYTES, 0);
        io.member = member;
        CHECK_EQ(rig_do(r, io), MEMBER_BYTES);
        CHECK(memcmp(r->memory, result->image[member], MEMBER_BYTES) == 0);
        digest_add(&result->digest, r->memory, MEMBER_BYTES);
    }
}

/* Digest of the stream of this seed on this medium, or 0 if there is no such medium here. */
static uint64_t run(const char *medium, uint64_t seed)
{
    static struct result result;
    struct rig r;

    memset(&result, 0, sizeof(result));
    rig_init(&r, medium);
    r.args.members = MEMBERS;
    rig_make(&r, MEMBER_BYTES);
    if (chm_media_open(&r.args, &r.m, &r.err) != 0) {
        printf("%s is not to be had: %s\n", medium, r.err.text);
        rig_remove(&r);
        return 0;
    }
    if (!r.m->caps.trim) {
        printf("%s cannot trim here\n", medium);
        exit(77);
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        run_round(&r, &seed, &result);
    }
    check_image(&r, &result);
    rig_close(&r);
    return result.digest;
}

static void run_seed(uint64_t seed)
{
    static const char *const media[] = {"threads", "uring", "sim"};
    uint64_t reference = run("sync", seed);

    for (size_t i = 0; i < CHM_COUNT(media); i++) {
        uint64_t digest = run(media[i], seed);
        if (digest && digest != reference) {
            printf("%s differs from sync: seed %" PRIu64 "\n", media[i], seed);
            exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        run_seed(strtoull(argv[1], NULL, 0));
        return 0;
    }
    for (uint64_t seed = 1; seed <= 4; seed++) {
        printf("seed %" PRIu64 "\n", seed);
        (void)fflush(stdout);
        run_seed(seed);
    }
    return 0;
}
