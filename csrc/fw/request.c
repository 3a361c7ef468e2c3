/* SPDX-License-Identifier: Apache-2.0 */
/* request.c - see request.h. */
#include "fw/request.h"

#include <errno.h>
#include <string.h>

#include "fw/device.h"
#include "util/util.h"

enum {
    OVERTAKE_MAX = 64, /* requests that may go before a blocked head of the queue */
    QUEUE_LOOK_MAX = 64,
};

uint32_t chm_request_cell(const struct chm_fw *fw, const struct chm_fwreq *req)
{
    return (uint32_t)(req - fw->reqs);
}

static struct chm_cell *cell_of(struct chm_fw *fw, struct chm_fwreq *req)
{
    return &fw->cells[req - fw->reqs];
}

/* Move the cell's state, keeping the client's CLAIMED bit. */
static void cell_move(struct chm_cell *cell, uint32_t to)
{
    uint32_t old = atomic_load_explicit(&cell->state, memory_order_relaxed);

    while (!atomic_compare_exchange_weak(&cell->state, &old, (old & CELL_CLAIMED) | to)) {
    }
}

static void req_free(struct chm_fw *fw, struct chm_fwreq *req)
{
    req->state = REQ_FREE;
    chm_timer_clear(&fw->timers, &req->timer);
    fw->freed[fw->freed_count++] = chm_request_cell(fw, req);
}

static void req_delay(struct chm_fw *fw, struct chm_fwreq *req)
{
    req->state = REQ_DELAYED;
    cell_move(cell_of(fw, req), CELL_PENDING);
    chm_timer_set(&fw->timers, &req->timer, req->cmd.not_before_ns);
}

void chm_fwreq_end(struct chm_fw *fw, struct chm_fwreq *req, int32_t res)
{
    struct chm_cell *cell = cell_of(fw, req);

    req->state = REQ_DONE;
    atomic_store_explicit(&cell->res, res, memory_order_relaxed);
    if (res == 0) {
        atomic_store_explicit(&cell->ready, cell->len, memory_order_relaxed);
    }
    cell_move(cell, res < 0 ? CELL_FAILED : CELL_READY);
    fw->ended[fw->ended_count++] = chm_request_cell(fw, req);
}

/* ---- staging */

static void stage_ended(struct chm_fw *fw, struct chm_fwreq *req, int32_t res)
{
    fw->stats.open--;
    if (res < 0) {
        fw->stats.failed++;
        chm_timer_clear(&fw->timers, &req->timer);
    } else {
        fw->stats.ready++;
        fw->stats.staged_bytes += req->cmd.len;
        chm_hist_add(&fw->stats.stage_ns, fw->now_ns - chm_min(fw->now_ns, req->issue_ns));
    }
    chm_fwreq_end(fw, req, res);
}

static void slot_free_now(struct chm_fw *fw, struct chm_slot *s)
{
    if (fw->opts.poison) {
        memset(fw->memory + s->off, 0xA5, s->fetch.len);
    }
    chm_slot_free(&fw->window, s);
    fw->window_changed = true;
}

/* A slot nobody refers to: free it now, or when its I/O has ended. */
static void slot_let_go(struct chm_fw *fw, struct chm_slot *s)
{
    if (s->fetch.active) {
        chm_tree_remove(&fw->window.findable, &s->find);
        s->state = SLOT_ORPHAN;
        fw->zombies++;
        chm_fetch_cancel(fw, &s->fetch, -ECANCELED);
    } else {
        slot_free_now(fw, s);
    }
}

/* Take the request off its slot. */
static void stage_detach(struct chm_fw *fw, struct chm_fwreq *req)
{
    struct chm_slot *s = req->slot;

    req->slot = NULL;
    if (s) {
        chm_list_remove(&req->link);
        if (--s->refs == 0) {
            slot_let_go(fw, s);
        }
    }
}

/* How much of the request's range is there, from its front; the slot may begin before it. */
static uint64_t stage_front(const struct chm_fwreq *req, uint64_t slot_front)
{
    uint64_t skip = req->cmd.addr - req->slot->fetch.addr;

    return slot_front > skip ? chm_min(slot_front - skip, req->cmd.len) : 0;
}

