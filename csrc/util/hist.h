/* SPDX-License-Identifier: Apache-2.0 */
/* hist.h - recording into the log-scale histograms of chm.h. */
#ifndef CHM_HIST_H
#define CHM_HIST_H

#include "chm.h"

/* Values beyond the last bucket are counted in it. */
void chm_hist_add(struct chm_hist *h, uint64_t value);
/* Bucket of a value, and the smallest value of a bucket. */
uint32_t chm_hist_bucket(uint64_t value);
uint64_t chm_hist_floor(uint32_t bucket);

#endif
