/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.h - the host link: when have n bytes crossed it?
 *
 * One or two rails, each with a busy-until time per direction (full duplex). A transfer starts when
 * it is asked for and its rail is free, takes n / rate, and is seen a latency (plus jitter) later.
 * Long transfers go half over each rail, short ones over the rail that is free first. A simulated
 * device's DRAM port is held for the same bytes, from when the transfer is asked for. Pure
 * arithmetic on the device's clock, so real and virtual time share it. Any thread; with a DRAM port
 * those of a stepped device, which take turns.
 */
#ifndef CHM_LINK_H
#define CHM_LINK_H

#include <stdatomic.h>
#include <stdint.h>

#include "chm.h"
#include "media/port.h"

enum { CHM_LINK_RAILS_MAX = 2, CHM_LINK_QUANTILES = 4 };

struct chm_link_way {
    uint64_t rate; /* bytes/s of one rail; 0: no link, a transfer takes no time */
    _Atomic uint64_t free_ns[CHM_LINK_RAILS_MAX];
};

struct chm_link_port {
    struct chm_link_way read, write; /* towards the host, towards the device */
    uint64_t latency_ns;
    uint32_t jitter_ns[CHM_LINK_QUANTILES];
    uint32_t rails;
    uint32_t split_bytes;
    _Atomic uint64_t random; /* state of the generator */
    struct chm_port *dram;   /* of a simulated device: every byte passes it too; or NULL */
};

/* From settled options. */
void chm_link_init(struct chm_link_port *link, const struct chm_options *o);

/* Queue a transfer of n bytes at now_ns; when it arrives at the host. */
uint64_t chm_link_deliver(struct chm_link_port *link, uint64_t now_ns, uint64_t n);
/* The same towards the device. */
uint64_t chm_link_take(struct chm_link_port *link, uint64_t now_ns, uint64_t n);

#endif
