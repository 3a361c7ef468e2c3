/* SPDX-License-Identifier: Apache-2.0 */
/* fault_plan.h - which I/O gets which fault: from a script, or from rates and a seed. */
#ifndef CHM_FAULT_PLAN_H
#define CHM_FAULT_PLAN_H

#include "media/medium.h"

enum chm_fault {
    CHM_FAULT_NONE = 0,
    CHM_FAULT_ERR,   /* arg: errno */
    CHM_FAULT_SHORT, /* arg: bytes */
    CHM_FAULT_TORN,  /* arg: bytes */
    CHM_FAULT_LOST,
    CHM_FAULT_LATE, /* arg: ns */
    CHM_FAULT_NEVER,
    CHM_FAULT_SWAP,
    CHM_FAULT_KINDS
};

struct chm_fault_rule {
    uint64_t first, last; /* numbers, from 0, of the I/Os of its kind that it hits */
    uint64_t arg;
    uint8_t kind; /* enum chm_io_kind, or CHM_FAULT_ANY */
    uint8_t fault;
};

enum { CHM_FAULT_ANY = 4, CHM_FAULT_COUNTERS = 5 };

struct chm_fault_plan {
    struct chm_fault_rule *rules; /* of the script */
    uint32_t nrules;
    uint32_t ppm[CHM_FAULT_KINDS]; /* without a script: rate of each fault */
    uint64_t late_ns;
    uint64_t seed;                     /* moves on with every I/O */
    uint64_t seen[CHM_FAULT_COUNTERS]; /* I/Os so far, by kind, and all */
};

/* What becomes of one I/O. */
struct chm_fault_verdict {
    enum chm_fault fault;
    uint64_t arg;
};

/* 0, -ENOMEM, or -EINVAL with the line and what is wrong with it. */
int chm_fault_plan_open(struct chm_fault_plan *p, const struct chm_fault_options *o,
                        struct chm_error *err);
void chm_fault_plan_close(struct chm_fault_plan *p);
/* The verdict on the next I/O; block_bytes is the unit of short and torn lengths that are drawn. */
struct chm_fault_verdict chm_fault_plan_next(struct chm_fault_plan *p, const struct chm_io *io,
                                             uint32_t block_bytes);

#endif
