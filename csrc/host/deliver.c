/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deliver.c - see deliver.h. chm_cell.deliver_ns:
 *
 *   0 -> ON_ITS_WAY -> when it arrives
 *
 * Exactly one thread moves it from 0 and asks the link, which takes it a few instructions; who
 * comes meanwhile waits for the answer.
 */
#include "host/deliver.h"

#include "host/futex.h"
#include "util/util.h"

static const uint64_t ON_ITS_WAY = UINT64_MAX, LOOK_NS = 1000;

static uint64_t send_off(struct chm_dev *dev, struct chm_cell *cell)
{
    uint64_t at = dev->link.read.rate ? chm_link_deliver(&dev->link, chm_now(dev), cell->len) : 1;

    atomic_fetch_add_explicit(&dev->delivered, cell->len, memory_order_relaxed);
    atomic_store(&cell->deliver_ns, at);
    return at;
}

uint64_t chm_deliver_begin(struct chm_dev *dev, struct chm_cell *cell)
{
    uint64_t at = 0;

    if (atomic_compare_exchange_strong(&cell->deliver_ns, &at, ON_ITS_WAY)) {
        return send_off(dev, cell);
    }
    while (at == ON_ITS_WAY) {
        chm_sleep_until(chm_now(dev) + LOOK_NS);
        at = atomic_load(&cell->deliver_ns);
    }
    return at;
}

int chm_deliver(struct chm_dev *dev, struct chm_cell *cell, uint64_t deadline_ns)
{
    uint64_t at = chm_deliver_begin(dev, cell);

    return dev->link.read.rate ? chm_door_wait_until(dev, at, deadline_ns) : 0;
}
