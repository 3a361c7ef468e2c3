/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h - the transparent device cache: every access goes through lines of the device's DRAM.
 *
 * A *job* is one read, one committed write or one trim. Jobs wait in one queue and are started in
 * the order in which they came, line by line. A line that is there is served at once; a line that
 * is not is a *miss*: it takes a frame, of a free line or of one that gives way, and a *move*,
 * which writes back what the frame held if that was dirty, and then fetches. An *access* is a job's
 * part in one line that has to wait for a move of that line; those of one line are served in order.
 * What cannot be started (no move or access is free, all lines of the set are on the move, or the
 * line is just being written back to give way) holds the queue up, so nothing ever overtakes within
 * a line.
 *
 *   job:  queued -> started to its end -> over when none of its accesses wait
 *   move: EVICT -> FILL -> free         a miss
 *         CLEAN -> free                 a flush writes a line back
 *         TRIM -> free                  alone: it begins when no other move is under way
 *
 * Invariants: at most line_fills moves of misses at a time. What a line holds is fetched only after
 * what it held was written. A line on its way in or out never gives way, and takes no store. Bytes
 * are served to an access when its turn comes and not before; a caller's memory is written to by
 * the firmware alone, never by the drive.
 */
#ifndef CHM_CACHE_H
#define CHM_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "fw/carve.h"
#include "fw/line.h"
#include "fw/replace.h"
#include "util/list.h"

struct chm_fw;
struct chm_fwreq;
struct chm_fio;
struct chm_ext;
struct chm_error;

enum chm_job_kind { JOB_READ, JOB_STORE, JOB_TRIM };

struct chm_job {
    struct chm_link link; /* cache->jobs while it is not started to its end */
    uint64_t addr, end;
    uint64_t at;      /* next address to start */
    uint8_t *bytes;   /* of addr: the caller's memory, or the landing area */
    uint32_t waiting; /* accesses that wait */
    int32_t err;      /* first error */
    uint8_t kind;
    bool cancelled; /* nobody wants its bytes any more */
};

struct chm_access {
    struct chm_job *job;
    uint64_t from, to; /* within one line */
    uint32_t next;     /* ring of the line, or the free chain; index + 1 */
};

enum chm_move_phase { MOVE_FREE, MOVE_EVICT, MOVE_FILL, MOVE_CLEAN, MOVE_TRIM };

struct chm_move {
    struct chm_link link;     /* sched->lines while it has bytes left to issue; or the free list */
    struct chm_link evicting; /* cache->evicting in phase EVICT */
    struct chm_line *line;    /* NULL: trim */
    struct chm_job *job;      /* trim */
    uint64_t victim;          /* EVICT: number of what is written back */
    uint64_t begin, at, end;  /* device addresses of this phase; at: next to issue */
    uint64_t first_ns, last_ns;
    uint64_t newest; /* CLEAN, EVICT: the newest commit that is written back */
    uint32_t ios;    /* in flight */
    int32_t err;     /* of this phase */
    uint8_t phase;
    bool fetch; /* EVICT: a fill follows */
};

struct chm_cache {
    const struct chm_replace_ops *replace; /* NULL: the device has no such cache */
    struct chm_line *lines;
    struct chm_set *sets;
    uint32_t *buckets; /* index + 1 of the first line */
    uint32_t lines_max, sets_max, ways, bucket_mask;
    uint32_t shift; /* line_bytes is 1 << shift */
    uint64_t line_bytes;
    bool copies; /* the medium keeps contents, so bytes are moved */

    struct chm_link jobs;
    struct chm_job *reads, *stores; /* by number of request, of extent */
    struct chm_access *accesses;
    uint32_t accesses_max, accesses_free;
    struct chm_move *moves;
    struct chm_link moves_free, evicting;
    uint32_t moves_max, fills_max;
    uint32_t fills, cleans, trims; /* moves under way */
    struct chm_move *cleaning;     /* a CLEAN move with bytes left to issue, or NULL */
    bool changed;                  /* something ended or came: the queue wants a look */
    bool trim_waits;               /* the head of the queue is a trim: no flush begins */

