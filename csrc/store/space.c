/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - objects of mixed sizes in one device.
 *
 *   FREE -> PUTTING -> LIVE -> FREE            put_begin, put_commit, delete
 *              |         |
 *            abort    delete while held -> LEAVING -> FREE (last drop)
 *
 * PUTTING has an extent and is not visible; its pieces are written to the device one after the
 * other, and when the last one is committed there all of them read back whole, so LIVE is one
 * assignment. An extent is free again when nobody holds the object; that a late read or flush of
 * the old bytes is not mixed up with the new ones is the device's business (fw/fetch.h, fw/wbuf.h).
 *
 * A handle is (gen << 32) | (index + 1). Records lie in address space reserved at open.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "host/door.h"
#include "store/extents.h"
#include "util/util.h"

enum {
    OBJECTS_DEFAULT = 1 << 20,
    PIECE_SHARE = 4, /* a large object is put in pieces of a quarter of the write buffer */
    ROOM_RETRY_NS = 200000,
};

static const uint64_t OBJECT_MAX = 1ull << 30;

enum object_state { OBJECT_FREE, OBJECT_PUTTING, OBJECT_LIVE, OBJECT_LEAVING };

struct object {
    uint64_t addr, len;
    uint64_t piece_end; /* PUTTING: bytes handed out so far */
    uint64_t write_id;  /* PUTTING: the piece the caller fills, 0: none */
    int32_t error;      /* PUTTING: a piece was lost, so it will never be whole */
    uint32_t gen;
    uint32_t holds;
    uint32_t next_free;
    uint8_t state;
};

struct chm_space {
    struct chm_dev *dev;
    pthread_mutex_t lock;
    struct chm_extents extents;
    struct object *objects;
    uint32_t max, touched, free_head; /* free_head: index + 1 */
    uint64_t base, len, piece_max;
    struct chm_space_stats stats;
};

/* What an object of len bytes takes. */
static uint64_t extent_len(const struct chm_space *sp, uint64_t len)
{
    return chm_round_up(len, sp->dev->fw->granule);
}

static struct object *object_of(struct chm_space *sp, uint64_t id)
{
    uint64_t index = (id & UINT32_MAX) - 1;
    struct object *o = index < sp->touched ? &sp->objects[index] : NULL;

    return o && o->state != OBJECT_FREE && o->gen == id >> 32 ? o : NULL;
}

static uint64_t object_id(const struct chm_space *sp, const struct object *o)
{
    return (uint64_t)o->gen << 32 | (uint64_t)(o - sp->objects + 1);
}

static struct object *object_new(struct chm_space *sp)
{
    struct object *o;

    if (sp->free_head) {
        o = &sp->objects[sp->free_head - 1];
        sp->free_head = o->next_free;
    } else if (sp->touched < sp->max) {
        o = &sp->objects[sp->touched++];
    } else {
        return NULL;
    }
    *o = (struct object){.gen = o->gen + 1 ? o->gen + 1 : 1};
    return o;
}

static void object_free(struct chm_space *sp, struct object *o)
{
    CHM_ASSERT(o->holds == 0 && o->write_id == 0);
    chm_extents_give(&sp->extents, o->addr, extent_len(sp, o->len));
    o->state = OBJECT_FREE;
    o->next_free = sp->free_head;
    sp->free_head = (uint32_t)(o - sp->objects + 1);
}

static void object_tell(const struct chm_space *sp, const struct object *o, struct chm_object *out)
{
    *out = (struct chm_object){.id = object_id(sp, o), .addr = o->addr, .len = o->len};
}

/* ---- open and close */

static int space_set_range(struct chm_space *sp, const struct chm_space_options *o)
{
    uint64_t g = sp->dev->fw->granule, capacity = sp->dev->map.capacity_bytes;

    sp->base = o->base;
    if (o->base % g != 0 || o->base >= capacity || o->len > capacity - o->base) {
        return -EINVAL;
    }
    sp->len = (o->len ? o->len : capacity - o->base) / g * g;
    sp->max = o->objects_max ? o->objects_max : OBJECTS_DEFAULT;
    sp->piece_max = chm_max(sp->dev->fw->wbuf.bytes / PIECE_SHARE / g, 1) * g;
    return sp->len > 0 ? 0 : -EINVAL;
}

