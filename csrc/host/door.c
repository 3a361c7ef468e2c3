/* SPDX-License-Identifier: Apache-2.0 */
/* door.c - see door.h. Sending commands and waiting for cells, the same for both kinds of device.
 */
#include "host/door.h"

#include <errno.h>

#include "host/futex.h"
#include "util/util.h"

enum {
    SPIN_CHECKS = 64, /* looks at the word between looks at the clock */
};

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

int chm_door_check(const struct chm_dev *dev)
{
    if (!dev) {
        return -EINVAL;
    }
    return chm_memory_is_parent(&dev->memory) ? 0 : -ECHILD;
}

void chm_door_count_refusal(_Atomic uint64_t *counter, int rc)
{
    if (rc != -EINVAL) {
        atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    }
}

void chm_door_send(struct chm_dev *dev, const struct chm_cmd *cmd)
{
    union {
        struct chm_cmd cmd;
        uint64_t body[7];
    } entry = {.cmd = *cmd};

    if (!dev->threaded) {
        chm_fw_tick(dev->fw);
        chm_fw_exec(dev->fw, cmd);
        chm_cells_publish(dev);
        return;
    }
    /* It holds two commands for every cell, and a cell has no more on their way. */
    CHM_ASSERT(chm_queue_push(dev->queue, entry.body));
}

void chm_door_ring(struct chm_dev *dev, bool hurry)
{
    if (dev->threaded && chm_queue_must_wake(dev->queue, hurry)) {
        chm_medium_wake(dev->medium);
    }
}

void chm_door_kick(struct chm_dev *dev)
{
    if (dev->threaded) {
        chm_door_ring(dev, true);
    } else {
        chm_fw_step(dev->fw, 0);
        chm_cells_publish(dev);
    }
}

uint64_t chm_door_deadline(struct chm_dev *dev, uint64_t timeout_ns)
{
    return timeout_ns == UINT64_MAX ? UINT64_MAX : chm_sat_add(chm_now(dev), timeout_ns);
}

/* Step until the cell has ended, the deadline passed, or nothing is left that could end it. */
static int wait_stepping(struct chm_dev *dev, struct chm_cell *cell, uint64_t deadline_ns)
{
    while (!chm_cell_has_ended(atomic_load(&cell->state))) {
        uint64_t now = dev->fw->now_ns;

        chm_fw_step(dev->fw, deadline_ns);
        chm_cells_publish(dev);
        if (chm_cell_has_ended(atomic_load(&cell->state))) {
            break;
        }
        if (chm_now(dev) >= deadline_ns || dev->fw->dead ||
            (dev->medium->caps.virtual_time && dev->fw->now_ns == now && chm_fw_stuck(dev->fw))) {
            return dev->fw->dead ? -ENODEV : -ETIMEDOUT;
        }
    }
    return 0;
}

/* While the device thread is awake and has not taken the command, its answer is less than a
 * microsecond away; once it needs I/O, or sleeps, spinning only takes a core from it. */
static void spin_while_sent(struct chm_dev *dev, struct chm_cell *cell)
{
    uint64_t end = 0, now = 0;

    do {
        for (int i = 0; i < SPIN_CHECKS; i++) {
            if ((atomic_load_explicit(&cell->state, memory_order_acquire) & CELL_STATE_MASK) !=
                    CELL_SENT ||
                atomic_load_explicit(&dev->queue->sleeping, memory_order_relaxed)) {
                return;
            }
            cpu_relax();
        }
        now = chm_medium_now(dev->medium);
        end = end ? end : now + dev->opts.poll_ns;
    } while (now < end);
}

/* Nothing to wait for: it has a result, or the handle died and the cell is somebody else's. */
static bool wait_is_over(struct chm_cell *cell, uint32_t gen, uint32_t state)
{
    return chm_cell_has_ended(state) || atomic_load(&cell->gen) != gen;
}

