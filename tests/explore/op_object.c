/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_object.c - objects: put, read, hold, delete (explore.h).
 *
 * To the model an object is its pages, each a version from the commit of its piece on. Places of
 * objects that exist, are being put, or are deleted and still held never overlap.
 */
#include "explore/explore.h"

static void fail_status(struct run *r, const char *what, int rc)
{
    run_fail(r, "status", "%s: %d", what, rc);
}

void object_open_space(struct run *r)
{
    struct chm_space_options o = {.base = r->space_base,
                                  .len = SPACE_PAGES * PAGE,
                                  .objects_max = OBJECTS};
    int rc;

    memset(r->object, 0, sizeof(r->object));
    if (!r->with_space) {
        return;
    }
    rc = chm_space_open(r->dev, &o, &r->space);
    if (rc != 0) {
        fail_status(r, "space open", rc);
    }
}

/* ------------------------------------------------------------------ the model's side */

static uint64_t extent(const struct op_object *o)
{
    return chm_round_up(o->o.len, PAGE);
}

/* [at, at + len) of the object is committed by the call that follows. */
static void change(struct run *r, const struct op_object *o, uint64_t at, uint64_t len)
{
    if (len == 0) {
        return;
    }
    model_begin(&r->model);
    for (uint64_t off = at; off < at + len; off += PAGE) {
        uint64_t bytes = off < o->o.len ? chm_min(o->o.len - off, PAGE) : 0;
        model_set(&r->model, (o->o.addr + off) / PAGE, pattern_key(o->key, off / PAGE),
                  (uint32_t)bytes);
    }
}

static void check_place(struct run *r, const struct op_object *o)
{
    uint64_t end = o->o.addr + extent(o);

    if (o->o.addr % PAGE || o->o.addr < r->space_base || end > r->space_base + SPACE_PAGES * PAGE) {
        run_fail(r, "place", "an object at %" PRIu64 ": outside its space", o->o.addr);
    }
    for (int i = 0; i < OBJECTS; i++) {
        const struct op_object *x = &r->object[i];
        if (x != o && x->state != OBJECT_NONE && x->o.addr < end &&
            o->o.addr < x->o.addr + extent(x)) {
            run_fail(r, "place", "objects %d and %d overlap", (int)(o - r->object), i);
        }
    }
}

/* A put of unknown place failed: any free page of the space may have got some of it. */
static void spoil(struct run *r)
{
    bool used[SPACE_PAGES] = {false};

    for (int i = 0; i < OBJECTS; i++) {
        const struct op_object *x = &r->object[i];
        for (uint64_t at = 0; x->state != OBJECT_NONE && at < extent(x); at += PAGE) {
            used[(x->o.addr + at - r->space_base) / PAGE] = true;
        }
    }
    for (uint64_t p = 0; p < SPACE_PAGES; p++) {
        struct page *pg = &r->model.page[r->space_base / PAGE + p];
        pg->wild = pg->wild || !used[p];
    }
}

static struct op_object *some_object(struct run *r, int state)
{
    uint64_t first = run_random(r, OBJECTS);

    for (uint64_t i = 0; i < OBJECTS && r->space; i++) {
        if ((int)r->object[(first + i) % OBJECTS].state == state) {
            return &r->object[(first + i) % OBJECTS];
        }
    }
    return NULL;
}

static bool no_place(int rc)
{
    return rc == -ENOSPC || rc == -ENOMEM;
}

/* ------------------------------------------------------------------ put */

static struct op_object *new_object(struct run *r)
{
    struct op_object *o = some_object(r, OBJECT_NONE);

    if (o) {
        *o = (struct op_object){.key = run_random(r, UINT64_MAX)};
        o->o.len = 1 + run_random(r, (1 + run_random(r, OBJECT_PAGES_MAX)) * PAGE);
    }
    return o;
}

