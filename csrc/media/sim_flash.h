/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_flash.h - the time model of one flash drive: controller, SSD link, write cache, channels and
 * dies, each a number that says until when it is busy. No clock: the caller says what time it is,
 * and time must not go backwards from call to call. docs/simulator.md describes the model.
 */
#ifndef CHM_SIM_FLASH_H
#define CHM_SIM_FLASH_H

#include <stdbool.h>
#include <stdint.h>

#include "chm.h"
#include "media/port.h"

enum { CHM_FLASH_DIES_MAX = 1024 };

/* Reads are served until free_ns. Programs and erases lie without a gap in [run_ns, end_ns). */
struct chm_flash_die {
    uint64_t free_ns;
    uint64_t run_ns, end_ns;
    uint64_t programs; /* asked for since open */
};

/* Reads go first: their transfers count towards both, those of programs towards busy_ns only. */
struct chm_flash_channel {
    uint64_t read_ns, busy_ns;
};

struct chm_flash {
    struct chm_flash_die *dies;
    struct chm_flash_channel *channels;
    uint32_t dies_n, channels_n, planes, block_pages, page_shift;
    bool mixed; /* pages differ in read_ns */
    uint64_t seed;
    uint64_t read_ns[3], read_sum_ns, read_min_ns;
    uint64_t program_ns, erase_ns, suspend_ns, command_ns;
    struct chm_port channel;                /* what a transfer costs; busy_ns unused */
    struct chm_port link_in, link_out;      /* SSD link: writes, reads */
    uint64_t page_channel_ns, page_link_ns; /* one page over a channel, over the link */
    uint64_t group_bytes;                   /* what one program takes: a page of each plane */
    uint64_t cache_groups;                  /* the write cache holds that many; 0: none */
    uint64_t groups;                        /* programmed or asked for, since open */
    uint64_t fill_bytes;                    /* in the group that is not full yet */
};

/* Fill in the defaults of a drive with dies. */
void chm_flash_defaults(struct chm_sim_options *o);
/* 0, or -EINVAL and why in err (may be NULL), for options with their defaults filled in. */
int chm_flash_check(const struct chm_sim_options *o, struct chm_error *err);

/* Make f an idle drive; o has passed chm_flash_check. 0 or -ENOMEM. */
int chm_flash_open(struct chm_flash *f, const struct chm_sim_options *o);
void chm_flash_close(struct chm_flash *f);
/* Whatever it did is over at now_ns. */
void chm_flash_reset(struct chm_flash *f, uint64_t now_ns);

/* A read that reaches the drive at at_ns: when its last byte is out of the SSD link. */
uint64_t chm_flash_read(struct chm_flash *f, uint64_t at_ns, uint64_t off, uint64_t bytes);
/* A write that reaches it at at_ns, whose first bytes lead_ns later and whose last byte at last_ns:
 * when it is acknowledged. durable: not before it is programmed. */
uint64_t chm_flash_write(struct chm_flash *f, uint64_t at_ns, uint64_t lead_ns, uint64_t last_ns,
                         uint64_t bytes, bool durable);
/* Have all that was written programmed: when it is. */
uint64_t chm_flash_drain(struct chm_flash *f, uint64_t at_ns);

#endif
