/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backing files: who may open them, how they are made, and what is left when that fails.
 */
#include "rig.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

enum { SIZE = 1 << 20 };

static char path[256], other[256];
static struct chm_error err;

static void make(struct chm_backing *b)
{
    uint8_t page[CHM_HEADER_BYTES];

    CHECK_EQ(chm_backing_create(path, SIZE, false, b, &err), 0);
    fill(page, sizeof(page), 1);
    CHECK_EQ(chm_backing_write_header(b, page), 0);
}

static bool names_pid(pid_t pid)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%d", (int)pid);
    return strstr(err.text, text) != NULL;
}

static void check_made(void)
{
    struct chm_backing b;
    struct stat st;
    mode_t old = umask(0);

    make(&b);
    umask(old);
    CHECK_EQ(fstat(b.fd, &st), 0);
    CHECK_EQ(st.st_mode & 07777, 0600);
    CHECK_EQ(st.st_size, SIZE);
    CHECK(st.st_blocks * 512 >= SIZE); /* F41: no write can lack space later */
    CHECK_EQ(b.size_bytes, SIZE);
    CHECK(b.direct && !b.block_device);
    CHECK(b.block_bytes >= 512 && (b.block_bytes & (b.block_bytes - 1)) == 0);
    CHECK(b.align_bytes >= 512 && (b.align_bytes & (b.align_bytes - 1)) == 0);
    CHECK_EQ(chm_backing_size(path), SIZE);
    chm_backing_close(&b);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(chm_backing_size(path), 0);
}

/* The last 8 bytes of the header page are the lock's own; the rest comes back as written. */
static void check_header(void)
{
    uint8_t in[CHM_HEADER_BYTES], out[CHM_HEADER_BYTES];
    struct chm_backing b;

    make(&b);
    fill(in, sizeof(in), 2);
    CHECK_EQ(chm_backing_write_header(&b, in), 0);
    chm_backing_close(&b);
    CHECK_EQ(chm_backing_open(path, true, &b, &err), 0);
    CHECK(!b.direct);
    CHECK_EQ(chm_backing_read_header(&b, out + 0), 0);
    CHECK(memcmp(in, out, CHM_HEADER_BYTES - 8) == 0);
    CHECK(is_byte(out + CHM_HEADER_BYTES - 8, 8, 0));
    chm_backing_close(&b);
    CHECK_EQ(unlink(path), 0);
}

/* F75: refused to this process too, and under every name; the owner is named. */
static void check_second_open(void)
{
    struct chm_backing b, second = {.fd = -2};

    make(&b);
    for (int buffered = 0; buffered < 2; buffered++) {
        CHECK_EQ(chm_backing_open(path, buffered, &second, &err), -EBUSY);
        CHECK(names_pid(getpid()));
        CHECK_EQ(chm_backing_create(path, SIZE, buffered, &second, &err), -EBUSY);
    }
    CHECK_EQ(symlink(path, other), 0);
    CHECK_EQ(chm_backing_open(other, false, &second, &err), -EBUSY);
    CHECK(names_pid(getpid()));
    CHECK_EQ(unlink(other), 0);
    CHECK_EQ(link(path, other), 0);
    CHECK_EQ(chm_backing_open(other, false, &second, &err), -EBUSY);
    CHECK(names_pid(getpid()));
    CHECK_EQ(unlink(other), 0);
    CHECK_EQ(second.fd, -2); /* outputs are untouched */
    CHECK_EQ(chm_backing_size(path), SIZE);

    close(open(path, O_RDWR)); /* with the old kind of lock this would have dropped it */
    CHECK_EQ(chm_backing_open(path, false, &second, &err), -EBUSY);
    chm_backing_close(&b);
    CHECK_EQ(chm_backing_open(path, false, &second, &err), 0);
    chm_backing_close(&second);
    CHECK_EQ(unlink(path), 0);
}

/* A child that owns the file, with I/O through a ring in flight all the time; killed in the end. */
static _Noreturn void owner_main(int ready)
{
    static struct chm_io io[64], *in[64], *out[64];
    struct rig r;

    rig_init(&r, "auto");
    r.args.one_thread = false;
    CHECK_EQ(chm_backing_open(path, false, &r.backing[0], &r.err), 0);
    CHECK_EQ(chm_media_open(&r.args, &r.m, &r.err), 0);
    for (unsigned i = 0; i < 64; i++) {
        io[i] = rig_io(&r, CHM_IO_WRITE, 4096 + (uint64_t)i * 8192, 8192, (uint64_t)i * 8192);
        in[i] = &io[i];
    }
    CHECK_EQ(chm_medium_submit(r.m, in, 64), 64);
    CHECK_EQ(write(ready, "", 1), 1);
    for (;;) {
        int n = chm_medium_reap(r.m, out, 64, CHM_FOREVER_NS);
        CHECK(n > 0);
        CHECK_EQ(chm_medium_submit(r.m, out, (unsigned)n), n);
    }
}

