/* SPDX-License-Identifier: Apache-2.0 */
/* writes.c - begin, commit, abort; flush and trim. */
#include <errno.h>
#include <string.h>

#include "host/door.h"
#include "util/util.h"

enum { BEGIN_MAX = 64 /* of one batch on their way to the device thread at a time */ };

static int begin_send(struct chm_dev *dev, const struct chm_write *item, uint64_t *id)
{
    struct chm_cmd cmd = {.op = CHM_OP_BEGIN, .addr = item->addr, .len = item->len};
    int rc = chm_fw_check_write(dev->fw, item->addr, item->len);

    rc = rc < 0 ? rc : chm_cell_new(dev, CHM_OP_BEGIN, item->len, &cmd.cell, id);
    if (rc == 0) {
        chm_door_send(dev, &cmd);
    } else {
        chm_door_count_refusal(&dev->write_refused, rc);
    }
    return rc;
}

/* The firmware's answer: fills the item in, or gives the handle up. */
static int begin_answer(struct chm_dev *dev, struct chm_write *item, uint64_t id)
{
    struct chm_cell *cell = chm_cell_of(dev, id);
    int rc;

    CHM_ASSERT(cell);
    while (chm_door_wait_ended(dev, cell, UINT64_MAX) == -EINTR) {
    }
    rc = chm_cell_result(cell);
    if (rc < 0) {
        chm_door_end(dev, id, CHM_OP_RELEASE);
        return rc;
    }
    item->id = id;
    item->data = dev->memory.base + atomic_load(&cell->data_off);
    return 0;
}

/* At most BEGIN_MAX items. In order: nothing is admitted behind something that was refused for lack
 * of room, here or (*full) before. Returns how many were admitted. */
static int begin_some(struct chm_dev *dev, struct chm_write *items, uint32_t n, bool *full)
{
    uint64_t ids[BEGIN_MAX];
    int done = 0;

    for (uint32_t i = 0; i < n; i++) {
        items[i].status = begin_send(dev, &items[i], &ids[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].status == 0 && *full) {
            chm_door_end(dev, ids[i], CHM_OP_ABORT);
            items[i].status = -EAGAIN;
        } else if (items[i].status == 0) {
            items[i].status = begin_answer(dev, &items[i], ids[i]);
        }
        *full = *full || items[i].status == -EAGAIN;
        done += items[i].status == 0;
    }
    return done;
}

int chm_write_begin(chm_dev *dev, struct chm_write *items, uint32_t n)
{
    int done = 0, rc = chm_door_check(dev);
    uint32_t step = rc == 0 && dev->threaded ? BEGIN_MAX : 1;
    bool full = false;

    if (rc < 0 || (n > 0 && !items)) {
        return rc < 0 ? rc : -EINVAL;
    }
    for (uint32_t i = 0; i < n; i += step) {
        uint32_t some = (uint32_t)chm_min(step, n - i);

        if (!full) {
            done += begin_some(dev, items + i, some, &full);
            continue;
        }
        for (uint32_t k = i; k < i + some; k++) {
            items[k].status = -EAGAIN;
            chm_door_count_refusal(&dev->write_refused, -EAGAIN);
        }
    }
    chm_door_ring(dev, false);
    return done;
}

static struct chm_cell *write_cell(struct chm_dev *dev, uint64_t id)
{
    struct chm_cell *cell = chm_cell_of(dev, id);

    return cell && cell->kind == CHM_OP_BEGIN && chm_cell_has_ended(atomic_load(&cell->state))
               ? cell
               : NULL;
}

/* Strict: the cell lives on until the bytes are durable. */
static void commit_strict_send(struct chm_dev *dev, struct chm_cell *cell)
{
    struct chm_cmd cmd = {.op = CHM_OP_COMMIT, .cell = chm_cell_index(dev, cell)};

    atomic_store(&cell->state, CELL_SENT);
    chm_door_send(dev, &cmd);
}

static int commit_send(struct chm_dev *dev, uint64_t id, bool strict)
{
    struct chm_cell *cell = write_cell(dev, id);

    if (!cell) {
        return -ESTALE;
    }
    if (!strict) {
        return chm_door_end(dev, id, CHM_OP_COMMIT);
    }
    commit_strict_send(dev, cell);
    return 0;
}

static int commit_strict_wait(struct chm_dev *dev, uint64_t id)
{
    struct chm_cell *cell = chm_cell_of(dev, id);
    int rc;

    if (!cell) {
        return -ESTALE;
    }
    do {
        rc = chm_door_wait_ended(dev, cell, UINT64_MAX);
    } while (rc == -EINTR);
    rc = rc < 0 ? rc : chm_cell_result(cell);
    chm_door_end(dev, id, CHM_OP_RELEASE);
    return rc;
}

/* The bytes go over the host link: until the last has arrived. */
static void commit_travel(struct chm_dev *dev, const uint64_t *ids, uint32_t n)
{
    uint64_t now = chm_now(dev), last = now;

    for (uint32_t i = 0; i < n; i++) {
        struct chm_cell *cell = write_cell(dev, ids[i]);

        if (cell) {
            last = chm_max(last, chm_link_take(&dev->link, now, cell->len));
        }
    }
    while (chm_door_wait_until(dev, last, UINT64_MAX) == -EINTR) {
    }
}

int chm_write_commit(chm_dev *dev, const uint64_t *ids, uint32_t n, int32_t *status)
{
    bool strict;
    int done = 0, rc = chm_door_check(dev);

    if (rc < 0 || (n > 0 && (!ids || !status))) {
        return rc < 0 ? rc : -EINVAL;
    }
    strict = dev->opts.durability == CHM_DURABILITY_STRICT;
    if (dev->link.write.rate) {
        commit_travel(dev, ids, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        status[i] = commit_send(dev, ids[i], strict);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (strict && status[i] == 0) {
            status[i] = commit_strict_wait(dev, ids[i]);
        }
        done += status[i] == 0;
    }
    if (dev->threaded) {
        chm_door_ring(dev, false);
    } else {
        chm_door_kick(dev);
    }
    return done;
}

int chm_write_abort(chm_dev *dev, const uint64_t *ids, uint32_t n, int32_t *status)
{
    int done = 0, rc = chm_door_check(dev);

    if (rc < 0 || (n > 0 && !ids)) {
        return rc < 0 ? rc : -EINVAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        rc = write_cell(dev, ids[i]) ? chm_door_end(dev, ids[i], CHM_OP_ABORT) : -ESTALE;
        done += rc == 0;
        if (status) {
            status[i] = rc;
        }
    }
    chm_door_ring(dev, false);
    return done;
}

int chm_write(chm_dev *dev, uint64_t addr, const void *buf, uint64_t len)
{
    struct chm_write w = {.addr = addr, .len = len};
    int32_t status;
    int rc = buf ? chm_write_begin(dev, &w, 1) : -EINVAL;

    if (rc != 1) {
        return rc < 0 ? rc : w.status;
    }
    memcpy(w.data, buf, len);
    rc = chm_write_commit(dev, &w.id, 1, &status);
    return rc < 0 ? rc : status;
}

int chm_flush(chm_dev *dev, uint64_t timeout_ns)
{
    return chm_door_call(dev, CHM_OP_FLUSH, 0, 0, NULL, timeout_ns);
}

int chm_trim(chm_dev *dev, uint64_t addr, uint64_t len)
{
    int rc = chm_door_check(dev);

    rc = rc < 0 ? rc : chm_fw_check_range(dev->fw, addr, len);
    return rc < 0 ? rc : chm_door_call(dev, CHM_OP_TRIM, addr, len, NULL, UINT64_MAX);
}
