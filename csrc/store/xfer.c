/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xfer.c - the device reads of a task.
 *
 *   WAITING (to be sent) -> SENT -> HERE (bytes in place) -> free
 *                             | cancelled
 *                             +-> GOING -> free when the device has let go of the memory
 *
 * A task has them in the order of their offsets, so `done` is where the first that is not HERE
 * begins. A direct one is sent with the caller's memory; a staged one goes through the window and
 * is copied, and its window space given back, as soon as it is there; one of a lease stays there.
 */
#include <errno.h>

#include "store/get.h"

enum xfer_state { XFER_WAITING, XFER_SENT, XFER_HERE, XFER_GOING };

enum { DIRECT_MIN = 64 << 10 /* shorter ones are not cut off for the sake of being direct */ };

bool chm_kv_read_ended(struct chm_store *s, uint64_t req, int *rc)
{
    const struct chm_cell *cell = chm_cell_of(s->dev, req);

    CHM_ASSERT(cell);
    if (!chm_cell_has_ended(atomic_load(&cell->state))) {
        return false;
    }
    *rc = chm_wait(s->dev, req, 0);
    return *rc != -ETIMEDOUT; /* it still is on the host link */
}

/* ---- memory */

static bool is_lease(const struct chm_kv_task *t)
{
    return t->lease != NULL;
}

/* The part in which payload byte `off` lies; *in: where in it. */
static uint32_t part_at(const struct chm_kv_task *t, uint64_t off, uint64_t *in)
{
    uint32_t i = 0;

    while (i < t->nparts && off >= t->parts[i].len) {
        off -= t->parts[i++].len;
    }
    *in = off;
    return i;
}

void chm_kv_parts_sum(const struct chm_kv_task *t, uint64_t off, uint64_t n, struct chm_sum *sum)
{
    uint64_t in;

    for (uint32_t i = part_at(t, off, &in); n > 0; i++, in = 0) {
        uint64_t some = chm_min(t->parts[i].len - in, n);

        chm_sum_add(sum, (const uint8_t *)t->parts[i].data + in, some);
        n -= some;
    }
}

static void parts_fill(const struct chm_kv_task *t, uint64_t off, const uint8_t *from, uint64_t n)
{
    uint64_t in;

    for (uint32_t i = part_at(t, off, &in); n > 0; i++, in = 0) {
        uint64_t some = chm_min(t->parts[i].len - in, n);

        memcpy((uint8_t *)t->parts[i].data + in, from, some);
        from += some;
        n -= some;
    }
}

/* ---- what to read next */

/* Device address of payload byte `off`, and how much of its extent is left. */
static uint64_t locate(const struct chm_store *s, const struct chm_kv_task *t, uint64_t off,
                       uint64_t *left)
{
    const struct chm_kv_entry *e = chm_kv_at(s, t->entry);
    uint64_t at = (e->place & CHM_KV_HAS_HEAD ? chm_kv_head_bytes(s, e->len) : 0) + off;
    struct chm_kv_where w;
    uint32_t i = 0;

    chm_kv_place_where(s, t->entry, &w);
    while (at >= w.extent[i].len) {
        at -= w.extent[i++].len;
        CHM_ASSERT(i < w.extents);
    }
    *left = w.extent[i].len - at;
    return w.extent[i].addr + at;
}

/* Bytes that can be read straight to where the caller wants them, from `off` on; at most n. */
static uint64_t direct_bytes(const struct chm_store *s, const struct chm_kv_task *t, uint64_t addr,
                             uint64_t n, uint8_t **to)
{
    const struct chm_part *p = &t->parts[t->part];
    uint64_t room = chm_min(p->len - t->part_off, n), len = room - room % s->align;

    *to = (uint8_t *)p->data + t->part_off;
    if ((t->job->job.flags & CHM_STORE_COPY) || addr % s->align != 0 ||
        (uintptr_t)*to % s->align != 0 || (len < n && len < DIRECT_MIN)) {
        return 0;
    }
    return len;
}

static void move_on(struct chm_kv_task *t, uint64_t n)
{
    t->sent += n;
    while (!is_lease(t) && n > 0) {
        uint64_t some = chm_min(t->parts[t->part].len - t->part_off, n);

        t->part_off += some;
        n -= some;
        if (t->part_off == t->parts[t->part].len) {
            t->part++;
            t->part_off = 0;
        }
    }
}

static struct chm_kv_xfer *xfer_new(struct chm_store *s, struct chm_kv_task *t)
{
    uint32_t number = s->free_xfer;
    struct chm_kv_xfer *x;

