/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - what a stream is, and how it is kept ahead of its consumer. States: stream.c. */
#ifndef CHM_STREAM_H
#define CHM_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "host/door.h"

enum { CHM_STREAM_PIECES = 256 /* planned, issued or held at once */ };

enum chm_piece_state { PIECE_SPARE, PIECE_PLANNED, PIECE_ISSUED, PIECE_HELD };

struct chm_stream_piece {
    uint64_t offset, len; /* within the object */
    uint64_t at;          /* within the list: bytes before it */
    uint64_t req;
    uint32_t object;
    int32_t error; /* PLANNED: why it can never be issued, or 0 */
    uint8_t state;
};

struct chm_stream {
    struct chm_dev *dev;
    struct chm_range *objs;
    uint32_t nobjs;
    uint64_t window_bytes; /* most it may hold, as asked for */
    uint64_t piece_bytes;  /* longest piece */
    uint32_t runs;
    bool early;
    uint64_t deadline_ns, not_before_ns;
    uint64_t reserve; /* handle */
    bool granted;

    uint32_t plan_object; /* what is planned next */
    uint64_t plan_offset, plan_at;
    uint64_t next, end; /* places in `ahead`: next to hand out, end of what is planned */
    uint64_t out_bytes; /* issued or held */
    uint32_t out, held;
    uint64_t delivered_bytes;
    uint32_t whole_objects;
    int32_t status;

    struct chm_stream_piece
        *ahead[CHM_STREAM_PIECES]; /* a ring: planned or issued, in order of the list */
    struct chm_stream_piece *spare[CHM_STREAM_PIECES];
    uint32_t spares;
    struct chm_stream_piece pieces[CHM_STREAM_PIECES];
};

/* The piece at a place of the ring. */
struct chm_stream_piece *chm_stream_piece_at(struct chm_stream *s, uint64_t place);
/* Its share of the window now, bytes. */
uint64_t chm_stream_share(const struct chm_stream *s);
/* Issue as many pieces as its share, and the room there is, allow. */
void chm_stream_pump(struct chm_stream *s);
/* The next piece to hand out is on its way or there. */
bool chm_stream_next_is_issued(struct chm_stream *s);
/* Give a piece's space back. What becomes of the piece is up to the caller. */
void chm_stream_take_back(struct chm_stream *s, struct chm_stream_piece *p);

#endif
