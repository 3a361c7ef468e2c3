/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.h - an intrusive ordered set of intervals [start, end) of addresses.
 *
 * A treap with parent pointers; each node knows the largest `aug` below it, which serves two uses:
 *  - overlap: aug = end, and chm_tree_overlap finds the intervals that touch a range (intervals may
 *    overlap each other);
 *  - first fit: aug = length of a free extent, and chm_tree_fit finds the lowest one that is large
 * enough. Shapes depend only on the order of operations, so runs repeat. No allocation, no
 * recursion.
 */
#ifndef CHM_TREE_H
#define CHM_TREE_H

#include <stdbool.h>
#include <stdint.h>

struct chm_node {
    uint64_t start, end; /* set by the caller before insert; start < end */
    uint64_t aug;        /* set by the caller before insert: end, or end - start */
    uint64_t aug_max;    /* largest aug in the subtree */
    struct chm_node *left, *right, *parent;
    uint32_t priority;
    bool linked; /* in a tree; must be false before insert (zeroed memory is fine) */
};

struct chm_tree {
    struct chm_node *root;
    uint64_t seed;  /* of the priorities */
    uint64_t count; /* nodes */
};

void chm_tree_init(struct chm_tree *t);
/* Nodes of equal start are kept in the order of insertion. */
void chm_tree_insert(struct chm_tree *t, struct chm_node *n);
/* Harmless if n is in no tree. */
void chm_tree_remove(struct chm_tree *t, struct chm_node *n);
/* start, end or aug of n changed without changing its place in the order: repair aug_max upwards.
 */
void chm_tree_refresh(struct chm_node *n);

/* Overlap use: the first node, in order of start, that touches [start, end), or NULL. */
struct chm_node *chm_tree_overlap(struct chm_tree *t, uint64_t start, uint64_t end);
/* The next one after n that touches [start, end), or NULL. */
struct chm_node *chm_tree_overlap_next(struct chm_node *n, uint64_t start, uint64_t end);
/* First-fit use: the node of lowest start with aug >= want, or NULL. */
struct chm_node *chm_tree_fit(struct chm_tree *t, uint64_t want);

/* Neighbours in order, or NULL. */
struct chm_node *chm_tree_first(struct chm_tree *t);
struct chm_node *chm_tree_next(struct chm_node *n);
struct chm_node *chm_tree_prev(struct chm_node *n);
/* The last node with start <= at, or NULL. */
struct chm_node *chm_tree_floor(struct chm_tree *t, uint64_t at);

#endif
