/* SPDX-License-Identifier: Apache-2.0 */
/* link.c - see link.h. */
#include "host/link.h"

#include "util/util.h"

uint64_t chm_link_deliver(struct chm_link_port *link, uint64_t now_ns, uint64_t n)
{
    uint64_t free_ns = atomic_load(&link->free_ns);
    uint64_t took, end;

    if (link->rate == 0) {
        return now_ns;
    }
    took = (uint64_t)((unsigned __int128)n * 1000000000u / link->rate);
    do {
        end = chm_max(now_ns, free_ns) + took;
    } while (!atomic_compare_exchange_weak(&link->free_ns, &free_ns, end));
    return end + link->latency_ns;
}
