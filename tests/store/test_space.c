/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects: put in pieces, whole or not there at all, exact lengths, holding and deleting, space
 * that comes back. Simulated medium; what threads do to each other is in test_space_threads.c, how
 * a space is cut up in test_space_room.c.
 */
#include "rig.h"

enum { SEED = 9 };

static void setup(struct home *h)
{
    rig_sim(&h->r);
    home_open(h, NULL);
    CHECK_EQ(space_stats(h->sp).total_bytes, h->r.info.capacity_bytes);
}

/* The bytes of an object are those of a place of its own for each seed, whatever its address. */
static uint64_t place(uint64_t seed)
{
    return seed << 40;
}

static uint8_t *bytes_new(uint64_t len, uint64_t seed)
{
    uint8_t *p = rig_alloc(len + 8);

    fill(p, place(seed), (len + 7) / 8 * 8, seed);
    return p;
}

static struct chm_object put(struct home *h, uint64_t len, uint64_t seed)
{
    uint8_t *buf = bytes_new(len, seed);
    struct chm_object o = {0};

    CHECK_IS(chm_put(h->sp, buf, len, RIG_LONG, &o), 0);
    CHECK_EQ(o.len, len);
    CHECK(o.id != 0 && o.addr % PAGE == 0);
    munmap(buf, len + 8);
    return o;
}

/* All of it is there and right, and its last page ends in zeros. */
static void check_object(struct home *h, const struct chm_object *o, uint64_t seed)
{
    uint64_t whole = chm_round_up(o->len, PAGE);
    struct chm_object seen = {0};
    uint8_t *buf = rig_alloc(whole);

    memset(buf, 0x5A, whole);
    CHECK_IS(chm_object_get(h->sp, o->id, &seen), 0);
    CHECK(seen.id == o->id && seen.addr == o->addr && seen.len == o->len);
    CHECK_IS(chm_object_read(h->sp, o->id, 0, buf, o->len, RIG_LONG), 0);
    CHECK_HOLDS(buf, place(seed), o->len, seed);
    CHECK(is_byte(buf + o->len, whole - o->len, 0x5A));
    CHECK_IS(rig_read(&h->r, o->addr, whole, buf), 0);
    CHECK_HOLDS(buf, place(seed), o->len, seed);
    CHECK(is_byte(buf + o->len, whole - o->len, 0));
    munmap(buf, whole);
}

static void check_gone(struct home *h, uint64_t id)
{
    struct chm_object o = {.id = 1};
    uint8_t byte;

    CHECK_IS(chm_object_get(h->sp, id, &o), -ENOENT);
    CHECK_EQ(o.id, 1);
    CHECK_IS(chm_object_hold(h->sp, id), -ENOENT);
    CHECK_IS(chm_object_delete(h->sp, id), -ENOENT);
    CHECK_IS(chm_object_read(h->sp, id, 0, &byte, 1, 0), -ENOENT);
}

static void delete(struct home *h, const struct chm_object *o)
{
    CHECK_IS(chm_object_delete(h->sp, o->id), 0);
    check_gone(h, o->id);
}

/* ------------------------------------------------------------------ put */

/* Fills all pieces by hand; they come in order and none is larger than the buffer takes. */
static uint32_t put_pieces(struct home *h, const struct chm_object *o, uint64_t seed)
{
    uint8_t *buf = bytes_new(o->len, seed);
    struct chm_piece_put p;
    uint64_t at = 0;
    uint32_t n = 0;
    int rc;

    while ((rc = chm_put_piece(h->sp, o->id, &p)) != -ENODATA) {
        if (rc == -EAGAIN) {
            rig_run(&h->r, MS);
            continue;
        }
        CHECK_IS(rc, 0);
        CHECK_EQ(p.offset, at);
        CHECK(p.len > 0 && p.len <= h->r.info.write_buffer_bytes / 2 && at + p.len <= o->len);
        memcpy(p.data, buf + at, p.len);
        at += p.len;
        n++;
        check_gone(h, o->id);
    }
    CHECK_EQ(at, o->len);
    munmap(buf, o->len + 8);
    return n;
}

