/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_chains.c - chains and eviction against a model, under all three policies.
 *
 * Keys are the nodes of a forest: chains that share prefixes. Everything is put and used along the
 * path from a root. The model knows for each node when it was used; the store is made to evict one
 * object at a time, and each has to be one that the policy allows.
 *
 * Field reports: F31 (a key put again takes nothing), F33 (three times the capacity), F37 (space
 * after many sizes is whole again), F39 (a scan does not displace what is in use).
 */
#include "store/kv_rig.h"

enum { CHAINS = 12, DEPTH = 10, NODES = CHAINS * DEPTH, STEPS = 1500 };

struct node {
    bool there;
    uint64_t used, put;
};

struct forest {
    struct kv k;
    struct node node[NODES];
    uint64_t random, now;
    const char *policy;
};

/* Chain c follows chain c / 2 for its first c % 5 nodes. */
static uint32_t node_at(uint32_t chain, uint32_t depth)
{
    while (chain > 0 && depth < chain % 5) {
        chain /= 2;
    }
    return chain * DEPTH + depth;
}

static uint32_t parent_of(uint32_t node)
{
    uint32_t depth = node % DEPTH;

    return depth == 0 ? UINT32_MAX : node_at(node / DEPTH, depth - 1);
}

static bool has_child(const struct forest *f, uint32_t node)
{
    for (uint32_t i = 0; i < NODES; i++) {
        if (f->node[i].there && parent_of(i) == node) {
            return true;
        }
    }
    return false;
}

static uint64_t len_of(uint32_t node)
{
    return PAGE + node % 3 * 5000;
}

static bool is(const struct forest *f, const char *policy)
{
    return strcmp(f->policy, policy) == 0;
}

/* Use the first n nodes of a chain, as far as they are there. */
static void model_use(struct forest *f, uint32_t chain, uint32_t n)
{
    f->now++;
    for (uint32_t d = 0; d < n; d++) {
        struct node *x = &f->node[node_at(chain, d)];

        x->used = x->there ? f->now * 1000 + (is(f, "lru") ? d : 0) : 0;
    }
}

static void step_put(struct forest *f, uint32_t chain, uint32_t n)
{
    struct chm_key keys[DEPTH];
    struct chm_part parts[DEPTH];
    static uint8_t bytes[PAGE + 10000];
    int32_t status[DEPTH];
    struct chm_store_job job = {.op = CHM_STORE_PUT,
                                .flags = CHM_STORE_WAIT,
                                .n = n,
                                .keys = keys,
                                .parts = parts,
                                .status = status};

    for (uint32_t d = 0; d < n; d++) {
        keys[d] = kv_key(node_at(chain, d));
        parts[d] = (struct chm_part){.data = bytes, .len = len_of(node_at(chain, d))};
    }
    CHECK_EQ(kv_run(&f->k, &job).ok, n);
    f->now++;
    for (uint32_t d = 0; d < n; d++) {
        struct node *x = &f->node[node_at(chain, d)];

        CHECK_IS(status[d], x->there ? CHM_STORE_DUPLICATE : 0);
        if (!x->there) {
            x->put = x->used = f->now * 1000 + d;
        }
        x->there = true;
    }
    /* With chains a put renews what its new nodes hang on. */
    if (is(f, "prefix-tail")) {
        model_use(f, chain, n);
    } else if (is(f, "lru")) {
        for (uint32_t d = 0; d < n; d++) {
            f->node[node_at(chain, d)].used = f->now * 1000 + d;
        }
    }
}

static uint32_t leading(const struct forest *f, uint32_t chain, uint32_t n)
{
    uint32_t d = 0;

    while (d < n && f->node[node_at(chain, d)].there) {
        d++;
    }
    return d;
}

static void step_look(struct forest *f, uint32_t chain, uint32_t n)
{
    struct chm_key keys[DEPTH];
    uint8_t found[DEPTH];
    uint32_t run = leading(f, chain, n);

    for (uint32_t d = 0; d < n; d++) {
        keys[d] = kv_key(node_at(chain, d));
    }
    CHECK_IS(chm_store_exists(f->k.s, f->k.ns, keys, n, CHM_STORE_TOUCH, found, NULL), run);
    for (uint32_t d = 0; d < n; d++) {
        CHECK_EQ(found[d], f->node[node_at(chain, d)].there);
    }
    if (run > 0) {
        model_use(f, chain, run);
    }
}

