/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explore.h - the parts of the fault explorer's engine.
 *
 *     ops.c      what is done: a stream of operations, each a function of (seed, number)
 *     plans.c    which I/O gets which fault, as lines of a fault script; where the power is cut
 *     setup.c    the options of a device, from the seed; opening, closing, reopening it
 *     probe.c    watches the medium from above and from below the faults, and cuts the power
 *     model.c    what every page may read as: now, and after the power was cut
 *     op_*.c     the operations: each calls the device and tells or asks the model
 *     run.c      one run: open, operations, recovery after a cut, last look, close
 *     main.c     sweeps over seeds; one line of JSON per finding
 *
 * A run is a function of its `struct plan_case` alone. A promise that does not hold ends the
 * process (run_fail): what is left in memory after that is of no use to anybody.
 */
#ifndef CHM_TESTS_EXPLORE_H
#define CHM_TESTS_EXPLORE_H

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "chm.h"
#include "host/door.h"
#include "media/medium.h"
#include "util/util.h"

enum {
    PAGE = CHM_PAGE_BYTES,
    KIB = 1 << 10,
    MIB = 1 << 20,
    US = 1000,
    MS = 1000000, /* nanoseconds */
    MEMBERS_MAX = 4,
    PAGES_MAX = MEMBERS_MAX * MIB / PAGE,
    SPACE_PAGES = 40, /* the last ones of the device are for objects */
    OPS_MAX = 250,
    CHANGES_MAX = 1024, /* of the model in a run; one operation makes few */
    VERSIONS_MAX = 1 << 16,
    LINES_MAX = 256, /* of a fault script */
    WRITES = 6,
    REQS = 10,
    READS = 4,
    STREAMS = 2,
    STREAM_PIECES = 6,
    OBJECT_PAGES_MAX = 12,
    OBJECTS = 12,
    IO_PAGES_MAX = 24,
    TEXT_MAX = 512,
};

#define LONG_NS (60ull * CHM_SECOND)
#define NO_LIMIT UINT64_MAX

/* ------------------------------------------------------------------ plans */

enum {
    PLAN_ERRORS = 1, /* reads, writes, barriers and trims may fail */
    PLAN_LIES = 2,   /* writes may be reported as done and are not */
    PLAN_HANGS = 4,  /* I/Os may never come back */
    PLAN_CUT_EACH = 8,
    PLAN_CUT_SOME = 16, /* now and then, and the stream goes on */
    PLAN_VOLATILE = 32, /* the drive's cache is always volatile; else the seed decides */
};

struct plan {
    const char *name;
    uint32_t flags;
    uint8_t err, cut_short, torn, lost, late, never, swap; /* shares of the faults that are drawn */
    const char *what;
};

/* Everything a run depends on. */
struct plan_case {
    uint64_t seed;
    const struct plan *plan;
    const char *policy;
    const char *media;
    uint32_t ops;           /* length of the stream */
    uint64_t cut;           /* cut at this write, counted from 1; 0: as the plan says */
    const bool *skip_op;    /* OPS_MAX, or NULL: operations that are left out */
    const bool *skip_fault; /* LINES_MAX, or NULL: lines of the fault script that are left out */
    bool agree;             /* bytes must not depend on timing: for comparing media */
    bool verbose;           /* print what is done */
    const char *folder;     /* for backing files */
};

/* Name or NULL for the n-th; by name. */
const struct plan *plan_at(size_t n);
const struct plan *plan_find(const char *name);

/* The lines of the fault script of this case; into text, each line ended; how many there are. */
uint32_t plan_script(const struct plan_case *c, char *text, size_t size);

/* ------------------------------------------------------------------ the model */

/* What a page held from one change of the model on. */
struct version {
    uint64_t key;   /* of its bytes; 0: zeros */
    uint32_t bytes; /* from the front that have the pattern; zeros behind */
    uint32_t since; /* number of the change */
    uint32_t prev;  /* index of the version before it; the first is its own */
};

