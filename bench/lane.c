/* SPDX-License-Identifier: Apache-2.0 */
/* lane.c - see lane.h. */
#include "lane.h"

#include <errno.h>
#include <stdlib.h>

#include "disk.h"

static const uint64_t TIMEOUT_NS = 60ull * CHM_SECOND;

uint64_t lane_stride(enum lane_way way, uint64_t object_bytes)
{
    return way == LANE_COPIED ? object_bytes + BENCH_PAGE : object_bytes;
}

static uint64_t addr_of(const struct lane *l, size_t i)
{
    return l->objects[i] * l->object_bytes;
}

static uint8_t *buffer_of(const struct lane *l, size_t i)
{
    uint8_t *buf = l->arena + i % l->ahead * lane_stride(l->way, l->object_bytes);

    return l->way == LANE_COPIED ? buf + LANE_SKEW : buf;
}

/* ---- staged, direct and copied: a ring of `ahead` requests */

static void issue_staged(struct lane *l, size_t count)
{
    struct chm_issue items[LANE_AHEAD_MAX];

    for (size_t k = 0; k < count; k++) {
        items[k] = (struct chm_issue){.addr = addr_of(l, l->issued + k), .len = l->object_bytes};
    }
    if (chm_issue(l->dev, items, (uint32_t)count, NULL) != (int)count) {
        bench_die("issue: some of %zu objects were refused (%d)", count, items[0].status);
    }
    for (size_t k = 0; k < count; k++) {
        l->req[(l->issued + k) % l->ahead] = items[k].req;
    }
}

static void issue_read(struct lane *l, size_t count)
{
    struct chm_read items[LANE_AHEAD_MAX];

    for (size_t k = 0; k < count; k++) {
        size_t i = l->issued + k;

        items[k] = (struct chm_read){.addr = addr_of(l, i),
                                     .len = l->object_bytes,
                                     .buf = buffer_of(l, i)};
    }
    if (chm_read_issue(l->dev, items, (uint32_t)count) != (int)count) {
        bench_die("read: some of %zu objects were refused (%d)", count, items[0].status);
    }
    for (size_t k = 0; k < count; k++) {
        l->req[(l->issued + k) % l->ahead] = items[k].req;
    }
}

/* As many as there is room for. */
static void issue(struct lane *l)
{
    size_t room = l->ahead - (l->issued - l->taken), left = l->n - l->issued;
    size_t count = room < left ? room : left;
    double now = bench_now();

    if (count == 0) {
        return;
    }
    for (size_t k = 0; k < count; k++) {
        l->at[(l->issued + k) % l->ahead] = now;
    }
    if (l->way == LANE_STAGED) {
        issue_staged(l, count);
    } else {
        issue_read(l, count);
    }
    l->issued += count;
}

static uint8_t *data_of(struct lane *l, size_t i)
{
    struct chm_view view;

    if (l->way != LANE_STAGED) {
        return buffer_of(l, i);
    }
    bench_check(chm_view(l->dev, l->req[i % l->ahead], &view), "view");
    return view.data;
}

static void note(struct lane *l, uint64_t addr, uint8_t *buf, uint64_t len, double at)
{
    if (l->check) {
        bench_content_check(l->check, addr, buf, len, "device");
    }
    if (l->way == LANE_COPIED) {
        buf -= LANE_SKEW; /* the yardstick cannot copy: beside it */
    }
    l->log[l->logged++] =
        (struct ref_io){.off = bench_disk_offset(addr), .buf = buf, .len = len, .at = at};
}

static bool turn_ring(struct lane *l)
{
    size_t i = l->taken;
    uint64_t req = l->req[i % l->ahead];
    double at = l->at[i % l->ahead];

    if (i == l->n) {
        return false;
    }
    bench_check(chm_wait(l->dev, req, TIMEOUT_NS), "wait");
    bench_add(l->ms, (bench_now() - at) * 1e3);
    note(l, addr_of(l, i), data_of(l, i), l->object_bytes, at);
    bench_check(chm_release(l->dev, req), "release");
    l->taken++;
    issue(l);
    return true;
}

/* ---- chm_stream_* */

static void begin_stream(struct lane *l)
{
    struct chm_stream_options o = {.deadline_ns = UINT64_MAX};
    struct chm_range *ranges = bench_alloc(l->n * sizeof(*ranges));

    for (size_t i = 0; i < l->n; i++) {
        ranges[i] = (struct chm_range){.addr = addr_of(l, i), .len = l->object_bytes};
    }
    bench_check(chm_stream_open(l->dev, ranges, (uint32_t)l->n, &o, &l->stream), "stream");
    free(ranges);
}

static bool turn_stream(struct lane *l)
{
    struct chm_piece p;
    double at = bench_now();
    int rc = chm_stream_next(l->stream, TIMEOUT_NS, &p);

    if (rc == -ENODATA) {
        return false;
    }
    bench_check(rc, "stream next");
    bench_add(l->ms, (bench_now() - at) * 1e3);
    note(l, addr_of(l, p.object) + p.offset, (uint8_t *)(uintptr_t)p.data, p.len, at);
    bench_check(chm_stream_release(l->stream, p.req), "stream release");
    return true;
}

/* ---- both */

void lane_begin(struct lane *l)
{
    l->issued = l->taken = l->logged = 0;
    if (l->way == LANE_STREAM) {
        begin_stream(l);
    } else {
        issue(l);
    }
}

bool lane_turn(struct lane *l)
{
    return l->way == LANE_STREAM ? turn_stream(l) : turn_ring(l);
}

void lane_end(struct lane *l)
{
    if (l->way == LANE_STREAM) {
        bench_check(chm_stream_close(l->stream), "stream close");
        l->stream = NULL;
    }
}
