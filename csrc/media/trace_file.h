/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_file.h - traces of I/O as files: one JSON object per line.
 *
 *     {"chm_trace":1,"members":1,"block_bytes":4096}
 *     {"seq":0,"submit_ns":0,"done_ns":82048,"kind":"read","member":0,"off":4096,"len":4096,
 *      "res":4096,"fua":0}                                             (on one line)
 *
 * Lines stand in the order in which I/Os were handed back; seq counts them in the order of
 * submission. An I/O that was never handed back has no line.
 */
#ifndef CHM_TRACE_FILE_H
#define CHM_TRACE_FILE_H

#include <stdio.h>

#include "media/medium.h"

struct chm_trace_line {
    uint64_t seq, submit_ns, done_ns, off;
    uint32_t len, member;
    int32_t res;
    uint8_t kind, flags;
};

/* A trace in memory. */
struct chm_trace {
    struct chm_trace_line *line; /* free() it */
    uint64_t lines;
};

/* Start a trace of a medium with these caps, over whatever the file held. 0 or -errno. */
int chm_trace_create(const char *path, const struct chm_medium_caps *caps, FILE **out);
int chm_trace_write(FILE *file, const struct chm_trace_line *line);
int chm_trace_close(FILE *file);
/* Read a whole trace. -EINVAL: damaged or no trace; -EXDEV: of a medium with other members or
 * smaller blocks than caps; err says so. */
int chm_trace_load(const char *path, const struct chm_medium_caps *caps, struct chm_trace *out,
                   struct chm_error *err);

#endif