/* In one piece up to half of the write buffer, else in several; visible after commit. */
static void test_put_by_hand(uint64_t len, bool one)
{
    struct chm_object o;
    struct home h;

    setup(&h);
    CHECK_IS(chm_put_begin(h.sp, len, &o), 0);
    check_gone(&h, o.id);
    CHECK_EQ(space_stats(h.sp).puts_open, 1);
    CHECK_IS(chm_space_close(h.sp), -EBUSY);
    CHECK_IS(chm_put_commit(h.sp, o.id), -EINVAL); /* pieces are missing */
    CHECK_EQ(put_pieces(&h, &o, SEED) == 1, one);
    check_gone(&h, o.id);
    CHECK_IS(chm_put_commit(h.sp, o.id), 0);
    check_object(&h, &o, SEED);
    CHECK_IS(chm_put_commit(h.sp, o.id), -ESTALE);
    CHECK_IS(chm_put_abort(h.sp, o.id), -ESTALE);
    CHECK_IS(chm_put_piece(h.sp, o.id, &(struct chm_piece_put){0}), -ESTALE);
    CHECK_IS(chm_flush(h.r.dev, RIG_LONG), 0);
    check_object(&h, &o, SEED);
    CHECK_EQ(space_stats(h.sp).puts, 1);
    delete(&h, &o);
    space_check_empty(h.sp);
    home_close(&h);
}

/* A put that is given up, or abandoned and given up later, leaves nothing: neither space nor room
 * in the write buffer, at whatever point (F48). */
static void test_abort(uint32_t pieces)
{
    struct chm_piece_put p;
    struct chm_object o, next;
    struct home h;

    setup(&h);
    CHECK_IS(chm_put_begin(h.sp, 2 * MIB, &o), 0);
    for (uint32_t i = 0; i < pieces; i++) {
        int rc = chm_put_piece(h.sp, o.id, &p);

        if (rc == -EAGAIN) {
            rig_run(&h.r, MS);
            i--;
            continue;
        }
        CHECK_IS(rc, 0);
        memset(p.data, 0x11, p.len);
    }
    CHECK_IS(chm_put_abort(h.sp, o.id), 0);
    check_gone(&h, o.id);
    CHECK_IS(chm_put_abort(h.sp, o.id), -ESTALE);
    CHECK_EQ(rig_stats(&h.r)->open_writes, 0);
    CHECK_EQ(space_stats(h.sp).put_aborts, 1);
    space_check_empty(h.sp);
    next = put(&h, 2 * MIB + 5, SEED);
    CHECK_EQ(next.addr, o.addr);
    check_object(&h, &next, SEED);
    check_gone(&h, o.id);
    delete(&h, &next);
    home_close(&h);
}

/* The write buffer is full: -EAGAIN at once, nothing left of a copied put; room again later. */
static void test_buffer_full(void)
{
    uint8_t *buf = bytes_new(MIB, SEED);
    struct chm_object o = {.id = 1};
    struct chm_write w = {0};
    struct home h;
    uint64_t now;

    rig_sim(&h.r);
    h.r.opt.fault.script = "0 write late 200000000\n";
    home_open(&h, NULL);
    w = rig_begin(&h.r, 8 * MIB, MIB / 2, SEED);
    rig_begin(&h.r, 9 * MIB, MIB / 4, SEED);
    now = chm_now(h.r.dev);
    CHECK_IS(chm_put(h.sp, buf, MIB / 2, 0, &o), -EAGAIN);
    CHECK_EQ(chm_now(h.r.dev), now);
    CHECK_IS(chm_put(h.sp, buf, MIB, 50 * MS, &o), -ETIMEDOUT); /* one piece fits, no more */
    CHECK_EQ(chm_now(h.r.dev), now + 50 * MS);
    CHECK_EQ(o.id, 1);
    CHECK_EQ(space_stats(h.sp).put_aborts, 2);
    space_check_empty(h.sp);
    CHECK_IS(chm_write_abort(h.r.dev, &w.id, 1, NULL), 1);
    CHECK_IS(chm_put(h.sp, buf, MIB, RIG_LONG, &o), 0);
    check_object(&h, &o, SEED);
    munmap(buf, MIB + 8);
    CHECK_IS(chm_space_close(h.sp), 0);
    rig_close(&h.r); /* with a write open */
}

/* Exact lengths come back; what lies behind the last byte is zero, in a place that held longer data
 * before (F08). */
