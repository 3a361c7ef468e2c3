/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.h - the DRAM window: slots in runs of frames, and runs kept for streams.
 *
 * Slot:  FREE -> READING -> READY -> FREE          refs > 0 all the way
 *                   |          (last ref goes)
 *                   +-> ORPHAN (last ref gone, I/O in flight) -> FREE
 *                   +-> FAILED -> FREE
 *
 * A slot that holds current bytes (READING or READY, nothing of its range written since) stands in
 * `findable`, where a second request for the range finds it. A slot in a stream's reserved run
 * never does: its space must come back when the stream lets go, not when others do.
 *
 * Runs of at least a frame are whole frames, first fit. Shorter ones share frames ("shared" frames
 * are cut into granules), so that small objects do not cost a frame each.
 */
#ifndef CHM_WINDOW_H
#define CHM_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "fw/fetch.h"
#include "util/list.h"
#include "util/runs.h"
#include "util/tree.h"

enum chm_slot_state { SLOT_FREE, SLOT_READING, SLOT_READY, SLOT_FAILED, SLOT_ORPHAN };

enum { CHM_RESERVE_RUNS = 2 };

struct chm_reserve {
    uint64_t run[CHM_RESERVE_RUNS]; /* offset in memory */
    uint64_t run_bytes;
    uint32_t runs; /* 1 or 2 */
    uint32_t busy; /* bit i: run i holds a slot */
    bool closing;  /* freed when busy becomes 0 */
    struct chm_link free_link;
};

struct chm_slot {
    struct chm_node find;     /* addr .. addr + len, in window->findable */
    struct chm_fetch fetch;   /* addr, len, dest */
    struct chm_link requests; /* attached requests */
    struct chm_link link;     /* on the free list */
    uint64_t off, bytes;      /* run in memory, as taken */
    struct chm_reserve *reserve;
    uint32_t reserve_run;
    uint32_t refs;
    uint8_t state;
};

struct chm_window {
    uint64_t base, bytes; /* in memory */
    uint64_t frame_bytes, granule;
    struct chm_runs frames;
    struct chm_runs granules; /* only those in shared frames are tracked here */
    uint32_t *shared_used;    /* per frame: granules in use, 0: not a shared frame */
    uint64_t used_bytes;      /* taken: by slots or kept for streams */
    uint64_t reserved_bytes;  /* of these, kept for streams */
    uint64_t pinned_bytes;    /* of these, held by a slot */
    uint64_t peak_bytes;      /* most used_bytes ever */
    struct chm_tree findable;
    struct chm_slot *slots;
    uint32_t slots_max;
    struct chm_link free_slots;
    struct chm_reserve *reserves;
    struct chm_link free_reserves;
};

/* Space for a run of len bytes: its offset in memory, or CHM_RUNS_NONE. */
uint64_t chm_window_take(struct chm_window *w, uint64_t len);
void chm_window_give(struct chm_window *w, uint64_t off, uint64_t len);
/* What a run of len bytes really takes. */
uint64_t chm_window_cost(const struct chm_window *w, uint64_t len);
/* Largest run that could be taken now. */
uint64_t chm_window_largest(const struct chm_window *w);

/* A free slot with space for len bytes, out of reserve r (may be NULL: out of the window). NULL: no
 * room. */
struct chm_slot *chm_slot_new(struct chm_window *w, struct chm_reserve *r, uint64_t len);
/* The slot and its space are free again. Asserts that nothing refers to it and no I/O is in flight.
 */
void chm_slot_free(struct chm_window *w, struct chm_slot *s);
/* A findable slot that has all of [addr, addr + len), or NULL. */
struct chm_slot *chm_slot_find(struct chm_window *w, uint64_t addr, uint64_t len);
/* The range was written: nobody finds slots that overlap it any more. */
void chm_window_forget(struct chm_window *w, uint64_t addr, uint64_t len);

/* n runs (1 or 2) of run_bytes for a stream, or NULL. */
struct chm_reserve *chm_reserve_new(struct chm_window *w, uint64_t run_bytes, uint32_t n);
/* No longer wanted: its idle runs are free now, busy ones when their slots are. */
void chm_reserve_close(struct chm_window *w, struct chm_reserve *r);

#endif
