/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_kill.c - kill -9 in the middle of it, on a real file, many times over.
 *
 * A child puts chains, gets, leases, deletes, evicts and syncs, several jobs at once, and tells
 * through a pipe what it begins (before it begins) and what was promised (when a sync has
 * returned). The parent kills it at a random moment, and another child reopens the store and looks
 * at every key. The file lives through all runs; every third check leaves without closing either.
 *
 *   a hit gives exactly the bytes of a version that was begun, none older than what was promised
 *   what a sync promised is there, unless its removal was begun since
 *   of a chain a prefix is there; the counters close and add up to what is there
 *
 * Every fourth run puts more than there is space for: there, what was promised may be evicted.
 *
 * Field reports: F42 (kill -9 after flush), F48 (killed between the begin and the end of a put),
 * F75 (a dead owner's lock does not block).
 *
 * CHM_KV_KILLS is how many runs are made (default 10), CHM_KV_SEED the seed.
 */
#include <poll.h>
#include <signal.h>

#include "media/clock.h"
#include "store/kv_rig.h"

enum {
    KILLS = 10,
    CHAINS = 20,
    DEPTH = 4,
    KEYS = CHAINS * DEPTH,
    SLOTS = 4, /* puts at once */
    LEN_MAX = 1536 * KIB,
    FILLER = 1000, /* keys of what takes the space in runs under pressure */
    FILLERS = 28,
    DELAY_MAX_NS = 150000000,
};

enum kind { BEGIN, PROMISE, ABSENT, REMOVE, REMOVE_ANY, READY };

struct message {
    uint32_t kind, key;
    uint64_t version;
};

struct key {
    uint64_t newest;   /* begun */
    uint64_t floor;    /* none older may be found */
    uint64_t promised; /* 0: nothing */
    uint64_t shown;    /* the child: what it knows to be there */
};

struct slot {
    bool busy;
    uint32_t chain;
    struct chm_key keys[DEPTH];
    struct chm_part parts[DEPTH];
    uint64_t version[DEPTH];
    int32_t status[DEPTH];
};

struct counts {
    uint64_t looked, found, promised;
};

struct kill_test {
    struct kv k;
    struct key key[KEYS];
    struct slot slot[SLOTS];
    uint64_t random;
    bool pressure;
    int out; /* the child: the pipe */
    uint64_t leases[2];
    uint8_t *buf;
    uint64_t runs;
    struct counts count;
};

static uint64_t len_of(uint32_t key, uint64_t version)
{
    uint64_t x = key * UINT64_C(1000003) + version * UINT64_C(7919);

    x = chm_random(&x);
    return x % 16 == 0 ? MIB + x / 16 % (LEN_MAX - MIB)
                       : 1 + x / 16 % (x % 3 ? 30 * KIB : 300 * KIB);
}

/* ------------------------------------------------------------------ the child */

static void tell(const struct kill_test *t, uint32_t kind, uint32_t key, uint64_t version)
{
    struct message m = {.kind = kind, .key = key, .version = version};

    CHECK(write(t->out, &m, sizeof(m)) == sizeof(m));
}

static void put_begin(struct kill_test *t, struct slot *x, uint32_t chain)
{
    struct chm_store_job job = {.op = CHM_STORE_PUT,
                                .flags = CHM_STORE_WAIT,
                                .ns = t->k.ns,
                                .n = DEPTH,
                                .keys = x->keys,
                                .parts = x->parts,
                                .status = x->status,
                                .timeout_ns = UINT64_MAX,
                                .cookie = (uint64_t)(x - t->slot)};
    uint64_t id;

    x->busy = true;
    x->chain = chain;
    for (uint32_t i = 0; i < DEPTH; i++) {
        uint32_t key = chain * DEPTH + i;
        uint64_t version = t->key[key].newest + 1;

        x->keys[i] = kv_key(key);
        x->version[i] = version;
        x->parts[i].len = len_of(key, version);
        kv_fill(x->parts[i].data, x->parts[i].len, kv_seed(key, version));
        t->key[key].newest = version;
        tell(t, BEGIN, key, version);
    }
    CHECK_IS(chm_store_submit(t->k.s, &job, &id), 0);
}

static void put_ended(struct kill_test *t, struct slot *x)
{
    x->busy = false;
    for (uint32_t i = 0; i < DEPTH; i++) {
        int32_t s = x->status[i];

        CHECK(s == 0 || s == CHM_STORE_DUPLICATE || s == -ENOLINK);
        CHECK(s >= 0 || t->pressure);
        if (s == 0) {
            t->key[x->chain * DEPTH + i].shown = x->version[i];
        }
    }
}

static bool any_busy(const struct kill_test *t)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (t->slot[i].busy) {
            return true;
        }
    }
    return false;
}