static void test_lengths(void)
{
    static const uint64_t len[] = {1,
                                   7,
                                   PAGE - 1,
                                   PAGE,
                                   PAGE + 1,
                                   64 * KIB - 1,
                                   512 * KIB,
                                   512 * KIB + 1,
                                   16 * MIB - PAGE + 17};
    struct home h;

    rig_sim(&h.r);
    h.r.opt.sim.capacity_bytes = 33 * MIB;
    home_open(&h, NULL);
    for (size_t i = 0; i < CHM_COUNT(len); i++) {
        struct chm_object before = put(&h, chm_round_up(len[i], PAGE), 100 + i), o;

        delete(&h, &before);
        o = put(&h, len[i], 200 + i);
        CHECK_EQ(o.addr, before.addr);
        check_object(&h, &o, 200 + i);
        CHECK_EQ(space_stats(h.sp).used_bytes, chm_round_up(len[i], PAGE));
        CHECK_EQ(space_stats(h.sp).payload_bytes, len[i]);
        CHECK_IS(chm_flush(h.r.dev, RIG_LONG), 0);
        check_object(&h, &o, 200 + i);
        delete(&h, &o);
    }
    space_check_empty(h.sp);
    home_close(&h);
}

/* The largest object: 1 GiB, in a space of 3 GiB without contents. */
static void test_largest(void)
{
    struct chm_piece_put p;
    struct chm_object o;
    uint64_t at = 0;
    struct home h;
    int rc;

    rig_sim(&h.r);
    h.r.opt.dram_bytes = 64 * MIB;
    h.r.opt.write_buffer_bytes = 32 * MIB;
    h.r.opt.poison = 0;
    h.r.opt.sim.capacity_bytes = 3ull << 30;
    h.r.opt.sim.no_contents = 1;
    home_open(&h, NULL);
    CHECK_IS(chm_put_begin(h.sp, (1ull << 30) + 1, &o), -E2BIG);
    CHECK_IS(chm_put_begin(h.sp, UINT64_MAX, &o), -E2BIG);
    CHECK_EQ(space_stats(h.sp).put_refused, 0); /* malformed is not refused for lack of space */
    CHECK_IS(chm_put_begin(h.sp, 1ull << 30, &o), 0);
    while ((rc = chm_put_piece(h.sp, o.id, &p)) != -ENODATA) {
        if (rc == -EAGAIN) {
            rig_run(&h.r, MS);
            continue;
        }
        CHECK_IS(rc, 0);
        CHECK_EQ(p.offset, at);
        at += p.len;
    }
    CHECK_EQ(at, 1ull << 30);
    CHECK_IS(chm_put_commit(h.sp, o.id), 0);
    CHECK_EQ(space_stats(h.sp).payload_bytes, 1ull << 30);
    delete(&h, &o);
    space_check_empty(h.sp);
    home_close(&h);
}

/* An empty object is refused (F93), as is everything else that makes no sense. */
static void test_bad_arguments(void)
{
    static const struct chm_space_options bad[] = {{.base = 1},
                                                   {.base = 1ull << 40},
                                                   {.len = 1ull << 40},
                                                   {.base = MIB, .len = 15 * MIB},
                                                   {.len = 1}};
    struct chm_object o = {.id = 1};
    struct chm_piece_put p;
    uint8_t byte = 0;
    chm_space *sp = NULL;
    struct home h;

    setup(&h);
    CHECK_IS(chm_put(h.sp, &byte, 0, 0, &o), -EINVAL);
    CHECK_IS(chm_put_begin(h.sp, 0, &o), -EINVAL);
    CHECK_IS(chm_put_begin(h.sp, 1, NULL), -EINVAL);
    CHECK_IS(chm_put_begin(NULL, 1, &o), -EINVAL);
    CHECK_IS(chm_put(h.sp, NULL, 1, 0, &o), -EINVAL);
    CHECK_IS(chm_put(h.sp, &byte, 1, 0, NULL), -EINVAL);
    CHECK_IS(chm_put_piece(h.sp, 0, &p), -ESTALE);
    CHECK_IS(chm_put_piece(h.sp, 1, NULL), -EINVAL);
    CHECK_IS(chm_put_commit(h.sp, UINT64_MAX), -ESTALE);
    CHECK_IS(chm_object_drop(h.sp, 1ull << 32 | 1), -ESTALE);
    CHECK_EQ(o.id, 1);
    check_gone(&h, 0);
    check_gone(&h, 1);
    check_gone(&h, UINT64_MAX);
    space_check_empty(h.sp);
    o = put(&h, 100, SEED);
    CHECK_IS(chm_object_read(h.sp, o.id, 0, NULL, 1, 0), -EINVAL);
    CHECK_IS(chm_object_read(h.sp, o.id, 0, &byte, 0, 0), -EINVAL);
    CHECK_IS(chm_object_read(h.sp, o.id, 99, &byte, 2, RIG_LONG), -ERANGE);
    CHECK_IS(chm_object_read(h.sp, o.id, UINT64_MAX, &byte, 1, RIG_LONG), -ERANGE);
    CHECK_IS(chm_object_read(h.sp, o.id, 99, &byte, 1, RIG_LONG), 0);
    CHECK_EQ(byte, byte_at(place(SEED) + 99, SEED));
    CHECK_IS(chm_close(h.r.dev, 0), -EBUSY);
    home_close(&h);

    rig_sim(&h.r);
    rig_open(&h.r);
    for (size_t i = 0; i < CHM_COUNT(bad); i++) {
        CHECK(chm_space_open(h.r.dev, &bad[i], &sp) < 0 && !sp);
    }
    CHECK_IS(chm_space_open(h.r.dev, NULL, NULL), -EINVAL);
    CHECK_IS(chm_space_open(NULL, NULL, &sp), -EINVAL);
    CHECK_IS(chm_space_close(NULL), 0);
    rig_close(&h.r);
}

