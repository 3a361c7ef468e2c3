/* SPDX-License-Identifier: Apache-2.0 */
/* kv_format.c - making an empty store: two superblocks. Nothing else needs to be written, since
 * pages of an older store carry another id. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "store/kv.h"

enum {
    OBJECTS_MIN = 1024,
    OBJECTS_MAX = 16 << 20,
    OBJECT_BYTES = 1 << 20, /* default: one entry for so much */
    NAMESPACES = 256,
    NAMESPACES_MAX = 4096,
    JOURNAL_PER_OBJECT = 128,
    JOURNAL_MIN = 256 << 10,
    JOURNAL_MAX = 64 << 20,
    JOURNAL_PAGES_MIN = 16,
    DATA_ALIGN = 1 << 20,
};

void chm_store_format_options_init(struct chm_store_format_options *o)
{
    *o = (struct chm_store_format_options){.size = sizeof(*o)};
}

static uint32_t pages_for(uint64_t n, uint32_t each)
{
    return (uint32_t)((n + each - 1) / each);
}

static int fail(struct chm_error *err, int rc, const char *text)
{
    err->code = rc;
    if (!err->text[0]) {
        snprintf(err->text, sizeof(err->text), "%s", text);
    }
    return rc;
}

static void set_counts(struct chm_kv_super *p, const struct chm_store_format_options *o)
{
    uint64_t objects = chm_min(chm_max(p->len / OBJECT_BYTES, OBJECTS_MIN), OBJECTS_MAX);
    uint64_t journal;

    p->max_objects = o->max_objects ? o->max_objects : (uint32_t)objects;
    p->max_namespaces = o->max_namespaces ? o->max_namespaces : NAMESPACES;
    journal = (uint64_t)p->max_objects * JOURNAL_PER_OBJECT;
    journal =
        o->journal_bytes ? o->journal_bytes : chm_min(chm_max(journal, JOURNAL_MIN), JOURNAL_MAX);
    p->journal_pages = (uint32_t)chm_max(journal / CHM_KV_PAGE, JOURNAL_PAGES_MIN);
    p->names_pages = pages_for(p->max_namespaces, CHM_KV_NAMES_RECORDS);
    p->index_pages = pages_for(p->max_objects, CHM_KV_INDEX_ENTRIES);
    p->order_pages = pages_for(p->max_objects, CHM_KV_ORDER_NUMBERS);
}

/* Where everything lies; false if there is no room for data. */
static bool set_layout(struct chm_kv_super *p)
{
    uint64_t unit = p->unit_bytes;

    p->names_off = CHM_KV_SUPER_STEP + unit;
    p->index_off = p->names_off + 2ull * p->names_pages * unit;
    p->order_off = p->index_off + 2ull * p->index_pages * unit;
    p->journal_off = p->order_off + p->order_pages * unit;
    p->data_off = chm_round_up(p->journal_off + p->journal_pages * unit, chm_max(DATA_ALIGN, unit));
    if (p->data_off + CHM_STORE_CHUNK_BYTES > p->len) {
        return false;
    }
    p->data_bytes = (p->len - p->data_off) / unit * unit;
    return true;
}

/* Could plan have made it? A right sum does not say so: another writer may have made the sum. */
bool chm_kv_layout_is_sound(const struct chm_kv_super *p)
{
    struct chm_kv_super as_made = *p;
    uint64_t unit = p->unit_bytes;

    if (unit < CHM_KV_PAGE || unit % CHM_KV_PAGE != 0 || unit > CHM_KV_SUPER_STEP ||
        p->len % unit != 0 || p->len > UINT64_MAX / 2 || p->max_objects < 1 ||
        p->max_objects > OBJECTS_MAX || p->max_namespaces < 1 ||
        p->max_namespaces > NAMESPACES_MAX || p->journal_pages < JOURNAL_PAGES_MIN ||
        p->journal_pages > JOURNAL_MAX / CHM_KV_PAGE || p->journal_tail < 1 ||
        p->names_pages != pages_for(p->max_namespaces, CHM_KV_NAMES_RECORDS) ||
        p->index_pages != pages_for(p->max_objects, CHM_KV_INDEX_ENTRIES) ||
        p->order_pages != pages_for(p->max_objects, CHM_KV_ORDER_NUMBERS) ||
        !set_layout(&as_made)) {
        return false;
    }
    return memcmp(&as_made, p, sizeof(as_made)) == 0;
}