struct page {
    uint32_t newest; /* index in versions; 0: zeros, never written */
    uint32_t floor;  /* number of the newest change that is promised to survive */
    uint32_t doubt;  /* changes up to this one were told as lost: no later promise covers them */
    uint64_t drive;  /* first word of what the drive holds, seen from below the faults */
    bool lied;       /* the drive said that it wrote this page and did not */
    uint32_t lied_until; /* number of the change at which it had last been so */
    bool wild;           /* a call failed that may or may not have written here */
};

struct model {
    struct version *versions;
    uint32_t versions_count;
    uint32_t changes;
    uint64_t pages_count;
    struct page page[PAGES_MAX];
};

/* Moments [from, to] of the model: numbers of changes. */
struct span {
    uint32_t from, to;
};

void model_reset(struct model *m, uint64_t pages);
/* A new change: call before model_set; all of one call of the device are one change. */
void model_begin(struct model *m);
void model_set(struct model *m, uint64_t page, uint64_t key, uint32_t bytes);
/* Does [addr, addr + len) at p read as the model did at one moment in the span? */
bool model_matches(const struct model *m, const uint8_t *p, uint64_t addr, uint64_t len,
                   struct span span);
/* May the whole page read like this when somebody new looks at the drive? Then it is what it reads
 * as now. After a power cut it also survives the next one; else the drive may only cache it. */
bool model_rebase(struct model *m, uint64_t page, const uint8_t *p, bool cut);
/* The version at p, for messages: writes a name such as "change 12 (current)" to text. */
void model_describe(const struct model *m, uint64_t page, const uint8_t *p, char *text,
                    size_t size);
/* All changes up to `upto` are promised to survive. */
void model_promise(struct model *m, uint32_t upto);
void model_promise_range(struct model *m, uint64_t addr, uint64_t len, uint32_t upto);
/* A loss was told: what was not promised so far is in doubt. */
void model_told(struct model *m);

/* Bytes of key at [off, off + len) of its page. */
void pattern_fill(uint8_t *p, uint64_t key, uint64_t off, uint64_t len);
uint64_t pattern_key(uint64_t seed, uint64_t page);

/* ------------------------------------------------------------------ a run */

struct run;

/* A medium that watches another one. */
struct probe {
    struct chm_medium m;
    struct chm_medium *inner;
    struct run *run;
};

struct op_write {
    bool live;
    struct chm_write w;
    uint64_t seed;
};

struct op_request {
    bool live, placed, summed;
    uint64_t id, addr, len;
    struct span span; /* it shows the model of one moment of it */
    int64_t progress;
    uint64_t sum; /* of its bytes when they were all there */
    int result;   /* 1: not known yet */
};

struct op_read {
    bool live;
    struct chm_read item;
    uint32_t at;
    uint32_t skew;
};

struct op_piece {
    bool live;
    struct chm_piece piece;
    struct span span;
    uint64_t sum;
};

struct op_stream {
    chm_stream *s;
    struct chm_range objs[4];
    uint32_t n, opened; /* opened: the change number when it was */
    uint32_t object;    /* and offset of the next piece */
    uint64_t offset;
    bool early;
    struct op_piece pieces[STREAM_PIECES];
};

struct op_object {
    enum { OBJECT_NONE, OBJECT_PUT, OBJECT_LIVE, OBJECT_LEAVING } state;
    struct chm_object o;
    uint64_t key;
    uint32_t holds;
    uint64_t piece_at, piece_len; /* handed out and not committed yet */
};

struct run {
    const struct plan_case *c;
    uint64_t rng;      /* of the operation that is running */
    uint32_t op;       /* its number */
    const char *doing; /* and name */

    struct chm_options opt;
    char script[LINES_MAX * 40];
    char path[MEMBERS_MAX][256];
    const char *paths[MEMBERS_MAX];
    bool files;
    chm_dev *dev;
    struct chm_info info;
    chm_space *space;
    bool with_space;
    uint64_t space_base;
    uint64_t pages; /* of the device */

    struct probe above, below; /* the faults */
    struct chm_medium *sim;    /* keeps the bytes over reopening */
    uint64_t writes, reaps;    /* that the firmware asked for */
    uint64_t cut_at;           /* cut the power at this write; 0: not */
    bool cut_late;             /* when it is handed back, not when it is submitted */
    uint64_t cuts;
    bool cut; /* the power is off */
    bool keep_medium;

