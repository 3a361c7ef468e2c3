/* SPDX-License-Identifier: Apache-2.0 */
/*
 * media.c - builds the stack of media that chm_options ask for. Called once, at open.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "media/media.h"
#include "util/util.h"

/* io_uring, or threads with the reason why not. */
static int auto_open(const struct chm_media_args *args, struct chm_medium **out,
                     struct chm_error *err)
{
    struct chm_error why = {0};
    int rc = chm_media_uring_open(args, out, &why);

    if (rc == 0) {
        return 0;
    }
    rc = chm_media_threads_open(args, out, err);
    if (rc == 0) {
        (void)snprintf((*out)->caps.note, sizeof((*out)->caps.note), "threads: %.180s", why.text);
    }
    return rc;
}

static int base_open(const struct chm_media_args *args, struct chm_medium **out,
                     struct chm_error *err)
{
    static const struct {
        const char *name;
        int (*open)(const struct chm_media_args *args, struct chm_medium **out,
                    struct chm_error *err);
    } media[] = {
        {"auto", auto_open},
        {"uring", chm_media_uring_open},
        {"threads", chm_media_threads_open},
        {"sync", chm_media_sync_open},
        {"sim", chm_media_sim_open},
    };
    const char *name = args->opts->media ? args->opts->media : "auto";

    for (size_t i = 0; i < CHM_COUNT(media); i++) {
        if (strcmp(name, media[i].name) == 0) {
            return media[i].open(args, out, err);
        }
    }
    return chm_media_fail(err, -EINVAL, "no medium \"%s\": auto, uring, threads, sync or sim",
                          name);
}

static bool is_power_of_two(uint32_t v)
{
    return v != 0 && (v & (v - 1)) == 0;
}

static int args_check(const struct chm_media_args *args, struct chm_error *err)
{
    uint32_t align = args->opts->force_align;

    if (args->members == 0 || args->members > CHM_MEMBERS_MAX) {
        return chm_media_fail(err, -EINVAL, "%u members; 1 to %d are possible", args->members,
                              CHM_MEMBERS_MAX);
    }
    if (align && (!is_power_of_two(align) || align < 512)) {
        return chm_media_fail(err, -EINVAL, "force_align %u is not a power of two >= 512", align);
    }
    return 0;
}

static bool wants_faults(const struct chm_fault_options *f)
{
    return f->script || f->eio_ppm || f->short_ppm || f->torn_ppm || f->lost_ppm || f->late_ppm ||
           f->never_ppm || f->swap_ppm;
}

/* Put the wrappers that are asked for around *m, from the inside out. */
static int wrap_all(const struct chm_media_args *args, struct chm_medium **m, struct chm_error *err)
{
    const struct chm_options *o = args->opts;
    const struct {
        bool wanted;
        int (*open)(const struct chm_media_args *args, struct chm_medium *inner,
                    struct chm_medium **out, struct chm_error *err);
    } wrappers[] = {
        {o->pace.rate || o->pace.latency_ns, chm_media_pace_open},
        {wants_faults(&o->fault), chm_media_fault_open},
        {o->trace_replay, chm_media_replay_open},
        {o->trace_record, chm_media_record_open},
    };
    int rc = 0;

    for (size_t i = 0; i < CHM_COUNT(wrappers) && rc == 0; i++) {
        if (wrappers[i].wanted) {
            rc = wrappers[i].open(args, *m, m, err);
        }
    }
    return rc;
}

int chm_media_open(const struct chm_media_args *args, struct chm_medium **out,
                   struct chm_error *err)
{
    struct chm_medium *m = NULL;
    int rc = args_check(args, err);

    if (rc == 0) {
        rc = base_open(args, &m, err);
    }
    if (rc) {
        return rc;
    }
    rc = wrap_all(args, &m, err);
    if (rc) {
        (void)chm_medium_close(m, CHM_FOREVER_NS);
        return rc;
    }
    *out = m;
    return 0;
}
