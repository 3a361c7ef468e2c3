/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hello.c - the smallest whole use of libchm: make a device on a file, write an object, read it
 * back through the window.
 *
 *     make -C csrc install PREFIX=$HOME/chm
 *     make -C csrc example PREFIX=$HOME/chm
 *     LD_LIBRARY_PATH=$HOME/chm/lib build/c/plain/hello device.chm
 *
 * The file should lie on a disk: a tmpfs has no direct I/O.
 */
#include <chm.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    OBJECT_BYTES = 1 << 20,
    ADDRESS = 0,
};

static const uint64_t CAPACITY_BYTES = 64 << 20;
static const uint64_t TIMEOUT_NS = 10ULL * CHM_SECOND;

/* Says what went wrong, if anything did, and passes it on. */
static int check(const char *what, int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(-rc));
    }
    return rc;
}

/* Write without a copy: fill the bytes where they lie in the write buffer, then make them count. */
static int write_object(chm_dev *dev)
{
    struct chm_write w = {.addr = ADDRESS, .len = OBJECT_BYTES};

    if (chm_write_begin(dev, &w, 1) != 1) {
        return check("write_begin", w.status);
    }
    memset(w.data, 'h', w.len);
    if (chm_write_commit(dev, &w.id, 1, &w.status) != 1) {
        return check("write_commit", w.status);
    }
    return check("flush", chm_flush(dev, TIMEOUT_NS));
}

/* Issue, wait, look, release. */
static int read_object(chm_dev *dev)
{
    struct chm_issue item = {.addr = ADDRESS, .len = OBJECT_BYTES};
    struct chm_view view;
    int rc;

    if (chm_issue(dev, &item, 1, NULL) != 1) {
        return check("issue", item.status);
    }
    rc = check("wait", chm_wait(dev, item.req, TIMEOUT_NS));
    if (rc == 0) {
        rc = check("view", chm_view(dev, item.req, &view));
    }
    if (rc == 0) {
        const char *bytes = view.data;

        printf("%" PRIu64 " bytes, the first is '%c', the last is '%c'\n", view.len, bytes[0],
               bytes[view.len - 1]);
    }
    chm_release(dev, item.req);
    return rc;
}

static int make_device(const char *const *paths, chm_dev **dev)
{
    struct chm_format_options format;
    struct chm_options options;
    struct chm_error error;
    int rc;

    chm_format_options_init(&format);
    format.paths = paths;
    format.npaths = 1;
    format.capacity_bytes = CAPACITY_BYTES;
    rc = chm_format(&format, &error);
    if (rc == 0) {
        chm_options_init(&options);
        options.paths = paths;
        options.npaths = 1;
        rc = chm_open(&options, dev, &error);
    }
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", paths[0], error.text);
    }
    return rc;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "hello.chm";
    chm_dev *dev;
    int rc, closed;

    if (make_device(&path, &dev) < 0) {
        return 1;
    }
    rc = write_object(dev);
    if (rc == 0) {
        rc = read_object(dev);
    }
    closed = check("close", chm_close(dev, TIMEOUT_NS));
    return rc < 0 || closed < 0;
}
