/* SPDX-License-Identifier: Apache-2.0 */
/*
 * put.c - puts: one object at a time, in pieces, in the order of jobs and keys.
 *
 *   key: looked up -> DUPLICATE
 *                  -> entry and space taken (PUTTING) -> pieces: room in the write buffer, copy and
 *                     sum, commit -> header -> visible
 *                  -> refused: nothing is left of it, and the rest of its chain is refused too
 *
 * The sum is made over the bytes in the write buffer, the very ones that are written, in steps
 * small enough to be still in the cache. Objects of more than one chunk get a header in front with
 * one sum per chunk; it is written last, and the entry's sum covers it.
 *
 * A job that may wait for room stays at the head of the row until its deadline; those behind it
 * would need the same room.
 *
 * Called by the worker with the lock held; pieces are copied without it. Only the worker touches
 * the put in hand.
 */
#include <errno.h>

#include "store/kv.h"

enum {
    COPY_STEP = 64 << 10,
    TURN_BYTES = 1 << 20,
    TURN_KEYS = 256,
    RETRY_NS = 200000,
};

/* ---- ends of keys */

static void count_refusal(struct chm_store *s, int32_t status)
{
    uint64_t *skipped = status == -EAGAIN    ? &s->stats.skipped_buffer
                        : status == -ENOSPC  ? &s->stats.skipped_space
                        : status == -EDQUOT  ? &s->stats.skipped_quota
                        : status == -EMFILE  ? &s->stats.skipped_objects
                        : status == -ENOLINK ? &s->stats.skipped_chain
                                             : NULL;

    if (skipped) {
        s->stats.skipped++;
        (*skipped)++;
    } else {
        s->stats.put_failed++;
    }
}

static uint32_t parts_of(const struct chm_kv_job *j, uint32_t index)
{
    return j->job.nparts ? j->job.nparts[index] : 1;
}

static void set_before(struct chm_store *s, struct chm_kv_job *j, uint32_t number)
{
    if (number != CHM_KV_NONE) {
        chm_kv_pin(s, number);
    }
    if (j->before != CHM_KV_NONE) {
        chm_kv_unpin(s, j->before);
    }
    j->before = number;
}

/* The duplicates up to here were used; with chains their ancestors are renewed with the last. */
static void touch_before(struct chm_store *s, struct chm_kv_job *j)
{
    if (j->touch && j->before != CHM_KV_NONE && chm_kv_visible(chm_kv_at(s, j->before))) {
        s->evict->touch(s, &j->before, 1);
    }
    j->touch = false;
}

static bool is_chain(const struct chm_kv_job *j)
{
    return !(j->job.flags & CHM_STORE_ALONE);
}

/* The key at the cursor has its status. The job may be gone afterwards. */
static void key_done(struct chm_store *s, struct chm_kv_job *j, int32_t status)
{
    uint32_t index = j->cursor++;

    s->stats.put_open--;
    j->part += parts_of(j, index);
    if (status < 0) {
        count_refusal(s, status);
        j->broken = j->broken || is_chain(j);
    } else if (status == CHM_STORE_DUPLICATE) {
        s->stats.duplicate++;
    } else {
        s->stats.admitted++;
    }
    if (j->open == 1) {
        touch_before(s, j);
        set_before(s, j, CHM_KV_NONE);
    }
    chm_kv_key_end(s, j, index, status);
}

static void put_abort(struct chm_store *s)
{
    if (s->put.entry != CHM_KV_NONE) {
        chm_kv_entry_abort(s, s->put.entry);
        s->put.entry = CHM_KV_NONE;
    }
}

void chm_kv_put_stop(struct chm_store *s, struct chm_kv_job *j)
{
    int32_t status = j->stop;

    if (chm_list_first(&s->puts) == &j->link) {
        put_abort(s);
        s->put.retry_ns = 0;
    }
    for (uint32_t left = j->open; left > 0; left--) {
        key_done(s, j, status);
    }
}

/* ---- begin */

static uint64_t key_bytes(const struct chm_kv_job *j)
{
    uint64_t len = 0;

    for (uint32_t i = 0; i < parts_of(j, j->cursor); i++) {
        len = chm_sat_add(len, j->job.parts[j->part + i].len);
    }
    return len;
}

static void duplicate(struct chm_store *s, struct chm_kv_job *j, uint32_t number)
{
    bool visible = chm_kv_visible(chm_kv_at(s, number));

    if (visible && is_chain(j)) {
        if (j->before != CHM_KV_NONE) {
            chm_kv_adopt(s, number, j->before);
        }
        set_before(s, j, number);
    }
    if (visible && s->evict->chains && is_chain(j)) {
        j->touch = true;
    } else if (visible) {
        s->evict->touch(s, &number, 1);
    }
    key_done(s, j, CHM_STORE_DUPLICATE);
}