/* F75: another process is refused and told by whom; a dead owner's lock is in nobody's way. */
static void check_other_process(void)
{
    struct chm_backing b, second;
    int ready[2], status;
    char byte;
    pid_t pid;

    make(&b);
    chm_backing_close(&b);
    CHECK_EQ(pipe(ready), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        owner_main(ready[1]);
    }
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    CHECK_EQ(chm_backing_open(path, false, &second, &err), -EBUSY);
    CHECK(names_pid(pid));
    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    CHECK_EQ(chm_backing_open(path, false, &second, &err), 0); /* while it is still a zombie */
    chm_backing_close(&second);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK_EQ(chm_backing_open(path, false, &second, &err), 0);
    chm_backing_close(&second);
    CHECK_EQ(unlink(path), 0);
    close(ready[0]);
    close(ready[1]);
}

/* F41: refused at once, with both numbers; what we made is gone, what was there is as it was. */
static void check_no_space(void)
{
    struct chm_backing b = {.fd = -2};
    struct statvfs vfs;
    char need[32];
    uint64_t huge;

    CHECK_EQ(statvfs(rig_dir(), &vfs), 0);
    huge = ((uint64_t)vfs.f_bavail * vfs.f_frsize + (UINT64_C(1) << 40)) & ~UINT64_C(4095);
    CHECK_EQ(chm_backing_create(path, huge, false, &b, &err), -ENOSPC);
    CHECK_EQ(err.code, -ENOSPC);
    (void)snprintf(need, sizeof(need), "%" PRIu64, huge);
    CHECK(strstr(err.text, need) != NULL);
    CHECK(strstr(err.text, " free") != NULL);
    CHECK(access(path, F_OK) != 0);
    CHECK_EQ(b.fd, -2);

    make(&b);
    chm_backing_close(&b);
    CHECK_EQ(chm_backing_create(path, huge, false, &b, &err), -ENOSPC);
    CHECK_EQ(chm_backing_size(path), SIZE);
    CHECK_EQ(chm_backing_open(path, false, &b, &err), 0); /* and is not locked */
    chm_backing_close(&b);
    CHECK_EQ(chm_backing_create(path, UINT64_MAX, false, &b, &err), -EFBIG);
    CHECK_EQ(chm_backing_size(path), SIZE);
    CHECK_EQ(unlink(path), 0);
}

/* Opening a foreign file, to look whether it is one, must change nothing in it. */
static void check_foreign_file(void)
{
    uint8_t before[8192], after[8192];
    struct chm_backing b;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);

    fill(before, sizeof(before), 3);
    CHECK_EQ(write(fd, before, sizeof(before)), sizeof(before));
    CHECK_EQ(chm_backing_open(path, false, &b, &err), 0);
    CHECK_EQ(b.size_bytes, sizeof(before));
    CHECK_EQ(chm_backing_create(path, SIZE, false, &b, &err), -EBUSY);
    chm_backing_close(&b);
    CHECK_EQ(chm_backing_create(path, SIZE, false, &b, &err), 0);
    chm_backing_close(&b);
    CHECK_EQ(pread(fd, after, sizeof(after), 0), sizeof(after));
    CHECK(memcmp(before, after, sizeof(before)) == 0);
    close(fd);
    CHECK_EQ(chm_backing_size(path), SIZE);
    CHECK_EQ(unlink(path), 0);
}

static void check_short_file(void)
{
    uint8_t page[CHM_HEADER_BYTES];
    struct chm_backing b;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);

    CHECK_EQ(write(fd, "short", 5), 5);
    close(fd);
    CHECK_EQ(chm_backing_open(path, false, &b, &err), 0);
    CHECK_EQ(b.size_bytes, 5);
    CHECK_EQ(chm_backing_read_header(&b, page), -EIO);
    chm_backing_close(&b);
    CHECK_EQ(unlink(path), 0);
}

static void check_not_a_file(void)
{
    struct chm_backing b;

    CHECK_EQ(chm_backing_open(path, false, &b, &err), -ENOENT);
    CHECK_EQ(chm_backing_open(rig_dir(), false, &b, &err), -EINVAL);
    CHECK_EQ(mkfifo(path, 0600), 0);
    CHECK_EQ(chm_backing_open(path, false, &b, &err), -EINVAL); /* and does not wait for a writer */
    CHECK_EQ(chm_backing_create(path, SIZE, false, &b, &err), -EINVAL);
    CHECK_EQ(chm_backing_size(path), 0);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(symlink(other, path), 0); /* dangling */
    CHECK_EQ(chm_backing_open(path, false, &b, &err), -ENOENT);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(chm_backing_open("/dev/null", false, &b, &err), -EINVAL);
}

int main(void)
{
    rig_path(path, sizeof(path), "backing");
    rig_path(other, sizeof(other), "other");
    check_made();
    check_header();
    check_second_open();
    check_other_process();
    check_no_space();
    check_foreign_file();
    check_short_file();
    check_not_a_file();
    return 0;
}