static void stage_attach(struct chm_fw *fw, struct chm_fwreq *req, struct chm_slot *s)
{
    struct chm_cell *cell = cell_of(fw, req);

    req->slot = s;
    req->state = REQ_STAGING;
    s->refs++;
    chm_list_push(&s->requests, &req->link);
    chm_timer_set(&fw->timers, &req->timer, req->cmd.expire_ns);
    atomic_store_explicit(&cell->data_off, s->off + (req->cmd.addr - s->fetch.addr),
                          memory_order_relaxed);
    atomic_store_explicit(&cell->ready, stage_front(req, chm_fetch_front(&s->fetch)),
                          memory_order_release);
    cell_move(cell, CELL_PENDING);
    if (s->state == SLOT_READY) {
        stage_ended(fw, req, 0);
    }
}

/* A new slot for req, its fetch begun. 0, -EAGAIN: no room, or why it cannot be read. */
static int stage_new_slot(struct chm_fw *fw, struct chm_fwreq *req, struct chm_reserve *r)
{
    struct chm_slot *s = chm_slot_new(&fw->window, r, req->cmd.len);
    int rc;

    if (!s) {
        return -EAGAIN;
    }
    s->fetch = (struct chm_fetch){
        .addr = req->cmd.addr, .len = req->cmd.len, .dest = fw->memory + s->off, .region = 0};
    s->find = (struct chm_node){.start = req->cmd.addr,
                                .end = req->cmd.addr + req->cmd.len,
                                .aug = req->cmd.addr + req->cmd.len};
    rc = chm_fetch_begin(fw, &s->fetch);
    if (rc < 0) {
        chm_slot_free(&fw->window, s);
        return rc;
    }
    if (!r) {
        chm_tree_insert(&fw->window.findable, &s->find);
    }
    stage_attach(fw, req, s);
    return 0;
}

/* Somebody waits for window space, and has been passed as often as is fair. */
static bool queue_is_firm(struct chm_fw *fw)
{
    struct chm_link *head = chm_list_first(&fw->queued);

    return head && CHM_CONTAINER(head, struct chm_fwreq, link)->overtaken >= OVERTAKE_MAX;
}

static void queue_count_overtake(struct chm_fw *fw)
{
    struct chm_link *head = chm_list_first(&fw->queued);

    if (head) {
        CHM_CONTAINER(head, struct chm_fwreq, link)->overtaken++;
        fw->stats.overtakes++;
    }
}

/* The reservation that an ISSUE names by its handle, or NULL if it is not granted (any more). */
static struct chm_reserve *granted_reserve(struct chm_fw *fw, uint64_t handle)
{
    uint64_t index = (handle & UINT32_MAX) - 1;

    if (index >= fw->opts.requests_max || fw->reqs[index].state != REQ_GRANTED ||
        atomic_load(&fw->cells[index].gen) != handle >> 32) {
        return NULL;
    }
    return fw->reqs[index].reserve;
}

/* Serve the request from a staged slot, from free window space, or from its stream's reserve.
 * -EAGAIN: none of them. */
static int stage_place(struct chm_fw *fw, struct chm_fwreq *req)
{
    struct chm_slot *s = chm_slot_find(&fw->window, req->cmd.addr, req->cmd.len);
    int rc = -EAGAIN;

    if (s) {
        fw->stats.shared++;
        stage_attach(fw, req, s);
        return 0;
    }
    if (!queue_is_firm(fw)) {
        rc = stage_new_slot(fw, req, NULL);
        if (rc == 0) {
            queue_count_overtake(fw);
        }
    }
    if (rc == -EAGAIN && req->cmd.ptr) {
        struct chm_reserve *r = granted_reserve(fw, req->cmd.ptr);

        rc = r ? stage_new_slot(fw, req, r) : rc;
    }
    return rc;
}