int chm_space_open(chm_dev *dev, const struct chm_space_options *opts, chm_space **out)
{
    static const struct chm_space_options DEFAULTS = {0};
    struct chm_space *sp;
    int rc = chm_door_check(dev);

    if (rc < 0 || !out) {
        return rc < 0 ? rc : -EINVAL;
    }
    sp = calloc(1, sizeof(*sp));
    if (!sp) {
        return -ENOMEM;
    }
    sp->dev = dev;
    rc = space_set_range(sp, opts ? opts : &DEFAULTS);
    if (rc < 0) {
        goto fail;
    }
    sp->objects = mmap(NULL, sp->max * sizeof(*sp->objects), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sp->objects == MAP_FAILED) {
        rc = -ENOMEM;
        goto fail;
    }
    rc = chm_extents_open(&sp->extents, sp->base, sp->len, (uint64_t)sp->max + 1);
    if (rc < 0) {
        munmap(sp->objects, sp->max * sizeof(*sp->objects));
        goto fail;
    }
    pthread_mutex_init(&sp->lock, NULL);
    atomic_fetch_add(&dev->users, 1);
    *out = sp;
    return 0;
fail:
    free(sp);
    return rc;
}

int chm_space_close(chm_space *sp)
{
    int rc = sp ? chm_door_check(sp->dev) : 0;

    if (!sp || rc < 0) {
        return rc;
    }
    if (sp->stats.held || sp->stats.puts_open) {
        return -EBUSY;
    }
    atomic_fetch_sub(&sp->dev->users, 1);
    chm_extents_close(&sp->extents);
    munmap(sp->objects, sp->max * sizeof(*sp->objects));
    pthread_mutex_destroy(&sp->lock);
    free(sp);
    return 0;
}

/* ---- put */

static int put_begin(struct chm_space *sp, uint64_t len, struct chm_object *out)
{
    struct object *o;
    uint64_t addr;
    int rc = chm_extents_take(&sp->extents, extent_len(sp, len), &addr);

    if (rc < 0) {
        return rc;
    }
    o = object_new(sp);
    if (!o) {
        chm_extents_give(&sp->extents, addr, extent_len(sp, len));
        return -ENOMEM;
    }
    o->addr = addr;
    o->len = len;
    o->state = OBJECT_PUTTING;
    sp->stats.puts_open++;
    object_tell(sp, o, out);
    return 0;
}

int chm_put_begin(chm_space *sp, uint64_t len, struct chm_object *out)
{
    int rc = sp ? chm_door_check(sp->dev) : -EINVAL;

    rc = rc < 0 ? rc : !out || len == 0 ? -EINVAL : len > OBJECT_MAX ? -E2BIG : 0;
    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&sp->lock);
    rc = put_begin(sp, len, out);
    sp->stats.put_refused += rc < 0;
    pthread_mutex_unlock(&sp->lock);
    return rc;
}

/* The piece the caller has filled goes to the device; with strict durability this waits until it is
 * durable. */
static int put_piece_done(struct chm_space *sp, struct object *o)
{
    int32_t status = 0;
    int rc;

    if (o->write_id) {
        rc = chm_write_commit(sp->dev, &o->write_id, 1, &status);
        o->write_id = 0;
        o->error = rc < 0 ? rc : status;
    }
    return o->error;
}

static int put_piece(struct chm_space *sp, struct object *o, struct chm_piece_put *out)
{
    uint64_t whole = extent_len(sp, o->len), len;
    uint64_t max = whole <= sp->dev->fw->wbuf.bytes / 2 ? whole : sp->piece_max;
    struct chm_write w = {.addr = o->addr + o->piece_end};
    int rc = put_piece_done(sp, o);

    if (rc < 0 || o->piece_end == whole) {
        return rc < 0 ? rc : -ENODATA;
    }
    w.len = chm_min(max, whole - o->piece_end);
    rc = chm_write_begin(sp->dev, &w, 1);
    if (rc != 1) {
        return rc < 0 ? rc : w.status;
    }
    o->write_id = w.id;
    len = chm_min(w.len, o->len - o->piece_end);
    memset((uint8_t *)w.data + len, 0, w.len - len);
    *out = (struct chm_piece_put){.data = w.data, .len = len, .offset = o->piece_end};
    o->piece_end += w.len;
    return 0;
}