/* May this node be the one that goes? */
static bool may_go(const struct forest *f, uint32_t node)
{
    const struct node *x = &f->node[node];

    for (uint32_t i = 0; i < NODES; i++) {
        const struct node *y = &f->node[i];

        if (!y->there || i == node) {
            continue;
        }
        if ((is(f, "fifo") && y->put < x->put) || (is(f, "lru") && y->used < x->used) ||
            (is(f, "prefix-tail") && !has_child(f, i) && y->used / 1000 < x->used / 1000)) {
            return false;
        }
    }
    return !is(f, "prefix-tail") || !has_child(f, node);
}

static void step_evict(struct forest *f)
{
    uint32_t gone = UINT32_MAX, there = 0;

    for (uint32_t i = 0; i < NODES; i++) {
        there += f->node[i].there;
    }
    CHECK_IS(chm_store_evict(f->k.s, UINT32_MAX, 1), there > 0);
    for (uint32_t i = 0; i < NODES && there > 0; i++) {
        if (f->node[i].there && !kv_has(&f->k, i)) {
            CHECK_EQ(gone, UINT32_MAX);
            gone = i;
        }
    }
    if (there > 0) {
        CHECK(gone != UINT32_MAX);
        CHECK(may_go(f, gone));
        f->node[gone].there = false;
    }
}

/* Two chains in one batch. */
static void step_look_two(struct forest *f, uint32_t a, uint32_t b, uint32_t n)
{
    struct chm_key keys[2 * DEPTH];
    uint32_t run_a = leading(f, a, n), run_b = leading(f, b, n);

    for (uint32_t d = 0; d < run_a; d++) {
        keys[d] = kv_key(node_at(a, d));
    }
    for (uint32_t d = 0; d < run_b; d++) {
        keys[run_a + d] = kv_key(node_at(b, d));
    }
    CHECK_IS(chm_store_exists(f->k.s, f->k.ns, keys, run_a + run_b, CHM_STORE_TOUCH, NULL, NULL),
             run_a + run_b);
    f->now++;
    for (uint32_t d = 0; d < run_a + run_b && !is(f, "fifo"); d++) {
        f->node[kv_number(&keys[d])].used = f->now * 1000 + (is(f, "lru") ? d : 0);
    }
}

/* The recency list: every visible entry once, and no child newer than its parent. */
static void check_list(const struct forest *f)
{
    const struct chm_store *s = f->k.s;
    uint64_t seen[NODES + 1] = {0}, n = 0;

    for (uint32_t i = s->spaces[f->k.ns].newest; i != CHM_KV_NONE; i = chm_kv_at(s, i)->next) {
        const struct chm_kv_entry *e = chm_kv_at(s, i);

        CHECK(chm_kv_visible(e) && !seen[kv_number(&e->key)]);
        seen[kv_number(&e->key)] = ++n;
        if (e->parent != CHM_KV_NONE) {
            CHECK(seen[kv_number(&chm_kv_at(s, e->parent)->key)]);
        }
    }
    CHECK_EQ(n, s->stats.objects);
}

static void check_policy(const char *policy, uint64_t seed)
{
    struct forest f = {.policy = policy, .random = seed};

    kv_options(&f.k);
    f.k.o.eviction = policy;
    kv_start(&f.k);
    for (int i = 0; i < STEPS; i++) {
        uint64_t x = chm_random(&f.random);
        uint32_t chain = (uint32_t)(x / 64 % CHAINS), n = 1 + (uint32_t)(x / 1024 % DEPTH);

        if (x % 8 < 2) {
            step_put(&f, chain, n);
        } else if (x % 8 < 4) {
            step_look(&f, chain, n);
        } else if (x % 8 == 4) {
            step_look_two(&f, chain, (uint32_t)(x / 65536 % CHAINS), n);
        } else {
            step_evict(&f);
        }
        check_list(&f);
        if (i % 100 == 99) {
            kv_sync(&f.k);
        }
        if (i % 500 == 499 && is(&f, "prefix-tail")) {
            kv_reopen(&f.k); /* order and parents are kept by a clean close */
        }
    }
    kv_recount(&f.k);
    kv_stop(&f.k);
}

