/* SPDX-License-Identifier: Apache-2.0 */
/*
 * F19: eight threads put, get, hold, stream and delete 32 keys in room for about half of them, on
 * devices with a thread and real files. Bytes are verified, accounting equals a recount at the end.
 * For the thread and address sanitizers most of all.
 *
 *     test_space_threads [rounds per thread]
 */
#include "rig.h"

#include <pthread.h>

enum {
    THREADS = 8,
    KEYS = 32,
    OBJECT_MAX_PAGES = 32,
    SPACE_BYTES = KEYS / 2 * OBJECT_MAX_PAGES / 2 * PAGE,
    STREAM_MAX = 3,
    ROUNDS = 250,
};

/* What a key stands for; id 0: nothing. */
struct entry {
    struct chm_object o;
    uint64_t seed;
};

struct shop {
    struct rig r;
    chm_space *sp;
    pthread_mutex_t lock;
    struct entry key[KEYS];
    uint64_t rounds;
};

struct worker {
    struct shop *shop;
    pthread_t thread;
    uint64_t random, number, puts, full, hits, misses;
    uint8_t buf[OBJECT_MAX_PAGES * PAGE] __attribute__((aligned(PAGE)));
};

static uint64_t pick(struct worker *w, uint64_t below)
{
    return chm_random(&w->random) % below;
}

static struct entry look_up(struct shop *s, uint64_t key)
{
    struct entry e;

    pthread_mutex_lock(&s->lock);
    e = s->key[key];
    pthread_mutex_unlock(&s->lock);
    return e;
}

static struct entry exchange(struct shop *s, uint64_t key, struct entry e)
{
    struct entry old;

    pthread_mutex_lock(&s->lock);
    old = s->key[key];
    s->key[key] = e;
    pthread_mutex_unlock(&s->lock);
    return old;
}

/* Whoever takes an entry out of the table deletes its object: exactly once. */
static void drop_entry(struct shop *s, struct entry e)
{
    if (e.o.id) {
        CHECK_IS(chm_object_delete(s->sp, e.o.id), 0);
        CHECK_IS(chm_object_delete(s->sp, e.o.id), -ENOENT);
    }
}

/* Either in one call, or by hand and now and then given up. */
static int put_object(struct worker *w, uint64_t len, struct chm_object *o)
{
    struct chm_piece_put p;
    int rc;

    if (pick(w, 3)) {
        return chm_put(w->shop->sp, w->buf, len, RIG_LONG, o);
    }
    rc = chm_put_begin(w->shop->sp, len, o);
    if (rc < 0) {
        return rc;
    }
    rc = chm_put_piece(w->shop->sp, o->id, &p);
    CHECK(rc == 0 || rc == -EAGAIN);
    if (rc < 0 || pick(w, 4) == 0) {
        CHECK_IS(chm_put_abort(w->shop->sp, o->id), 0);
        return -EAGAIN;
    }
    CHECK_EQ(p.len, len);
    memcpy(p.data, w->buf, len);
    CHECK_IS(chm_put_commit(w->shop->sp, o->id), 0);
    return 0;
}

static void act_put(struct worker *w)
{
    uint64_t len = 8 * (1 + pick(w, OBJECT_MAX_PAGES * PAGE / 8)), key = pick(w, KEYS);
    struct entry e = {.seed = w->number << 32 | ++w->puts};
    int rc;

    fill(w->buf, 0, len, e.seed);
    rc = put_object(w, len, &e.o);
    if (rc == 0) {
        drop_entry(w->shop, exchange(w->shop, key, e));
        return;
    }
    CHECK(rc == -ENOSPC || rc == -EAGAIN);
    w->full++;
    drop_entry(w->shop, exchange(w->shop, key, (struct entry){0}));
}

/* Reading by id: the whole object, or it is gone. */
static void act_read(struct worker *w)
{
    struct entry e = look_up(w->shop, pick(w, KEYS));
    uint64_t from = e.o.id ? pick(w, 2) * pick(w, e.o.len) : 0;
    int rc = e.o.id ? chm_object_read(w->shop->sp, e.o.id, from, w->buf, e.o.len - from, RIG_LONG)
                    : -ENOENT;

    CHECK(rc == 0 || rc == -ENOENT);
    if (rc == 0) {
        CHECK_HOLDS(w->buf, from, e.o.len - from, e.seed);
    }
    w->hits += rc == 0;
    w->misses += rc < 0;
}

/* What is held stays readable at its address, deleted or not. */
static bool hold(struct worker *w, struct entry *e)
{
    *e = look_up(w->shop, pick(w, KEYS));
    if (!e->o.id || chm_object_hold(w->shop->sp, e->o.id) < 0) {
        w->misses++;
        return false;
    }
    w->hits++;
    return true;
}