/* Space in the namespace: 0 or -EDQUOT. */
static int quota_check(struct chm_store *s, uint32_t ns, uint64_t need)
{
    struct chm_kv_space *space = &s->spaces[ns];
    uint64_t quota = space->name.quota_bytes, objects = 0;

    if (need > quota) {
        return -EDQUOT;
    }
    if (space->used_bytes + need > quota) {
        chm_kv_evict_bytes(s, ns, space->used_bytes + need - quota, &objects);
    }
    return space->used_bytes + need > quota ? -EDQUOT : 0;
}

/* Let go of as much as the object needs; what goes is free when the record of it is durable. */
static int make_room(struct chm_store *s, uint64_t need)
{
    uint64_t gone = 0, objects = 0;

    if (s->limbo_bytes < need) {
        gone = chm_kv_evict_bytes(s, CHM_KV_NONE, need, &objects);
    }
    s->sync.hurry = s->sync.hurry || gone > 0 || s->limbo_bytes > 0;
    return -ENOSPC;
}

/* An entry that was taken and holds nothing. */
static void give_entry(struct chm_store *s, uint32_t number)
{
    chm_kv_at(s, number)->next = s->free_head;
    s->free_head = number;
    s->free_count++;
}

/* Space for an entry. An object of one chunk takes a header more if it has to be split. */
static int place(struct chm_store *s, uint32_t number, uint64_t need)
{
    struct chm_kv_entry *e = chm_kv_at(s, number);
    int rc = chm_kv_place_take(s, number);

    if (rc < 0) {
        return make_room(s, need);
    }
    if (chm_kv_space_bytes(s, e) > need) {
        rc = quota_check(s, e->ns, chm_kv_space_bytes(s, e));
    }
    if (rc < 0) {
        chm_kv_place_give(s, number);
    }
    return rc;
}

static int take(struct chm_store *s, struct chm_kv_job *j, uint64_t len)
{
    struct chm_kv_entry *e;
    uint64_t need = chm_kv_whole_bytes(s, len);
    uint32_t number;
    int rc;

    if (need > s->super.data_bytes) {
        return -ENOSPC;
    }
    rc = quota_check(s, j->job.ns, need);
    if (rc < 0) {
        return rc;
    }
    number = chm_kv_entry_take(s);
    if (number == CHM_KV_NONE) {
        s->sync.hurry = chm_kv_evict_one(s, CHM_KV_NONE) || s->leaving > 0;
        return -EMFILE;
    }
    e = chm_kv_at(s, number);
    e->key = j->job.keys[j->cursor];
    e->ns = j->job.ns;
    e->len = (uint32_t)len;
    rc = place(s, number, need);
    if (rc < 0) {
        give_entry(s, number);
        return rc;
    }
    e->state = KV_PUTTING;
    if (j->before != CHM_KV_NONE) {
        chm_kv_adopt(s, number, j->before);
    }
    chm_kv_directory_add(s, number);
    s->spaces[e->ns].used_bytes += chm_kv_space_bytes(s, e);
    s->stats.used_bytes += chm_kv_space_bytes(s, e);
    s->put.entry = number;
    return 0;
}

static void putter_begin(struct chm_store *s, struct chm_kv_job *j)
{
    struct chm_kv_putter *p = &s->put;
    const struct chm_kv_entry *e = chm_kv_at(s, p->entry);

    p->len = e->len;
    p->done = 0;
    p->part = j->part;
    p->part_off = 0;
    p->head_bytes = e->place & CHM_KV_HAS_HEAD ? chm_kv_head_bytes(s, e->len) : 0;
    chm_kv_place_where(s, p->entry, &p->where);
    memset(p->head, 0, s->head_stride);
}

/* Why the chain cannot go on, or 0. */
static int chain_check(const struct chm_store *s, const struct chm_kv_job *j)
{
    if (j->orphan) {
        return -ENOENT;
    }
    if (j->broken ||
        (j->before != CHM_KV_NONE && !chm_kv_visible(chm_kv_at(s, j->before)) && is_chain(j))) {
        return -ENOLINK;
    }
    return 0;
}