static void drain(struct kill_test *t, bool all)
{
    struct chm_store_done done[SLOTS];

    do {
        int n = any_busy(t) ? chm_store_drain(t->k.s, done, SLOTS, all ? KV_LONG : 0) : 0;

        for (int i = 0; i < n; i++) {
            put_ended(t, &t->slot[done[i].cookie]);
        }
    } while (all && any_busy(t));
}

static void step_put(struct kill_test *t, uint32_t chain)
{
    drain(t, false);
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (t->slot[i].busy && t->slot[i].chain == chain) {
            return;
        }
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (!t->slot[i].busy) {
            put_begin(t, &t->slot[i], chain);
            return;
        }
    }
}

static bool is_there(struct kill_test *t, uint32_t key, uint64_t *len)
{
    struct chm_key name = kv_key(key);

    *len = 0;
    return chm_store_exists(t->k.s, t->k.ns, &name, 1, CHM_STORE_TOUCH, NULL, len) == 1;
}

/* What is promised is what was there before the sync began and is there when it has returned. */
static void step_sync(struct kill_test *t)
{
    uint64_t len;

    drain(t, true);
    CHECK_IS(chm_store_sync(t->k.s, KV_LONG), 0);
    for (uint32_t i = 0; i < KEYS; i++) {
        if (is_there(t, i, &len)) {
            CHECK(t->key[i].shown > 0);
            tell(t, PROMISE, i, t->key[i].shown);
        } else {
            tell(t, ABSENT, i, 0);
        }
    }
}

/* Ends of chains first, so that what is left is a prefix at every moment. */
static void step_delete(struct kill_test *t, uint32_t chain)
{
    struct chm_key keys[DEPTH];
    int32_t status[DEPTH];
    struct chm_store_job job = {
        .op = CHM_STORE_DELETE, .n = 1 + chain % DEPTH, .keys = keys, .status = status};

    drain(t, true);
    for (uint32_t i = 0; i < job.n; i++) {
        uint32_t key = chain * DEPTH + DEPTH - 1 - i;

        keys[i] = kv_key(key);
        tell(t, REMOVE, key, 0);
    }
    kv_run(&t->k, &job);
}

static void step_evict(struct kill_test *t)
{
    tell(t, REMOVE_ANY, 0, 0);
    CHECK(chm_store_evict(t->k.s, t->k.ns, 200 * KIB) >= 0);
}

/* Which version are these? */
static uint64_t version_of(const struct kill_test *t, uint32_t key, uint64_t len)
{
    for (uint64_t v = t->key[key].newest; v > 0; v--) {
        if (len_of(key, v) == len && kv_holds(t->buf, len, kv_seed(key, v))) {
            return v;
        }
    }
    return 0;
}

/* The version that is there, or 0 for a miss. Wrong bytes fail. */
static uint64_t look(struct kill_test *t, uint32_t key)
{
    struct chm_key name = kv_key(key);
    struct chm_part part = {.data = t->buf};
    int32_t status = 1;
    struct chm_store_job job = {.op = CHM_STORE_GET,
                                .n = 1,
                                .keys = &name,
                                .parts = &part,
                                .status = &status,
                                .timeout_ns = UINT64_MAX};
    uint64_t version;

    t->count.looked++;
    if (!is_there(t, key, &part.len)) {
        return 0;
    }
    CHECK(part.len <= LEN_MAX);
    kv_run(&t->k, &job);
    if (status == -ENOENT) {
        return 0; /* evicted meanwhile */
    }
    CHECK_IS(status, 0); /* no power was cut: nothing is damaged */
    version = version_of(t, key, part.len);
    if (version == 0) {
        fprintf(stderr, "key %u: bytes that nobody put there\n", key);
        exit(1);
    }
    t->count.found++;
    return version;
}

