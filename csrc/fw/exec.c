/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exec.c - commands. Each is checked here as if it came from an enemy: it may have been written by
 * another process.
 */
#include <errno.h>
#include <string.h>

#include "fw/device.h"
#include "fw/request.h"
#include "util/util.h"

static bool in_space(const struct chm_fw *fw, uint64_t addr, uint64_t len)
{
    return len > 0 && len <= fw->map.capacity_bytes && addr <= fw->map.capacity_bytes - len;
}

static bool whole_granules(const struct chm_fw *fw, uint64_t addr, uint64_t len)
{
    return addr % fw->granule == 0 && len % fw->granule == 0;
}

int chm_fw_check_range(const struct chm_fw *fw, uint64_t addr, uint64_t len)
{
    if (len == 0 || !whole_granules(fw, addr, len)) {
        return -EINVAL;
    }
    return in_space(fw, addr, len) ? 0 : -ERANGE;
}

int chm_fw_check_issue(const struct chm_fw *fw, uint64_t addr, uint64_t len)
{
    int rc = fw->policy->cache->prefetch ? chm_fw_check_range(fw, addr, len) : -EOPNOTSUPP;

    if (rc == 0 && chm_window_cost(&fw->window, len) > fw->window.bytes) {
        rc = -E2BIG;
    }
    return rc;
}

int chm_fw_check_read(const struct chm_fw *fw, uint64_t addr, uint64_t len)
{
    if (len == 0) {
        return -EINVAL;
    }
    return in_space(fw, addr, len) ? 0 : -ERANGE;
}

int chm_fw_check_write(const struct chm_fw *fw, uint64_t addr, uint64_t len)
{
    int rc = chm_fw_check_range(fw, addr, len);

    return rc == 0 && len > fw->wbuf.bytes / 2 ? -E2BIG : rc;
}

static void refuse(struct chm_fw *fw, struct chm_fwreq *req, int rc)
{
    fw->stats.refused++;
    chm_fwreq_end(fw, req, rc);
}

static void exec_issue(struct chm_fw *fw, struct chm_fwreq *req)
{
    struct chm_cmd *cmd = &req->cmd;
    int rc = chm_fw_check_issue(fw, cmd->addr, cmd->len);

    if (rc < 0) {
        refuse(fw, req, rc);
        return;
    }
    chm_request_issue(fw, req);
}

static void exec_read(struct chm_fw *fw, struct chm_fwreq *req)
{
    int rc = chm_fw_check_read(fw, req->cmd.addr, req->cmd.len);

    if (rc < 0) {
        refuse(fw, req, rc);
        return;
    }
    fw->policy->cache->read(fw, req);
}

static void exec_reserve(struct chm_fw *fw, struct chm_fwreq *req)
{
    uint64_t runs = req->cmd.addr, len = req->cmd.len;
    uint64_t cost = chm_window_cost(&fw->window, len);

    if (!fw->policy->cache->prefetch) {
        chm_fwreq_end(fw, req, -EOPNOTSUPP);
        return;
    }
    if (runs < 1 || runs > CHM_RESERVE_RUNS || len == 0 || len % fw->granule != 0 ||
        len > fw->window.bytes || cost * runs > fw->window.bytes) {
        chm_fwreq_end(fw, req, -EINVAL);
        return;
    }
    chm_request_reserve(fw, req);
}

static void exec_begin(struct chm_fw *fw, struct chm_fwreq *req)
{
    int rc = chm_fw_check_write(fw, req->cmd.addr, req->cmd.len);

    if (rc == 0 && fw->degraded) {
        rc = -EIO;
    }
    if (rc == 0) {
        rc = chm_sched_admit(fw, req->cmd.addr, req->cmd.len);
    }
    if (rc == 0) {
        rc = chm_wbuf_begin(fw, req->cmd.addr, req->cmd.len, &req->ext);
    }
    if (rc != 0) {
        fw->stats.write_refused++;
        chm_fwreq_end(fw, req, rc);
        return;
    }
    fw->stats.begun++;
    atomic_store_explicit(&fw->cells[req - fw->reqs].data_off, req->ext->off, memory_order_relaxed);
    chm_fwreq_end(fw, req, 0);
    req->state = REQ_OPEN;
}