/* -EAGAIN: ask again later. Anything else: go on with the next thing to do. */
static int key_begin(struct chm_store *s, struct chm_kv_job *j)
{
    uint64_t len = key_bytes(j);
    uint32_t number = chm_kv_find(s, j->job.ns, &j->job.keys[j->cursor]);
    int rc = chain_check(s, j);

    rc = rc < 0 ? rc : s->degraded ? -EIO : len == 0 ? -EINVAL : len > KV_OBJECT_MAX ? -E2BIG : 0;
    if (rc == 0 && number != CHM_KV_NONE) {
        duplicate(s, j, number);
        return 0;
    }
    if (rc == 0) {
        touch_before(s, j);
        rc = take(s, j, len);
        if ((rc == -ENOSPC || rc == -EDQUOT || rc == -EMFILE) && (j->job.flags & CHM_STORE_WAIT)) {
            return -EAGAIN;
        }
    }
    if (rc < 0) {
        key_done(s, j, rc);
    } else {
        putter_begin(s, j);
    }
    return 0;
}

/* ---- pieces */

/* Where payload byte `off` lies, and how much of its extent is left from there. */
static uint64_t locate(const struct chm_kv_putter *p, uint64_t off, uint64_t *left)
{
    uint64_t at = p->head_bytes + off;
    uint32_t i = 0;

    while (at >= p->where.extent[i].len) {
        at -= p->where.extent[i++].len;
        CHM_ASSERT(i < p->where.extents);
    }
    *left = p->where.extent[i].len - at;
    return p->where.extent[i].addr + at;
}

/* Copy n bytes from the parts, and add them to the sum. */
static void copy_in(struct chm_kv_putter *p, const struct chm_part *parts, uint8_t *to, uint64_t n)
{
    while (n > 0) {
        uint64_t some = chm_min(chm_min(parts[p->part].len - p->part_off, n), COPY_STEP);

        memcpy(to, (const uint8_t *)parts[p->part].data + p->part_off, some);
        chm_sum_add(&p->sum, to, some);
        p->part_off += some;
        to += some;
        n -= some;
        if (p->part_off == parts[p->part].len) {
            p->part++;
            p->part_off = 0;
        }
    }
}

static void chunk_sum_store(struct chm_store *s)
{
    struct chm_kv_putter *p = &s->put;
    uint64_t sum = chm_sum_end(&p->sum), chunk = (p->done - 1) / CHM_STORE_CHUNK_BYTES;

    if (p->head_bytes) {
        memcpy(p->head + CHM_KV_HEAD_SUMS + chunk * sizeof(sum), &sum, sizeof(sum));
    } else {
        chm_kv_at(s, p->entry)->sum = sum;
    }
}

/* Write one piece. 0, -EAGAIN, or why not. Without the lock. */
static int piece_write(struct chm_store *s, const struct chm_kv_job *j, uint64_t seed,
                       uint64_t *done)
{
    struct chm_kv_putter *p = &s->put;
    uint64_t chunk = p->done / CHM_STORE_CHUNK_BYTES, left;
    struct chm_write w = {.addr = locate(p, p->done, &left)};
    uint64_t n = chm_min(chm_min(p->len, (chunk + 1) * CHM_STORE_CHUNK_BYTES) - p->done, left);
    int32_t status = 0;
    int rc;

    n = chm_min(n, s->piece_max);
    w.len = chm_round_up(n, s->unit);
    rc = chm_write_begin(s->dev, &w, 1);
    if (rc != 1) {
        return rc < 0 ? rc : w.status;
    }
    if (p->done % CHM_STORE_CHUNK_BYTES == 0) {
        chm_sum_begin(&p->sum, seed + chunk);
    }
    copy_in(p, j->job.parts, w.data, n);
    memset((uint8_t *)w.data + n, 0, w.len - n);
    rc = chm_write_commit(s->dev, &w.id, 1, &status);
    *done = n;
    return rc < 0 ? rc : status;
}

static int head_write(struct chm_store *s)
{
    struct chm_kv_putter *p = &s->put;
    struct chm_kv_entry *e = chm_kv_at(s, p->entry);
    struct chm_kv_object_head *h = (struct chm_kv_object_head *)p->head;

    *h = (struct chm_kv_object_head){
        .magic = "CHMOBJ\r\n",
        .len = p->len,
        .key = e->key,
        .ns = e->ns,
        .chunks = (uint32_t)((p->len + CHM_STORE_CHUNK_BYTES - 1) / CHM_STORE_CHUNK_BYTES),
        .extents = p->where.extents,
        .pages = (uint32_t)(p->head_bytes / CHM_KV_PAGE),
    };
    for (uint32_t i = 0; i < p->where.extents; i++) {
        h->extent[i].page = (p->where.extent[i].addr - s->data) / CHM_KV_PAGE;
        h->extent[i].pages = p->where.extent[i].len / CHM_KV_PAGE;
    }
    e->sum = chm_sum_once(p->head, p->head_bytes, chm_kv_seed(e));
    return chm_write(s->dev, p->where.extent[0].addr, p->head, p->head_bytes);
}

