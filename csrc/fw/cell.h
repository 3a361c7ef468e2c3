/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cell.h - what a client sees of its request, and the commands it sends.
 *
 * Cells are an array that could lie in shared memory. A handle is (gen << 32) | (index + 1); gen
 * moves on when the handle is given up, so an old handle never matches.
 *
 *   CELL_FREE -> CELL_SENT -> CELL_PENDING -> CELL_READY
 *                    |             |              | (nobody looked in time)
 *                    +-------------+--> CELL_FAILED / CELL_EXPIRED
 *
 * The client moves FREE -> SENT, sets the CLAIMED bit when it looks at a result and the GIVEN_UP
 * bit when the handle dies, so that the word changes under those who sleep on it; the firmware does
 * the rest. A result, once claimed, never changes: the firmware expires only what has no CLAIMED
 * bit.
 */
#ifndef CHM_CELL_H
#define CHM_CELL_H

#include <stdatomic.h>
#include <stdint.h>

enum chm_cell_state {
    CELL_FREE = 0,
    CELL_SENT = 1,    /* on its way to the firmware */
    CELL_PENDING = 2, /* the firmware has taken it */
    CELL_READY = 3,
    CELL_FAILED = 4,
    CELL_EXPIRED = 5,
    CELL_STATE_MASK = 0xff,
    CELL_CLAIMED = 0x100,
    CELL_GIVEN_UP = 0x200,
};

#define CHM_CELL_NO_DATA UINT64_MAX

struct chm_cell {
    _Atomic uint32_t state;
    _Atomic uint32_t gen;
    _Atomic uint64_t ready;    /* bytes there from the front */
    _Atomic uint64_t data_off; /* in the device's memory; CHM_CELL_NO_DATA: nowhere yet */
    uint64_t len;              /* written by the client before SENT */
    _Atomic int32_t res;       /* -errno of CELL_FAILED */
    /* the door's own */
    _Atomic uint32_t waiters;    /* threads that sleep on state */
    _Atomic uint64_t deliver_ns; /* when the host link has delivered; 0: not asked yet */
    _Atomic uint32_t next_free;
    _Atomic uint32_t told; /* chm_reap has reported it */
    _Atomic uint32_t kind; /* enum chm_op that began it */
} __attribute__((aligned(64)));

enum chm_op {
    CHM_OP_ISSUE, /* stage addr, len */
    CHM_OP_READ,  /* demand read of addr, len into ptr */
    CHM_OP_BEGIN, /* room in the write buffer for addr, len */
    CHM_OP_COMMIT,
    CHM_OP_ABORT,
    CHM_OP_FLUSH,
    CHM_OP_TRIM,
    CHM_OP_RESERVE, /* addr runs of len bytes of window, kept until released */
    CHM_OP_RELEASE, /* of the cell, whatever it is */
    CHM_OP_STATS,   /* copy the counters to ptr */
    CHM_OP_CAPS,    /* copy the medium's caps to ptr: a note may be added at any submit */
    CHM_OP_QUIESCE, /* ends when no released request has I/O in flight */
    CHM_OP_REGISTER,
    CHM_OP_UNREGISTER,
};

enum { CHM_CMD_NO_CELL = UINT32_MAX };

/* 56 bytes, so that it fits a queue entry. The firmware trusts nothing in it. */
struct chm_cmd {
    uint8_t op;
    uint8_t flags; /* enum chm_issue_flag */
    uint16_t pad;
    uint32_t cell;
    uint64_t addr, len;
    uint64_t ptr;           /* address in the caller, or for ISSUE the handle of a reservation */
    uint64_t not_before_ns; /* absolute */
    uint64_t expire_ns;     /* absolute */
    uint64_t queue_ns;      /* absolute */
};

_Static_assert(sizeof(struct chm_cmd) == 56, "a command fits a queue entry");
_Static_assert(sizeof(struct chm_cell) == 64, "a cell is one cache line");

#endif
