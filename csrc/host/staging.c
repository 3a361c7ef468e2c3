/* SPDX-License-Identifier: Apache-2.0 */
/* staging.c - issue, wait, view, release, and the published three-call form. */
#include <errno.h>
#include <string.h>

#include "host/deliver.h"
#include "host/door.h"
#include "host/staging.h"
#include "util/util.h"

static const uint64_t EXPIRE_NS = 60ull * CHM_SECOND, QUEUE_NS = 10ull * CHM_SECOND;

/* ---- issue */

static void fill_times(struct chm_dev *dev, const struct chm_issue_options *o, struct chm_cmd *cmd)
{
    uint64_t now = chm_now(dev);
    uint64_t begin;

    cmd->flags = (uint8_t)o->flags;
    cmd->not_before_ns = o->not_before_ns;
    begin = chm_max(now, o->not_before_ns);
    cmd->expire_ns = chm_sat_add(begin, o->expire_ns ? o->expire_ns : EXPIRE_NS);
    cmd->queue_ns = chm_sat_add(begin, o->queue_ns ? o->queue_ns : QUEUE_NS);
}

int chm_issue_verdict(struct chm_dev *dev, uint64_t req)
{
    struct chm_cell *cell = chm_cell_of(dev, req);
    int rc;

    CHM_ASSERT(cell);
    chm_door_wait_taken(dev, cell);
    if ((atomic_load(&cell->state) & CELL_STATE_MASK) != CELL_FAILED) {
        return 0;
    }
    rc = atomic_load(&cell->res);
    chm_door_end(dev, req, CHM_OP_RELEASE);
    return rc;
}

static int issue_send(struct chm_dev *dev, struct chm_cmd *cmd, uint64_t addr, uint64_t len,
                      uint64_t *req)
{
    int rc = chm_fw_check_issue(dev->fw, addr, len);

    rc = rc < 0 ? rc : chm_cell_new(dev, CHM_OP_ISSUE, len, &cmd->cell, req);
    if (rc < 0) {
        chm_door_count_refusal(&dev->refused, rc);
        return rc;
    }
    cmd->addr = addr;
    cmd->len = len;
    chm_door_send(dev, cmd);
    return 0;
}

int chm_issue(chm_dev *dev, struct chm_issue *items, uint32_t n,
              const struct chm_issue_options *opts)
{
    static const struct chm_issue_options DEFAULTS = {0};
    struct chm_cmd cmd = {.op = CHM_OP_ISSUE};
    int done = 0, rc = chm_door_check(dev);

    if (rc < 0 || (n > 0 && !items)) {
        return rc < 0 ? rc : -EINVAL;
    }
    opts = opts ? opts : &DEFAULTS;
    if (opts->flags & ~(uint32_t)CHM_ISSUE_NOWAIT) {
        return -EINVAL;
    }
    fill_times(dev, opts, &cmd);
    if (!dev->fw->policy->cache->prefetch) {
        for (uint32_t i = 0; i < n; i++) {
            items[i].status = -EOPNOTSUPP;
        }
        return -EOPNOTSUPP;
    }
    for (uint32_t i = 0; i < n; i++) {
        items[i].status = issue_send(dev, &cmd, items[i].addr, items[i].len, &items[i].req);
    }
    chm_door_kick(dev);
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].status == 0 && (cmd.flags & CHM_ISSUE_NOWAIT)) {
            items[i].status = chm_issue_verdict(dev, items[i].req);
        }
        done += items[i].status == 0;
    }
    return done;
}

int chm_issue_reserved(struct chm_dev *dev, uint64_t reserve, uint64_t addr, uint64_t len,
                       uint64_t not_before_ns, uint64_t *req)
{
    struct chm_issue_options o = {.flags = CHM_ISSUE_NOWAIT, .not_before_ns = not_before_ns};
    struct chm_cmd cmd = {.op = CHM_OP_ISSUE};

    fill_times(dev, &o, &cmd);
    cmd.ptr = reserve;
    return issue_send(dev, &cmd, addr, len, req);
}

