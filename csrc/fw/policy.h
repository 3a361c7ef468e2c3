/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - the device-level seams: what a device cache is to the rest of the firmware, and the
 * list of the policies that there are.
 *
 * A device cache answers reads, takes committed writes and trims, and says what is written. The
 * window with its write buffer (request.c, wbuf.c) is one; the transparent line cache (cache.c) is
 * the other, with a replacement policy of its own.
 */
#ifndef CHM_POLICY_H
#define CHM_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "fw/flush.h"
#include "fw/replace.h"

struct chm_fw;
struct chm_fwreq;
struct chm_ext;
struct chm_fio;

struct chm_cache_ops {
    bool prefetch; /* it takes ISSUE and RESERVE; without, they are -EOPNOTSUPP */
    /* A checked READ: answer it with chm_request_read_done, now or later. */
    void (*read)(struct chm_fw *fw, struct chm_fwreq *req);
    /* It was given up. True: nothing of it is left; false: chm_request_read_done will come. */
    bool (*cancel)(struct chm_fw *fw, struct chm_fwreq *req);
    /* These bytes are what the range reads as from now on. Takes the extent over. */
    void (*commit)(struct chm_fw *fw, struct chm_ext *e);
    /* The range reads as zeros from now on. 0 or -errno. */
    int (*trim)(struct chm_fw *fw, uint64_t addr, uint64_t len);
    /* Go on, as far as that is possible now. */
    void (*run)(struct chm_fw *fw);
    /* Fill in the next I/O of what a flush is to write. False: nothing may go now. */
    bool (*take)(struct chm_fw *fw, struct chm_fio *fio);
    /* Commits up to and including this one are on the drive, or lost. */
    uint64_t (*settled)(const struct chm_fw *fw);
};

struct chm_policy {
    const char *name;
    const struct chm_cache_ops *cache;
    const struct chm_replace_ops *replace; /* NULL: it has no lines */
};

/* NULL: there is none of that name. */
const struct chm_policy *chm_policy_find(const char *name);
const struct chm_flush_ops *chm_flush_policy_find(const char *name);

#endif