/* ------------------------------------------------------------------ pressure */

/* Whatever is evicted to make room, what is left of each chain is a prefix of it; nothing leaks. */
static void check_pressure(bool crash)
{
    enum { LONG = 20, MANY = 16 };
    struct kv k;
    uint64_t random = 5, len[LONG];
    int32_t status[LONG];

    kv_options(&k);
    k.f.max_objects = 150;
    kv_start(&k);
    for (int i = 0; i < 150; i++) {
        uint64_t chain = chm_random(&random) % MANY, n = 1 + chm_random(&random) % LONG;
        uint64_t put = chain * 100;

        for (uint64_t d = 0; d < n; d++) {
            len[d] = 1 + (put + d) * 7919 % (300 * KIB);
        }
        kv_put_many(&k, put, (uint32_t)n, len, 1, CHM_STORE_WAIT, status);
        for (uint64_t d = 0; d < n; d++) {
            CHECK(status[d] >= 0);
        }
        for (uint64_t c = 0; c < MANY; c++) {
            bool before = true;

            for (uint64_t d = 0; d < LONG; d++) {
                bool now = kv_has(&k, c * 100 + d);

                CHECK(before || !now);
                before = now;
            }
        }
        if (i % 40 == 39) {
            kv_sync(&k);
            if (crash) {
                kv_crash(&k);
                kv_device(&k);
                kv_open_store(&k);
            } else {
                kv_reopen(&k);
            }
        }
    }
    kv_recount(&k);
    CHECK(k.stats.evicted > 0);
    CHECK_IS(chm_store_evict(k.s, UINT32_MAX, UINT64_MAX), (int64_t)k.stats.objects);
    kv_sync(&k);
    CHECK_EQ(kv_stats(&k)->free_extents, 1);
    CHECK_EQ(k.stats.used_bytes + k.stats.limbo_bytes + k.stats.objects, 0);
    kv_stop(&k);
}

/* F39: what is used along with a scan of things used once stays. */
static void check_scan(void)
{
    enum { HOT = 8 };
    struct kv k;
    uint64_t len[HOT];
    int32_t status[HOT];
    struct chm_key keys[HOT];

    kv_options(&k);
    kv_start(&k);
    for (uint64_t i = 0; i < HOT; i++) {
        len[i] = 256 * KIB;
        keys[i] = kv_key(i);
    }
    CHECK_EQ(kv_put_many(&k, 0, HOT, len, 1, CHM_STORE_WAIT, status), HOT);
    for (uint64_t i = 0; i < 200; i++) {
        CHECK_IS(kv_put(&k, 1000 + i, 400 * KIB, 1), 0);
        CHECK_IS(chm_store_exists(k.s, k.ns, keys, HOT, CHM_STORE_TOUCH, NULL, NULL), HOT);
    }
    CHECK(kv_stats(&k)->evicted > 100);
    kv_stop(&k);
}

/* A quota evicts inside its namespace; the other one is left alone. */
static void check_quota(void)
{
    struct kv k;
    uint32_t other, own;
    struct chm_store_namespace_info info;

    kv_options(&k);
    kv_start(&k);
    own = k.ns;
    CHECK_IS(kv_put(&k, 1, MIB, 1), 0);
    CHECK_IS(chm_store_namespace(k.s, "small", 5, MIB, &other), 0);
    k.ns = other;
    for (uint64_t i = 0; i < 40; i++) {
        CHECK_IS(kv_put(&k, i, 200 * KIB, 1), 0);
        CHECK_IS(chm_store_namespace_info(k.s, other, &info), 0);
        CHECK(info.used_bytes <= MIB);
        CHECK(kv_has(&k, i));
    }
    CHECK_EQ(info.objects, 5);
    CHECK_IS(kv_put(&k, 100, 2 * MIB, 1), -ETIME); /* waits in vain */
    k.ns = own;
    CHECK_IS(kv_get(&k, 1, MIB, 1), 0);
    kv_recount(&k);
    kv_stop(&k);
}

