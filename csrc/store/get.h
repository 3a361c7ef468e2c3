/* SPDX-License-Identifier: Apache-2.0 */
/* get.h - what gets and leases share: tasks and their transfers. */
#ifndef CHM_STORE_GET_H
#define CHM_STORE_GET_H

#include "store/kv.h"

enum chm_kv_task_state { TASK_START, TASK_READ, TASK_ENDING };

/* Has a read ended, and come over the host link? Then *rc is its result; it is to be released. */
bool chm_kv_read_ended(struct chm_store *s, uint64_t req, int *rc);

/* ---- xfer.c */
/* Send as many reads as there is room for. True: some were. */
bool chm_kv_xfers_send(struct chm_store *s, struct chm_kv_task *t);
/* Take what has ended. Moves t->done on, or sets t->error. */
bool chm_kv_xfers_poll(struct chm_store *s, struct chm_kv_task *t);
/* One of them still waits for window space. */
bool chm_kv_xfers_no_room(const struct chm_store *s, const struct chm_kv_task *t);
/* Give up all that has not ended. */
void chm_kv_xfers_cancel(struct chm_store *s, struct chm_kv_task *t);
/* Nothing of it writes to the caller's memory any more. Then it has none left. */
bool chm_kv_xfers_gone(struct chm_store *s, struct chm_kv_task *t);
void chm_kv_xfers_free(struct chm_store *s, struct chm_kv_task *t);
/* Add payload bytes [off, off + n), where they lie in the parts, to a sum. */
void chm_kv_parts_sum(const struct chm_kv_task *t, uint64_t off, uint64_t n, struct chm_sum *sum);

/* ---- lease.c */
/* A lease for the task: 0, -EMFILE, -E2BIG. Its pieces become the parts of the task. */
int chm_kv_lease_begin(struct chm_store *s, struct chm_kv_task *t);
/* The transfers of a task that is done become the lease's. */
void chm_kv_lease_keep(struct chm_store *s, struct chm_kv_task *t);
void chm_kv_lease_free(struct chm_store *s, struct chm_kv_lease *l);

#endif
