/* SPDX-License-Identifier: Apache-2.0 */
/*
 * port.h - a resource with a rate, such as a link or a memory port: it does one transfer after the
 * other, and all it remembers is until when it is busy. Plain arithmetic, in whole nanoseconds.
 *
 * Costs are rounded up, so that no sum of transfers is ever faster than the rate. Whoever shares a
 * port asks in the order of time: what is asked for late waits behind what was asked for before.
 */
#ifndef CHM_PORT_H
#define CHM_PORT_H

#include "chm.h"
#include "util/util.h"

/* rate: bytes/s, not 0. All else zero: idle since the beginning. */
struct chm_port {
    uint64_t rate;
    uint64_t busy_ns;                    /* until then it does what was asked for so far */
    uint64_t known_bytes, known_cost_ns; /* of the last transfer: sizes repeat, divisions cost */
};

/* How long the port needs for that many bytes, ns. */
static inline uint64_t chm_port_cost(struct chm_port *p, uint64_t bytes)
{
    if (bytes != p->known_bytes) {
        unsigned __int128 work = (unsigned __int128)bytes * CHM_SECOND + p->rate - 1;
        p->known_cost_ns =
            work >> 64 ? (uint64_t)(work / p->rate) : (uint64_t)work / p->rate; /* the fast one */
        p->known_bytes = bytes;
    }
    return p->known_cost_ns;
}

/* Send bytes that are there at at_ns. Returns when the last of them is through, ns. */
static inline uint64_t chm_port_take(struct chm_port *p, uint64_t at_ns, uint64_t bytes)
{
    p->busy_ns = chm_max(p->busy_ns, at_ns) + chm_port_cost(p, bytes);
    return p->busy_ns;
}

/*
 * The same for bytes that have been coming in for spread_ns when the last of them is there at
 * last_ns: they go on as they come. So an idle port that is faster than what feeds it adds nothing.
 */
static inline uint64_t chm_port_stream(struct chm_port *p, uint64_t last_ns, uint64_t spread_ns,
                                       uint64_t bytes)
{
    uint64_t lead = chm_min(chm_min(spread_ns, chm_port_cost(p, bytes)), last_ns);

    return chm_port_take(p, last_ns - lead, bytes);
}

#endif
