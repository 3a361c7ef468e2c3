/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault_plan.c - which I/O gets which fault (fault_plan.h).
 *
 * With a script, the first line that fits the I/O decides; with rates, one number drawn per I/O
 * does, and a second one the length of a short or torn transfer. Either way the faults depend on
 * the script or seed and on the order of submission, and on nothing else. Called by media_fault.c
 * only.
 */
#define _GNU_SOURCE
#include "media/fault_plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "media/media.h"
#include "util/util.h"

enum {
    LINE_MAX_BYTES = 256,
    PPM = 1000000,
    LATE_NS_DEFAULT = 10000000,
};

static const char *const kind_names[] = {"read", "write", "barrier", "trim", "any"};

static const struct {
    const char *name;
    bool has_arg;
    bool writes_only;
    bool transfers_only;
} faults[CHM_FAULT_KINDS] = {
    [CHM_FAULT_ERR] = {.name = "err", .has_arg = true},
    [CHM_FAULT_SHORT] = {.name = "short", .has_arg = true, .transfers_only = true},
    [CHM_FAULT_TORN] = {.name = "torn", .has_arg = true, .writes_only = true},
    [CHM_FAULT_LOST] = {.name = "lost", .writes_only = true},
    [CHM_FAULT_LATE] = {.name = "late", .has_arg = true},
    [CHM_FAULT_NEVER] = {.name = "never"},
    [CHM_FAULT_SWAP] = {.name = "swap"},
};

static bool fault_fits(enum chm_fault fault, uint8_t kind)
{
    if (faults[fault].writes_only) {
        return kind == CHM_IO_WRITE;
    }
    return !faults[fault].transfers_only || kind == CHM_IO_READ || kind == CHM_IO_WRITE;
}

/* ------------------------------------------------------------------ script */

/* A decimal number at *s; moves *s behind it. */
static bool parse_number(const char **s, uint64_t *value)
{
    char *end;

    if (**s < '0' || **s > '9') { /* strtoull would take a sign */
        return false;
    }
    errno = 0;
    *value = strtoull(*s, &end, 10);
    *s = end;
    return errno == 0;
}

/* "N", "N-M" or "N-". */
static bool parse_range(const char *s, struct chm_fault_rule *r)
{
    if (!parse_number(&s, &r->first)) {
        return false;
    }
    r->last = r->first;
    if (*s == '-') {
        s++;
        r->last = UINT64_MAX;
        if (*s && !parse_number(&s, &r->last)) {
            return false;
        }
    }
    return *s == '\0' && r->first <= r->last;
}

static bool parse_kind(const char *s, struct chm_fault_rule *r)
{
    for (size_t i = 0; i < CHM_COUNT(kind_names); i++) {
        if (strcmp(s, kind_names[i]) == 0) {
            r->kind = (uint8_t)i;
            return true;
        }
    }
    return false;
}

/* arg is "" if there is none. */
static bool parse_fault(const char *s, const char *arg, struct chm_fault_rule *r)
{
    for (unsigned i = CHM_FAULT_ERR; i < CHM_FAULT_KINDS; i++) {
        if (strcmp(s, faults[i].name) == 0) {
            r->fault = (uint8_t)i;
            return faults[i].has_arg ? parse_number(&arg, &r->arg) && *arg == '\0' : *arg == '\0';
        }
    }
    return false;
}

/* One line without its end. 1: a rule, 0: nothing on it, -EINVAL. */
static int parse_line(const char *line, struct chm_fault_rule *r)
{
    char range[64] = "", kind[16] = "", fault[16] = "", arg[32] = "", more[2] = "";
    int n = sscanf(line, "%63s %15s %15s %31s %1s", range, kind, fault, arg, more);

    *r = (struct chm_fault_rule){0};
    if (n <= 0 || range[0] == '#') {
        return 0;
    }
    if (n < 3 || n > 4 || !parse_range(range, r) || !parse_kind(kind, r) ||
        !parse_fault(fault, arg, r)) {
        return -EINVAL;
    }
    if (r->fault == CHM_FAULT_ERR && (r->arg == 0 || r->arg > 4095)) {
        return -EINVAL;
    }
    return 1;
}

static uint32_t count_lines(const char *script)
{
    uint32_t n = 1;

    for (; *script; script++) {
        n += *script == '\n';
    }
    return n;
}

static int parse_script(struct chm_fault_plan *p, const char *script, uint32_t lines,
                        struct chm_error *err)
{
    uint32_t number = 0;