/* The cell keeps its number through commit: strict durability answers through it, else it is freed
 * at once. */
static void exec_commit(struct chm_fw *fw, struct chm_fwreq *req)
{
    bool strict = fw->opts.durability == CHM_DURABILITY_STRICT;

    fw->stats.committed++;
    fw->stats.committed_bytes += chm_ext_len(req->ext);
    fw->policy->cache->commit(fw, req->ext);
    req->ext = NULL;
    if (strict) {
        req->target = fw->wbuf.seq;
        atomic_store(&fw->cells[req - fw->reqs].state, CELL_PENDING);
        chm_durable_wait(fw, req);
    } else {
        req->state = REQ_DONE;
        chm_request_release(fw, req);
    }
}

static void exec_trim(struct chm_fw *fw, struct chm_fwreq *req)
{
    int rc = chm_fw_check_range(fw, req->cmd.addr, req->cmd.len);

    if (rc == 0) {
        rc = fw->degraded ? -EIO : fw->medium->caps.trim ? 0 : -EOPNOTSUPP;
    }
    if (rc == 0) {
        rc = fw->policy->cache->trim(fw, req->cmd.addr, req->cmd.len);
    }
    if (rc == 0) {
        fw->stats.trims++;
    }
    chm_fwreq_end(fw, req, rc);
}

static void exec_stats(struct chm_fw *fw, struct chm_fwreq *req)
{
    struct chm_stats *s = &fw->stats;

    s->window_used_bytes = fw->window.used_bytes;
    s->window_pinned_bytes = fw->window.pinned_bytes;
    s->window_reserved_bytes = fw->window.reserved_bytes;
    s->window_peak_bytes = fw->window.peak_bytes;
    s->window_largest_free = chm_window_largest(&fw->window);
    s->window_waiting = 0;
    for (struct chm_link *l = fw->queued.next; l != &fw->queued; l = l->next) {
        s->window_waiting++;
    }
    s->open_writes = fw->wbuf.open;
    s->buffer_used_bytes = fw->wbuf.runs.used * fw->granule;
    s->buffer_peak_bytes = fw->wbuf.peak_bytes;
    s->buffer_dirty_bytes = fw->wbuf.dirty_bytes;
    if (fw->medium->caps.events) {
        s->sim_ios = fw->medium->caps.events->ios;
        s->sim_digest = fw->medium->caps.events->digest;
    }
    s->cache_dirty_lines = fw->cache.dirty_lines;
    s->cache_lines = fw->cache.lines_max;
    s->cache_sets = fw->cache.sets_max;
    memcpy((void *)(uintptr_t)req->cmd.ptr, s, sizeof(*s));
    chm_fwreq_end(fw, req, 0);
}

static struct chm_region *find_region(struct chm_fw *fw, uint8_t *base)
{
    for (int i = 1; i < CHM_REGIONS_MAX; i++) {
        if (atomic_load(&fw->regions->at[i].base) == base) {
            return &fw->regions->at[i];
        }
    }
    return NULL;
}

static void exec_register(struct chm_fw *fw, struct chm_fwreq *req)
{
    uint8_t *base = (uint8_t *)(uintptr_t)req->cmd.ptr;
    struct chm_region *r = find_region(fw, NULL);
    int rc = find_region(fw, base) ? -EEXIST : r ? 0 : -ENOSPC;

    if (rc == 0) {
        atomic_store(&r->base, base);
        atomic_store(&r->len, req->cmd.len);
        atomic_store(&r->ready, req->cmd.len);
        atomic_fetch_add(&fw->regions->version, 1);
    }
    chm_fwreq_end(fw, req, rc);
}