static void put_finish(struct chm_store *s, struct chm_kv_job *j)
{
    uint32_t number = s->put.entry;

    s->put.entry = CHM_KV_NONE;
    s->stats.admitted_bytes += s->put.len;
    j->bytes += s->put.len;
    chm_kv_entry_publish(s, number);
    if (is_chain(j)) {
        set_before(s, j, number);
    }
    key_done(s, j, 0);
}

static void note_piece(struct chm_store *s, struct chm_kv_job *j, uint64_t begin_ns, uint64_t n)
{
    j->last_ns = chm_now(s->dev);
    j->first_ns = j->first_ns ? j->first_ns : begin_ns;
    j->work_ns += j->last_ns - begin_ns;
    s->stats.object_bytes += chm_round_up(n, s->unit);
}

/* One piece, or the header. 0: go on; -EAGAIN: later; else the key has failed. */
static int piece(struct chm_store *s, struct chm_kv_job *j, uint64_t *bytes)
{
    struct chm_kv_putter *p = &s->put;
    uint64_t seed = chm_kv_seed(chm_kv_at(s, p->entry)), n = 0, begin_ns;
    int rc;

    if (p->done == p->len) {
        rc = p->head_bytes ? head_write(s) : 0;
        if (rc == 0) {
            s->stats.object_bytes += p->head_bytes;
            put_finish(s, j);
        }
        return rc;
    }
    begin_ns = chm_now(s->dev);
    pthread_mutex_unlock(&s->lock);
    rc = piece_write(s, j, seed, &n);
    pthread_mutex_lock(&s->lock);
    if (rc == 0) {
        note_piece(s, j, begin_ns, n);
        p->done += n;
        *bytes += n;
        if (p->done == p->len || p->done % CHM_STORE_CHUNK_BYTES == 0) {
            chunk_sum_store(s);
        }
    }
    return rc;
}

/* ---- the row */

void chm_kv_put_submit(struct chm_store *s, struct chm_kv_job *j)
{
    uint32_t number;

    s->stats.put_keys += j->job.n;
    s->stats.put_open += j->job.n;
    if (!j->job.parent) {
        return;
    }
    number = chm_kv_find(s, j->job.ns, j->job.parent);
    if (number == CHM_KV_NONE || !chm_kv_visible(chm_kv_at(s, number))) {
        j->orphan = true;
    } else {
        set_before(s, j, number);
        j->touch = true;
    }
}

/* No room now: skip, or ask again in a while. */
static bool wait_or_skip(struct chm_store *s, struct chm_kv_job *j, int rc)
{
    if (rc == -EAGAIN || rc == -EBUSY) {
        if (j->job.flags & CHM_STORE_WAIT) {
            s->put.retry_ns = chm_now(s->dev) + RETRY_NS;
            return false;
        }
        rc = -EAGAIN;
    }
    put_abort(s);
    key_done(s, j, rc);
    return true;
}

bool chm_kv_put_step(struct chm_store *s)
{
    uint64_t bytes = 0;
    bool progress = false;
    uint32_t keys = 0;

    if (chm_list_empty(&s->puts) || chm_now(s->dev) < s->put.retry_ns) {
        return false;
    }
    s->put.retry_ns = 0;
    while (bytes < TURN_BYTES && keys < TURN_KEYS && !chm_list_empty(&s->puts)) {
        struct chm_kv_job *j = CHM_CONTAINER(chm_list_first(&s->puts), struct chm_kv_job, link);
        bool begun = s->put.entry != CHM_KV_NONE;
        int rc;

        if (j->stop) {
            chm_kv_put_stop(s, j);
            progress = true;
            continue;
        }
        rc = begun ? piece(s, j, &bytes) : key_begin(s, j);
        if (rc < 0 && !begun) { /* what was evicted for it has to be made durable first */
            s->put.retry_ns = chm_now(s->dev) + RETRY_NS;
            return progress || s->sync.hurry;
        }
        if (rc < 0 && !wait_or_skip(s, j, rc)) {
            break;
        }
        progress = true;
        keys += s->put.entry == CHM_KV_NONE;
    }
    return progress;
}

uint64_t chm_kv_put_next_ns(const struct chm_store *s)
{
    return chm_list_empty(&s->puts) ? UINT64_MAX : s->put.retry_ns ? s->put.retry_ns : 1;
}
