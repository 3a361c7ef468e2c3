/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uring_regions.c - which memory the ring knows as registered buffers.
 *
 * The owner's table (struct chm_regions) says where memory is and how far it is ready. Here each of
 * its regions is cut into chunks of CHM_REGION_CHUNK, counted from its base; chunk k has slot
 * `slot + k` of the ring's sparse buffer table, and chunks are registered from the front as `ready`
 * passes their end:
 *
 *     unknown -> taken (slots reserved, growing) -> registered up to the end
 *         ^------------- dropped or changed by the owner ---------------'
 *
 * Called from the submitting thread only. Invariant: a slot that is registered belongs to exactly
 * one region whose base and len are those in the table, or were when submit() last looked.
 */
#include <errno.h>
#include <stdlib.h>

#include "media/media_uring.h"
#include "util/util.h"

int chm_uring_regions_open(struct chm_uring_regions *r, struct io_uring *ring,
                           struct chm_regions *table)
{
    int rc;

    *r = (struct chm_uring_regions){.ring = ring};
    rc = io_uring_register_buffers_sparse(ring, CHM_URING_SLOTS);
    if (rc < 0) {
        return rc;
    }
    r->slot_words = malloc(chm_runs_bytes(CHM_URING_SLOTS));
    if (!r->slot_words) {
        return -ENOMEM;
    }
    chm_runs_init(&r->slots, r->slot_words, CHM_URING_SLOTS);
    r->table = table;
    r->version = atomic_load(&table->version) - 1; /* so that the first update looks */
    return 0;
}

void chm_uring_regions_close(struct chm_uring_regions *r)
{
    free(r->slot_words);
}

/* Put one chunk (or nothing, with base NULL) into a slot of the ring's table. */
static int slot_set(struct chm_uring_regions *r, uint32_t slot, void *base, uint64_t len)
{
    struct iovec iov = {.iov_base = base, .iov_len = len};
    __u64 tag = 0;
    int rc = io_uring_register_buffers_update_tag(r->ring, slot, &iov, &tag, 1);

    return rc < 0 ? rc : 0;
}

static void region_drop(struct chm_uring_regions *r, uint32_t i)
{
    struct chm_uring_region *a = &r->at[i];

    for (uint32_t k = 0; k < a->registered; k++) {
        (void)slot_set(r, a->slot + k, NULL, 0); /* clearing a slot of ours cannot be refused */
    }
    if (a->chunks) {
        chm_runs_give(&r->slots, a->slot, a->chunks);
    }
    *a = (struct chm_uring_region){0};
    r->growing &= ~(UINT64_C(1) << i);
}

static void region_take(struct chm_uring_regions *r, uint32_t i, uint8_t *base, uint64_t len)
{
    uint64_t chunks = chm_round_up(len, CHM_REGION_CHUNK) / CHM_REGION_CHUNK;
    uint64_t slot = CHM_RUNS_NONE;

    if (chunks <= CHM_URING_SLOTS) {
        slot = chm_runs_take(&r->slots, chunks, 0);
    }
    r->at[i] = (struct chm_uring_region){.base = base, .len = len};
    if (slot != CHM_RUNS_NONE) {
        r->at[i].slot = (uint32_t)slot;
        r->at[i].chunks = (uint32_t)chunks;
        r->growing |= UINT64_C(1) << i;
    }
}

static void table_follow(struct chm_uring_regions *r)
{
    for (uint32_t i = 0; i < CHM_REGIONS_MAX; i++) {
        uint64_t len = atomic_load(&r->table->at[i].len);
        uint8_t *base = atomic_load(&r->table->at[i].base);
        if (r->at[i].len == len && (len == 0 || r->at[i].base == base)) {
            continue;
        }
        region_drop(r, i);
        if (len > 0 && !r->refused) {
            region_take(r, i, base, len);
        }
    }
}

/* Register the next chunk of region i if it is ready. 1: did, 0: not ready, or -errno. */
static int region_grow(struct chm_uring_regions *r, uint32_t i)
{
    struct chm_uring_region *a = &r->at[i];
    uint64_t from = (uint64_t)a->registered * CHM_REGION_CHUNK;
    uint64_t to = chm_min(a->len, from + CHM_REGION_CHUNK);
    int rc;

    if (atomic_load(&r->table->at[i].ready) < to) {
        return 0;
    }
    rc = slot_set(r, a->slot + a->registered, a->base + from, to - from);
    if (rc) {
        return rc;
    }
    a->registered++;
    if (a->registered == a->chunks) {
        r->growing &= ~(UINT64_C(1) << i);
    }
    return 1;
}

int chm_uring_regions_update(struct chm_uring_regions *r)
{
    uint32_t version;
    int rc = 0;

    if (!r->table) {
        return 0;
    }
    version = atomic_load(&r->table->version);
    if (version != r->version) {
        r->version = version;
        table_follow(r);
    }
    for (uint64_t left = r->growing; left && rc == 0; left &= left - 1) {
        rc = region_grow(r, (uint32_t)__builtin_ctzll(left));
    }
    if (rc >= 0) {
        return 0;
    }
    r->refused = rc;
    r->growing = 0;
    return rc;
}

int chm_uring_regions_slot(const struct chm_uring_regions *r, const struct chm_io *io)
{
    const struct chm_uring_region *a;
    uint64_t from, to;

    if (io->region < 0 || io->region >= CHM_REGIONS_MAX) {
        return -1;
    }
    a = &r->at[io->region];
    if ((uint8_t *)io->buf < a->base) {
        return -1;
    }
    from = (uint64_t)((uint8_t *)io->buf - a->base);
    to = from + io->len;
    if (to > a->len || from / CHM_REGION_CHUNK >= a->registered ||
        from / CHM_REGION_CHUNK != (to - 1) / CHM_REGION_CHUNK) {
        return -1;
    }
    return (int)(a->slot + from / CHM_REGION_CHUNK);
}
