/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c - see bench.h. */
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* ---- arguments and ends */

static const char *value_of(const char *name, int argc, char **argv, int *i)
{
    if (strcmp(argv[*i], name) != 0) {
        return NULL;
    }
    if (*i + 1 >= argc) {
        bench_die("%s needs a value", name);
    }
    return argv[++*i];
}

void bench_args(struct bench_args *a, int argc, char **argv, uint32_t segments)
{
    const char *v;

    *a = (struct bench_args){.dir = ".", .segments = segments, .seed = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            a->quick = true;
            a->segments = segments < 3 ? segments : 3;
        } else if ((v = value_of("--dir", argc, argv, &i))) {
            a->dir = v;
        } else if ((v = value_of("--only", argc, argv, &i))) {
            a->only = v;
        } else if ((v = value_of("--segments", argc, argv, &i))) {
            a->segments = (uint32_t)strtoul(v, NULL, 10);
        } else if ((v = value_of("--seed", argc, argv, &i))) {
            a->seed = strtoull(v, NULL, 10);
        } else {
            bench_die("unknown argument %s", argv[i]);
        }
    }
    if (a->segments == 0) {
        bench_die("--segments is at least 1");
    }
}

bool bench_wanted(const struct bench_args *a, const char *name)
{
    return !a->only || strstr(name, a->only);
}

void bench_die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

int bench_check(int rc, const char *what)
{
    if (rc < 0) {
        bench_die("%s: %s", what, strerror(-rc));
    }
    return rc;
}

void *bench_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);

    if (!p) {
        bench_die("no memory for %zu bytes", bytes);
    }
    return p;
}

/* ---- time */

double bench_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

static double cpu_now(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return seconds(u.ru_utime) + seconds(u.ru_stime);
}

struct bench_span bench_start(void)
{
    return (struct bench_span){.wall = bench_now(), .cpu = cpu_now()};
}

struct bench_span bench_since(struct bench_span start)
{
    return (struct bench_span){.wall = bench_now() - start.wall, .cpu = cpu_now() - start.cpu};
}

/* ---- samples */

void bench_add(struct bench_samples *s, double value)
{
    if (s->n == s->max) {
        s->max = s->max ? 2 * s->max : 64;
        s->at = realloc(s->at, s->max * sizeof(*s->at));
        if (!s->at) {
            bench_die("no memory for samples");
        }
    }
    s->at[s->n++] = value;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_quantile(struct bench_samples *s, double q)
{
    size_t rank = (size_t)ceil(q * (double)s->n);

    if (s->n == 0) {
        return 0;
    }
    qsort(s->at, s->n, sizeof(*s->at), compare);
    return s->at[rank > 0 ? rank - 1 : 0];
}

double bench_median(struct bench_samples *s)
{
    double low = bench_quantile(s, 0.5);

    return s->n % 2 || s->n == 0 ? low : (low + s->at[s->n / 2]) / 2;
}

void bench_clear(struct bench_samples *s)
{
    free(s->at);
    *s = (struct bench_samples){0};
}

/* ---- randomness: SplitMix64 */

uint64_t bench_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t *bench_shuffled(uint64_t n, uint64_t seed)
{
    uint64_t *order = bench_alloc(n * sizeof(*order));

    for (uint64_t i = 0; i < n; i++) {
        uint64_t j = bench_random(&seed) % (i + 1);

        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

/* ---- rows */

void bench_row(const char *name)
{
    printf("{\"name\": \"%s\"", name);
}

void bench_num(const char *key, double value)
{
    if (isfinite(value)) {
        printf(", \"%s\": %.6g", key, value);
    } else {
        printf(", \"%s\": null", key);
    }
}

/* No text of ours holds a quote or a backslash but those of the system; they are left out. */
void bench_text(const char *key, const char *value)
{
    printf(", \"%s\": \"", key);
    for (; *value; value++) {
        if (*value != '"' && *value != '\\' && (unsigned char)*value >= ' ') {
            putchar(*value);
        }
    }
    putchar('"');
}

void bench_row_end(void)
{
    puts("}");
    fflush(stdout);
}
