/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_open.c - opening, stopping and closing a store.
 *
 *   OPEN -> STOPPING (no new jobs; those there end) -> closed: everything durable, the index
 *   written, the superblock clean
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "store/recover.h"

enum {
    JOBS = 256,
    KEYS = 16384,
    READS = 512,
    LEASES = 1024,
    FREE_PERCENT = 2,
    PINS_MAX = 60000, /* keys and leases together: pins of an entry are 16 bits */
    PIECE_SHARE = 4,  /* a piece of a put is at most this part of the write buffer */
    GRACE_NS = 100000000,
};

static const uint64_t SYNC_NS = CHM_SECOND, SYNC_BYTES = 512ull << 20;
static const uint64_t PUBLISH_NS = CHM_SECOND / 4;

void chm_store_options_init(struct chm_store_options *o)
{
    *o = (struct chm_store_options){
        .size = sizeof(*o),
        .jobs_max = JOBS,
        .keys_max = KEYS,
        .reads_max = READS,
        .leases_max = LEASES,
        .free_percent = FREE_PERCENT,
        .sync_interval_ns = SYNC_NS,
        .sync_bytes = SYNC_BYTES,
        .publish_interval_ns = PUBLISH_NS,
    };
}

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value ? value : fallback;
}

static int settle_options(struct chm_store *s, const struct chm_store_options *o,
                          struct chm_error *err)
{
    s->opt = *o;
    s->opt.jobs_max = or_default(o->jobs_max, JOBS);
    s->opt.keys_max = or_default(o->keys_max, KEYS);
    s->opt.reads_max = or_default(o->reads_max, READS);
    s->opt.leases_max = or_default(o->leases_max, LEASES);
    s->opt.sync_interval_ns = o->sync_interval_ns ? o->sync_interval_ns : SYNC_NS;
    s->opt.sync_bytes = o->sync_bytes ? o->sync_bytes : SYNC_BYTES;
    s->opt.publish_interval_ns = o->publish_interval_ns ? o->publish_interval_ns : PUBLISH_NS;
    s->evict = chm_kv_evict_of(o->eviction);
    if (!s->evict) {
        snprintf(err->text, sizeof(err->text), "no eviction \"%.40s\": prefix-tail, lru or fifo",
                 o->eviction);
        return -EINVAL;
    }
    if ((uint64_t)s->opt.keys_max + s->opt.leases_max > PINS_MAX || s->opt.free_percent > 50 ||
        s->opt.jobs_max > PINS_MAX) {
        snprintf(err->text, sizeof(err->text),
                 "keys_max and leases_max are at most %d together, free_percent 50", PINS_MAX);
        return -EINVAL;
    }
    s->base = o->base;
    if (o->base >= s->dev->map.capacity_bytes || o->len > s->dev->map.capacity_bytes - o->base) {
        snprintf(err->text, sizeof(err->text), "base and len lie beyond the end of the device");
        return -EINVAL;
    }
    return 0;
}

static void init_lists(struct chm_store *s)
{
    struct chm_link *links[] = {&s->free_jobs, &s->puts,       &s->reads, &s->syncs,
                                &s->ended,     &s->free_tasks, &s->active};
    struct chm_kv_list *lists[] = {&s->sync.fresh,    &s->sync.flushing, &s->sync.ready,
                                   &s->sync.dying,    &s->sync.logged,   &s->sync.logging,
                                   &s->sync.recording};

    for (size_t i = 0; i < CHM_COUNT(links); i++) {
        chm_list_init(links[i]);
    }
    for (size_t i = 0; i < CHM_COUNT(lists); i++) {
        chm_kv_list_init(lists[i]);
    }
    s->orphan_cursor = CHM_KV_NONE;
    s->event_fd = -1;
    s->publish = (struct chm_kv_publish){.fd = -1, .next_ns = UINT64_MAX};
    s->free_head = CHM_KV_NONE;
}

static uint32_t bits_for(uint32_t n)
{
    return n == 0 ? 0 : 32 - (uint32_t)__builtin_clz(n);
}

/* Sizes that follow from the superblock and the device. */
static void set_sizes(struct chm_store *s)
{
    const struct chm_fw *fw = s->dev->fw;

    s->unit = s->super.unit_bytes;
    s->data = s->base + s->super.data_off;
    s->max = s->super.max_objects;
    s->slot_count = chm_kv_directory_slots(s->max);
    s->number_bits = bits_for(s->max);
    s->head_stride = chm_round_up(KV_HEAD_BYTES, s->unit);
    s->piece_max = chm_min(CHM_STORE_CHUNK_BYTES, fw->wbuf.bytes / PIECE_SHARE);
    s->piece_max = chm_max(s->piece_max / s->unit, 1) * s->unit;
    s->stage_max = chm_min(CHM_STORE_CHUNK_BYTES, fw->window.bytes / PIECE_SHARE);
    s->stage_max = chm_max(s->stage_max / s->unit, 1) * s->unit;
    s->align = chm_max(chm_max(s->dev->medium->caps.align_bytes, s->dev->medium->caps.block_bytes),
                       CHM_PAGE_BYTES);
}