/* ------------------------------------------------------------------ hold and delete */

/* Deleted while held: gone for everybody, but its place is its own until the last one lets go. */
static void test_delete_while_held(void)
{
    struct chm_object o, other;
    uint8_t *buf = rig_alloc(MIB);
    struct home h;

    setup(&h);
    o = put(&h, 1000, SEED);
    CHECK_IS(chm_object_hold(h.sp, o.id), 0);
    CHECK_IS(chm_object_hold(h.sp, o.id), 0);
    delete(&h, &o);
    CHECK_EQ(space_stats(h.sp).deleting, 1);
    CHECK_EQ(space_stats(h.sp).objects, 0);
    CHECK_EQ(space_stats(h.sp).payload_bytes, 0);
    CHECK_EQ(space_stats(h.sp).used_bytes, PAGE);
    CHECK_IS(chm_space_close(h.sp), -EBUSY);
    other = put(&h, 1000, SEED + 1);
    CHECK(other.addr != o.addr);
    CHECK_IS(chm_object_drop(h.sp, o.id), 0);
    CHECK_EQ(space_stats(h.sp).used_bytes, 2 * PAGE);
    CHECK_IS(rig_read(&h.r, o.addr, 1000, buf), 0);
    CHECK_HOLDS(buf, place(SEED), 1000, SEED);
    CHECK_IS(chm_object_drop(h.sp, o.id), 0);
    CHECK_IS(chm_object_drop(h.sp, o.id), -ESTALE);
    CHECK_EQ(space_stats(h.sp).used_bytes, PAGE);
    CHECK_EQ(space_stats(h.sp).deleting, 0);
    CHECK_IS(chm_object_drop(h.sp, other.id), -ESTALE); /* nobody holds it */
    delete(&h, &other);
    munmap(buf, MIB);
    space_check_empty(h.sp);
    home_close(&h);
}

/* An id is never given again, though its record and its place are. */
static void test_stale_ids(void)
{
    struct chm_object first, o;
    struct home h;

    setup(&h);
    first = o = put(&h, PAGE, 1);
    for (uint64_t i = 2; i < 100; i++) {
        uint64_t old = o.id;

        delete(&h, &o);
        o = put(&h, PAGE, i);
        CHECK(o.id != old && o.id != first.id);
        CHECK_EQ(o.addr, first.addr);
        check_gone(&h, old);
        check_gone(&h, first.id);
        CHECK_IS(chm_object_drop(h.sp, old), -ESTALE);
        CHECK_IS(chm_put_abort(h.sp, old), -ESTALE);
        check_object(&h, &o, i);
    }
    delete(&h, &o);
    home_close(&h);
}

/* A place that is used again while somebody still looks at what was there: a staged view keeps the
 * old bytes to its release (F50). Reads by then see the new object. */
