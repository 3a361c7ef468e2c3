/* SPDX-License-Identifier: Apache-2.0 */
/* format.c - making a device: sizes, refusing what is not ours to overwrite, headers. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "chm.h"
#include "fw/header.h"
#include "fw/map.h"
#include "media/backing.h"
#include "util/util.h"

static int refuse(struct chm_error *err, int rc, const char *path, const char *why)
{
    err->code = rc;
    snprintf(err->text, sizeof(err->text), "%.120s: %s", path, why);
    return rc;
}

static int check_options(const struct chm_format_options *o, struct chm_error *err)
{
    if (o->size != sizeof(*o)) {
        return refuse(err, -EINVAL, "options", "call chm_format_options_init first");
    }
    if (!o->paths || o->npaths < 1 || o->npaths > CHM_MEMBERS_MAX) {
        return refuse(err, -EINVAL, "paths", "between 1 and 16 are needed");
    }
    if (o->stripe_bytes < CHM_PAGE_BYTES || o->stripe_bytes % CHM_PAGE_BYTES != 0 ||
        o->stripe_bytes > 1u << 30) {
        return refuse(err, -EINVAL, "stripe_bytes", "a multiple of 4096, at most 1 GiB");
    }
    for (uint32_t i = 0; i < o->npaths; i++) {
        if (!o->paths[i] || !o->paths[i][0]) {
            return refuse(err, -EINVAL, "paths", "a path is empty");
        }
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(o->paths[i], o->paths[j]) == 0) {
                return refuse(err, -EINVAL, o->paths[i], "given twice");
            }
        }
    }
    return 0;
}

/* The capacity asked for in whole stripe rows, or what the smallest existing member allows. */
static int choose_map(const struct chm_format_options *o, struct chm_map *map,
                      struct chm_error *err)
{
    uint64_t row = (uint64_t)o->stripe_bytes * o->npaths, smallest = UINT64_MAX;

    map->stripe_bytes = o->stripe_bytes;
    map->members = o->npaths;
    map->capacity_bytes = o->capacity_bytes / row * row;
    if (o->capacity_bytes == 0) {
        for (uint32_t i = 0; i < o->npaths; i++) {
            smallest = chm_min(smallest, chm_backing_size(o->paths[i]));
        }
        map->capacity_bytes = chm_map_capacity(o->npaths, smallest, o->stripe_bytes);
    }
    if (map->capacity_bytes == 0) {
        return refuse(err, -EINVAL, o->paths[0],
                      o->capacity_bytes
                          ? "the capacity is smaller than one stripe row"
                          : "no capacity given and no existing file or drive to take it from");
    }
    return 0;
}

/* An existing member may be overwritten if it is empty, or all zeros in front. */
static int check_content(const struct chm_backing *b, const char *path, bool force,
                         struct chm_error *err)
{
    uint8_t page[CHM_HEADER_BYTES];
    int rc;

    if (force || b->size_bytes < sizeof(page)) {
        return force || b->size_bytes == 0
                   ? 0
                   : refuse(err, -EEXIST, path,
                            "is not empty and not a chm device; force overwrites it");
    }
    rc = chm_backing_read_header(b, page);
    if (rc < 0) {
        return refuse(err, rc, path, "cannot be read");
    }
    if (chm_header_is_ours(page)) {
        return refuse(err, -EEXIST, path,
                      "is a chm device already; force makes a new one, and what is on it is lost");
    }
    /* The last bytes belong to the lock owner and say nothing. */
    for (int i = 0; i < CHM_HEADER_BYTES - 8; i++) {
        if (page[i] != 0) {
            return refuse(err, -EEXIST, path,
                          "holds something that is not a chm device; force overwrites it");
        }
    }
    return 0;
}

static int check_existing(const struct chm_format_options *o, const char *path,
                          struct chm_error *err)
{
    struct chm_backing b;
    int rc;

    if (chm_backing_size(path) == 0) {
        return 0;
    }
    rc = chm_backing_open(path, o->buffered, &b, err);
    if (rc == 0) {
        rc = check_content(&b, path, o->force, err);
        chm_backing_close(&b);
    }
    return rc;
}

static int make_member(const struct chm_format_options *o, uint32_t i, struct chm_header *h,
                       struct chm_error *err)
{
    uint8_t page[CHM_HEADER_BYTES];
    struct chm_backing b;
    int rc = chm_backing_create(o->paths[i], chm_map_member_bytes(&h->map), o->buffered, &b, err);

    if (rc < 0) {
        return rc;
    }
    h->member = i;
    chm_header_encode(h, page);
    rc = chm_backing_write_header(&b, page);
    if (rc < 0) {
        refuse(err, rc, o->paths[i], "the header cannot be written");
    }
    chm_backing_close(&b);
    return rc;
}

int chm_format(const struct chm_format_options *o, struct chm_error *err)
{
    struct chm_error ignored = {0};
    struct chm_header h = {0};
    int rc;

    err = err ? err : &ignored;
    *err = (struct chm_error){0};
    rc = o ? check_options(o, err) : -EINVAL;
    rc = rc < 0 ? rc : choose_map(o, &h.map, err);
    /* All are looked at before any is touched. */
    for (uint32_t i = 0; rc == 0 && i < o->npaths; i++) {
        rc = check_existing(o, o->paths[i], err);
    }
    if (rc == 0 && getrandom(h.device_id, sizeof(h.device_id), 0) != sizeof(h.device_id)) {
        rc = -EIO;
    }
    for (uint32_t i = 0; rc == 0 && i < o->npaths; i++) {
        rc = make_member(o, i, &h, err);
    }
    err->code = rc;
    return rc;
}