/* The medium drops its registration at its next submit, which an empty one brings about. */
static void exec_unregister(struct chm_fw *fw, struct chm_fwreq *req)
{
    struct chm_region *r = find_region(fw, (uint8_t *)(uintptr_t)req->cmd.ptr);

    if (!r || !req->cmd.ptr) {
        chm_fwreq_end(fw, req, -ENOENT);
        return;
    }
    atomic_store(&r->len, 0);
    atomic_store(&r->ready, 0);
    atomic_store(&r->base, NULL);
    atomic_fetch_add(&fw->regions->version, 1);
    chm_medium_submit(fw->medium, NULL, 0);
    chm_fwreq_end(fw, req, 0);
}

/* Commands that begin the life of a request. */
static void exec_fresh(struct chm_fw *fw, struct chm_fwreq *req)
{
    switch (req->cmd.op) {
    case CHM_OP_ISSUE:
        exec_issue(fw, req);
        break;
    case CHM_OP_READ:
        exec_read(fw, req);
        break;
    case CHM_OP_RESERVE:
        exec_reserve(fw, req);
        break;
    case CHM_OP_BEGIN:
        exec_begin(fw, req);
        break;
    case CHM_OP_TRIM:
        exec_trim(fw, req);
        break;
    case CHM_OP_FLUSH:
        req->target = fw->wbuf.seq;
        chm_durable_wait(fw, req);
        break;
    case CHM_OP_QUIESCE:
        req->state = REQ_WAITING;
        chm_list_push(&fw->quiesce, &req->link);
        chm_request_check_quiesce(fw);
        break;
    case CHM_OP_STATS:
        exec_stats(fw, req);
        break;
    case CHM_OP_CAPS:
        memcpy((void *)(uintptr_t)req->cmd.ptr, &fw->medium->caps, sizeof(fw->medium->caps));
        chm_fwreq_end(fw, req, 0);
        break;
    case CHM_OP_REGISTER:
        exec_register(fw, req);
        break;
    case CHM_OP_UNREGISTER:
        exec_unregister(fw, req);
        break;
    default:
        chm_fwreq_end(fw, req, -EINVAL);
    }
}

/* Commands on a request that lives. */
static void exec_on_live(struct chm_fw *fw, struct chm_fwreq *req, uint8_t op)
{
    if (req->state == REQ_FREE) {
        return;
    }
    if (op == CHM_OP_COMMIT && req->state == REQ_OPEN) {
        exec_commit(fw, req);
    } else {
        chm_request_release(fw, req);
    }
}

static bool on_live(uint8_t op)
{
    return op == CHM_OP_RELEASE || op == CHM_OP_COMMIT || op == CHM_OP_ABORT;
}

/* After the medium died or during close nothing new begins; what lives can still be given up. */
static int refusal(const struct chm_fw *fw, uint8_t op)
{
    if (op == CHM_OP_STATS || op == CHM_OP_CAPS || op == CHM_OP_UNREGISTER) {
        return 0;
    }
    return fw->dead ? -ENODEV : fw->closing ? -ESHUTDOWN : 0;
}

void chm_fw_exec(struct chm_fw *fw, const struct chm_cmd *cmd)
{
    struct chm_fwreq *req;
    int rc = refusal(fw, cmd->op);

    if (cmd->cell >= fw->opts.requests_max) {
        return;
    }
    req = &fw->reqs[cmd->cell];
    if (on_live(cmd->op)) {
        exec_on_live(fw, req, cmd->op);
    } else if (req->state == REQ_FREE) {
        req->cmd = *cmd;
        req->slot = NULL;
        req->ext = NULL;
        req->reserve = NULL;
        req->lost = false;
        req->issue_ns = fw->now_ns;
        chm_list_init(&req->link);
        if (rc < 0) {
            chm_fwreq_end(fw, req, rc);
        } else {
            exec_fresh(fw, req);
        }
    }
    chm_fetch_finish_all(fw);
    if (fw->window_changed) {
        chm_request_serve_queue(fw);
        chm_fetch_finish_all(fw);
    }
}
