/* SPDX-License-Identifier: Apache-2.0 */
/* reads.c - demand reads into memory of the caller, and registering such memory. */
#include <errno.h>

#include "host/door.h"
#include "host/staging.h"
#include "util/util.h"

static int read_one(struct chm_dev *dev, struct chm_read *item)
{
    struct chm_cmd cmd = {
        .op = CHM_OP_READ, .addr = item->addr, .len = item->len, .ptr = (uintptr_t)item->buf};
    int rc = item->buf ? chm_fw_check_read(dev->fw, item->addr, item->len) : -EINVAL;

    rc = rc < 0 ? rc : chm_cell_new(dev, CHM_OP_READ, item->len, &cmd.cell, &item->req);
    if (rc == 0) {
        chm_door_send(dev, &cmd);
    } else {
        chm_door_count_refusal(&dev->refused, rc);
    }
    return rc;
}

int chm_read_issue(chm_dev *dev, struct chm_read *items, uint32_t n)
{
    int done = 0, rc = chm_door_check(dev);

    if (rc < 0 || (n > 0 && !items)) {
        return rc < 0 ? rc : -EINVAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        items[i].status = read_one(dev, &items[i]);
        done += items[i].status == 0;
    }
    chm_door_kick(dev);
    return done;
}

int chm_read(chm_dev *dev, struct chm_read *items, uint32_t n, uint64_t timeout_ns)
{
    int done = 0, rc = chm_read_issue(dev, items, n);
    uint64_t deadline_ns;

    if (rc < 0) {
        return rc;
    }
    deadline_ns = chm_door_deadline(dev, timeout_ns);
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].status == 0) {
            struct chm_cell *cell = chm_cell_of(dev, items[i].req);

            items[i].status = cell ? chm_wait_cell(dev, cell, deadline_ns) : -ESTALE;
            done += items[i].status == 0;
            chm_door_end(dev, items[i].req, CHM_OP_RELEASE);
        }
    }
    chm_door_ring(dev, false);
    return done;
}

int chm_quiesce(chm_dev *dev, uint64_t timeout_ns)
{
    return chm_door_call(dev, CHM_OP_QUIESCE, 0, 0, NULL, timeout_ns);
}

int chm_memory_register(chm_dev *dev, void *base, uint64_t len)
{
    if (!base || len == 0 || (uintptr_t)base % CHM_PAGE_BYTES != 0 || len % CHM_PAGE_BYTES != 0) {
        return -EINVAL;
    }
    return chm_door_call(dev, CHM_OP_REGISTER, 0, len, base, UINT64_MAX);
}

int chm_memory_unregister(chm_dev *dev, void *base)
{
    return base ? chm_door_call(dev, CHM_OP_UNREGISTER, 0, 0, base, UINT64_MAX) : -EINVAL;
}
