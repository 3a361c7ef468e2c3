/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.h - one consumer that reads a list of objects in order, and writes down what it did.
 *
 * The ways to read: staged in the window (issue, wait, view, release, some objects ahead); through
 * chm_stream_*; into memory of the caller that the drive can write to; or copied into such that it
 * cannot. The log has, for every object or piece, where in the file it came from and where in
 * memory it went, so that bench/ref.h can do the same again.
 */
#ifndef BENCH_LANE_H
#define BENCH_LANE_H

#include "bench.h"
#include "content.h"
#include "ref.h"

enum lane_way { LANE_STAGED, LANE_STREAM, LANE_DIRECT, LANE_COPIED };

enum {
    LANE_AHEAD_MAX = 128,
    LANE_SKEW = 64, /* COPIED: bytes by which a buffer is off what a drive can write to */
};

struct lane {
    /* set by the owner */
    chm_dev *dev;
    enum lane_way way;
    const uint64_t *objects; /* numbers of objects of object_bytes each */
    size_t n;
    uint64_t object_bytes;
    uint32_t ahead;     /* objects in flight, at most LANE_AHEAD_MAX; all ways but STREAM */
    uint8_t *arena;     /* DIRECT, COPIED: `ahead` buffers, lane_stride apart */
    struct ref_io *log; /* room for n * pieces per object */
    const struct bench_content *check; /* or NULL: look at every byte */
    struct bench_samples *ms;          /* issue to ready of each object; STREAM: wait for a piece */
    /* its own */
    size_t issued, taken, logged;
    chm_stream *stream;
    uint64_t req[LANE_AHEAD_MAX];
    double at[LANE_AHEAD_MAX];
};

/* From one buffer of the arena to the next. */
uint64_t lane_stride(enum lane_way way, uint64_t object_bytes);

/* Begin: get the first objects on their way. */
void lane_begin(struct lane *l);
/* Take the next object or piece, give it back, issue another. False when all are taken. */
bool lane_turn(struct lane *l);
void lane_end(struct lane *l);

#endif
