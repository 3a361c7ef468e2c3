/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_life.c - put, exists, get, delete, lease: what they answer, and that the bytes are the
 * right ones whatever their length, alignment and scatter list.
 *
 * Field reports: F06 (read while it is being written), F08 (lengths that are no multiple), F09
 * (objects longer than one transfer), F15 (deleted between look-up and get), F50 (a lease outlives
 * delete and reuse), F53 (another length is a miss, not other bytes).
 */
#include "store/kv_rig.h"

static const uint64_t LENS[] = {
    1,
    PAGE - 1,
    PAGE,
    PAGE + 1,
    64 * KIB,
    64 * KIB + 17,
    MIB - 1,
    MIB,
    MIB + 1,
    2 * MIB + 7 * PAGE,
    3 * MIB - PAGE + 17,
    5 * MIB + 123,
};

static void check_lengths(const char *media, bool thread)
{
    struct kv k;

    kv_options(&k);
    if (strcmp(media, "sim") != 0) {
        struct rig files;

        rig_files(&files, media, 1, 32 * MIB);
        k.r = files;
        for (uint32_t i = 0; i < files.files; i++) {
            k.r.paths[i] = k.r.path[i];
        }
        k.r.opt.paths = k.r.paths;
    } else {
        k.r.opt.sim.capacity_bytes = 33 * MIB;
    }
    k.r.opt.thread = thread;
    kv_start(&k);
    for (uint32_t i = 0; i < CHM_COUNT(LENS); i++) {
        CHECK_IS(kv_put(&k, i, LENS[i], 1), 0);
        CHECK(kv_has(&k, i));
        CHECK_IS(kv_get(&k, i, LENS[i], 1), 0); /* still in the write buffer, or partly */
    }
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < CHM_COUNT(LENS); i++) {
            CHECK_IS(kv_get(&k, i, LENS[i], 1), 0);
            CHECK_IS(kv_get_at(&k, i, LENS[i], 1, 1, 0), 0);
            CHECK_IS(kv_get_at(&k, i, LENS[i], 1, 0, CHM_STORE_COPY), 0);
            CHECK_IS(kv_get(&k, i, LENS[i] + 1, 1), -EMSGSIZE);
            CHECK(kv_has(&k, i));
        }
        kv_sync(&k);
        CHECK_EQ(kv_stats(&k)->not_durable, 0);
    }
    CHECK(kv_stats(&k)->direct_bytes > 0 && k.stats.copied_bytes > 0);
    kv_recount(&k);
    kv_stop(&k);
}

/* The payload of one key in parts of odd lengths, some empty. */
static void check_scatter(void)
{
    enum { N = 7 };
    static const uint64_t len[N] = {3, 0, PAGE, MIB + 5, 0, 2 * PAGE, 777};
    struct kv k;
    struct chm_key keys[2] = {kv_key(1), kv_key(2)};
    struct chm_part parts[N + 1];
    uint32_t nparts[2] = {N, 1};
    int32_t status[2];
    uint64_t total = 0, lens[2];
    uint8_t *whole, *got;
    struct chm_store_job job = {.op = CHM_STORE_PUT,
                                .n = 2,
                                .flags = CHM_STORE_WAIT,
                                .keys = keys,
                                .parts = parts,
                                .nparts = nparts,
                                .status = status};

    for (int i = 0; i < N; i++) {
        total += len[i];
    }
    whole = malloc(total);
    got = malloc(total + 100);
    kv_fill(whole, total, 9);
    kv_options(&k);
    kv_start(&k);
    for (uint64_t i = 0, at = 0; i < N; at += len[i++]) {
        parts[i] = (struct chm_part){.data = whole + at, .len = len[i]};
    }
    parts[N] = (struct chm_part){.data = whole, .len = 100};
    CHECK_EQ(kv_run(&k, &job).ok, 2);
    for (uint64_t i = 0, at = 0; i < N; at += len[i++]) { /* the same pieces, in reverse lengths */
        parts[i] = (struct chm_part){.data = got + at, .len = len[i]};
    }
    parts[N].data = got + total;
    job.op = CHM_STORE_GET;
    job.flags = 0;
    job.lens = lens;
    memset(got, 0, total + 100);
    CHECK_EQ(kv_run(&k, &job).ok, 2);
    CHECK(memcmp(got, whole, total) == 0 && memcmp(got + total, whole, 100) == 0);
    CHECK_EQ(lens[0], total);
    CHECK_EQ(lens[1], 100);
    free(whole);
    free(got);
    kv_stop(&k);
}

