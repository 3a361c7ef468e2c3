/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig.h - what the tests of streams and objects share, on top of the rig of the device tests:
 * opening a stream, taking its pieces one by one with every field and byte checked, prefetches that
 * hog the window, and a space with its counters.
 */
#ifndef CHM_TESTS_STORE_RIG_H
#define CHM_TESTS_STORE_RIG_H

#include "device/rig.h"

enum {
    RIG_LONG_S = 60,
    FRAME = 64 * KIB,
    FRAMES = 42, /* of the window of a small device */
    SINGLES_MAX = 64,
};

static const uint64_t RIG_LONG = (uint64_t)RIG_LONG_S * CHM_SECOND;

/* ------------------------------------------------------------------ streams */

/* A stream with the list it was opened on, and the place in the list that comes next. */
struct flow {
    struct rig *r;
    chm_stream *s;
    const struct chm_range *objs;
    uint32_t n;
    uint64_t seed; /* of the bytes */
    uint32_t object;
    uint64_t offset;
};

static inline struct flow flow_open(struct rig *r, const struct chm_range *objs, uint32_t n,
                                    uint64_t seed, const struct chm_stream_options *o)
{
    struct flow f = {.r = r, .objs = objs, .n = n, .seed = seed};

    CHECK_IS(chm_stream_open(r->dev, objs, n, o, &f.s), 0);
    CHECK(f.s);
    return f;
}

static inline struct chm_stream_info flow_info(const struct flow *f)
{
    struct chm_stream_info info;

    CHECK_IS(chm_stream_info(f->s, &info), 0);
    return info;
}

/* p is what the list says comes next; bytes are not looked at. */
static inline void flow_check_order(struct flow *f, const struct chm_piece *p)
{
    const struct chm_range *o = &f->objs[f->object];

    CHECK(f->object < f->n);
    CHECK_EQ(p->object, f->object);
    CHECK_EQ(p->offset, f->offset);
    CHECK(p->len > 0 && p->len <= o->len - p->offset && p->req != 0);
    CHECK_EQ(p->last, p->offset + p->len == o->len);
    f->offset += p->len;
    if (p->last) {
        f->object++;
        f->offset = 0;
    }
}

static inline void flow_check_bytes(const struct flow *f, const struct chm_piece *p)
{
    CHECK_HOLDS(p->data, f->objs[p->object].addr + p->offset, p->len, f->seed);
}

/* The next piece, which must come within a minute, and be right. */
static inline struct chm_piece flow_next(struct flow *f)
{
    struct chm_piece p;

    CHECK_IS(chm_stream_next(f->s, RIG_LONG, &p), 0);
    flow_check_order(f, &p);
    flow_check_bytes(f, &p);
    return p;
}

/* next answers rc. */
static inline void flow_expect(struct flow *f, uint64_t timeout_ns, int rc)
{
    struct chm_piece p = {.len = 1};

    CHECK_IS(chm_stream_next(f->s, timeout_ns, &p), rc);
    CHECK_EQ(p.len, 1); /* outputs are untouched on failure */
}

static inline void flow_release(struct flow *f, const struct chm_piece *p)
{
    CHECK_IS(chm_stream_release(f->s, p->req), 0);
}

/* Take and give back n pieces. */
static inline void flow_run(struct flow *f, uint64_t n)
{
    while (n-- > 0) {
        struct chm_piece p = flow_next(f);

        flow_release(f, &p);
    }
}

/* All that is left of it; returns the number of pieces. */
static inline uint64_t flow_drain(struct flow *f)
{
    uint64_t n = 0;

    for (; f->object < f->n; n++) {
        flow_run(f, 1);
    }
    flow_expect(f, 0, -ENODATA);
    return n;
}

static inline void flow_close(struct flow *f)
{
    CHECK_IS(chm_stream_close(f->s), 0);
    f->s = NULL;
}

/* Nothing is held, kept or on its way. */
static inline void rig_check_quiet(struct rig *r)
{
    CHECK_IS(chm_quiesce(r->dev, RIG_LONG), 0);
    CHECK_IS(chm_flush(r->dev, RIG_LONG), 0);
    rig_check_idle(r);
    CHECK_EQ(r->stats.window_reserved_bytes, 0);
}

/* n ranges of len bytes, one behind the other from addr. */
static inline const struct chm_range *row(struct chm_range *to, uint32_t n, uint64_t addr,
                                          uint64_t len)
{
    for (uint32_t i = 0; i < n; i++) {
        to[i] = (struct chm_range){.addr = addr + i * len, .len = len};
    }
    return to;
}

/* ------------------------------------------------------------------ prefetches in the way */

/* Single prefetches of a frame each, in places that nothing was written to. */
struct hog {
    uint64_t req[SINGLES_MAX], addr;
    uint32_t n;
};

/* Take every frame that single prefetches can get, and keep it. */
static inline void hog_fill(struct rig *r, struct hog *h, uint64_t addr)
{
    const struct chm_issue_options o = {.flags = CHM_ISSUE_NOWAIT, .expire_ns = UINT64_MAX};

    *h = (struct hog){.addr = addr};
    for (;; h->n++) {
        struct chm_issue item = rig_issue_with(r, addr + h->n * FRAME, FRAME, &o);

        if (item.status != 0) {
            CHECK_IS(item.status, -EAGAIN);
            return;
        }
        CHECK(h->n < SINGLES_MAX);
        h->req[h->n] = item.req;
    }
}

/* The last n have their bytes, and go. */
static inline void hog_shrink(struct rig *r, struct hog *h, uint32_t n)
{
    while (n-- > 0) {
        h->n--;
        rig_expect_staged(r, h->req[h->n], h->addr + h->n * FRAME, FRAME, 0);
        CHECK_IS(chm_release(r->dev, h->req[h->n]), 0);
    }
}

static inline void hog_release(struct rig *r, struct hog *h)
{
    hog_shrink(r, h, h->n);
}

/* ------------------------------------------------------------------ objects */

/* The counters close. */
static inline struct chm_space_stats space_stats(chm_space *sp)
{
    struct chm_space_stats s;

    CHECK_IS(chm_space_stats(sp, &s), 0);
    CHECK_EQ(s.used_bytes + s.free_bytes, s.total_bytes);
    CHECK(s.payload_bytes <= s.used_bytes);
    CHECK(s.largest_free_bytes <= s.free_bytes);
    CHECK_EQ(s.free_extents == 0, s.free_bytes == 0);
    return s;
}

/* The space is as if nothing had ever been in it. */
static inline void space_check_empty(chm_space *sp)
{
    struct chm_space_stats s = space_stats(sp);

    CHECK_EQ(s.used_bytes, 0);
    CHECK_EQ(s.payload_bytes, 0);
    CHECK_EQ(s.free_extents, 1);
    CHECK_EQ(s.largest_free_bytes, s.total_bytes);
    CHECK_EQ(s.objects + s.puts_open + s.held + s.deleting, 0);
}

/* A device with a space on it. */
struct home {
    struct rig r;
    chm_space *sp;
};

static inline void home_open(struct home *h, const struct chm_space_options *o)
{
    rig_open(&h->r);
    CHECK_IS(chm_space_open(h->r.dev, o, &h->sp), 0);
    space_check_empty(h->sp);
}

static inline void home_close(struct home *h)
{
    CHECK_IS(chm_space_close(h->sp), 0);
    rig_check_quiet(&h->r);
    rig_close(&h->r);
}

#endif
