/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replace_clock.c - clock: the order of fifo, but a line that was used since it was last looked at
 * goes to the end of it once more instead of giving way.
 *
 * The worked example of docs/policies.md. The look ends: a line that is passed over for its mark
 * loses it, so the second round finds one that may go, if there is any.
 */
#include "fw/replace.h"

#include "util/util.h"

static void clock_enter(struct chm_set *set, struct chm_line *line)
{
    line->mark = 0;
    chm_replace_append(set, line);
}

static void clock_touch(struct chm_set *set, struct chm_line *line)
{
    (void)set;
    line->mark = 1;
}

static struct chm_line *clock_victim(struct chm_set *set)
{
    struct chm_link *link = chm_list_first(&set->order), *next;
    struct chm_line *line;

    while (link) {
        line = CHM_CONTAINER(link, struct chm_line, order);
        next = chm_list_next(&set->order, link);
        if (chm_line_may_go(line) && !line->mark) {
            return line;
        }
        if (chm_line_may_go(line)) {
            line->mark = 0;
            chm_list_remove(link);
            chm_list_push(&set->order, link);
            next = next ? next : link; /* it was the last one, and is now the next to be seen */
        }
        link = next;
    }
    return NULL;
}

const struct chm_replace_ops chm_replace_clock = {
    .name = "clock",
    .enter = clock_enter,
    .touch = clock_touch,
    .victim = clock_victim,
};
