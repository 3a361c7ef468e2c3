/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.c - the device thread: takes commands from the queue, steps the firmware, sleeps.
 *
 *   BUSY     commands came
 *   POLLING  nothing came, nothing is in flight; at most poll_ns
 *   ASLEEP   in the medium's reap, until a client wakes it or a timer is due
 *   NAPPING  the same with I/O in flight, until one ends, at most 2 ms; wakes only for the hurried
 *
 * It makes the medium itself, so that a ring may be told that only one thread will ever use it. It
 * polls only when no I/O is in flight: the next command may then be an instant away, while an I/O
 * is not.
 */
#include <errno.h>
#include <sys/prctl.h>

#include "host/door.h"
#include "media/thread.h"
#include "util/util.h"

enum {
    TAKE_MAX = 256,   /* commands between steps, so that completions are not kept waiting */
    NAP_NS = 2000000, /* longest sleep with I/O in flight: releases and commits do not wake it,
                         since an I/O is about to */
};

static bool take_commands(struct chm_dev *dev)
{
    union {
        struct chm_cmd cmd;
        uint64_t body[7];
    } entry;
    int n = 0;

    chm_fw_tick(dev->fw);
    while (n < TAKE_MAX && chm_queue_pop(dev->queue, entry.body)) {
        chm_fw_exec(dev->fw, &entry.cmd);
        n++;
    }
    chm_cells_publish(dev);
    return n > 0;
}

static void thread_loop(struct chm_dev *dev)
{
    uint64_t poll_until = 0;
    bool busy;

    while (!atomic_load(&dev->stop)) {
        if (take_commands(dev)) {
            poll_until = dev->fw->now_ns + dev->opts.poll_ns;
            chm_fw_step(dev->fw, 0);
            chm_cells_publish(dev);
            continue;
        }
        busy = chm_fw_in_flight(dev->fw);
        if (!busy && dev->fw->now_ns < poll_until) {
            continue;
        }
        if (chm_queue_sleep(dev->queue, busy)) {
            chm_fw_step(dev->fw, busy ? chm_sat_add(dev->fw->now_ns, NAP_NS) : UINT64_MAX);
            chm_queue_awake(dev->queue);
            chm_cells_publish(dev);
        }
    }
}

static void sem_wait_always(sem_t *sem)
{
    while (sem_wait(sem) < 0 && errno == EINTR) {
    }
}

static void *thread_main(void *arg)
{
    struct chm_dev *dev = arg;

    prctl(PR_SET_NAME, "chm-device");
    dev->start_rc = chm_dev_bring_up(dev, dev->start_err);
    sem_post(&dev->started);
    if (dev->start_rc == 0) {
        thread_loop(dev);
        sem_wait_always(&dev->stopping);
        take_commands(dev);
        dev->stop_rc = chm_dev_take_down(dev, dev->stop_deadline_ns);
    }
    return NULL;
}

int chm_thread_start(struct chm_dev *dev, struct chm_error *err)
{
    int rc;

    sem_init(&dev->started, 0, 0);
    sem_init(&dev->stopping, 0, 0);
    dev->start_err = err;
    rc = chm_thread_create(&dev->thread, thread_main, dev);
    if (rc < 0) {
        return rc;
    }
    sem_wait_always(&dev->started);
    if (dev->start_rc < 0) {
        pthread_join(dev->thread, NULL);
    }
    return dev->start_rc;
}

int chm_thread_stop(struct chm_dev *dev)
{
    atomic_store(&dev->stop, true);
    chm_medium_wake(dev->medium);
    sem_post(&dev->stopping); /* not before: the thread frees the medium */
    pthread_join(dev->thread, NULL);
    return dev->stop_rc;
}
