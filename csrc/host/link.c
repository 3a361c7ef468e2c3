/* SPDX-License-Identifier: Apache-2.0 */
/* link.c - see link.h. */
#include "host/link.h"

#include <stdbool.h>
#include <string.h>

#include "util/util.h"

void chm_link_init(struct chm_link_port *link, const struct chm_options *o)
{
    link->read.rate = o->link_rate;
    link->write.rate = o->link_write_rate;
    link->latency_ns = o->link_latency_ns;
    memcpy(link->jitter_ns, o->link_jitter_ns, sizeof(link->jitter_ns));
    link->rails = o->link_rails;
    link->split_bytes = o->link_split_bytes;
    atomic_store(&link->random, o->sim.seed);
}

/* ---- jitter */

/* The value at quantile u / 2^32: linear between the points that are given. */
static uint64_t jitter_at(const uint32_t *jitter_ns, uint32_t u)
{
    static const uint64_t AT[CHM_LINK_QUANTILES + 1] = {0, 10, 15, 18, 20}; /* twentieths */
    uint64_t x = (uint64_t)u * AT[CHM_LINK_QUANTILES], low = 0;

    for (uint32_t i = 0; i < CHM_LINK_QUANTILES; i++) {
        uint64_t begin = AT[i] << 32, end = AT[i + 1] << 32;

        if (x < end) {
            unsigned __int128 rise = (unsigned __int128)(jitter_ns[i] - low) * (x - begin);
            return low + (uint64_t)(rise / (end - begin));
        }
        low = jitter_ns[i];
    }
    return low;
}

static uint64_t latency(struct chm_link_port *link)
{
    uint64_t state;

    if (link->jitter_ns[CHM_LINK_QUANTILES - 1] == 0) {
        return link->latency_ns;
    }
    state = atomic_fetch_add(&link->random, CHM_RANDOM_STEP);
    return link->latency_ns + jitter_at(link->jitter_ns, (uint32_t)(chm_random(&state) >> 32));
}

/* ---- rails */

static uint64_t rail_take(_Atomic uint64_t *rail_ns, uint64_t now_ns, uint64_t n, uint64_t rate)
{
    uint64_t took = (uint64_t)(((unsigned __int128)n * CHM_SECOND + rate - 1) / rate);
    uint64_t free_ns = atomic_load(rail_ns), end;

    do {
        end = chm_max(now_ns, free_ns) + took;
    } while (!atomic_compare_exchange_weak(rail_ns, &free_ns, end));
    return end;
}

/* Is the second rail free earlier? Both free by now: the first. */
static bool second_is_first(struct chm_link_way *way, uint64_t now_ns)
{
    return chm_max(now_ns, atomic_load(&way->free_ns[1])) <
           chm_max(now_ns, atomic_load(&way->free_ns[0]));
}

static uint64_t cross(struct chm_link_port *link, struct chm_link_way *way, uint64_t now_ns,
                      uint64_t n)
{
    uint64_t half = n / 2, end;
    uint32_t rail = 0;

    if (way->rate == 0) {
        return now_ns;
    }
    if (link->rails == 2 && n >= link->split_bytes) {
        end = rail_take(&way->free_ns[0], now_ns, n - half, way->rate);
        end = chm_max(end, rail_take(&way->free_ns[1], now_ns, half, way->rate));
    } else {
        rail = link->rails == 2 && second_is_first(way, now_ns);
        end = rail_take(&way->free_ns[rail], now_ns, n, way->rate);
    }
    if (link->dram) {
        end = chm_max(end, chm_port_take(link->dram, now_ns, n));
    }
    return end + latency(link);
}

uint64_t chm_link_deliver(struct chm_link_port *link, uint64_t now_ns, uint64_t n)
{
    return cross(link, &link->read, now_ns, n);
}

uint64_t chm_link_take(struct chm_link_port *link, uint64_t now_ns, uint64_t n)
{
    return cross(link, &link->write, now_ns, n);
}