/* ---- wait */

static int wait_generation(struct chm_dev *dev, struct chm_cell *cell, uint32_t gen,
                           uint64_t deadline_ns)
{
    int rc = chm_door_wait_handle(dev, cell, gen, deadline_ns);

    rc = rc < 0 ? rc : chm_cell_result(cell);
    rc = rc < 0 ? rc : chm_deliver(dev, cell, deadline_ns);
    return atomic_load(&cell->gen) == gen ? rc : -ESTALE;
}

int chm_wait_cell(struct chm_dev *dev, struct chm_cell *cell, uint64_t deadline_ns)
{
    return wait_generation(dev, cell, atomic_load(&cell->gen), deadline_ns);
}

/* Handles that have bytes: not those of writes. */
static struct chm_cell *bytes_cell(struct chm_dev *dev, uint64_t req)
{
    struct chm_cell *cell = chm_cell_of(dev, req);

    return cell && chm_cell_has_bytes(cell) ? cell : NULL;
}

static int wait_handle(struct chm_dev *dev, uint64_t req, uint64_t deadline_ns)
{
    struct chm_cell *cell = bytes_cell(dev, req);

    return cell ? wait_generation(dev, cell, (uint32_t)(req >> 32), deadline_ns) : -ESTALE;
}

/* The same from now on. A result that is there needs no clock. */
static int wait_timeout(struct chm_dev *dev, uint64_t req, uint64_t timeout_ns)
{
    struct chm_cell *cell = bytes_cell(dev, req);
    bool there = cell && dev->link.read.rate == 0 && chm_cell_has_ended(atomic_load(&cell->state));

    return wait_handle(dev, req, there ? 0 : chm_door_deadline(dev, timeout_ns));
}

int chm_wait(chm_dev *dev, uint64_t req, uint64_t timeout_ns)
{
    int rc = chm_door_check(dev);

    return rc < 0 ? rc : wait_timeout(dev, req, timeout_ns);
}

/* Of a batch each goes over the link when it is staged, not when the one before has arrived. */
static void send_off(struct chm_dev *dev, uint64_t req, uint64_t deadline_ns)
{
    struct chm_cell *cell = bytes_cell(dev, req);

    if (cell && chm_door_wait_handle(dev, cell, (uint32_t)(req >> 32), deadline_ns) == 0 &&
        chm_cell_result(cell) == 0) {
        chm_deliver_begin(dev, cell);
    }
}

int chm_wait_many(chm_dev *dev, const uint64_t *reqs, uint32_t n, uint64_t timeout_ns,
                  int32_t *status)
{
    int done = 0, rc = chm_door_check(dev);
    uint64_t deadline_ns;

    if (rc < 0 || (n > 0 && (!reqs || !status))) {
        return rc < 0 ? rc : -EINVAL;
    }
    deadline_ns = chm_door_deadline(dev, timeout_ns);
    for (uint32_t i = 0; i < n && dev->link.read.rate; i++) {
        send_off(dev, reqs[i], deadline_ns);
    }
    for (uint32_t i = 0; i < n; i++) {
        status[i] = wait_handle(dev, reqs[i], deadline_ns);
        done += status[i] == 0;
    }
    return done;
}

/* ---- look */

int64_t chm_progress(chm_dev *dev, uint64_t req)
{
    int rc = chm_door_check(dev);
    struct chm_cell *cell = rc == 0 ? bytes_cell(dev, req) : NULL;
    uint32_t state;

    if (!cell) {
        return rc < 0 ? rc : -ESTALE;
    }
    state = atomic_load(&cell->state) & CELL_STATE_MASK;
    if (state == CELL_FAILED || state == CELL_EXPIRED) {
        return chm_cell_result(cell);
    }
    return (int64_t)atomic_load_explicit(&cell->ready, memory_order_acquire);
}

