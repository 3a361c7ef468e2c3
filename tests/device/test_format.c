/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_format.c - making and opening devices: what is refused, with which words, and that what is
 * refused is left as it was (F41, F46, F75).
 */
#include <sys/statvfs.h>

#include "device/rig.h"
#include "fw/map.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

static struct chm_format_options format_of(struct rig *r, uint64_t capacity)
{
    struct chm_format_options f;

    chm_format_options_init(&f);
    f.paths = r->paths;
    f.npaths = r->files;
    f.capacity_bytes = capacity;
    return f;
}

/* A device of n members, closed, with one page written. */
static void make(struct rig *r, const char *name, uint32_t n)
{
    rig_options(r, "sync");
    rig_name_files(r, name, n);
    rig_format(r, n * 4 * MIB);
    rig_open(r);
    rig_write(r, PAGE, PAGE, 5);
    CHECK_IS(chm_close(r->dev, LONG), 0);
}

/* Opening fails with code, says `word`, and leaves *out alone. */
static void refuses(struct rig *r, int code, const char *word)
{
    chm_dev *untouched = (chm_dev *)(void *)r;

    r->dev = untouched;
    r->err = (struct chm_error){0};
    CHECK_IS(chm_open(&r->opt, &r->dev, &r->err), code);
    CHECK(r->dev == untouched);
    CHECK_IS(r->err.code, code);
    if (!strstr(r->err.text, word)) {
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", r->err.text, word);
        exit(1);
    }
}

static void still_fine(struct rig *r)
{
    rig_open(r);
    rig_expect(r, PAGE, PAGE, 5);
    CHECK_IS(chm_close(r->dev, LONG), 0);
}

static void poke(const char *path, uint64_t at, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    CHECK(fd >= 0);
    CHECK_IS(pwrite(fd, bytes, n, (off_t)at), (int64_t)n);
    close(fd);
}

static void peek(const char *path, uint64_t at, void *bytes, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    CHECK(fd >= 0);
    CHECK_IS(pread(fd, bytes, n, (off_t)at), (int64_t)n);
    close(fd);
}

/* ------------------------------------------------------------------ format */

static void check_made(void)
{
    struct rig r;
    struct stat st;

    umask(0);
    make(&r, "made", 2);
    for (int i = 0; i < 2; i++) {
        CHECK_IS(stat(r.path[i], &st), 0);
        CHECK_EQ(st.st_mode & 07777, 0600);
        CHECK_EQ(st.st_size, CHM_DATA_OFFSET + 4 * MIB);
        CHECK((uint64_t)st.st_blocks * 512 >= 4 * MIB); /* preallocated */
    }
    still_fine(&r);
    rig_open(&r);
    CHECK_EQ(strlen(r.info.device_id), 32);
    CHECK_EQ(r.info.capacity_bytes, 8 * MIB);
    rig_close(&r);
}

/* What is there, foreign or a device, is left alone without force. An empty file and zeros are
 * nothing. */
