/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kv_file.c - a store's file in other hands: cut short, longer, opened twice, made where there
 * is no room; and clocks that jump.
 *
 * Field reports: F33 (nothing is written beyond the file), F42, F46 (another size is refused and
 * nothing is touched), F75 (two processes on one store).
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <time.h>

#include "store/kv_rig.h"

enum { OBJECTS = 12, BYTES = 12 * MIB };

/* ------------------------------------------------------------------ clocks */

static _Atomic uint64_t wall_clock_asked;

/* In the place of the C library's: wall clocks jump by a year, to and fro, and are counted. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);

    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI) {
        t->tv_sec += wall_clock_asked++ % 2 ? 31536000 : -31536000;
    }
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    (void)zone;
    *t = (struct timeval){.tv_sec = (time_t)(wall_clock_asked++ % 2 * 31536000)};
    return 0;
}

time_t time(time_t *t)
{
    time_t now = (time_t)(wall_clock_asked++ % 2 * 31536000);

    if (t) {
        *t = now;
    }
    return now;
}

/* ------------------------------------------------------------------ */

static void files(struct kv *k, const char *media)
{
    struct rig r;

    kv_options(k);
    rig_files(&r, media, 1, BYTES);
    k->r = r;
    k->r.paths[0] = k->r.path[0];
    k->r.opt.paths = k->r.paths;
    k->r.opt.thread = 1;
    k->f.max_objects = 100;
}

static uint64_t len_of(uint64_t i)
{
    return 3000 + i * 40000;
}

static void put_all(struct kv *k)
{
    for (uint64_t i = 0; i < OBJECTS; i++) {
        CHECK(kv_put(k, i, len_of(i), 1) >= 0);
    }
    kv_sync(k);
}

static void get_all(struct kv *k)
{
    for (uint64_t i = 0; i < OBJECTS; i++) {
        CHECK_IS(kv_get(k, i, len_of(i), 1), 0);
    }
}

static void close_all(struct kv *k)
{
    kv_close_store(k);
    kv_close_device(k);
}

static off_t size_of(const struct kv *k)
{
    struct stat st;

    CHECK_IS(stat(k->r.path[0], &st), 0);
    return st.st_size;
}

static void refuse_device(struct kv *k, int want)
{
    CHECK_IS(chm_open(&k->r.opt, &k->r.dev, &k->err), want);
    CHECK(strlen(k->err.text) > 10);
}

/* F33: three times what there is room for, in a file that is longer than the device: nothing is
 * written behind its end. */
static void check_full(struct kv *k, off_t size)
{
    uint8_t *behind = rig_alloc(MIB);
    int fd;

    CHECK_IS(truncate(k->r.path[0], size + (off_t)MIB), 0);
    kv_device(k);
    kv_open_store(k);
    for (uint64_t i = 0; i < 3 * BYTES / (256 * KIB); i++) {
        CHECK_IS(kv_put(k, 1000 + i, 256 * KIB, 1), 0);
    }
    CHECK(kv_stats(k)->evicted > 0);
    kv_recount(k);
    close_all(k);
    fd = open(k->r.path[0], O_RDONLY);
    CHECK(fd >= 0);
    CHECK_EQ(pread(fd, behind, MIB, size), MIB);
    CHECK(is_byte(behind, MIB, 0));
    CHECK_EQ(size_of(k), size + (off_t)MIB);
    close(fd);
    munmap(behind, MIB);
}

/* Shorter: refused, and whole again when it has its length again (zeros there now: those objects
 * are misses). Longer: what is behind the end is nobody's. */
