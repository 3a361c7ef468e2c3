/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream_ahead.c - keeping a stream ahead of its consumer: what to ask for next, and when.
 *
 * Pieces are asked for in order and together, so that one wake-up of the device serves many; then
 * the verdicts are taken in the same order. Nothing is kept behind a piece that was refused.
 */
#include <errno.h>

#include "host/staging.h"
#include "store/stream.h"
#include "util/util.h"

enum { REFILL = 8 /* this part of its share is worth a refill */ };

struct chm_stream_piece *chm_stream_piece_at(struct chm_stream *s, uint64_t place)
{
    return s->ahead[place % CHM_STREAM_PIECES];
}

uint64_t chm_stream_share(const struct chm_stream *s)
{
    uint32_t streams = atomic_load(&s->dev->streams);

    return chm_min(s->window_bytes, s->dev->fw->window.bytes / chm_max(streams, 1));
}

/* Put the next piece of the list to the end of the ring. False: that was all of the list, or no
 * piece is spare. */
static bool stream_plan(struct chm_stream *s)
{
    const struct chm_range *o;
    struct chm_stream_piece *p;

    if (s->plan_object == s->nobjs || s->spares == 0) {
        return false;
    }
    o = &s->objs[s->plan_object];
    p = s->spare[--s->spares];
    s->ahead[s->end++ % CHM_STREAM_PIECES] = p;
    *p = (struct chm_stream_piece){.state = PIECE_PLANNED,
                                   .object = s->plan_object,
                                   .offset = s->plan_offset,
                                   .at = s->plan_at,
                                   .len = chm_min(s->piece_bytes, o->len - s->plan_offset)};
    s->plan_offset += p->len;
    s->plan_at += p->len;
    if (s->plan_offset == o->len) {
        s->plan_object++;
        s->plan_offset = 0;
    }
    return true;
}

/* The first piece that is not issued, or NULL when all of the list is, or no piece is spare, or it
 * never can be: there the stream will end. */
static struct chm_stream_piece *stream_to_issue(struct chm_stream *s)
{
    for (uint64_t i = s->next; i < s->end; i++) {
        struct chm_stream_piece *p = chm_stream_piece_at(s, i);

        if (p->state == PIECE_PLANNED) {
            return p->error < 0 ? NULL : p;
        }
    }
    return stream_plan(s) ? chm_stream_piece_at(s, s->end - 1) : NULL;
}

/* Is it granted? Delayed streams send their first pieces along with the request for it. */
static bool stream_may_issue(struct chm_stream *s)
{
    struct chm_cell *cell = chm_cell_of(s->dev, s->reserve);

    if (!s->granted && cell && chm_cell_has_ended(atomic_load(&cell->state))) {
        s->granted = chm_cell_result(cell) == 0;
    }
    return s->granted || s->not_before_ns > chm_now(s->dev);
}

/* Ask for it; the verdict comes later. */
static int piece_issue(struct chm_stream *s, struct chm_stream_piece *p)
{
    int rc = chm_issue_reserved(s->dev, s->reserve, s->objs[p->object].addr + p->offset, p->len,
                                s->not_before_ns, &p->req);

    p->error = rc == -EBUSY ? 0 : rc; /* that passes */
    if (rc == 0) {
        p->state = PIECE_ISSUED;
        s->out++;
        s->out_bytes += p->len;
    }
    return rc;
}

/* What became of a piece that was just asked for. False: it was refused. */
static bool piece_verdict(struct chm_stream *s, struct chm_stream_piece *p)
{
    int rc = chm_issue_verdict(s->dev, p->req);

    if (rc < 0) {
        p->error = rc == -EAGAIN ? 0 : rc;
        p->state = PIECE_PLANNED;
        s->out--;
        s->out_bytes -= p->len;
    }
    return rc == 0;
}

void chm_stream_take_back(struct chm_stream *s, struct chm_stream_piece *p)
{
    chm_door_end(s->dev, p->req, CHM_OP_RELEASE);
    s->out--;
    s->out_bytes -= p->len;
}

bool chm_stream_next_is_issued(struct chm_stream *s)
{
    return s->next < s->end && chm_stream_piece_at(s, s->next)->state == PIECE_ISSUED;
}

/* Ask for pieces as far as the share allows; asked[] are they. Stops where the table is full. */
static uint32_t stream_ask(struct chm_stream *s, uint64_t share, struct chm_stream_piece **asked)
{
    uint32_t n = 0;
    struct chm_stream_piece *p;

    while (n < CHM_STREAM_PIECES && (p = stream_to_issue(s)) != NULL) {
        if ((s->out >= s->runs && s->out_bytes + p->len > share) || piece_issue(s, p) < 0) {
            break;
        }
        asked[n++] = p;
    }
    return n;
}

/* The verdicts. Behind a piece that was refused nothing is kept: a shorter one that just fitted
 * would take the room which the longer one before it waits for, again and again. */
static void stream_hear(struct chm_stream *s, struct chm_stream_piece **asked, uint32_t n)
{
    bool refused = false;

    for (uint32_t i = 0; i < n; i++) {
        bool taken = piece_verdict(s, asked[i]);

        if (taken && refused) {
            chm_stream_take_back(s, asked[i]);
            asked[i]->state = PIECE_PLANNED;
        }
        refused = refused || !taken;
    }
}

/* Issue as many pieces as its share, and the room there is, allow; small ones not one by one, but
 * when an eighth of the share has come together. */
void chm_stream_pump(struct chm_stream *s)
{
    uint64_t share = chm_stream_share(s);
    struct chm_stream_piece *asked[CHM_STREAM_PIECES];
    uint32_t n;

    if (s->status < 0 || !stream_may_issue(s) ||
        (chm_stream_next_is_issued(s) && s->out_bytes + share / REFILL > share)) {
        return;
    }
    n = stream_ask(s, share, asked);
    stream_hear(s, asked, n);
    chm_door_kick(s->dev);
}
