/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.h - device address to (member, offset).
 *
 * Stripe units go round the members: unit u of the address space is unit u / members of member
 * u % members. Offsets are in the backing file, behind its header area.
 */
#ifndef CHM_MAP_H
#define CHM_MAP_H

#include <stdint.h>

enum {
    CHM_DATA_OFFSET = 1 << 20, /* where data begins in a member: aligned for any drive, and room for
                                  what else may have to live beside the header */
};

struct chm_map {
    uint64_t capacity_bytes;
    uint32_t stripe_bytes;
    uint32_t members;
};

struct chm_spot {
    uint64_t off; /* in the member */
    uint64_t len; /* how much of the asked length lies there in one piece */
    uint32_t member;
};

/* Where addr lies, and how far the piece that begins there reaches (at most len). */
struct chm_spot chm_map_spot(const struct chm_map *map, uint64_t addr, uint64_t len);

/* Device capacity that `members` files of member_bytes (header area included) give, whole stripe
 * rows; 0 if they are too small. */
uint64_t chm_map_capacity(uint32_t members, uint64_t member_bytes, uint32_t stripe_bytes);

/* Size a member must have for a device of capacity_bytes. */
uint64_t chm_map_member_bytes(const struct chm_map *map);

#endif
