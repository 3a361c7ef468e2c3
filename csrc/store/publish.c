/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.c - counters of an open store where other processes can read them.
 *
 * The page is written as a whole with one pwrite a few times a second, and begins with a checksum:
 * a reader that meets it half-written sees that and reads again. It is a file and no mapping, so
 * that nobody who truncates it or fills its file system can bring down the owner.
 *
 * The file's name follows from the device and the base, and whoever holds the lock of the device is
 * the only one who makes it, so what lies there already is of an owner that died: it is replaced.
 * Whether a page is that of a living owner, its reader learns from the device's lock (peek.c).
 *
 * Whoever lets the store work (its worker, or the caller of a stepped device) publishes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "store/kv.h"

static const char MAGIC[9] = "CHMPAGE\n";

const char *chm_kv_publish_path(uint32_t directory, const uint8_t device_id[16], uint64_t base,
                                char *out, size_t len)
{
    char id[33];

    for (size_t i = 0; i < 16; i++) {
        snprintf(id + 2 * i, 3, "%02x", device_id[i]);
    }
    if (directory == 0) {
        snprintf(out, len, "/dev/shm/chm-%s-%llx", id, (unsigned long long)base);
    } else if (directory == 1) {
        snprintf(out, len, "/run/user/%u/chm-%s-%llx", (unsigned)geteuid(), id,
                 (unsigned long long)base);
    } else {
        return NULL;
    }
    return out;
}

void chm_kv_publish_open(struct chm_store *s)
{
    struct chm_kv_publish *p = &s->publish;
    uint64_t bytes =
        sizeof(*p->page) + s->super.max_namespaces * sizeof(struct chm_store_namespace_info);

    if (s->dev->sim || s->opt.publish_interval_ns == UINT64_MAX) {
        return;
    }
    p->page = chm_kv_map(s, bytes);
    for (uint32_t i = 0;
         p->page && p->fd < 0 &&
         chm_kv_publish_path(i, s->dev->device_id, s->base, p->path, sizeof(p->path));
         i++) {
        (void)unlink(p->path);
        p->fd = open(p->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    }
    if (p->fd >= 0) {
        p->next_ns = 0;
        chm_kv_publish_step(s);
    }
}

/* The namespaces, behind the page. Returns the bytes of all. */
static uint64_t fill_namespaces(struct chm_store *s)
{
    struct chm_store_page *page = s->publish.page;
    struct chm_store_namespace_info *ns = (struct chm_store_namespace_info *)(page + 1);
    uint32_t n = 0;

    while (n < s->super.max_namespaces && chm_store_namespace_info(s, n, &ns[n]) == 0) {
        n++;
    }
    page->namespaces = n;
    return sizeof(*page) + n * sizeof(*ns);
}

static void fill(struct chm_store *s, uint64_t now, uint64_t *bytes)
{
    struct chm_store_page *page = s->publish.page;
    int slow;

    CHM_ASSERT(page);
    memcpy(page->magic, MAGIC, sizeof(page->magic));
    page->version = CHM_STORE_PAGE_VERSION;
    page->bytes = sizeof(*page);
    page->pid = (uint32_t)getpid();
    page->count++;
    page->now_ns = now;
    page->opened_ns = s->opened_ns;
    chm_info(s->dev, &page->device);
    chm_stats(s->dev, &page->device_stats);
    chm_store_info(s, &page->info);
    chm_store_stats(s, &page->stats);
    slow = chm_store_slow(s, page->slow, CHM_STORE_SLOW_MAX);
    page->slow_count = slow > 0 ? (uint32_t)slow : 0;
    *bytes = fill_namespaces(s);
    page->sum = chm_sum_once((const uint8_t *)page + 16, *bytes - 16, 0);
}

void chm_kv_publish_step(struct chm_store *s)
{
    struct chm_kv_publish *p = &s->publish;
    uint64_t now, bytes;

    if (p->fd < 0) {
        return;
    }
    now = chm_now(s->dev);
    if (now < p->next_ns) {
        return;
    }
    p->next_ns = chm_sat_add(now, s->opt.publish_interval_ns);
    fill(s, now, &bytes);
    if (pwrite(p->fd, p->page, bytes, 0) < 0) {
        p->next_ns = chm_sat_add(now, CHM_SECOND); /* no space there: the next one may fit */
    }
}

void chm_kv_publish_close(struct chm_store *s)
{
    struct chm_kv_publish *p = &s->publish;

    if (p->fd >= 0) {
        (void)unlink(p->path);
        close(p->fd);
        p->fd = -1;
        p->next_ns = UINT64_MAX;
    }
}