static int plan(struct chm_store *s, const struct chm_store_format_options *o,
                struct chm_error *err)
{
    struct chm_kv_super *p = &s->super;
    uint64_t capacity = s->dev->map.capacity_bytes, unit = s->unit;

    if (o->base % unit != 0 || o->base >= capacity || o->len > capacity - o->base ||
        o->max_objects > OBJECTS_MAX || o->max_namespaces > NAMESPACES_MAX ||
        o->journal_bytes > JOURNAL_MAX) {
        return fail(err, -EINVAL,
                    "base, len, max_objects, max_namespaces or journal_bytes is out "
                    "of its range");
    }
    *p = (struct chm_kv_super){
        .version = CHM_KV_VERSION,
        .sum_kind = CHM_KV_SUM_XXH3,
        .unit_bytes = (uint32_t)unit,
        .base = o->base,
        .len = (o->len ? o->len : capacity - o->base) / unit * unit,
        .journal_tail = 1,
    };
    set_counts(p, o);
    if (!set_layout(p)) {
        snprintf(err->text, sizeof(err->text),
                 "%llu bytes are too few: metadata for %u objects takes %llu, and 1 MiB of data is "
                 "the least",
                 (unsigned long long)p->len, p->max_objects, (unsigned long long)p->data_off);
        return fail(err, -ENOSPC, "");
    }
    return getrandom(p->id, sizeof(p->id), 0) == sizeof(p->id) ? 0 : -EIO;
}

/* There must be no store yet. */
static int check_empty(struct chm_store *s, struct chm_error *err)
{
    struct chm_kv_super page;

    for (int i = 0; i < 2; i++) {
        int rc = chm_kv_read(s, s->base + (uint64_t)i * CHM_KV_SUPER_STEP, &page, sizeof(page));

        if (rc < 0) {
            return fail(err, rc, "the device cannot be read");
        }
        if (memcmp(page.magic, "CHMSTORE", sizeof(page.magic)) == 0) {
            return fail(err, -EEXIST,
                        "there is a store already: force it if what is in it may be lost");
        }
    }
    return 0;
}

static int write_both(struct chm_store *s)
{
    int rc = 0;

    for (int i = 0; i < 2 && rc == 0; i++) {
        rc = chm_kv_super_write(s, true);
    }
    return rc < 0 ? rc : chm_flush(s->dev, KV_DEVICE_NS);
}

static int format(struct chm_store *s, const struct chm_store_format_options *o,
                  struct chm_error *err)
{
    int rc = plan(s, o, err);

    if (rc < 0) {
        return rc;
    }
    if (!s->dev->medium->caps.contents) {
        return fail(err, -EOPNOTSUPP, "the device keeps no bytes");
    }
    s->base = o->base;
    rc = chm_door_claim(s->dev, s->base, s->super.len);
    if (rc < 0) {
        return fail(err, rc, "a store is open here");
    }
    rc = o->force ? 0 : check_empty(s, err);
    rc = rc < 0 ? rc : write_both(s);
    chm_door_unclaim(s->dev, s->base);
    return rc < 0 ? fail(err, rc, "the device cannot be written") : 0;
}

int chm_store_format(chm_dev *dev, const struct chm_store_format_options *o, struct chm_error *err)
{
    static const struct chm_store_format_options DEFAULTS = {.size = sizeof(DEFAULTS)};
    struct chm_error ignored;
    struct chm_store *s;
    int rc = chm_door_check(dev);

    err = err ? err : &ignored;
    *err = (struct chm_error){0};
    o = o ? o : &DEFAULTS;
    if (rc < 0 || o->size != sizeof(*o)) {
        return fail(err, rc < 0 ? rc : -EINVAL, "options of another version of the library");
    }
    s = chm_kv_new(dev);
    if (!s) {
        return fail(err, -ENOMEM, "out of memory");
    }
    s->unit = chm_max(dev->fw->granule, CHM_KV_PAGE);
    rc = format(s, o, err);
    free(s);
    return rc;
}