static int map_memory(struct chm_store *s)
{
    s->entries = chm_kv_map(s, s->max * sizeof(*s->entries));
    s->links = chm_kv_map(s, s->max * sizeof(*s->links));
    s->slots = chm_kv_map(s, s->slot_count * sizeof(*s->slots));
    s->spaces = chm_kv_map(s, s->super.max_namespaces * sizeof(*s->spaces));
    return s->entries && s->links && s->slots && s->spaces ? 0 : -ENOMEM;
}

/* From now on the store is not clean, and journal pages are of a new epoch. */
static int mark_open(struct chm_store *s)
{
    int rc;

    s->super.clean = 0;
    s->super.epoch++;
    rc = chm_kv_super_write(s, true);
    return rc < 0 ? rc : chm_flush(s->dev, KV_DEVICE_NS);
}

static int bring_up(struct chm_store *s, struct chm_error *err)
{
    uint64_t begin = chm_now(s->dev);
    int rc = chm_kv_super_read(s, err);

    if (rc < 0) {
        return rc;
    }
    set_sizes(s);
    s->opened_ns = chm_max(begin, 1);
    s->life_bytes = s->super.life_bytes;
    s->life_open_ns = s->super.life_open_ns;
    rc = map_memory(s);
    rc = rc < 0 ? rc : chm_kv_place_open(s);
    rc = rc < 0 ? rc : chm_kv_tables_open(s);
    rc = rc < 0 ? rc : chm_kv_journal_open(s);
    rc = rc < 0 ? rc : chm_kv_jobs_open(s);
    rc = rc < 0 ? rc : chm_kv_recover(s, err);
    rc = rc < 0 ? rc : mark_open(s);
    s->sync.last_ns = chm_now(s->dev);
    s->info.open_ns = s->sync.last_ns - begin;
    return rc;
}