/* Sleep until the cell has ended or was given up, or the deadline. */
static int wait_sleeping(struct chm_dev *dev, struct chm_cell *cell, uint32_t gen,
                         uint64_t deadline_ns)
{
    uint32_t state;
    int rc = 0;

    chm_door_ring(dev, true);
    spin_while_sent(dev, cell);
    if (wait_is_over(cell, gen, atomic_load(&cell->state))) {
        return 0;
    }
    atomic_fetch_add(&cell->waiters, 1);
    while (!wait_is_over(cell, gen, state = atomic_load(&cell->state)) && rc == 0) {
        rc = chm_futex_wait(&cell->state, state, deadline_ns);
    }
    atomic_fetch_sub(&cell->waiters, 1);
    if (wait_is_over(cell, gen, atomic_load(&cell->state))) {
        return 0;
    }
    return rc == -EINTR ? -EINTR : -ETIMEDOUT;
}

static bool has_been_taken(uint32_t state)
{
    return (state & CELL_STATE_MASK) != CELL_SENT;
}

void chm_door_wait_taken(struct chm_dev *dev, struct chm_cell *cell)
{
    if (!dev->threaded) {
        return;
    }
    chm_door_ring(dev, true);
    /* The thread takes commands promptly and does not wake anybody for it. */
    while (!has_been_taken(atomic_load(&cell->state))) {
        spin_while_sent(dev, cell);
        if (!has_been_taken(atomic_load(&cell->state))) {
            chm_sleep_until(chm_now(dev) + dev->opts.poll_ns);
        }
    }
}

int chm_door_wait_handle(struct chm_dev *dev, struct chm_cell *cell, uint32_t gen,
                         uint64_t deadline_ns)
{
    int rc = 0;

    if (!chm_cell_has_ended(atomic_load(&cell->state))) {
        rc = dev->threaded ? wait_sleeping(dev, cell, gen, deadline_ns)
                           : wait_stepping(dev, cell, deadline_ns);
    }
    return atomic_load(&cell->gen) == gen ? rc : -ESTALE;
}

int chm_door_wait_ended(struct chm_dev *dev, struct chm_cell *cell, uint64_t deadline_ns)
{
    return chm_door_wait_handle(dev, cell, atomic_load(&cell->gen), deadline_ns);
}

int chm_door_wait_until(struct chm_dev *dev, uint64_t at_ns, uint64_t deadline_ns)
{
    uint64_t stop = chm_min(at_ns, deadline_ns);

    while (chm_now(dev) < stop) {
        if (!dev->threaded) {
            chm_fw_step(dev->fw, stop);
            chm_cells_publish(dev);
            if (dev->fw->dead) {
                return -ENODEV;
            }
        } else if (chm_sleep_until(stop) == -EINTR) {
            return -EINTR;
        }
    }
    return chm_now(dev) >= at_ns ? 0 : -ETIMEDOUT;
}

int chm_door_end(struct chm_dev *dev, uint64_t handle, uint8_t op)
{
    struct chm_cmd cmd = {.op = op, .cell = (uint32_t)handle - 1};

    if (!chm_cell_give_up(dev, handle)) {
        return -ESTALE;
    }
    chm_door_send(dev, &cmd);
    return 0;
}

int chm_door_call(struct chm_dev *dev, uint8_t op, uint64_t addr, uint64_t len, void *ptr,
                  uint64_t timeout_ns)
{
    struct chm_cmd cmd = {.op = op, .addr = addr, .len = len, .ptr = (uintptr_t)ptr};
    uint64_t handle, deadline_ns;
    int rc = chm_door_check(dev);

    if (rc == 0) {
        rc = chm_cell_new(dev, op, len, &cmd.cell, &handle);
    }
    if (rc < 0) {
        return rc;
    }
    deadline_ns = chm_door_deadline(dev, timeout_ns);
    chm_door_send(dev, &cmd);
    do {
        rc = chm_door_wait_ended(dev, &dev->cells[cmd.cell], deadline_ns);
    } while (rc == -EINTR && timeout_ns == UINT64_MAX);
    if (rc == 0) {
        rc = chm_cell_result(&dev->cells[cmd.cell]);
    }
    chm_door_end(dev, handle, CHM_OP_RELEASE);
    chm_door_ring(dev, false);
    return rc;
}
