/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - entries and records as they are on the device. Each carries a sum of its own, tied to
 * its number and to the store, so that a damaged page costs what was damaged in it and no more; and
 * to the round or the journal page that it was written with, so that what a torn page still has of
 * older contents is not taken for new.
 */
#include "store/kv.h"

static uint64_t seed_of(const struct chm_store *s, uint32_t number)
{
    uint64_t a, b;

    memcpy(&a, s->super.id, 8);
    memcpy(&b, s->super.id + 8, 8);
    return a ^ (b << 1) ^ (uint64_t)number << 17;
}

static uint32_t image_sum(const struct chm_store *s, uint32_t number,
                          const struct chm_kv_entry *image)
{
    struct chm_kv_entry e = *image;

    e.children = 0;
    return (uint32_t)chm_sum_once(&e, sizeof(e), seed_of(s, number));
}

void chm_kv_image(const struct chm_store *s, uint32_t number, bool there, uint64_t round,
                  struct chm_kv_entry *out)
{
    *out = there ? *chm_kv_at(s, number) : (struct chm_kv_entry){0};
    out->state = there;
    out->pins = 0;
    out->next = 0;
    out->prev = (uint32_t)round;
    out->children = image_sum(s, number, out);
}

bool chm_kv_image_is_good(const struct chm_store *s, uint32_t number,
                          const struct chm_kv_entry *image)
{
    return image->children == image_sum(s, number, image);
}

uint64_t chm_kv_record_sum(const struct chm_store *s, uint32_t number, uint64_t seq,
                           const void *body, uint64_t bytes)
{
    return chm_sum_once(body, bytes, seed_of(s, number) ^ seq * UINT64_C(0x9E3779B97F4A7C15));
}

static uint64_t name_sum(const struct chm_store *s, uint32_t number, const struct chm_kv_name *name)
{
    struct chm_kv_name n = *name;

    n.sum = 0;
    return chm_sum_once(&n, sizeof(n), seed_of(s, number));
}

void chm_kv_name_seal(const struct chm_store *s, uint32_t number, struct chm_kv_name *name)
{
    name->sum = name_sum(s, number, name);
}

bool chm_kv_name_is_good(const struct chm_store *s, uint32_t number, const struct chm_kv_name *name)
{
    return name->sum == name_sum(s, number, name);
}