static void queue_enter(struct chm_fw *fw, struct chm_fwreq *req)
{
    uint64_t used = fw->window.used_bytes * 100 / fw->window.bytes;

    req->state = REQ_QUEUED;
    req->overtaken = 0;
    cell_move(cell_of(fw, req), CELL_PENDING);
    chm_list_push(&fw->queued, &req->link);
    fw->window_changed = true;
    chm_timer_set(&fw->timers, &req->timer, req->cmd.queue_ns);
    fw->stats.window_waits++;
    fw->stats.fill_at_block_percent_sum += used;
}

/* Not taken on after all: it counts as refused and not as issued. A stream that asks whether there
 * is more room than its own is not counted at all. */
static void stage_refuse(struct chm_fw *fw, struct chm_fwreq *req)
{
    fw->stats.issued--;
    fw->stats.open--;
    fw->stats.refused += req->cmd.ptr == 0;
    chm_fwreq_end(fw, req, -EAGAIN);
}

static void stage_start(struct chm_fw *fw, struct chm_fwreq *req)
{
    bool nowait = (req->cmd.flags & CHM_ISSUE_NOWAIT) || req->cmd.ptr;
    bool fresh = req->state == REQ_FREE; /* its issuer waits for the verdict */
    int rc = stage_place(fw, req);

    if (rc == -EAGAIN && !nowait) {
        queue_enter(fw, req);
    } else if (rc == -EAGAIN && fresh) {
        stage_refuse(fw, req);
    } else if (rc < 0) {
        stage_ended(fw, req, rc);
    }
}

void chm_request_issue(struct chm_fw *fw, struct chm_fwreq *req)
{
    fw->stats.issued++;
    fw->stats.open++;
    if (req->cmd.not_before_ns > fw->now_ns) {
        req_delay(fw, req);
    } else {
        stage_start(fw, req);
    }
}

/* ---- reservations */

static bool reserve_place(struct chm_fw *fw, struct chm_fwreq *req)
{
    req->reserve = chm_reserve_new(&fw->window, req->cmd.len, (uint32_t)req->cmd.addr);
    if (!req->reserve) {
        return false;
    }
    chm_timer_clear(&fw->timers, &req->timer);
    chm_fwreq_end(fw, req, 0);
    req->state = REQ_GRANTED;
    return true;
}

static void reserve_start(struct chm_fw *fw, struct chm_fwreq *req)
{
    /* Streams are admitted in order of opening: never past anybody. */
    if (!chm_list_empty(&fw->queued) || !reserve_place(fw, req)) {
        queue_enter(fw, req);
    }
}

void chm_request_reserve(struct chm_fw *fw, struct chm_fwreq *req)
{
    if (req->cmd.not_before_ns > fw->now_ns) {
        req_delay(fw, req);
    } else {
        reserve_start(fw, req);
    }
}

/* ---- the queue for window space */

static bool queue_try(struct chm_fw *fw, struct chm_fwreq *req)
{
    int rc;

    if (req->cmd.op == CHM_OP_RESERVE) {
        return reserve_place(fw, req);
    }
    rc = chm_slot_find(&fw->window, req->cmd.addr, req->cmd.len) ? stage_place(fw, req)
                                                                 : stage_new_slot(fw, req, NULL);
    if (rc < 0 && rc != -EAGAIN) {
        stage_ended(fw, req, rc);
    }
    return rc != -EAGAIN;
}

void chm_request_serve_queue(struct chm_fw *fw)
{
    struct chm_link *link = chm_list_first(&fw->queued);
    bool reserve_waits = false;

    fw->window_changed = false;
    for (int looked = 0; link && looked < QUEUE_LOOK_MAX; looked++) {
        struct chm_fwreq *req = CHM_CONTAINER(link, struct chm_fwreq, link);
        struct chm_link *next = chm_list_next(&fw->queued, link);
        bool head = link == fw->queued.next;
        bool reserve = req->cmd.op == CHM_OP_RESERVE;

        if (!head && queue_is_firm(fw)) {
            return;
        }
        chm_list_remove(link);
        if ((reserve && reserve_waits) || !queue_try(fw, req)) {
            reserve_waits = reserve_waits || reserve;
            chm_list_insert_before(next ? next : &fw->queued, link);
        } else if (!head) {
            queue_count_overtake(fw);
        }
        link = next;
    }
}

