/* SPDX-License-Identifier: Apache-2.0 */
/* map.c - see map.h. Arithmetic only. */
#include "fw/map.h"

#include "util/util.h"

struct chm_spot chm_map_spot(const struct chm_map *map, uint64_t addr, uint64_t len)
{
    uint64_t unit = addr / map->stripe_bytes;
    uint64_t within = addr % map->stripe_bytes;
    struct chm_spot spot = {
        .member = (uint32_t)(unit % map->members),
        .off = CHM_DATA_OFFSET + unit / map->members * map->stripe_bytes + within,
        .len = len,
    };

    CHM_ASSERT(addr + len <= map->capacity_bytes);
    /* One member has no seams: its stripe units follow each other. */
    if (map->members > 1) {
        spot.len = chm_min(len, map->stripe_bytes - within);
    }
    return spot;
}

uint64_t chm_map_capacity(uint32_t members, uint64_t member_bytes, uint32_t stripe_bytes)
{
    if (member_bytes <= CHM_DATA_OFFSET) {
        return 0;
    }
    return (member_bytes - CHM_DATA_OFFSET) / stripe_bytes * stripe_bytes * members;
}

uint64_t chm_map_member_bytes(const struct chm_map *map)
{
    return CHM_DATA_OFFSET + map->capacity_bytes / map->members;
}
