/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - the DRAM of the device: one sealed memfd that holds window and write buffer.
 *
 * One object, so that another process can map it later. It is not inherited by children (DONTFORK),
 * and a page beside it that children see as zeros tells them that they are children. A helper
 * thread touches the memory in the background, chunk by chunk, and says in the region table how far
 * it is.
 */
#ifndef CHM_MEMORY_H
#define CHM_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "chm.h"
#include "media/medium.h"

struct chm_memory {
    uint8_t *base;
    uint64_t bytes;      /* multiple of page_bytes */
    uint64_t page_bytes; /* 2 MiB with huge pages, else 4096 */
    int fd;
    bool huge, locked;
    bool collapse;              /* try to make small pages huge ones while touching them */
    _Atomic uint64_t collapsed; /* bytes for which that worked */
    char note[96];              /* why huge pages or locking are not in force, or "" */

    struct chm_region *region; /* grows as the helper goes; NULL: nobody wants to know */
    pthread_t helper;
    bool helper_runs;
    atomic_bool stop;
    _Atomic uint64_t touched, touch_ns;

    uint32_t *parent_mark; /* non-zero in the process that opened, zero in its children */
};

/* huge_pages, lock_memory as in chm_options. sparse: most of it will never be touched, so it may be
 * more than the machine has. bytes is rounded up to whole pages. -ENOMEM with a reason. */
int chm_memory_open(struct chm_memory *m, uint64_t bytes, uint32_t huge_pages, bool lock,
                    bool sparse, struct chm_error *err);
/* Touch all of it: in this thread (wait) or by a helper. */
int chm_memory_prefault(struct chm_memory *m, struct chm_region *region, bool wait);
/* Stop the helper and unmap. keep: leave the mapping alone (the system may still write to it). */
void chm_memory_close(struct chm_memory *m, bool keep);
/* False in a child of the process that opened it. */
bool chm_memory_is_parent(const struct chm_memory *m);

#endif