    struct model model;
    struct op_write write[WRITES];
    struct op_request req[REQS];
    struct op_read read[READS];
    struct op_stream stream[STREAMS];
    struct op_object object[OBJECTS];
    uint8_t *buffers; /* of demand reads: one more than READS */
    uint64_t digest;  /* of everything: results, bytes, times */
    uint64_t bytes;   /* of what was read and does not depend on timing */
    struct chm_stats stats;
};

enum { BUFFER_BYTES = (IO_PAGES_MAX + 4) * PAGE };

/* A promise does not hold. kind is one word: shrinking keeps it the same. */
_Noreturn void run_fail(struct run *r, const char *kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Print, when asked to, what an operation does and what came of it. */
void run_say(const struct run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void run_note(struct run *r, uint64_t v);
uint64_t run_random(struct run *r, uint64_t below);
/* A status that only faults explain. */
bool run_error_allowed(const struct run *r, int rc);
/* Check a timed call: the clock is not past its deadline. */
void run_check_time(struct run *r, uint64_t begin_ns, uint64_t timeout_ns);
void run_check_bytes(struct run *r, const uint8_t *p, uint64_t addr, uint64_t len,
                     struct span span);

/* The equations between the counters. */
void run_check_counters(struct run *r);
/* Close in order, look at what the drive holds, open again. */
void run_reopen(struct run *r);

/* One whole run. digest and bytes are outputs; returns the number of writes the medium was asked
 * for. */
uint64_t run_case(struct run *r, const struct plan_case *c);

/* setup.c */
void setup_options(struct run *r);
bool setup_open(struct run *r);
/* Returns what chm_close does. The medium stays with the run when it is to be opened again. */
int setup_close(struct run *r);
void setup_discard(struct run *r);

/* probe.c */
void probe_attach(struct run *r);
void probe_cut(struct run *r);

/* ops.c */
void ops_run(struct run *r, uint32_t number);
/* A range of whole pages with at most max of them, hot spots preferred, outside the space. */
void ops_range(struct run *r, uint64_t max, uint64_t *addr, uint64_t *len);
/* The same for reading: anywhere, objects preferred now and then. */
void ops_read_range(struct run *r, uint64_t max, uint64_t *addr, uint64_t *len);

/* op_write.c */
void op_write(struct run *r);
void op_open_write(struct run *r);
void op_end_write(struct run *r);
void op_trim(struct run *r);
void op_flush(struct run *r);
int write_flush(struct run *r, uint64_t timeout_ns);
void write_end_all(struct run *r);
/* The commit of this range, change number `upto` of the model, returned status. */
void write_told(struct run *r, uint64_t addr, uint64_t len, uint32_t upto, int status);

/* op_stage.c */
void op_issue(struct run *r);
void op_wait(struct run *r);
void op_look(struct run *r);
void op_release(struct run *r);
void op_reap(struct run *r);
void stage_end_all(struct run *r);
/* All but those that have expired, which hold nothing. */
void stage_end_unexpired(struct run *r);

/* op_read.c */
void op_read(struct run *r);
void op_read_begin(struct run *r);
void op_read_end(struct run *r);
void read_end_all(struct run *r);
/* Read one range into the spare buffer; NULL if it could not be read. */
const uint8_t *read_plain(struct run *r, uint64_t addr, uint64_t len);
/* The spare buffer, of BUFFER_BYTES. */
uint8_t *read_spare(struct run *r);

/* op_stream.c */
void op_stream_open(struct run *r);
void op_stream_next(struct run *r);
void op_stream_release(struct run *r);
void op_stream_close(struct run *r);
void stream_end_all(struct run *r);

/* op_object.c */
void op_put(struct run *r);
void op_put_begin(struct run *r);
void op_put_go_on(struct run *r);
void op_object_read(struct run *r);
void op_object_hold(struct run *r);
void op_object_delete(struct run *r);
void object_open_space(struct run *r);
void object_end_all(struct run *r);

#endif