static void act_stage(struct worker *w)
{
    struct entry e;
    uint64_t whole, req;

    if (!hold(w, &e)) {
        return;
    }
    whole = chm_round_up(e.o.len, PAGE);
    req = rig_issue(&w->shop->r, e.o.addr, whole);
    CHECK_IS(chm_wait(w->shop->r.dev, req, RIG_LONG), 0);
    CHECK_HOLDS(rig_view(&w->shop->r, req, whole), 0, e.o.len, e.seed);
    if (pick(w, 2)) { /* the view outlives the hold: the window keeps its bytes */
        CHECK_IS(chm_object_drop(w->shop->sp, e.o.id), 0);
        CHECK_HOLDS(rig_view(&w->shop->r, req, whole), 0, e.o.len, e.seed);
        CHECK_IS(chm_release(w->shop->r.dev, req), 0);
    } else {
        CHECK_IS(chm_release(w->shop->r.dev, req), 0);
        CHECK_IS(chm_object_drop(w->shop->sp, e.o.id), 0);
    }
}

static void act_stream(struct worker *w)
{
    const struct chm_stream_options o = {.segment_bytes = 8 * PAGE};
    struct entry e[STREAM_MAX];
    struct chm_range range[STREAM_MAX];
    struct chm_piece p;
    uint32_t n = 0, want = 1 + (uint32_t)pick(w, STREAM_MAX);
    chm_stream *s;
    int rc;

    for (uint32_t i = 0; i < want; i++) {
        n += hold(w, &e[n]);
    }
    for (uint32_t i = 0; i < n; i++) {
        range[i] = (struct chm_range){.addr = e[i].o.addr, .len = chm_round_up(e[i].o.len, PAGE)};
    }
    if (n == 0) {
        return;
    }
    CHECK_IS(chm_stream_open(w->shop->r.dev, range, n, &o, &s), 0);
    while ((rc = chm_stream_next(s, RIG_LONG, &p)) == 0) {
        uint64_t len = e[p.object].o.len;

        CHECK_HOLDS(p.data, p.offset, chm_min(p.len, len - p.offset), e[p.object].seed);
        CHECK_IS(chm_stream_release(s, p.req), 0);
        if (pick(w, 20) == 0) {
            rc = -ENODATA; /* enough of it */
            break;
        }
    }
    CHECK_IS(rc, -ENODATA);
    CHECK_IS(chm_stream_close(s), 0);
    while (n-- > 0) {
        CHECK_IS(chm_object_drop(w->shop->sp, e[n].o.id), 0);
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;

    for (uint64_t i = 0; i < w->shop->rounds; i++) {
        switch (pick(w, 8)) {
        case 0:
        case 1:
        case 2:
            act_put(w);
            break;
        case 3:
            drop_entry(w->shop, exchange(w->shop, pick(w, KEYS), (struct entry){0}));
            break;
        case 4:
        case 5:
            act_read(w);
            break;
        case 6:
            act_stage(w);
            break;
        default:
            act_stream(w);
        }
        space_stats(w->shop->sp);
    }
    return NULL;
}

/* The counters say what the table says. */
static void recount(struct shop *s)
{
    uint64_t used = 0, payload = 0, objects = 0;
    struct chm_space_stats st = space_stats(s->sp);

    for (uint32_t i = 0; i < KEYS; i++) {
        used += chm_round_up(s->key[i].o.len, PAGE);
        payload += s->key[i].o.len;
        objects += s->key[i].o.id != 0;
    }
    CHECK_EQ(st.used_bytes, used);
    CHECK_EQ(st.payload_bytes, payload);
    CHECK_EQ(st.objects, objects);
    CHECK_EQ(st.puts, st.deletes + objects);
    CHECK_EQ(st.held + st.puts_open + st.deleting, 0);
}

static void run_workers(struct shop *s)
{
    static struct worker worker[THREADS];
    uint64_t hits = 0, full = 0;

    for (uint32_t i = 0; i < THREADS; i++) {
        worker[i] = (struct worker){.shop = s, .number = i + 1, .random = i + 1};
        CHECK_EQ(pthread_create(&worker[i].thread, NULL, work, &worker[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(worker[i].thread, NULL), 0);
        hits += worker[i].hits;
        full += worker[i].full;
    }
    CHECK(hits > 0 && full > 0); /* it did happen */
}

/* False: no such medium here. */
static bool test(const char *media, uint64_t rounds)
{
    const struct chm_space_options o = {.base = MIB, .len = SPACE_BYTES, .objects_max = 2 * KEYS};
    static struct shop s;

    memset(&s, 0, sizeof(s));
    s.rounds = rounds;
    pthread_mutex_init(&s.lock, NULL);
    rig_files(&s.r, media, 1, 8 * MIB);
    s.r.opt.thread = 1;
    if (!rig_try_open(&s.r)) {
        rig_unlink(&s.r);
        return false;
    }
    CHECK_IS(chm_space_open(s.r.dev, &o, &s.sp), 0);
    run_workers(&s);
    recount(&s);
    for (uint32_t i = 0; i < KEYS; i++) {
        drop_entry(&s, s.key[i]);
    }
    space_check_empty(s.sp);
    CHECK_IS(chm_space_close(s.sp), 0);
    rig_check_quiet(&s.r);
    rig_close(&s.r);
    pthread_mutex_destroy(&s.lock);
    return true;
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 0) : ROUNDS;

    test("sync", rounds);
    if (!test("uring", rounds)) {
        printf("io_uring is refused here: tried on sync only\n");
    }
    return 0;
}
