/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grow.c - making a closed device larger.
 *
 * Capacity grows by whole stripe rows behind the old ones, so every address stays where it is. All
 * members are made long enough first; then the headers are written, that of the first member last:
 * it is the one that says how large the device is, and the others may be longer than it says.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "chm.h"
#include "fw/header.h"
#include "fw/map.h"
#include "media/backing.h"
#include "util/util.h"

struct member {
    struct chm_backing backing;
    struct chm_header header;
    uint64_t size_bytes;
};

static int refuse(struct chm_error *err, int rc, const char *path, const char *why)
{
    err->code = rc;
    snprintf(err->text, sizeof(err->text), "%.100s: %.140s", path, why);
    return rc;
}

static int look(const struct chm_format_options *o, uint32_t i, struct member *m,
                struct chm_error *err)
{
    uint8_t page[CHM_HEADER_BYTES];
    struct chm_error why = {0};
    int rc = chm_backing_open(o->paths[i], o->buffered, &m->backing, err);

    if (rc < 0) {
        return rc;
    }
    m->size_bytes = m->backing.size_bytes;
    rc = chm_backing_read_header(&m->backing, page);
    rc = rc < 0 ? refuse(err, rc, o->paths[i], "the header cannot be read")
                : chm_header_decode(page, &m->header, &why);
    chm_backing_close(&m->backing);
    return rc < 0 && why.text[0] ? refuse(err, rc, o->paths[i], why.text) : rc;
}

static int look_at_all(const struct chm_format_options *o, struct member *m, struct chm_error *err)
{
    for (uint32_t i = 0; i < o->npaths; i++) {
        int rc = look(o, i, &m[i], err);

        if (rc < 0) {
            return rc;
        }
        if (memcmp(m[i].header.device_id, m[0].header.device_id, 16) != 0 ||
            m[i].header.member != i || m[i].header.map.members != o->npaths) {
            return refuse(err, -EXDEV, o->paths[i],
                          "not this member of the device: give all members, in order");
        }
    }
    return 0;
}

static int choose(const struct chm_format_options *o, const struct member *m, struct chm_map *map,
                  struct chm_error *err)
{
    uint64_t row, smallest = UINT64_MAX, old = m[0].header.map.capacity_bytes;

    *map = m[0].header.map;
    row = (uint64_t)map->stripe_bytes * map->members;
    for (uint32_t i = 0; i < o->npaths; i++) {
        smallest = chm_min(smallest, m[i].size_bytes);
    }
    map->capacity_bytes = o->capacity_bytes
                              ? o->capacity_bytes / row * row
                              : chm_map_capacity(map->members, smallest, map->stripe_bytes);
    if (map->capacity_bytes < old) {
        snprintf(err->text, sizeof(err->text),
                 "%.100s: has %llu bytes, a device cannot become smaller: make a new one",
                 o->paths[0], (unsigned long long)old);
        return err->code = -EINVAL;
    }
    return 0;
}

/* Longer, and open. On failure those before i are open. */
static int lengthen(const struct chm_format_options *o, struct member *m, const struct chm_map *map,
                    uint32_t *opened, struct chm_error *err)
{
    int rc = 0;

    while (rc == 0 && *opened < o->npaths) {
        rc = chm_backing_create(o->paths[*opened], chm_map_member_bytes(map), o->buffered,
                                &m[*opened].backing, err);
        *opened += rc == 0;
    }
    return rc;
}

static int write_headers(const struct chm_format_options *o, struct member *m,
                         const struct chm_map *map, struct chm_error *err)
{
    uint8_t page[CHM_HEADER_BYTES];

    for (uint32_t i = o->npaths; i-- > 0;) {
        int rc;

        m[i].header.map = *map;
        chm_header_encode(&m[i].header, page);
        rc = chm_backing_write_header(&m[i].backing, page);
        if (rc < 0) {
            return refuse(err, rc, o->paths[i], "the header cannot be written");
        }
    }
    return 0;
}

int chm_grow(const struct chm_format_options *o, struct chm_error *err)
{
    struct member m[CHM_MEMBERS_MAX] = {0};
    struct chm_error ignored;
    struct chm_map map;
    uint32_t opened = 0;
    int rc;

    err = err ? err : &ignored;
    *err = (struct chm_error){0};
    if (!o || o->size != sizeof(*o) || !o->paths || o->npaths < 1 || o->npaths > CHM_MEMBERS_MAX) {
        return refuse(err, -EINVAL, "options", "call chm_format_options_init, give paths");
    }
    rc = look_at_all(o, m, err);
    rc = rc < 0 ? rc : choose(o, m, &map, err);
    rc = rc < 0 ? rc : lengthen(o, m, &map, &opened, err);
    rc = rc < 0 ? rc : write_headers(o, m, &map, err);
    while (opened > 0) {
        chm_backing_close(&m[--opened].backing);
    }
    err->code = rc;
    return rc;
}