/* F31, F47: a key again and again takes nothing; entries that are full are told as that. */
static void check_limits(void)
{
    struct kv k;
    struct chm_store_lease lease[8];
    struct chm_key keys[8];
    int32_t status[8];
    uint64_t len = PAGE, used;
    struct chm_store_job job = {
        .op = CHM_STORE_LEASE, .n = 8, .keys = keys, .leases = lease, .status = status};

    kv_options(&k);
    k.f.max_objects = 8;
    kv_start(&k);
    CHECK_IS(kv_put(&k, 0, len, 1), 0);
    used = kv_stats(&k)->used_bytes;
    for (int i = 0; i < 100; i++) {
        CHECK_IS(kv_put(&k, 0, len, 1), CHM_STORE_DUPLICATE);
        CHECK_EQ(kv_stats(&k)->used_bytes, used);
    }
    for (uint64_t i = 0; i < 8; i++) {
        CHECK(kv_put(&k, i, len, 1) >= 0);
        keys[i] = kv_key(i);
    }
    CHECK_EQ(kv_run(&k, &job).ok, 8);
    kv_put_many(&k, 100, 1, &len, 1, 0, status); /* all are in use */
    CHECK_IS(status[0], -EMFILE);
    CHECK_EQ(kv_stats(&k)->skipped_objects, 1);
    CHECK_EQ(k.stats.objects, 8);
    for (int i = 0; i < 8; i++) {
        CHECK_IS(chm_store_release(k.s, &lease[i].id, 1), 1);
    }
    CHECK_IS(kv_put(&k, 100, len, 1), 0);
    kv_stop(&k);
}

/* Holes too small for an object are put together, and read back. */
static void check_split(void)
{
    struct kv k;
    struct chm_store_object o[8];
    uint64_t cursor = 0, split = 0, n = 0, last = 0;
    int got;

    kv_options(&k);
    k.r.opt.dram_bytes = 8 * MIB;
    k.o.free_percent = 0;
    kv_start(&k);
    while (kv_stats(&k)->free_bytes >= 512 * KIB) {
        CHECK_IS(kv_put(&k, n++, 512 * KIB, 1), 0);
    }
    for (uint64_t i = 0; i < n; i += 2) { /* every other one */
        CHECK_IS(kv_delete(&k, i), 0);
    }
    kv_sync(&k);
    last = kv_stats(&k)->evicted;
    CHECK_IS(kv_put(&k, 1000, 3 * MIB + 5, 1), 0);
    CHECK_IS(kv_put(&k, 1001, 600 * KIB, 1), 0); /* of one chunk, but split */
    CHECK_EQ(kv_stats(&k)->evicted, last);
    CHECK_EQ(k.stats.split_objects, 2);
    for (int round = 0; round < 3; round++) {
        struct chm_store_lease lease;
        struct chm_key key = kv_key(1001);
        int32_t status;
        struct chm_store_job job = {
            .op = CHM_STORE_LEASE, .n = 1, .keys = &key, .leases = &lease, .status = &status};

        CHECK_IS(kv_get(&k, 1000, 3 * MIB + 5, 1), 0);
        CHECK_IS(kv_get_at(&k, 1000, 3 * MIB + 5, 1, 3, 0), 0);
        CHECK_EQ(kv_run(&k, &job).ok, 1);
        CHECK_EQ(lease.pieces, 2);
        CHECK(kv_holds(lease.piece[0].data, lease.piece[0].len, kv_seed(1001, 1)));
        CHECK_EQ(lease.piece[0].len + lease.piece[1].len, 600 * KIB);
        CHECK_IS(chm_store_release(k.s, &lease.id, 1), 1);
        kv_sync(&k);
        if (round == 1) {
            kv_crash(&k);
            kv_device(&k);
            kv_open_store(&k);
        } else {
            kv_reopen(&k);
        }
    }
    while ((got = chm_store_list(k.s, &cursor, o, 8)) > 0) {
        for (int i = 0; i < got; i++) {
            split += o[i].extents > 1;
        }
    }
    CHECK_EQ(split, 2);
    CHECK_IS(kv_delete(&k, 1000), 0);
    kv_sync(&k);
    CHECK_EQ(kv_stats(&k)->split_objects, 1);
    kv_recount(&k);
    kv_stop(&k);
}

