/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h - whether calls may go into a device, and who is inside; for bindings to other languages.
 *
 * A C program sees to it by itself that nobody is in a call while it closes, and that a stepped
 * device is used by one thread at a time. A language with threads and finalisers cannot. Its calls
 * go through a gate: it counts who is inside, lets one in at a time if asked to, and once shut
 * turns everybody away. The gate is taken and left within one call from the language, so that no
 * code of the language ever runs inside.
 */
#ifndef CHM_GATE_H
#define CHM_GATE_H

#include <stdatomic.h>
#include <stdint.h>

struct chm_gate;

/* NULL: no memory. */
struct chm_gate *chm_gate_new(int one_at_a_time);
/* Nobody may be inside, nor come. */
void chm_gate_free(struct chm_gate *g);
/* 0: inside, leave it again. -error once shut. -EALREADY: another thread was inside all the time
 * for 50 ms, or a signal came: ask again, and look after signals in between. */
int chm_gate_enter(struct chm_gate *g);
void chm_gate_leave(struct chm_gate *g);
/* Turn everybody away with -error from now on. The first error stays. */
void chm_gate_shut(struct chm_gate *g, int error);
/* How many are inside or on their way in. Once shut and 0, nobody will ever be. */
uint32_t chm_gate_inside(struct chm_gate *g);

#endif
