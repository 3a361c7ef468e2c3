/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bell.c - many requests at once: polling them, and sleeping until any of them may have ended.
 *
 * The bell is a counter that the device thread moves on whenever it publishes; who listens
 * remembers it, looks at its requests, and sleeps only if it has not moved since. So nothing is
 * missed, and nobody pays for it while nobody listens.
 */
#include <errno.h>

#include "host/door.h"
#include "host/futex.h"
#include "util/util.h"

int chm_door_flush_begin(struct chm_dev *dev, uint64_t *handle)
{
    struct chm_cmd cmd = {.op = CHM_OP_FLUSH};
    int rc = chm_cell_new(dev, CHM_OP_FLUSH, 0, &cmd.cell, handle);

    if (rc == 0) {
        chm_door_send(dev, &cmd);
        chm_door_kick(dev);
    }
    return rc;
}

bool chm_door_poll(struct chm_dev *dev, uint64_t handle, int *rc)
{
    struct chm_cell *cell = chm_cell_of(dev, handle);

    if (!cell || !chm_cell_has_ended(atomic_load(&cell->state))) {
        CHM_ASSERT(cell);
        return false;
    }
    *rc = chm_cell_result(cell);
    chm_door_end(dev, handle, CHM_OP_RELEASE);
    return true;
}

void chm_door_cancel(struct chm_dev *dev, uint64_t handle, struct chm_cell **cell, uint32_t *gen)
{
    *cell = chm_cell_of(dev, handle);
    CHM_ASSERT(*cell);
    chm_door_end(dev, handle, CHM_OP_RELEASE);
    *gen = (uint32_t)(handle >> 32) + 1;
    *gen = *gen ? *gen : 1;
    chm_door_kick(dev);
}

bool chm_door_is_gone(const struct chm_cell *cell, uint32_t gen)
{
    return atomic_load(&cell->gen) != gen || atomic_load(&cell->state) == CELL_FREE;
}

uint32_t chm_door_bell(const struct chm_dev *dev)
{
    return atomic_load(&dev->bell);
}

int chm_door_listen(struct chm_dev *dev, uint32_t bell, uint64_t deadline_ns)
{
    int rc = 0;

    atomic_fetch_add(&dev->listeners, 1);
    if (atomic_load(&dev->bell) == bell) {
        rc = chm_futex_wait(&dev->bell, bell, deadline_ns);
    }
    atomic_fetch_sub(&dev->listeners, 1);
    return rc;
}

void chm_door_bell_ring(struct chm_dev *dev)
{
    atomic_fetch_add(&dev->bell, 1);
    if (atomic_load(&dev->listeners) > 0) {
        chm_futex_wake(&dev->bell);
    }
}

/* ---- parts of the device */

static int claim(struct chm_dev *dev, uint64_t base, uint64_t len)
{
    struct chm_range *spare = NULL;

    for (uint32_t i = 0; i < CHM_CLAIMS_MAX; i++) {
        struct chm_range *r = &dev->claimed[i];

        if (r->len == 0) {
            spare = r;
        } else if (base < r->addr + r->len && r->addr < base + len) {
            return -EBUSY;
        }
    }
    if (!spare) {
        return -ENFILE;
    }
    *spare = (struct chm_range){.addr = base, .len = len};
    atomic_fetch_add(&dev->users, 1);
    return 0;
}

int chm_door_claim(struct chm_dev *dev, uint64_t base, uint64_t len)
{
    int rc;

    pthread_mutex_lock(&dev->ended.lock);
    rc = claim(dev, base, len);
    pthread_mutex_unlock(&dev->ended.lock);
    return rc;
}

void chm_door_unclaim(struct chm_dev *dev, uint64_t base)
{
    pthread_mutex_lock(&dev->ended.lock);
    for (uint32_t i = 0; i < CHM_CLAIMS_MAX; i++) {
        if (dev->claimed[i].len > 0 && dev->claimed[i].addr == base) {
            dev->claimed[i].len = 0;
            atomic_fetch_sub(&dev->users, 1);
        }
    }
    pthread_mutex_unlock(&dev->ended.lock);
}
