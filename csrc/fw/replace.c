/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replace.c - lru and fifo: one list in order of entry, in which lru moves what is used to the end.
 *
 * Lines that may not go now are passed over. There are no more of these than transfers in flight,
 * which bounds the look.
 */
#include "fw/replace.h"

#include "util/util.h"

static struct chm_line *line_of(struct chm_link *link)
{
    return CHM_CONTAINER(link, struct chm_line, order);
}

struct chm_line *chm_replace_first(struct chm_set *set)
{
    struct chm_link *link = chm_list_first(&set->order);

    while (link && !chm_line_may_go(line_of(link))) {
        link = chm_list_next(&set->order, link);
    }
    return link ? line_of(link) : NULL;
}

void chm_replace_append(struct chm_set *set, struct chm_line *line)
{
    chm_list_push(&set->order, &line->order);
}

static void lru_touch(struct chm_set *set, struct chm_line *line)
{
    if (set->order.prev != &line->order) {
        chm_list_remove(&line->order);
        chm_list_push(&set->order, &line->order);
    }
}

static void fifo_touch(struct chm_set *set, struct chm_line *line)
{
    (void)set;
    (void)line;
}

const struct chm_replace_ops chm_replace_lru = {
    .name = "lru",
    .enter = chm_replace_append,
    .touch = lru_touch,
    .victim = chm_replace_first,
};

const struct chm_replace_ops chm_replace_fifo = {
    .name = "fifo",
    .enter = chm_replace_append,
    .touch = fifo_touch,
    .victim = chm_replace_first,
};
