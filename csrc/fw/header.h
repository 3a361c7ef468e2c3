/* SPDX-License-Identifier: Apache-2.0 */
/*
 * header.h - the 4 KiB device header at the start of each member. Layout: docs/spec.md.
 *
 * Little endian, checksummed, the last 8 bytes left to the lock owner's pid (media/backing.h).
 */
#ifndef CHM_HEADER_H
#define CHM_HEADER_H

#include <stdint.h>

#include "chm.h"
#include "fw/map.h"

enum { CHM_FORMAT_VERSION = 1 };

struct chm_header {
    uint8_t device_id[16];
    struct chm_map map;
    uint32_t member;
};

void chm_header_encode(const struct chm_header *h, uint8_t page[CHM_HEADER_BYTES]);
/* -EBADMSG: not a header, or damaged; -EPROTO: another format version. err says which field. */
int chm_header_decode(const uint8_t page[CHM_HEADER_BYTES], struct chm_header *h,
                      struct chm_error *err);
/* Does it begin like one of ours? */
int chm_header_is_ours(const uint8_t page[CHM_HEADER_BYTES]);

#endif
