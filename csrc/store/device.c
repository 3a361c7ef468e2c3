/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - the device as the store uses it: pages of metadata, synchronous reads, memory. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "store/kv.h"

enum { ROOM_RETRY_NS = 200000 };

struct chm_store *chm_kv_new(struct chm_dev *dev)
{
    struct chm_store *s = aligned_alloc(_Alignof(struct chm_store), sizeof(*s));

    if (s) {
        memset(s, 0, sizeof(*s));
        s->dev = dev;
    }
    return s;
}

void *chm_kv_map(struct chm_store *s, uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    uint32_t i = 0;

    if (p == MAP_FAILED) {
        return NULL;
    }
    while (i < KV_MAPS && s->maps[i].base) {
        i++;
    }
    CHM_ASSERT(i < KV_MAPS);
    s->maps[i].base = p;
    s->maps[i].bytes = bytes;
    return p;
}

void chm_kv_unmap_all(struct chm_store *s)
{
    for (uint32_t i = 0; i < KV_MAPS && s->maps[i].base; i++) {
        munmap(s->maps[i].base, s->maps[i].bytes);
    }
}

int chm_kv_write_page(struct chm_store *s, uint64_t off, const void *page)
{
    struct chm_write w = {.addr = s->base + off, .len = s->unit};
    int32_t status = 0;
    int rc = chm_write_begin(s->dev, &w, 1);

    if (rc != 1) {
        return rc < 0 ? rc : w.status;
    }
    memcpy(w.data, page, CHM_KV_PAGE);
    memset((uint8_t *)w.data + CHM_KV_PAGE, 0, s->unit - CHM_KV_PAGE);
    rc = chm_write_commit(s->dev, &w.id, 1, &status);
    return rc < 0 ? rc : status;
}

int chm_kv_write_page_wait(struct chm_store *s, uint64_t off, const void *page)
{
    uint64_t deadline_ns = chm_door_deadline(s->dev, KV_DEVICE_NS);
    int rc;

    while ((rc = chm_kv_write_page(s, off, page)) == -EAGAIN) {
        rc = chm_door_wait_until(s->dev, chm_now(s->dev) + ROOM_RETRY_NS, deadline_ns);
        if (rc < 0 && rc != -EINTR) {
            return rc;
        }
    }
    s->stats.metadata_bytes += rc == 0 ? s->unit : 0;
    return rc;
}

int chm_kv_read(struct chm_store *s, uint64_t addr, void *buf, uint64_t len)
{
    struct chm_read item = {.addr = addr, .len = len, .buf = buf};
    int rc = chm_read(s->dev, &item, 1, KV_DEVICE_NS);

    return rc < 0 ? rc : item.status;
}

void chm_kv_page_seal(const struct chm_store *s, struct chm_kv_page *p, uint32_t kind,
                      uint32_t number)
{
    p->head.kind = kind;
    p->head.number = number;
    memcpy(p->head.id, s->super.id, sizeof(p->head.id));
    p->head.sum = chm_sum_once((uint8_t *)p + 8, CHM_KV_PAGE - 8, 0);
}

bool chm_kv_page_is_good(const struct chm_store *s, const struct chm_kv_page *p, uint32_t kind)
{
    return p->head.kind == kind && memcmp(p->head.id, s->super.id, sizeof(p->head.id)) == 0 &&
           p->head.sum == chm_sum_once((const uint8_t *)p + 8, CHM_KV_PAGE - 8, 0);
}