static void step_lease(struct kill_test *t, uint32_t key, uint32_t which)
{
    struct chm_key name = kv_key(key);
    struct chm_store_lease lease;
    int32_t status = 1;
    struct chm_store_job job = {
        .op = CHM_STORE_LEASE, .n = 1, .keys = &name, .leases = &lease, .status = &status};

    drain(t, true);
    if (t->leases[which]) {
        CHECK_IS(chm_store_release(t->k.s, &t->leases[which], 1), 1);
        t->leases[which] = 0;
    }
    kv_run(&t->k, &job);
    CHECK(status == 0 || status == -ENOENT || status == -EAGAIN || status == -E2BIG);
    t->leases[which] = status == 0 ? lease.id : 0;
}

/* More than there is space for. Nobody looks at these. */
static void step_filler(struct kill_test *t)
{
    drain(t, true);
    (void)kv_put(&t->k, FILLER + chm_random(&t->random) % FILLERS, MIB, 1);
}

static void remove_fillers(struct kill_test *t)
{
    for (uint64_t i = 0; i < FILLERS; i++) {
        (void)kv_delete(&t->k, FILLER + i);
    }
    kv_sync(&t->k);
}

static void step(struct kill_test *t)
{
    uint64_t x = chm_random(&t->random);
    uint32_t chain = (uint32_t)(x / 32 % CHAINS), key = (uint32_t)(x / 32 % KEYS);

    switch (x % 32) {
    case 0:
        step_sync(t);
        break;
    case 1:
    case 2:
    case 3:
    case 4:
        step_delete(t, chain);
        break;
    case 5:
        step_evict(t);
        break;
    case 6:
    case 7:
        step_lease(t, key, key % 2);
        break;
    case 8:
    case 9:
    case 10:
    case 11:
        drain(t, true);
        (void)look(t, key);
        break;
    case 12:
    case 13:
    case 14:
        if (t->pressure) {
            step_filler(t);
            break;
        } /* fall through */
    default:
        step_put(t, chain);
    }
}

static void slots_open(struct kill_test *t)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        for (uint32_t n = 0; n < DEPTH; n++) {
            t->slot[i].parts[n].data = rig_alloc(LEN_MAX);
        }
    }
}

static void child(struct kill_test *t)
{
    slots_open(t);
    kv_device(&t->k);
    kv_open_store(&t->k);
    if (!t->pressure) {
        remove_fillers(t);
    }
    tell(t, READY, 0, 0);
    for (;;) {
        step(t);
    }
}

/* ------------------------------------------------------------------ the parent */

static void heard(struct kill_test *t, const struct message *m)
{
    struct key *key = &t->key[m->key];

    switch (m->kind) {
    case BEGIN:
        key->newest = m->version;
        break;
    case PROMISE:
        key->floor = key->promised = m->version;
        break;
    case ABSENT:
        key->floor = key->newest + 1;
        key->promised = 0;
        break;
    case REMOVE:
        key->promised = 0;
        break;
    case REMOVE_ANY:
        for (uint32_t i = 0; i < KEYS; i++) {
            t->key[i].promised = 0;
        }
        break;
    default:
        break;
    }
}

/* Listen, and kill when the time has come. Messages are whole: they are shorter than PIPE_BUF. */
static void listen_and_kill(struct kill_test *t, int in, pid_t pid)
{
    uint64_t until_ns = UINT64_MAX;
    struct message m;
    bool alive = true;

    for (;;) {
        struct pollfd p = {.fd = in, .events = POLLIN};
        uint64_t now = chm_clock_now();
        ssize_t n;

        if (alive && now >= until_ns) {
            CHECK_IS(kill(pid, SIGKILL), 0);
            alive = false;
        }
        if (alive && poll(&p, 1, until_ns == UINT64_MAX ? -1 : 1) == 0) {
            continue;
        }
        n = read(in, &m, sizeof(m));
        if (n == 0) {
            return;
        }
        CHECK(n == sizeof(m));
        if (m.kind == READY) {
            until_ns = chm_clock_now() + chm_random(&t->random) % DELAY_MAX_NS;
        }
        heard(t, &m);
    }
}

