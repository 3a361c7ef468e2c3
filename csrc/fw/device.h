/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - the firmware: commands in, steps, results in cells.
 *
 * Single-threaded, no globals, no heap allocation after open. It knows no door: whoever drives it
 * calls chm_fw_exec for each command and chm_fw_step in between, then looks at `ended` (cells that
 * got a result) and `freed` (cells whose request is gone) and empties both.
 *
 * Request:
 *   DELAYED (not_before) -> QUEUED (for window space) -> STAGING / READING -> READY | FAILED
 *   OPEN (write), WAITING (flush, quiesce), GRANTED (reservation)
 *   released with I/O in flight -> ZOMBIE, whose cell is freed when the I/O has ended
 */
#ifndef CHM_DEVICE_H
#define CHM_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "chm.h"
#include "fw/cache.h"
#include "fw/cell.h"
#include "fw/durable.h"
#include "fw/map.h"
#include "fw/policy.h"
#include "fw/sched.h"
#include "fw/wbuf.h"
#include "fw/window.h"
#include "media/medium.h"
#include "util/hist.h"
#include "util/timers.h"

enum chm_req_state {
    REQ_FREE,
    REQ_DELAYED,
    REQ_QUEUED,
    REQ_STAGING, /* has a slot */
    REQ_READING, /* demand read */
    REQ_OPEN,    /* write begun */
    REQ_WAITING, /* flush, quiesce */
    REQ_GRANTED, /* reservation */
    REQ_DONE,    /* has a result; holds its slot if that is good */
    REQ_ZOMBIE,
};

/* Firmware's side of a cell; same index. */
struct chm_fwreq {
    struct chm_link link; /* slot->requests, a wait queue, or none */
    struct chm_timer timer;
    struct chm_slot *slot;
    struct chm_ext *ext;
    struct chm_reserve *reserve; /* RESERVE: the runs it was granted */
    struct chm_fetch fetch;      /* demand read */
    struct chm_cmd cmd;
    uint64_t issue_ns;
    uint64_t target;    /* flush: commit number to wait for */
    bool lost;          /* something of what it waits for did not reach the drive */
    uint32_t overtaken; /* times others went before it in the queue */
    uint8_t state;
};

struct chm_fw_args {
    const struct chm_options *opts; /* with defaults filled in */
    struct chm_medium *medium;
    struct chm_regions *regions; /* entry 0 is the device's memory */
    uint8_t *memory;
    uint64_t window_bytes, write_buffer_bytes; /* of memory: window first, then write buffer */
    uint64_t frame_bytes;
    struct chm_map map;
    struct chm_cell *cells; /* opts->requests_max */
};

struct chm_fw {
    struct chm_options opts;
    struct chm_medium *medium;
    struct chm_regions *regions;
    uint8_t *memory;
    struct chm_map map;
    uint64_t granule; /* unit of addresses, lengths and buffers: page or drive block, bytes */

    struct chm_cell *cells;
    struct chm_fwreq *reqs;
    uint32_t *ended, *freed; /* cell numbers since they were last emptied */
    uint32_t ended_count, freed_count;

    const struct chm_policy *policy;       /* what the DRAM is used as */
    const struct chm_flush_ops *flush_ops; /* when what is written goes to the drive */
    struct chm_cache cache; /* lines, if the policy has such; the window is empty then */
    struct chm_window window;
    struct chm_runs bounce; /* granules of the demand reserve */
    uint64_t bounce_base;
    struct chm_wbuf wbuf;
    struct chm_sched sched;
    struct chm_durable durable;
    struct chm_timers timers;
    struct chm_timer **timer_heap;

    struct chm_tree reading;  /* ranges of fetches that are not done */
    struct chm_link finished; /* fetches whose owners have not been told yet */
    struct chm_hole *holes_free, *holes;
    struct chm_link queued;  /* requests that wait for window space */
    struct chm_link quiesce; /* requests that wait for zombies to end */
    bool window_changed;     /* space came free or somebody queued: the queue wants serving */
    uint32_t zombies;        /* released requests and slots with I/O in flight */
    uint64_t seq;            /* order of arrival of reads */
    uint64_t now_ns;         /* medium clock, read once per step and command */
    atomic_bool degraded;    /* read by any thread */
    bool closing;
    int32_t dead; /* -errno: the medium itself failed */
    void *block;  /* one allocation for all tables */
    uint64_t block_bytes;
    struct chm_stats stats;
};

/* I/Os that the firmware may have in flight at once. */
uint32_t chm_fw_depth(const struct chm_options *o);
int chm_fw_open(const struct chm_fw_args *args, struct chm_fw **out, struct chm_error *err);
/* Could a command on this range be carried out? 0, -EINVAL, -ERANGE, for staging also -E2BIG, and
 * -EOPNOTSUPP where the policy has no staging. Looks only at what is fixed at open, so that any
 * thread may ask. */
int chm_fw_check_range(const struct chm_fw *fw, uint64_t addr, uint64_t len);
int chm_fw_check_issue(const struct chm_fw *fw, uint64_t addr, uint64_t len);
int chm_fw_check_read(const struct chm_fw *fw, uint64_t addr, uint64_t len);
int chm_fw_check_write(const struct chm_fw *fw, uint64_t addr, uint64_t len);
/* Read the clock; commands that follow are run at that time. A step does so by itself. */
void chm_fw_tick(struct chm_fw *fw);
/* Run a command. Never waits. */
void chm_fw_exec(struct chm_fw *fw, const struct chm_cmd *cmd);
/* Do what can be done; wait for the medium until until_ns (0: do not wait) if nothing ended
 * meanwhile. Returns how many cells are in `ended`. */
int chm_fw_step(struct chm_fw *fw, uint64_t until_ns);
/* Does the medium hold I/Os? */
bool chm_fw_in_flight(const struct chm_fw *fw);
/* True if nothing is in flight and no timer is set: waiting is in vain (virtual time). */
bool chm_fw_stuck(const struct chm_fw *fw);
/* Cancel reads, write out and barrier what was committed, until deadline_ns (medium clock). 0,
 * -EIO, -ETIMEDOUT. The medium stays open. */
int chm_fw_shutdown(struct chm_fw *fw, uint64_t deadline_ns);
/* Free the tables. Only when the medium is closed. */
void chm_fw_free(struct chm_fw *fw);

/* Within the firmware: give a request its result (device.c). */
void chm_fwreq_end(struct chm_fw *fw, struct chm_fwreq *req, int32_t res);
/* Region that holds [buf, buf + len), or CHM_NO_REGION. */
int32_t chm_fw_region(const struct chm_fw *fw, const uint8_t *buf, uint64_t len);

#endif
