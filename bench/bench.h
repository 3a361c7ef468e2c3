/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - what the measuring programs share: arguments, clocks, medians, result rows.
 *
 * A program prints one line of JSON per result on stdout (bench/run reads them) and talks to people
 * on stderr. It knows no targets: those are in bench/figures.py. Anything that goes wrong ends it
 * with a reason: a figure from a broken run must not exist.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "chm.h"

enum { BENCH_PAGE = 4096 };

#define BENCH_KIB ((uint64_t)1 << 10)
#define BENCH_MIB ((uint64_t)1 << 20)
#define BENCH_GIB ((uint64_t)1 << 30)

struct bench_args {
    const char *dir;  /* folder for the backing file, on a disk */
    const char *only; /* run cases whose name contains this */
    bool quick;       /* fewer and shorter segments: for trying things, not for quoting */
    uint32_t segments;
    uint64_t seed;
};

/* Parse --dir, --only, --quick, --segments, --seed. `segments` is the default of the last but one.
 */
void bench_args(struct bench_args *a, int argc, char **argv, uint32_t segments);
bool bench_wanted(const struct bench_args *a, const char *name);

/* Say why on stderr and end with status 1. */
void bench_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* rc < 0: die with what failed and the errno behind it. Returns rc. */
int bench_check(int rc, const char *what);
void *bench_alloc(size_t bytes);

/* ---- time: a span of wall clock and of CPU of the whole process, device thread included */
struct bench_span {
    double wall, cpu; /* s */
};

double bench_now(void);
struct bench_span bench_start(void);
/* The time since `start`. */
struct bench_span bench_since(struct bench_span start);

/* ---- samples */
struct bench_samples {
    double *at;
    size_t n, max;
};

void bench_add(struct bench_samples *s, double value);
/* Value that a share q of the samples do not exceed; sorts them. 0 if there are none. */
double bench_quantile(struct bench_samples *s, double q);
double bench_median(struct bench_samples *s);
void bench_clear(struct bench_samples *s);

/* ---- randomness and order, from a seed */
uint64_t bench_random(uint64_t *state);
/* The numbers 0 .. n-1, shuffled. The caller frees it. */
uint64_t *bench_shuffled(uint64_t n, uint64_t seed);

/* ---- one result, on stdout */
void bench_row(const char *name);
void bench_num(const char *key, double value);
void bench_text(const char *key, const char *value);
void bench_row_end(void);

#endif