/* ---- demand reads */

void chm_request_read(struct chm_fw *fw, struct chm_fwreq *req)
{
    struct chm_fetch *f = &req->fetch;
    uint64_t addr = req->cmd.addr, len = req->cmd.len, g = fw->granule;
    uint8_t *buf = (uint8_t *)(uintptr_t)req->cmd.ptr;
    int rc;

    *f = (struct chm_fetch){.demand = true, .region = CHM_NO_REGION};
    f->addr = addr / g * g;
    f->len = chm_min(chm_round_up(addr + len, g), fw->map.capacity_bytes) - f->addr;
    if (f->addr == addr && f->len == len && (uintptr_t)buf % fw->medium->caps.align_bytes == 0) {
        f->dest = buf;
        f->region = chm_fw_region(fw, buf, len);
    } else {
        f->user = buf;
        f->user_addr = addr;
        f->user_len = len;
        chm_shift_plan(fw, f);
        fw->stats.demand_copied_bytes += f->shift ? len : len - (f->in_end - f->in_start);
    }
    rc = chm_fetch_begin(fw, f);
    if (rc < 0) {
        fw->stats.demand_reads++;
        fw->stats.demand_failed++;
        chm_fwreq_end(fw, req, rc);
        return;
    }
    chm_request_read_begun(fw, req);
}

bool chm_request_read_cancel(struct chm_fw *fw, struct chm_fwreq *req)
{
    chm_fetch_cancel(fw, &req->fetch, -ECANCELED);
    return false;
}

void chm_request_read_begun(struct chm_fw *fw, struct chm_fwreq *req)
{
    fw->stats.demand_reads++;
    req->state = REQ_READING;
    cell_move(cell_of(fw, req), CELL_PENDING);
}

void chm_request_read_moved(struct chm_fw *fw, struct chm_fwreq *req, uint64_t front)
{
    atomic_store_explicit(&cell_of(fw, req)->ready, front, memory_order_release);
}

void chm_request_read_done(struct chm_fw *fw, struct chm_fwreq *req, int32_t err)
{
    if (req->state == REQ_ZOMBIE) {
        fw->zombies--;
        req_free(fw, req);
        chm_request_check_quiesce(fw);
        return;
    }
    chm_hist_add(&fw->stats.demand_ns, fw->now_ns - chm_min(fw->now_ns, req->issue_ns));
    if (err < 0) {
        fw->stats.demand_failed++;
    } else {
        fw->stats.demand_bytes += req->cmd.len;
    }
    chm_fwreq_end(fw, req, err);
}

/* ---- what a fetch tells its owner */

static struct chm_slot *slot_of(struct chm_fetch *f)
{
    return CHM_CONTAINER(f, struct chm_slot, fetch);
}

void chm_fetch_moved(struct chm_fw *fw, struct chm_fetch *f)
{
    uint64_t front = chm_fetch_front(f);
    struct chm_link *head, *link;

    if (f->demand) {
        chm_request_read_moved(fw, CHM_CONTAINER(f, struct chm_fwreq, fetch), front);
        return;
    }
    head = &slot_of(f)->requests;
    for (link = chm_list_first(head); link; link = chm_list_next(head, link)) {
        struct chm_fwreq *req = CHM_CONTAINER(link, struct chm_fwreq, link);

        atomic_store_explicit(&cell_of(fw, req)->ready, stage_front(req, front),
                              memory_order_release);
    }
}

static void slot_fail(struct chm_fw *fw, struct chm_slot *s, int32_t err)
{
    struct chm_link *link;

    s->state = SLOT_FAILED;
    chm_tree_remove(&fw->window.findable, &s->find);
    while ((link = chm_list_first(&s->requests)) != NULL) {
        struct chm_fwreq *req = CHM_CONTAINER(link, struct chm_fwreq, link);

        atomic_store(&cell_of(fw, req)->data_off, CHM_CELL_NO_DATA);
        stage_ended(fw, req, err);
        stage_detach(fw, req);
    }
}

