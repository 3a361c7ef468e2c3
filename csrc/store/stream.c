/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - a list of ranges, staged in order, a bounded number of pieces ahead of the consumer.
 *
 * A stream first asks for a reservation: two runs of window (one if two cannot fit) that are its
 * own until it closes. Pieces go into free window space where there is some, so that others can
 * share them, up to the stream's share of the window; else into its own runs. So whatever others
 * hold, a stream whose consumer gives pieces back can always go on.
 *
 *   piece: SPARE -> PLANNED -> ISSUED -> HELD -> SPARE        issue, next, release
 *                      ^         |
 *                      +---------+  expired, came due without room, or made way for one before it
 *
 * Pieces that are planned or issued stand in a ring in order of the list. It is advanced only by
 * the consumer's calls; what was issued proceeds without them. One thread at a time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/door.h"
#include "host/staging.h"
#include "store/stream.h"
#include "util/util.h"

enum {
    STREAMS_MAX = 4096,  /* per device; fewer if their reservations find no cell */
    ISSUE_AGAIN_MAX = 8, /* times one call to next issues a piece again that expired */
    SEGMENT = 16 << 20,
    WINDOW = 128 << 20,
    DEADLINE_S = 10,
    RETRY_NS = 100000, /* between looks whether a run has come free */
};

static void piece_drop(struct chm_stream *s, struct chm_stream_piece *p)
{
    p->state = PIECE_SPARE;
    s->spare[s->spares++] = p;
}

/* ---- how long are pieces, and how many fit */

static uint64_t longest(const struct chm_range *objs, uint32_t n)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < n; i++) {
        most = chm_max(most, objs[i].len);
    }
    return most;
}

/* The longest piece of which two fit w: whole frames, or whole granules below a frame. */
static uint64_t half_of(const struct chm_window *win, uint64_t w)
{
    uint64_t unit = w / 2 >= win->frame_bytes ? win->frame_bytes : win->granule;

    return chm_max(w / 2 / unit * unit, win->granule);
}

static void stream_choose_pieces(struct chm_stream *s, const struct chm_stream_options *o)
{
    const struct chm_window *win = &s->dev->fw->window;
    uint64_t most = longest(s->objs, s->nobjs);
    uint64_t half = half_of(win, chm_stream_share(s));
    uint64_t segment = o->segment_bytes ? o->segment_bytes : SEGMENT;

    segment = chm_max(segment / win->granule, 1) * win->granule;
    s->piece_bytes = o->whole && most <= half ? most : chm_min(chm_min(segment, half), most);
    s->runs = 2 * chm_window_cost(win, s->piece_bytes) <= win->bytes ? 2 : 1;
}

/* ---- open and close */

static int stream_check(struct chm_dev *dev, const struct chm_range *objs, uint32_t n)
{
    int rc = n > 0 && objs ? 0 : -EINVAL;

    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = chm_fw_check_range(dev->fw, objs[i].addr, objs[i].len);
    }
    return rc;
}

static int stream_reserve(struct chm_stream *s)
{
    struct chm_cmd cmd = {.op = CHM_OP_RESERVE,
                          .addr = s->runs,
                          .len = s->piece_bytes,
                          .not_before_ns = s->not_before_ns,
                          .queue_ns = s->deadline_ns};
    int rc = chm_cell_new(s->dev, CHM_OP_RESERVE, s->piece_bytes, &cmd.cell, &s->reserve);

    if (rc == 0) {
        chm_door_send(s->dev, &cmd);
        chm_door_ring(s->dev, true);
    }
    return rc;
}

/* Set times and window, everything the caller may leave to the default, and what is not zero. */
static void stream_settle(struct chm_stream *s, const struct chm_stream_options *o)
{
    uint64_t limit = o->deadline_ns ? o->deadline_ns : DEADLINE_S * (uint64_t)CHM_SECOND;
    uint64_t begin = chm_max(chm_now(s->dev), o->not_before_ns);

    s->window_bytes = o->window_bytes ? o->window_bytes : WINDOW;
    s->not_before_ns = o->not_before_ns;
    s->deadline_ns = chm_sat_add(begin, limit);
    s->early = o->early != 0;
    for (uint32_t i = 0; i < CHM_STREAM_PIECES; i++) {
        piece_drop(s, &s->pieces[i]);
    }
}

