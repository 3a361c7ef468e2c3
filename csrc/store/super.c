/* SPDX-License-Identifier: Apache-2.0 */
/*
 * super.c - the two superblocks: written in turn, the newest with a right sum counts.
 *
 * If the other one is damaged, nobody knows whether it was newer, so a store is taken for clean
 * only if both are right. The journal keeps what either of them needs (journal.c).
 */
#include <errno.h>
#include <stdio.h>

#include "store/kv.h"

static const char MAGIC[9] = "CHMSTORE";

enum super_verdict { SUPER_GOOD, SUPER_FOREIGN, SUPER_DAMAGED, SUPER_NEWER };

void chm_kv_super_seal(struct chm_kv_super *p)
{
    memcpy(p->magic, MAGIC, sizeof(p->magic));
    p->sum = chm_sum_once((uint8_t *)p + 8, sizeof(*p) - 8, 0);
}

static uint64_t super_off(uint64_t generation)
{
    return generation % 2 * CHM_KV_SUPER_STEP;
}

int chm_kv_super_write(struct chm_store *s, bool wait)
{
    struct chm_kv_super *p = &s->super;
    int rc;

    if (s->opened_ns) {
        p->life_bytes = s->life_bytes + s->stats.object_bytes + s->stats.metadata_bytes;
        p->life_open_ns = s->life_open_ns + chm_now(s->dev) - s->opened_ns;
    }
    p->generation++;
    chm_kv_super_seal(p);
    rc = wait ? chm_kv_write_page_wait(s, super_off(p->generation), p)
              : chm_kv_write_page(s, super_off(p->generation), p);
    p->generation -= rc < 0;
    s->stats.metadata_bytes += rc == 0 && !wait ? s->unit : 0;
    return rc;
}

static enum super_verdict super_look(const struct chm_kv_super *p)
{
    if (memcmp(p->magic, MAGIC, sizeof(p->magic)) != 0) {
        return SUPER_FOREIGN;
    }
    if (p->sum != chm_sum_once((const uint8_t *)p + 8, sizeof(*p) - 8, 0)) {
        return SUPER_DAMAGED;
    }
    return p->version > CHM_KV_VERSION || p->features != 0 || p->sum_kind != CHM_KV_SUM_XXH3
               ? SUPER_NEWER
               : SUPER_GOOD;
}

static int super_refuse(enum super_verdict v, const struct chm_kv_super *p, struct chm_error *err)
{
    if (v == SUPER_NEWER) {
        snprintf(err->text, sizeof(err->text),
                 "the store has format version %u with features 0x%x, this library knows version "
                 "%d: use a newer one",
                 p->version, p->features, CHM_KV_VERSION);
        return -EPROTO;
    }
    if (v == SUPER_DAMAGED) {
        snprintf(err->text, sizeof(err->text),
                 "both superblocks of the store are damaged: nothing can be read; format it anew");
        return -EBADMSG;
    }
    snprintf(err->text, sizeof(err->text), "there is no store here: format it first");
    return -ENOENT;
}

/* Is it of this very range and of this device? */
static int super_check_range(struct chm_store *s, struct chm_error *err)
{
    struct chm_kv_super *p = &s->super;
    uint64_t capacity = s->dev->map.capacity_bytes;
    uint64_t len = s->opt.len ? s->opt.len : capacity - s->base;

    if (p->base != s->base) {
        snprintf(err->text, sizeof(err->text),
                 "the store was formatted at base %llu and is opened at %llu",
                 (unsigned long long)p->base, (unsigned long long)s->base);
        return -EXDEV;
    }
    if (!chm_kv_layout_is_sound(p)) {
        snprintf(err->text, sizeof(err->text),
                 "the superblock's sizes do not fit together: nothing can be read; format it anew");
        return -EBADMSG;
    }
    len -= len % p->unit_bytes;
    if (p->len < len && s->opt.grow) {
        /* Written by mark_open. Until the other superblock is written too, whoever believes that
         * one has to grow again. */
        p->len = len;
        p->data_bytes = (len - p->data_off) / p->unit_bytes * p->unit_bytes;
    }
    if (p->len != len) {
        snprintf(err->text, sizeof(err->text),
                 "the store was formatted for %llu bytes, the range has %llu%s",
                 (unsigned long long)p->len, (unsigned long long)len,
                 p->len > len ? ": the device has become smaller"
                              : ": open it with grow to use all of it");
        return -EXDEV;
    }
    if (p->unit_bytes % s->dev->fw->granule != 0) {
        snprintf(err->text, sizeof(err->text),
                 "the store has units of %u bytes, the device now writes %llu at once",
                 p->unit_bytes, (unsigned long long)s->dev->fw->granule);
        return -EXDEV;
    }
    return 0;
}

int chm_kv_super_read(struct chm_store *s, struct chm_error *err)
{
    static const struct chm_kv_super NOTHING = {0};
    struct chm_kv_super *both = chm_kv_map(s, 2 * sizeof(*both));
    enum super_verdict v[2];
    int best = 0;
    bool pair;

    if (!both) {
        return -ENOMEM;
    }
    for (int i = 0; i < 2; i++) {
        if (chm_kv_read(s, s->base + (uint64_t)i * CHM_KV_SUPER_STEP, &both[i], CHM_KV_PAGE) < 0) {
            both[i] = NOTHING; /* as good as damaged, if the other one is good */
        }
        v[i] = super_look(&both[i]);
    }
    if (v[0] != SUPER_GOOD || (v[1] == SUPER_GOOD && both[1].generation > both[0].generation)) {
        best = 1;
    }
    if (v[0] == SUPER_NEWER || v[1] == SUPER_NEWER || v[best] != SUPER_GOOD) {
        best = v[0] > v[1] ? 0 : 1;
        return super_refuse(v[best], &both[best], err);
    }
    s->super = both[best];
    /* One of another store: formatting was cut off, and what it replaced may have been newer. */
    pair = v[!best] == SUPER_GOOD && memcmp(both[0].id, both[1].id, sizeof(both[0].id)) == 0;
    s->info.clean = s->super.clean && pair;
    s->info.recovered_damaged += v[!best] != SUPER_GOOD;
    s->journal.safe_tail = s->journal.tail = s->super.journal_tail;
    if (pair) {
        s->journal.safe_tail = chm_min(both[!best].journal_tail, s->super.journal_tail);
    }
    return super_check_range(s, err);
}