/* The object of an open put, the lock held; NULL: the lock is not held. */
static struct object *put_lock(struct chm_space *sp, uint64_t id)
{
    struct object *o;

    pthread_mutex_lock(&sp->lock);
    o = object_of(sp, id);
    if (!o || o->state != OBJECT_PUTTING) {
        pthread_mutex_unlock(&sp->lock);
        return NULL;
    }
    return o;
}

int chm_put_piece(chm_space *sp, uint64_t id, struct chm_piece_put *out)
{
    int rc = sp && out ? chm_door_check(sp->dev) : -EINVAL;
    struct object *o = rc < 0 ? NULL : put_lock(sp, id);

    if (!o) {
        return rc < 0 ? rc : -ESTALE;
    }
    rc = put_piece(sp, o, out);
    pthread_mutex_unlock(&sp->lock);
    return rc;
}

int chm_put_commit(chm_space *sp, uint64_t id)
{
    int rc = sp ? chm_door_check(sp->dev) : -EINVAL;
    struct object *o = rc < 0 ? NULL : put_lock(sp, id);

    if (!o) {
        return rc < 0 ? rc : -ESTALE;
    }
    rc = o->piece_end == extent_len(sp, o->len) ? put_piece_done(sp, o) : -EINVAL;
    if (rc == 0) {
        o->state = OBJECT_LIVE;
        sp->stats.puts_open--;
        sp->stats.puts++;
        sp->stats.objects++;
        sp->stats.payload_bytes += o->len;
    }
    pthread_mutex_unlock(&sp->lock);
    return rc;
}

int chm_put_abort(chm_space *sp, uint64_t id)
{
    int rc = sp ? chm_door_check(sp->dev) : -EINVAL;
    struct object *o = rc < 0 ? NULL : put_lock(sp, id);

    if (!o) {
        return rc < 0 ? rc : -ESTALE;
    }
    if (o->write_id) {
        chm_write_abort(sp->dev, &o->write_id, 1, NULL);
        o->write_id = 0;
    }
    sp->stats.puts_open--;
    sp->stats.put_aborts++;
    object_free(sp, o);
    pthread_mutex_unlock(&sp->lock);
    return 0;
}

/* Fill all pieces from buf; waits for room until the deadline. */
static int put_fill(struct chm_space *sp, uint64_t id, const uint8_t *buf, uint64_t deadline_ns)
{
    struct chm_piece_put piece = {0};
    int rc;

    while ((rc = chm_put_piece(sp, id, &piece)) != -ENODATA) {
        if (rc == 0) {
            CHM_ASSERT(piece.data);
            memcpy(piece.data, buf + piece.offset, piece.len);
        } else if (rc != -EAGAIN) {
            return rc;
        } else if (chm_now(sp->dev) >= deadline_ns) {
            return -EAGAIN;
        } else {
            rc = chm_door_wait_until(sp->dev, chm_now(sp->dev) + ROOM_RETRY_NS, deadline_ns);
            if (rc < 0) {
                return rc;
            }
        }
    }
    return 0;
}

int chm_put(chm_space *sp, const void *buf, uint64_t len, uint64_t timeout_ns,
            struct chm_object *out)
{
    struct chm_object obj;
    int rc = buf && out ? chm_put_begin(sp, len, &obj) : -EINVAL;

    if (rc < 0) {
        return rc;
    }
    rc = put_fill(sp, obj.id, buf, chm_door_deadline(sp->dev, timeout_ns));
    rc = rc == -EAGAIN && timeout_ns > 0 ? -ETIMEDOUT : rc;
    rc = rc < 0 ? rc : chm_put_commit(sp, obj.id);
    if (rc < 0) {
        chm_put_abort(sp, obj.id);
        return rc;
    }
    *out = obj;
    return 0;
}