int chm_stream_open(chm_dev *dev, const struct chm_range *objs, uint32_t n,
                    const struct chm_stream_options *opts, chm_stream **out)
{
    static const struct chm_stream_options DEFAULTS = {0};
    struct chm_stream *s;
    uint32_t streams;
    int rc = chm_door_check(dev);

    rc = rc < 0 ? rc : out ? stream_check(dev, objs, n) : -EINVAL;
    rc = rc < 0 || dev->fw->policy->cache->prefetch ? rc : -EOPNOTSUPP;
    if (rc < 0) {
        return rc;
    }
    s = calloc(1, sizeof(*s));
    if (!s) {
        return -ENOMEM;
    }
    opts = opts ? opts : &DEFAULTS;
    s->dev = dev;
    s->objs = malloc(n * sizeof(*objs));
    streams = atomic_fetch_add(&dev->streams, 1) + 1;
    if (!s->objs || streams > STREAMS_MAX) {
        rc = s->objs ? -EBUSY : -ENOMEM;
        goto fail;
    }
    memcpy(s->objs, objs, n * sizeof(*objs));
    s->nobjs = n;
    stream_settle(s, opts);
    stream_choose_pieces(s, opts);
    rc = stream_reserve(s);
    if (rc < 0) {
        goto fail;
    }
    atomic_fetch_add(&dev->users, 1);
    chm_stream_pump(s);
    *out = s;
    return 0;
fail:
    atomic_fetch_sub(&dev->streams, 1);
    free(s->objs);
    free(s);
    return rc;
}

int chm_stream_close(chm_stream *s)
{
    int rc = s ? chm_door_check(s->dev) : 0;

    if (!s || rc < 0) {
        return rc;
    }
    for (uint32_t i = 0; i < CHM_STREAM_PIECES; i++) {
        struct chm_stream_piece *p = &s->pieces[i];

        if (p->state == PIECE_ISSUED || p->state == PIECE_HELD) {
            chm_door_end(s->dev, p->req, CHM_OP_RELEASE);
        }
    }
    chm_door_end(s->dev, s->reserve, CHM_OP_RELEASE);
    chm_door_kick(s->dev);
    atomic_fetch_sub(&s->dev->streams, 1);
    atomic_fetch_sub(&s->dev->users, 1);
    free(s->objs);
    free(s);
    return 0;
}

/* ---- next */

static int stream_end(struct chm_stream *s, int rc)
{
    s->status = rc;
    return rc;
}

/* Wait for the reservation. 0, -ETIMEDOUT, or final. */
static int stream_wait_granted(struct chm_stream *s, uint64_t deadline_ns)
{
    struct chm_cell *cell = chm_cell_of(s->dev, s->reserve);
    int rc;

    if (s->granted) {
        return 0;
    }
    rc = cell ? chm_door_wait_ended(s->dev, cell, deadline_ns) : -ESTALE;
    if (rc < 0) {
        return rc;
    }
    rc = chm_cell_result(cell);
    s->granted = rc == 0;
    return rc < 0 ? stream_end(s, rc) : 0;
}

/* A piece that was issued and cannot come out of it as it is: expired, or due when there was no
 * room. */
static bool issue_again(int rc)
{
    return rc == -ETIME || rc == -EAGAIN;
}

/* Wait for an issued piece: all of it, or (early) for its place. */
static int piece_wait(struct chm_stream *s, struct chm_stream_piece *p, uint64_t deadline_ns)
{
    struct chm_cell *cell = chm_cell_of(s->dev, p->req);

    if (!cell) {
        return -ESTALE;
    }
    if (s->early && !chm_cell_has_ended(atomic_load(&cell->state))) {
        /* Claim it first: from here on it must not expire under the consumer. */
        int rc = chm_cell_result(cell);

        if (rc < 0 || atomic_load(&cell->data_off) != CHM_CELL_NO_DATA) {
            return rc;
        }
    }
    return chm_wait_cell(s->dev, cell, deadline_ns);
}