int64_t chm_arrival(chm_dev *dev, uint64_t req)
{
    int rc = chm_door_check(dev);
    struct chm_cell *cell = rc == 0 ? bytes_cell(dev, req) : NULL;
    uint32_t state;
    uint64_t at;

    if (!cell) {
        return rc < 0 ? rc : -ESTALE;
    }
    state = atomic_load(&cell->state) & CELL_STATE_MASK;
    if (state == CELL_FAILED || state == CELL_EXPIRED) {
        return chm_cell_result(cell);
    }
    at = atomic_load(&cell->deliver_ns);
    if (dev->link.read.rate == 0) {
        return -EOPNOTSUPP;
    }
    return at == 0 || at > INT64_MAX ? -EAGAIN : (int64_t)at;
}

static int view_one(struct chm_dev *dev, uint64_t req, struct chm_view *out)
{
    struct chm_cell *cell = bytes_cell(dev, req);
    int rc = cell ? chm_cell_result(cell) : -ESTALE;
    uint64_t off;

    if (rc < 0) {
        return rc;
    }
    if (cell->kind != CHM_OP_ISSUE) {
        return -EINVAL;
    }
    off = atomic_load(&cell->data_off);
    if (off == CHM_CELL_NO_DATA) {
        return -EAGAIN;
    }
    *out = (struct chm_view){.data = dev->memory.base + off, .len = cell->len, .offset = off};
    return 0;
}

int chm_view(chm_dev *dev, uint64_t req, struct chm_view *out)
{
    int rc = chm_door_check(dev);

    return rc < 0 ? rc : out ? view_one(dev, req, out) : -EINVAL;
}

int chm_view_many(chm_dev *dev, const uint64_t *reqs, uint32_t n, struct chm_view *views,
                  int32_t *status)
{
    int done = 0, rc = chm_door_check(dev);

    if (rc < 0 || (n > 0 && (!reqs || !views || !status))) {
        return rc < 0 ? rc : -EINVAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        status[i] = view_one(dev, reqs[i], &views[i]);
        done += status[i] == 0;
    }
    return done;
}

/* ---- release */

static int release_one(struct chm_dev *dev, uint64_t req)
{
    return bytes_cell(dev, req) ? chm_door_end(dev, req, CHM_OP_RELEASE) : -ESTALE;
}

int chm_release(chm_dev *dev, uint64_t req)
{
    int rc = chm_door_check(dev);

    rc = rc < 0 ? rc : release_one(dev, req);
    if (rc == 0) {
        chm_door_ring(dev, false);
    }
    return rc;
}

int chm_release_many(chm_dev *dev, const uint64_t *reqs, uint32_t n, int32_t *status)
{
    int done = 0, rc = chm_door_check(dev);

    if (rc < 0 || (n > 0 && !reqs)) {
        return rc < 0 ? rc : -EINVAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        rc = release_one(dev, reqs[i]);
        done += rc == 0;
        if (status) {
            status[i] = rc;
        }
    }
    chm_door_ring(dev, false);
    return done;
}

/* ---- the published form */

chm_ptr chm_ptr_of(chm_dev *dev, uint64_t addr)
{
    return (chm_ptr){.dev = dev, .addr = addr};
}

chm_req chm_prefetch_object(chm_ptr ptr, uint64_t size)
{
    struct chm_issue item = {.addr = ptr.addr, .len = chm_round_up(size, CHM_PAGE_BYTES)};
    int rc = size > UINT64_MAX - CHM_PAGE_BYTES ? -ERANGE : chm_issue(ptr.dev, &item, 1, NULL);

    return (
        chm_req){.dev = ptr.dev, .id = rc == 1 ? item.req : 0, .status = rc < 0 ? rc : item.status};
}

int chm_prefetch_wait(chm_req req)
{
    return req.status < 0 ? req.status : chm_wait(req.dev, req.id, 10ull * CHM_SECOND);
}

int64_t chm_prefetch_progress(chm_req req)
{
    return req.status < 0 ? req.status : chm_progress(req.dev, req.id);
}

int chm_prefetch_release(chm_req req)
{
    return req.status < 0 ? req.status : chm_release(req.dev, req.id);
}
