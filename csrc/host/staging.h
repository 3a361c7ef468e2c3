/* SPDX-License-Identifier: Apache-2.0 */
/* staging.h - what streams and reads use of staging beyond chm.h. */
#ifndef CHM_STAGING_H
#define CHM_STAGING_H

#include <stdint.h>

#include "host/door.h"

/* Ask for staging into free window space or, if there is none, into the runs of a granted
 * reservation (its handle). Sent, not rung for, so that many share one wake-up; then take the
 * verdict. Never queues: -EAGAIN is the verdict, or the result of a request that was delayed until
 * not_before_ns (device clock; 0: now). */
int chm_issue_reserved(struct chm_dev *dev, uint64_t reserve, uint64_t addr, uint64_t len,
                       uint64_t not_before_ns, uint64_t *req);
/* 0: it was taken on. Else why not, and the handle is gone. */
int chm_issue_verdict(struct chm_dev *dev, uint64_t req);
/* Wait for a result and for its way over the host link. As chm_wait. */
int chm_wait_cell(struct chm_dev *dev, struct chm_cell *cell, uint64_t deadline_ns);

#endif
