/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cells.c - taking, finding, ending and freeing cells, and telling clients about results.
 *
 * Free cells are a lock-free stack (a tag against the ABA problem). A handle dies when its
 * generation moves on, which exactly one caller can do; the cell is free again only when the
 * firmware says that the request is gone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "host/deliver.h"
#include "host/door.h"
#include "host/futex.h"
#include "util/util.h"

enum { OTHER_CELLS = 64 /* for calls that are no requests: flushes, statistics */ };

/* Put a chain of cells, linked through next_free from first to last, on the stack. */
static void cells_push_free(struct chm_dev *dev, uint32_t first, uint32_t last)
{
    uint64_t head = atomic_load(&dev->free_cells), next;

    do {
        atomic_store_explicit(&dev->cells[last].next_free, (uint32_t)head, memory_order_relaxed);
        next = ((head >> 32) + 1) << 32 | (first + 1);
    } while (!atomic_compare_exchange_weak(&dev->free_cells, &head, next));
}

static bool cell_pop_free(struct chm_dev *dev, uint32_t *index)
{
    uint64_t head = atomic_load(&dev->free_cells), next;

    do {
        if ((uint32_t)head == 0) {
            return false;
        }
        *index = (uint32_t)head - 1;
        next = ((head >> 32) + 1) << 32 |
               atomic_load_explicit(&dev->cells[*index].next_free, memory_order_relaxed);
    } while (!atomic_compare_exchange_weak(&dev->free_cells, &head, next));
    return true;
}

int chm_cells_open(struct chm_dev *dev)
{
    uint32_t n = dev->opts.requests_max, entries = 2;
    struct chm_ended *e = &dev->ended;

    dev->request_cells = n;
    n += OTHER_CELLS;
    dev->opts.requests_max = n;
    /* A cell has at most two commands on their way, the one that begins it and the one that ends
     * it. */
    while (entries < 2 * n) {
        entries *= 2;
    }
    e->fd = -1;
    pthread_mutex_init(&e->lock, NULL);
    dev->cells = aligned_alloc(64, n * sizeof(*dev->cells));
    dev->queue = aligned_alloc(64, chm_round_up(chm_queue_bytes(entries), 64));
    e->ring = calloc(entries, sizeof(*e->ring));
    e->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!dev->cells || !dev->queue || !e->ring || e->fd < 0) {
        return -ENOMEM;
    }
    e->mask = entries - 1;
    memset(dev->cells, 0, n * sizeof(*dev->cells));
    chm_queue_init(dev->queue, entries);
    for (uint32_t i = n; i-- > 0;) {
        atomic_store(&dev->cells[i].gen, 1);
        cells_push_free(dev, i, i);
    }
    return 0;
}

void chm_cells_close(struct chm_dev *dev)
{
    if (dev->ended.fd >= 0) {
        close(dev->ended.fd);
    }
    pthread_mutex_destroy(&dev->ended.lock);
    free(dev->ended.ring);
    free(dev->queue);
    free(dev->cells);
}

static uint64_t cell_handle(const struct chm_dev *dev, const struct chm_cell *cell)
{
    return (uint64_t)atomic_load(&cell->gen) << 32 | (chm_cell_index(dev, cell) + 1);
}

static bool is_request(uint8_t kind)
{
    return kind == CHM_OP_ISSUE || kind == CHM_OP_READ || kind == CHM_OP_BEGIN ||
           kind == CHM_OP_RESERVE;
}

int chm_cell_new(struct chm_dev *dev, uint8_t kind, uint64_t len, uint32_t *index, uint64_t *handle)
{
    struct chm_cell *cell;

    if (is_request(kind) && atomic_fetch_add(&dev->requests, 1) >= dev->request_cells) {
        atomic_fetch_sub(&dev->requests, 1);
        return -EBUSY;
    }
    if (!cell_pop_free(dev, index)) {
        if (is_request(kind)) {
            atomic_fetch_sub(&dev->requests, 1);
        }
        return -EBUSY;
    }
    cell = &dev->cells[*index];
    CHM_ASSERT((atomic_load(&cell->state) & CELL_STATE_MASK) == CELL_FREE);
    atomic_store_explicit(&cell->ready, 0, memory_order_relaxed);
    atomic_store_explicit(&cell->data_off, CHM_CELL_NO_DATA, memory_order_relaxed);
    atomic_store_explicit(&cell->res, 0, memory_order_relaxed);
    atomic_store_explicit(&cell->deliver_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&cell->told, 0, memory_order_relaxed);
    cell->len = len;
    atomic_store_explicit(&cell->kind, kind, memory_order_relaxed);
    atomic_store(&cell->state, CELL_SENT);
    *handle = cell_handle(dev, cell);
    return 0;
}