    if (number == CHM_KV_NONE) {
        return NULL;
    }
    x = &s->xfers[number];
    s->free_xfer = x->next;
    *x = (struct chm_kv_xfer){.next = CHM_KV_NONE};
    if (t->xfer_first == CHM_KV_NONE) {
        t->xfer_first = number;
    } else {
        s->xfers[t->xfer_last].next = number;
    }
    t->xfer_last = number;
    return x;
}

/* Plan the next transfer. False: none is left, or no room for it. */
static bool xfer_plan(struct chm_store *s, struct chm_kv_task *t)
{
    uint64_t chunk_left = CHM_STORE_CHUNK_BYTES - t->sent % CHM_STORE_CHUNK_BYTES, left, addr, n;
    struct chm_kv_xfer *x;

    /* Parts without bytes are passed over, so that a part has some left. */
    while (!is_lease(t) && t->part < t->nparts && t->parts[t->part].len == t->part_off) {
        t->part++;
        t->part_off = 0;
    }
    x = t->sent < t->len ? xfer_new(s, t) : NULL;
    if (!x) {
        return false;
    }
    addr = locate(s, t, t->sent, &left);
    n = chm_min(t->len - t->sent, left);
    if (!is_lease(t)) {
        n = chm_min(n, chunk_left);
        x->len = direct_bytes(s, t, addr, n, &x->to);
    }
    if (x->len == 0) {
        x->staged = true;
        x->to = NULL;
        x->len = is_lease(t) ? n : chm_min(n, s->stage_max);
    }
    x->off = t->sent;
    x->addr = addr;
    move_on(t, x->len);
    return true;
}

static int xfer_send(struct chm_store *s, struct chm_kv_task *t, struct chm_kv_xfer *x)
{
    struct chm_read read = {.addr = x->addr, .len = x->len, .buf = x->to};
    struct chm_issue_options o = {.expire_ns = UINT64_MAX};
    struct chm_issue item;
    uint64_t now;

    if (!x->staged) {
        if (chm_read_issue(s->dev, &read, 1) == 1) {
            x->req = read.req;
        }
        return read.status;
    }
    now = chm_now(s->dev);
    o.queue_ns = t->job->deadline_ns > now ? t->job->deadline_ns - now : 1;
    x->skip = x->addr % s->unit;
    item = (struct chm_issue){.addr = x->addr - x->skip,
                              .len = chm_round_up(x->skip + x->len, s->unit)};
    if (chm_issue(s->dev, &item, 1, &o) == 1) {
        x->req = item.req;
    }
    return item.status;
}

static bool send_one(struct chm_store *s, struct chm_kv_task *t, struct chm_kv_xfer *x)
{
    int rc = xfer_send(s, t, x);

    if (rc == 0) {
        x->state = XFER_SENT;
        t->job->first_ns = t->job->first_ns ? t->job->first_ns : chm_now(s->dev);
        *(x->staged ? &s->stats.copied_bytes : &s->stats.direct_bytes) += is_lease(t) ? 0 : x->len;
        return true;
    }
    t->error = rc == -EBUSY ? t->error : rc;
    return false;
}

/* A split object's extents are in memory, so the payload need not wait for the header. */
bool chm_kv_xfers_send(struct chm_store *s, struct chm_kv_task *t)
{
    bool progress = false;

    if (t->state != TASK_READ) {
        return false;
    }
    for (uint32_t i = t->xfer_first; i != CHM_KV_NONE && t->error == 0; i = s->xfers[i].next) {
        struct chm_kv_xfer *x = &s->xfers[i];

        if (x->state == XFER_WAITING) {
            if (!send_one(s, t, x)) {
                return progress;
            }
            progress = true;
        }
    }
    while (t->error == 0 && xfer_plan(s, t)) {
        if (!send_one(s, t, &s->xfers[t->xfer_last])) {
            break;
        }
        progress = true;
    }
    return progress || t->error != 0;
}

/* ---- what has ended */

static int xfer_take(struct chm_store *s, struct chm_kv_task *t, struct chm_kv_xfer *x)
{
    struct chm_view view;
    int rc = x->staged ? chm_view(s->dev, x->req, &view) : 0;

    if (rc < 0 || !x->staged) {
        return rc;
    }
    if (is_lease(t)) {
        struct chm_store_lease *l = &t->job->job.leases[t->index];

        l->piece[l->pieces++] =
            (struct chm_part){.data = (uint8_t *)view.data + x->skip, .len = x->len};
        t->nparts = l->pieces;
        return 0;
    }
    pthread_mutex_unlock(&s->lock);
    parts_fill(t, x->off, (const uint8_t *)view.data + x->skip, x->len);
    pthread_mutex_lock(&s->lock);
    return 0;
}