/* Pieces are committed one after the other: somebody may see the first without the second. */
static void put_whole(struct run *r, const struct op_object *o)
{
    uint64_t buffer = r->info.write_buffer_bytes;
    uint64_t piece = extent(o) <= buffer / 2 ? extent(o) : buffer / 4;

    for (uint64_t at = 0; at < extent(o); at += piece) {
        change(r, o, at, chm_min(piece, extent(o) - at));
    }
    write_told(r, o->o.addr, extent(o), r->model.changes, 0);
}

/* In one call. */
void op_put(struct run *r)
{
    struct op_object *o = new_object(r);
    uint8_t *buf = read_spare(r);
    uint64_t len, timeout_ns = r->c->agree ? LONG_NS : run_random(r, 20 * MS);
    int rc;

    if (!o) {
        return;
    }
    len = o->o.len;
    for (uint64_t off = 0; off < len; off += PAGE) {
        pattern_fill(buf + off, pattern_key(o->key, off / PAGE), 0, chm_min(PAGE, len - off));
    }
    rc = chm_put(r->space, buf, len, timeout_ns, &o->o);
    run_say(r, " object %d: %" PRIu64 " bytes -> %d", (int)(o - r->object), len, rc);
    run_note(r, (uint64_t)rc);
    if (rc == 0) {
        check_place(r, o);
        o->state = OBJECT_LIVE;
        put_whole(r, o);
    } else if (!no_place(rc)) {
        spoil(r);
        if (rc == -EIO) {
            model_told(&r->model);
        }
        if (rc != -EAGAIN && rc != -ETIMEDOUT && rc != -EBUSY && !run_error_allowed(r, rc)) {
            fail_status(r, "put", rc);
        }
    }
}

void op_put_begin(struct run *r)
{
    struct op_object *o = r->c->agree ? NULL : new_object(r);
    int rc;

    if (!o) {
        return;
    }
    rc = chm_put_begin(r->space, o->o.len, &o->o);
    run_say(r, " object %d: %" PRIu64 " bytes -> %d", (int)(o - r->object), o->o.len, rc);
    run_note(r, (uint64_t)rc);
    if (rc == 0) {
        check_place(r, o);
        o->state = OBJECT_PUT;
    } else if (!no_place(rc)) {
        fail_status(r, "put begin", rc);
    }
}

static void abort_put(struct run *r, struct op_object *o)
{
    int rc = chm_put_abort(r->space, o->o.id);

    run_say(r, " object %d aborted -> %d", (int)(o - r->object), rc);
    if (rc != 0) {
        fail_status(r, "put abort", rc);
    }
    o->state = OBJECT_NONE;
}

static void commit_put(struct run *r, struct op_object *o)
{
    int rc = chm_put_commit(r->space, o->o.id);

    run_say(r, " object %d visible -> %d", (int)(o - r->object), rc);
    run_note(r, (uint64_t)rc);
    if (rc == 0) {
        o->state = OBJECT_LIVE;
    } else if (run_error_allowed(r, rc)) {
        abort_put(r, o);
    } else {
        fail_status(r, "put commit", rc);
    }
}

/* The next piece. The call commits the one before it. */
void op_put_go_on(struct run *r)
{
    struct op_object *o = some_object(r, OBJECT_PUT);
    struct chm_piece_put piece;
    uint64_t at, len;
    int rc;

    if (!o) {
        return;
    }
    if (run_random(r, 8) == 0) {
        abort_put(r, o);
        return;
    }
    at = o->piece_at;
    len = o->piece_len;
    change(r, o, at, len);
    o->piece_len = 0;
    rc = chm_put_piece(r->space, o->o.id, &piece);
    run_say(r, " object %d -> %d", (int)(o - r->object), rc);
    if (len > 0) {
        bool fine = rc == 0 || rc == -ENODATA || rc == -EAGAIN || rc == -EBUSY;
        write_told(r, o->o.addr + at, len, r->model.changes, fine ? 0 : rc);
    }
    if (rc == 0) {
        for (uint64_t off = 0; off < piece.len; off += PAGE) {
            pattern_fill((uint8_t *)piece.data + off,
                         pattern_key(o->key, (piece.offset + off) / PAGE), 0,
                         chm_min(PAGE, piece.len - off));
        }
        o->piece_at = piece.offset;
        o->piece_len = chm_round_up(piece.len, PAGE);
    } else if (rc == -ENODATA) {
        commit_put(r, o);
    } else if (run_error_allowed(r, rc)) {
        abort_put(r, o);
    } else if (rc != -EAGAIN && rc != -EBUSY) {
        fail_status(r, "put piece", rc);
    }
}

