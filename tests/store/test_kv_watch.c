/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_watch.c - looking at a store from outside: what its owner publishes (chm_store_peek), and
 * which of its jobs took longest (chm_store_slow).
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "store/kv_rig.h"

static void files(struct kv *k, bool thread)
{
    struct rig r;

    kv_options(k);
    rig_files(&r, "sync", 1, 12 * MIB);
    k->r = r;
    k->r.paths[0] = k->r.path[0];
    k->r.opt.paths = k->r.paths;
    k->r.opt.thread = thread;
    k->o.publish_interval_ns = 1; /* at every turn */
    kv_start(k);
}

/* In another process. Exit code: 0 if the page says what it should. */
static void look(const char *path, uint64_t objects, uint32_t pid)
{
    static struct chm_store_page page;
    struct chm_store_namespace_info ns[2];
    struct chm_error err;

    CHECK_IS(chm_store_peek(path, 0, &page, ns, 2, &err), 0);
    CHECK_EQ(page.pid, pid);
    CHECK_EQ(page.stats.objects, objects);
    CHECK_EQ(page.stats.admitted, objects);
    CHECK_EQ(page.device.capacity_bytes, 12 * MIB);
    CHECK(page.device_stats.committed > 0 && page.count > 0);
    CHECK(page.slow_count > 0 && page.slow[0].op == CHM_STORE_PUT);
    CHECK_EQ(page.namespaces, 2);
    CHECK(ns[0].name_len == 5 && memcmp(ns[0].name, "model", 5) == 0);
    CHECK_EQ(ns[0].objects, objects);
    CHECK(ns[1].name_len == 5 && memcmp(ns[1].name, "other", 5) == 0);
    memset(&ns[1], 0x5A, sizeof(ns[1]));
    CHECK_IS(chm_store_peek(path, 0, &page, ns, 1, NULL), 0); /* no more than there is room for */
    CHECK_EQ(page.namespaces, 2);
    CHECK(is_byte((uint8_t *)&ns[1], sizeof(ns[1]), 0x5A));
    CHECK_IS(chm_store_peek(path, 0, &page, NULL, 0, NULL), 0);
}

static void look_from_outside(const struct kv *k, uint64_t objects)
{
    int status;
    uint32_t pid = (uint32_t)getpid();
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        look(k->r.path[0], objects, pid);
        _exit(0);
    }
    CHECK_IS(waitpid(child, &status, 0), child);
    CHECK_IS(status, 0);
}

static int peek_at(const struct kv *k, uint64_t base, const char *text)
{
    static struct chm_store_page page;
    struct chm_error err;
    int rc = chm_store_peek(k->r.path[0], base, &page, NULL, 0, &err);

    CHECK_IS(err.code, rc);
    if (!strstr(err.text, text) || !strstr(err.text, k->r.path[0])) {
        fprintf(stderr, "another text: %s\n", err.text);
        exit(1);
    }
    return rc;
}

static void check_peek(bool thread)
{
    static struct chm_store_page page;
    struct kv k;
    uint32_t other;

    files(&k, thread);
    CHECK_IS(chm_store_namespace(k.s, "other", 5, CHM_STORE_QUOTA_KEEP, &other), 0);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK_IS(kv_put(&k, i, 64 * KIB, 1), 0);
    }
    kv_sync(&k);
    if (!thread) {
        CHECK(chm_store_step(k.s, 0) >= 0);
    }
    while (thread && chm_store_peek(k.r.path[0], 0, &page, NULL, 0, NULL) == 0 &&
           (page.stats.objects < 3 || page.slow_count == 0)) {
        usleep(1000); /* the worker's next turn publishes it */
        chm_kv_kick(k.s);
    }
    look_from_outside(&k, 3);
    CHECK_IS(peek_at(&k, MIB, "publishes no counters"), -EBUSY); /* none at this base */
    CHECK_IS(chm_store_peek(NULL, 0, &page, NULL, 0, NULL), -EINVAL);
    CHECK_IS(chm_store_peek(k.r.path[0], 0, NULL, NULL, 0, NULL), -EINVAL);
    kv_close_store(&k);
    CHECK_IS(peek_at(&k, 0, "publishes no counters"), -EBUSY); /* the device is still open */
    kv_close_device(&k);
    CHECK_IS(peek_at(&k, 0, "no process has it open"), -ESRCH);
    CHECK_IS(truncate(k.r.path[0], 100), 0);
    CHECK_IS(peek_at(&k, 0, "no chm device"), -EBADMSG);
    rig_unlink(&k.r);
    CHECK_IS(peek_at(&k, 0, ""), -ENOENT);
}