struct chm_cell *chm_cell_of(struct chm_dev *dev, uint64_t handle)
{
    uint64_t index = (handle & UINT32_MAX) - 1;
    struct chm_cell *cell;

    if (index >= dev->opts.requests_max) {
        return NULL;
    }
    cell = &dev->cells[index];
    if (atomic_load(&cell->gen) != handle >> 32 || atomic_load(&cell->state) == CELL_FREE) {
        return NULL;
    }
    return cell;
}

uint32_t chm_cell_index(const struct chm_dev *dev, const struct chm_cell *cell)
{
    return (uint32_t)(cell - dev->cells);
}

bool chm_cell_give_up(struct chm_dev *dev, uint64_t handle)
{
    struct chm_cell *cell = chm_cell_of(dev, handle);
    uint32_t gen = (uint32_t)(handle >> 32);
    uint32_t next = gen + 1 ? gen + 1 : 1;

    if (!cell || !atomic_compare_exchange_strong(&cell->gen, &gen, next)) {
        return false;
    }
    atomic_fetch_or(&cell->state, CELL_GIVEN_UP);
    if (atomic_load(&cell->waiters)) {
        chm_futex_wake(&cell->state);
    }
    return true;
}

bool chm_cell_has_bytes(const struct chm_cell *cell)
{
    return cell->kind == CHM_OP_ISSUE || cell->kind == CHM_OP_READ;
}

bool chm_cell_has_ended(uint32_t state)
{
    return (state & CELL_STATE_MASK) >= CELL_READY;
}

int chm_cell_result(struct chm_cell *cell)
{
    uint32_t state = atomic_fetch_or(&cell->state, CELL_CLAIMED) & CELL_STATE_MASK;

    if (state == CELL_EXPIRED) {
        return -ETIME;
    }
    return state == CELL_FAILED ? atomic_load(&cell->res) : 0;
}

/* Remember for chm_reap. The ring may lose entries; then the cells are looked through. */
static void ended_note(struct chm_dev *dev, struct chm_cell *cell)
{
    struct chm_ended *e = &dev->ended;
    uint64_t head = atomic_load_explicit(&e->head, memory_order_relaxed);

    if (head - atomic_load(&e->tail) > e->mask) {
        atomic_store(&e->overflow, 1);
        return;
    }
    __atomic_store_n(&e->ring[head & e->mask], cell_handle(dev, cell), __ATOMIC_RELAXED);
    atomic_store_explicit(&e->head, head + 1, memory_order_release);
}

static void publish_freed(struct chm_dev *dev)
{
    struct chm_fw *fw = dev->fw;
    uint32_t requests = 0, n = fw->freed_count;

    for (uint32_t i = 0; i < n; i++) {
        struct chm_cell *cell = &dev->cells[fw->freed[i]];

        requests += is_request((uint8_t)cell->kind);
        atomic_store_explicit(&cell->state, CELL_FREE, memory_order_release);
        if (i + 1 < n) {
            atomic_store_explicit(&cell->next_free, fw->freed[i + 1] + 1, memory_order_relaxed);
        }
    }
    if (n > 0) {
        atomic_fetch_sub(&dev->requests, requests);
        cells_push_free(dev, fw->freed[0], fw->freed[n - 1]);
    }
    fw->freed_count = 0;
}

/* A demand read goes to the host by itself. */
static bool is_delivered_at_once(const struct chm_cell *cell)
{
    uint32_t state = atomic_load(&cell->state);

    return cell->kind == CHM_OP_READ && (state & CELL_STATE_MASK) == CELL_READY &&
           !(state & CELL_GIVEN_UP);
}