/* ------------------------------------------------------------------ use */

void op_object_read(struct run *r)
{
    struct op_object *o = some_object(r, OBJECT_LIVE);
    struct chm_object got = {0};
    uint64_t off, len, begin_ns = chm_now(r->dev);
    uint8_t *buf = read_spare(r);
    uint32_t at = r->model.changes;
    int rc;

    if (!o) {
        return;
    }
    rc = chm_object_get(r->space, o->o.id, &got);
    if (rc != 0 || got.addr != o->o.addr || got.len != o->o.len) {
        fail_status(r, "object get", rc);
    }
    off = run_random(r, o->o.len);
    len = 1 + run_random(r, o->o.len - off);
    rc = chm_object_read(r->space, o->o.id, off, buf, len, LONG_NS);
    run_say(r, " object %d: %" PRIu64 " + %" PRIu64 " -> %d", (int)(o - r->object), off, len, rc);
    run_note(r, (uint64_t)rc);
    run_check_time(r, begin_ns, LONG_NS);
    if (rc == 0) {
        run_check_bytes(r, buf, o->o.addr + off, len, (struct span){at, at});
    } else if (rc != -EBUSY && !run_error_allowed(r, rc)) {
        fail_status(r, "object read", rc);
    }
}

static void drop(struct run *r, struct op_object *o)
{
    int rc = chm_object_drop(r->space, o->o.id);

    if (rc != 0) {
        fail_status(r, "object drop", rc);
    }
    o->holds--;
    if (o->state == OBJECT_LEAVING && o->holds == 0) {
        o->state = OBJECT_NONE;
    }
}

void op_object_hold(struct run *r)
{
    struct op_object *o = some_object(r, run_random(r, 2) ? OBJECT_LEAVING : OBJECT_LIVE);
    int rc;

    if (o && o->holds > 0 && run_random(r, 2)) {
        run_say(r, " object %d dropped", (int)(o - r->object));
        drop(r, o);
    } else if (o) {
        rc = chm_object_hold(r->space, o->o.id);
        run_say(r, " object %d held -> %d", (int)(o - r->object), rc);
        if (rc != (o->state == OBJECT_LIVE ? 0 : -ENOENT)) {
            fail_status(r, "object hold", rc);
        }
        o->holds += rc == 0;
    }
}

void op_object_delete(struct run *r)
{
    struct op_object *o = some_object(r, OBJECT_LIVE);
    int rc;

    if (!o) {
        return;
    }
    rc = chm_object_delete(r->space, o->o.id);
    run_say(r, " object %d -> %d", (int)(o - r->object), rc);
    if (rc != 0 || chm_object_delete(r->space, o->o.id) != -ENOENT) {
        fail_status(r, "object delete", rc);
    }
    o->state = o->holds > 0 ? OBJECT_LEAVING : OBJECT_NONE;
}

void object_end_all(struct run *r)
{
    for (int i = 0; i < OBJECTS; i++) {
        struct op_object *o = &r->object[i];
        while (o->state != OBJECT_NONE && o->holds > 0) {
            drop(r, o);
        }
        if (o->state == OBJECT_PUT) {
            abort_put(r, o);
        }
    }
}