    while (*script) {
        char line[LINE_MAX_BYTES];
        size_t len = strcspn(script, "\n");
        int rc = -EINVAL;
        CHM_ASSERT(number < lines && p->nrules <= number);
        number++;
        (void)snprintf(line, sizeof(line), "%.*s", (int)chm_min(len, LINE_MAX_BYTES - 1), script);
        if (len < LINE_MAX_BYTES) {
            rc = parse_line(line, &p->rules[p->nrules]);
        }
        if (rc < 0) {
            return chm_media_fail(err, rc,
                                  "fault script, line %u: \"%.100s\" is not "
                                  "\"N[-[M]] KIND FAULT [ARG]\"",
                                  number, line);
        }
        p->nrules += (uint32_t)rc;
        script += len + (script[len] == '\n');
    }
    return 0;
}

int chm_fault_plan_open(struct chm_fault_plan *p, const struct chm_fault_options *o,
                        struct chm_error *err)
{
    *p = (struct chm_fault_plan){
        .ppm = {[CHM_FAULT_ERR] = o->eio_ppm,
                [CHM_FAULT_SHORT] = o->short_ppm,
                [CHM_FAULT_TORN] = o->torn_ppm,
                [CHM_FAULT_LOST] = o->lost_ppm,
                [CHM_FAULT_LATE] = o->late_ppm,
                [CHM_FAULT_NEVER] = o->never_ppm,
                [CHM_FAULT_SWAP] = o->swap_ppm},
        .late_ns = o->late_ns ? o->late_ns : LATE_NS_DEFAULT,
        .seed = o->seed,
    };
    if (!o->script) {
        return 0;
    }
    uint32_t lines = count_lines(o->script);
    p->rules = calloc(lines, sizeof(*p->rules));
    if (!p->rules) {
        return chm_media_fail(err, -ENOMEM, "no memory for the fault script");
    }
    int rc = parse_script(p, o->script, lines, err);
    if (rc) {
        chm_fault_plan_close(p);
    }
    return rc;
}

void chm_fault_plan_close(struct chm_fault_plan *p)
{
    free(p->rules);
}

/* ------------------------------------------------------------------ verdicts */

static struct chm_fault_verdict verdict_by_script(const struct chm_fault_plan *p,
                                                  const struct chm_io *io, uint64_t of_kind,
                                                  uint64_t of_all)
{
    for (uint32_t i = 0; i < p->nrules; i++) {
        const struct chm_fault_rule *r = &p->rules[i];
        uint64_t number = r->kind == CHM_FAULT_ANY ? of_all : of_kind;
        if ((r->kind == CHM_FAULT_ANY || r->kind == io->kind) && number >= r->first &&
            number <= r->last && fault_fits(r->fault, io->kind)) {
            return (struct chm_fault_verdict){.fault = r->fault, .arg = r->arg};
        }
    }
    return (struct chm_fault_verdict){.fault = CHM_FAULT_NONE};
}

static uint64_t drawn_arg(const struct chm_fault_plan *p, enum chm_fault fault, uint64_t draw,
                          const struct chm_io *io, uint32_t block_bytes)
{
    switch (fault) {
    case CHM_FAULT_ERR:
        return EIO;
    case CHM_FAULT_SHORT:
    case CHM_FAULT_TORN:
        return draw % chm_max(io->len / block_bytes, 1) * block_bytes;
    case CHM_FAULT_LATE:
        return p->late_ns;
    default:
        return 0;
    }
}

static struct chm_fault_verdict verdict_by_rates(struct chm_fault_plan *p, const struct chm_io *io,
                                                 uint32_t block_bytes)
{
    uint64_t which = chm_random(&p->seed) % PPM, draw = chm_random(&p->seed);
    uint64_t below = 0;

    for (unsigned i = CHM_FAULT_ERR; i < CHM_FAULT_KINDS; i++) {
        enum chm_fault fault = (enum chm_fault)i;
        below += p->ppm[i];
        if (which < below) {
            if (!fault_fits(fault, io->kind)) {
                break;
            }
            uint64_t arg = drawn_arg(p, fault, draw, io, block_bytes);
            return (struct chm_fault_verdict){.fault = fault, .arg = arg};
        }
    }
    return (struct chm_fault_verdict){.fault = CHM_FAULT_NONE};
}

struct chm_fault_verdict chm_fault_plan_next(struct chm_fault_plan *p, const struct chm_io *io,
                                             uint32_t block_bytes)
{
    uint64_t of_all = p->seen[CHM_FAULT_ANY]++;
    uint64_t of_kind = p->seen[io->kind]++;

    if (p->rules) {
        return verdict_by_script(p, io, of_kind, of_all);
    }
    return verdict_by_rates(p, io, block_bytes);
}