static void check_foreign(void)
{
    struct rig r;
    struct chm_format_options f;
    char text[] = "somebody's thesis", back[sizeof(text)];

    rig_options(&r, "sync");
    rig_name_files(&r, "foreign", 2);
    f = format_of(&r, 8 * MIB);
    int fd = open(r.path[1], O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    CHECK(fd >= 0);
    CHECK_IS(ftruncate(fd, 8 * MIB), 0);
    close(fd);
    poke(r.path[1], 0, text, sizeof(text));
    CHECK_IS(chm_format(&f, &r.err), -EEXIST);
    CHECK(strstr(r.err.text, r.path[1]) && strstr(r.err.text, "force"));
    peek(r.path[1], 0, back, sizeof(back));
    CHECK(memcmp(text, back, sizeof(text)) == 0);
    CHECK_IS(access(r.path[0], F_OK), -1); /* and nothing was made beside it */
    refuses(&r, -ENOENT, r.path[0]);
    f.force = 1;
    CHECK_IS(chm_format(&f, &r.err), 0);
    f.force = 0;
    rig_open(&r);
    memcpy(back, r.info.device_id, sizeof(back));
    CHECK_IS(chm_close(r.dev, UINT64_MAX), 0);
    CHECK_IS(chm_format(&f, &r.err), -EEXIST); /* a device is not made anew by the way */
    CHECK(strstr(r.err.text, r.path[0]) && strstr(r.err.text, "chm device") &&
          strstr(r.err.text, "force"));
    rig_open(&r);
    CHECK(memcmp(back, r.info.device_id, sizeof(back)) == 0);
    CHECK_IS(chm_close(r.dev, UINT64_MAX), 0);
    f.force = 1;
    CHECK_IS(chm_format(&f, &r.err), 0);
    rig_open(&r);
    CHECK(memcmp(back, r.info.device_id, sizeof(back)) != 0);
    rig_close(&r);
}

/* A short foreign file, smaller than a header. */
static void check_short_foreign(void)
{
    struct rig r;
    struct chm_format_options f;

    rig_options(&r, "sync");
    rig_name_files(&r, "short", 1);
    f = format_of(&r, 4 * MIB);
    int fd = open(r.path[0], O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    CHECK(fd >= 0 && write(fd, "note", 4) == 4);
    close(fd);
    CHECK_IS(chm_format(&f, &r.err), -EEXIST);
    rig_unlink(&r);
}

/* No space: both numbers, and no file left behind (F41). */
static void check_no_space(void)
{
    struct rig r;
    struct chm_format_options f;
    struct statvfs fs;
    uint64_t free_bytes, asked;
    char number[32];

    rig_options(&r, "sync");
    rig_name_files(&r, "huge", 1);
    CHECK_IS(statvfs(rig_dir(), &fs), 0);
    free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    asked = chm_round_up(4 * free_bytes, MIB);
    f = format_of(&r, asked);
    int rc = chm_format(&f, &r.err);
    CHECK(rc == -ENOSPC || rc == -EFBIG);
    snprintf(number, sizeof(number), "%" PRIu64, asked + CHM_DATA_OFFSET);
    CHECK(strstr(r.err.text, number));
    CHECK_IS(access(r.path[0], F_OK), -1);
    r.files = 0;
}

static void check_bad_arguments(void)
{
    struct rig r;
    struct chm_format_options f;

    rig_options(&r, "sync");
    rig_name_files(&r, "bad", 2);
    CHECK_IS(chm_format(NULL, &r.err), -EINVAL);
    CHECK_IS(chm_format(NULL, NULL), -EINVAL);
    f = format_of(&r, 8 * MIB);
    f.size--;
    CHECK_IS(chm_format(&f, &r.err), -EINVAL);
    f = format_of(&r, 8 * MIB);
    f.stripe_bytes = PAGE + 1;
    CHECK_IS(chm_format(&f, &r.err), -EINVAL);
    f.stripe_bytes = 1u << 31;
    CHECK_IS(chm_format(&f, &r.err), -EINVAL);
    f = format_of(&r, MIB); /* less than a row */
    CHECK_IS(chm_format(&f, &r.err), -EINVAL);
    f = format_of(&r, 0); /* nothing there to take a size from */
    CHECK_IS(chm_format(&f, &r.err), -EINVAL);
    f = format_of(&r, 8 * MIB);
    f.npaths = 0;
    CHECK_IS(chm_format(&f, &r.err), -EINVAL);
    f.npaths = CHM_MEMBERS_MAX + 1;
    CHECK_IS(chm_format(&f, &r.err), -EINVAL);
    const char *twice[] = {r.path[0], r.path[0]};
    f.npaths = 2;
    f.paths = twice;
    CHECK_IS(chm_format(&f, &r.err), -EINVAL);
    f.paths = NULL;
    CHECK_IS(chm_format(&f, &r.err), -EINVAL);
    const char *nowhere[] = {"/nonexistent/device"};
    f.paths = nowhere;
    f.npaths = 1;
    CHECK_IS(chm_format(&f, &r.err), -ENOENT);
    CHECK(strstr(r.err.text, nowhere[0]));
    CHECK_IS(access(r.path[0], F_OK), -1);
    r.files = 0;
}

/* ------------------------------------------------------------------ open */

static void check_members(void)
{
    struct rig a, b;
    const char *mixed[3];

    make(&a, "a", 2);
    make(&b, "b", 2);
    mixed[0] = a.path[1], mixed[1] = a.path[0];
    a.opt.paths = mixed;
    refuses(&a, -EXDEV, "member"); /* swapped */
    mixed[0] = a.path[0], mixed[1] = b.path[1];
    refuses(&a, -EXDEV, "another device"); /* foreign */
    a.opt.npaths = 1;
    refuses(&a, -EXDEV, "2 members"); /* missing */
    a.opt.npaths = 3;
    mixed[1] = a.path[1], mixed[2] = b.path[0];
    refuses(&a, -EXDEV, "members"); /* one too many */
    mixed[1] = "/nonexistent/device";
    a.opt.npaths = 2;
    refuses(&a, -ENOENT, mixed[1]);
    a.opt.paths = a.paths;
    still_fine(&a);
    still_fine(&b);
    rig_unlink(&a);
    rig_unlink(&b);
}

/* Each field of the header damaged, another version, no header, a truncated file: refused, and the
 * file is as before (F46). */
static void check_damage(void)
{
    struct rig r;
    uint8_t page[CHM_HEADER_BYTES], zero[CHM_HEADER_BYTES] = {0};
    struct stat st;

    make(&r, "damaged", 1);
    peek(r.path[0], 0, page, sizeof(page));
    for (uint64_t at = 0; at < 48; at++) {
        uint8_t flipped = page[at] ^ 0x10;
        poke(r.path[0], at, &flipped, 1);
        r.dev = NULL;
        int rc = chm_open(&r.opt, &r.dev, &r.err);
        CHECK(rc == -EBADMSG || rc == -EPROTO);
        CHECK(strstr(r.err.text, r.path[0]));
        poke(r.path[0], at, page + at, 1);
    }
    poke(r.path[0], 0, zero, sizeof(zero));
    refuses(&r, -EBADMSG, r.path[0]);
    poke(r.path[0], 0, page, sizeof(page));
    still_fine(&r);
    CHECK_IS(stat(r.path[0], &st), 0);
    CHECK_IS(truncate(r.path[0], st.st_size - PAGE), 0);
    refuses(&r, -ENOSPC, "truncated");
    CHECK_IS(truncate(r.path[0], 100), 0);
    r.dev = NULL;
    CHECK(chm_open(&r.opt, &r.dev, &r.err) < 0);
    rig_unlink(&r);
}

/* Open twice: by the same name, by another, and from another process. The refusal names the owner,
 * and a dead owner's lock is no lock (F75). */
static void check_two_opens(void)
{
    struct rig r, other;
    struct chm_format_options f;
    char link_path[RIG_PATH_MAX + 8], pid[32];
    const char *by_link[] = {link_path};
    int ready[2], status;
    char byte;

    make(&r, "twice", 1);
    other = r;
    snprintf(link_path, sizeof(link_path), "%s.link", r.path[0]);
    CHECK_IS(symlink(r.path[0], link_path), 0);
    rig_open(&r);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    other.opt.paths = r.paths;
    refuses(&other, -EBUSY, pid);
    other.opt.paths = by_link;
    refuses(&other, -EBUSY, pid);
    f = format_of(&r, 4 * MIB);
    f.force = 1;
    CHECK_IS(chm_format(&f, &r.err), -EBUSY);
    CHECK(strstr(r.err.text, pid));
    rig_expect(&r, PAGE, PAGE, 5);
    CHECK_IS(chm_close(r.dev, LONG), 0);

    CHECK_IS(pipe(ready), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        rig_open(&r);
        CHECK_IS(write(ready[1], "x", 1), 1);
        pause();
        _exit(0);
    }
    CHECK_IS(read(ready[0], &byte, 1), 1);
    snprintf(pid, sizeof(pid), "%d", (int)child);
    refuses(&r, -EBUSY, pid);
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child);
    still_fine(&r);
    CHECK_IS(unlink(link_path), 0);
    rig_unlink(&r);
}

static void check_unknown_medium(void)
{
    struct rig r;

    make(&r, "tape", 1);
    r.opt.media = "tape";
    refuses(&r, -EINVAL, "tape");
    rig_unlink(&r);
}

static void check_bad_options(void)
{
    struct rig r;
    struct chm_options good;

    rig_sim(&r);
    good = r.opt;
    CHECK_IS(chm_open(NULL, &r.dev, &r.err), -EINVAL);
    CHECK_IS(chm_open(&r.opt, NULL, &r.err), -EINVAL);
    r.opt.size = 8;
    refuses(&r, -EINVAL, "");
    r.opt = good;
    r.opt.thread = 1;
    refuses(&r, -EINVAL, "");
    r.opt = good;
    r.opt.write_buffer_bytes = r.opt.dram_bytes;
    refuses(&r, -EINVAL, "");
    r.opt = good;
    r.opt.flush_low_percent = 60;
    refuses(&r, -EINVAL, "");
    r.opt = good;
    r.opt.flush_high_percent = 101;
    refuses(&r, -EINVAL, "");
    r.opt = good;
    r.opt.read_unit = 1000;
    refuses(&r, -EINVAL, "read_unit");
    r.opt = good;
    r.opt.durability = 3;
    refuses(&r, -EINVAL, "");
    r.opt = good;
    r.opt.npaths = CHM_MEMBERS_MAX + 1;
    refuses(&r, -EINVAL, "");
    r.opt = good;
    r.opt.dram_bytes = 64 * KIB;
    r.opt.write_buffer_bytes = 0;
    refuses(&r, -EINVAL, "DRAM");
    r.opt = good;
    r.opt.fault.script = "0 read explode\n";
    refuses(&r, -EINVAL, "line 1");
    r.opt = good;
    r.opt.media = "sync";
    refuses(&r, -EINVAL, "path");
    r.opt = good;
    CHECK_IS(chm_open(&r.opt, &r.dev, NULL), 0);
    CHECK_IS(chm_close(r.dev, LONG), 0);
}

int main(void)
{
    check_made();
    check_foreign();
    check_short_foreign();
    check_no_space();
    check_bad_arguments();
    check_members();
    check_damage();
    check_two_opens();
    check_unknown_medium();
    check_bad_options();
    return 0;
}