void chm_fetch_finished(struct chm_fw *fw, struct chm_fetch *f)
{
    struct chm_slot *s;
    struct chm_link *link;

    if (f->demand) {
        chm_request_read_done(fw, CHM_CONTAINER(f, struct chm_fwreq, fetch), f->err);
        return;
    }
    s = slot_of(f);
    if (s->state == SLOT_ORPHAN) {
        fw->zombies--;
        slot_free_now(fw, s);
        chm_request_check_quiesce(fw);
    } else if (f->err < 0) {
        slot_fail(fw, s, f->err);
    } else {
        s->state = SLOT_READY;
        for (link = chm_list_first(&s->requests); link; link = chm_list_next(&s->requests, link)) {
            stage_ended(fw, CHM_CONTAINER(link, struct chm_fwreq, link), 0);
        }
    }
}

/* ---- release and timers */

static void release_reading(struct chm_fw *fw, struct chm_fwreq *req)
{
    req->state = REQ_ZOMBIE;
    fw->zombies++;
    if (fw->policy->cache->cancel(fw, req)) {
        chm_request_read_done(fw, req, -ECANCELED);
    }
}

void chm_request_release(struct chm_fw *fw, struct chm_fwreq *req)
{
    bool staged = req->cmd.op == CHM_OP_ISSUE;

    switch (req->state) {
    case REQ_READING:
        release_reading(fw, req);
        return;
    case REQ_OPEN:
        chm_wbuf_abort(fw, req->ext);
        fw->stats.aborted++;
        break;
    case REQ_QUEUED:
        chm_list_remove(&req->link);
        break;
    case REQ_WAITING:
        chm_durable_unwait(fw, req);
        break;
    default:
        break;
    }
    if (staged && req->state != REQ_DONE) {
        fw->stats.open--;
        fw->stats.cancelled++;
    }
    stage_detach(fw, req);
    if (req->reserve) {
        chm_reserve_close(&fw->window, req->reserve);
        req->reserve = NULL;
        fw->window_changed = true;
    }
    req_free(fw, req);
}

/* Nobody looked at it in time: if the client claims it in this very moment, the client wins. */
static void stage_expire(struct chm_fw *fw, struct chm_fwreq *req)
{
    struct chm_cell *cell = cell_of(fw, req);
    uint32_t state = atomic_load(&cell->state);

    if ((state & CELL_CLAIMED) ||
        !atomic_compare_exchange_strong(&cell->state, &state, CELL_EXPIRED)) {
        return;
    }
    if (req->state == REQ_DONE) {
        fw->stats.ready--;
    } else {
        fw->stats.open--;
        fw->ended[fw->ended_count++] = chm_request_cell(fw, req);
    }
    fw->stats.expired++;
    if (req->state == REQ_QUEUED) {
        chm_list_remove(&req->link);
    }
    req->state = REQ_DONE;
    stage_detach(fw, req);
}

void chm_request_timer(struct chm_fw *fw, struct chm_timer *timer)
{
    struct chm_fwreq *req = CHM_CONTAINER(timer, struct chm_fwreq, timer);

    switch (req->state) {
    case REQ_DELAYED:
        if (req->cmd.op == CHM_OP_RESERVE) {
            reserve_start(fw, req);
        } else {
            stage_start(fw, req);
        }
        break;
    case REQ_QUEUED:
        chm_list_remove(&req->link);
        if (req->cmd.op == CHM_OP_ISSUE) {
            stage_ended(fw, req, -ETIME);
        } else {
            chm_fwreq_end(fw, req, -ETIME);
        }
        break;
    default:
        stage_expire(fw, req);
    }
}

void chm_request_check_quiesce(struct chm_fw *fw)
{
    struct chm_link *link;

    while (fw->zombies == 0 && (link = chm_list_first(&fw->quiesce)) != NULL) {
        chm_list_remove(link);
        chm_fwreq_end(fw, CHM_CONTAINER(link, struct chm_fwreq, link), 0);
    }
}
