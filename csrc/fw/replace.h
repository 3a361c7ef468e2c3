/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replace.h - which line gives way: the replacement policies of the transparent device cache.
 *
 * A policy keeps set->order, and line->mark if it wants a byte for each line; nothing else. All of
 * its functions are called by the firmware's one thread, and none may allocate or wait.
 */
#ifndef CHM_REPLACE_H
#define CHM_REPLACE_H

#include "fw/line.h"

struct chm_replace_ops {
    const char *name;
    /* The line, which is in no list, holds something new from now on: put it into set->order. */
    void (*enter)(struct chm_set *set, struct chm_line *line);
    /* An access found the line. */
    void (*touch)(struct chm_set *set, struct chm_line *line);
    /* The line of set->order that gives way; only one for which chm_line_may_go holds. NULL: there
     * is none now. The caller takes it out of the list. */
    struct chm_line *(*victim)(struct chm_set *set);
};

extern const struct chm_replace_ops chm_replace_lru;   /* longest not used */
extern const struct chm_replace_ops chm_replace_fifo;  /* longest there */
extern const struct chm_replace_ops chm_replace_clock; /* longest there, but used ones once more */

/* For policies: the first line of the order that may go, and putting a line at the end of it. */
struct chm_line *chm_replace_first(struct chm_set *set);
void chm_replace_append(struct chm_set *set, struct chm_line *line);

#endif
