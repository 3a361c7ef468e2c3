/* SPDX-License-Identifier: Apache-2.0 */
/* policy.c - see policy.h. A new policy is one more entry in one of the two lists. */
#include "fw/policy.h"

#include <string.h>

#include "fw/device.h"
#include "fw/request.h"
#include "util/util.h"

/* ---- the window */

static void window_run(struct chm_fw *fw)
{
    (void)fw; /* all that it can do it does when something ends */
}

static bool window_take(struct chm_fw *fw, struct chm_fio *fio)
{
    return !chm_list_empty(&fw->wbuf.pending) && chm_wbuf_take(fw, fio, fw->opts.flush_unit);
}

static uint64_t window_settled(const struct chm_fw *fw)
{
    return chm_wbuf_settled(&fw->wbuf);
}

static const struct chm_cache_ops WINDOW = {
    .prefetch = true,
    .read = chm_request_read,
    .cancel = chm_request_read_cancel,
    .commit = chm_wbuf_commit,
    .trim = chm_wbuf_trim,
    .run = window_run,
    .take = window_take,
    .settled = window_settled,
};

/* ---- lines */

static const struct chm_cache_ops LINES = {
    .prefetch = false,
    .read = chm_cache_read,
    .cancel = chm_cache_cancel,
    .commit = chm_cache_commit,
    .trim = chm_cache_trim,
    .run = chm_cache_run,
    .take = chm_cache_take,
    .settled = chm_cache_settled,
};

/* ---- the lists */

static const struct chm_policy POLICIES[] = {
    {"window", &WINDOW, NULL},
    {"lru", &LINES, &chm_replace_lru},
    {"fifo", &LINES, &chm_replace_fifo},
    {"clock", &LINES, &chm_replace_clock},
};

static const struct chm_flush_ops *const FLUSH_POLICIES[] = {
    &chm_flush_read_first,
    &chm_flush_fcfs,
    &chm_flush_idle_only,
};

const char *chm_policy_name(uint32_t i)
{
    return i < CHM_COUNT(POLICIES) ? POLICIES[i].name : NULL;
}

const char *chm_flush_policy_name(uint32_t i)
{
    return i < CHM_COUNT(FLUSH_POLICIES) ? FLUSH_POLICIES[i]->name : NULL;
}

const struct chm_policy *chm_policy_find(const char *name)
{
    for (uint32_t i = 0; i < CHM_COUNT(POLICIES); i++) {
        if (strcmp(name, POLICIES[i].name) == 0) {
            return &POLICIES[i];
        }
    }
    return NULL;
}

const struct chm_flush_ops *chm_flush_policy_find(const char *name)
{
    for (uint32_t i = 0; i < CHM_COUNT(FLUSH_POLICIES); i++) {
        if (strcmp(name, FLUSH_POLICIES[i]->name) == 0) {
            return FLUSH_POLICIES[i];
        }
    }
    return NULL;
}