/* The next piece has no space while pieces behind it do, as when it expired before they did: the
 * last of them gives its own up. False: there is none. */
static bool stream_make_way(struct chm_stream *s)
{
    for (uint64_t i = s->end; i-- > s->next;) {
        struct chm_stream_piece *p = chm_stream_piece_at(s, i);

        if (p->state == PIECE_ISSUED) {
            chm_stream_take_back(s, p);
            p->state = PIECE_PLANNED;
            return true;
        }
    }
    return false;
}

/* Get the next piece issued. Where the consumer holds less than what is reserved, one of the runs
 * is free or about to be: a piece given back while it was being read frees its run when the read
 * has ended. */
static int stream_issue_next(struct chm_stream *s, uint64_t deadline_ns)
{
    int rc = 0;

    chm_stream_pump(s);
    while (!chm_stream_next_is_issued(s)) {
        if (s->next < s->end && chm_stream_piece_at(s, s->next)->error < 0) {
            return chm_stream_piece_at(s, s->next)->error;
        }
        if (!stream_make_way(s)) {
            if (s->held >= s->runs) {
                return -EDEADLK;
            }
            rc = chm_door_wait_until(s->dev, chm_now(s->dev) + RETRY_NS, deadline_ns);
        }
        if (rc < 0) {
            return rc;
        }
        chm_stream_pump(s);
    }
    return 0;
}

/* See to it that the next piece is issued, and wait for it. */
static int stream_wait_piece(struct chm_stream *s, uint64_t deadline_ns)
{
    int rc = 0;

    for (int i = 0; i < ISSUE_AGAIN_MAX; i++) {
        struct chm_stream_piece *p;

        rc = stream_issue_next(s, deadline_ns);
        if (rc < 0) {
            return rc;
        }
        p = chm_stream_piece_at(s, s->next);
        rc = piece_wait(s, p, deadline_ns);
        if (!issue_again(rc)) {
            return rc;
        }
        chm_stream_take_back(s, p);
        p->state = PIECE_PLANNED;
        s->not_before_ns = 0;
    }
    return rc;
}

static void piece_hand_out(struct chm_stream *s, struct chm_piece *out)
{
    struct chm_stream_piece *p = chm_stream_piece_at(s, s->next++);
    struct chm_cell *cell = chm_cell_of(s->dev, p->req);
    bool last = p->offset + p->len == s->objs[p->object].len;

    p->state = PIECE_HELD;
    s->held++;
    s->delivered_bytes += p->len;
    s->whole_objects += last;
    *out = (struct chm_piece){
        .data = s->dev->memory.base + atomic_load(&cell->data_off),
        .len = p->len,
        .offset = p->offset,
        .req = p->req,
        .object = p->object,
        .last = last,
    };
}

static bool stream_is_done(const struct chm_stream *s)
{
    return s->next == s->end && s->plan_object == s->nobjs;
}

int chm_stream_next(chm_stream *s, uint64_t timeout_ns, struct chm_piece *out)
{
    uint64_t deadline_ns;
    int rc = s ? chm_door_check(s->dev) : -EINVAL;

    if (rc < 0 || !out) {
        return rc < 0 ? rc : -EINVAL;
    }
    if (s->status < 0 || stream_is_done(s)) {
        return s->status < 0 ? s->status : -ENODATA;
    }
    deadline_ns = chm_min(chm_door_deadline(s->dev, timeout_ns), s->deadline_ns);
    rc = stream_wait_granted(s, deadline_ns);
    rc = rc < 0 ? rc : stream_wait_piece(s, deadline_ns);
    if (rc == 0) {
        piece_hand_out(s, out);
        return 0;
    }
    if (chm_now(s->dev) >= s->deadline_ns && (rc == -ETIMEDOUT || issue_again(rc))) {
        return stream_end(s, -ETIME);
    }
    if (rc == -ETIMEDOUT || rc == -EDEADLK || rc == -EINTR) {
        return rc;
    }
    return stream_end(s, rc);
}

