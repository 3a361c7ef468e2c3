/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.h - the host link: when do n bytes arrive at the host?
 *
 * One transfer after the other, in the order asked for: it ends at max(now, link free) + n / rate,
 * and is seen a latency later. Pure arithmetic on the device's clock, so real and virtual time
 * share it. Any thread.
 */
#ifndef CHM_LINK_H
#define CHM_LINK_H

#include <stdatomic.h>
#include <stdint.h>

struct chm_link_port {
    uint64_t rate; /* bytes/s; 0: no link, delivery takes no time */
    uint64_t latency_ns;
    _Atomic uint64_t free_ns;
};

/* Queue a transfer of n bytes at now_ns; when it arrives. */
uint64_t chm_link_deliver(struct chm_link_port *link, uint64_t now_ns, uint64_t n);

#endif
