/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fork.c - a child made by fork has no device (F70): every call answers -ECHILD and does
 * nothing, and the parent's I/O, in flight at the fork, completes.
 */
#include "device/rig.h"

static const uint64_t LONG = 60ull * CHM_SECOND;

/* Every call of chm.h that takes a device. */
static void child_main(struct rig *r, uint64_t req, uint64_t write_id)
{
    uint8_t page[PAGE] = {0}, *own = rig_alloc(PAGE);
    struct chm_issue item = {.addr = 0, .len = PAGE};
    struct chm_read rd = {.addr = 0, .len = PAGE, .buf = page};
    struct chm_write w = {.addr = 0, .len = PAGE};
    struct chm_range range = {.addr = 0, .len = PAGE};
    struct chm_view view;
    struct chm_info info;
    struct chm_stats *stats = calloc(1, sizeof(*stats));
    chm_stream *stream;
    chm_space *space;
    int32_t status;
    uint64_t id;

    CHECK_IS(chm_info(r->dev, &info), -ECHILD);
    CHECK_EQ(chm_now(r->dev), 0);
    CHECK_IS(chm_step(r->dev, 0), -ECHILD);
    CHECK_IS(chm_issue(r->dev, &item, 1, NULL), -ECHILD);
    CHECK_IS(chm_wait(r->dev, req, 0), -ECHILD);
    CHECK_IS(chm_wait_many(r->dev, &req, 1, 0, &status), -ECHILD);
    CHECK_IS(chm_progress(r->dev, req), -ECHILD);
    CHECK_IS(chm_view(r->dev, req, &view), -ECHILD);
    CHECK_IS(chm_release(r->dev, req), -ECHILD);
    CHECK_IS(chm_release_many(r->dev, &req, 1, &status), -ECHILD);
    CHECK_IS(chm_event_fd(r->dev), -ECHILD);
    CHECK_IS(chm_reap(r->dev, &id, 1), -ECHILD);
    CHECK_IS(chm_prefetch_object(chm_ptr_of(r->dev, 0), PAGE).status, -ECHILD);
    CHECK_IS(chm_read_issue(r->dev, &rd, 1), -ECHILD);
    CHECK_IS(chm_read(r->dev, &rd, 1, 0), -ECHILD);
    CHECK_IS(chm_quiesce(r->dev, 0), -ECHILD);
    CHECK_IS(chm_memory_register(r->dev, own, PAGE), -ECHILD);
    CHECK_IS(chm_memory_unregister(r->dev, own), -ECHILD);
    CHECK_IS(chm_write_begin(r->dev, &w, 1), -ECHILD);
    CHECK_IS(chm_write_commit(r->dev, &write_id, 1, &status), -ECHILD);
    CHECK_IS(chm_write_abort(r->dev, &write_id, 1, &status), -ECHILD);
    CHECK_IS(chm_write(r->dev, 0, page, PAGE), -ECHILD);
    CHECK_IS(chm_flush(r->dev, 0), -ECHILD);
    CHECK_IS(chm_trim(r->dev, 0, PAGE), -ECHILD);
    CHECK_IS(chm_stats(r->dev, stats), -ECHILD);
    CHECK_IS(chm_stream_open(r->dev, &range, 1, NULL, &stream), -ECHILD);
    CHECK_IS(chm_space_open(r->dev, NULL, &space), -ECHILD);
    CHECK_IS(chm_close(r->dev, LONG), -ECHILD);
    free(stats);
}

static void check_fork(const char *media, uint32_t thread)
{
    struct rig r;
    struct chm_write w;
    struct chm_read rd;
    uint8_t *buf = rig_alloc(MIB);
    uint64_t req;
    int status;

    rig_files(&r, media, 1, 8 * MIB);
    r.opt.thread = thread;
    r.opt.fault.script = "0 read late 20000000\n";
    if (!rig_try_open(&r)) {
        rig_unlink(&r);
        munmap(buf, MIB);
        return;
    }
    rig_lay(&r, 0, MIB, 1);
    req = rig_issue(&r, 0, MIB);
    rd = (struct chm_read){.addr = 0, .len = MIB, .buf = buf};
    CHECK_IS(chm_read_issue(r.dev, &rd, 1), 1);
    rig_write(&r, 2 * MIB, 64 * KIB, 2);
    w = rig_begin(&r, 3 * MIB, 64 * KIB, 3);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        child_main(&r, req, w.id);
        syscall(SYS_exit_group, 0); /* what it inherited is no leak of its own */
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_IS(WEXITSTATUS(status), 0);
    rig_expect_staged(&r, req, 0, MIB, 1);
    CHECK_IS(chm_wait(r.dev, rd.req, LONG), 0);
    CHECK_HOLDS(buf, 0, MIB, 1);
    rig_commit(&r, &w);
    CHECK_IS(chm_flush(r.dev, LONG), 0);
    rig_expect(&r, 2 * MIB, 64 * KIB, 2);
    rig_expect(&r, 3 * MIB, 64 * KIB, 3);
    CHECK_IS(chm_release(r.dev, req), 0);
    CHECK_IS(chm_release(r.dev, rd.req), 0);
    rig_check_idle(&r);
    CHECK_EQ(r.stats.flushed_bytes, MIB + 128 * KIB); /* nothing went out twice */
    rig_close(&r);
    munmap(buf, MIB);
}

/* The other way of making processes, exec, passes nothing on: descriptors are close-on-exec. */
static void check_descriptors(void)
{
    struct rig r;
    int before[256], after = 0;

    for (int fd = 3; fd < 256; fd++) {
        before[fd] = fcntl(fd, F_GETFD);
    }
    rig_files(&r, "sync", 1, 4 * MIB);
    r.opt.thread = 1;
    rig_open(&r);
    for (int fd = 3; fd < 256; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags >= 0 && before[fd] < 0) {
            after++;
            CHECK(flags & FD_CLOEXEC);
        }
    }
    CHECK(after >= 2);
    rig_close(&r);
    for (int fd = 3; fd < 256; fd++) {
        CHECK(before[fd] >= 0 || fcntl(fd, F_GETFD) < 0); /* and none is left open */
    }
}

int main(void)
{
    static const char *const media[] = {"sync", "threads", "uring"};

    check_descriptors();
    for (size_t i = 0; i < CHM_COUNT(media); i++) {
        check_fork(media[i], 0);
        check_fork(media[i], 1);
    }
    return 0;
}
