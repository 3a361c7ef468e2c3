/* SPDX-License-Identifier: Apache-2.0 */
/* media_sim.h - what tests may do to a simulated medium beside using it. */
#ifndef CHM_MEDIA_SIM_H
#define CHM_MEDIA_SIM_H

#include "media/medium.h"

/*
 * Cut the power of a medium opened by chm_media_sim_open (not of a wrapper). What was in flight is
 * handed back by nobody: its chm_io structs are the caller's again. A coin drawn from seed decides
 * for each page of a write in flight, and for each page in a volatile cache, whether it made it.
 * Then the power is back: the medium is idle, and its clock goes on.
 */
void chm_sim_power_cut(struct chm_medium *m, uint64_t seed);

#endif
