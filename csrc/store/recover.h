/* SPDX-License-Identifier: Apache-2.0 */
/* recover.h - what the parts of recovery share. */
#ifndef CHM_STORE_RECOVER_H
#define CHM_STORE_RECOVER_H

#include "store/kv.h"

/* chm_kv_entry.state until an entry is admitted: where it comes from. */
enum chm_kv_rank { RANK_NONE = 0, RANK_JOURNAL = 0x200, RANK_PAGE = 0x300, RANK_OLD = 0x400 };

/* Parent links and recency lists of the admitted entries. buf: of a unit at least. */
int chm_kv_recover_order(struct chm_store *s, uint8_t *buf);
/* Close: the order of the recency lists, to the order pages. */
int chm_kv_save_order(struct chm_store *s);

#endif