/* A get whose parts name memory twice is refused, and costs the object nothing. */
static void check_overlap(void)
{
    enum { N = 3 };
    static const uint64_t at[][N] = {
        {0, PAGE, 2 * PAGE},     /* rising */
        {2 * PAGE, PAGE, 0},     /* falling */
        {PAGE, 2 * PAGE, 0},     /* neither */
        {2 * PAGE, 0, PAGE},     /* between the others */
        {0, PAGE, PAGE},         /* twice */
        {0, PAGE, PAGE / 2},     /* across two */
        {0, 2 * PAGE, PAGE + 1}, /* by a byte */
        {PAGE, 2 * PAGE, 1},
    };
    struct kv k;
    struct chm_key key = kv_key(1);
    struct chm_part parts[N];
    uint32_t nparts = N;
    int32_t status;
    uint64_t id;
    uint8_t *memory = rig_alloc(N * PAGE);
    struct chm_store_job job = {
        .n = 1, .keys = &key, .parts = parts, .nparts = &nparts, .status = &status};

    kv_options(&k);
    kv_start(&k);
    CHECK_IS(kv_put(&k, 1, N * PAGE, 1), 0);
    job.ns = k.ns;
    for (size_t way = 0; way < CHM_COUNT(at); way++) {
        for (size_t i = 0; i < N; i++) {
            parts[i] = (struct chm_part){.data = memory + at[way][i], .len = PAGE};
        }
        if (way < 4) {
            CHECK_EQ(kv_run(&k, &job).ok, 1);
        } else {
            CHECK_IS(chm_store_submit(k.s, &job, &id), -EINVAL);
        }
    }
    job.op = CHM_STORE_PUT; /* which only reads them */
    key = kv_key(2);
    CHECK_EQ(kv_run(&k, &job).ok, 1);
    CHECK_IS(kv_get(&k, 1, N * PAGE, 1), 0);
    munmap(memory, N * PAGE);
    kv_stop(&k);
}

/* A miss is a miss, a duplicate a success that writes nothing, nonsense an error. */
static void check_answers(void)
{
    struct kv k;
    uint64_t id, lens[3] = {PAGE, 0, PAGE};
    int32_t status[3];
    struct chm_key key = kv_key(1);
    struct chm_store_job job = {.op = 99, .n = 1, .keys = &key, .status = status};

    kv_options(&k);
    kv_start(&k);
    CHECK_IS(kv_get(&k, 1, PAGE, 1), -ENOENT);
    CHECK_IS(kv_delete(&k, 1), -ENOENT);
    CHECK_IS(kv_put(&k, 1, PAGE, 1), 0);
    CHECK_IS(kv_put(&k, 1, PAGE, 2), CHM_STORE_DUPLICATE);
    CHECK_IS(kv_put(&k, 1, 3 * PAGE, 2), CHM_STORE_DUPLICATE);
    CHECK_IS(kv_get(&k, 1, PAGE, 1), 0);
    CHECK_IS(kv_delete(&k, 1), 0);
    CHECK(!kv_has(&k, 1));
    CHECK_IS(kv_get(&k, 1, PAGE, 1), -ENOENT);
    CHECK_IS(kv_put(&k, 1, 2 * PAGE, 3), 0);
    CHECK_IS(kv_get(&k, 1, 2 * PAGE, 3), 0);
    kv_put_many(&k, 10, 3, lens, 1, 0, status); /* an object without bytes, in a chain */
    CHECK_IS(status[0], 0);
    CHECK_IS(status[1], -EINVAL);
    CHECK_IS(status[2], -ENOLINK);
    CHECK_IS(chm_store_submit(k.s, &job, &id), -EINVAL);
    job.op = CHM_STORE_GET;
    CHECK_IS(chm_store_submit(k.s, &job, &id), -EINVAL); /* no parts */
    job.op = CHM_STORE_DELETE;
    job.ns = 77;
    CHECK_IS(chm_store_submit(k.s, &job, &id), -EINVAL);
    CHECK_IS(chm_store_exists(k.s, 77, &key, 1, 0, NULL, NULL), -EINVAL);
    CHECK_IS(chm_store_cancel(k.s, 12345), -ESTALE);
    CHECK_EQ(kv_stats(&k)->admitted, 3);
    CHECK_EQ(k.stats.duplicate, 2);
    kv_recount(&k);
    kv_stop(&k);
}

