/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.c - a treap of intervals with parent pointers and a subtree maximum.
 *
 * A node is out (linked false) or in a tree; insert and remove are the arrows. The firmware calls
 * it from its one thread. Invariants while a node is in:
 *  - in order: starts never decrease, and equal starts are in the order of insertion;
 *  - no node has a higher priority than its parent, which keeps the expected depth logarithmic
 *    whatever the order of the starts;
 *  - aug_max is the largest aug of the node and everything below it.
 * Both searches are one question, "the first node in order with aug >= want", for which aug_max
 * tells at each step whether a subtree holds an answer.
 */
#include "util/tree.h"

#include <stddef.h>

#include "util/util.h"

static uint64_t subtree_max(const struct chm_node *n)
{
    return n ? n->aug_max : 0;
}

static uint64_t node_max(const struct chm_node *n)
{
    return chm_max(n->aug, chm_max(subtree_max(n->left), subtree_max(n->right)));
}

static bool subtree_has(const struct chm_node *n, uint64_t want)
{
    return n && n->aug_max >= want;
}

/* Recompute upwards, as far as anything changes: above an unchanged node nothing can. */
static void repair(struct chm_node *n)
{
    for (; n; n = n->parent) {
        uint64_t m = node_max(n);

        if (n->aug_max == m) {
            return;
        }
        n->aug_max = m;
    }
}

/* Let `by` (or nothing) hang where n hangs. */
static void replace(struct chm_tree *t, struct chm_node *n, struct chm_node *by)
{
    struct chm_node *p = n->parent;

    if (!p) {
        t->root = by;
    } else if (p->left == n) {
        p->left = by;
    } else {
        p->right = by;
    }
    if (by) {
        by->parent = p;
    }
}

/* n takes the place of its parent, which becomes its child. The order stays as it is. */
static void rotate_up(struct chm_tree *t, struct chm_node *n)
{
    struct chm_node *p = n->parent, *inner;

    replace(t, p, n);
    if (p->left == n) {
        inner = n->right;
        p->left = inner;
        n->right = p;
    } else {
        inner = n->left;
        p->right = inner;
        n->left = p;
    }
    p->parent = n;
    if (inner) {
        inner->parent = p;
    }
    n->aug_max = p->aug_max; /* the same nodes are below */
    p->aug_max = node_max(p);
}

void chm_tree_init(struct chm_tree *t)
{
    *t = (struct chm_tree){.seed = 1};
}

void chm_tree_insert(struct chm_tree *t, struct chm_node *n)
{
    struct chm_node **at = &t->root, *parent = NULL;

    CHM_ASSERT(!n->linked && n->start < n->end);
    while (*at) {
        parent = *at;
        parent->aug_max = chm_max(parent->aug_max, n->aug);
        at = n->start < parent->start ? &parent->left : &parent->right;
    }
    *at = n;
    n->left = n->right = NULL;
    n->parent = parent;
    n->aug_max = n->aug;
    n->priority = (uint32_t)(chm_random(&t->seed) >> 32);
    n->linked = true;
    t->count++;
    while (n->parent && n->parent->priority < n->priority) {
        rotate_up(t, n);
    }
}

void chm_tree_remove(struct chm_tree *t, struct chm_node *n)
{
    struct chm_node *parent;

    if (!n->linked) {
        return;
    }
    /* Each turn brings n one level down, so this ends above the leaves at the latest. */
    while (n->left && n->right) {
        rotate_up(t, n->left->priority > n->right->priority ? n->left : n->right);
    }
    parent = n->parent;
    replace(t, n, n->left ? n->left : n->right);
    repair(parent);
    n->left = n->right = n->parent = NULL;
    n->linked = false;
    CHM_ASSERT(t->count > 0);
    t->count--;
}

void chm_tree_refresh(struct chm_node *n)
{
    CHM_ASSERT(n->linked && n->start < n->end);
    repair(n);
}

/* The first node in order below n (n included) with aug >= want. There is one. */
static struct chm_node *first_with(struct chm_node *n, uint64_t want)
{
    for (;;) {
        if (subtree_has(n->left, want)) {
            n = n->left;
        } else if (n->aug >= want) {
            return n;
        } else {
            n = n->right;
            CHM_ASSERT(subtree_has(n, want));
        }
    }
}

/* The next node in order after n with aug >= want, or NULL; may stop looking at start `before`. */
static struct chm_node *next_with(struct chm_node *n, uint64_t want, uint64_t before)
{
    struct chm_node *p;

    if (subtree_has(n->right, want)) {
        return first_with(n->right, want);
    }
    for (p = n->parent; p; n = p, p = n->parent) {
        if (p->left != n) {
            continue;
        }
        if (p->start >= before) {
            return NULL;
        }
        if (p->aug >= want) {
            return p;
        }
        if (subtree_has(p->right, want)) {
            return first_with(p->right, want);
        }
    }
    return NULL;
}

/*
 * An interval that ends after `start` touches the range unless it begins past it; the first in
 * order that ends after it decides, because all later ones begin no earlier.
 */
struct chm_node *chm_tree_overlap(struct chm_tree *t, uint64_t start, uint64_t end)
{
    struct chm_node *n;

    if (start >= end || !subtree_has(t->root, start + 1)) {
        return NULL;
    }
    n = first_with(t->root, start + 1);
    return n->start < end ? n : NULL;
}

struct chm_node *chm_tree_overlap_next(struct chm_node *n, uint64_t start, uint64_t end)
{
    if (start >= end) {
        return NULL;
    }
    n = next_with(n, start + 1, end);
    return n && n->start < end ? n : NULL;
}

struct chm_node *chm_tree_fit(struct chm_tree *t, uint64_t want)
{
    return subtree_has(t->root, want) ? first_with(t->root, want) : NULL;
}

struct chm_node *chm_tree_first(struct chm_tree *t)
{
    struct chm_node *n = t->root;

    while (n && n->left) {
        n = n->left;
    }
    return n;
}

struct chm_node *chm_tree_next(struct chm_node *n)
{
    if (n->right) {
        for (n = n->right; n->left; n = n->left) {
        }
        return n;
    }
    while (n->parent && n->parent->right == n) {
        n = n->parent;
    }
    return n->parent;
}

struct chm_node *chm_tree_prev(struct chm_node *n)
{
    if (n->left) {
        for (n = n->left; n->right; n = n->right) {
        }
        return n;
    }
    while (n->parent && n->parent->left == n) {
        n = n->parent;
    }
    return n->parent;
}

struct chm_node *chm_tree_floor(struct chm_tree *t, uint64_t at)
{
    struct chm_node *n = t->root, *best = NULL;

    while (n) {
        if (n->start <= at) {
            best = n;
            n = n->right;
        } else {
            n = n->left;
        }
    }
    return best;
}