static void test_reuse_under_a_view(bool in_flight)
{
    struct chm_object o, next;
    struct home h;
    uint64_t req, fresh;

    setup(&h);
    o = put(&h, MIB, SEED);
    CHECK_IS(chm_flush(h.r.dev, RIG_LONG), 0);
    req = rig_issue(&h.r, o.addr, MIB);
    if (!in_flight) {
        CHECK_IS(chm_wait(h.r.dev, req, RIG_LONG), 0);
    }
    delete(&h, &o);
    next = put(&h, MIB, SEED + 1);
    CHECK_EQ(next.addr, o.addr);
    CHECK_IS(chm_flush(h.r.dev, RIG_LONG), 0);
    CHECK_IS(chm_wait(h.r.dev, req, RIG_LONG), 0);
    CHECK_HOLDS(rig_view(&h.r, req, MIB), place(SEED), MIB, SEED);
    check_object(&h, &next, SEED + 1);
    fresh = rig_issue(&h.r, next.addr, MIB);
    CHECK_IS(chm_wait(h.r.dev, fresh, RIG_LONG), 0);
    CHECK_HOLDS(rig_view(&h.r, fresh, MIB), place(SEED + 1), MIB, SEED + 1);
    CHECK_HOLDS(rig_view(&h.r, req, MIB), place(SEED), MIB, SEED);
    CHECK_IS(chm_release(h.r.dev, req), 0);
    CHECK_IS(chm_release(h.r.dev, fresh), 0);
    delete(&h, &next);
    home_close(&h);
}

/* An object as a stream. */
static void test_as_a_stream(void)
{
    struct chm_object o;
    struct chm_range range;
    struct chm_piece p;
    uint64_t at = 0;
    struct home h;
    chm_stream *s;

    setup(&h);
    o = put(&h, 5 * MIB + 3, SEED);
    range = (struct chm_range){.addr = o.addr, .len = chm_round_up(o.len, PAGE)};
    CHECK_IS(chm_stream_open(h.r.dev, &range, 1, NULL, &s), 0);
    while (chm_stream_next(s, RIG_LONG, &p) == 0) {
        CHECK_HOLDS(p.data, place(SEED) + at, chm_min(p.len, o.len - at), SEED);
        at += p.len;
        CHECK_IS(chm_stream_release(s, p.req), 0);
    }
    CHECK_EQ(at, range.len);
    CHECK_IS(chm_stream_close(s), 0);
    delete(&h, &o);
    home_close(&h);
}

/* ------------------------------------------------------------------ failures */

/* Strict durability, and the drive refuses: the put fails and nothing is left of it (F03). */
static void test_strict_write_error(void)
{
    uint8_t *buf = bytes_new(MIB, SEED);
    struct chm_piece_put p;
    struct chm_object o = {.id = 1};
    struct home h;

    rig_sim(&h.r);
    h.r.opt.durability = CHM_DURABILITY_STRICT;
    h.r.opt.fault.script = "0-7 write err 5\n";
    home_open(&h, NULL);
    CHECK_IS(chm_put(h.sp, buf, PAGE, RIG_LONG, &o), -EIO);
    CHECK_EQ(o.id, 1);
    space_check_empty(h.sp);
    CHECK_IS(chm_put_begin(h.sp, MIB, &o), 0); /* by hand: a lost piece cannot be committed over */
    CHECK_IS(chm_put_piece(h.sp, o.id, &p), 0);
    memcpy(p.data, buf, p.len);
    CHECK_IS(chm_put_piece(h.sp, o.id, &p), -EIO);
    while (chm_put_piece(h.sp, o.id, &p) == 0) {
        memcpy(p.data, buf + p.offset, p.len);
    }
    CHECK(chm_put_commit(h.sp, o.id) < 0);
    check_gone(&h, o.id);
    CHECK_IS(chm_put_abort(h.sp, o.id), 0);
    space_check_empty(h.sp);
    CHECK_IS(chm_put(h.sp, buf, MIB, RIG_LONG, &o), 0);
    check_object(&h, &o, SEED);
    munmap(buf, MIB + 8);
    CHECK_IS(chm_space_close(h.sp), 0);
    (void)chm_close(h.r.dev, RIG_LONG);
}

