/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pace.c - makes the files below one folder as slow as a drive of a given rate, for programs that
 * know nothing of it (LD_PRELOAD). The device has its own wrapper for this (media_pace.c); this is
 * the same token bucket for other back ends, so that all of them meet the same drive.
 *
 *     CHM_PACE_DIR=/dev/shm/x CHM_PACE_RATE=2000000000 LD_PRELOAD=build/bench/pace.so program
 *
 * Reads and writes of one process share one bucket, 1 MiB deep. An I/O of n bytes moves the time at
 * which the bucket is full again by n/rate, runs at once, and returns when it is paid for. Only
 * transfers of 64 KiB and more are looked at; the folder's files are told by their path.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LEAST_BYTES = 64 << 10, BURST_BYTES = 1 << 20 };

static const uint64_t second_ns = 1000000000U;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t full_ns;
static uint64_t rate;
static char folder[4096];
static size_t folder_len;

__attribute__((constructor)) static void begin(void)
{
    const char *r = getenv("CHM_PACE_RATE");
    const char *d = getenv("CHM_PACE_DIR");

    if (r && d && strlen(d) < sizeof(folder)) {
        rate = strtoull(r, NULL, 10);
        folder_len = strlen(d);
        memcpy(folder, d, folder_len);
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * second_ns + (uint64_t)t.tv_nsec;
}

static bool paced(int fd, size_t bytes)
{
    char link[64];
    char path[sizeof(folder)];
    ssize_t n;

    if (rate == 0 || bytes < LEAST_BYTES) {
        return false;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof(path));
    return n > (ssize_t)folder_len && memcmp(path, folder, folder_len) == 0;
}

/* Take bytes out of the bucket; returns when they are paid for. */
static uint64_t pay(uint64_t bytes)
{
    uint64_t now = now_ns();
    uint64_t burst_ns = BURST_BYTES * second_ns / rate;
    uint64_t due;

    pthread_mutex_lock(&lock);
    full_ns = (full_ns > now ? full_ns : now) + bytes * second_ns / rate;
    due = full_ns - burst_ns;
    pthread_mutex_unlock(&lock);
    return due;
}

static void wait_until(uint64_t due)
{
    struct timespec t = {.tv_sec = (time_t)(due / second_ns), .tv_nsec = (long)(due % second_ns)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {
    }
}

/* Defines name(fd, ...) around the library's own. */
#define PACED(name, bytes, params, ...)                                                            \
    ssize_t name params;                                                                           \
    ssize_t name params                                                                            \
    {                                                                                              \
        static ssize_t(*real) params;                                                              \
        uint64_t due = 0;                                                                          \
        ssize_t n;                                                                                 \
                                                                                                   \
        if (!real) {                                                                               \
            *(void **)&real = dlsym(RTLD_NEXT, #name);                                             \
        }                                                                                          \
        if (paced(fd, bytes)) {                                                                    \
            due = pay(bytes);                                                                      \
        }                                                                                          \
        n = real(__VA_ARGS__);                                                                     \
        if (due) {                                                                                 \
            wait_until(due);                                                                       \
        }                                                                                          \
        return n;                                                                                  \
    }

static size_t total(const struct iovec *iov, int n)
{
    size_t bytes = 0;

    for (int i = 0; i < n; i++) {
        bytes += iov[i].iov_len;
    }
    return bytes;
}

PACED(read, len, (int fd, void *buf, size_t len), fd, buf, len)
PACED(write, len, (int fd, const void *buf, size_t len), fd, buf, len)
PACED(pread, len, (int fd, void *buf, size_t len, off_t at), fd, buf, len, at)
PACED(pwrite, len, (int fd, const void *buf, size_t len, off_t at), fd, buf, len, at)
PACED(pread64, len, (int fd, void *buf, size_t len, off64_t at), fd, buf, len, at)
PACED(pwrite64, len, (int fd, const void *buf, size_t len, off64_t at), fd, buf, len, at)
PACED(readv, total(iov, n_iov), (int fd, const struct iovec *iov, int n_iov), fd, iov, n_iov)
PACED(writev, total(iov, n_iov), (int fd, const struct iovec *iov, int n_iov), fd, iov, n_iov)
