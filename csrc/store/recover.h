/* SPDX-License-Identifier: Apache-2.0 */
/* recover.h - what the parts of recovery share. */
#ifndef CHM_STORE_RECOVER_H
#define CHM_STORE_RECOVER_H

#include "store/kv.h"

/* chm_kv_entry.state until an entry is admitted: where it comes from. */
enum chm_kv_rank { RANK_NONE = 0, RANK_JOURNAL = 0x200, RANK_PAGE = 0x300, RANK_OLD = 0x400 };

/* All pages of both tables. buf: of so many bytes, at least two units. */
void chm_kv_recover_pages(struct chm_store *s, uint8_t *buf, uint64_t bytes);
/* The journal; it goes on behind what was found. buf: of a unit at least. */
void chm_kv_recover_journal(struct chm_store *s, uint8_t *buf);
/* A namespace, from a page or the journal. */
void chm_kv_recover_name(struct chm_store *s, uint32_t number, const struct chm_kv_name *name);
/* Parent links and recency lists of the admitted entries. buf: of a unit at least. */
int chm_kv_recover_order(struct chm_store *s, uint8_t *buf);
/* Close: the order of the recency lists, to the order pages. */
int chm_kv_save_order(struct chm_store *s);

#endif