/* It has ended with rc. */
static void xfer_ended(struct chm_store *s, struct chm_kv_task *t, struct chm_kv_xfer *x, int rc)
{
    rc = rc < 0 ? rc : xfer_take(s, t, x);
    if (rc < 0 || !is_lease(t)) {
        chm_release(s->dev, x->req);
        x->req = 0;
    }
    x->state = XFER_HERE;
    if (rc < 0 && t->error == 0) {
        /* The device had no window space for it until the deadline: not the object's fault. */
        t->error = rc == -ETIME && x->staged ? -EAGAIN : rc;
    }
}

/* Those in front that are in place count, and go, unless a lease keeps them. */
static void settle(struct chm_store *s, struct chm_kv_task *t)
{
    if (is_lease(t)) {
        uint32_t i = t->xfer_first;

        t->done = 0;
        while (i != CHM_KV_NONE && s->xfers[i].state == XFER_HERE) {
            t->done += s->xfers[i].len;
            i = s->xfers[i].next;
        }
        return;
    }
    while (t->xfer_first != CHM_KV_NONE && s->xfers[t->xfer_first].state == XFER_HERE) {
        uint32_t number = t->xfer_first;
        struct chm_kv_xfer *x = &s->xfers[number];

        t->done = x->off + x->len;
        t->xfer_first = x->next;
        x->next = s->free_xfer;
        s->free_xfer = number;
    }
    t->xfer_last = t->xfer_first == CHM_KV_NONE ? CHM_KV_NONE : t->xfer_last;
}

bool chm_kv_xfers_poll(struct chm_store *s, struct chm_kv_task *t)
{
    bool progress = false;
    int rc = 0;

    for (uint32_t i = t->xfer_first; i != CHM_KV_NONE && t->error == 0; i = s->xfers[i].next) {
        struct chm_kv_xfer *x = &s->xfers[i];

        if (x->state != XFER_SENT) {
            continue;
        }
        if (chm_kv_read_ended(s, x->req, &rc)) {
            xfer_ended(s, t, x, rc);
            progress = true;
        } else if (!x->staged || is_lease(t)) {
            break; /* those behind it gain nothing by being looked at now */
        }
    }
    if (progress && t->error == 0) {
        settle(s, t);
    }
    return progress;
}

/* ---- giving up */

bool chm_kv_xfers_no_room(const struct chm_store *s, const struct chm_kv_task *t)
{
    for (uint32_t i = t->xfer_first; i != CHM_KV_NONE; i = s->xfers[i].next) {
        const struct chm_kv_xfer *x = &s->xfers[i];
        const struct chm_cell *cell =
            x->state == XFER_SENT && x->staged ? chm_cell_of(s->dev, x->req) : NULL;

        if (cell && atomic_load(&cell->data_off) == CHM_CELL_NO_DATA) {
            return true;
        }
    }
    return false;
}

void chm_kv_xfers_cancel(struct chm_store *s, struct chm_kv_task *t)
{
    for (uint32_t i = t->xfer_first; i != CHM_KV_NONE; i = s->xfers[i].next) {
        struct chm_kv_xfer *x = &s->xfers[i];

        if (x->req == 0) {
            x->state = XFER_HERE;
        } else if (x->staged) {
            chm_release(s->dev, x->req);
            x->req = 0;
            x->state = XFER_HERE;
        } else {
            chm_door_cancel(s->dev, x->req, &x->cell, &x->gen);
            x->state = XFER_GOING;
        }
    }
}

bool chm_kv_xfers_gone(struct chm_store *s, struct chm_kv_task *t)
{
    for (uint32_t i = t->xfer_first; i != CHM_KV_NONE; i = s->xfers[i].next) {
        if (s->xfers[i].state == XFER_GOING &&
            !chm_door_is_gone(s->xfers[i].cell, s->xfers[i].gen)) {
            return false;
        }
    }
    chm_kv_xfers_free(s, t);
    return true;
}

void chm_kv_xfers_free(struct chm_store *s, struct chm_kv_task *t)
{
    while (t->xfer_first != CHM_KV_NONE) {
        uint32_t number = t->xfer_first;

        t->xfer_first = s->xfers[number].next;
        s->xfers[number].next = s->free_xfer;
        s->free_xfer = number;
    }
    t->xfer_last = CHM_KV_NONE;
}