/* Whether a look may find anything: false only if the next piece is under way. */
static bool stream_is_worth_a_look(struct chm_stream *s, uint64_t now_ns)
{
    struct chm_cell *cell;

    if (s->status < 0 || stream_is_done(s) || s->early || now_ns >= s->deadline_ns ||
        (s->granted && !chm_stream_next_is_issued(s))) {
        return true;
    }
    cell = chm_cell_of(s->dev, s->granted ? chm_stream_piece_at(s, s->next)->req : s->reserve);
    return !cell || chm_cell_has_ended(atomic_load(&cell->state));
}

int chm_stream_next_many(chm_stream *const *streams, uint32_t n, struct chm_piece *out,
                         int32_t *status)
{
    uint64_t now_ns;
    int found = 0, rc = streams && n && streams[0] ? chm_door_check(streams[0]->dev) : -EINVAL;

    for (uint32_t i = 1; rc == 0 && i < n; i++) {
        rc = streams[i] && streams[i]->dev == streams[0]->dev ? 0 : -EINVAL;
    }
    if (rc < 0 || !out || !status) {
        return rc < 0 ? rc : -EINVAL;
    }
    chm_door_kick(streams[0]->dev);
    now_ns = chm_now(streams[0]->dev);
    for (uint32_t i = 0; i < n; i++) {
        status[i] = stream_is_worth_a_look(streams[i], now_ns)
                        ? chm_stream_next(streams[i], 0, &out[i])
                        : -ETIMEDOUT;
        found += status[i] == 0;
    }
    return found;
}

/* ---- release and info */

int chm_stream_release(chm_stream *s, uint64_t req)
{
    int rc = s ? chm_door_check(s->dev) : -EINVAL;

    if (rc < 0) {
        return rc;
    }
    for (uint32_t i = 0; i < CHM_STREAM_PIECES; i++) {
        struct chm_stream_piece *p = &s->pieces[i];

        if (p->state == PIECE_HELD && p->req == req) {
            chm_stream_take_back(s, p);
            piece_drop(s, p);
            s->held--;
            chm_stream_pump(s);
            chm_door_ring(s->dev, false);
            return 0;
        }
    }
    return -ESTALE;
}

/* Bytes of it that are there, from the front. */
static uint64_t piece_ready(struct chm_stream *s, const struct chm_stream_piece *p)
{
    int64_t n = p->state == PIECE_PLANNED ? 0 : chm_progress(s->dev, p->req);

    return n > 0 ? (uint64_t)n : 0;
}

/* What is ready behind what was delivered, without a gap. */
static uint64_t stream_ready_ahead(struct chm_stream *s)
{
    uint64_t ready = 0;

    for (uint64_t i = s->next; i < s->end; i++) {
        struct chm_stream_piece *p = chm_stream_piece_at(s, i);
        uint64_t n = piece_ready(s, p);

        ready += n;
        if (n < p->len) {
            break;
        }
    }
    return ready;
}

/* The same for all of it: what was delivered early may not be all there yet. */
static uint64_t stream_ready(struct chm_stream *s)
{
    uint64_t ready = s->delivered_bytes + stream_ready_ahead(s);

    for (uint32_t i = 0; i < CHM_STREAM_PIECES && s->early; i++) {
        struct chm_stream_piece *p = &s->pieces[i];
        uint64_t n = p->state == PIECE_HELD ? piece_ready(s, p) : p->len;

        if (n < p->len) {
            ready = chm_min(ready, p->at + n);
        }
    }
    return ready;
}

int chm_stream_info(chm_stream *s, struct chm_stream_info *out)
{
    int rc = s ? chm_door_check(s->dev) : -EINVAL;

    if (rc < 0 || !out) {
        return rc < 0 ? rc : -EINVAL;
    }
    *out = (struct chm_stream_info){
        .ready_bytes = stream_ready(s),
        .delivered_bytes = s->delivered_bytes,
        .whole_objects = s->whole_objects,
        .held = s->held,
        .ahead = s->out - s->held,
        .window_bytes = chm_stream_share(s),
        .piece_bytes = s->piece_bytes,
        .status = s->status,
    };
    return 0;
}