/* A page that is cut short, scribbled on, or of another version is never believed. */
static void check_bad_page(void)
{
    static struct chm_store_page page;
    struct kv k;
    int fd;

    files(&k, false);
    fd = open(k.s->publish.path, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK(pread(fd, &page, sizeof(page), 0) == (ssize_t)sizeof(page));
    page.stats.objects++;
    CHECK(pwrite(fd, &page, sizeof(page), 0) == (ssize_t)sizeof(page));
    CHECK_IS(peek_at(&k, 0, "publishes no counters"), -EBUSY);
    page.version++;
    CHECK(pwrite(fd, &page, sizeof(page), 0) == (ssize_t)sizeof(page));
    CHECK_IS(peek_at(&k, 0, "another version"), -EPROTO);
    CHECK_IS(ftruncate(fd, sizeof(page) - 1), 0);
    CHECK_IS(peek_at(&k, 0, "publishes no counters"), -EBUSY);
    CHECK(chm_store_step(k.s, 0) >= 0); /* written anew as a whole */
    CHECK_IS(chm_store_peek(k.r.path[0], 0, &page, NULL, 0, NULL), 0);
    CHECK_IS(fchmod(fd, 0622), 0); /* others may write it: not believed */
    CHECK_IS(peek_at(&k, 0, "publishes no counters"), -EBUSY);
    close(fd);
    kv_close_store(&k);
    kv_close_device(&k);
    rig_unlink(&k.r);
}

/* ------------------------------------------------------------------ slow jobs */

/* A put of one key that waits in vain: it takes exactly so long. Its cookie. */
static uint64_t take(struct kv *k, uint64_t ns)
{
    struct chm_key key = kv_key(1000);
    static uint8_t byte;
    struct chm_part part = {.data = &byte, .len = 2 * MIB}; /* over the quota: not read */
    int32_t status;
    struct chm_store_job job = {.op = CHM_STORE_PUT,
                                .flags = CHM_STORE_WAIT,
                                .n = 1,
                                .keys = &key,
                                .parts = &part,
                                .status = &status,
                                .timeout_ns = ns};

    CHECK_EQ(kv_run(k, &job).ok, 0);
    CHECK_IS(status, -ETIME);
    return k->jobs;
}

static uint32_t slow(struct kv *k, struct chm_store_slow *out)
{
    int n = chm_store_slow(k->s, out, CHM_STORE_SLOW_MAX);

    CHECK(n >= 0 && n <= CHM_STORE_SLOW_MAX);
    for (int i = 1; i < n; i++) {
        CHECK(out[i - 1].total_ns >= out[i].total_ns);
    }
    return (uint32_t)n;
}

static uint32_t place_of(const struct chm_store_slow *list, uint32_t n, uint64_t cookie)
{
    uint32_t i = 0;

    while (i < n && list[i].cookie != cookie) {
        i++;
    }
    return i;
}

static void rest(struct kv *k, uint64_t ns)
{
    uint64_t until = chm_now(k->r.dev) + ns;

    while (chm_now(k->r.dev) < until) {
        CHECK(chm_store_step(k->s, until) >= 0);
    }
}

static void check_slow(void)
{
    struct kv k;
    struct chm_store_slow list[CHM_STORE_SLOW_MAX];
    uint64_t longest, begin;
    uint32_t n;

    kv_options(&k);
    kv_start(&k);
    CHECK_EQ(slow(&k, list), 0);
    CHECK_IS(chm_store_namespace(k.s, "model", 5, MIB, &k.ns), 0);
    begin = chm_now(k.r.dev);
    longest = take(&k, 50 * MS);
    CHECK_EQ(slow(&k, list), 1);
    CHECK_EQ(list[0].begin_ns, begin);
    CHECK(list[0].total_ns >= 50 * MS && list[0].total_ns < 51 * MS);
    CHECK_EQ(list[0].wait_ns, 0); /* it did not come so far */
    CHECK_EQ(list[0].op, CHM_STORE_PUT);
    CHECK_EQ(list[0].n, 1);
    CHECK_EQ(list[0].ok, 0);
    CHECK_IS(list[0].result, -ETIME);
    for (uint64_t i = 0; i < 2 * CHM_STORE_SLOW_MAX;
         i++) { /* up and down, both longer and shorter */
        take(&k, (10 + i * 7 % 31) * MS);
    }
    n = slow(&k, list);
    CHECK_EQ(n, CHM_STORE_SLOW_MAX);
    CHECK_EQ(list[0].cookie, longest);
    CHECK(list[n - 1].total_ns >= 25 * MS && list[1].total_ns < 42 * MS); /* 16 of 31, the upper */
    CHECK_IS(chm_store_slow(k.s, list, 3), 3);
    CHECK_EQ(list[0].cookie, longest);
    CHECK_IS(chm_store_slow(k.s, NULL, 3), -EINVAL);
    kv_stop(&k);
}

/* What is older than an hour gives way to anything newer; else the record stays as it is. */
static void check_slow_old(void)
{
    struct kv k;
    struct chm_store_slow list[CHM_STORE_SLOW_MAX];
    uint64_t first, brief;
    uint32_t n;

    kv_options(&k);
    kv_start(&k);
    CHECK_IS(chm_store_namespace(k.s, "model", 5, MIB, &k.ns), 0);
    first = take(&k, 100 * MS);
    for (uint64_t i = 1; i < CHM_STORE_SLOW_MAX; i++) {
        take(&k, 50 * MS);
    }
    brief = take(&k, MS);
    n = slow(&k, list);
    CHECK_EQ(place_of(list, n, brief), n);
    rest(&k, 3601ull * CHM_SECOND);
    brief = take(&k, MS);
    n = slow(&k, list);
    CHECK_EQ(n, CHM_STORE_SLOW_MAX);
    CHECK_EQ(place_of(list, n, brief), n - 1);
    CHECK_EQ(list[0].cookie, first); /* the last of the old ones went */
    for (uint64_t i = 1; i < CHM_STORE_SLOW_MAX; i++) {
        brief = take(&k, 2 * MS + i * KIB);
        CHECK(place_of(list, slow(&k, list), brief) < n);
    }
    CHECK_EQ(place_of(list, n, first), n);
    kv_stop(&k);
}

int main(void)
{
    check_slow();
    check_slow_old();
    check_bad_page();
    check_peek(false);
    check_peek(true);
    return 0;
}