/* The same keys in two namespaces are different objects. */
static void check_namespaces(void)
{
    struct kv k;
    uint32_t one, two, again;
    struct chm_store_namespace_info info;
    char name[256];

    kv_options(&k);
    kv_start(&k);
    one = k.ns;
    memset(name, 'x', sizeof(name));
    CHECK_IS(chm_store_namespace(k.s, name, 256, 0, &two), -ENAMETOOLONG);
    CHECK_IS(chm_store_namespace(k.s, "", 0, 0, &two), -EINVAL);
    CHECK_IS(chm_store_namespace(k.s, name, 255, 12 * MIB, &two), 0);
    CHECK_IS(chm_store_namespace(k.s, name, 255, 0, &again), 0);
    CHECK(two != one && again == two);
    CHECK_IS(kv_put(&k, 1, PAGE, 1), 0);
    k.ns = two;
    CHECK(!kv_has(&k, 1));
    CHECK_IS(kv_put(&k, 1, 2 * PAGE, 2), 0);
    kv_reopen(&k); /* which asks for the first one */
    CHECK_EQ(k.ns, one);
    CHECK_IS(kv_get(&k, 1, PAGE, 1), 0);
    CHECK_IS(chm_store_namespace(k.s, name, 255, 0, &again), 0);
    CHECK_EQ(again, two);
    k.ns = two;
    CHECK_IS(kv_get(&k, 1, 2 * PAGE, 2), 0);
    CHECK_IS(chm_store_namespace_info(k.s, two, &info), 0);
    CHECK_EQ(info.quota_bytes, 12 * MIB);
    CHECK_EQ(info.payload_bytes, 2 * PAGE);
    CHECK_EQ(info.objects, 1);
    CHECK_EQ(info.name_len, 255);
    CHECK(memcmp(info.name, name, 255) == 0);
    CHECK_IS(chm_store_namespace_info(k.s, 2, &info), -ENOENT);
    kv_stop(&k);
}

static void lease(struct kv *k, uint64_t number, struct chm_store_lease *out, int want)
{
    struct chm_key key = kv_key(number);
    int32_t status = 12345;
    struct chm_store_job job = {.op = CHM_STORE_LEASE,
                                .n = 1,
                                .keys = &key,
                                .leases = out,
                                .status = &status,
                                .timeout_ns = CHM_SECOND};

    kv_run(k, &job);
    CHECK_IS(status, want);
    CHECK_EQ(out->id != 0, want == 0);
}