void chm_cells_publish(struct chm_dev *dev)
{
    struct chm_fw *fw = dev->fw;
    bool wanted = fw->ended_count && atomic_load(&dev->ended.wanted);
    bool noted = false, rings = dev->threaded && fw->ended_count + fw->freed_count > 0;
    uint64_t one = 1;

    for (uint32_t i = 0; i < fw->ended_count; i++) {
        struct chm_cell *cell = &dev->cells[fw->ended[i]];

        if (dev->link.read.rate && is_delivered_at_once(cell)) {
            chm_deliver_begin(dev, cell);
        }
        if (wanted && chm_cell_has_bytes(cell)) {
            ended_note(dev, cell);
            noted = true;
        }
        if (atomic_load(&cell->waiters)) {
            chm_futex_wake(&cell->state);
        }
    }
    fw->ended_count = 0;
    publish_freed(dev);
    if (rings) {
        chm_door_bell_ring(dev);
    }
    if (noted && write(dev->ended.fd, &one, sizeof(one)) < 0) {
        /* The counter is at its limit, so the descriptor is readable as it is. */
        return;
    }
}

/* ---- chm_reap and its descriptor */

/* From now on what ends is noted; what has ended already is in the cells. */
static void ended_want(struct chm_dev *dev)
{
    uint64_t one = 1;

    if (atomic_exchange(&dev->ended.wanted, 1)) {
        return;
    }
    for (uint32_t i = 0; i < dev->opts.requests_max; i++) {
        struct chm_cell *cell = &dev->cells[i];

        if (chm_cell_has_bytes(cell) && chm_cell_has_ended(atomic_load(&cell->state)) &&
            !atomic_load(&cell->told)) {
            atomic_store(&dev->ended.overflow, 1);
            break;
        }
    }
    if (atomic_load(&dev->ended.overflow) && write(dev->ended.fd, &one, sizeof(one)) < 0) {
        return; /* the counter is at its limit: readable as it is */
    }
}

int chm_event_fd(chm_dev *dev)
{
    int rc = chm_door_check(dev);

    if (rc < 0) {
        return rc;
    }
    if (!dev->threaded) {
        return dev->medium->caps.event_fd >= 0 ? dev->medium->caps.event_fd : -EOPNOTSUPP;
    }
    ended_want(dev);
    return dev->ended.fd;
}

/* A note may be of a handle that was given up in the very moment in which it was made, and so name
 * the next request in that cell: whether this one has ended is in the cell. */
static bool ended_tell(struct chm_dev *dev, uint64_t handle, uint64_t *out)
{
    struct chm_cell *cell = chm_cell_of(dev, handle);

    if (!cell || !chm_cell_has_bytes(cell) || !chm_cell_has_ended(atomic_load(&cell->state)) ||
        atomic_exchange(&cell->told, 1)) {
        return false;
    }
    *out = handle;
    return true;
}

static uint32_t reap_ring(struct chm_dev *dev, uint64_t *reqs, uint32_t max)
{
    struct chm_ended *e = &dev->ended;
    uint32_t n = 0;

    while (n < max) {
        uint64_t tail = atomic_load(&e->tail);

        if (tail == atomic_load_explicit(&e->head, memory_order_acquire)) {
            break;
        }
        n += ended_tell(dev, __atomic_load_n(&e->ring[tail & e->mask], __ATOMIC_RELAXED), &reqs[n]);
        atomic_store(&e->tail, tail + 1);
    }
    return n;
}

static uint32_t reap_cells(struct chm_dev *dev, uint64_t *reqs, uint32_t max)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < dev->opts.requests_max && n < max; i++) {
        struct chm_cell *cell = &dev->cells[i];

        if (chm_cell_has_ended(atomic_load(&cell->state))) {
            n += ended_tell(dev, cell_handle(dev, cell), &reqs[n]);
        }
    }
    return n;
}

int chm_reap(chm_dev *dev, uint64_t *reqs, uint32_t max)
{
    int rc = chm_door_check(dev);
    uint64_t count;
    uint32_t n;

    if (rc < 0) {
        return rc;
    }
    if (!dev->threaded) {
        chm_door_kick(dev);
    }
    pthread_mutex_lock(&dev->ended.lock);
    ended_want(dev);
    if (read(dev->ended.fd, &count, sizeof(count)) < 0) {
        count = 0;
    }
    n = reap_ring(dev, reqs, max);
    if (n < max && atomic_exchange(&dev->ended.overflow, 0)) {
        n += reap_cells(dev, reqs + n, max - n);
        if (n == max) {
            atomic_store(&dev->ended.overflow, 1);
        }
    }
    if (n == max) {
        count = 1;
        n = write(dev->ended.fd, &count, sizeof(count)) < 0 ? n : max;
    }
    pthread_mutex_unlock(&dev->ended.lock);
    return (int)n;
}
