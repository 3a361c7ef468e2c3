/* SPDX-License-Identifier: Apache-2.0 */
/* binding.c - see binding.h. */
#include "host/binding.h"

uint64_t chm_binding_issue(chm_dev *dev, uint64_t addr, uint64_t len)
{
    struct chm_issue item = {.addr = addr, .len = len};
    int rc = chm_issue(dev, &item, 1, NULL);

    return rc == 1 ? item.req : (uint64_t)(int64_t)(rc < 0 ? rc : item.status);
}

int chm_binding_issue_many(chm_dev *dev, struct chm_issue *items, uint32_t n,
                           const struct chm_issue_options *opts, uint64_t *reqs, int32_t *status)
{
    int rc = chm_issue(dev, items, n, opts);

    for (uint32_t i = 0; rc >= 0 && i < n; i++) {
        if (items[i].status != 0) {
            items[i].req = 0;
        }
        reqs[i] = items[i].req;
        status[i] = items[i].status;
    }
    return rc;
}
