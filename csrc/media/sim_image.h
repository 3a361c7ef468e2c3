/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_image.h - the bytes of a simulated medium, and which of them would survive a power cut.
 *
 * Memory is used only for pages that were written. With a volatile cache there are two images:
 * `live`, which reads see, and `durable`, which a barrier (or FUA) brings up to date.
 */
#ifndef CHM_SIM_IMAGE_H
#define CHM_SIM_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

enum { CHM_SIM_PAGE = 4096 };

struct chm_sim_image {
    uint8_t *live;    /* NULL: no bytes are kept */
    uint8_t *durable; /* NULL: every write is durable at once */
    uint64_t *dirty;  /* bitmap of pages in which durable may differ from live */
    uint64_t bytes;   /* of all members */
    uint64_t stride;  /* of one member, whole pages */
};

/* 0 or -ENOMEM. Reads as zeros. */
int chm_sim_image_open(struct chm_sim_image *s, uint32_t members, uint64_t member_bytes,
                       bool contents, bool volatile_cache);
void chm_sim_image_close(struct chm_sim_image *s);
/* Ranges lie inside the member. Without contents nothing happens. */
void chm_sim_image_read(const struct chm_sim_image *s, uint32_t member, uint64_t off, void *buf,
                        uint64_t len);
void chm_sim_image_write(struct chm_sim_image *s, uint32_t member, uint64_t off, const void *buf,
                         uint64_t len, bool fua);
void chm_sim_image_zero(struct chm_sim_image *s, uint32_t member, uint64_t off, uint64_t len);
/* All that was written to the member is durable. */
void chm_sim_image_barrier(struct chm_sim_image *s, uint32_t member);
/* Power fails: a coin drawn from *seed decides for each page that is not durable whether its new
 * bytes made it. */
void chm_sim_image_cut(struct chm_sim_image *s, uint64_t *seed);

#endif