    struct chm_link dirty; /* lines that are not on the drive, in order of stamp */
    uint32_t dirty_lines;
    uint64_t target;        /* periodic durability: commits up to here are to be written */
    uint64_t landing_bytes; /* committed since the target was set */
};

/* ---- cache.c: jobs */
void chm_cache_read(struct chm_fw *fw, struct chm_fwreq *req);
/* The client gave a read up. True: over already; false: when its accesses are. */
bool chm_cache_cancel(struct chm_fw *fw, struct chm_fwreq *req);
void chm_cache_commit(struct chm_fw *fw, struct chm_ext *e);
int chm_cache_trim(struct chm_fw *fw, uint64_t addr, uint64_t len);
/* Start what can be started. */
void chm_cache_run(struct chm_fw *fw);
/* All that waits for the line is served, in order; `there`: it holds its bytes, else the fill
 * failed with err. */
void chm_cache_serve_waiters(struct chm_fw *fw, struct chm_line *line, int32_t err);
/* A trim that began has ended. */
void chm_cache_trimmed(struct chm_fw *fw, struct chm_job *job, int32_t err);

/* ---- cache_lines.c: what is where */
/* Shape from options and memory; carve the tables; set them up. Names what does not fit in err. */
int chm_cache_shape(struct chm_fw *fw, uint64_t bytes, struct chm_error *err);
void chm_cache_carve(struct chm_fw *fw, struct chm_carve *k);
void chm_cache_init(struct chm_fw *fw);
struct chm_line *chm_cache_find(struct chm_cache *c, uint64_t number);
/* Which set a line of the device belongs to. */
uint32_t chm_cache_set_of(const struct chm_cache *c, uint64_t number);
struct chm_set *chm_line_set(struct chm_cache *c, const struct chm_line *line);
/* Device addresses that it holds: the last line of a device may be cut short. */
uint64_t chm_line_addr(const struct chm_cache *c, const struct chm_line *line);
uint64_t chm_cache_end_of(const struct chm_fw *fw, uint64_t number);
/* Where its bytes are. */
uint8_t *chm_line_memory(const struct chm_fw *fw, const struct chm_line *line);
/* The line, out of all lists, holds `number` from now on; or nothing any more. */
void chm_line_name(struct chm_cache *c, struct chm_line *line, uint64_t number);
void chm_line_unname(struct chm_cache *c, struct chm_line *line);
void chm_line_free(struct chm_fw *fw, struct chm_line *line);
/* Bytes of commit seq came into it, or all of it is on the drive (or lost). */
void chm_line_dirty(struct chm_fw *fw, struct chm_line *line, uint64_t seq);
void chm_line_clean(struct chm_cache *c, struct chm_line *line);

/* ---- cache_moves.c: bytes on their way */
/* A move is free for a miss. */
bool chm_cache_may_miss(const struct chm_cache *c);
/* Begin a miss in a line that has its new number; victim: it held this, dirty. */
void chm_move_evict(struct chm_fw *fw, struct chm_line *line, uint64_t victim, bool fetch);
void chm_move_fill(struct chm_fw *fw, struct chm_line *line);
void chm_move_trim(struct chm_fw *fw, struct chm_job *job);
/* Is this line of the device just being written back to give way? */
bool chm_cache_leaving(struct chm_cache *c, uint64_t number);
/* The next I/O of a move that has bytes left. */
void chm_move_take(struct chm_fw *fw, struct chm_fio *fio, struct chm_move *m);
/* The next I/O that a flush wants. False: none. */
bool chm_cache_take(struct chm_fw *fw, struct chm_fio *fio);
/* An I/O of a move ended for good. */
void chm_cache_landed(struct chm_fw *fw, struct chm_fio *fio);
/* Commits up to this one are written or lost. */
uint64_t chm_cache_settled(const struct chm_fw *fw);
/* Commits up to this one are to be written now. */
uint64_t chm_cache_wanted(const struct chm_fw *fw);
/* Periodic durability: set the target if it is time. */
void chm_cache_aim(struct chm_fw *fw);

#endif
