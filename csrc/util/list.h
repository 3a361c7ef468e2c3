/* SPDX-License-Identifier: Apache-2.0 */
/* list.h - an intrusive doubly linked list with a sentinel; a node is on at most one list. */
#ifndef CHM_LIST_H
#define CHM_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct chm_link {
    struct chm_link *prev, *next;
};

static inline void chm_list_init(struct chm_link *head)
{
    head->prev = head->next = head;
}

static inline bool chm_list_empty(const struct chm_link *head)
{
    return head->next == head;
}

static inline void chm_list_insert_before(struct chm_link *at, struct chm_link *node)
{
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}

static inline void chm_list_push(struct chm_link *head, struct chm_link *node)
{
    chm_list_insert_before(head, node);
}

/* Take the node off its list; harmless if it is on none. */
static inline void chm_list_remove(struct chm_link *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->prev = node->next = node;
}

/* First node, or NULL. */
static inline struct chm_link *chm_list_first(struct chm_link *head)
{
    return head->next == head ? NULL : head->next;
}

/* The node after `node`, or NULL at the end of the list. */
static inline struct chm_link *chm_list_next(struct chm_link *head, struct chm_link *node)
{
    return node->next == head ? NULL : node->next;
}

#endif
