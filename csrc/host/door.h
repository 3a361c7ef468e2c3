/* SPDX-License-Identifier: Apache-2.0 */
/*
 * door.h - the in-process door: how calls reach the firmware and results come back.
 *
 * Stepped: the caller's thread runs commands and steps the firmware itself. Threaded: commands go
 * through a bounded queue to the device thread, which alone touches firmware and medium. Either way
 * a call takes a cell, sends a command, and looks at the cell. Cells are taken and given up by
 * clients, freed by whoever drives the firmware.
 */
#ifndef CHM_DOOR_H
#define CHM_DOOR_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "chm.h"
#include "fw/cell.h"
#include "fw/device.h"
#include "fw/memory.h"
#include "host/link.h"
#include "host/queue.h"
#include "media/backing.h"
#include "media/medium.h"

enum { CHM_CLAIMS_MAX = 16 };

/* Ended requests that chm_reap has not told yet. Written by the firmware's driver, read under
 * `lock`. */
struct chm_ended {
    _Atomic uint32_t wanted;   /* somebody has called chm_reap or chm_event_fd */
    _Atomic uint32_t overflow; /* the ring was full: look at the cells themselves */
    _Atomic uint64_t head, tail;
    uint64_t mask;
    uint64_t *ring;
    pthread_mutex_t lock;
    int fd;
};

struct chm_dev {
    struct chm_options opts; /* defaults filled in */
    struct chm_fw *fw;
    struct chm_medium *medium;
    struct chm_memory memory;
    struct chm_regions *regions;
    struct chm_backing backing[CHM_MEMBERS_MAX];
    uint32_t members;
    bool sim;
    struct chm_map map;
    uint8_t device_id[16];
    uint64_t window_bytes;

    struct chm_cell *cells;
    _Atomic uint64_t free_cells; /* stack: tag << 32 | index + 1 */
    uint32_t request_cells;      /* opts.requests_max as asked for */
    _Atomic uint32_t requests;   /* cells taken by requests; some are kept for other calls, so that
                                    statistics and flushes work when the table is full */
    struct chm_queue *queue;
    struct chm_ended ended;
    struct chm_link_port link;
    _Atomic uint64_t delivered;
    _Atomic uint64_t refused, write_refused; /* by the door; the firmware counts its own */
    _Atomic uint32_t users;   /* open streams and spaces: the device cannot be closed */
    _Atomic uint32_t streams; /* open streams: they share the window */

    struct chm_range claimed[CHM_CLAIMS_MAX]; /* len 0: unused; under ended.lock */
    _Atomic uint32_t bell;      /* moves on when requests of a threaded device end or go */
    _Atomic uint32_t listeners; /* threads that sleep on it */

    pthread_t thread;
    bool threaded;
    atomic_bool stop;
    uint64_t stop_deadline_ns;
    sem_t started;
    sem_t stopping; /* whoever closes needs the medium no more */
    int start_rc;
    int stop_rc;
    struct chm_error *start_err;
};

/* ---- cells.c */
int chm_cells_open(struct chm_dev *dev);
void chm_cells_close(struct chm_dev *dev);
/* A cell in state SENT for a request of `len` bytes; its handle. -EBUSY: all are taken. */
int chm_cell_new(struct chm_dev *dev, uint8_t kind, uint64_t len, uint32_t *index,
                 uint64_t *handle);
/* The cell of a living handle, or NULL. */
struct chm_cell *chm_cell_of(struct chm_dev *dev, uint64_t handle);
uint32_t chm_cell_index(const struct chm_dev *dev, const struct chm_cell *cell);
/* End a handle: true for exactly one caller. Whoever gets true sends the command that ends the
 * request. */
bool chm_cell_give_up(struct chm_dev *dev, uint64_t handle);
/* Publish what the firmware ended and freed. By whoever drives it. */
void chm_cells_publish(struct chm_dev *dev);
/* Is it a request for bytes, staged or read? Those of writes and flushes are not. */
bool chm_cell_has_bytes(const struct chm_cell *cell);
bool chm_cell_has_ended(uint32_t state);

