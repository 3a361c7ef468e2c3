/* SPDX-License-Identifier: Apache-2.0 */
/* binding.h - calls of chm.h in the form that costs a binding least: no struct to fill per call. */
#ifndef CHM_BINDING_H
#define CHM_BINDING_H

#include <stdint.h>

#include "chm.h"

/* chm_issue of one range with default options. The handle, or -errno as an unsigned number (no
 * handle is that large). */
uint64_t chm_binding_issue(chm_dev *dev, uint64_t addr, uint64_t len);
/* chm_issue; reqs[i] and status[i] are copies of those of the items, with handle 0 for what was not
 * issued. */
int chm_binding_issue_many(chm_dev *dev, struct chm_issue *items, uint32_t n,
                           const struct chm_issue_options *opts, uint64_t *reqs, int32_t *status);

#endif
