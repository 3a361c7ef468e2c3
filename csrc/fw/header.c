/* SPDX-License-Identifier: Apache-2.0 */
/* header.c - see header.h. */
#include "fw/header.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char MAGIC[8] = "CHMDEV\r\n";

/* Offsets in the page. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_MEMBER = 12,
    AT_MEMBERS = 16,
    AT_STRIPE = 20,
    AT_CAPACITY = 24,
    AT_ID = 32,
    AT_SUM = 4080, /* of the 4080 bytes before it */
};

static void put32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof(v));
}

static void put64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof(v));
}

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return le32toh(v);
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return le64toh(v);
}

/* FNV-1a, 64 bits: enough against a torn or foreign page, and read once per open. */
static uint64_t header_sum(const uint8_t *page)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (int i = 0; i < AT_SUM; i++) {
        h = (h ^ page[i]) * 0x100000001b3u;
    }
    return h;
}

void chm_header_encode(const struct chm_header *h, uint8_t page[CHM_HEADER_BYTES])
{
    memset(page, 0, CHM_HEADER_BYTES);
    memcpy(page + AT_MAGIC, MAGIC, sizeof(MAGIC));
    put32(page + AT_VERSION, CHM_FORMAT_VERSION);
    put32(page + AT_MEMBER, h->member);
    put32(page + AT_MEMBERS, h->map.members);
    put32(page + AT_STRIPE, h->map.stripe_bytes);
    put64(page + AT_CAPACITY, h->map.capacity_bytes);
    memcpy(page + AT_ID, h->device_id, sizeof(h->device_id));
    put64(page + AT_SUM, header_sum(page));
}

int chm_header_is_ours(const uint8_t page[CHM_HEADER_BYTES])
{
    return memcmp(page + AT_MAGIC, MAGIC, sizeof(MAGIC)) == 0;
}

static int header_sane(const struct chm_header *h)
{
    const struct chm_map *m = &h->map;

    return m->members >= 1 && m->members <= CHM_MEMBERS_MAX && h->member < m->members &&
           m->stripe_bytes >= CHM_PAGE_BYTES && m->stripe_bytes % CHM_PAGE_BYTES == 0 &&
           m->capacity_bytes > 0 &&
           m->capacity_bytes % ((uint64_t)m->stripe_bytes * m->members) == 0;
}

int chm_header_decode(const uint8_t page[CHM_HEADER_BYTES], struct chm_header *h,
                      struct chm_error *err)
{
    struct chm_header got;

    if (!chm_header_is_ours(page)) {
        snprintf(err->text, sizeof(err->text), "no chm device header: format it first");
        return -EBADMSG;
    }
    if (get32(page + AT_VERSION) != CHM_FORMAT_VERSION) {
        snprintf(err->text, sizeof(err->text), "format version %u, this library reads version %d",
                 get32(page + AT_VERSION), CHM_FORMAT_VERSION);
        return -EPROTO;
    }
    got.member = get32(page + AT_MEMBER);
    got.map.members = get32(page + AT_MEMBERS);
    got.map.stripe_bytes = get32(page + AT_STRIPE);
    got.map.capacity_bytes = get64(page + AT_CAPACITY);
    memcpy(got.device_id, page + AT_ID, sizeof(got.device_id));
    if (get64(page + AT_SUM) != header_sum(page) || !header_sane(&got)) {
        snprintf(err->text, sizeof(err->text), "the device header is damaged (checksum)");
        return -EBADMSG;
    }
    *h = got;
    return 0;
}