/* A read that fails is an error and leaves the object as it was. */
static void test_read_error(void)
{
    uint8_t *buf = rig_alloc(MIB);
    struct chm_object o;
    struct home h;

    rig_sim(&h.r);
    h.r.opt.fault.script = "0 read err 5\n1 read late 2000000000\n";
    home_open(&h, NULL);
    o = put(&h, 64 * KIB, SEED);
    CHECK_IS(chm_flush(h.r.dev, RIG_LONG), 0);
    CHECK_IS(chm_object_read(h.sp, o.id, 0, buf, 64 * KIB, RIG_LONG), -EIO);
    CHECK_IS(chm_object_read(h.sp, o.id, 0, buf, 64 * KIB, CHM_SECOND), -ETIMEDOUT);
    CHECK_IS(chm_quiesce(h.r.dev, RIG_LONG), 0);
    CHECK_EQ(space_stats(h.sp).held, 0);
    check_object(&h, &o, SEED);
    delete(&h, &o);
    munmap(buf, MIB);
    home_close(&h);
}

/* ------------------------------------------------------------------ space */

/* Put, refused for lack of space, aborted, deleted, put again, a hundred times over: what is used
 * is what is there after every step (F31). */
static void test_accounting(void)
{
    struct chm_object o[2] = {{0}};
    struct home h;

    setup(&h);
    for (uint32_t i = 0; i < 100; i++) {
        struct chm_object *mine = &o[i % 2], big;

        if (mine->id) {
            delete(&h, mine);
        }
        *mine = put(&h, 100 * (i + 1), SEED + i);
        CHECK_IS(chm_put_begin(h.sp, 15 * MIB, &big), -ENOSPC);
        CHECK_IS(chm_put_begin(h.sp, 2 * MIB, &big), 0);
        CHECK_IS(chm_put_abort(h.sp, big.id), 0);
        CHECK_EQ(space_stats(h.sp).used_bytes,
                 chm_round_up(o[0].len, PAGE) + chm_round_up(o[1].len, PAGE));
        CHECK_EQ(space_stats(h.sp).payload_bytes, o[0].len + o[1].len);
    }
    CHECK_EQ(space_stats(h.sp).puts, 100);
    CHECK_EQ(space_stats(h.sp).put_refused, 100);
    CHECK_EQ(space_stats(h.sp).put_aborts, 100);
    CHECK_EQ(space_stats(h.sp).deletes, 98);
    delete(&h, &o[0]);
    delete(&h, &o[1]);
    space_check_empty(h.sp);
    home_close(&h);
}

/* A space over a part of the device stays in it, and there is a limit to the number of objects. */
static void test_bounds(void)
{
    const struct chm_space_options o = {.base = 3 * MIB, .len = 2 * MIB, .objects_max = 10};
    struct chm_object obj[10], more;
    struct home h;

    rig_sim(&h.r);
    home_open(&h, &o);
    CHECK_EQ(space_stats(h.sp).total_bytes, 2 * MIB);
    for (uint64_t i = 0; i < 10; i++) {
        obj[i] = put(&h, PAGE, i + 1);
        CHECK(obj[i].addr >= 3 * MIB && obj[i].addr + PAGE <= 5 * MIB);
    }
    CHECK_IS(chm_put_begin(h.sp, PAGE, &more), -ENOMEM);
    CHECK_EQ(space_stats(h.sp).used_bytes, 10 * PAGE);
    CHECK_IS(chm_put_begin(h.sp, 2 * MIB, &more), -ENOSPC);
    CHECK_EQ(space_stats(h.sp).put_refused, 2);
    for (uint64_t i = 0; i < 10; i++) {
        check_object(&h, &obj[i], i + 1);
        delete(&h, &obj[i]);
    }
    CHECK_IS(chm_put_begin(h.sp, 2 * MIB, &more), 0);
    CHECK_EQ(more.addr, 3 * MIB);
    CHECK_IS(chm_put_abort(h.sp, more.id), 0);
    space_check_empty(h.sp);
    home_close(&h);
}

int main(void)
{
    test_put_by_hand(1000, true);
    test_put_by_hand(512 * KIB, true);
    test_put_by_hand(512 * KIB + 1, false);
    test_put_by_hand(5 * MIB + 1, false);
    for (uint32_t pieces = 0; pieces <= 8; pieces++) {
        test_abort(pieces);
    }
    test_buffer_full();
    test_lengths();
    test_largest();
    test_bad_arguments();
    test_delete_while_held();
    test_stale_ids();
    test_reuse_under_a_view(false);
    test_reuse_under_a_view(true);
    test_as_a_stream();
    test_strict_write_error();
    test_read_error();
    test_accounting();
    test_bounds();
    return 0;
}