/* A lost block: what hangs on it goes first, and a new put of it makes the rest useful again. */
static void check_orphans(void)
{
    enum { N = 10 };
    struct kv k;
    uint64_t len[N];
    int32_t status[N];
    struct chm_key keys[N];

    for (uint64_t i = 0; i < N; i++) {
        len[i] = PAGE;
        keys[i] = kv_key(i);
    }
    kv_options(&k);
    kv_start(&k);
    CHECK_EQ(kv_put_many(&k, 0, N, len, 1, 0, status), N);
    CHECK_IS(kv_put(&k, 100, PAGE, 1), 0);
    CHECK_IS(chm_store_exists(k.s, k.ns, keys, N, CHM_STORE_TOUCH, NULL, NULL), N);
    CHECK_IS(kv_delete(&k, 4), 0);
    CHECK_IS(chm_store_step(k.s, 0), 0);
    CHECK_EQ(kv_stats(&k)->orphans, 5);
    CHECK_EQ(kv_put_many(&k, 0, N, len, 1, 0, status), N); /* heals */
    CHECK_IS(status[4], 0);
    CHECK_IS(status[5], CHM_STORE_DUPLICATE);
    CHECK_IS(chm_store_exists(k.s, k.ns, keys, N, CHM_STORE_TOUCH, NULL, NULL), N);
    kv_sync(&k);
    CHECK_IS(kv_delete(&k, 7), 0);
    kv_reopen(&k);
    CHECK_EQ(kv_stats(&k)->orphans, 1);
    CHECK_IS(chm_store_step(k.s, 0), 0);
    CHECK_EQ(kv_stats(&k)->orphans, 2);
    CHECK_IS(chm_store_evict(k.s, UINT32_MAX, 1), 1);
    CHECK_IS(chm_store_evict(k.s, UINT32_MAX, 1), 1);
    CHECK(!kv_has(&k, 8) && !kv_has(&k, 9) && kv_has(&k, 6) && kv_has(&k, 100));
    CHECK_EQ(kv_stats(&k)->orphans, 0);
    kv_recount(&k);
    kv_stop(&k);
}

/* What hangs on a leased end of a chain stays too. */
static void check_pinned(void)
{
    enum { N = 5 };
    struct kv k;
    uint64_t len[N] = {PAGE, PAGE, PAGE, PAGE, PAGE};
    int32_t status[N];
    struct chm_store_lease lease;
    struct chm_key key = kv_key(N - 1);
    struct chm_store_job job = {
        .op = CHM_STORE_LEASE, .n = 1, .keys = &key, .leases = &lease, .status = status};

    kv_options(&k);
    kv_start(&k);
    CHECK_EQ(kv_put_many(&k, 0, N, len, 1, 0, status), N);
    CHECK_IS(kv_put(&k, 100, PAGE, 1), 0);
    CHECK_EQ(kv_run(&k, &job).ok, 1);
    CHECK_IS(chm_store_evict(k.s, UINT32_MAX, UINT64_MAX), 1);
    for (uint64_t i = 0; i < N; i++) {
        CHECK(kv_has(&k, i));
    }
    CHECK_IS(chm_store_release(k.s, &lease.id, 1), 1);
    CHECK_IS(chm_store_evict(k.s, UINT32_MAX, UINT64_MAX), N);
    kv_stop(&k);
}

int main(void)
{
    static const char *const policies[] = {"prefix-tail", "lru", "fifo"};

    for (uint64_t seed = 1; seed <= 3; seed++) {
        for (int i = 0; i < 3; i++) {
            check_policy(policies[i], seed);
        }
    }
    check_pressure(false);
    check_pressure(true);
    check_scan();
    check_quota();
    check_limits();
    check_split();
    check_orphans();
    check_pinned();
    return 0;
}