static void dispose(struct chm_store *s)
{
    chm_kv_place_close(s);
    chm_kv_unmap_all(s);
    if (s->event_fd >= 0) {
        close(s->event_fd);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int fail(struct chm_error *err, int rc, const char *text)
{
    err->code = rc;
    if (!err->text[0]) {
        snprintf(err->text, sizeof(err->text), "%s", text);
    }
    return rc;
}

static int open_claimed(struct chm_store *s, struct chm_error *err)
{
    uint64_t len = s->opt.len ? s->opt.len : s->dev->map.capacity_bytes - s->base;
    int rc = chm_door_claim(s->dev, s->base, len);

    if (rc < 0) {
        return fail(err, rc, "a store is open on part of this range already");
    }
    rc = bring_up(s, err);
    if (rc == 0) {
        chm_kv_publish_open(s);
    }
    if (rc == 0 && s->dev->threaded) {
        rc = chm_kv_worker_start(s);
    }
    if (rc < 0) {
        chm_kv_publish_close(s);
        chm_door_unclaim(s->dev, s->base);
    }
    return rc;
}

int chm_store_open(chm_dev *dev, const struct chm_store_options *o, chm_store **out,
                   struct chm_error *err)
{
    struct chm_store_options defaults;
    struct chm_error ignored;
    struct chm_store *s;
    int rc = chm_door_check(dev);

    err = err ? err : &ignored;
    *err = (struct chm_error){0};
    chm_store_options_init(&defaults);
    o = o ? o : &defaults;
    if (rc < 0 || !out || o->size != sizeof(*o)) {
        return fail(err, rc < 0 ? rc : -EINVAL, "options of another version of the library");
    }
    s = chm_kv_new(dev);
    if (!s) {
        return fail(err, -ENOMEM, "out of memory");
    }
    pthread_mutex_init(&s->lock, NULL);
    init_lists(s);
    rc = settle_options(s, o, err);
    rc = rc < 0 ? rc : open_claimed(s, err);
    if (rc < 0) {
        dispose(s);
        return fail(err, rc, strerror(-rc));
    }
    *out = s;
    return 0;
}

/* ---- stop */

static bool none_running(const struct chm_store *s, uint64_t arg)
{
    (void)arg;
    return s->stats.jobs == s->stats.jobs_ended;
}

static void stop_list(struct chm_link *list)
{
    for (struct chm_link *l = chm_list_first(list); l; l = chm_list_next(list, l)) {
        struct chm_kv_job *j = CHM_CONTAINER(l, struct chm_kv_job, link);

        j->stop = j->stop ? j->stop : -ESHUTDOWN;
    }
}

static int wait_always(struct chm_store *s, bool (*cond)(const struct chm_store *s, uint64_t arg),
                       uint64_t deadline_ns)
{
    int rc;

    do {
        rc = chm_kv_wait(s, cond, 0, deadline_ns);
    } while (rc == -EINTR);
    return rc;
}

int chm_store_stop(chm_store *s, uint64_t timeout_ns)
{
    int rc = s ? chm_door_check(s->dev) : -EINVAL;

    if (rc < 0) {
        return rc;
    }
    atomic_store(&s->stopping, true);
    rc = wait_always(s, none_running, chm_door_deadline(s->dev, timeout_ns));
    if (rc == 0) {
        return 0;
    }
    pthread_mutex_lock(&s->lock);
    stop_list(&s->puts);
    stop_list(&s->reads);
    stop_list(&s->syncs);
    pthread_mutex_unlock(&s->lock);
    chm_kv_kick(s);
    return wait_always(s, none_running, chm_door_deadline(s->dev, GRACE_NS));
}

/* ---- close */

static bool is_synced(const struct chm_store *s, uint64_t arg)
{
    (void)arg;
    return (chm_kv_sync_idle(s) && s->sync.durable >= s->sync.wanted) || s->degraded;
}

static bool is_checked(const struct chm_store *s, uint64_t arg)
{
    (void)arg;
    return (s->check.state == KV_CHECK_IDLE && !s->check.wanted) || s->degraded;
}

/* Make it durable, write the index and the order, say that it is clean. */
static int settle(struct chm_store *s, uint64_t deadline_ns)
{
    int rc;

    pthread_mutex_lock(&s->lock);
    s->sync.hurry = true;
    pthread_mutex_unlock(&s->lock);
    chm_kv_kick(s);
    rc = wait_always(s, is_synced, deadline_ns);
    rc = rc < 0 ? rc : wait_always(s, is_checked, deadline_ns);
    if (rc < 0 || s->degraded) {
        return rc < 0 ? rc : -EIO;
    }
    pthread_mutex_lock(&s->lock);
    rc = chm_kv_save_order(s);
    s->check.closing = s->check.wanted = true;
    pthread_mutex_unlock(&s->lock);
    chm_kv_kick(s);
    rc = rc < 0 ? rc : wait_always(s, is_checked, deadline_ns);
    return rc < 0 ? rc : s->degraded ? -EIO : 0;
}

/* Reads into buffers of callers hang. Their jobs will never be told, and what they write to is
 * kept; the device that hangs keeps it too. */
static int give_up(struct chm_store *s)
{
    chm_kv_worker_stop(s);
    chm_kv_publish_close(s);
    chm_door_unclaim(s->dev, s->base);
    return -ETIMEDOUT;
}

static int finish(struct chm_store *s, uint64_t deadline_ns)
{
    int rc = s->crashed ? 0 : settle(s, deadline_ns);
    int gone = s->crashed ? 0 : wait_always(s, chm_kv_heads_gone, deadline_ns);

    chm_kv_worker_stop(s);
    chm_kv_publish_close(s);
    if (s->sync.flush) {
        chm_door_end(s->dev, s->sync.flush, CHM_OP_RELEASE);
    }
    chm_door_unclaim(s->dev, s->base);
    if (gone < 0) {
        return gone; /* a read of a header hangs: what it writes to is kept, as in give_up */
    }
    dispose(s);
    return rc;
}

int chm_store_close(chm_store *s, uint64_t timeout_ns)
{
    int rc = s ? chm_door_check(s->dev) : 0;
    uint64_t deadline_ns;
    bool busy;

    if (!s || rc < 0) {
        return rc;
    }
    deadline_ns = chm_door_deadline(s->dev, timeout_ns);
    rc = chm_store_stop(s, timeout_ns);
    pthread_mutex_lock(&s->lock);
    busy = s->stats.jobs_ended > 0 || s->stats.leases > 0;
    pthread_mutex_unlock(&s->lock);
    if (busy) {
        return -EBUSY;
    }
    return rc < 0 ? give_up(s) : finish(s, deadline_ns);
}

/* ---- sync */

static bool is_durable(const struct chm_store *s, uint64_t flush)
{
    return s->sync.durable >= flush || s->degraded;
}

int chm_store_sync(chm_store *s, uint64_t timeout_ns)
{
    int rc = s ? chm_door_check(s->dev) : -EINVAL;
    uint64_t flush, losses;

    if (rc < 0) {
        return rc;
    }
    pthread_mutex_lock(&s->lock);
    flush = chm_kv_sync_want(s);
    losses = s->sync.losses;
    pthread_mutex_unlock(&s->lock);
    chm_kv_kick(s);
    rc = chm_kv_wait(s, is_durable, flush, chm_door_deadline(s->dev, timeout_ns));
    pthread_mutex_lock(&s->lock);
    rc = rc == 0 && (s->degraded || s->sync.losses != losses) ? -EIO : rc;
    pthread_mutex_unlock(&s->lock);
    return rc;
}
