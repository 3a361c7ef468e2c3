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

struct chm_sim_keep;

struct chm_sim_image {
    uint8_t *live;    /* NULL: no bytes are kept */
    uint8_t *durable; /* NULL: every write is durable at once */
    uint64_t *dirty;  /* bitmap of pages in which durable may differ from live */
    uint64_t bytes;   /* of all members */
    uint64_t stride;  /* of one member, whole pages */
    struct chm_sim_keep *keep;
};

/*
 * Tests: an image that goes from one simulated device to the next (chm_sim_options.keep), and a
 * power cut planned for it, which may also tear pages. Zeroed memory is an empty one. From the cut
 * on nothing changes the bytes, whatever a device that knows of no cut still writes.
 */
struct chm_sim_keep {
    struct chm_sim_image image;
    uint64_t writes; /* writes and barriers that ended so far */
    uint64_t cut_at; /* the power fails at this one; 0: never */
    uint64_t seed;   /* of the coins */
    bool cut;
};

/* 0 or -ENOMEM. Reads as zeros. */
int chm_sim_image_open(struct chm_sim_image *s, uint32_t members, uint64_t member_bytes,
                       bool contents, bool volatile_cache);
/* Gives the bytes to the keep, if there is one. */
void chm_sim_image_close(struct chm_sim_image *s);
/* Use the bytes of keep, if it has some, and give them to it in the end. */
void chm_sim_image_share(struct chm_sim_image *s, struct chm_sim_keep *keep);
/* Power is back: the cut is over, the next may be planned. */
void chm_sim_keep_restore(struct chm_sim_keep *keep);
void chm_sim_keep_free(struct chm_sim_keep *keep);
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