/* ---- door.c */
/* 0, or -ECHILD / -EINVAL. Every public call begins with it. */
int chm_door_check(const struct chm_dev *dev);
/* An item was answered rc before it reached the firmware. Malformed ones do not count. */
void chm_door_count_refusal(_Atomic uint64_t *counter, int rc);
/* Run a command, or send it. Whoever sends rings before it returns; waiting rings by itself. */
void chm_door_send(struct chm_dev *dev, const struct chm_cmd *cmd);
/* Threaded: see to it that the commands sent are taken: now (hurry), or when the thread looks next,
 * which is within 2 ms. */
void chm_door_ring(struct chm_dev *dev, bool hurry);
/* Get the I/O going that the commands of a call asked for: ring in a hurry, or step. */
void chm_door_kick(struct chm_dev *dev);
/* Absolute time of a timeout from now, saturating. */
uint64_t chm_door_deadline(struct chm_dev *dev, uint64_t timeout_ns);
/* Wait until the firmware has taken the cell's command (not SENT any more). */
void chm_door_wait_taken(struct chm_dev *dev, struct chm_cell *cell);
/* Wait until it has a result. 0: it has; -ETIMEDOUT. */
int chm_door_wait_ended(struct chm_dev *dev, struct chm_cell *cell, uint64_t deadline_ns);
/* The same for a handle of generation gen that another thread may give up meanwhile: -ESTALE. */
int chm_door_wait_handle(struct chm_dev *dev, struct chm_cell *cell, uint32_t gen,
                         uint64_t deadline_ns);
/* Wait until the device's clock shows at_ns. 0 or -ETIMEDOUT if the deadline comes first. */
int chm_door_wait_until(struct chm_dev *dev, uint64_t at_ns, uint64_t deadline_ns);
/* Result of an ended cell: 0 or -errno; claims it. */
int chm_cell_result(struct chm_cell *cell);
/* A command with a result and no handle: takes a cell, sends, waits, frees. */
int chm_door_call(struct chm_dev *dev, uint8_t op, uint64_t addr, uint64_t len, void *ptr,
                  uint64_t timeout_ns);
/* Give a handle up with `op` (RELEASE, ABORT, COMMIT). 0 or -ESTALE. */
int chm_door_end(struct chm_dev *dev, uint64_t handle, uint8_t op);

/* ---- bell.c: for who has many requests and no thread for each */
/* Ask for a flush; *handle is polled. 0 or -errno. */
int chm_door_flush_begin(struct chm_dev *dev, uint64_t *handle);
/* Has it ended? Then *rc is its result and the handle is gone. */
bool chm_door_poll(struct chm_dev *dev, uint64_t handle, int *rc);
/* Give a read up. From then on *cell is free, so that nothing writes its buffer any more, when
 * chm_door_is_gone(cell, gen) says so. */
void chm_door_cancel(struct chm_dev *dev, uint64_t handle, struct chm_cell **cell, uint32_t *gen);
bool chm_door_is_gone(const struct chm_cell *cell, uint32_t gen);
/* Threaded devices: the bell now; wait until it is another, or the deadline; ring it. */
uint32_t chm_door_bell(const struct chm_dev *dev);
int chm_door_listen(struct chm_dev *dev, uint32_t bell, uint64_t deadline_ns);
void chm_door_bell_ring(struct chm_dev *dev);

/* Part of the device for one user alone, until it is given back. -EBUSY: somebody has some of it;
 * -ENFILE: CHM_CLAIMS_MAX have. */
int chm_door_claim(struct chm_dev *dev, uint64_t base, uint64_t len);
void chm_door_unclaim(struct chm_dev *dev, uint64_t base);

/* ---- thread.c */
int chm_thread_start(struct chm_dev *dev, struct chm_error *err);
int chm_thread_stop(struct chm_dev *dev);

/* ---- open.c: medium and firmware, in the thread that will drive them */
int chm_dev_bring_up(struct chm_dev *dev, struct chm_error *err);
int chm_dev_take_down(struct chm_dev *dev, uint64_t deadline_ns);

#endif
