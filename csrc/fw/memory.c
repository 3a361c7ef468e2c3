/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - see memory.h. One of the few files that may make system calls. */
#include "fw/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "media/clock.h"
#include "media/thread.h"
#include "util/util.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    HUGE_BYTES = 2 << 20,
    SMALL_BYTES = 4096,
    MARK_BYTES = 4096,
    TOUCH_BYTES = 8 << 20, /* the helper looks for `stop` this often */
};

/* Address space for size bytes that begins on a huge page: only there can small pages be made into
 * huge ones later, and it is aligned for a drive that wants more than a page. What is cut off on
 * both sides goes back. */
static void *memory_place(uint64_t size)
{
    uint8_t *wide = mmap(NULL, size + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t lead, tail;

    if (wide == MAP_FAILED) {
        return NULL;
    }
    lead = chm_round_up((uintptr_t)wide, HUGE_BYTES) - (uintptr_t)wide;
    tail = HUGE_BYTES - lead;
    if (lead) {
        munmap(wide, lead);
    }
    if (tail) {
        munmap(wide + lead + size, tail);
    }
    return wide + lead;
}

/* Map a new memfd; -errno leaves m untouched. Huge pages are reserved by mmap, so a refusal shows
 * here and not as a bus error later. */
static int memory_map(struct chm_memory *m, uint64_t bytes, bool huge)
{
    uint64_t page = huge ? HUGE_BYTES : SMALL_BYTES;
    uint64_t size = chm_round_up(bytes, page);
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
    int fd = memfd_create("chm", flags);
    void *base;
    int rc = -ENOMEM;

    if (fd < 0) {
        return -errno;
    }
    if (ftruncate(fd, (off_t)size) < 0) {
        rc = -errno;
        goto fail;
    }
    base = memory_place(size);
    if (!base || mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != base) {
        goto fail;
    }
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    madvise(base, size, MADV_DONTFORK);
    m->base = base;
    m->bytes = size;
    m->page_bytes = page;
    m->fd = fd;
    m->huge = huge;
    return 0;
fail:
    close(fd);
    return rc;
}

/* More than what the machine has free would not fail here but kill somebody later. */
static bool memory_too_large(uint64_t bytes, uint64_t *free_bytes)
{
    char line[128];
    unsigned long long kib;
    bool known = false;
    FILE *f = fopen("/proc/meminfo", "re");

    if (!f) {
        return false;
    }
    while (!known && fgets(line, sizeof(line), f)) {
        known = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    }
    fclose(f);
    *free_bytes = known ? (uint64_t)kib << 10 : UINT64_MAX;
    return bytes > *free_bytes;
}

static int memory_mark(struct chm_memory *m)
{
    void *mark = mmap(NULL, MARK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (mark == MAP_FAILED) {
        return -errno;
    }
    madvise(mark, MARK_BYTES, MADV_WIPEONFORK);
    m->parent_mark = mark;
    *m->parent_mark = 1;
    return 0;
}

static int memory_map_best(struct chm_memory *m, uint64_t bytes, uint32_t huge_pages, bool sparse,
                           struct chm_error *err)
{
    uint64_t free_bytes = 0;
    int rc = -ENOMEM;

    if (huge_pages != 1) {
        rc = memory_map(m, bytes, true);
        if (rc < 0 && huge_pages == 2) {
            snprintf(
                err->text, sizeof(err->text),
                "no %llu MiB of huge pages (%s): reserve them with sysctl vm.nr_hugepages=%llu",
                (unsigned long long)(bytes >> 20), strerror(-rc),
                (unsigned long long)(chm_round_up(bytes, HUGE_BYTES) / HUGE_BYTES));
            return rc;
        }
        if (rc == 0) {
            return 0;
        }
    }
    if (!sparse && memory_too_large(bytes, &free_bytes)) {
        snprintf(err->text, sizeof(err->text),
                 "the DRAM budget is %llu MiB but only %llu MiB of memory are available",
                 (unsigned long long)(bytes >> 20), (unsigned long long)(free_bytes >> 20));
        return -ENOMEM;
    }
    rc = memory_map(m, bytes, false);
    if (rc < 0) {
        snprintf(err->text, sizeof(err->text), "cannot map %llu MiB of memory: %s",
                 (unsigned long long)(bytes >> 20), strerror(-rc));
    }
    return rc;
}

int chm_memory_open(struct chm_memory *m, uint64_t bytes, uint32_t huge_pages, bool lock,
                    bool sparse, struct chm_error *err)
{
    int rc;

    *m = (struct chm_memory){.fd = -1};
    rc = memory_map_best(m, bytes, huge_pages, sparse, err);
    if (rc < 0) {
        return rc;
    }
    m->collapse = huge_pages != 1;
    rc = memory_mark(m);
    if (rc < 0) {
        chm_memory_close(m, false);
        return rc;
    }
    if (lock) {
        m->locked = mlock(m->base, m->bytes) == 0;
        if (!m->locked) {
            snprintf(m->note, sizeof(m->note), "mlock refused (%s): raise ulimit -l",
                     strerror(errno));
        }
    }
    return 0;
}

/* Write to a page without changing it: the device may be using it already. */
static void touch_page(uint8_t *p)
{
    atomic_fetch_or_explicit((_Atomic uint8_t *)p, 0, memory_order_relaxed);
}

/* Make [at, end) huge pages, whatever the system's default for shared memory is. It saves most of
 * the CPU time of direct I/O, since a request then has a few long pieces and not hundreds of short
 * ones. One byte per huge page is enough to begin with; the kernel fills in the rest, which costs a
 * tenth of touching all of it first. False: old kernels and full memories refuse. */
static bool memory_collapse(struct chm_memory *m, uint64_t at, uint64_t end)
{
    if (m->huge || !m->collapse || at % HUGE_BYTES != 0 || end % HUGE_BYTES != 0) {
        return false;
    }
    for (uint64_t p = at; p < end; p += HUGE_BYTES) {
        touch_page(m->base + p);
    }
    if (madvise(m->base + at, end - at, MADV_COLLAPSE) < 0) {
        return false;
    }
    atomic_fetch_add(&m->collapsed, end - at);
    return true;
}

static void memory_populate(struct chm_memory *m, uint64_t at, uint64_t end)
{
    if (madvise(m->base + at, end - at, MADV_POPULATE_WRITE) < 0) {
        for (uint64_t p = at; p < end; p += m->page_bytes) {
            touch_page(m->base + p);
        }
    }
}

/* All of it, in order; the first touch is what costs. */
static void *memory_touch(void *arg)
{
    struct chm_memory *m = arg;
    uint64_t begin = chm_clock_now(), at = 0;

    while (at < m->bytes && !atomic_load_explicit(&m->stop, memory_order_relaxed)) {
        uint64_t end = chm_min(at + TOUCH_BYTES, m->bytes);

        if (!memory_collapse(m, at, end)) {
            memory_populate(m, at, end);
        }
        at = end;
        atomic_store_explicit(&m->touched, at, memory_order_release);
        atomic_store_explicit(&m->touch_ns, chm_clock_now() - begin, memory_order_relaxed);
        if (m->region) {
            atomic_store_explicit(&m->region->ready, at, memory_order_release);
        }
    }
    return NULL;
}

int chm_memory_prefault(struct chm_memory *m, struct chm_region *region, bool wait)
{
    int rc;

    m->region = region;
    if (wait) {
        memory_touch(m);
        return 0;
    }
    rc = chm_thread_create(&m->helper, memory_touch, m);
    m->helper_runs = rc == 0;
    return rc;
}

void chm_memory_close(struct chm_memory *m, bool keep)
{
    atomic_store(&m->stop, true);
    if (m->helper_runs) {
        pthread_join(m->helper, NULL);
        m->helper_runs = false;
    }
    if (m->base && !keep) {
        munmap(m->base, m->bytes);
        close(m->fd);
    }
    if (m->parent_mark) {
        munmap(m->parent_mark, MARK_BYTES);
        m->parent_mark = NULL;
    }
    m->base = NULL;
    m->fd = -1;
}

bool chm_memory_is_parent(const struct chm_memory *m)
{
    return *m->parent_mark != 0;
}