/* F50: what a lease shows does not change, whatever becomes of the object. */
static void check_leases(void)
{
    struct kv k;
    struct chm_store_lease a, b, c;
    uint64_t len = 300 * KIB + 5;

    kv_options(&k);
    kv_start(&k);
    CHECK_IS(kv_put(&k, 1, len, 1), 0);
    lease(&k, 2, &a, -ENOENT);
    lease(&k, 1, &a, 0);
    lease(&k, 1, &b, 0);
    CHECK_EQ(a.len, len);
    CHECK_EQ(a.pieces, 1);
    CHECK(kv_holds(a.piece[0].data, len, kv_seed(1, 1)));
    CHECK_EQ(kv_stats(&k)->leases, 2);
    CHECK_IS(chm_store_close(k.s, 0), -EBUSY); /* and it is still there, but stopping */
    atomic_store(&k.s->stopping, false);
    CHECK_IS(kv_delete(&k, 1), 0);
    CHECK_IS(chm_store_release(k.s, &b.id, 1), 1);
    CHECK_IS(chm_store_release(k.s, &b.id, 1), 0);
    kv_sync(&k);
    for (uint64_t i = 10; i < 60; i++) { /* more than the device holds */
        CHECK_IS(kv_put(&k, i, MIB / 2, 1), 0);
    }
    CHECK(kv_holds(a.piece[0].data, len, kv_seed(1, 1)));
    CHECK_IS(kv_put(&k, 1, PAGE, 2), 0);
    CHECK(kv_holds(a.piece[0].data, len, kv_seed(1, 1)));
    CHECK_IS(chm_store_release(k.s, &a.id, 1), 1);
    CHECK_IS(kv_put(&k, 100, 4 * MIB, 1), 0);
    lease(&k, 100, &c, -E2BIG); /* the window has 3 */
    CHECK(kv_has(&k, 100));
    CHECK_IS(kv_put(&k, 101, 2 * MIB, 1), 0);
    CHECK_IS(kv_put(&k, 102, 2 * MIB, 1), 0);
    lease(&k, 101, &a, 0);
    lease(&k, 102, &b, -EAGAIN); /* no window space in time: not the object's fault */
    CHECK(kv_has(&k, 102));
    CHECK_IS(chm_store_release(k.s, &a.id, 1), 1);
    lease(&k, 102, &b, 0);
    CHECK(kv_holds(b.piece[0].data, 2 * MIB, kv_seed(102, 1)));
    CHECK_IS(chm_store_release(k.s, &b.id, 1), 1);
    CHECK_EQ(kv_stats(&k)->pins, 0);
    kv_recount(&k);
    kv_stop(&k);
}

/* F06: what is being put is a miss for whoever looks for it, gets it or leases it meanwhile. It has
 * more bytes than the write buffer, so that this takes a while. */
static void check_in_the_making(void)
{
    enum { LEN = 12 * MIB, UNTOLD = 12345 };
    struct kv k;
    struct chm_store_lease none;
    struct chm_store_done done[16];
    struct chm_key key = kv_key(1);
    struct chm_part in = {.data = malloc(LEN), .len = LEN}, out = {.data = malloc(LEN), .len = LEN};
    int32_t put = UNTOLD, got, leased;
    struct chm_store_job jobs[] = {
        {.op = CHM_STORE_GET, .n = 1, .keys = &key, .parts = &out, .status = &got},
        {.op = CHM_STORE_LEASE, .n = 1, .keys = &key, .leases = &none, .status = &leased},
        {.op = CHM_STORE_PUT, .n = 1, .keys = &key, .parts = &in, .status = &put},
    };
    int looks = 0;

    jobs[2].flags = CHM_STORE_WAIT;
    kv_options(&k);
    kv_start(&k);
    kv_fill(in.data, LEN, kv_seed(1, 1));
    kv_submit(&k, &jobs[2]);
    while (put == UNTOLD) {
        CHECK(chm_store_step(k.s, chm_now(k.r.dev) + 10000) >= 0);
        if (put != UNTOLD || k.s->put.entry == CHM_KV_NONE) {
            continue;
        }
        CHECK(!kv_has(&k, 1));
        got = leased = UNTOLD;
        kv_submit(&k, &jobs[0]);
        kv_submit(&k, &jobs[1]);
        CHECK_IS(got, -ENOENT);
        CHECK_IS(leased, -ENOENT);
        CHECK_IS(chm_store_drain(k.s, done, 2, 0), 2);
        looks++;
    }
    CHECK(looks > 3);
    CHECK_IS(put, 0);
    CHECK_IS(chm_store_drain(k.s, done, 16, KV_LONG), 1);
    CHECK_IS(kv_get(&k, 1, LEN, 1), 0);
    kv_recount(&k);
    free(in.data);
    free(out.data);
    kv_stop(&k);
}

int main(void)
{
    check_in_the_making();
    check_answers();
    check_scatter();
    check_overlap();
    check_namespaces();
    check_leases();
    check_lengths("sim", false);
    check_lengths("sync", false);
    check_lengths("threads", true);
    return 0;
}
