/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shift.h - most of a demand read goes straight into the caller's memory, even if the drive cannot
 * write to where the bytes belong.
 *
 * Of a read that is not whole granules into aligned memory, [in_start, in_end) is read to `place`,
 * which is aligned and lies in the caller's buffer, `shift` bytes beyond where the bytes belong;
 * what is there is moved down, from the front. The ragged ends go by way of bounce pages. So one
 * copy within one buffer is left, or none with shift 0, and the demand reserve does not bound how
 * much is in flight.
 *
 *      buffer:  |head|..........................|tail|
 *      drive:        |--shift--[in_start ... in_end) |      place = buffer + head + shift
 *
 * With a shift the tail's own place is written to by the drive meanwhile. So its bounce pages are
 * kept until all of the inner part was moved. The I/Os of the inner part are in flight by then,
 * since a fetch is read from front to back: whoever keeps pages needs no further ones to get on.
 */
#ifndef CHM_SHIFT_H
#define CHM_SHIFT_H

#include <stdint.h>

struct chm_fw;
struct chm_fetch;
struct chm_fio;

enum {
    CHM_SHIFT_TAILS = 2, /* granules of a tail: a stripe may end between them */
};

/* user..., addr and len are set: find an inner part worth it, or leave it empty. */
void chm_shift_plan(struct chm_fw *fw, struct chm_fetch *f);
/* Read all of it by way of bounce pages. */
void chm_shift_forget(struct chm_fetch *f);
/* Where the next I/O of f goes to, NULL: bounce pages; *len is cut to as far as that holds. */
uint8_t *chm_shift_target(const struct chm_fetch *f, uint64_t *len);
/* The I/O landed: see to it that its bytes get to where they belong. start: its device address. */
void chm_shift_landed(struct chm_fw *fw, struct chm_fetch *f, struct chm_fio *fio, uint64_t start);
/* The fetch is over: give back what it keeps. */
void chm_shift_end(struct chm_fw *fw, struct chm_fetch *f);

#endif
