/* SPDX-License-Identifier: Apache-2.0 */
/* extents.c - see extents.h. */
#include "store/extents.h"

#include <errno.h>
#include <sys/mman.h>

#include "util/util.h"

static struct chm_extent *extent_new(struct chm_extents *e)
{
    struct chm_extent *x = e->spare;

    if (x) {
        e->spare = x->next_free;
        return x;
    }
    CHM_ASSERT(e->touched < e->max);
    return &e->pool[e->touched++];
}

static void extent_drop(struct chm_extents *e, struct chm_extent *x)
{
    chm_tree_remove(&e->free, &x->node);
    x->next_free = e->spare;
    e->spare = x;
}

static void extent_insert(struct chm_extents *e, uint64_t start, uint64_t end)
{
    struct chm_extent *x = extent_new(e);

    x->node = (struct chm_node){.start = start, .end = end, .aug = end - start};
    chm_tree_insert(&e->free, &x->node);
}

int chm_extents_open(struct chm_extents *e, uint64_t base, uint64_t len, uint64_t max)
{
    *e = (struct chm_extents){.max = max, .free_bytes = len};
    e->pool = mmap(NULL, max * sizeof(*e->pool), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (e->pool == MAP_FAILED) {
        return -ENOMEM;
    }
    chm_tree_init(&e->free);
    extent_insert(e, base, base + len);
    return 0;
}

void chm_extents_close(struct chm_extents *e)
{
    munmap(e->pool, e->max * sizeof(*e->pool));
}

int chm_extents_take(struct chm_extents *e, uint64_t len, uint64_t *addr)
{
    struct chm_node *n = chm_tree_fit(&e->free, len);

    if (!n) {
        return -ENOSPC;
    }
    *addr = n->start;
    e->free_bytes -= len;
    if (n->end - n->start == len) {
        extent_drop(e, CHM_CONTAINER(n, struct chm_extent, node));
        return 0;
    }
    n->start += len;
    n->aug = n->end - n->start;
    chm_tree_refresh(n);
    return 0;
}

void chm_extents_give(struct chm_extents *e, uint64_t addr, uint64_t len)
{
    struct chm_node *before = chm_tree_floor(&e->free, addr);
    struct chm_node *after = before ? chm_tree_next(before) : chm_tree_first(&e->free);
    uint64_t start = addr, end = addr + len;

    CHM_ASSERT((!before || before->end <= addr) && (!after || after->start >= end));
    e->free_bytes += len;
    if (before && before->end == addr) {
        start = before->start;
        extent_drop(e, CHM_CONTAINER(before, struct chm_extent, node));
    }
    if (after && after->start == end) {
        end = after->end;
        extent_drop(e, CHM_CONTAINER(after, struct chm_extent, node));
    }
    extent_insert(e, start, end);
}

bool chm_extents_claim(struct chm_extents *e, uint64_t addr, uint64_t len)
{
    struct chm_node *n = chm_tree_floor(&e->free, addr);
    uint64_t end;

    if (!n || n->end < addr + len) {
        return false;
    }
    end = n->end;
    e->free_bytes -= len;
    if (n->start == addr && end == addr + len) {
        extent_drop(e, CHM_CONTAINER(n, struct chm_extent, node));
        return true;
    }
    if (n->start == addr) {
        n->start += len;
    } else {
        n->end = addr;
    }
    n->aug = n->end - n->start;
    chm_tree_refresh(n);
    if (n->end == addr && end > addr + len) {
        extent_insert(e, addr + len, end);
    }
    return true;
}

uint64_t chm_extents_largest(const struct chm_extents *e)
{
    return e->free.root ? e->free.root->aug_max : 0;
}