/* ---- get, hold, delete */

/* A visible object, the lock held; NULL: the lock is not held. */
static struct object *live_lock(struct chm_space *sp, uint64_t id)
{
    struct object *o;

    pthread_mutex_lock(&sp->lock);
    o = object_of(sp, id);
    if (!o || o->state != OBJECT_LIVE) {
        pthread_mutex_unlock(&sp->lock);
        return NULL;
    }
    return o;
}

int chm_object_get(chm_space *sp, uint64_t id, struct chm_object *out)
{
    int rc = sp && out ? chm_door_check(sp->dev) : -EINVAL;
    struct object *o = rc < 0 ? NULL : live_lock(sp, id);

    if (!o) {
        return rc < 0 ? rc : -ENOENT;
    }
    object_tell(sp, o, out);
    pthread_mutex_unlock(&sp->lock);
    return 0;
}

int chm_object_hold(chm_space *sp, uint64_t id)
{
    int rc = sp ? chm_door_check(sp->dev) : -EINVAL;
    struct object *o = rc < 0 ? NULL : live_lock(sp, id);

    if (!o) {
        return rc < 0 ? rc : -ENOENT;
    }
    o->holds++;
    sp->stats.held++;
    pthread_mutex_unlock(&sp->lock);
    return 0;
}

int chm_object_drop(chm_space *sp, uint64_t id)
{
    int rc = sp ? chm_door_check(sp->dev) : -EINVAL;
    struct object *o;

    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&sp->lock);
    o = object_of(sp, id);
    rc = o && o->holds > 0 ? 0 : -ESTALE;
    if (rc == 0) {
        sp->stats.held--;
        if (--o->holds == 0 && o->state == OBJECT_LEAVING) {
            sp->stats.deleting--;
            object_free(sp, o);
        }
    }
    pthread_mutex_unlock(&sp->lock);
    return rc;
}

int chm_object_delete(chm_space *sp, uint64_t id)
{
    int rc = sp ? chm_door_check(sp->dev) : -EINVAL;
    struct object *o = rc < 0 ? NULL : live_lock(sp, id);

    if (!o) {
        return rc < 0 ? rc : -ENOENT;
    }
    sp->stats.deletes++;
    sp->stats.objects--;
    sp->stats.payload_bytes -= o->len;
    if (o->holds > 0) {
        o->state = OBJECT_LEAVING;
        sp->stats.deleting++;
    } else {
        object_free(sp, o);
    }
    pthread_mutex_unlock(&sp->lock);
    return 0;
}

int chm_object_read(chm_space *sp, uint64_t id, uint64_t offset, void *buf, uint64_t len,
                    uint64_t timeout_ns)
{
    struct chm_read r = {.buf = buf, .len = len};
    struct chm_object obj;
    int rc = chm_object_get(sp, id, &obj);

    rc = rc < 0 ? rc : chm_object_hold(sp, id);
    if (rc < 0) {
        return rc;
    }
    r.addr = obj.addr + offset;
    if (!buf || len == 0) {
        rc = -EINVAL;
    } else if (offset > obj.len || len > obj.len - offset) {
        rc = -ERANGE;
    } else {
        rc = chm_read(sp->dev, &r, 1, timeout_ns);
        rc = rc < 0 ? rc : r.status;
    }
    chm_object_drop(sp, id);
    return rc;
}

int chm_space_stats(chm_space *sp, struct chm_space_stats *out)
{
    int rc = sp && out ? chm_door_check(sp->dev) : -EINVAL;

    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&sp->lock);
    *out = sp->stats;
    out->total_bytes = sp->len;
    out->free_bytes = sp->extents.free_bytes;
    out->used_bytes = sp->len - sp->extents.free_bytes;
    out->largest_free_bytes = chm_extents_largest(&sp->extents);
    out->free_extents = sp->extents.free.count;
    out->metadata_bytes = sizeof(*sp) + sp->touched * sizeof(struct object) +
                          sp->extents.touched * sizeof(struct chm_extent);
    pthread_mutex_unlock(&sp->lock);
    return 0;
}