static void run(struct kill_test *t)
{
    int fds[2], status;
    pid_t pid;

    CHECK_IS(pipe(fds), 0);
    t->random += 0x51ED;
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        close(fds[0]);
        t->out = fds[1];
        child(t);
    }
    close(fds[1]);
    listen_and_kill(t, fds[0], pid);
    close(fds[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* else it failed by itself */
}

/* ------------------------------------------------------------------ checking */

static void check_chains(struct kill_test *t)
{
    for (uint32_t c = 0; c < CHAINS; c++) {
        struct chm_key keys[DEPTH];
        uint8_t found[DEPTH];
        int run, hits = 0;

        for (uint32_t i = 0; i < DEPTH; i++) {
            keys[i] = kv_key(c * DEPTH + i);
        }
        run = chm_store_exists(t->k.s, t->k.ns, keys, DEPTH, 0, found, NULL);
        for (uint32_t i = 0; i < DEPTH; i++) {
            hits += found[i];
        }
        CHECK_EQ(run, hits);
    }
}

static void check_key(struct kill_test *t, uint32_t i)
{
    struct key *key = &t->key[i];
    uint64_t version = look(t, i);

    if (version > 0 && version < key->floor) {
        fprintf(stderr, "key %u: version %" PRIu64 " came back, %" PRIu64 " was promised\n", i,
                version, key->floor);
        exit(1);
    }
    if (key->promised && version < key->promised && !t->pressure) {
        fprintf(stderr, "key %u: version %" PRIu64 " was promised, %" PRIu64 " is there\n", i,
                key->promised, version);
        exit(1);
    }
    t->count.promised += key->promised && !t->pressure;
    key->promised = 0;
    key->shown = version;
}

/* What the checker found out goes back to the parent. */
static void checker(struct kill_test *t, bool close_it, int out)
{
    kv_device(&t->k);
    kv_open_store(&t->k);
    check_chains(t);
    for (uint32_t i = 0; i < KEYS; i++) {
        check_key(t, i);
    }
    kv_recount(&t->k);
    if (close_it) {
        kv_close_store(&t->k);
        CHECK_IS(chm_close(t->k.r.dev, KV_LONG), 0);
    }
    CHECK(write(out, t->key, sizeof(t->key)) == sizeof(t->key));
    CHECK(write(out, &t->count, sizeof(t->count)) == sizeof(t->count));
    syscall(SYS_exit_group, 0);
}

static void read_whole(int in, void *p, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = read(in, (uint8_t *)p + at, len - at);

        CHECK(n > 0); /* else the checker has failed, and said why */
        at += (size_t)n;
    }
}

static void check(struct kill_test *t)
{
    int fds[2], status;
    pid_t pid;

    CHECK_IS(pipe(fds), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        checker(t, t->runs % 3 != 2, fds[1]);
    }
    close(fds[1]);
    read_whole(fds[0], t->key, sizeof(t->key));
    read_whole(fds[0], &t->count, sizeof(t->count));
    close(fds[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ------------------------------------------------------------------ */

static uint64_t number_of(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 0) : fallback;
}

static void start(struct kill_test *t)
{
    struct rig files;

    kv_options(&t->k);
    rig_files(&files, "auto", 1, 34 * MIB);
    t->k.r = files;
    t->k.r.paths[0] = t->k.r.path[0];
    t->k.r.opt.paths = t->k.r.paths;
    t->k.r.opt.thread = 1;
    t->k.r.opt.poison = 0;
    t->k.f.max_objects = 256;
    t->k.f.journal_bytes = 16 * PAGE;
    t->k.o.sync_interval_ns = 10 * MS;
    t->buf = rig_alloc(LEN_MAX);
    kv_start(&t->k);
    kv_close_store(&t->k);
    CHECK_IS(chm_close(t->k.r.dev, KV_LONG), 0);
    t->k.r.dev = NULL;
}

int main(void)
{
    static struct kill_test t;
    uint64_t runs = number_of("CHM_KV_KILLS", KILLS);

    t.random = number_of("CHM_KV_SEED", 1);
    start(&t);
    for (; t.runs < runs; t.runs++) {
        t.pressure = t.runs % 4 == 3;
        run(&t);
        check(&t);
    }
    rig_unlink(&t.k.r);
    printf("%" PRIu64 " kills; %" PRIu64 " keys looked at, %" PRIu64 " found whole, %" PRIu64
           " of them promised\n",
           t.runs, t.count.looked, t.count.found, t.count.promised);
    return 0;
}