static void check_size(void)
{
    struct kv k;
    off_t size;
    uint64_t hits = 0;

    files(&k, "auto");
    kv_start(&k);
    put_all(&k);
    close_all(&k);
    size = size_of(&k);
    CHECK_IS(truncate(k.r.path[0], size + 3 * (off_t)MIB), 0);
    kv_device(&k);
    kv_open_store(&k);
    get_all(&k);
    close_all(&k);
    CHECK_EQ(size_of(&k), size + 3 * (off_t)MIB);
    CHECK_IS(truncate(k.r.path[0], 5 * (off_t)MIB), 0);
    refuse_device(&k, -ENOSPC);
    CHECK_IS(truncate(k.r.path[0], size), 0);
    kv_device(&k);
    kv_open_store(&k);
    for (uint64_t i = 0; i < OBJECTS; i++) {
        int rc = kv_get(&k, i, len_of(i), 1);

        CHECK(rc == 0 || rc == -EBADMSG);
        hits += rc == 0;
    }
    CHECK(hits > 0 && hits < OBJECTS);
    put_all(&k);
    get_all(&k);
    kv_recount(&k);
    close_all(&k);
    check_full(&k, size);
    rig_unlink(&k.r);
}

/* It is cut short while it is open: misses, not signals. */
static void check_cut_short(void)
{
    struct kv k;

    files(&k, "auto");
    kv_start(&k);
    put_all(&k);
    kv_reopen(&k);
    CHECK_IS(truncate(k.r.path[0], 5 * (off_t)MIB), 0);
    for (uint64_t i = 0; i < OBJECTS; i++) {
        int rc = kv_get(&k, i, len_of(i), 1);

        CHECK(rc == 0 || rc == -EIO || rc == -EBADMSG);
        CHECK_EQ(kv_has(&k, i), rc == 0);
    }
    kv_recount(&k);
    close_all(&k);
    rig_unlink(&k.r);
}

static void other_process(const char *path)
{
    const char *paths[] = {path};
    struct rig r;

    rig_options(&r, "auto");
    r.opt.paths = paths;
    r.opt.npaths = 1;
    CHECK_IS(chm_open(&r.opt, &r.dev, &r.err), -EBUSY);
    CHECK(strlen(r.err.text) > 10);
}

/* Two on one store: the second is refused, by another name too, and the first goes on. */
static void check_two(void)
{
    struct kv k;
    char other[RIG_PATH_MAX + 8];

    files(&k, "auto");
    kv_start(&k);
    put_all(&k);
    snprintf(other, sizeof(other), "%s-link", k.r.path[0]);
    CHECK_IS(link(k.r.path[0], other), 0);
    rig_in_child(other_process, k.r.path[0]);
    rig_in_child(other_process, other);
    CHECK_IS(unlink(other), 0);
    get_all(&k);
    kv_reopen(&k);
    get_all(&k);
    close_all(&k);
    rig_unlink(&k.r);
}

/* More than the disk has: refused in words, and nothing is left behind. */
static void check_no_room(void)
{
    struct rig r;
    struct chm_format_options f;
    struct statvfs fs;

    CHECK_IS(statvfs(rig_dir(), &fs), 0);
    rig_options(&r, "auto");
    rig_name_files(&r, "huge", 1);
    chm_format_options_init(&f);
    f.paths = r.paths;
    f.npaths = 1;
    f.capacity_bytes = chm_round_up((fs.f_blocks + 1) * fs.f_frsize, MIB);
    int rc = chm_format(&f, &r.err);
    CHECK(rc == -ENOSPC || rc == -EFBIG);
    CHECK(strlen(r.err.text) > 10);
    CHECK(access(r.path[0], F_OK) != 0);
}

static void check_clocks(void)
{
    struct kv k;
    uint64_t before;

    files(&k, "auto");
    before = wall_clock_asked;
    kv_start(&k);
    put_all(&k);
    get_all(&k);
    kv_reopen(&k);
    get_all(&k);
    CHECK_EQ(kv_stats(&k)->errors_late, 0);
    close_all(&k);
    CHECK_EQ(wall_clock_asked, before);
    (void)time(NULL); /* it is this one that is called */
    CHECK_EQ(wall_clock_asked, before + 1);
    rig_unlink(&k.r);
}

int main(void)
{
    check_size();
    check_cut_short();
    check_two();
    check_no_room();
    check_clocks();
    return 0;
}
