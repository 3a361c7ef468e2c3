/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_file.c - writing and reading traces (trace_file.h). The reader takes what the writer makes
 * and nothing else: a trace that was edited into something different is refused, not guessed at.
 */
#include "media/trace_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "media/media.h"
#include "util/util.h"

enum { TRACE_VERSION = 1, LINE_BYTES_MAX = 512 };

static const char *const kind_names[] = {"read", "write", "barrier", "trim"};

/* ------------------------------------------------------------------ writing */

/* errno of a stdio call that returned n. */
static int stdio_result(int n)
{
    return n >= 0 ? 0 : -(errno ? errno : EIO);
}

int chm_trace_create(const char *path, const struct chm_medium_caps *caps, FILE **out)
{
    FILE *file = fopen(path, "we");
    int rc;

    if (!file) {
        return -errno;
    }
    rc = stdio_result(
        fprintf(file, "{\"chm_trace\":%d,\"members\":%" PRIu32 ",\"block_bytes\":%" PRIu32 "}\n",
                TRACE_VERSION, caps->members, caps->block_bytes));
    if (rc) {
        (void)fclose(file);
        return rc;
    }
    *out = file;
    return 0;
}

int chm_trace_write(FILE *file, const struct chm_trace_line *line)
{
    const char *kind = line->kind < CHM_COUNT(kind_names) ? kind_names[line->kind] : "bad";

    return stdio_result(fprintf(file,
                                "{\"seq\":%" PRIu64 ",\"submit_ns\":%" PRIu64
                                ",\"done_ns\":%" PRIu64 ",\"kind\":\"%s\",\"member\":%" PRIu32
                                ",\"off\":%" PRIu64 ",\"len\":%" PRIu32 ",\"res\":%" PRId32
                                ",\"fua\":%d}\n",
                                line->seq, line->submit_ns, line->done_ns, kind, line->member,
                                line->off, line->len, line->res, line->flags & CHM_IO_FUA ? 1 : 0));
}

int chm_trace_close(FILE *file)
{
    return fclose(file) == 0 ? 0 : -errno;
}

/* ------------------------------------------------------------------ reading */

static int parse_head(const char *text, const struct chm_medium_caps *caps)
{
    uint32_t members = 0, block_bytes = 0;
    int version = 0, end = 0;
    int n = sscanf(text, "{\"chm_trace\":%d,\"members\":%" SCNu32 ",\"block_bytes\":%" SCNu32 "}%n",
                   &version, &members, &block_bytes, &end);

    if (n != 3 || end == 0 || version != TRACE_VERSION) {
        return -EINVAL;
    }
    return members == caps->members && block_bytes >= caps->block_bytes ? 0 : -EXDEV;
}

/* Index of the name, or the number of names: a kind that no medium has. */
static uint8_t parse_kind(const char *name)
{
    uint8_t i = 0;

    while (i < CHM_COUNT(kind_names) && strcmp(name, kind_names[i]) != 0) {
        i++;
    }
    return i;
}

static int parse_line(const char *text, struct chm_trace_line *line)
{
    struct chm_trace_line l = {0};
    char kind[8] = "";
    int fua = 0, end = 0;
    int n = sscanf(text,
                   "{\"seq\":%" SCNu64 ",\"submit_ns\":%" SCNu64 ",\"done_ns\":%" SCNu64
                   ",\"kind\":\"%7[a-z]\",\"member\":%" SCNu32 ",\"off\":%" SCNu64
                   ",\"len\":%" SCNu32 ",\"res\":%" SCNd32 ",\"fua\":%d}%n",
                   &l.seq, &l.submit_ns, &l.done_ns, kind, &l.member, &l.off, &l.len, &l.res, &fua,
                   &end);

    if (n != 9 || end == 0 || l.done_ns < l.submit_ns) {
        return -EINVAL;
    }
    l.kind = parse_kind(kind);
    l.flags = fua ? CHM_IO_FUA : 0;
    *line = l;
    return 0;
}

/* Lines from here to the end; the file then stands at its beginning. 0 or -errno. */
static int count_lines(FILE *file, uint64_t *n)
{
    int c;

    *n = 0;
    while ((c = getc(file)) != EOF) {
        *n += c == '\n';
    }
    return fseek(file, 0, SEEK_SET) == 0 ? 0 : -errno;
}

static int read_trace(FILE *file, const struct chm_medium_caps *caps, struct chm_trace *t)
{
    char text[LINE_BYTES_MAX];
    uint64_t room;
    int rc = count_lines(file, &room);

    if (rc == 0) {
        rc = fgets(text, sizeof(text), file) ? parse_head(text, caps) : -EINVAL;
    }
    if (rc) {
        return rc;
    }
    t->line = calloc(room + 1, sizeof(*t->line));
    if (!t->line) {
        return -ENOMEM;
    }
    while (fgets(text, sizeof(text), file)) {
        if (t->lines > room || parse_line(text, &t->line[t->lines]) != 0) {
            return -EINVAL;
        }
        t->lines++;
    }
    return ferror(file) ? -EIO : 0;
}

int chm_trace_load(const char *path, const struct chm_medium_caps *caps, struct chm_trace *out,
                   struct chm_error *err)
{
    struct chm_trace t = {0};
    FILE *file = fopen(path, "re");
    int rc = file ? read_trace(file, caps, &t) : -errno;

    if (file) {
        (void)fclose(file);
    }
    if (rc == 0) {
        *out = t;
        return 0;
    }
    free(t.line);
    if (rc == -EINVAL) {
        return chm_media_fail(err, rc, "trace %s is damaged or no trace", path);
    }
    if (rc == -EXDEV) {
        return chm_media_fail(err, rc, "trace %s was taken with other members or blocks", path);
    }
    return chm_media_fail(err, rc, "trace %s: %s", path, strerror(-rc));
}
